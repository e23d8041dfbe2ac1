//! Messages and acknowledgements through a relay, step by step.

#[allow(dead_code, reason = "this test needs some of it")]
mod bench;

use bench::{Bench, settings};
use bridge::{Dropped, Side, State};
use mqtt::{Property, QoS, ReasonCode, Version};

const LOCAL: Side = Side::Local;
const REMOTE: Side = Side::Remote;

/// A bench whose remote broker has this limit.
fn limited(property: Property<'static>) -> Bench {
    let mut bench = Bench::new(settings());
    bench.answers.remote.properties.push(property);
    bench.connect();
    bench
}

#[test]
fn a_message_of_qos_1_is_acknowledged_when_the_remote_broker_has_acknowledged_it() {
    let mut bench = Bench::connected(settings());
    bench.publish(LOCAL, 5, QoS::AtLeastOnce, "out/a", 3);
    assert_eq!(bench.sent(REMOTE), ["PUBLISH 5 q1 site/out/a"]);
    assert!(bench.sent(LOCAL).is_empty());
    bench.ok(REMOTE, "PUBACK", 5);
    assert_eq!(bench.sent(LOCAL), ["PUBACK 5"]);
    assert_eq!(bench.relay.counters().traffic(LOCAL, QoS::AtLeastOnce).messages, 1);
    assert_eq!(bench.relay.in_flight(LOCAL), 0);
}

#[test]
fn a_message_of_qos_2_takes_its_four_steps_through_both_brokers() {
    for (from, topic, arrives) in [(LOCAL, "out/a", "site/out/a"), (REMOTE, "in/a", "in/a")] {
        let mut bench = Bench::connected(settings());
        let to = from.other();
        bench.publish(from, 9, QoS::ExactlyOnce, topic, 3);
        assert_eq!(bench.sent(to), [format!("PUBLISH 9 q2 {arrives}")]);
        assert!(bench.sent(from).is_empty());
        bench.ok(to, "PUBREC", 9);
        assert_eq!(bench.sent(from), ["PUBREC 9"]);
        bench.ok(from, "PUBREL", 9);
        assert_eq!(bench.sent(to), ["PUBREL 9"]);
        assert_eq!(bench.relay.in_flight(from), 1);
        bench.ok(to, "PUBCOMP", 9);
        assert_eq!(bench.sent(from), ["PUBCOMP 9"]);
        assert_eq!(bench.relay.in_flight(from), 0);
    }
}

/// mosquitto loses the PUBREL here.
#[test]
fn a_release_of_an_earlier_connection_is_passed_on() {
    let mut bench = Bench::connected(settings());
    bench.ok(LOCAL, "PUBREL", 3);
    assert_eq!(bench.sent(REMOTE), ["PUBREL 3"]);
    bench.ack(REMOTE, "PUBCOMP", 3, ReasonCode::PacketIdentifierNotFound);
    assert_eq!(bench.sent(LOCAL), ["PUBCOMP 3"]);
}

#[test]
fn a_lower_qos_is_completed_here() {
    let mut bench = limited(Property::MaximumQoS(1));
    bench.publish(LOCAL, 5, QoS::ExactlyOnce, "out/a", 3);
    assert_eq!(bench.sent(REMOTE), ["PUBLISH 5 q1 site/out/a"]);
    bench.ok(REMOTE, "PUBACK", 5);
    assert_eq!(bench.sent(LOCAL), ["PUBREC 5"]);
    bench.ok(LOCAL, "PUBREL", 5);
    assert_eq!(bench.sent(LOCAL), ["PUBCOMP 5"]);
    // Also for a message whose PUBLISH was on an earlier connection.
    bench.ok(LOCAL, "PUBREL", 6);
    assert_eq!(bench.sent(LOCAL), ["PUBCOMP 6"]);
    assert!(bench.sent(REMOTE).is_empty());

    let mut bench = limited(Property::MaximumQoS(0));
    bench.publish(LOCAL, 5, QoS::AtLeastOnce, "out/a", 3);
    bench.publish(LOCAL, 6, QoS::ExactlyOnce, "out/a", 3);
    assert_eq!(bench.sent(REMOTE), ["PUBLISH q0 site/out/a", "PUBLISH q0 site/out/a"]);
    assert_eq!(bench.sent(LOCAL), ["PUBACK 5", "PUBREC 6"]);
    bench.ok(LOCAL, "PUBREL", 6);
    assert_eq!(bench.sent(LOCAL), ["PUBCOMP 6"]);
}

