//! QoS 2 (3.5 to 3.7, 4.3.3).

use crate::harness::*;

/// [MQTT-4.3.3-8] [MQTT-4.3.3-11] [MQTT-2.2.1-5] [MQTT3-4.3.3-2] [MQTT3-2.3.1-6]
#[test]
fn pubrec_and_pubcomp_have_the_packet_identifier_of_the_publish() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        for packet_id in [1, 256, 65_535] {
            publisher.send_message(&Message::new(&topic, "x", QOS_2).packet_id(packet_id));
            let pubrec = publisher.pubrec();
            assert_eq!((pubrec.packet_id, pubrec.reason), (packet_id, ReasonCode::Success));
            publisher.send_pubrel(packet_id);
            let pubcomp = publisher.pubcomp();
            assert_eq!((pubcomp.packet_id, pubcomp.reason), (packet_id, ReasonCode::Success));
            assert_eq!(subscriber.message().text(), "x");
        }
        publisher.nothing();
        subscriber.nothing_from(&mut publisher);
    });
}

/// [MQTT-4.3.3-1] [MQTT-4.3.3-2] [MQTT-4.3.3-4] [MQTT-3.6.1-1] [MQTT3-4.3.3-1]
#[test]
fn the_server_sends_publish_and_pubrel_as_specified() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        publisher.publish(&topic, "x", QOS_2);
        let message = subscriber.message_unacknowledged();
        assert_eq!((message.qos, message.dup), (QOS_2, false));
        assert_ne!(message.packet_id, 0);
        subscriber.send_pubrec(message.packet_id);
        let bytes = subscriber.read_bytes().expect("PUBREL");
        let [high, low] = message.packet_id.to_be_bytes();
        let long = [&[0x62, 3, high, low, 0][..], &[0x62, 4, high, low, 0, 0]];
        assert!(
            bytes == [0x62, 2, high, low] || b.version == V5 && long.contains(&&bytes[..]),
            "{bytes:02x?}"
        );
        subscriber.send_pubcomp(message.packet_id);
        subscriber.nothing_from(&mut publisher);
    });
}

/// [MQTT-4.3.3-10] [MQTT3-4.3.3-2]
#[test]
fn a_publish_that_is_repeated_before_pubrel_is_delivered_once() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        let message = Message::new(&topic, "once", QOS_2).packet_id(9);
        publisher.send_message(&message);
        assert_eq!(publisher.pubrec().packet_id, 9);
        for _ in 0..3 {
            publisher.send_message(&message.clone().dup());
            let pubrec = publisher.pubrec();
            assert_eq!((pubrec.packet_id, pubrec.reason), (9, ReasonCode::Success));
        }
        publisher.send_pubrel(9);
        assert_eq!(publisher.pubcomp().packet_id, 9);
        assert_eq!(subscriber.message().text(), "once");
        subscriber.nothing_from(&mut publisher);
    });
}

/// [MQTT-4.3.3-12]
#[test]
fn a_packet_identifier_is_free_again_after_pubcomp() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        for n in 0..3 {
            publisher.publish_message(Message::new(&topic, n.to_string(), QOS_2).packet_id(9));
            assert_eq!(subscriber.message().text(), n.to_string());
        }
    });
}

/// 3.6.2.1, 3.7.2.1: Packet Identifier not found is no reason to close. Before 5.0 there is only PUBCOMP.
#[test]
fn a_pubrel_of_an_unknown_identifier_gets_a_pubcomp() {
    every_version(|b| {
        let mut client = b.connect("a");
        let expected =
            if b.version == V5 { ReasonCode::PacketIdentifierNotFound } else { ReasonCode::Success };
        client.send_pubrel(12);
        let pubcomp = client.pubcomp();
        assert_eq!((pubcomp.packet_id, pubcomp.reason), (12, expected));
        // The second PUBREL of a complete exchange.
        client.publish_message(Message::new(&b.topic("t"), "x", QOS_2).packet_id(13));
        client.send_pubrel(13);
        let pubcomp = client.pubcomp();
        assert_eq!((pubcomp.packet_id, pubcomp.reason), (13, expected));
        client.nothing();
    });
}

