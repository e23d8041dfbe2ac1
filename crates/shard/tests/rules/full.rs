//! Tests of full queues.

use crate::support::*;
use shard::{
    Acknowledgement::*, Answer, Command, Identity, Limits, NEVER, QueueFull, QueueLimits, SessionUid,
};

fn limits(queue_full: QueueFull) -> Limits {
    Limits { queue_messages_max: 2, queue_full, ..Limits::default() }
}

/// Creates a session with a full window and a full queue.
fn full(queue_full: QueueFull) -> (Host, (SessionUid, u32)) {
    let mut host = Host::with(limits(queue_full));
    let owner = host.claim_as(&shard::Claim { window: 1, ..claim("c") });
    host.subscribe(owner, "#", 1);
    for topic in ["0", "1", "2"] {
        host.publish(topic);
    }
    (host, owner)
}

#[test]
fn a_connected_clients_queue_exceeds_its_limits_and_publishers_wait_for_room() {
    let (mut host, owner) = full(QueueFull::DropOldest);
    assert_eq!(describe(&host.publish("3")), ["queued 3 over"]);
    assert_eq!(describe(&host.publish("4")), ["queued 4 over"]);
    let (_, effects) = host.ack_effects(owner, 1, PubAck);
    assert_eq!(describe(&effects), ["pinned 1..2", "room 4"]);
    let (_, effects) = host.ack_effects(owner, 2, PubAck);
    assert_eq!(describe(&effects), ["pinned 2..3", "room 5"]);
    let (_, effects) = host.ack_effects(owner, 3, PubAck);
    assert_eq!(describe(&effects), ["pinned 3..4"]);
}

#[test]
fn a_publisher_is_notified_of_room_although_its_message_is_opened_at_once() {
    let (mut host, owner) = full(QueueFull::DropOldest);
    host.publish("3");
    let effects = host.effects(&Command::Claim(shard::Claim { window: 9, ..claim("c") }));
    assert_eq!(
        describe(&effects)[..2],
        ["dropped 1..2 QueueFull", "room 4"],
        "the previous connection is gone"
    );
    let (mut host, _) = full(QueueFull::DropOldest);
    for topic in ["3", "4"] {
        let message = shard::MessageView { expires: 10, ..view(topic) };
        host.effects(&Command::Publish { message, wait: true, identity: None });
    }
    host.now = 10;
    host.ack_effects(owner, 1, PubAck);
    let (_, effects) = host.ack_effects(owner, 2, PubAck);
    assert_eq!(describe(&effects), ["pinned 2..3", "room 5"]);
    let (_, effects) = host.ack_effects(owner, 3, PubAck);
    assert_eq!(describe(&effects), ["dropped 3..5 Expired"]);
}

/// No publisher waits for messages of the node itself, such as Wills.
#[test]
fn a_full_queue_refuses_messages_without_a_waiting_publisher() {
    let (mut host, owner) = full(QueueFull::DropOldest);
    let effects = host.effects(&Command::Publish { message: view("3"), wait: false, identity: None });
    assert_eq!(describe(&effects), ["not queued"]);
    assert_eq!((host.queue(owner.0).len(), host.shard.counts().dropped_queue_full), (3, 1));
}

#[test]
fn overdue_publishers_are_accepted_at_the_cost_of_the_oldest_messages() {
    let (mut host, owner) = full(QueueFull::DropOldest);
    host.publish("3");
    host.publish("4");
    let effects = host.effects(&Command::Overdue { session: owner.0 });
    assert_eq!(describe(&effects), ["dropped 1..3 QueueFull", "room 5"]);
    assert_eq!(host.queue(owner.0), ["0", "3", "4"]);
    assert_eq!(host.shard.counts().dropped_queue_full, 2);
    // The identifiers of dropped deliveries are skipped.
    let (_, effects) = host.ack_effects(owner, 1, PubAck);
    assert_eq!(describe(&effects), ["pinned 3..4"]);
    assert_eq!(host.ack(owner, 4, PubAck), Answer::Finished { n: 3 });
}

