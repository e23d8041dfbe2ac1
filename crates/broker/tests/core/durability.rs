//! Messages that wait for the disk, that do not, and that are never written to it.

use std::sync::Arc;

use broker::Condition;
use broker::access::AllowAll;
use broker::settings::{Durability, DurabilityRule, Settings};
use mqtt::QoS::{AtLeastOnce, ExactlyOnce};
use mqtt::ReasonCode;
use mqtt::Version::{V3_1_1, V5};
use settings::{ByteSize, Raw, Section};

use crate::log::Log;
use crate::net::{Net, Peer, Travel, settings};
use crate::store::Kind;
use testkit::packets::*;

/// Settings by which messages below `fast/` need not wait for the disk.
fn fast() -> Settings {
    let mut rule = DurabilityRule { class: Durability::Memory, ..DurabilityRule::default() };
    rule.set("filter", &Raw::String("fast/#".into())).expect("a filter");
    Settings { durability: vec![rule], ..settings() }
}

fn everywhere(settings: impl Fn() -> Settings, scenario: impl Fn(&mut Net, &Log)) {
    for workers in [1, 3] {
        let (mut net, log) = Net::with_log(workers, settings(), Arc::new(AllowAll));
        scenario(&mut net, &log);
    }
}

fn connect(net: &mut Net, log: &Log, index: usize, connecting: Connecting) -> Peer {
    let peer = net.connecting(index, connecting);
    net.sync(log);
    assert!(matches!(net.client(peer).next(), Some(Sent::ConnAck { .. })));
    peer
}

/// Makes an absent durable session that subscribes to everything at this QoS.
fn absent(net: &mut Net, log: &Log, name: &str) {
    let peer = connect(net, log, 1, durable(V5, name));
    net.send(peer, subscribe(1).to("#", ExactlyOnce));
    net.sync(log);
    assert_eq!(net.received(peer), [suback(1, &[ExactlyOnce])]);
    net.lose(peer);
    // The end of a connection without a Will waits for other records.
    net.pass(10);
    net.sync(log);
}

fn check_found(net: &mut Net, log: &Log, name: &str, expected: &[&str]) {
    let peer = connect(net, log, 2, durable(V5, name));
    net.sync(log);
    assert_eq!(net.payloads(peer), expected);
}

#[test]
fn only_local_disk_waits_for_the_disk_and_a_session_gets_both_classes_in_order() {
    everywhere(fast, |net, log| {
        absent(net, log, "s");
        let fast = connect(net, log, 0, v5("fast"));
        let slow = connect(net, log, 2, v5("slow"));
        net.send(fast, message("fast/1", "1").qos1(1));
        assert_eq!(net.received(fast), [puback(1)]);
        net.send(slow, message("slow/1", "2").qos1(1));
        net.send(fast, message("fast/1", "3").qos2(2));
        assert_eq!(net.received(fast), [pubrec(2)]);
        assert_eq!(net.received(slow), [], "not before it is on the disk");
        net.sync(log);
        assert_eq!(net.received(slow), [puback(1)]);
        check_found(net, log, "s", &["1", "2", "3"]);
        assert_eq!(net.counter(|c| c.publish_refused), 0);
    });
}

/// [MQTT-4.6.0-2] [MQTT-4.6.0-3]: on one connection, a message that need not wait is acknowledged after one that has
/// to.
#[test]
fn acknowledgements_of_one_connection_stay_in_order() {
    everywhere(fast, |net, log| {
        absent(net, log, "s");
        let publisher = connect(net, log, 0, v5("p"));
        net.send(publisher, message("slow", "1").qos1(1));
        net.send(publisher, message("fast/x", "2").qos1(2));
        net.send(publisher, message("fast/x", "3").qos2(3));
        assert_eq!(net.received(publisher), []);
        net.sync(log);
        assert_eq!(net.received(publisher), [puback(1), puback(2), pubrec(3)]);
        check_found(net, log, "s", &["1", "2", "3"]);
    });
}

/// [MQTT-4.3.3-10]: the message is dispatched once, whether the client has received PUBREC or not. Its identifier is
/// free only when the disk has forgotten it.
#[test]
fn qos_2_of_a_durable_publisher_stays_exactly_once() {
    for version in [V3_1_1, V5] {
        everywhere(fast, |net, log| {
            absent(net, log, "s");
            let publisher = connect(net, log, 0, durable(version, "p"));
            net.send(publisher, message("fast/x", "seen").qos2(7));
            assert_eq!(net.received(publisher), [pubrec(7)], "without the disk");
            net.lose_without_running(publisher);
            let publisher = connect(net, log, 1, durable(version, "p"));
            net.send(publisher, message("fast/x", "seen").qos2(7).dup());
            net.sync(log);
            assert_eq!(net.received(publisher), [pubrec(7)]);
            net.send(publisher, pubrel(7));
            assert_eq!(net.received(publisher), [], "PUBCOMP waits for the disk");
            net.sync(log);
            assert_eq!(net.received(publisher), [pubcomp(7)]);
            net.send(publisher, message("fast/x", "next").qos2(7));
            assert_eq!(net.received(publisher), [pubrec(7)]);
            net.sync(log);
            check_found(net, log, "s", &["seen", "next"]);
        });
    }
}

