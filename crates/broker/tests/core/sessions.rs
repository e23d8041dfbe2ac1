//! Sessions that outlive their connection: their duration, and the state that a client finds when it reconnects.

use std::time::Duration;

use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::Version::{V3_1_1, V5};
use mqtt::{QoS, ReasonCode};

use crate::net::{Net, Peer, everywhere, everywhere_with};
use crate::store::Kind;
use testkit::packets::*;

/// [MQTT-3.1.2-23] (3.1.2.11.2)
#[test]
fn a_session_ends_when_its_expiry_has_passed_and_not_before() {
    everywhere(|net| {
        for (name, seconds) in [("a", 10), ("b", 11)] {
            let client = net.connect(0, v5(name).expiry(seconds));
            net.lose(client);
        }
        net.pass(9_900);
        let early = net.resume(1, v5("a").resumes().expiry(10));
        net.lose(early);
        net.pass(1_200);
        net.connect(2, v5("b").resumes());
        net.resume(0, v5("a").resumes());
    });
}

/// [MQTT3-3.1.2-4]: for older clients, as long as the node allows.
#[test]
fn a_session_without_clean_session_lasts_as_long_as_the_node_allows() {
    everywhere_with(
        |settings| settings.session.expiry_max = Duration::from_secs(60),
        |net| {
            let client = net.connect(0, durable(V3_1_1, "c"));
            net.lose(client);
            let forever = net.connecting(0, v5("d").expiry(u32::MAX));
            net.lose(forever);
            net.pass(59_000);
            let client = net.resume(1, durable(V3_1_1, "c"));
            net.lose(client);
            net.pass(2_000);
            net.connect(2, durable(V5, "d"));
            net.pass(58_500);
            net.connect(2, durable(V3_1_1, "c"));
        },
    );
}

/// (3.14.2.2.2)
#[test]
fn disconnect_can_change_the_expiry() {
    everywhere(|net| {
        let bye = |seconds| Sent::Disconnect { reason: ReasonCode::Success, expiry: Some(seconds) };
        let at_once = net.connect(0, durable(V5, "a"));
        net.send(at_once, bye(0));
        net.connect(1, durable(V5, "a"));
        let shorter = net.connect(0, durable(V5, "b"));
        net.send(shorter, bye(5));
        net.pass(5_100);
        net.connect(1, durable(V5, "b"));
        let longer = net.connect(0, v5("c").expiry(1));
        net.send(longer, bye(100));
        net.pass(99_000);
        net.resume(1, durable(V5, "c"));
    });
}

/// [MQTT-3.1.2-23] (3.14.2.2.2): a session that was to end with its connection ends with it.
#[test]
fn disconnect_cannot_make_an_ephemeral_session_durable() {
    everywhere(|net| {
        let client = net.connect(0, v5("c"));
        net.send(client, Sent::Disconnect { reason: ReasonCode::Success, expiry: Some(5) });
        assert_eq!(net.received(client), [disconnect(ReasonCode::ProtocolError), Sent::Closed]);
    });
}

/// A durable session that is resumed with expiry 0 exists, and ends with this connection.
#[test]
fn the_last_connect_decides_when_the_session_expires() {
    everywhere(|net| {
        let client = net.connect(0, durable(V5, "c"));
        net.subscribe(client, "t", AtLeastOnce);
        net.lose(client);
        let client = net.resume(1, v5("c").resumes());
        net.publish(client, "t", "here");
        assert_eq!(net.payloads(client), ["here"]);
        net.lose(client);
        net.connect(2, durable(V5, "c"));
    });
}

fn away(net: &mut Net, connecting: Connecting, filter: &str, qos: QoS) {
    let client = net.connect(0, connecting);
    net.subscribe(client, filter, qos);
    net.lose(client);
}

fn publish_qos1(net: &mut Net, publisher: Peer, payloads: std::ops::RangeInclusive<u16>) {
    for id in payloads {
        net.send(publisher, message("t", id).qos1(id));
        assert_eq!(net.received(publisher), [puback(id)]);
    }
}

/// [MQTT3-3.1.2-5]: QoS 1 and 2; QoS 0 is for connected clients.
#[test]
fn messages_wait_for_an_absent_client() {
    for version in [V3_1_1, V5] {
        everywhere(|net| {
            away(net, durable(version, "c"), "t", ExactlyOnce);
            let publisher = net.connect(1, v5("p"));
            net.publish(publisher, "t", "missed");
            net.send(publisher, message("t", "one").qos1(1));
            net.send(publisher, message("t", "two").qos2(2));
            net.send(publisher, pubrel(2));
            assert_eq!(net.received(publisher), [puback(1), pubrec(2), pubcomp(2)]);
            let client = net.resume(2, durable(version, "c"));
            let (one, two) = (message("t", "one").qos1(1), message("t", "two").qos2(2));
            assert_eq!(net.received(client), [one.into(), two.into()]);
        });
    }
}

