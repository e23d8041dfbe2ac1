//! A state with another clock: that of a cluster, for the shard of a node alone.

use crate::support::*;
use shard::{Claim, Command, Effect, Identity, MessageView, NEVER, PartId, Shard, Will, WillFate};

const AHEAD: u64 = 1_700_000_000_000;

/// Returns a shard with something of everything that has a time. Its clock is `ahead`.
fn shard_at(ahead: u64) -> Host {
    let after = |ms: Option<u64>| ms.map_or(NEVER, |ms| ahead + ms);
    let message =
        |topic, expires| MessageView { expires: after(expires), received: ahead + 10, ..view(topic) };
    // The properties have a time of the broker, and `expires` is an interval.
    let properties: &[u8] = if ahead == 0 { b"before" } else { b"after" };
    let will = |interval: Option<u64>| {
        let expires = interval.unwrap_or(NEVER);
        Some(Will { message: MessageView { properties, expires, received: 0, ..view("w") }, delay_s: 40 })
    };
    let mut host = Host { now: ahead + 10, ..Host::default() };
    host.answer(&Command::Started { incarnation: 3, elapsed_ms: 0 });
    let gone = host.claim_as(&Claim { will: will(Some(90_000)), ..claim("gone") });
    let here = host.claim_as(&Claim { expiry_s: u32::MAX, will: will(None), ..claim("here") });
    let ends = host.claim_as(&Claim { will: will(Some(95_000)), ..claim("ends") });
    host.subscribe(gone, "t/#", 2);
    host.subscribe(here, "t/+", 1);
    host.now = ahead + 500;
    for (number, (topic, expires)) in
        [("t/1", Some(60_000)), ("t/2", None), ("t/3", Some(70_000))].iter().enumerate()
    {
        let identity = Some(Identity { origin: 5, number: number as u64 * 2 });
        host.answer(&Command::Publish { message: message(topic, *expires), wait: true, identity });
    }
    host.answer(&Command::Retain { message: message("r", Some(80_000)) });
    host.answer(&Command::Retain { message: message("s", None) });
    let release =
        |(session, epoch), expiry_s| Command::Release { session, epoch, expiry_s, will: WillFate::Arm };
    host.answer(&release(gone, None));
    host.answer(&release(ends, Some(0)));
    let (session, epoch) = here;
    let packet_id = mqtt::PacketId::new(9).expect("not 0");
    host.answer(&Command::Receive { session, epoch, packet_id });
    // The era of the connected client has ended, and its session is not released yet.
    host.now = ahead + 900;
    host.answer(&Command::Started { incarnation: 4, elapsed_ms: 100 });
    host
}

fn checkpoint(shard: &mut Shard) -> Vec<(PartId, Vec<u8>)> {
    let mut parts = Vec::new();
    shard.begin_checkpoint();
    while !shard.write_parts(1, &mut |part, bytes| parts.push((part, bytes.to_vec()))) {}
    parts
}

#[test]
fn a_shifted_state_is_that_of_a_shard_whose_clock_is_ahead() {
    let mut alone = shard_at(0);
    let mut ahead = shard_at(AHEAD);
    let will_properties = |properties: &[u8]| {
        assert_eq!(properties, b"before");
        b"after".to_vec()
    };
    let mut shifted = alone.shard.shifted(AHEAD, KEY, &will_properties).expect("a state");
    shifted.check_invariants();
    assert_eq!((shifted.now(), shifted.applied()), (AHEAD + 900, alone.shard.applied()));
    assert_eq!(shifted.digest(), ahead.shard.digest());
    assert_ne!(shifted.digest(), alone.shard.digest());
    assert_eq!(shifted.next_deadline(), ahead.shard.next_deadline());
    assert_eq!(checkpoint(&mut shifted), ahead.checkpoint(), "all parts are in the next checkpoint");
    // Everything becomes due at the same time.
    for ms in [40_000, 60_000, 80_000, 100_000, 141_000] {
        let effects = ahead.tick(AHEAD + ms);
        let batch = ahead.log.last().expect("a batch");
        let mut same = Vec::new();
        shifted.apply(ahead.shard.applied(), batch, &mut same).expect("the next batch");
        same.retain(|effect| !matches!(effect, Effect::Answer { .. }));
        assert_eq!(describe(&same), describe(&effects));
        assert_eq!(shifted.digest(), ahead.shard.digest());
    }
    let unshifted = alone.shard.shifted(0, KEY, &|properties| properties.to_vec()).expect("a state");
    assert_eq!(unshifted.digest(), alone.shard.digest());
    alone.tick(1_000);
}

#[test]
fn only_what_outlives_the_node_is_content() {
    assert!(shard_at(0).shard.has_content());
    let mut host = Host::default();
    host.answer(&Command::Started { incarnation: 3, elapsed_ms: 0 });
    assert!(!host.shard.has_content());
    host.answer(&Command::Retain { message: view("r") });
    assert!(host.shard.has_content());
}