/// A member of a group gets its message once, although it was sent again before the first was on disk.
#[test]
fn a_repeated_message_is_delivered_to_a_group_once() {
    everywhere(fast, |net, log| {
        absent(net, log, "s");
        let member = connect(net, log, 2, v5("member"));
        net.send(member, subscribe(1).to("$share/g/fast/#", AtLeastOnce));
        assert_eq!(net.received(member), [suback(1, &[AtLeastOnce])]);
        let publisher = connect(net, log, 0, durable(V5, "p"));
        net.send_without_running(publisher, message("fast/x", "once").qos2(7));
        net.lose_without_running(publisher);
        net.run();
        let publisher = connect(net, log, 1, durable(V5, "p"));
        net.send(publisher, message("fast/x", "once").qos2(7).dup());
        net.sync(log);
        assert_eq!(net.received(publisher), [pubrec(7)]);
        assert_eq!(net.payloads(member), ["once"]);
        check_found(net, log, "s", &["once"]);
    });
}

#[test]
fn a_retained_message_of_durability_memory_does_not_wait_for_the_disk() {
    everywhere(fast, |net, log| {
        let publisher = connect(net, log, 0, v5("p"));
        net.send(publisher, message("fast/x", "kept").qos1(1).retain());
        net.send(publisher, message("slow/x", "kept").qos1(2).retain());
        let first = Sent::PubAck(1, ReasonCode::NoMatchingSubscribers);
        assert_eq!(net.received(publisher), [first]);
        net.sync(log);
        assert_eq!(net.received(publisher), [Sent::PubAck(2, ReasonCode::NoMatchingSubscribers)]);
    });
}

/// The number of bytes that a crash may lose is bounded.
#[test]
fn messages_beyond_the_limit_wait_for_the_disk() {
    let limited = || {
        let mut settings = fast();
        settings.limits.memory_unsynced_max = ByteSize::kib(16);
        settings
    };
    everywhere(limited, |net, log| {
        absent(net, log, "s");
        let publisher = connect(net, log, 0, v5("p"));
        // A shard's part is 1 KiB.
        let payload = "x".repeat(600);
        net.send(publisher, message("fast/1", &payload).qos1(1));
        net.send(publisher, message("fast/1", &payload).qos1(2));
        assert_eq!(net.received(publisher), [puback(1)]);
        net.sync(log);
        assert_eq!(net.received(publisher), [puback(2)]);
        net.send(publisher, message("fast/1", &payload).qos1(3));
        assert_eq!(net.received(publisher), [puback(3)], "there is room again");
        net.sync(log);
    });
}

/// Sessions that end with their connection, messages for them at any QoS, and QoS 0 messages for any session.
#[test]
fn messages_for_sessions_that_are_not_durable_are_never_written() {
    everywhere(settings, |net, log| {
        absent(net, log, "s");
        let connected = connect(net, log, 2, durable(V5, "connected"));
        net.send(connected, subscribe(1).to("zero/#", ExactlyOnce));
        net.sync(log);
        net.received(connected);
        let before = log.appended();
        for round in 0..3 {
            let publisher = net.connect(round, v5("p").expiry(0));
            let old = net.connect(round, v3("old"));
            let reader = net.connect(round + 1, v5("r").will(message("zero/will", "gone")));
            net.subscribe(reader, "zero/+", ExactlyOnce);
            net.subscribe(old, "$share/g/zero/+", ExactlyOnce);
            net.publish(publisher, "zero/1", "0");
            net.publish(old, "zero/2", "0");
            net.send(publisher, subscribe(2).to("other", AtLeastOnce));
            assert_eq!(net.payloads(reader), ["0", "0"]);
            assert_eq!(net.payloads(connected).len(), 2);
            net.send(reader, unsubscribe(3, &["zero/+"]));
            for peer in [publisher, old, reader] {
                net.lose(peer);
            }
            net.received(connected);
        }
        net.pass(10_000);
        assert_eq!(log.appended(), before, "nothing is written");
    });
}

