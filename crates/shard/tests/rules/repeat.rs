//! Requests that come again after a change of leader.

use crate::full::refusing;
use crate::support::*;
use mqtt::{PacketId, QoS, ReasonCode};
use shard::{
    Acknowledgement::*, Answer, BatchBuilder, Claim, Command, Enqueue, Filter, Identity, LANES_MAX,
    MessageView, NodeIncarnation, RequestNumber, SessionUid, Subscribed, WalkStep, WillFate,
};

const ONE: NodeIncarnation = NodeIncarnation { node: 1, incarnation: 10 };
const OTHER: NodeIncarnation = NodeIncarnation { node: 2, incarnation: 10 };

fn of(owner: NodeIncarnation, client_id: &str) -> Claim<'_> {
    Claim { owner: Some(owner), ..claim(client_id) }
}

fn number(number: u64) -> RequestNumber {
    RequestNumber::Claim { number }
}

/// Number of a command of the first epoch of a session.
fn nth(number: u64) -> RequestNumber {
    RequestNumber::Connection { epoch: 1, number }
}

fn in_lane(owner: NodeIncarnation, lane: u16, number: u64) -> RequestNumber {
    RequestNumber::Lane { owner, lane, number }
}

fn id(value: u16) -> PacketId {
    PacketId::new(value).expect("not 0")
}

/// Begins a session of the node `ONE`.
fn host() -> (Host, SessionUid) {
    let mut host = Host::default();
    let session = host.claim_numbered(&Command::Claim(of(ONE, "c")), 1);
    (host, session)
}

/// [MQTT-3.2.2-2] [MQTT-3.2.2-3]: Session Present is that of the first answer, and Clean Start ends no session again.
#[test]
fn a_claim_that_comes_again_gets_its_first_answer() {
    let mut host = Host::default();
    let begin = Command::Claim(Claim { clean_start: true, ..of(ONE, "c") });
    let first = host.request(&begin, number(7));
    assert!(matches!(first, Answer::Claimed { session: Some(_), epoch: 1, present: false }));
    let session = host.shard.session_of("c").expect("is there");
    host.subscribe_to_all(session);
    assert_eq!(host.again(&begin, number(7)), first);
    let resume = Command::Claim(of(ONE, "c"));
    let second = host.request(&resume, number(3));
    assert_eq!(second, Answer::Claimed { session: Some(session), epoch: 2, present: true });
    assert_eq!(host.again(&resume, number(3)), second, "numbers of Claims may fall");
    assert_eq!(host.again(&begin, number(7)), Answer::Stale, "another connection of the node has it");
}

/// [MQTT-3.1.4-3]: the newest connection keeps the session.
#[test]
fn a_claim_that_comes_again_takes_no_session_back() {
    let (mut host, session) = host();
    let old = Command::Claim(of(ONE, "c"));
    let new = host.request(&Command::Claim(of(OTHER, "c")), number(1));
    assert_eq!(new, Answer::Claimed { session: Some(session), epoch: 2, present: true });
    assert_eq!(host.again(&old, number(1)), Answer::Stale);
    // Also when the session of the new connection is another one, or was ended by it.
    let clean = Claim { clean_start: true, ..of(OTHER, "c") };
    host.request(&Command::Claim(clean.clone()), number(2));
    assert_eq!(host.again(&old, number(1)), Answer::Stale);
    host.request(&Command::Claim(Claim { expiry_s: 0, ..clean }), number(3));
    assert_eq!((host.again(&old, number(1)), host.shard.session_of("c")), (Answer::Stale, None));
}

#[test]
fn a_claim_that_comes_again_begins_no_session_after_its_end() {
    let (mut host, session) = host();
    let claim = Command::Claim(of(ONE, "c"));
    let release = Command::Release { session, epoch: 1, expiry_s: None, will: WillFate::Arm };
    assert_eq!(host.request(&release, nth(1)), Answer::Done);
    assert_eq!(host.again(&claim, number(1)), Answer::Stale, "its connection is gone");
    assert_eq!(host.again(&release, nth(1)), Answer::Done);
    host.answer(&Command::End { session });
    assert_eq!(host.again(&claim, number(1)), Answer::Stale);
    assert_eq!(host.again(&release, nth(1)), Answer::Gone);
}

