//! Retained messages (3.3.1.3).

use std::collections::BTreeSet;

use crate::harness::*;

/// [MQTT-3.3.1-5] [MQTT-3.3.1-9] [MQTT3-3.3.1-5] [MQTT3-3.3.1-6] [MQTT3-3.3.1-8]
#[test]
fn a_new_subscriber_gets_the_retained_message() {
    every_version(|b| {
        for qos in EVERY_QOS {
            let topic = b.topic(&format!("t/{}", qos as u8));
            let mut publisher = b.connect("publisher");
            publisher.publish_message(Message::new(&topic, "kept", qos).retained());
            // A retained message is not part of the publisher's session (3.1.2.4).
            publisher.disconnect();
            for granted in EVERY_QOS {
                let mut subscriber = b.connect("subscriber");
                subscriber.subscribe(&topic, granted);
                let message = subscriber.message();
                assert_eq!((message.text(), message.retain), ("kept", true));
                // [MQTT-3.8.4-8] [MQTT3-3.8.4-6]
                assert_eq!(message.qos, qos.min(granted));
                subscriber.nothing();
            }
        }
    });
}

/// [MQTT-3.3.1-12] [MQTT3-3.3.1-9]
#[test]
fn an_established_subscription_sees_no_retain_flag() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut client = b.connect("a");
        client.subscribe(&topic, QOS_1);
        client.publish_message(Message::new(&topic, "live", QOS_1).retained());
        let message = client.message();
        assert_eq!((message.text(), message.retain), ("live", false));
        client.nothing_of_its_own();
    });
}

/// [MQTT-3.3.1-5] [MQTT3-3.3.1-5]
#[test]
fn the_last_retained_message_replaces_the_one_before() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        for (n, qos) in [QOS_1, QOS_0, QOS_2, QOS_0].into_iter().enumerate() {
            publisher.publish_message(Message::new(&topic, n.to_string(), qos).retained());
        }
        publisher.ping();
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        let message = subscriber.message();
        assert_eq!((message.text(), message.qos), ("3", QOS_0));
        subscriber.nothing();
    });
}

/// [MQTT-3.3.1-6] [MQTT-3.3.1-7] [MQTT3-3.3.1-10] [MQTT3-3.3.1-11]
#[test]
fn an_empty_retained_message_deletes() {
    every_version(|b| {
        for qos in EVERY_QOS {
            let topic = b.topic(&format!("t/{}", qos as u8));
            let mut publisher = b.connect("publisher");
            publisher.publish_message(Message::new(&topic, "kept", QOS_1).retained());
            let mut live = b.connect("live");
            live.subscribe(&topic, QOS_0);
            assert!(live.message().retain);
            publisher.publish_message(Message::new(&topic, "", qos).retained());
            // Existing subscribers get it as an ordinary message.
            let message = live.message();
            assert_eq!((message.payload.len(), message.retain), (0, false));
            let mut late = b.connect("late");
            late.subscribe(&topic, QOS_2);
            late.nothing_from(&mut publisher);
        }
    });
}

/// [MQTT-3.3.1-8] [MQTT3-3.3.1-12]
#[test]
fn a_message_without_retain_changes_nothing() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        publisher.publish(&topic, "not kept", QOS_1);
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_1);
        subscriber.nothing_from(&mut publisher);
        publisher.publish_message(Message::new(&topic, "kept", QOS_1).retained());
        publisher.publish(&topic, "passing", QOS_1);
        publisher.publish(&topic, "", QOS_1);
        let mut late = b.connect("late");
        late.subscribe(&topic, QOS_1);
        assert_eq!(late.message().text(), "kept");
        late.nothing();
    });
}

/// [MQTT-3.3.1-9] [MQTT3-3.3.1-6]
#[test]
fn a_wildcard_gets_every_retained_message_that_matches() {
    every_version(|b| {
        let mut publisher = b.connect("publisher");
        let topics = ["a", "a/b", "a/c", "a/b/c", "b", "b/c/d", "/a", "a/"].map(|name| b.topic(name));
        for topic in &topics {
            publisher.publish_message(Message::new(topic, topic, QOS_1).retained());
        }
        let matches = [
            ("#", &["a", "a/b", "a/c", "a/b/c", "b", "b/c/d", "/a", "a/"][..]),
            ("a/#", &["a", "a/b", "a/c", "a/b/c", "a/"]),
            ("a/+", &["a/b", "a/c", "a/"]),
            ("+", &["a", "b"]),
            ("+/+", &["a/b", "a/c", "/a", "a/"]),
            ("+/c/#", &["a/c", "b/c/d"]),
            ("+/b/c", &["a/b/c"]),
            ("/+", &["/a"]),
            ("c/#", &[]),
        ];
        for (filter, expected) in matches {
            let mut subscriber = b.connect("subscriber");
            subscriber.subscribe(&b.topic(filter), QOS_1);
            let received: BTreeSet<String> = expected.iter().map(|_| subscriber.message().topic).collect();
            let expected: BTreeSet<String> = expected.iter().map(|name| b.topic(name)).collect();
            assert_eq!(received, expected, "{filter}");
            subscriber.nothing();
        }
    });
}

