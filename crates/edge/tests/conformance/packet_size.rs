//! Maximum Packet Size in both directions (3.1.2.11.4, 3.2.2.3.6).

use crate::harness::*;

/// Size in bytes of a QoS 1 PUBLISH to a 5.0 client, without properties.
fn size(topic: &str, payload: usize) -> usize {
    Message::new(topic, vec![0; payload], QOS_1).packet_id(1).encode(V5).len()
}

/// [MQTT-3.1.2-24] [MQTT-3.1.2-25]
#[test]
fn a_client_gets_no_packet_above_its_maximum() {
    v5(|b| {
        for granted in EVERY_QOS {
            let topic = b.topic("t");
            let mut publisher = b.connect("publisher");
            let largest = size(&topic, 200) - if granted == QOS_0 { 2 } else { 0 };
            let connect = b.client("small").with(Property::MaximumPacketSize(largest as u32));
            let (mut small, _) = b.connect_with(connect);
            let mut large = b.connect("large");
            small.subscribe(&topic, granted);
            large.subscribe(&topic, QOS_2);
            for payload in [199, 200, 201, 1000, 200, 0] {
                publisher.publish(&topic, vec![b'.'; payload], QOS_2);
                assert_eq!(large.message().payload.len(), payload);
            }
            for payload in [199, 200, 200, 0] {
                assert_eq!(small.message().payload.len(), payload);
            }
            small.nothing_from(&mut publisher);
        }
    });
}

/// [MQTT-3.1.2-25]: "as if it had completed sending", so its slot is free.
#[test]
fn a_message_that_is_too_large_takes_no_slot_in_the_window() {
    v5(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let connect = b.client("a").with(Property::MaximumPacketSize(150)).with(Property::ReceiveMaximum(1));
        let (mut client, _) = b.connect_with(connect);
        client.subscribe(&topic, QOS_2);
        for qos in [QOS_1, QOS_2] {
            for _ in 0..5 {
                publisher.publish(&topic, vec![b'.'; 1000], qos);
            }
            publisher.publish(&topic, "small", qos);
            assert_eq!(client.message().text(), "small");
        }
        client.nothing_from(&mut publisher);
    });
}

/// The limit belongs to the connection: a queued message may be too large for the next connection.
#[test]
fn a_queued_message_may_be_too_large_for_the_next_connection() {
    v5(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.durable("subscriber");
        subscriber.subscribe(&topic, QOS_1);
        subscriber.disconnect();
        publisher.publish(&topic, vec![b'.'; 1000], QOS_1);
        publisher.publish(&topic, "small", QOS_1);
        publisher.publish_message(Message::new(&topic, vec![b'.'; 1000], QOS_0).retained());
        let connect = b.client("subscriber").durable().with(Property::MaximumPacketSize(150));
        let (mut subscriber, _) = b.connect_with(connect);
        assert_eq!(subscriber.message().text(), "small");
        subscriber.subscribe(&topic, QOS_1);
        subscriber.nothing_from(&mut publisher);
        subscriber.disconnect();
    });
}

/// [MQTT-3.2.2-15] 3.2.2.3.6: 0x95; before 5.0 the connection is closed.
#[test]
fn a_packet_above_the_servers_maximum_closes_the_connection() {
    v5_with(
        |settings| settings.mqtt.packet_size_max = settings::ByteSize(1000),
        |b| {
            let topic = b.topic("t");
            let mut subscriber = b.connect("subscriber");
            subscriber.subscribe(&topic, QOS_1);
            for version in Version::ALL {
                let head = Message::new(&topic, vec![0; 200], QOS_1).packet_id(1).encode(version).len() - 200;
                let mut client = b.connect_as(version, "a");
                client.publish(&topic, vec![b'.'; 1000 - head], QOS_1);
                assert_eq!(subscriber.message().payload.len(), 1000 - head);
                client.send_message(&Message::new(&topic, vec![b'.'; 1001 - head], QOS_1).packet_id(9));
                client.closed_for(ReasonCode::PacketTooLarge);
            }
            let (_client, connack) = b.connect_with(b.client("b"));
            assert_eq!(connack.properties.as_properties().maximum_packet_size(), Some(1000));
            let mut publisher = b.connect("publisher");
            subscriber.nothing_from(&mut publisher);
        },
    );
}

/// The server refuses the packet by its fixed header, and does not wait for 256 MiB.
#[test]
fn a_packet_is_refused_by_its_header() {
    v5(|b| {
        let (mut client, connack) = b.connect_with(b.client("a"));
        let Some(maximum) = connack.properties.as_properties().maximum_packet_size() else {
            assert!(Broker::is_external());
            return;
        };
        assert!(maximum < 268_435_455);
        client.send_bytes(&[0x30, 0xFF, 0xFF, 0xFF, 0x7F]);
        client.closed_for(ReasonCode::PacketTooLarge);
        // Before 5.0, and before any CONNECT, without a reason.
        let mut client = b.connect_as(V3_1_1, "b");
        client.send_bytes(&[0x30, 0xFF, 0xFF, 0xFF, 0x7F]);
        client.closed();
        let mut client = b.open();
        client.send_bytes(&[0x10, 0xFF, 0xFF, 0xFF, 0x7F]);
        client.closed();
    });
}

/// [MQTT-3.2.2-19] and similar: optional properties are omitted.
#[test]
fn answers_stay_within_the_clients_maximum() {
    v5(|b| {
        let connect = b.client("a").with(Property::MaximumPacketSize(64));
        let mut client = b.open();
        client.send_connect(&connect);
        let mut largest = client.read_bytes().expect("CONNACK").len();
        client.send_subscribe(1, &[(&b.topic("t"), at(QOS_1))], &[]);
        largest = largest.max(client.read_bytes().expect("SUBACK").len());
        client.send_message(&Message::new(&b.topic("x"), "x", QOS_1).packet_id(2));
        largest = largest.max(client.read_bytes().expect("PUBACK").len());
        client.send_unsubscribe(3, &[&b.topic("t"), &b.topic("other")]);
        largest = largest.max(client.read_bytes().expect("UNSUBACK").len());
        client.send_bytes(&[0, 0]);
        largest = largest.max(client.read_bytes().map_or(0, |bytes| bytes.len()));
        assert!(largest <= 64, "{largest}");
    });
}