/// [MQTT-4.4.0-1] [MQTT-3.3.1-1] [MQTT-4.6.0-1]: DUP, the same identifiers, the same order, in as many steps as the new
/// connection's Receive Maximum requires.
#[test]
fn unacknowledged_messages_are_sent_again_in_order_within_a_smaller_window() {
    everywhere(|net| {
        let client = net.connect(0, durable(V5, "c"));
        net.subscribe(client, "t", ExactlyOnce);
        let publisher = net.connect(1, v5("p"));
        net.send(publisher, message("t", "a").qos1(1));
        net.send(publisher, message("t", "b").qos2(2));
        net.send(publisher, message("t", "c").qos2(3));
        net.send(publisher, message("t", "d").qos1(4));
        assert_eq!(net.payloads(client), ["a", "b", "c", "d"]);
        net.send(client, pubrec(2));
        assert_eq!(net.received(client), [pubrel(2)]);
        net.lose(client);
        net.send(publisher, message("t", "new").qos1(5));

        let client = net.resume(2, durable(V5, "c").receive_max(1));
        // PUBREL is not limited by the window (4.9).
        assert_eq!(net.received(client), [message("t", "a").qos1(1).dup().into(), pubrel(2)]);
        net.send(client, puback(1));
        assert_eq!(net.received(client), [message("t", "c").qos2(3).dup().into()]);
        net.send(client, pubcomp(2));
        net.send(client, pubrec(3));
        assert_eq!(net.received(client), [pubrel(3)]);
        net.send(client, pubcomp(3));
        assert_eq!(net.received(client), [message("t", "d").qos1(4).dup().into()]);
        net.send(client, puback(4));
        assert_eq!(net.received(client), [message("t", "new").qos1(5).into()]);
        net.send(client, puback(5));
    });
}

/// A client may acknowledge a message of a previous connection before it is sent again.
#[test]
fn an_acknowledgement_before_the_repetition_counts_and_the_rest_is_delivered() {
    everywhere(|net| {
        let client = net.connect(0, durable(V5, "c"));
        net.subscribe(client, "t", AtLeastOnce);
        let publisher = net.connect(1, v5("p"));
        publish_qos1(net, publisher, 1..=2);
        assert_eq!(net.payloads(client), ["1", "2"]);
        net.lose(client);
        let client = net.resume(2, durable(V5, "c").receive_max(1));
        assert_eq!(net.received(client), [message("t", 1).qos1(1).dup().into()]);
        net.send(client, puback(2));
        publish_qos1(net, publisher, 3..=3);
        assert_eq!(net.received(client), [], "the window is full");
        net.send(client, puback(1));
        assert_eq!(net.received(client), [message("t", 3).qos1(3).into()]);
    });
}

/// [MQTT-4.3.3-10]: the session knows which QoS 2 messages it has, whatever connection they arrived on.
#[test]
fn a_qos_2_publish_is_not_accepted_twice_across_a_resume() {
    for version in [V3_1_1, V5] {
        everywhere(|net| {
            let subscriber = net.connect(2, v5("s"));
            net.subscribe(subscriber, "t", ExactlyOnce);
            let publisher = net.connect(0, durable(version, "p"));
            net.send(publisher, message("t", "once").qos2(7));
            assert_eq!(net.received(publisher), [pubrec(7)]);
            net.lose(publisher);
            let publisher = net.resume(1, durable(version, "p"));
            net.send(publisher, message("t", "once").qos2(7).dup());
            assert_eq!(net.received(publisher), [pubrec(7)]);
            net.send(publisher, pubrel(7));
            assert_eq!(net.received(publisher), [pubcomp(7)]);
            net.lose(publisher);
            // PUBCOMP may have been lost: PUBREL is answered again, and the identifier is free.
            let publisher = net.resume(2, durable(version, "p"));
            net.send(publisher, pubrel(7));
            let reason =
                if version == V5 { ReasonCode::PacketIdentifierNotFound } else { ReasonCode::Success };
            assert_eq!(net.received(publisher), [Sent::PubComp(7, reason)]);
            net.send(publisher, message("t", "another").qos2(7));
            assert_eq!(net.received(publisher), [pubrec(7)]);
            assert_eq!(net.payloads(subscriber), ["once", "another"]);
        });
    }
}

/// [MQTT-3.2.2-2] [MQTT-3.2.2-3]
#[test]
fn session_present_is_set_when_a_session_exists() {
    everywhere(|net| {
        let client = net.connect(0, durable(V5, "c"));
        net.lose(client);
        let client = net.resume(0, durable(V3_1_1, "c"));
        net.lose(client);
        let client = net.connect(1, v5("c"));
        net.lose(client);
        net.connect(2, durable(V5, "c"));
    });
}

/// PUBREL is not limited by the window, and neither are messages that were sent before; a new message waits for
/// PUBCOMP.
#[test]
fn a_pubrel_that_is_sent_again_delays_no_repetition() {
    everywhere(|net| {
        let client = net.connect(0, durable(V5, "c"));
        net.subscribe(client, "t", ExactlyOnce);
        let publisher = net.connect(1, v5("p"));
        net.send(publisher, message("t", "a").qos2(1));
        net.send(publisher, message("t", "b").qos1(2));
        net.send(publisher, message("t", "c").qos1(3));
        assert_eq!(net.payloads(client), ["a", "b", "c"]);
        net.send(client, pubrec(1));
        net.lose(client);
        let client = net.resume(2, durable(V5, "c").receive_max(1));
        assert_eq!(net.received(client), [pubrel(1), message("t", "b").qos1(2).dup().into()]);
        net.send(client, puback(3));
        net.send(client, puback(2));
        net.send(publisher, message("t", "d").qos1(4));
        assert_eq!(net.received(client), []);
        net.send(client, pubcomp(1));
        assert_eq!(net.received(client), [message("t", "d").qos1(4).into()]);
    });
}

