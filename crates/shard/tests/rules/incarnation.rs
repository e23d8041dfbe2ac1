//! Beginning, ownership and end of sessions.

use crate::support::*;
use shard::{
    Acknowledgement::*, Answer, Claim, Command, ELAPSED_MAX_MS, Effect, EndReason, Enqueue, NEVER,
    NodeIncarnation, WillFate,
};

/// [MQTT-3.1.4-4] [MQTT-3.2.2-2] [MQTT-3.2.2-3]
#[test]
fn a_session_is_resumed_or_begins_empty() {
    let mut host = Host::default();
    let first = host.answer(&Command::Claim(claim("c")));
    let Answer::Claimed { session: Some(session), epoch: 1, present: false } = first else {
        panic!("{first:?}")
    };
    host.subscribe((session, 1), "a", 1);
    host.release((session, 1));
    assert_eq!(
        host.answer(&Command::Claim(claim("c"))),
        Answer::Claimed { session: Some(session), epoch: 2, present: true }
    );
    let (answer, effects) = host.submit(&Command::Claim(Claim { clean_start: true, ..claim("c") }));
    let Answer::Claimed { session: Some(other), epoch: 1, present: false } = answer else {
        panic!("{answer:?}")
    };
    assert_ne!(session, other, "a number is never used again");
    assert_eq!(describe(&effects), ["removed a", "ended c CleanStart"]);
    assert_eq!(host.shard.session_of("c"), Some(other));
    assert!(host.shard.session(session).is_none());
}

/// [MQTT-3.1.2-23]
#[test]
fn a_session_ends_when_its_expiry_interval_passes() {
    let mut host = Host::default();
    let owner = host.claim("c");
    host.tick(500_000);
    assert_eq!(host.shard.next_deadline(), NEVER, "not while a client is connected");
    host.release(owner);
    assert_eq!(host.shard.next_deadline(), 600_000);
    assert_eq!(host.tick(599_999), []);
    assert_eq!(describe(&host.tick(600_000)), ["ended c Expired"]);
    assert_eq!(host.shard.counts().sessions_expired, 1);
}

#[test]
fn an_expired_session_is_not_resumed_although_no_tick_came() {
    let mut host = Host::default();
    let owner = host.claim("c");
    host.release(owner);
    host.now = 100_000;
    let answer = host.answer(&Command::Claim(claim("c")));
    assert!(matches!(answer, Answer::Claimed { present: false, .. }));
}

/// 3.1.2.11.2: 0xFFFFFFFF is never.
#[test]
fn the_largest_expiry_is_never() {
    let mut host = Host::default();
    let owner = host.claim_as(&Claim { expiry_s: u32::MAX, ..claim("c") });
    host.release(owner);
    assert_eq!((host.shard.next_deadline(), host.shard.counts().owned), (NEVER, 0));
}

/// [MQTT-3.14.2-2], and an interval of 0 ends the session.
#[test]
fn a_disconnect_can_change_the_expiry() {
    let mut host = Host::default();
    let (session, epoch) = host.claim("c");
    let release = |expiry_s| Command::Release { session, epoch, expiry_s, will: WillFate::Discard };
    assert_eq!(describe(&host.effects(&release(Some(0)))), ["ended c Released"]);
    assert_eq!(host.answer(&release(None)), Answer::Gone);
}

#[test]
fn a_claim_without_expiry_creates_no_session_but_resumes_one() {
    let mut host = Host::default();
    let brief = Claim { expiry_s: 0, ..claim("c") };
    let none = Answer::Claimed { session: None, epoch: 0, present: false };
    assert_eq!(host.answer(&Command::Claim(brief.clone())), none);
    let owner = host.claim("c");
    host.release(owner);
    let resumed = Answer::Claimed { session: Some(owner.0), epoch: 2, present: true };
    assert_eq!(host.answer(&Command::Claim(brief.clone())), resumed);
    assert_eq!(describe(&host.release((owner.0, 2))), ["ended c Released"]);
    host.claim("c");
    assert_eq!(host.answer(&Command::Claim(Claim { clean_start: true, ..brief })), none);
    assert_eq!(host.shard.counts().sessions, 0);
}

