//! Wills.

use crate::support::*;
use shard::{Claim, Command, MessageView, WillFate};

fn host(delay_s: u32) -> (Host, (shard::SessionUid, u32)) {
    let mut host = Host::default();
    let owner = host.claim_as(&Claim { will: will("w", delay_s), ..claim("c") });
    (host, owner)
}

/// [MQTT-3.1.2-8]
#[test]
fn a_will_is_due_when_the_connection_is_lost_and_stays_until_it_is_done() {
    let (mut host, owner) = host(0);
    assert_eq!(describe(&host.release(owner)), ["will 1"]);
    let message = host.shard.due_will(1).expect("is there");
    assert_eq!(MessageView::decode(message).map(|message| message.topic), Ok("w"));
    assert_eq!(host.shard.due_wills().count(), 1);
    host.answer(&Command::WillDone { id: 1 });
    assert_eq!(host.shard.due_wills().count(), 0);
    host.claim("c");
    assert_eq!(describe(&host.effects(&Command::End { session: owner.0 })), ["ended c Ended"], "once");
}

/// [MQTT-3.1.2-10] [MQTT-3.14.4-3]
#[test]
fn a_client_cancels_its_will_by_disconnecting() {
    let (mut host, (session, epoch)) = host(0);
    let release = Command::Release { session, epoch, expiry_s: None, will: WillFate::Discard };
    assert_eq!(host.effects(&release), []);
    assert_eq!(describe(&host.tick(100_000)), ["ended c Expired"]);
}

/// [MQTT-3.1.3-9]: no Will when the session is resumed before it is due.
#[test]
fn a_delayed_will_is_dropped_when_the_client_comes_back() {
    let (mut host, owner) = host(10);
    assert_eq!(host.release(owner), []);
    host.tick(9_999);
    host.claim("c");
    assert_eq!(host.tick(50_000), []);
}

#[test]
fn a_delayed_will_is_due_after_its_delay_although_no_tick_came() {
    let (mut host, owner) = host(10);
    host.release(owner);
    host.now = 10_000;
    assert_eq!(describe(&host.effects(&Command::Claim(claim("c")))), ["will 1"]);
}

/// [MQTT-3.1.3-9]: after its delay or when the session ends, whichever comes first.
#[test]
fn a_will_is_due_when_the_session_ends_before_its_delay_is_over() {
    let (mut host, owner) = host(1_000);
    host.release(owner);
    assert_eq!(describe(&host.tick(100_000)), ["will 1", "ended c Expired"]);
    let (mut host, owner) = self::host(u32::MAX);
    host.release(owner);
    let clean = Command::Claim(Claim { clean_start: true, ..claim("c") });
    assert_eq!(describe(&host.effects(&clean)), ["will 1", "ended c CleanStart"]);
}

/// A connection claims the session of another that the host has not released yet. It takes the session over, and
/// the Will of the other is due as if its connection was lost now.
#[test]
fn a_takeover_counts_as_a_loss_of_the_connection() {
    let (mut host, _) = host(0);
    assert_eq!(describe(&host.effects(&Command::Claim(claim("c")))), ["will 1"]);
    let (mut host, _) = self::host(10);
    assert_eq!(host.effects(&Command::Claim(claim("c"))), []);
    assert_eq!(host.tick(90_000), []);
}

/// The Will of the previous connection does not belong to this one.
#[test]
fn each_claim_has_its_own_will() {
    let (mut host, owner) = host(10);
    host.release(owner);
    let owner = host.claim("c");
    assert_eq!(host.release(owner), []);
    assert_eq!(describe(&host.tick(100_000)), ["ended c Expired"]);
}