/// A Claim without an expiry leaves no session to look at.
#[test]
fn a_claim_without_a_session_is_remembered() {
    let mut host = Host::default();
    let brief = Command::Claim(Claim { expiry_s: 0, ..of(ONE, "c") });
    let none = Answer::Claimed { session: None, epoch: 0, present: false };
    assert_eq!(host.request(&brief, number(1)), none);
    assert_eq!(host.again(&brief, number(1)), none);
    host.claim_numbered(&Command::Claim(of(OTHER, "c")), 1);
    assert_eq!(host.again(&brief, number(1)), Answer::Stale, "another node has begun a session");
}

#[test]
fn an_owner_that_is_over_is_forgotten() {
    let (mut host, session) = host();
    let publish = publish("a");
    assert_eq!(host.request(&publish, in_lane(ONE, 0, 9)), Answer::Published { matched: 0 });
    host.answer(&Command::NodeEnded(ONE));
    while host.shard.sweeping() {
        host.answer(&Command::Sweep { count: 9 });
    }
    assert_eq!(host.again(&publish, in_lane(ONE, 0, 9)), Answer::Stale);
    assert_eq!(host.again(&publish, in_lane(ONE, 0, 10)), Answer::Stale, "it is not applied");
    assert_eq!(host.again(&Command::Claim(of(ONE, "c")), number(1)), Answer::Stale);
    assert_eq!(host.again(&Command::Claim(of(ONE, "d")), number(2)), Answer::Stale);
    let receive = Command::Receive { session, epoch: 1, packet_id: id(1) };
    assert_eq!(host.again(&receive, nth(1)), Answer::Stale);
    // Its next incarnation counts from the beginning.
    let next = NodeIncarnation { incarnation: 11, ..ONE };
    assert_eq!(host.request(&publish, in_lane(next, 0, 1)), Answer::Published { matched: 0 });
    assert_eq!(host.again(&publish, in_lane(next, 0, 1)), Answer::Repeated);
    assert_eq!(host.again(&publish, in_lane(ONE, 0, 11)), Answer::Stale);
}

/// [MQTT-4.3.2-3] [MQTT-4.3.3-8]: the publisher is answered, and nobody gets the message twice.
#[test]
fn a_message_that_comes_again_is_accepted_and_not_queued() {
    let (mut host, session) = host();
    host.subscribe_to_all(session);
    let identity = |number| Some(Identity { origin: 8, number });
    let of = |identity| Command::Publish { message: view("a"), wait: true, identity };
    for (n, command) in [of(identity(2)), of(identity(3)), of(None)].iter().enumerate() {
        assert_eq!(host.request(command, in_lane(ONE, 4, n as u64 + 1)), Answer::Published { matched: 1 });
    }
    // The identity of the first one was forgotten with the second one.
    assert_eq!(host.again(&of(identity(2)), in_lane(ONE, 4, 1)), Answer::Repeated);
    assert_eq!(host.again(&of(None), in_lane(ONE, 4, 3)), Answer::Repeated);
    let retain = Command::Retain { message: view("a") };
    assert_eq!(host.request(&retain, in_lane(ONE, 4, 4)), Answer::Retained { replaced: false });
    assert_eq!(host.again(&retain, in_lane(ONE, 4, 4)), Answer::Repeated);
    let forget = Command::Forget(Identity { origin: 8, number: 3 });
    assert_eq!(host.request(&forget, in_lane(ONE, 4, 5)), Answer::Done);
    host.request(&of(identity(3)), in_lane(ONE, 4, 6));
    assert_eq!(host.again(&forget, in_lane(ONE, 4, 5)), Answer::Done, "the identity is in use again");
    assert_eq!(host.request(&of(identity(3)), in_lane(ONE, 4, 7)), Answer::Repeated);
    // Other lanes and owners have numbers of their own.
    assert_eq!(host.request(&of(None), in_lane(ONE, LANES_MAX - 1, 1)), Answer::Published { matched: 1 });
    assert_eq!(host.request(&of(None), in_lane(OTHER, 4, 1)), Answer::Published { matched: 1 });
    assert_eq!(host.queue(session).len(), 6);
}