/// A crashed node releases no session: the next incarnation does it, as of its beginning.
#[test]
fn the_sessions_of_a_dead_node_are_released() {
    let mut host = Host::default();
    let owners =
        ["a", "b", "c"].map(|client_id| host.claim_as(&Claim { will: will("w", 20), ..claim(client_id) }));
    host.subscribe(owners[0], "t", 1);
    host.now = 10_000;
    host.answer(&Command::Started { incarnation: 2, elapsed_ms: 10_000 });
    assert_eq!(
        host.shard.now(),
        10_000,
        "the time of the batch and the time between incarnations are the same"
    );
    assert_eq!((host.shard.counts().owned, host.shard.sweeping()), (3, true), "until they are released");
    assert_eq!(host.shard.session(owners[0].0).and_then(|session| session.owner()), None);
    assert_eq!(host.ack(owners[0], 1, PubAck), Answer::Stale);
    // One session gets a command before the sweep reaches it.
    host.now = 15_000;
    host.publish("t");
    let session = host.shard.session(owners[0].0).expect("is there");
    assert_eq!((session.ends(), session.will_due()), (110_000, 30_000), "as of the beginning");
    assert_eq!(host.claim("b"), (owners[1].0, 2));
    assert_eq!(host.answer(&Command::Sweep { count: 2 }), Answer::Progress { more: true });
    assert_eq!(host.answer(&Command::Sweep { count: 2 }), Answer::Progress { more: false });
    assert_eq!((host.shard.counts().owned, host.shard.sweeping()), (1, false));
    assert_eq!(host.shard.session(owners[1].0).and_then(|session| session.owner()), Some(70));
    assert_eq!(describe(&host.tick(30_000)), ["will 1", "will 2"]);
    assert_eq!(describe(&host.tick(110_000)), ["removed t", "ended a Expired", "ended c Expired"]);
}

/// The node crashes again before its sweep is complete.
#[test]
fn each_session_is_released_as_of_the_incarnation_that_owned_it() {
    let mut host = Host::default();
    let old = host.claim("old");
    host.now = 10_000;
    host.answer(&Command::Started { incarnation: 2, elapsed_ms: 10_000 });
    let new = host.claim("new");
    host.now = 50_000;
    host.answer(&Command::Started { incarnation: 3, elapsed_ms: 40_000 });
    assert_eq!(host.answer(&Command::Sweep { count: 9 }), Answer::Progress { more: false });
    let ends = |session| host.shard.session(session).map(|session| session.ends());
    assert_eq!((ends(old.0), ends(new.0)), (Some(110_000), Some(150_000)));
    assert_eq!(host.shard.incarnation(), Some(3));
}

/// [MQTT-3.1.2-23] [MQTT-3.1.3-9]: sessions of one node of a cluster are released, those of others are not.
#[test]
fn the_sessions_of_a_node_that_is_gone_are_released() {
    let mut host = Host::default();
    let node = |node, incarnation| NodeIncarnation { node, incarnation };
    let of = |owner, client_id| Claim { owner: Some(owner), will: will("w", 20), ..claim(client_id) };
    let (one, other) = (node(1, 10), node(2, 10));
    let gone = host.claim_as(&of(one, "gone"));
    let stays = host.claim_as(&of(other, "stays"));
    host.now = 10_000;
    assert_eq!(host.answer(&Command::NodeEnded(node(1, 9))), Answer::Done);
    assert!(!host.shard.sweeping(), "an earlier incarnation");
    assert_eq!(host.answer(&Command::NodeEnded(one)), Answer::Done);
    host.now = 20_000;
    assert_eq!(host.answer(&Command::NodeEnded(one)), Answer::Done, "it is over already");
    assert_eq!(host.ack(gone, 1, PubAck), Answer::Stale);
    assert_eq!(host.ack(stays, 1, PubAck), Answer::Unknown);
    assert_eq!(host.answer(&Command::Claim(of(one, "late"))), Answer::Stale);
    assert_eq!(host.answer(&Command::Sweep { count: 9 }), Answer::Progress { more: false });
    let owner = |session| host.shard.session(session).and_then(|session| session.owner_node());
    assert_eq!((owner(gone.0), owner(stays.0)), (None, Some(other)));
    let session = host.shard.session(gone.0).expect("is there");
    assert_eq!((session.ends(), session.will_due()), (110_000, 30_000), "as of its end");
    assert_eq!(describe(&host.tick(30_000)), ["will 1"]);
    // The client comes back at another node, and that node starts again without having been missed.
    assert_eq!(host.claim_as(&of(other, "gone")), (gone.0, 2));
    host.now = 40_000;
    host.claim_as(&of(node(2, 11), "new"));
    assert_eq!(host.ack(stays, 1, PubAck), Answer::Stale);
    assert_eq!(host.answer(&Command::Sweep { count: 9 }), Answer::Progress { more: false });
    let ends = |session| host.shard.session(session).map(|session| session.ends());
    assert_eq!((ends(gone.0), ends(stays.0), host.shard.counts().owned), (Some(140_000), Some(140_000), 1));
}