#[test]
fn a_qos_that_new_settings_lowered_leaves_no_identifier_behind() {
    let mut settings = settings();
    settings.topics[0].qos = QoS::AtLeastOnce;
    let mut bench = Bench::connected(settings);
    bench.publish_again(LOCAL, 5, QoS::ExactlyOnce, "out/a");
    assert_eq!(bench.sent(REMOTE), ["PUBREL 5", "PUBLISH 5 q1 dup site/out/a"]);
    bench.ok(REMOTE, "PUBCOMP", 5);
    bench.ok(REMOTE, "PUBACK", 5);
    assert_eq!(bench.sent(LOCAL), ["PUBREC 5"]);
    bench.ok(LOCAL, "PUBREL", 5);
    assert_eq!(bench.sent(LOCAL), ["PUBCOMP 5"]);
    assert_eq!(bench.relay.counters().unexpected_acks, 0);
}

#[test]
fn a_message_that_new_settings_drop_leaves_no_identifier_behind() {
    let mut bench = Bench::connected(settings());
    bench.publish_again(LOCAL, 5, QoS::ExactlyOnce, "other");
    assert_eq!(bench.sent(REMOTE), ["PUBREL 5"]);
    assert_eq!(bench.sent(LOCAL), ["PUBREC 5 0x90"]);
}

#[test]
fn a_refused_message_is_completed_and_counted() {
    let mut bench = Bench::connected(settings());
    for (id, qos, ack) in [(1, QoS::AtLeastOnce, "PUBACK"), (2, QoS::ExactlyOnce, "PUBREC")] {
        bench.publish(LOCAL, id, qos, "out/a", 3);
        bench.sent(REMOTE);
        bench.ack(REMOTE, ack, id, ReasonCode::NotAuthorized);
        assert_eq!(bench.sent(LOCAL), [format!("{ack} {id} 0x87")]);
    }
    assert_eq!(bench.relay.counters().refused.local[&ReasonCode::NotAuthorized], 2);
    assert_eq!(bench.relay.in_flight(LOCAL), 0);
}

/// MQTT 3.1.1 has no way to refuse a message.
#[test]
fn a_message_that_this_broker_refuses_for_good_ends_at_a_remote_broker_of_3_1_1() {
    let mut settings = settings();
    settings.version = Version::V3_1_1;
    let mut bench = Bench::connected(settings);
    bench.publish(REMOTE, 4, QoS::ExactlyOnce, "in/a", 3);
    bench.ack(LOCAL, "PUBREC", 4, ReasonCode::NotAuthorized);
    assert_eq!(bench.sent(REMOTE), ["PUBREC 4"]);
    bench.sent(LOCAL);
    bench.ok(REMOTE, "PUBREL", 4);
    assert_eq!(bench.sent(REMOTE), ["PUBCOMP 4"]);
    assert!(bench.sent(LOCAL).is_empty());
}

/// Acknowledgements of messages to a broker, in the packets that it was sent.
fn acknowledgements(sent: &[String]) -> Vec<&String> {
    sent.iter().filter(|sent| sent.starts_with("PUBACK") || sent.starts_with("PUBREC")).collect()
}

/// Publishes messages again with these identifiers.
fn publish_all(bench: &mut Bench, from: Side, ids: &[u16]) {
    let topic = if from == LOCAL { "out/a" } else { "in/a" };
    ids.iter().for_each(|id| bench.publish_again(from, *id, QoS::AtLeastOnce, topic));
}

/// Identifiers of the messages that a broker was sent, without the other packets.
fn published(bench: &mut Bench, to: Side) -> Vec<String> {
    let sent =
        bench.sent(to).into_iter().filter(|sent| sent.starts_with("PUBLISH") && sent.contains(" dup "));
    sent.filter_map(|sent| sent.split(' ').nth(1).map(str::to_owned)).collect()
}