/// Messages at QoS 1 and 2 that no durable session wants are not written either.
#[test]
fn acknowledged_messages_for_sessions_without_expiry_are_never_written() {
    everywhere(settings, |net, log| {
        let before = log.appended();
        let publisher = net.connect(0, v5("p"));
        let reader = net.connect(1, v5("r"));
        net.subscribe(reader, "a/+", ExactlyOnce);
        net.send(publisher, message("a/1", "1").qos1(1));
        net.send(publisher, message("a/1", "2").qos2(2));
        assert_eq!(net.received(publisher), [puback(1), pubrec(2)]);
        net.send(publisher, pubrel(2));
        assert_eq!(net.received(publisher), [pubcomp(2)]);
        assert_eq!(net.payloads(reader), ["1", "2"]);
        net.send(reader, puback(1));
        net.send(reader, pubrec(2));
        net.lose(reader);
        net.pass(10_000);
        assert_eq!(log.appended(), before);
    });
}

/// A shared group's message for a durable member is like any other for a durable session: it is refused while there is
/// no room.
#[test]
fn a_full_disk_refuses_a_message_for_a_durable_member_of_a_group() {
    everywhere(settings, |net, log| {
        let member = connect(net, log, 1, durable(V5, "member"));
        net.send(member, subscribe(1).to("$share/g/a/#", ExactlyOnce));
        net.sync(log);
        assert_eq!(net.received(member), [suback(1, &[ExactlyOnce])]);
        let publisher = connect(net, log, 0, v5("p"));
        let lasting = connect(net, log, 2, durable(V5, "lasting"));
        log.becomes(Condition::Full);
        net.run();
        net.send(publisher, message("a/x", "refused").qos1(1));
        net.send(lasting, message("a/x", "refused").qos2(1));
        net.sync(log);
        assert_eq!(net.received(publisher), [Sent::PubAck(1, ReasonCode::QuotaExceeded)]);
        assert_eq!(net.received(lasting), [Sent::PubRec(1, ReasonCode::QuotaExceeded)]);
        log.becomes(Condition::Good);
        net.run();
        net.send(publisher, message("a/x", "taken").qos1(2));
        net.sync(log);
        assert_eq!(net.received(publisher), [puback(2)]);
        net.send(lasting, message("a/x", "accepted too").qos2(1));
        net.sync(log);
        assert_eq!(net.received(lasting), [pubrec(1)]);
        assert_eq!(net.payloads(member), ["taken", "accepted too"]);
    });
}

/// A full log needs its segments while nothing is written: the checkpoint for one of them may do for the next, too.
#[test]
fn a_segment_is_freed_when_a_sufficient_checkpoint_exists_already() {
    everywhere(settings, |net, log| {
        let client = connect(net, log, 0, durable(V5, "c"));
        net.send(client, subscribe(1).to("a", AtLeastOnce));
        net.sync(log);
        for segment in 1..=3 {
            let shards = log.vacate(segment);
            assert!(shards > 0);
            settle(net, log);
            assert_eq!(log.vacated(segment), shards, "segment {segment}");
        }
    });
}

/// The listener decides which messages need not wait for the disk.
#[test]
fn a_listener_has_a_class_of_its_own() {
    everywhere(settings, |net, log| {
        net.node.set_durability(vec![Durability::LocalDisk, Durability::Memory]);
        absent(net, log, "s");
        let [slow, fast] = [0, 1].map(|listener| {
            let peer = net.open(0, V5);
            net.came_in_by(peer, listener);
            net.send(peer, v5(&format!("p{listener}")));
            assert_eq!(net.received(peer), [connack(false)]);
            net.send(peer, message("t", listener).qos1(1));
            peer
        });
        assert_eq!((net.received(slow), net.received(fast)), (vec![], vec![puback(1)]));
        net.sync(log);
        assert_eq!(net.received(slow), [puback(1)]);
        check_found(net, log, "s", &["0", "1"]);
    });
}

/// The age of a message is known although it is on the disk only.
#[test]
fn the_age_of_a_waiting_message_is_known_without_reading_it() {
    everywhere(settings, |net, log| {
        absent(net, log, "s");
        let publisher = connect(net, log, 0, v5("p"));
        for id in 1..=3 {
            net.pass(20_000);
            net.send(publisher, message("t", "payload").qos1(id));
            net.sync(log);
        }
        net.pass(20_000);
        let detail = net.ask(|admin, reply| admin.client("s", reply)).flatten().expect("known");
        let oldest = detail.session.expect("durable").oldest_queued.expect("messages wait").as_secs();
        assert!((60..=61).contains(&oldest), "{oldest}");
    });
}

