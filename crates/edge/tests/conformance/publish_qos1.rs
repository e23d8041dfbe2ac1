//! QoS 1 (3.4, 4.3.2).

use std::collections::HashSet;

use crate::harness::*;

/// [MQTT-4.3.2-4] [MQTT-2.2.1-5] [MQTT-3.3.4-1] [MQTT3-2.3.1-6] [MQTT3-4.3.2-2]
#[test]
fn puback_has_the_packet_identifier_of_its_publish() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut client = b.connect("a");
        client.subscribe(&topic, QOS_0);
        for packet_id in [1, 2, 255, 256, 0x8000, 65_534, 65_535] {
            client.send_message(&Message::new(&topic, "x", QOS_1).packet_id(packet_id));
            let puback = client.puback();
            assert_eq!((puback.packet_id, puback.reason), (packet_id, ReasonCode::Success));
            client.message();
        }
    });
}

/// A PUBLISH is acknowledged even without subscribers; 5.0 may report that (3.4.2.1).
#[test]
fn a_message_without_subscribers_is_acknowledged() {
    every_version(|b| {
        let mut client = b.connect("a");
        let reason = client.try_publish(Message::new(&b.topic("nobody"), "x", QOS_1));
        assert!(matches!(reason, ReasonCode::Success | ReasonCode::NoMatchingSubscribers));
    });
}

/// The bytes on the wire (3.4.2): in 5.0 a PUBACK with only success has 4, 5 or 6 bytes.
#[test]
fn puback_looks_as_specified() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut client = b.connect("a");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_0);
        client.send_message(&Message::new(&topic, "x", QOS_1).packet_id(0x1234));
        let bytes = client.read_bytes().expect("PUBACK");
        let short: &[u8] = &[0x40, 2, 0x12, 0x34];
        let with_reason = [&[0x40, 3, 0x12, 0x34, 0][..], &[0x40, 4, 0x12, 0x34, 0, 0]];
        assert!(bytes == short || b.version == V5 && with_reason.contains(&&bytes[..]), "{bytes:02x?}");
    });
}

/// [MQTT-4.3.2-1] [MQTT-4.3.2-2] [MQTT-2.2.1-4] [MQTT3-2.3.1-4] [MQTT3-4.3.2-1]
#[test]
fn the_servers_packet_identifiers_are_unused_and_not_0() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        let mut used = HashSet::new();
        for n in 0..20 {
            publisher.publish(&topic, "x", if n % 2 == 0 { QOS_1 } else { QOS_2 });
            let message = subscriber.message_unacknowledged();
            assert_ne!(message.packet_id, 0);
            assert!(!message.dup);
            assert!(used.insert(message.packet_id), "{} is in use", message.packet_id);
        }
    });
}

/// [MQTT-4.3.2-5]
#[test]
fn a_packet_identifier_is_free_again_after_puback() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_1);
        for n in 0..3 {
            // DUP does not matter: after PUBACK it is a new message.
            let message = Message::new(&topic, n.to_string(), QOS_1).packet_id(5);
            let message = if n == 2 { message.dup() } else { message };
            publisher.send_message(&message);
            assert_eq!(publisher.puback().packet_id, 5);
            assert_eq!(subscriber.message().text(), n.to_string());
        }
    });
}

/// [MQTT-3.3.1-3] [MQTT-3.3.1-1] [MQTT3-3.3.1-3]
#[test]
fn dup_is_not_passed_on() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        for qos in [QOS_1, QOS_2] {
            publisher.publish_message(Message::new(&topic, "x", qos).dup());
            assert!(!subscriber.message().dup);
        }
    });
}

/// [MQTT-4.6.0-2] [MQTT3-4.6.0-2] for the server as receiver. Neither 3.1 nor 3.1.1 limits the number of messages in
/// flight.
#[test]
fn acknowledgements_come_in_the_order_of_the_messages() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_1);
        // In 5.0 at most the Receive Maximum, which was at least this in every tested broker.
        let count = if b.version == V5 { 20 } else { 500 };
        for packet_id in 1..=count {
            publisher.send_message(&Message::new(&topic, packet_id.to_string(), QOS_1).packet_id(packet_id));
        }
        for packet_id in 1..=count {
            assert_eq!(subscriber.message().text(), packet_id.to_string());
            assert_eq!(publisher.puback().packet_id, packet_id);
        }
    });
}

/// [MQTT-4.3.2-3] [MQTT-4.4.0-1] [MQTT3-4.4.0-1]: only a new connection causes retransmissions.
#[test]
fn nothing_is_sent_again_on_the_same_connection() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        publisher.publish(&topic, "one", QOS_1);
        publisher.publish(&topic, "two", QOS_2);
        let one = subscriber.message_unacknowledged();
        let two = subscriber.message_unacknowledged();
        // Long enough to catch, at least sometimes, a broker that retransmits by a timer, as old brokers did.
        std::thread::sleep(std::time::Duration::from_millis(1500));
        subscriber.nothing();
        subscriber.acknowledge(&one);
        subscriber.acknowledge(&two);
        subscriber.nothing();
    });
}

/// [MQTT-4.4.0-2]: an error is an answer too.
#[test]
fn a_puback_with_an_error_ends_the_delivery() {
    v5(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.durable("subscriber");
        subscriber.subscribe(&topic, QOS_1);
        publisher.publish(&topic, "one", QOS_1);
        let one = subscriber.message();
        publisher.publish(&topic, "two", QOS_1);
        let two = subscriber.message_unacknowledged();
        assert_eq!((one.text(), two.text()), ("one", "two"));
        subscriber.send_puback_with(two.packet_id, ReasonCode::QuotaExceeded);
        subscriber.nothing();
        subscriber.fail();
        let mut subscriber = b.resume("subscriber");
        subscriber.nothing_from(&mut publisher);
    });
}

/// Acknowledgements of messages that a client never got are harmless.
#[test]
fn acknowledgements_of_unknown_messages_are_harmless() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_1);
        subscriber.send_puback(77);
        subscriber.nothing();
        publisher.publish(&topic, "x", QOS_1);
        assert_eq!(subscriber.message().text(), "x");
        // The same acknowledgement twice.
        publisher.publish(&topic, "y", QOS_1);
        let message = subscriber.message();
        subscriber.send_puback(message.packet_id);
        subscriber.nothing();
        publisher.publish(&topic, "z", QOS_1);
        assert_eq!(subscriber.message().text(), "z");
    });
}

/// Each direction has its own identifiers (2.2.1, non-normative comment).
#[test]
fn client_and_server_may_use_the_same_packet_identifier() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut client = b.connect("client");
        client.subscribe(&topic, QOS_1);
        publisher.publish(&topic, "in", QOS_1);
        let message = client.message_unacknowledged();
        client.send_message(&Message::new(&b.topic("other"), "out", QOS_1).packet_id(message.packet_id));
        assert_eq!(client.puback().packet_id, message.packet_id);
        client.send_message(&Message::new(&b.topic("other"), "out", QOS_2).packet_id(message.packet_id));
        assert_eq!(client.pubrec().packet_id, message.packet_id);
        client.send_pubrel(message.packet_id);
        assert_eq!(client.pubcomp().packet_id, message.packet_id);
        client.acknowledge(&message);
        client.nothing();
    });
}