/// The sender's session keeps the message. [MQTT-4.3.3-9]: the receiver forgets it.
#[test]
fn a_refusal_that_may_pass_ends_both_connections_and_the_message_comes_again() {
    use ReasonCode::{ImplementationSpecificError, QuotaExceeded, UnspecifiedError};
    for version in [Version::V5, Version::V3_1_1] {
        for reason in [QuotaExceeded, UnspecifiedError, ImplementationSpecificError] {
            for (qos, ack) in [(QoS::AtLeastOnce, "PUBACK"), (QoS::ExactlyOnce, "PUBREC")] {
                for (from, topic) in [(LOCAL, "out/a"), (REMOTE, "in/a")] {
                    if from == LOCAL && version == Version::V3_1_1 {
                        continue;
                    }
                    let mut settings = settings();
                    settings.version = version;
                    let mut bench = Bench::connected(settings);
                    bench.publish(from, 4, qos, topic, 3);
                    bench.ack(from.other(), ack, 4, reason);
                    assert!(acknowledgements(&bench.sent(from)).is_empty());
                    bench.run();
                    for side in Side::ALL {
                        assert_eq!(bench.last.of(side).last().map(String::as_str), Some("DISCONNECT 0x00"));
                        assert!(acknowledgements(bench.last.of(side)).is_empty(), "{:?}", bench.last);
                    }
                    let State::Waiting { reason: text, .. } = bench.relay.state() else { panic!("it waits") };
                    assert!(text.ends_with(&format!("it refuses a message, which comes again: {reason}")));
                    assert_eq!(bench.relay.last_error(), Some(&*text));
                    bench.wait();
                    bench.run();
                    bench.publish_again(from, 4, qos, topic);
                    assert_eq!(published(&mut bench, from.other()), ["4"]);
                    bench.ok(from.other(), ack, 4);
                    assert_eq!(bench.sent(from).last(), Some(&format!("{ack} 4")));
                    let counters = bench.relay.counters();
                    assert_eq!(*counters.postponed.of(from), 1);
                    assert!(counters.refused.of(from).is_empty());
                }
            }
        }
    }
}

#[test]
fn after_a_refusal_messages_go_one_by_one_until_one_is_accepted() {
    let mut bench = Bench::connected(settings());
    publish_all(&mut bench, LOCAL, &[1, 2, 3]);
    bench.ack(REMOTE, "PUBACK", 1, ReasonCode::QuotaExceeded);
    bench.run();
    for _ in 0..40 {
        bench.wait();
        bench.run();
        publish_all(&mut bench, LOCAL, &[1, 2, 3]);
        assert_eq!(published(&mut bench, REMOTE), ["1"]);
        bench.ack(REMOTE, "PUBACK", 1, ReasonCode::QuotaExceeded);
        bench.run();
    }
    bench.wait();
    bench.run();
    publish_all(&mut bench, LOCAL, &[1, 2, 3]);
    assert_eq!(published(&mut bench, REMOTE), ["1"]);
    bench.ok(REMOTE, "PUBACK", 1);
    assert_eq!(published(&mut bench, REMOTE), ["2", "3"]);
    bench.ok(REMOTE, "PUBACK", 2);
    bench.ok(REMOTE, "PUBACK", 3);
    assert_eq!(bench.sent(LOCAL)[1..], ["PUBACK 1", "PUBACK 2", "PUBACK 3"]);
    assert_eq!(bench.relay.counters().postponed.local, 41);
}

/// Connects again until all messages are tried together. Each connection ends with the refusal of message 1.
fn refused_alone(bench: &mut Bench, ids: &[u16]) {
    publish_all(bench, LOCAL, ids);
    for _ in 0..10 {
        bench.ack(REMOTE, "PUBACK", 1, ReasonCode::UnspecifiedError);
        bench.run();
        bench.wait();
        bench.run();
        publish_all(bench, LOCAL, ids);
    }
    assert_eq!(published(bench, REMOTE).len(), ids.len());
    bench.sent(LOCAL);
}

#[test]
fn a_message_that_alone_is_refused_again_and_again_is_given_up_and_an_outage_gives_none_up() {
    let mut bench = Bench::connected(settings());
    refused_alone(&mut bench, &[1, 2, 3]);
    bench.ack(REMOTE, "PUBACK", 1, ReasonCode::UnspecifiedError);
    bench.ok(REMOTE, "PUBACK", 2);
    assert_eq!(bench.sent(LOCAL), ["PUBACK 2", "PUBACK 1 0x80"]);
    bench.ok(REMOTE, "PUBACK", 3);
    assert_eq!(bench.sent(LOCAL), ["PUBACK 3"]);
    assert!(matches!(bench.relay.state(), State::Connected { .. }));
    assert_eq!(bench.relay.counters().refused.local[&ReasonCode::UnspecifiedError], 1);

    // The other message is accepted first, and a third one is refused meanwhile.
    let mut bench = Bench::connected(settings());
    refused_alone(&mut bench, &[1, 2, 3]);
    bench.ack(REMOTE, "PUBACK", 3, ReasonCode::ImplementationSpecificError);
    bench.ok(REMOTE, "PUBACK", 2);
    assert_eq!(bench.sent(LOCAL), ["PUBACK 2"]);
    bench.ack(REMOTE, "PUBACK", 1, ReasonCode::UnspecifiedError);
    bench.run();
    assert!(matches!(bench.relay.state(), State::Waiting { .. }));
    assert_eq!(bench.last.local, ["PUBACK 1 0x80", "DISCONNECT 0x00"]);

    // All are refused.
    let mut bench = Bench::connected(settings());
    refused_alone(&mut bench, &[1, 2]);
    for _ in 0..20 {
        bench.ack(REMOTE, "PUBACK", 1, ReasonCode::UnspecifiedError);
        assert!(matches!(bench.relay.state(), State::Connected { .. }), "the other message may be accepted");
        bench.ack(REMOTE, "PUBACK", 2, ReasonCode::UnspecifiedError);
        bench.run();
        assert!(acknowledgements(&bench.last.local).is_empty(), "{:?}", bench.last.local);
        assert!(matches!(bench.relay.state(), State::Waiting { .. }));
        bench.wait();
        bench.run();
        publish_all(&mut bench, LOCAL, &[1, 2]);
        assert_eq!(published(&mut bench, REMOTE), ["1", "2"]);
    }
    assert!(bench.relay.counters().refused.local.is_empty());
}