#[test]
fn overdue_publishers_lose_their_messages_under_the_other_rule() {
    let (mut host, owner) = full(QueueFull::DropNewest);
    host.publish("3");
    host.publish("4");
    let effects = host.effects(&Command::Overdue { session: owner.0 });
    assert_eq!(describe(&effects), ["dropped 3..5 QueueFull", "room 5"]);
    assert_eq!(host.queue(owner.0), ["0", "1", "2"]);
    assert_eq!(
        describe(&host.publish("5")),
        ["queued 3 over"],
        "the number of a delivery that was never opened is given again"
    );
}

#[test]
fn a_queue_is_settled_when_its_client_disconnects() {
    let (mut host, owner) = full(QueueFull::DropOldest);
    host.publish("3");
    assert_eq!(describe(&host.release(owner)), ["dropped 1..2 QueueFull", "room 4"]);
    assert_eq!(host.queue(owner.0), ["0", "2", "3"]);
}

#[test]
fn an_absent_clients_queue_loses_the_oldest() {
    let (mut host, owner) = full(QueueFull::DropOldest);
    host.release(owner);
    assert_eq!(describe(&host.publish("3")), ["dropped 1..2 QueueFull", "queued 3"]);
    assert_eq!(host.queue(owner.0), ["0", "2", "3"], "open deliveries stay");
}

#[test]
fn an_absent_clients_queue_loses_the_newest_under_the_other_rule() {
    let (mut host, owner) = full(QueueFull::DropNewest);
    host.release(owner);
    assert_eq!(describe(&host.publish("3")), ["not queued"]);
    assert_eq!(host.queue(owner.0), ["0", "1", "2"]);
}

#[test]
fn bytes_are_limited_like_messages() {
    let size = view("0").encoded_len().next_multiple_of(8) as u64;
    let mut host = Host::with(Limits { queue_bytes_max: 2 * size, ..limits(QueueFull::DropOldest) });
    let owner = host.claim_as(&shard::Claim { window: 100, ..claim("c") });
    host.subscribe(owner, "#", 1);
    assert_eq!(describe(&host.publish("0")), ["queued 0 pinned"]);
    assert_eq!(describe(&host.publish("1")), ["queued 1 pinned"]);
    assert_eq!(describe(&host.publish("2")), ["queued 2"], "pinned deliveries are limited too");
    host.ack(owner, 1, PubAck);
    assert_eq!(host.shard.session(owner.0).map(|session| session.waiting()), Some(3..3));
}

#[test]
fn a_message_waits_at_most_the_maximum_time() {
    let mut host = Host::with(Limits { queue_age_max_ms: 5_000, ..limits(QueueFull::DropOldest) });
    let owner = host.claim("c");
    host.subscribe(owner, "#", 1);
    host.publish("0");
    host.release(owner);
    host.publish("1");
    host.now = 4_999;
    host.publish("2");
    host.now = 5_000;
    let effects = describe(&host.effects(&Command::Claim(claim("c"))));
    assert_eq!(effects, ["pinned 0..1", "dropped 1..2 Expired", "pinned 2..3"], "open deliveries stay");
}

/// Each absent client keeps its share when too many messages wait on the node.
#[test]
fn absent_clients_lose_messages_beyond_their_share() {
    let size = view("0").encoded_len().next_multiple_of(8) as u64;
    let (mut host, owner) = full(QueueFull::DropOldest);
    host.answer(&Command::Configure(Limits { absent_bytes_max: size, ..limits(QueueFull::DropOldest) }));
    assert_eq!(describe(&host.release(owner)), ["dropped 1..2 QueueFull"]);
    assert_eq!(describe(&host.publish("3")), ["dropped 2..3 QueueFull", "queued 3"]);
    host.answer(&Command::Configure(Limits { absent_bytes_max: size - 1, ..limits(QueueFull::DropOldest) }));
    assert_eq!(describe(&host.publish("4")), ["dropped 3..4 QueueFull", "not queued"]);
}