/// A refusal says that no receiver has the message, so it is decided before the first one gets it.
#[test]
fn a_message_that_a_full_disk_refuses_is_delivered_to_no_client() {
    everywhere(settings, |net, log| {
        absent(net, log, "s");
        let witness = connect(net, log, 2, v5("witness"));
        net.send(witness, subscribe(1).to("#", ExactlyOnce));
        assert_eq!(net.received(witness), [suback(1, &[ExactlyOnce])]);
        let publisher = connect(net, log, 0, v5("p"));
        let lasting = connect(net, log, 1, durable(V5, "lasting"));
        let old = connect(net, log, 1, v3("old"));
        log.becomes(Condition::Full);
        net.send(publisher, message("t", "no").qos1(1));
        net.send(lasting, message("t", "no").qos2(1));
        net.send(old, message("t", "no").qos1(1));
        net.sync(log);
        assert_eq!(net.received(publisher), [Sent::PubAck(1, ReasonCode::QuotaExceeded)]);
        assert_eq!(net.received(lasting), [Sent::PubRec(1, ReasonCode::QuotaExceeded)]);
        assert_eq!(net.received(old), [Sent::Closed], "3.1.1 cannot refuse");
        assert_eq!(net.payloads(witness), [""; 0]);
        log.becomes(Condition::Good);
        net.send(lasting, message("t", "yes").qos2(1));
        net.sync(log);
        assert_eq!(net.received(lasting), [pubrec(1)]);
        assert_eq!(net.payloads(witness), ["yes"]);
        check_found(net, log, "s", &["yes"]);
    });
}

/// The shard of a group chooses the member, after other receivers may have got a message that the member cannot get.
/// Then its publisher gets neither an acknowledgement nor a refusal.
#[test]
fn a_message_that_others_have_is_not_refused_because_a_member_cannot_get_it() {
    everywhere(settings, |net, log| {
        let member = connect(net, log, 1, durable(V5, "member"));
        net.send(member, subscribe(1).to("$share/g/a/#", ExactlyOnce));
        net.sync(log);
        net.received(member);
        let witness = connect(net, log, 2, v5("witness"));
        net.subscribe(witness, "a/seen", AtLeastOnce);
        let other = connect(net, log, 0, v5("other"));
        // Some of them belong to the same shard as that group.
        for share in 0..40 {
            net.subscribe(other, &format!("$share/{share}/a/groups"), AtLeastOnce);
        }
        let publishers = ["alone", "seen", "groups"].map(|topic| {
            let [fleeting, lasting] = [v5(topic), durable(V5, &format!("lasting-{topic}"))];
            (topic, connect(net, log, 0, fleeting), connect(net, log, 1, lasting))
        });
        log.becomes(Condition::Full);
        net.run();
        for (topic, fleeting, lasting) in publishers {
            net.send(fleeting, message(&format!("a/{topic}"), topic).qos1(1));
            net.send(lasting, message(&format!("a/{topic}"), topic).qos2(1));
            net.sync(log);
            if topic == "alone" {
                assert_eq!(net.received(fleeting), [Sent::PubAck(1, ReasonCode::QuotaExceeded)]);
                assert_eq!(net.received(lasting), [Sent::PubRec(1, ReasonCode::QuotaExceeded)]);
                continue;
            }
            for publisher in [fleeting, lasting] {
                let received = net.received(publisher);
                let is_closed = matches!(received[..], [Sent::Disconnect { .. }, Sent::Closed]);
                assert!(is_closed, "{topic}: {received:?}");
            }
        }
        assert_eq!(net.payloads(witness), ["seen", "seen"]);
        assert_eq!(net.payloads(member), [""; 0]);
        log.becomes(Condition::Good);
        let lasting = connect(net, log, 0, durable(V5, "lasting-seen"));
        net.send(lasting, message("a/seen", "seen").qos2(1).dup());
        net.sync(log);
        assert_eq!(net.received(lasting), [pubrec(1)]);
        assert_eq!(net.payloads(member), ["seen"]);
        assert_eq!(net.payloads(witness), [""; 0], "it has it");
    });
}

/// The disk becomes full after the first shard has a message and before the next has it: it is acknowledged when there
/// is room.
#[test]
fn a_message_that_one_shard_has_accepted_is_not_refused() {
    everywhere(settings, |net, log| {
        let names = ["a", "b", "c", "d"];
        names.iter().for_each(|name| absent(net, log, name));
        let publisher = connect(net, log, 0, v5("p"));
        net.store.hold(&[Kind::Append]);
        net.send(publisher, message("t", "begun").qos1(1));
        log.becomes(Condition::Full);
        net.run();
        net.release_held();
        net.sync(log);
        assert_eq!(net.received(publisher), [puback(1)]);
        for name in names {
            check_found(net, log, name, &["begun"]);
        }
    });
}