/// The answer may have been lost with the leader. A publisher that was acknowledged would not send the message again.
#[test]
fn a_refused_message_that_comes_again_is_not_accepted() {
    let (mut host, owner) = refusing();
    let publish = |topic, wait, identity| Command::Publish { message: view(topic), wait, identity };
    let identity = Some(Identity { origin: 8, number: 2 });
    let known = Some(Identity { origin: 8, number: 4 });
    let refused = Answer::Refused { session: owner.0 };
    assert_eq!(host.request(&publish("a/3", true, None), in_lane(ONE, 0, 1)), refused);
    assert_eq!(host.request(&publish("a/3", true, identity), in_lane(ONE, 0, 2)), refused);
    host.ack(owner, 1, PubAck);
    assert_eq!(
        host.request(&publish("a/4", true, known), in_lane(ONE, 0, 3)),
        Answer::Published { matched: 1 }
    );
    host.ack(owner, 2, PubAck);
    assert_eq!(
        host.request(&publish("a/5", true, None), in_lane(ONE, 0, 4)),
        Answer::Published { matched: 1 }
    );
    let repeats = [
        (publish("a/3", true, None), 1, &Answer::PerhapsRefused),
        (publish("a/3", true, identity), 2, &Answer::PerhapsRefused),
        (publish("a/4", true, known), 3, &Answer::Repeated),
        // The session refuses messages, and has accepted this one.
        (publish("a/5", true, None), 4, &Answer::Repeated),
    ];
    for (command, number, answer) in &repeats {
        assert_eq!(host.again(command, in_lane(ONE, 0, *number)), **answer, "{command:?}");
    }
    // The publisher sends it again as a new message.
    host.ack(owner, 3, PubAck);
    assert_eq!(
        host.request(&publish("a/3", true, identity), in_lane(ONE, 0, 5)),
        Answer::Published { matched: 1 }
    );
    assert_eq!(
        host.again(&publish("a/3", true, identity), in_lane(ONE, 0, 2)),
        Answer::Repeated,
        "accepted now"
    );
    // The others that match did not get it, whether the session that refused it exists or not.
    host.answer(&Command::End { session: owner.0 });
    for (command, number, answer) in &repeats[2..] {
        assert_eq!(host.again(command, in_lane(ONE, 0, *number)), **answer, "{command:?}");
    }
    let refused = publish("a/3", true, None);
    assert_eq!(host.again(&refused, in_lane(ONE, 0, 1)), Answer::PerhapsRefused);
    // Numbers of the next incarnation begin again.
    let next = NodeIncarnation { incarnation: 11, ..ONE };
    assert_eq!(host.request(&refused, in_lane(next, 0, 1)), Answer::Published { matched: 0 });
    assert_eq!(host.again(&refused, in_lane(next, 0, 1)), Answer::Repeated);
}

#[test]
fn a_refused_message_for_one_session_that_comes_again_is_not_accepted() {
    let (mut host, owner) = refusing();
    let (message, qos, session) = (view("a/3"), QoS::AtLeastOnce, owner.0);
    let enqueue = Enqueue { session, message, qos, retain: false, ids: vec![], identity: None, group: None };
    let enqueue = Command::Enqueue(enqueue);
    let refused = Answer::Refused { session };
    assert_eq!(host.request(&enqueue, in_lane(ONE, 0, 1)), refused);
    host.ack(owner, 1, PubAck);
    assert_eq!(host.again(&enqueue, in_lane(ONE, 0, 1)), refused);
    assert_eq!(host.request(&enqueue, in_lane(ONE, 0, 2)), Answer::Done);
    assert_eq!(host.again(&enqueue, in_lane(ONE, 0, 2)), Answer::Repeated);
    host.answer(&Command::End { session });
    assert_eq!(host.again(&enqueue, in_lane(ONE, 0, 1)), Answer::Gone);
}