#[test]
fn the_clock_never_goes_back_and_its_steps_are_limited() {
    let mut host = Host::default();
    let first = 10 * shard::CLOCK_STEP_MAX_MS;
    host.tick(first);
    host.tick(1_000);
    assert_eq!(host.shard.now(), first, "a new shard begins at the time of its first batch");
    host.tick(u64::MAX);
    assert_eq!(host.shard.now(), first + shard::CLOCK_STEP_MAX_MS);
    let before = host.shard.now();
    host.now = 0;
    host.answer(&Command::Started { incarnation: 1, elapsed_ms: u64::MAX });
    assert_eq!(host.shard.now(), before + ELAPSED_MAX_MS);
}

#[test]
fn an_operator_ends_a_session_with_any_owner() {
    let mut host = Host::default();
    let owner = host.claim("c");
    host.subscribe(owner, "$share/g/t", 1);
    let end = Command::End { session: owner.0 };
    assert_eq!(describe(&host.effects(&end)), ["removed $share/g/t", "ended c Ended"]);
    assert_eq!((host.answer(&end), host.shard.counts().owned), (Answer::Gone, 0));
}

/// [MQTT-4.8.2-4] [MQTT-4.8.2-5]: another member receives the unacknowledged messages of a group's member; at QoS 2
/// nobody receives those that were sent.
#[test]
fn messages_of_a_group_outlive_their_member() {
    let mut host = Host::default();
    let owner = host.claim("c");
    let enqueue = |topic, qos, group| {
        let (session, message) = (owner.0, view(topic));
        Command::Enqueue(Enqueue {
            session,
            message,
            qos,
            retain: false,
            ids: vec![3],
            identity: None,
            group,
        })
    };
    let (one, two, group) = (mqtt::QoS::AtLeastOnce, mqtt::QoS::ExactlyOnce, Some("$share/g/#"));
    for (topic, qos, group) in
        [("1", one, group), ("2", two, group), ("own", one, None), ("3", two, group), ("4", one, group)]
    {
        host.effects(&enqueue(topic, qos, group));
    }
    host.release(owner);
    let effects = host.tick(100_000);
    assert_eq!(describe(&effects), ["orphan 1", "orphan 2", "orphan 3", "ended c Expired"]);
    let topics = host.shard.orphans().map(|(_, orphan)| host.message(orphan.key).topic);
    assert_eq!(topics.collect::<Vec<_>>(), ["1", "3", "4"]);
    assert_eq!(host.shard.orphan(1).map(|orphan| orphan.group), Some("$share/g/#"));
    assert_eq!(host.shard.counts().dropped_session_ended, 2);
    for id in 1..=3 {
        host.answer(&Command::OrphanDone { id });
    }
    assert_eq!((host.shard.orphans().count(), host.shard.live_bytes()), (0, 0));
    assert_eq!(host.answer(&enqueue("5", one, group)), Answer::Gone);
    assert!(matches!(effects[3], Effect::SessionEnded { reason: EndReason::Expired, .. }));
}
