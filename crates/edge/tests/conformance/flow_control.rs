//! Receive Maximum in both directions (3.1.2.11.3, 3.2.2.3.3, 3.3.4, 4.9).

use crate::harness::*;

/// [MQTT-3.3.4-9] [MQTT-4.9.0-1] [MQTT-4.9.0-2]
#[test]
fn a_client_gets_no_more_than_its_receive_maximum() {
    v5(|b| {
        for (maximum, qos) in [(1, QOS_1), (1, QOS_2), (3, QOS_1), (3, QOS_2)] {
            let topic = b.topic(&format!("{maximum}/{}", qos as u8));
            let mut publisher = b.connect("publisher");
            let connect = b.client("subscriber").with(Property::ReceiveMaximum(maximum));
            let (mut subscriber, _) = b.connect_with(connect);
            subscriber.subscribe(&topic, qos);
            for n in 0..10 {
                publisher.publish(&topic, n.to_string(), qos);
            }
            let mut open: std::collections::VecDeque<Message> =
                (0..maximum).map(|_| subscriber.message_unacknowledged()).collect();
            for n in 0..10u16 {
                subscriber.nothing();
                let message = open.pop_front().expect("a message in flight");
                assert_eq!(message.text(), n.to_string());
                match qos {
                    QOS_2 => {
                        // PUBREC does not free quota yet.
                        subscriber.send_pubrec(message.packet_id);
                        assert_eq!(subscriber.pubrel().packet_id, message.packet_id);
                        subscriber.nothing();
                        subscriber.send_pubcomp(message.packet_id);
                    }
                    _ => subscriber.send_puback(message.packet_id),
                }
                if n + maximum < 10 {
                    open.push_back(subscriber.message_unacknowledged());
                }
            }
            subscriber.nothing_from(&mut publisher);
        }
    });
}

/// 4.9: the quota is for QoS 1 and 2, and for PUBLISH only [MQTT-3.3.4-10] [MQTT-4.9.0-3].
#[test]
fn other_packets_are_sent_at_zero_quota() {
    v5(|b| {
        let (topic, other) = (b.topic("t"), b.topic("other"));
        let mut publisher = b.connect("publisher");
        let (mut client, _) = b.connect_with(b.client("a").with(Property::ReceiveMaximum(1)));
        client.subscribe(&topic, QOS_1);
        publisher.publish(&topic, "one", QOS_1);
        publisher.publish(&topic, "two", QOS_1);
        let one = client.message_unacknowledged();
        client.ping();
        client.subscribe(&other, QOS_0);
        publisher.publish(&other, "qos 0", QOS_0);
        assert_eq!(client.message().text(), "qos 0");
        client.publish(&b.topic("elsewhere"), "x", QOS_1);
        client.publish(&b.topic("elsewhere"), "x", QOS_2);
        client.unsubscribe(&[&other]);
        client.nothing();
        client.acknowledge(&one);
        assert_eq!(client.message().text(), "two");
    });
}

/// 4.9: an error frees quota too.
#[test]
fn a_refusal_frees_quota() {
    v5(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let (mut client, _) = b.connect_with(b.client("a").with(Property::ReceiveMaximum(1)));
        client.subscribe(&topic, QOS_2);
        publisher.publish(&topic, "one", QOS_1);
        publisher.publish(&topic, "two", QOS_2);
        publisher.publish(&topic, "three", QOS_1);
        let one = client.message_unacknowledged();
        client.send_puback_with(one.packet_id, ReasonCode::UnspecifiedError);
        let two = client.message_unacknowledged();
        client.send_pubrec_with(two.packet_id, ReasonCode::UnspecifiedError);
        assert_eq!(client.message().text(), "three");
    });
}

/// [MQTT-4.4.0-1] with a new, smaller Receive Maximum.
#[test]
fn a_session_is_resumed_within_the_new_receive_maximum() {
    v5(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.durable("subscriber");
        subscriber.subscribe(&topic, QOS_1);
        for n in 0..5 {
            publisher.publish(&topic, n.to_string(), QOS_1);
        }
        for _ in 0..5 {
            subscriber.message_unacknowledged();
        }
        subscriber.fail();
        let connect = b.client("subscriber").durable().with(Property::ReceiveMaximum(2));
        let (mut subscriber, _) = b.connect_with(connect);
        let mut open = std::collections::VecDeque::new();
        for n in 0..5 {
            if n < 2 {
                open.push_back(subscriber.message_unacknowledged());
                continue;
            }
            subscriber.nothing();
            let oldest: Message = open.pop_front().expect("a message in flight");
            subscriber.acknowledge(&oldest);
            open.push_back(subscriber.message_unacknowledged());
        }
        let texts: Vec<&str> = open.iter().map(Message::text).collect();
        assert_eq!(texts, ["3", "4"]);
        for message in &open {
            assert!(message.dup);
            subscriber.acknowledge(message);
        }
        subscriber.nothing_from(&mut publisher);
        subscriber.disconnect();
    });
}