/// A message that a member left unfinished is given to another one once, at whatever point of that the process ends.
#[test]
fn an_orphan_is_delivered_once_whenever_the_process_ends() {
    for dies_after in 0..12 {
        everywhere(settings, |net, log| {
            absent_member(net, log, ExactlyOnce);
            let publisher = connect(net, log, 0, v5("p"));
            net.send(publisher, message("t", "once").qos2(1));
            net.sync(log);
            assert_eq!(net.received(publisher), [pubrec(1)]);
            for (index, name) in [(0, "a"), (1, "b"), (2, "c")] {
                let staying = connect(net, log, index, durable(V5, name));
                net.send(staying, subscribe(1).to("$share/g/t", ExactlyOnce));
                net.sync(log);
            }
            net.connecting(2, v5("leaving"));
            for _ in 0..dies_after {
                log.sync();
                net.run();
            }
            let (mut net, log) =
                std::mem::replace(net, Net::with_log(1, settings(), Arc::new(AllowAll)).0).after_crash(log);
            net.sync(&log);
            let mut found = Vec::new();
            for name in ["leaving", "a", "b", "c"] {
                let peer = net.connecting(0, durable(V5, name));
                net.sync(&log);
                let payload = |sent| match sent {
                    Sent::Publish(message) => Some(message.payload),
                    _ => None,
                };
                found.extend(net.received(peer).into_iter().filter_map(payload));
            }
            assert_eq!(found, ["once"], "after {dies_after}");
        });
    }
}

/// A publisher may connect as soon as the node has restarted. It finds the subscriptions of all sessions that were
/// found on the disk, and the members of shared groups. None of its messages is answered with "No matching subscribers"
/// and lost.
#[test]
fn the_first_message_after_a_restart_finds_all_durable_subscriptions() {
    for seed in 1..=20 {
        let (mut net, log) = Net::with_log(3, settings(), Arc::new(AllowAll));
        let names: Vec<String> = (0..16).map(|number| format!("s{number}")).collect();
        for name in &names {
            let peer = connect(&mut net, &log, 1, durable(V5, name));
            let own = subscribe(1).to(&format!("own/{name}"), AtLeastOnce);
            net.send(peer, own.to(&format!("$share/g/shared/{name}"), AtLeastOnce));
            net.sync(&log);
            net.lose(peer);
            net.sync(&log);
        }
        let (mut net, log) = net.just_after_crash(&log, Travel::Shuffled(seed));
        let publisher = net.open(0, V5);
        net.send_without_running(publisher, v5("p"));
        let topics = names.iter().flat_map(|name| [format!("own/{name}"), format!("shared/{name}")]);
        for (number, topic) in (1..).zip(topics) {
            net.send_without_running(publisher, message(&topic, &topic).qos1(number));
        }
        net.run();
        net.sync(&log);
        let mut answers = net.received(publisher);
        assert_eq!(answers.remove(0), connack(false));
        assert_eq!(answers, (1..=32).map(puback).collect::<Vec<_>>(), "seed {seed}");
        for name in &names {
            let mut found = drained(&mut net, &log, name);
            found.sort();
            assert_eq!(found, [format!("own/{name}"), format!("shared/{name}")]);
        }
    }
}

/// [MQTT-4.3.3-4]: the process ends after PUBCOMP, before the shards of the receivers have forgotten the message. The
/// message after the next one with the Packet Identifier has the same identity, and is another message.
#[test]
fn a_message_with_the_identity_of_one_before_a_crash_is_another_message() {
    let (mut net, log) = Net::with_log(3, settings(), Arc::new(AllowAll));
    for (name, topic) in [("a", "t/1"), ("b", "t/1"), ("c", "t/1"), ("d", "t/2")] {
        let peer = connect(&mut net, &log, 1, durable(V5, name));
        net.send(peer, subscribe(1).to(topic, ExactlyOnce));
        net.sync(&log);
        net.lose(peer);
        net.sync(&log);
    }
    net.store.fail(Kind::ForgetIdentity, ReasonCode::UnspecifiedError);
    let publisher = connect(&mut net, &log, 0, durable(V5, "p"));
    exchange(&mut net, &log, publisher, "t/1", "first");
    let (mut net, log) = net.just_after_crash(&log, Travel::Shuffled(1));
    assert_eq!(net.identities(), 3, "the shards have not forgotten it");
    let publisher = connect(&mut net, &log, 0, durable(V5, "p"));
    exchange(&mut net, &log, publisher, "t/2", "second");
    exchange(&mut net, &log, publisher, "t/1", "third");
    for name in ["a", "b", "c"] {
        assert_eq!(drained_exactly(&mut net, &log, name), ["first", "third"], "{name}");
    }
}

/// [MQTT-4.3.3-4]: shards get a message while their commands to forget the last but one of the Packet Identifier are on
/// their way to the log.
#[test]
fn an_identity_that_is_about_to_be_forgotten_belongs_to_the_next_message() {
    everywhere(settings, |net, log| {
        for (name, topic) in [("a", "t/1"), ("b", "t/1"), ("c", "t/1"), ("d", "t/2")] {
            let peer = connect(net, log, 1, durable(V5, name));
            net.send(peer, subscribe(1).to(topic, ExactlyOnce));
            net.sync(log);
            net.lose(peer);
            net.sync(log);
        }
        let publisher = connect(net, log, 0, durable(V5, "p"));
        exchange(net, log, publisher, "t/1", "first");
        exchange(net, log, publisher, "t/2", "second");
        assert!(net.identities() > 0, "the shards of the first have not forgotten it");
        exchange(net, log, publisher, "t/1", "third");
        for name in ["a", "b", "c"] {
            assert_eq!(drained_exactly(net, log, name), ["first", "third"], "{name}");
        }
    });
}