/// The sender of a message for a member of a group learns again that the member is gone, so no message is lost.
#[test]
fn a_message_for_a_session_that_is_gone_is_refused_again() {
    let (mut host, session) = host();
    let enqueue = |identity| {
        let (message, qos) = (view("a"), QoS::AtLeastOnce);
        Command::Enqueue(Enqueue { session, message, qos, retain: false, ids: vec![], identity, group: None })
    };
    let known = Some(Identity { origin: 1, number: 2 });
    assert_eq!(host.request(&enqueue(known), in_lane(ONE, 0, 1)), Answer::Done);
    assert_eq!(host.again(&enqueue(None), in_lane(ONE, 0, 1)), Answer::Repeated);
    host.answer(&Command::End { session });
    assert_eq!(host.request(&enqueue(None), in_lane(ONE, 0, 2)), Answer::Gone);
    assert_eq!(host.again(&enqueue(None), in_lane(ONE, 0, 2)), Answer::Gone);
    assert_eq!(host.again(&enqueue(known), in_lane(ONE, 0, 1)), Answer::Repeated, "it was accepted");
}

/// [MQTT-4.3.2-3]: the Packet Identifier belongs to another delivery by then.
#[test]
fn an_acknowledgement_that_comes_again_finishes_no_other_delivery() {
    let (mut host, session) = host();
    host.subscribe_to_all(session);
    let ack =
        |n: u64| Command::Acknowledge { session, epoch: 1, packet_id: shard::packet_id(n), kind: PubAck };
    let circle = u64::from(u16::MAX);
    let message = MessageView { qos: QoS::AtLeastOnce, ..view("a") };
    let message = Command::Publish { message, wait: true, identity: None };
    let mut builder = BatchBuilder::new(0);
    for n in 0..circle {
        builder.push(&message);
        builder.push_numbered(&ack(n), nth(n + 1));
        if builder.len() > 1 << 16 {
            host.append(std::mem::replace(&mut builder, BatchBuilder::new(0)).finish());
        }
    }
    builder.push(&message);
    host.append(builder.finish());
    assert_eq!(shard::packet_id(circle), shard::packet_id(0));
    let (answer, effects) = host.request_effects(&ack(0), nth(1));
    assert_eq!((answer, effects), (Answer::Repeated, vec![]));
    let view = host.shard.session(session).expect("is there");
    assert_eq!((view.unfinished(), view.last_number()), (1, circle));
    assert_eq!(host.request(&ack(circle), nth(circle + 1)), Answer::Finished { n: circle });
}

/// [MQTT-4.3.3-4]: PUBREL leaves while the delivery waits for PUBCOMP.
#[test]
fn a_pubrec_that_comes_again_is_answered_until_its_pubcomp() {
    let (mut host, session) = host();
    host.subscribe_to_all(session);
    host.publish("a");
    let command = |kind| Command::Acknowledge { session, epoch: 1, packet_id: id(1), kind };
    assert_eq!(host.request(&command(PubRec), nth(1)), Answer::Release { n: 0, again: false });
    assert_eq!(host.again(&command(PubRec), nth(1)), Answer::Release { n: 0, again: true });
    assert_eq!(host.request(&command(PubComp), nth(2)), Answer::Finished { n: 0 });
    assert_eq!(host.again(&command(PubRec), nth(1)), Answer::Unknown);
    assert_eq!(host.again(&command(PubComp), nth(2)), Answer::Repeated);
    // A PUBREC for no delivery is answered by a PUBREL that says so, also the second time.
    assert_eq!(host.request(&command(PubRec), nth(3)), Answer::Unknown);
    assert_eq!(host.again(&command(PubRec), nth(3)), Answer::Unknown);
}