/// [MQTT-3.3.1-9] [MQTT3-3.8.4-3]
#[test]
fn subscribing_again_sends_the_retained_message_again() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut client = b.connect("a");
        client.publish_message(Message::new(&topic, "kept", QOS_1).retained());
        for _ in 0..3 {
            client.subscribe(&topic, QOS_1);
            let message = client.message();
            assert_eq!((message.text(), message.retain), ("kept", true));
        }
        client.nothing();
    });
}

/// More messages than any window holds.
#[test]
fn a_subscriber_gets_hundreds_of_retained_messages() {
    every_version(|b| {
        let mut publisher = b.connect("publisher");
        let count = 600;
        for n in 0..count {
            let topic = b.topic(&format!("many/{}/{n}", n % 7));
            publisher.publish_message(Message::new(&topic, n.to_string(), QOS_1).retained());
        }
        for qos in EVERY_QOS {
            let mut subscriber = b.connect("subscriber");
            subscriber.subscribe(&b.topic("many/+/#"), qos);
            let mut received = BTreeSet::new();
            for _ in 0..count {
                let message = subscriber.message();
                assert!(message.retain);
                assert!(received.insert(message.text().to_owned()), "{} came twice", message.text());
            }
            subscriber.nothing();
        }
        for n in 0..count {
            let topic = b.topic(&format!("many/{}/{n}", n % 7));
            publisher.publish_message(Message::new(&topic, "", QOS_0).retained());
        }
        publisher.ping();
    });
}

/// [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]: a retained message is complete.
#[test]
fn a_retained_message_keeps_its_properties() {
    v5(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let message = Message::new(&topic, "kept", QOS_1)
            .retained()
            .with(Property::PayloadFormatIndicator(1))
            .with(Property::ContentType("text/plain"))
            .with(Property::ResponseTopic("r"))
            .with(Property::CorrelationData(b"\0c"))
            .with(Property::UserProperty("a", "2"))
            .with(Property::UserProperty("c", "3"))
            .with(Property::UserProperty("a", "1"));
        publisher.publish_message(message.clone());
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_1);
        let received = subscriber.message();
        assert_eq!(received.properties, message.properties);
        for version in [V3_1, V3_1_1] {
            let mut subscriber = b.connect_as(version, "older");
            subscriber.subscribe(&topic, QOS_1);
            assert_eq!(subscriber.message().text(), "kept");
        }
    });
}

/// A message in the queue of a session was sent to an existing subscription.
#[test]
fn a_disconnected_session_gets_messages_without_retain() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.durable("subscriber");
        subscriber.subscribe(&topic, QOS_1);
        subscriber.disconnect();
        publisher.publish_message(Message::new(&topic, "while away", QOS_1).retained());
        let mut subscriber = b.resume("subscriber");
        let message = subscriber.message();
        assert_eq!((message.text(), message.retain), ("while away", false));
        // Resuming a session does not subscribe again.
        subscriber.nothing();
        subscriber.disconnect();
    });
}

/// Each filter of one SUBSCRIBE gets its own copy (3.3.1.3).
#[test]
fn overlapping_filters_of_one_subscribe_each_get_the_retained_message() {
    every_version(|b| {
        let topic = b.topic("a/b");
        let mut publisher = b.connect("publisher");
        publisher.publish_message(Message::new(&topic, "kept", QOS_2).retained());
        let mut subscriber = b.connect("subscriber");
        let filters = [b.topic("a/#"), b.topic("+/b")];
        subscriber.try_subscribe(&[(&filters[0], at(QOS_1)), (&filters[1], at(QOS_2))], &[]);
        let mut qos = vec![subscriber.message().qos, subscriber.message().qos];
        qos.sort();
        assert_eq!(qos, [QOS_1, QOS_2]);
        subscriber.nothing();
    });
}