/// [MQTT-4.3.3-4] 3.6.2.1: a PUBREC of an unknown identifier is answered with PUBREL, in 5.0 with an error.
#[test]
fn a_pubrec_of_an_unknown_identifier_gets_a_pubrel() {
    v5(|b| {
        let mut client = b.connect("a");
        client.send_pubrec(12);
        let pubrel = client.pubrel();
        assert_eq!((pubrel.packet_id, pubrel.reason), (12, ReasonCode::PacketIdentifierNotFound));
        client.nothing();
    });
}

/// A PUBCOMP of an unknown identifier has no answer.
#[test]
fn a_pubcomp_of_an_unknown_identifier_is_harmless() {
    every_version(|b| {
        let mut client = b.connect("a");
        client.send_pubcomp(12);
        client.nothing();
    });
}

/// [MQTT-4.4.0-2] [MQTT-4.3.3-4]: no PUBREL follows, and the delivery is over.
#[test]
fn a_pubrec_with_an_error_ends_the_delivery() {
    v5(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.durable("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        publisher.publish(&topic, "refused", QOS_2);
        let message = subscriber.message_unacknowledged();
        subscriber.send_pubrec_with(message.packet_id, ReasonCode::ImplementationSpecificError);
        subscriber.nothing();
        publisher.publish(&topic, "welcome", QOS_2);
        assert_eq!(subscriber.message().text(), "welcome");
        subscriber.fail();
        let mut subscriber = b.resume("subscriber");
        subscriber.nothing_from(&mut publisher);
    });
}

/// [MQTT-4.3.3-6]: a PUBCOMP ends the delivery, even with an error (3.7.2.1).
#[test]
fn a_pubcomp_with_an_error_ends_the_delivery() {
    v5(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.durable("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        publisher.publish(&topic, "x", QOS_2);
        let message = subscriber.message_unacknowledged();
        subscriber.send_pubrec(message.packet_id);
        subscriber.pubrel();
        subscriber.send_pubcomp_with(message.packet_id, ReasonCode::PacketIdentifierNotFound);
        subscriber.nothing();
        subscriber.fail();
        let mut subscriber = b.resume("subscriber");
        subscriber.nothing_from(&mut publisher);
    });
}

/// [MQTT-4.6.0-3] [MQTT-4.6.0-4] [MQTT3-4.6.0-3] for the server as receiver and as sender.
#[test]
fn many_exchanges_run_at_the_same_time_and_in_order() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        let ids: Vec<u16> = (1..=15).collect();
        for id in &ids {
            publisher.send_message(&Message::new(&topic, id.to_string(), QOS_2).packet_id(*id));
        }
        for id in &ids {
            assert_eq!(publisher.pubrec().packet_id, *id);
        }
        for id in &ids {
            publisher.send_pubrel(*id);
        }
        for id in &ids {
            assert_eq!(publisher.pubcomp().packet_id, *id);
        }
        let messages: Vec<Message> = ids.iter().map(|_| subscriber.message_unacknowledged()).collect();
        let texts: Vec<String> = messages.iter().map(|message| message.text().to_owned()).collect();
        assert_eq!(texts, ids.iter().map(u16::to_string).collect::<Vec<_>>());
        for message in &messages {
            subscriber.send_pubrec(message.packet_id);
        }
        for message in &messages {
            assert_eq!(subscriber.pubrel().packet_id, message.packet_id);
        }
        for message in messages.iter().rev() {
            subscriber.send_pubcomp(message.packet_id);
        }
        subscriber.nothing_from(&mut publisher);
    });
}