/// A broker of 3.1.1 that does not accept a message may close [MQTT3-3.3.5-2].
#[test]
fn a_message_at_which_the_remote_broker_closes_each_time_is_dropped_if_that_is_set() {
    for closes_max in [None, Some(3)] {
        let mut settings = settings();
        (settings.version, settings.closes_max) = (Version::V3_1_1, closes_max);
        let mut bench = Bench::connected(settings);
        for round in 0..4 {
            bench.publish_again(LOCAL, 1, QoS::AtLeastOnce, "out/bad");
            let sent = bench.sent(REMOTE);
            if closes_max.is_some() && round == 3 {
                assert!(sent.iter().all(|sent| !sent.starts_with("PUBLISH")), "{sent:?}");
                assert_eq!(bench.sent(LOCAL).last().map(String::as_str), Some("PUBACK 1 0x83"));
                assert_eq!(bench.relay.counters().dropped(LOCAL, Dropped::ClosesConnection), 1);
                break;
            }
            assert_eq!(sent.last().map(String::as_str), Some("PUBLISH 1 q1 dup site/out/bad"));
            let connect = bench.sent(LOCAL).first().cloned();
            let is_isolated = connect.is_some_and(|sent| sent.contains("receive maximum Some(1) "));
            assert_eq!(is_isolated, closes_max.is_some() && round > 0);
            bench.cut(REMOTE);
            bench.wait();
            bench.run();
        }
    }
}

#[test]
fn a_message_that_is_too_large_or_not_mapped_is_completed_and_counted() {
    let mut bench = limited(Property::MaximumPacketSize(100));
    bench.publish(LOCAL, 1, QoS::AtLeastOnce, "out/a", 200);
    bench.publish(LOCAL, 2, QoS::ExactlyOnce, "other", 3);
    bench.publish(LOCAL, 0, QoS::AtMostOnce, "out/a", 200);
    assert!(bench.sent(REMOTE).is_empty());
    assert_eq!(bench.sent(LOCAL), ["PUBACK 1 0x83", "PUBREC 2 0x90"]);
    let counters = bench.relay.counters();
    assert_eq!(counters.dropped(LOCAL, Dropped::TooLarge), 2);
    assert_eq!(counters.dropped(LOCAL, Dropped::NotMapped), 1);
}

#[test]
fn a_large_message_of_3_1_1_is_acknowledged_and_discarded() {
    let mut settings = settings();
    (settings.version, settings.packet_size_max) = (Version::V3_1_1, 256);
    let mut bench = Bench::connected(settings);
    bench.publish(REMOTE, 1, QoS::AtLeastOnce, "in/a", 300);
    bench.publish(REMOTE, 2, QoS::ExactlyOnce, "in/a", 300);
    assert_eq!(bench.sent(REMOTE), ["PUBACK 1", "PUBREC 2"]);
    bench.ok(REMOTE, "PUBREL", 2);
    assert_eq!(bench.sent(REMOTE), ["PUBCOMP 2"]);
    assert!(bench.sent(LOCAL).is_empty());
    assert_eq!(bench.relay.counters().dropped(REMOTE, Dropped::TooLarge), 2);
}