/// Publishes a message at QoS 2 with Packet Identifier 7, until PUBCOMP.
fn exchange(net: &mut Net, log: &Log, publisher: Peer, topic: &str, payload: &str) {
    net.send(publisher, message(topic, payload).qos2(7));
    net.sync(log);
    net.send(publisher, pubrel(7));
    net.sync(log);
    assert_eq!(net.received(publisher), [pubrec(7), pubcomp(7)], "{payload}");
}

/// All messages that a durable session gets at QoS 2, without its answers.
fn drained_exactly(net: &mut Net, log: &Log, name: &str) -> Vec<String> {
    let peer = net.connecting(1, durable(V5, name));
    net.sync(log);
    let payload = |sent| if let Sent::Publish(message) = sent { Some(message.payload) } else { None };
    net.received(peer).into_iter().filter_map(payload).collect()
}

/// All messages that a durable session gets and acknowledges.
fn drained(net: &mut Net, log: &Log, name: &str) -> Vec<String> {
    let peer = net.connecting(1, durable(V5, name));
    let mut found = Vec::new();
    loop {
        net.sync(log);
        let received = net.received(peer);
        if received.is_empty() {
            return found;
        }
        for packet in received {
            if let Sent::Publish(message) = packet {
                net.send(peer, puback(message.packet_id.expect("QoS 1")));
                found.push(message.payload);
            }
        }
    }
}

/// Clients that break rules: they acknowledge nothing, or messages that they were never sent, or use identifiers again.
/// No messages of other clients are lost, nor their own, and their sessions continue after a crash.
#[test]
fn clients_that_break_rules_cause_no_loss_of_messages() {
    everywhere(settings, |net, log| {
        let [silent, early] = ["silent", "early"].map(|name| {
            let peer = connect(net, log, 1, durable(V5, name).receive_max(2));
            net.send(peer, subscribe(1).to("t", AtLeastOnce));
            net.sync(log);
            net.received(peer);
            peer
        });
        absent(net, log, "witness");
        let publisher = connect(net, log, 0, v5("p"));
        for payload in ["1", "2", "3"] {
            net.send(publisher, message("t", payload).qos1(7));
            net.sync(log);
            assert_eq!(net.received(publisher), [puback(7)]);
        }
        // Both are in flight at the same time: at QoS 1 each is a message.
        net.send(publisher, message("t", "4").qos1(8));
        net.send(publisher, message("t", "5").qos1(8));
        net.sync(log);
        assert_eq!(net.received(publisher), [puback(8), puback(8)]);
        // They are not released: at QoS 2 the second is the first.
        let lasting = connect(net, log, 0, durable(V5, "lasting"));
        for payload in ["6", "another"] {
            net.send(lasting, message("t", payload).qos2(9));
            net.sync(log);
            assert_eq!(net.received(lasting), [pubrec(9)]);
        }
        assert_eq!(
            (net.payloads(silent), net.payloads(early)),
            (vec!["1".into(), "2".into()], vec!["1".into(), "2".into()])
        );
        for id in [4, 99] {
            net.send(early, puback(id));
            net.sync(log);
        }
        let crashed = std::mem::replace(net, Net::with_log(1, settings(), Arc::new(AllowAll)).0);
        let (mut net, log) = crashed.after_crash(log);
        let all = ["1", "2", "3", "4", "5", "6"];
        assert_eq!(drained(&mut net, &log, "silent"), all);
        assert_eq!(drained(&mut net, &log, "early"), all);
        let lasting = connect(&mut net, &log, 0, durable(V5, "lasting"));
        net.send(lasting, message("t", "another").qos2(9).dup());
        net.sync(&log);
        assert_eq!(net.received(lasting), [pubrec(9)]);
        check_found(&mut net, &log, "witness", &all);
    });
}