/// [MQTT-4.3.3-10] [MQTT-4.3.3-11]: the toggle tells the messages of a Packet Identifier apart.
#[test]
fn a_release_that_comes_again_flips_no_toggle() {
    let (mut host, session) = host();
    let (epoch, packet_id) = (1, id(5));
    let receive = Command::Receive { session, epoch, packet_id };
    let released = Command::Released { session, epoch, packet_id };
    let first = Answer::Received { toggle: false, again: false };
    assert_eq!(host.request(&receive, nth(1)), first);
    assert_eq!(host.again(&receive, nth(1)), first, "the message may not be published yet");
    assert_eq!(host.request(&released, nth(2)), Answer::Done);
    assert_eq!(host.again(&receive, nth(1)), Answer::Repeated, "it is not a new message");
    assert_eq!(host.again(&released, nth(2)), Answer::Done);
    assert_eq!(host.request(&receive, nth(3)), Answer::Received { toggle: true, again: false });
    assert_eq!(host.again(&released, nth(2)), Answer::Done);
    let refuse = Command::Refuse { session, epoch, packet_id };
    assert_eq!(host.request(&refuse, nth(4)), Answer::Done);
    assert_eq!(host.request(&receive, nth(5)), Answer::Received { toggle: true, again: false });
    assert_eq!(host.again(&refuse, nth(4)), Answer::Done);
    let view = host.shard.session(session).expect("is there");
    assert_eq!(view.received().collect::<Vec<_>>(), [(packet_id, true)]);
}

/// [MQTT-3.8.4-6] [MQTT-3.11.3-2]: SUBACK and UNSUBACK have a Reason Code for each filter.
#[test]
fn subscriptions_that_come_again_are_answered_from_the_present_ones() {
    let (mut host, session) = host();
    let filter = |text, options| Filter { text, options, id: 0 };
    let subscribe = |filters| Command::Subscribe { session, epoch: 1, filters };
    let walk = |step| Command::Walk { session, filter: "a", step };
    let all = subscribe(vec![filter("a", 1), filter("b", 0), filter("c/#/d", 2)]);
    let result = |reason, existed| Subscribed { reason, existed };
    let (invalid, granted) = (ReasonCode::TopicFilterInvalid, ReasonCode::GrantedQoS1);
    let first = [result(granted, false), result(ReasonCode::Success, false), result(invalid, false)];
    let subscribed = |results: [Subscribed; 3]| Answer::Subscribed { results: results.into() };
    assert_eq!(host.request(&walk(WalkStep::BeginIfNew), nth(1)), Answer::Done);
    assert_eq!(host.request(&all, nth(2)), subscribed(first));
    assert_eq!(host.again(&all, nth(2)), subscribed(first));
    // The retained messages are queued, so they are not to be queued again.
    assert_eq!(host.request(&walk(WalkStep::End), nth(5)), Answer::Done);
    assert_eq!(host.again(&walk(WalkStep::BeginIfNew), nth(1)), Answer::Done);
    assert_eq!(host.again(&all, nth(2)), subscribed([result(granted, true), first[1], first[2]]));
    let unsubscribe = Command::Unsubscribe { session, epoch: 1, filters: vec!["a"] };
    let unsubscribed = Answer::Unsubscribed { results: [ReasonCode::Success].into() };
    assert_eq!(host.request(&unsubscribe, nth(6)), unsubscribed);
    assert_eq!(host.again(&unsubscribe, nth(6)), unsubscribed);
    let gone = [result(ReasonCode::QuotaExceeded, false), first[1], first[2]];
    assert_eq!(host.again(&all, nth(2)), subscribed(gone));
}

/// A command of an earlier connection is not a repeat in the epoch of the present one.
#[test]
fn numbers_start_again_with_each_epoch() {
    let (mut host, session) = host();
    let receive = |epoch| Command::Receive { session, epoch, packet_id: id(1) };
    let number_in = |epoch, number| RequestNumber::Connection { epoch, number };
    host.request(&receive(1), nth(4));
    host.claim_numbered(&Command::Claim(of(OTHER, "c")), 1);
    assert_eq!(host.shard.session(session).expect("is there").last_number(), 0);
    assert_eq!(host.again(&receive(1), nth(4)), Answer::Stale);
    let known = Answer::Received { toggle: false, again: true };
    assert_eq!(host.request(&receive(2), number_in(2, 1)), known);
    let walk = Command::Walk { session, filter: "a", step: WalkStep::Begin };
    assert_eq!(host.again(&walk, nth(5)), Answer::Stale, "a Walk has the epoch of its number");
    assert_eq!(host.request(&walk, number_in(2, 2)), Answer::Done);
}

#[test]
#[should_panic(expected = "is no number of this command")]
fn a_command_of_no_requester_has_no_number() {
    Host::default().request(&Command::Tick, nth(1));
}