#[test]
fn a_remote_broker_that_does_not_read_stops_the_reading_from_this_one() {
    let mut settings = settings();
    settings.outgoing_max = 300;
    let mut bench = Bench::connected(settings);
    let mut id = 0;
    while bench.relay.wants_read(LOCAL) {
        id += 1;
        bench.publish(LOCAL, id, QoS::AtLeastOnce, "out/a", 50);
    }
    assert_eq!(id, 4, "the last packet exceeds the bound");
    assert!(bench.relay.wants_read(REMOTE));
    // What was read already waits in the relay.
    bench.publish(LOCAL, 5, QoS::AtLeastOnce, "out/a", 50);
    assert!(bench.relay.unread(LOCAL) > 50);
    assert_eq!(bench.sent(REMOTE).len(), 4);
    assert_eq!(bench.sent(REMOTE), ["PUBLISH 5 q1 site/out/a"]);
    assert!(bench.relay.wants_read(LOCAL));
}

#[test]
fn a_message_of_qos_0_that_does_not_fit_is_dropped() {
    let mut settings = settings();
    settings.outgoing_max = 300;
    let mut bench = Bench::connected(settings);
    bench.publish(LOCAL, 0, QoS::AtMostOnce, "out/a", 200);
    bench.publish(LOCAL, 0, QoS::AtMostOnce, "out/b", 200);
    assert_eq!(bench.sent(REMOTE), ["PUBLISH q0 site/out/a"]);
    assert_eq!(bench.relay.counters().dropped(LOCAL, Dropped::BufferFull), 1);
}

#[test]
fn messages_beyond_the_receive_maximum_of_this_broker_wait() {
    let mut settings = settings();
    settings.version = Version::V3_1_1;
    let mut bench = Bench::new(settings);
    bench.answers.local.properties.push(Property::ReceiveMaximum(1));
    bench.connect();
    for id in 1..=2 {
        bench.publish(REMOTE, id, QoS::ExactlyOnce, "in/a", 3);
    }
    bench.publish(REMOTE, 0, QoS::AtMostOnce, "in/b", 3);
    assert_eq!(bench.sent(LOCAL), ["PUBLISH 1 q2 in/a"]);
    bench.ok(LOCAL, "PUBREC", 1);
    bench.ok(REMOTE, "PUBREL", 1);
    assert_eq!(bench.sent(LOCAL), ["PUBREL 1"]);
    bench.ok(LOCAL, "PUBCOMP", 1);
    assert_eq!(bench.sent(LOCAL), ["PUBLISH 2 q2 in/a"]);
    bench.ok(LOCAL, "PUBREC", 2);
    bench.ok(REMOTE, "PUBREL", 2);
    bench.ok(LOCAL, "PUBCOMP", 2);
    assert_eq!(bench.sent(LOCAL), ["PUBREL 2", "PUBLISH q0 in/b"]);
}

#[test]
fn an_acknowledgement_of_nothing_is_not_passed_on() {
    let mut bench = Bench::connected(settings());
    for name in ["PUBACK", "PUBREC", "PUBCOMP"] {
        bench.ok(REMOTE, name, 7);
    }
    assert!(bench.sent(LOCAL).is_empty());
    assert_eq!(bench.relay.counters().unexpected_acks, 2);
}

#[test]
fn a_remote_broker_that_causes_one_restart_after_another_is_connected_after_a_pause() {
    /// Receives more messages than this broker takes, until the relay connects again.
    fn overwhelm(bench: &mut Bench) {
        let before = bench.relay.counters().restarts;
        (1..=6).for_each(|id| bench.publish(REMOTE, id, QoS::AtLeastOnce, "in/a", 200));
        let mut id = 0;
        while bench.relay.counters().restarts == before {
            id += 1;
            assert!(id <= 6);
            bench.ok(LOCAL, "PUBACK", id);
        }
    }
    let mut settings = settings();
    settings.version = Version::V3_1_1;
    settings.keep_alive = 0;
    settings.outgoing_max = 300;
    let stable = settings.backoff.stable;
    let mut bench = Bench::new(settings);
    bench.answers.local.properties.push(Property::ReceiveMaximum(1));
    bench.connect();
    for round in 1..=6 {
        overwhelm(&mut bench);
        if round <= 2 {
            assert!(matches!(bench.relay.state(), State::Connecting { .. }), "{round}");
        } else {
            assert!(matches!(bench.relay.state(), State::Waiting { .. }), "{round}");
            bench.wait();
        }
        bench.run();
        assert!(matches!(bench.relay.state(), State::Connected { .. }), "{round}");
    }
    bench.now = bench.now.after(stable);
    overwhelm(&mut bench);
    assert!(matches!(bench.relay.state(), State::Connecting { .. }), "the last connection was stable");
}
