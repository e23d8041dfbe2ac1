//! QoS 0, and requirements on a PUBLISH of any QoS (3.3, 4.3.1).

use crate::harness::wire::{packet, string};
use crate::harness::*;

/// [MQTT-4.3.1-1] [MQTT-3.3.1-2] [MQTT-3.3.4-1] [MQTT3-4.3.1-1]
#[test]
fn a_message_reaches_every_subscriber_and_no_other_client() {
    every_version(|b| {
        let topic = b.topic("a/b");
        let mut publisher = b.connect("publisher");
        let mut subscribers: Vec<Client> = (0..4).map(|n| b.connect(&format!("s{n}"))).collect();
        for subscriber in &mut subscribers {
            subscriber.subscribe(&topic, QOS_0);
        }
        let mut other = b.connect("other");
        other.subscribe(&b.topic("a"), QOS_0);
        other.subscribe(&b.topic("a/b/c"), QOS_0);
        publisher.publish(&topic, "hello", QOS_0);
        for subscriber in &mut subscribers {
            assert_eq!(subscriber.message(), Message::new(&topic, "hello", QOS_0));
        }
        other.nothing_from(&mut publisher);
        // The server answers nothing to QoS 0.
        publisher.nothing();
    });
}

/// The bytes on the wire are checked, not only what Meridian's decoder reads from them.
#[test]
fn a_message_of_qos_0_looks_as_specified() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut client = b.connect("a");
        client.subscribe(&topic, QOS_0);
        client.publish(&topic, "payload", QOS_0);
        // [MQTT-2.2.2-1]: no properties are a length of 0.
        let no_properties: &[u8] = if b.version == V5 { &[0] } else { &[] };
        let expected = packet(0x30, &[&string(&topic), no_properties, b"payload"]);
        assert_eq!(client.read_bytes(), Some(expected));
    });
}

/// 3.3.3: "It is valid for a PUBLISH packet to contain a zero length payload."
#[test]
fn a_payload_may_be_empty() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut client = b.connect("a");
        client.subscribe(&topic, QOS_2);
        for qos in EVERY_QOS {
            client.publish(&topic, "", qos);
            let message = client.message();
            assert_eq!((message.payload.len(), message.qos), (0, qos));
        }
    });
}

#[test]
fn a_payload_may_be_any_bytes() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut client = b.connect("a");
        client.subscribe(&topic, QOS_2);
        let payload: Vec<u8> = (0..=255).collect();
        for qos in EVERY_QOS {
            client.publish(&topic, &payload, qos);
            assert_eq!(client.message().payload, payload);
        }
    });
}

/// 1.5.5 [MQTT-1.5.5-1]: the Remaining Length grows by a byte at 128, 16,384 and 2,097,152.
#[test]
fn payloads_around_every_length_boundary_arrive() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_1);
        for remaining in [126usize, 127, 128, 129, 16_382, 16_383, 16_384, 16_385, 65_535, 65_536, 300_000] {
            let head = 2 + topic.len() + if b.version == V5 { 1 } else { 0 };
            let payload: Vec<u8> = (0..remaining - head).map(|at| at as u8).collect();
            publisher.publish(&topic, &payload, QOS_0);
            assert_eq!(subscriber.message().payload, payload, "Remaining Length {remaining}");
        }
    });
}

/// The last boundary needs a larger Maximum Packet Size than the default of 1 MiB.
#[test]
fn a_payload_of_two_mebibytes_arrives() {
    v5_with(
        |settings| {
            settings.mqtt.packet_size_max = settings::ByteSize::mib(4);
            settings.queue.unsent_bytes_max = settings::ByteSize::mib(16);
        },
        |b| {
            let topic = b.topic("t");
            let mut publisher = b.connect("publisher");
            let mut subscriber = b.connect("subscriber");
            subscriber.subscribe(&topic, QOS_1);
            for size in [2_097_100, 2_097_152, 3_000_000] {
                let payload: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
                publisher.publish(&topic, &payload, QOS_1);
                assert_eq!(subscriber.message().payload, payload);
            }
        },
    );
}