/// Seed 59095: the first PUBLISH was queued, and its acknowledgement was lost. The refusal of its repetition was lost
/// as well, and the next repetition was taken for a different message.
#[test]
fn a_repetition_of_a_message_that_may_be_queued_is_not_refused() {
    for version in [V3_1_1, V5] {
        everywhere(settings, |net, log| {
            let names = ["a", "b", "c", "d"];
            names.iter().for_each(|name| absent(net, log, name));
            let publisher = connect(net, log, 0, durable(version, "p"));
            net.send(publisher, message("t", "once").qos2(7));
            net.lose(publisher);
            net.sync(log);
            for _ in 0..2 {
                log.becomes(Condition::Full);
                let publisher = connect(net, log, 1, durable(version, "p"));
                net.send(publisher, message("t", "once").qos2(7).dup());
                net.sync(log);
                let closed = match version {
                    V5 => vec![disconnect(ReasonCode::QuotaExceeded), Sent::Closed],
                    _ => vec![Sent::Closed],
                };
                assert_eq!(net.received(publisher), closed);
            }
            log.becomes(Condition::Good);
            let publisher = connect(net, log, 2, durable(version, "p"));
            net.send(publisher, message("t", "once").qos2(7).dup());
            net.sync(log);
            assert_eq!(net.received(publisher), [pubrec(7)]);
            for name in names {
                check_found(net, log, name, &["once"]);
            }
        });
    }
}

/// Reconnects a durable session that has `messages` on disk: "1", "2" and so on.
fn comes_back(net: &mut Net, log: &Log, messages: u16) -> Peer {
    absent(net, log, "s");
    let publisher = connect(net, log, 0, v5("p"));
    for number in 1..=messages {
        net.send(publisher, message("t", number.to_string()).qos1(number));
        net.sync(log);
    }
    net.received(publisher);
    connect(net, log, 2, durable(V5, "s").receive_max(3))
}

/// Lets time pass for checkpoints, which free segments.
fn settle(net: &mut Net, log: &Log) {
    for _ in 0..3 {
        net.pass(1000);
        net.sync(log);
    }
}

/// The durable client `leaving` joins `$share/g/t` and loses its connection.
fn absent_member(net: &mut Net, log: &Log, qos: mqtt::QoS) {
    let leaving = connect(net, log, 1, durable(V5, "leaving"));
    net.send(leaving, subscribe(1).to("$share/g/t", qos));
    net.sync(log);
    net.lose(leaving);
    net.sync(log);
}

/// The member `leaving` of `$share/g/t` has a message on disk.
fn absent_member_with_a_message(net: &mut Net, log: &Log) {
    absent_member(net, log, AtLeastOnce);
    let publisher = connect(net, log, 0, v5("p"));
    net.send(publisher, message("t", "left behind").qos1(1));
    net.sync(log);
}

/// Messages that a client gets when it acknowledges everything.
fn take_all(net: &mut Net, log: &Log, peer: Peer) -> Vec<String> {
    let mut payloads = Vec::new();
    loop {
        net.sync(log);
        let received = net.received(peer);
        if received.is_empty() {
            return payloads;
        }
        for packet in received {
            let Sent::Publish(message) = packet else { panic!("{packet:?}") };
            payloads.push(message.payload);
            net.send(peer, puback(message.packet_id.expect("QoS 1")));
        }
    }
}

fn unreadable_and_expired(net: &mut Net) -> (u64, u64) {
    net.pass(2_000);
    let sum = |counter: fn(&broker::StoreCounters) -> u64| {
        net.node.published.iter().map(|published| counter(&published.counters().1)).sum()
    };
    (sum(|store| store.read_errors), sum(|store| store.dropped_expired))
}

#[test]
fn a_read_that_fails_is_tried_again() {
    for failing in [1, 2, 3] {
        everywhere(settings, |net, log| {
            log.fail_reads(failing);
            let peer = comes_back(net, log, 6);
            assert_eq!(take_all(net, log, peer), ["1", "2", "3", "4", "5", "6"]);
            assert_eq!(unreadable_and_expired(net), (0, 0));
        });
    }
}

/// The log frees a segment while a slow disk reads a client's messages from it.
#[test]
fn a_message_that_is_moved_during_a_read_is_read_from_its_new_segment() {
    everywhere(settings, |net, log| {
        log.hold_reads(|_| true);
        let peer = comes_back(net, log, 6);
        let shards = log.vacate(1);
        settle(net, log);
        assert_eq!(log.vacated(1), shards);
        assert_eq!(log.hold_reads(|_| false), 3, "as many as the client takes at a time");
        assert_eq!(take_all(net, log, peer), ["1", "2", "3", "4", "5", "6"]);
        assert_eq!(unreadable_and_expired(net), (0, 0));
    });
}

/// Messages whose segments are freed, one after the other, are there until the client has them. The disk fails now and
/// then meanwhile.
#[test]
fn messages_outlive_the_segments_they_were_written_to() {
    everywhere(settings, |net, log| {
        absent(net, log, "s");
        let publisher = connect(net, log, 0, v5("p"));
        for number in 1..=300 {
            net.send(publisher, message("t", number).qos1(1));
            if number % 100 == 0 {
                net.sync(log);
                net.received(publisher);
                for segment in [number, number + 1] {
                    log.fail_reads(usize::from(number == 200));
                    let shards = log.vacate(segment);
                    settle(net, log);
                    assert_eq!(log.vacated(segment), shards, "segment {segment}");
                }
            }
        }
        let peer = connect(net, log, 1, durable(V5, "s"));
        let expected: Vec<_> = (1..=300).map(|number| number.to_string()).collect();
        assert_eq!(take_all(net, log, peer), expected);
        assert_eq!(unreadable_and_expired(net), (0, 0));
    });
}