/// Subscriptions of a resumed session exist at any QoS, whatever worker its connection is on.
#[test]
fn subscriptions_are_resumed_with_the_session() {
    everywhere(|net| {
        let client = net.connect(0, durable(V5, "c"));
        net.send(client, subscribe(1).to("a/+", AtMostOnce).to("b", AtLeastOnce).identifier(9));
        net.lose(client);
        let client = net.resume(1, durable(V5, "c"));
        let publisher = net.connect(2, v5("p"));
        net.publish(publisher, "a/x", 0);
        net.publish(publisher, "b", 1);
        net.send(publisher, message("b", 2).qos1(1));
        let mut received = net.received(client);
        received.sort_by_key(|packet| format!("{packet:?}"));
        let expected = [message("a/x", 0), message("b", 1), message("b", 2).qos1(1)];
        assert_eq!(received, expected.map(|message| message.ids(&[9]).into()));
        net.send(client, unsubscribe(2, &["b", "c"]));
        let reasons = vec![ReasonCode::Success, ReasonCode::NoSubscriptionExisted];
        assert_eq!(net.received(client), [Sent::UnsubAck(2, reasons)]);
        net.publish(publisher, "b", 3);
        assert_eq!(net.received(client), []);
    });
}

/// [MQTT-3.3.2-5] [MQTT-3.3.2-6]
#[test]
fn messages_expire_while_they_wait_and_carry_the_remaining_interval() {
    everywhere(|net| {
        away(net, durable(V5, "c"), "t", AtLeastOnce);
        let publisher = net.connect(1, v5("p"));
        for (id, seconds) in [(1, 5), (2, 20), (3, 10), (4, 60)] {
            net.send(publisher, message("t", id).qos1(id).expiry(seconds));
        }
        net.pass(10_500);
        let client = net.resume(2, durable(V5, "c"));
        // The expired messages had numbers too.
        let (two, four) = (message("t", 2).qos1(2).expiry(10), message("t", 4).qos1(4).expiry(50));
        assert_eq!(net.received(client), [two.into(), four.into()]);
    });
}

#[test]
fn the_full_queue_of_an_absent_client_drops_its_oldest_or_newest_message() {
    use broker::settings::QueueFull;
    for (full, kept) in [(QueueFull::DropOldest, ["3", "4", "5"]), (QueueFull::DropNewest, ["1", "2", "3"])] {
        everywhere_with(
            |settings| (settings.queue.messages_max, settings.queue.full) = (3, full),
            |net| {
                away(net, durable(V5, "c"), "t", AtLeastOnce);
                let publisher = net.connect(1, v5("p"));
                publish_qos1(net, publisher, 1..=5);
                let client = net.resume(2, durable(V5, "c"));
                assert_eq!(net.payloads(client), kept);
            },
        );
    }
}

#[test]
fn the_number_of_sessions_is_bounded() {
    everywhere_with(
        |settings| settings.session.sessions_max = 3,
        |net| {
            for name in ["a", "b", "c"] {
                net.connect(0, durable(V5, name));
            }
            let refused = refused(ReasonCode::QuotaExceeded);
            let fourth = net.connecting(1, durable(V5, "d"));
            assert_eq!(net.received(fourth), [refused, Sent::Closed]);
            net.connect(2, v5("not durable"));
            let back = net.resume(1, durable(V5, "a"));
            net.send(back, Sent::Disconnect { reason: ReasonCode::Success, expiry: Some(0) });
            net.connect(1, durable(V5, "d"));
        },
    );
}

/// The store may be late with requests of an old connection; the new one's session is not disturbed.
#[test]
fn a_late_subscribe_of_a_lost_connection_belongs_to_the_session() {
    everywhere(|net| {
        let client = net.connect(0, durable(V5, "c"));
        net.store.hold(&[Kind::Subscribe]);
        net.send(client, subscribe(1).to("t", AtLeastOnce).to("$share/g/t", AtLeastOnce));
        net.lose(client);
        net.release_held();
        let client = net.resume(1, durable(V5, "c"));
        net.send(client, message("t", "x").qos1(1));
        let received = net.received(client);
        assert_eq!(received.iter().filter(|packet| matches!(packet, Sent::Publish(_))).count(), 2);
    });
}

/// The store keeps no list that grows with every connection of a client.
#[test]
fn reconnects_leave_no_state_behind() {
    everywhere(|net| {
        for round in 0..3_000 {
            let client = net.connecting(0, durable(V5, "c"));
            net.lose(client);
            let client = net.connecting(round, v5("d").expiry(DAY));
            net.lose(client);
        }
    });
}