/// Releasing messages in another order than sending them is an error of the client [MQTT-4.6.0-4]; no message is lost
/// or duplicated.
#[test]
fn exchanges_may_be_released_in_any_order() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        for id in 1..=5u16 {
            publisher.send_message(&Message::new(&topic, id.to_string(), QOS_2).packet_id(id));
            assert_eq!(publisher.pubrec().packet_id, id);
        }
        for id in (1..=5).rev() {
            publisher.send_pubrel(id);
            assert_eq!(publisher.pubcomp().packet_id, id);
        }
        let mut texts = subscriber.texts(5);
        texts.sort();
        assert_eq!(texts, ["1", "2", "3", "4", "5"]);
        subscriber.nothing_from(&mut publisher);
    });
}

/// [MQTT-4.13.1-1] [MQTT3-4.8.0-1]: an acknowledgement of another type than the delivery waits for is a Protocol Error.
/// Other clients are not affected.
#[test]
fn the_wrong_kind_of_acknowledgement_closes_the_connection() {
    const PUBACK: u8 = 0x40;
    const PUBREC: u8 = 0x50;
    const PUBCOMP: u8 = 0x70;
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut other = b.connect("other");
        other.subscribe(&topic, QOS_2);
        let cases = [
            (QOS_1, &[PUBREC][..]),
            (QOS_1, &[PUBCOMP]),
            (QOS_2, &[PUBACK]),
            (QOS_2, &[PUBCOMP]),
            (QOS_2, &[PUBREC, PUBACK]),
        ];
        for (n, (published, packets)) in cases.into_iter().enumerate() {
            for is_durable in [false, true] {
                let name = format!("c{n}{is_durable}");
                let mut confused = if is_durable { b.durable(&name) } else { b.connect(&name) };
                confused.subscribe(&topic, QOS_2);
                publisher.publish(&topic, "x", published);
                let mut message = confused.message_unacknowledged();
                if is_durable {
                    // The same after the session was resumed.
                    confused.fail();
                    confused = b.resume(&name);
                    message = confused.message_unacknowledged();
                    assert!(message.dup);
                }
                let [high, low] = message.packet_id.to_be_bytes();
                for (at, packet) in packets.iter().enumerate() {
                    confused.send_bytes(&[*packet, 2, high, low]);
                    if at + 1 < packets.len() {
                        assert_eq!(confused.pubrel().packet_id, message.packet_id);
                    }
                }
                confused.closed_for(ReasonCode::ProtocolError);
                assert_eq!(other.message().text(), "x");
            }
        }
        other.nothing_from(&mut publisher);
    });
}

/// A late acknowledgement of something finished is harmless [MQTT-4.3.2-5].
#[test]
fn an_acknowledgement_of_an_unknown_identifier_is_ignored() {
    every_version(|b| {
        let mut client = b.connect("a");
        for packet in [0x40, 0x70] {
            client.send_bytes(&[packet, 2, 0, 77]);
        }
        client.nothing();
    });
}

/// [MQTT-4.3.3-3]: a PUBREL that arrives before the PUBREC is answered after it, and then the identifier is free.
#[test]
fn a_pubrel_before_the_pubrec_is_answered_after_it() {
    every_version(|b| {
        let topic = b.topic("t");
        for is_durable in [false, true] {
            let name = format!("subscriber{is_durable}");
            let mut subscriber = if is_durable { b.durable(&name) } else { b.connect(&name) };
            subscriber.subscribe(&topic, QOS_2);
            let mut publisher = if is_durable { b.durable("durable") } else { b.connect("publisher") };
            let mut bytes = Vec::new();
            for text in ["one", "two"] {
                bytes.extend(Message::new(&topic, text, QOS_2).packet_id(9).encode(b.version));
                bytes.extend([0x62, 2, 0, 9]);
            }
            publisher.send_bytes(&bytes);
            for _ in 0..2 {
                assert_eq!(publisher.pubrec().packet_id, 9);
                assert_eq!(publisher.pubcomp().packet_id, 9);
            }
            assert_eq!(subscriber.texts(2), ["one", "two"]);
            publisher.nothing();
        }
    });
}