/// [MQTT-3.3.4-7] 3.3.4: "The Server MUST NOT ... If it receives more than Receive Maximum ... 0x93".
#[test]
fn a_client_that_exceeds_the_servers_receive_maximum_is_closed() {
    v5_with(
        |settings| settings.mqtt.receive_max = 5,
        |b| {
            let topic = b.topic("t");
            let (mut client, connack) = b.connect_with(b.client("a"));
            assert_eq!(connack.properties.as_properties().receive_maximum(), Some(5));
            let message = |id: u16| Message::new(&topic, "x", QOS_2).packet_id(id);
            for id in 1..=5 {
                client.send_message(&message(id));
                assert_eq!(client.pubrec().packet_id, id);
            }
            // A repetition does not count as another message [MQTT-4.3.3-10].
            client.send_message(&message(5).dup());
            assert_eq!(client.pubrec().packet_id, 5);
            // PUBCOMP frees quota.
            client.send_pubrel(1);
            assert_eq!(client.pubcomp().packet_id, 1);
            client.send_message(&message(6));
            assert_eq!(client.pubrec().packet_id, 6);
            // QoS 0 does not count.
            client.publish(&topic, "x", QOS_0);
            client.ping();
            client.send_message(&message(7));
            client.closed_for(ReasonCode::ReceiveMaximumExceeded);
        },
    );
}

/// A test suite may use as much as the server announces.
#[test]
fn the_announced_receive_maximum_is_enforced() {
    v5(|b| {
        let (mut client, connack) = b.connect_with(b.client("a"));
        let maximum = connack.properties.as_properties().receive_maximum().unwrap_or(u16::MAX);
        let topic = b.topic("t");
        for id in 1..=maximum {
            client.send_message(&Message::new(&topic, "x", QOS_2).packet_id(id));
            assert_eq!(client.pubrec().packet_id, id);
        }
        if maximum < u16::MAX {
            client.send_message(&Message::new(&topic, "x", QOS_2).packet_id(maximum + 1));
            client.closed_for(ReasonCode::ReceiveMaximumExceeded);
        }
    });
}

/// Acknowledged QoS 1 messages free quota at once: the client sends ten times the Receive Maximum without waiting.
#[test]
fn a_client_within_its_window_may_send_for_ever() {
    v5_with(
        |settings| settings.mqtt.receive_max = 8,
        |b| {
            let topic = b.topic("t");
            let mut subscriber = b.connect("subscriber");
            subscriber.subscribe(&topic, QOS_2);
            let mut client = b.connect("a");
            let mut acknowledged = 0;
            for n in 0..200u16 {
                if n - acknowledged == 8 {
                    client.puback();
                    acknowledged += 1;
                }
                client.send_message(&Message::new(&topic, n.to_string(), QOS_1).packet_id(1 + n % 20));
            }
            for n in 0..200 {
                assert_eq!(subscriber.message().text(), n.to_string());
            }
        },
    );
}

/// `mqtt.inflight_max` bounds the messages in flight to a client without a Receive Maximum, in any version.
#[test]
fn the_inflight_maximum_of_the_server_bounds_messages_in_flight() {
    v5_with(
        |settings| settings.mqtt.inflight_max = 4,
        |b| {
            for version in Version::ALL {
                let topic = b.topic(&format!("t/{}", version as u8));
                let mut publisher = b.connect("publisher");
                let mut subscriber = b.connect_as(version, "subscriber");
                subscriber.subscribe(&topic, QOS_1);
                for n in 0..10 {
                    publisher.publish(&topic, n.to_string(), QOS_1);
                }
                let four: Vec<Message> = (0..4).map(|_| subscriber.message_unacknowledged()).collect();
                subscriber.nothing();
                for message in &four {
                    subscriber.acknowledge(message);
                }
                assert_eq!(subscriber.texts(6), ["4", "5", "6", "7", "8", "9"]);
            }
        },
    );
}