/// Creates a session with a full window and a full queue that refuses messages.
pub fn refusing() -> (Host, (SessionUid, u32)) {
    let mut host = Host::with(Limits::default());
    let full = QueueFull::Refuse;
    let limits = QueueLimits { messages_max: 2, bytes_max: 1 << 20, age_max_ms: NEVER, full };
    let owner = host.claim_as(&shard::Claim { window: 1, queue_limits: Some(limits), ..claim("c") });
    host.subscribe(owner, "a/#", 1);
    for topic in ["a/0", "a/1", "a/2"] {
        host.publish(topic);
    }
    (host, owner)
}

#[test]
fn a_full_queue_that_refuses_messages_answers_the_publisher() {
    let (mut host, owner) = refusing();
    let refused = Answer::Refused { session: owner.0 };
    let publish = |host: &mut Host, topic| {
        host.answer(&Command::Publish { message: view(topic), wait: true, identity: None })
    };
    assert_eq!(publish(&mut host, "a/3"), refused, "connected");
    assert_eq!(publish(&mut host, "b"), Answer::Published { matched: 0 }, "it is not for this session");
    host.ack(owner, 1, PubAck);
    assert_eq!(publish(&mut host, "a/3"), Answer::Published { matched: 1 });
    host.release(owner);
    assert_eq!(publish(&mut host, "a/4"), refused, "absent");
    assert_eq!(host.queue(owner.0), ["a/1", "a/2", "a/3"]);
    // Nobody waits for this one.
    let effects = host.effects(&Command::Publish { message: view("a/5"), wait: false, identity: None });
    assert_eq!(describe(&effects), ["not queued"]);
}

/// Another session of the shard would get it twice when its publisher sends it again.
#[test]
fn no_session_of_the_shard_gets_a_refused_message_and_its_identity_may_come_again() {
    let (mut host, owner) = refusing();
    let other = host.claim("other");
    host.subscribe(other, "#", 1);
    let publish = |host: &mut Host, number| {
        let identity = Some(Identity { origin: 7, number });
        host.answer(&Command::Publish { message: view("a/3"), wait: true, identity })
    };
    for _ in 0..2 {
        assert_eq!(publish(&mut host, 2), Answer::Refused { session: owner.0 });
        assert_eq!(host.queue(other.0), Vec::<String>::new());
    }
    host.ack(owner, 1, PubAck);
    assert_eq!(publish(&mut host, 2), Answer::Published { matched: 2 });
    assert_eq!(publish(&mut host, 2), Answer::Repeated);
    // The next message of the Packet Identifier is refused, and the one after it has the first number again.
    assert_eq!(publish(&mut host, 3), Answer::Refused { session: owner.0 });
    host.ack(owner, 2, PubAck);
    assert_eq!(publish(&mut host, 2), Answer::Published { matched: 2 });
}

#[test]
fn a_message_of_a_shared_group_is_refused_so_that_another_member_gets_it() {
    let (mut host, owner) = refusing();
    let identity = Some(Identity { origin: 7, number: 2 });
    let enqueue = |host: &mut Host, identity| {
        host.answer(&Command::Enqueue(shard::Enqueue {
            session: owner.0,
            message: view("a/3"),
            qos: mqtt::QoS::AtLeastOnce,
            retain: false,
            ids: Vec::new(),
            identity,
            group: Some("$share/g/a/#"),
        }))
    };
    assert_eq!(enqueue(&mut host, identity), Answer::Refused { session: owner.0 });
    host.ack(owner, 1, PubAck);
    assert_eq!(enqueue(&mut host, identity), Answer::Done, "its identity was not recorded");
}

#[test]
fn a_session_refuses_messages_until_a_claim_has_another_rule_or_it_ends() {
    let (mut host, owner) = refusing();
    assert!(restore(&host.checkpoint(), host.shard.applied()).refuses_messages(), "a checkpoint has it");
    host.release(owner);
    host.claim("c");
    assert!(!host.shard.refuses_messages());
    assert_eq!(describe(&host.publish("a/3")), ["queued 3"]);
    let (mut host, _) = refusing();
    host.answer(&Command::Claim(shard::Claim { clean_start: true, ..claim("c") }));
    assert!(!host.shard.refuses_messages());
}