/// A member of a shared group leaves while its message is read to be moved out of a segment.
#[test]
fn an_orphan_whose_segment_is_freed_is_not_lost() {
    everywhere(settings, |net, log| {
        absent_member_with_a_message(net, log);
        log.hold_reads(|_| true);
        log.hold_keeps(true);
        let shards = log.vacate(1);
        settle(net, log);
        net.connecting(2, v5("leaving"));
        settle(net, log);
        assert!(log.vacated(1) < shards, "the message is needed");
        assert_eq!(log.hold_keeps(false), 1);
        settle(net, log);
        assert_eq!(log.vacated(1), shards);
        let staying = connect(net, log, 2, durable(V5, "staying"));
        net.send(staying, subscribe(1).to("$share/g/t", AtLeastOnce));
        net.sync(log);
        net.received(staying);
        assert_eq!(log.hold_reads(|_| false), 1);
        settle(net, log);
        assert_eq!(net.payloads(staying), ["left behind"]);
    });
}

/// [MQTT-3.3.2-5] [MQTT-4.6.0-6]: an expired message is skipped durably before a later one is sent. A crash in between
/// would bring it back after the later one.
#[test]
fn messages_after_an_expired_one_wait_until_it_is_skipped() {
    everywhere(settings, |net, log| {
        absent(net, log, "s");
        let publisher = connect(net, log, 0, v5("p"));
        net.send(publisher, message("t", "brief").qos1(1).expiry(5));
        net.send(publisher, message("t", "lasting").qos1(2));
        net.sync(log);
        log.hold_reads(|_| true);
        let peer = connect(net, log, 2, durable(V5, "s").receive_max(3));
        net.pass(6_000);
        assert_eq!(log.hold_reads(|_| false), 2);
        net.run();
        assert_eq!(net.payloads(peer), [""; 0]);
        net.sync(log);
        assert_eq!(net.payloads(peer), ["lasting"]);
        assert_eq!(unreadable_and_expired(net), (0, 1));
    });
}

/// The unreadable message is lost, and counted once; no other message is lost.
#[test]
fn a_session_continues_after_a_message_that_cannot_be_read() {
    for (damaged, others) in [("1", ["2", "3", "4"]), ("2", ["1", "3", "4"]), ("4", ["1", "2", "3"])] {
        everywhere(settings, |net, log| {
            log.damage(damaged);
            let peer = comes_back(net, log, 4);
            assert_eq!(take_all(net, log, peer), others);
            assert_eq!(unreadable_and_expired(net), (1, 0));
            assert_eq!(log.reads(), 5, "each once, and the one that cannot be read twice");
        });
    }
}

#[test]
fn messages_that_wait_on_disk_only_arrive_in_order() {
    let log = Arc::new(Log::default());
    log.keep_nothing_ahead();
    let (mut net, log) = Net::with_this_log(3, settings(), log);
    let peer = connect(&mut net, &log, 1, durable(V5, "s").receive_max(2));
    net.send(peer, subscribe(1).to("#", AtLeastOnce));
    net.sync(&log);
    assert_eq!(net.received(peer), [suback(1, &[AtLeastOnce])]);
    let publisher = connect(&mut net, &log, 0, v5("p"));
    for number in 1..=6 {
        net.send(publisher, message("t", number.to_string()).qos1(number));
    }
    log.fail_reads(1);
    assert_eq!(take_all(&mut net, &log, peer), ["1", "2", "3", "4", "5", "6"]);
    assert!(log.reads() > 4, "{}", log.reads());
}

/// An orphan that cannot be read is lost, and is not kept for ever.
#[test]
fn an_orphan_that_cannot_be_read_is_dropped() {
    for damaged in ["", "left behind"] {
        everywhere(settings, |net, log| {
            absent_member_with_a_message(net, log);
            let staying = connect(net, log, 2, durable(V5, "staying"));
            net.send(staying, subscribe(1).to("$share/g/t", AtLeastOnce));
            net.sync(log);
            net.received(staying);
            log.damage(damaged);
            log.fail_reads(1);
            net.connecting(2, v5("leaving"));
            net.sync(log);
            let payloads: Vec<String> = net.payloads(staying);
            assert_eq!(payloads, if damaged.is_empty() { &["left behind"][..] } else { &[] });
            let (_, shards) = log.killed(*b"0123456789abcdef");
            let orphans: usize = shards.iter().map(|shard| shard.orphans().count()).sum();
            assert_eq!((orphans, unreadable_and_expired(net).0), (0, u64::from(!damaged.is_empty())));
        });
    }
}
