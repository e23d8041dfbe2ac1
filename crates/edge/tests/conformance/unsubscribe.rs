//! UNSUBSCRIBE and UNSUBACK (3.10, 3.11).

use crate::harness::*;

/// [MQTT-3.10.4-4] [MQTT-3.10.4-5] [MQTT-3.11.3-2] [MQTT3-3.10.4-4] [MQTT3-3.10.4-5]
#[test]
fn unsuback_is_sent_even_without_a_subscription() {
    every_version(|b| {
        let mut client = b.connect("a");
        client.subscribe(&b.topic("there"), QOS_1);
        for packet_id in [1, 256, 65_535] {
            client.send_unsubscribe(packet_id, &[&b.topic("not/there")]);
            assert_eq!(client.unsuback().packet_id, packet_id);
        }
        let reasons = client.unsubscribe(&[&b.topic("there")]);
        assert_eq!(reasons, if b.version == V5 { vec![0] } else { vec![] });
        let reasons = client.unsubscribe(&[&b.topic("there")]);
        assert_eq!(reasons, if b.version == V5 { vec![0x11] } else { vec![] });
    });
}

/// The bytes on the wire (3.11): before 5.0 there is no payload.
#[test]
fn unsuback_looks_as_specified() {
    every_version(|b| {
        let mut client = b.connect("a");
        client.subscribe(&b.topic("t"), QOS_1);
        client.send_unsubscribe(0x1234, &[&b.topic("t")]);
        let expected: &[u8] =
            if b.version == V5 { &[0xB0, 4, 0x12, 0x34, 0, 0] } else { &[0xB0, 2, 0x12, 0x34] };
        assert_eq!(client.read_bytes().as_deref(), Some(expected));
    });
}

/// [MQTT-3.10.4-2] [MQTT3-3.10.4-2]
#[test]
fn no_messages_arrive_after_unsubscribe() {
    every_version(|b| {
        for (filter, topic) in [("t", "t"), ("w/+", "w/x"), ("h/#", "h/a/b"), ("+/+/z", "q/r/z")] {
            let (filter, topic) = (b.topic(filter), b.topic(topic));
            let mut publisher = b.connect("publisher");
            let mut subscriber = b.connect("subscriber");
            subscriber.subscribe(&filter, QOS_1);
            publisher.publish(&topic, "before", QOS_1);
            assert_eq!(subscriber.message().text(), "before");
            subscriber.unsubscribe(&[&filter]);
            for qos in EVERY_QOS {
                publisher.publish(&topic, "after", qos);
            }
            subscriber.nothing_from(&mut publisher);
        }
    });
}

/// [MQTT-3.10.4-6] [MQTT-3.11.3-1] [MQTT3-3.10.4-6]
#[test]
fn several_filters_are_answered_together_and_in_order() {
    every_version(|b| {
        let topics: Vec<String> = ["a", "b", "c", "d"].map(|name| b.topic(name)).into();
        let mut client = b.connect("a");
        for topic in &topics {
            client.subscribe(topic, QOS_1);
        }
        let reasons = client.unsubscribe(&[&topics[0], &b.topic("nothing"), &topics[2], &topics[0]]);
        assert_eq!(reasons, if b.version == V5 { vec![0, 0x11, 0, 0x11] } else { vec![] });
        for topic in &topics {
            client.publish(topic, "x", QOS_1);
        }
        assert_eq!(client.message().topic, topics[1]);
        assert_eq!(client.message().topic, topics[3]);
        client.nothing_of_its_own();
    });
}

/// [MQTT-3.10.4-1] [MQTT3-3.10.4-1]
#[test]
fn filters_are_compared_character_by_character() {
    every_version(|b| {
        let topic = b.topic("a/b");
        let mut client = b.connect("a");
        client.subscribe(&topic, QOS_1);
        for other in ["a/+", "a/#", "#", "+/b", "A/b", "a/b/", "/a/b", "a//b", "a/b/#", "a"] {
            let reasons = client.unsubscribe(&[&b.topic(other)]);
            assert_eq!(reasons, if b.version == V5 { vec![0x11] } else { vec![] }, "{other}");
        }
        client.publish(&topic, "x", QOS_1);
        assert_eq!(client.message().text(), "x");
        client.subscribe(&b.topic("a/+"), QOS_1);
        client.unsubscribe(&[&topic]);
        client.publish(&topic, "y", QOS_1);
        assert_eq!(client.message().text(), "y");
        client.nothing_of_its_own();
    });
}

/// [MQTT-3.10.4-3] [MQTT3-3.10.4-3]
#[test]
fn a_delivery_that_has_begun_is_completed() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.durable("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        publisher.publish(&topic, "one", QOS_1);
        publisher.publish(&topic, "two", QOS_2);
        let one = subscriber.message_unacknowledged();
        let two = subscriber.message_unacknowledged();
        subscriber.unsubscribe(&[&topic]);
        subscriber.fail();
        let mut subscriber = b.resume("subscriber");
        let again = subscriber.message();
        assert_eq!((again.text(), again.packet_id), ("one", one.packet_id));
        let again = subscriber.message();
        assert_eq!((again.text(), again.packet_id), ("two", two.packet_id));
        publisher.publish(&topic, "three", QOS_2);
        subscriber.nothing_from(&mut publisher);
        subscriber.disconnect();
    });
}

#[test]
fn a_client_can_subscribe_again_after_unsubscribe() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut client = b.connect("a");
        for qos in EVERY_QOS {
            client.subscribe(&topic, qos);
            client.publish(&topic, "x", QOS_2);
            assert_eq!(client.message().qos, qos);
            client.unsubscribe(&[&topic]);
            client.publish(&topic, "y", QOS_2);
            client.nothing_of_its_own();
        }
    });
}