/// [MQTT-3.8.4-8] [MQTT3-3.8.4-6]
#[test]
fn a_message_has_the_lower_of_its_own_qos_and_the_subscriptions() {
    every_version(|b| {
        for granted in EVERY_QOS {
            let topic = b.topic(&format!("granted/{}", granted as u8));
            let mut publisher = b.connect("publisher");
            let mut subscriber = b.connect("subscriber");
            subscriber.subscribe(&topic, granted);
            for published in EVERY_QOS {
                publisher.publish(&topic, "x", published);
                assert_eq!(subscriber.message().qos, published.min(granted), "{published:?} to {granted:?}");
            }
        }
    });
}

/// A message is sent in the version of its receiver, whatever version it arrived in. Parts that an older version lacks
/// are omitted.
#[test]
fn clients_of_all_versions_talk_to_each_other() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let message = |qos| match b.version {
            V5 => Message::new(&topic, "x", qos)
                .with(Property::ContentType("text"))
                .with(Property::UserProperty("a", "b")),
            V3_1 | V3_1_1 => Message::new(&topic, "x", qos),
        };
        for version in Version::ALL {
            let mut subscriber = b.connect_as(version, &format!("s{}", version as u8));
            subscriber.subscribe(&topic, QOS_2);
            for qos in EVERY_QOS {
                publisher.publish_message(message(qos));
                let received = subscriber.message();
                assert_eq!((received.text(), received.qos), ("x", qos));
                let with_properties = b.version == V5 && version == V5;
                assert_eq!(!received.properties.is_empty(), with_properties);
            }
        }
    });
}

/// A client that subscribes to its own topic gets its own messages. No Local is another scenario.
#[test]
fn a_client_receives_its_own_messages() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut client = b.connect("a");
        client.subscribe(&topic, QOS_2);
        for qos in EVERY_QOS {
            client.publish(&topic, format!("{qos:?}"), qos);
            assert_eq!(client.message().text(), format!("{qos:?}"));
        }
        client.nothing_of_its_own();
    });
}

/// [MQTT-4.6.0-5] [MQTT-4.6.0-6] [MQTT3-4.6.0-6]
#[test]
fn messages_of_one_topic_and_qos_keep_their_order() {
    every_version(|b| {
        for qos in EVERY_QOS {
            let topic = b.topic(&format!("ordered/{}", qos as u8));
            let mut publisher = b.connect("publisher");
            let mut subscriber = b.connect("subscriber");
            subscriber.subscribe(&topic, qos);
            for n in 0..200 {
                publisher.publish(&topic, n.to_string(), qos);
                assert_eq!(subscriber.message().text(), n.to_string());
            }
            // The next message is sent without waiting for the previous one. A receiver may hold back QoS 2 until
            // PUBREL.
            for n in 0..200u16 {
                publisher.send_message(&numbered(&topic, n, qos));
            }
            if qos == QOS_2 {
                (0..200).for_each(|n| assert_eq!(publisher.pubrec().packet_id, 1000 + n));
                (0..200).for_each(|n| publisher.send_pubrel(1000 + n));
            }
            for n in 0..200 {
                assert_eq!(subscriber.message().text(), n.to_string());
            }
        }
    });
}

/// Many publishers to one topic: each publisher's messages keep their order.
#[test]
fn messages_of_several_publishers_keep_each_ones_order() {
    from_3_1_1(|b| {
        let topic = b.topic("t");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_1);
        let mut publishers: Vec<Client> = (0..5).map(|n| b.connect(&format!("p{n}"))).collect();
        for n in 0..50 {
            for (who, publisher) in publishers.iter_mut().enumerate() {
                let id = publisher.packet_id();
                publisher.send_message(&Message::new(&topic, format!("{who} {n}"), QOS_1).packet_id(id));
            }
        }
        let mut next = [0; 5];
        for _ in 0..250 {
            let message = subscriber.message();
            let (who, n) = message.text().split_once(' ').expect("two numbers");
            let who: usize = who.parse().expect("a number");
            assert_eq!(n, next[who].to_string());
            next[who] += 1;
        }
        assert_eq!(next, [50; 5]);
    });
}

fn numbered(topic: &str, n: u16, qos: QoS) -> Message {
    let message = Message::new(topic, n.to_string(), qos);
    if qos == QOS_0 { message } else { message.packet_id(1000 + n) }
}
