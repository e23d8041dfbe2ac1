//! Sessions: the state that outlives a connection, its expiry, and the continuation of deliveries (3.1.2.4, 3.1.2.11.2,
//! 4.1, 4.4).

use std::time::Duration;

use crate::harness::*;

/// [MQTT-3.1.2-4] [MQTT-3.1.2-5] [MQTT-3.1.2-6] [MQTT-3.2.2-2] [MQTT-3.2.2-3] [MQTT3-3.1.2-4] [MQTT3-3.1.2-6]
/// [MQTT3-3.2.2-1] [MQTT3-3.2.2-2] [MQTT3-3.2.2-3]
#[test]
fn session_present_reports_an_existing_session() {
    from_3_1_1(|b| {
        let present = |connect: Connect| {
            let (client, connack) = b.connect_with(connect);
            client.disconnect();
            connack.session_present
        };
        let clean = || b.client("a");
        let durable = || b.client("a").durable();
        assert!(!present(clean()));
        assert!(!present(clean()));
        assert!(!present(durable()));
        assert!(present(durable()));
        assert!(present(durable()));
        // Clean Start discards the session, and that connection leaves none.
        assert!(!present(clean()));
        assert!(!present(durable()));
        assert!(present(durable()));
        assert!(!present(clean()));
    });
}

/// [MQTT-3.1.2-5] [MQTT-3.1.2-23] [MQTT3-3.1.2-4]
#[test]
fn subscriptions_outlive_the_connection() {
    every_version(|b| {
        let topics = ["a", "b/x", "c/x/y"].map(|name| b.topic(name));
        let mut client = b.durable("client");
        client.subscribe(&b.topic("a"), QOS_0);
        client.subscribe(&b.topic("b/+"), QOS_1);
        client.subscribe(&b.topic("c/#"), QOS_2);
        client.disconnect();
        let mut client = b.resume("client");
        for (n, topic) in topics.iter().enumerate() {
            client.publish(topic, "x", QOS_2);
            assert_eq!(client.message().qos, EVERY_QOS[n]);
        }
        // However the connection ends.
        client.fail();
        let mut client = b.resume("client");
        client.unsubscribe(&[&b.topic("b/+")]);
        client.fail();
        let mut client = b.resume("client");
        for topic in &topics {
            client.publish(topic, "x", QOS_2);
        }
        assert_eq!(client.message().topic, topics[0]);
        assert_eq!(client.message().topic, topics[2]);
        client.nothing_of_its_own();
        client.disconnect();
    });
}

/// [MQTT-3.1.2-4] [MQTT-4.1.0-2] [MQTT3-3.1.2-6]
#[test]
fn a_session_that_ends_with_its_connection_leaves_nothing() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut client = b.connect("client");
        client.subscribe(&topic, QOS_2);
        publisher.publish(&topic, "lost", QOS_1);
        client.message_unacknowledged();
        client.fail();
        publisher.publish(&topic, "lost", QOS_1);
        let (mut client, connack) = b.connect_with(b.client("client").durable());
        assert!(!connack.session_present);
        publisher.publish(&topic, "lost", QOS_1);
        client.nothing_from(&mut publisher);
        client.disconnect();
        b.connect("client").disconnect();
    });
}

/// [MQTT-4.5.0-1] [MQTT3-4.5.0-1] [MQTT3-3.1.2-5]
#[test]
fn messages_wait_for_a_disconnected_session() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.durable("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        subscriber.disconnect();
        for n in 0..100 {
            publisher.publish(&topic, n.to_string(), if n % 2 == 0 { QOS_1 } else { QOS_2 });
        }
        let mut subscriber = b.resume("subscriber");
        for n in 0..100 {
            let message = subscriber.message();
            assert_eq!(message.text(), n.to_string());
            assert_eq!(message.qos, if n % 2 == 0 { QOS_1 } else { QOS_2 });
            // Never sent before [MQTT-3.3.1-1].
            assert!(!message.dup);
        }
        subscriber.nothing_from(&mut publisher);
        // Acknowledged messages are not sent again.
        subscriber.fail();
        let mut subscriber = b.resume("subscriber");
        subscriber.nothing_from(&mut publisher);
        subscriber.disconnect();
    });
}

/// 3.1.2.4 [MQTT3-3.1.2-5]: QoS 0 messages may be queued or dropped, but not sent twice.
#[test]
fn qos_0_for_a_disconnected_session_arrives_at_most_once() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.durable("subscriber");
        subscriber.subscribe(&topic, QOS_1);
        subscriber.disconnect();
        publisher.publish(&topic, "may be lost", QOS_0);
        publisher.publish(&topic, "must arrive", QOS_1);
        let mut subscriber = b.resume("subscriber");
        let mut text = subscriber.message().text().to_owned();
        if text == "may be lost" {
            text = subscriber.message().text().to_owned();
        }
        assert_eq!(text, "must arrive");
        subscriber.nothing_from(&mut publisher);
        subscriber.disconnect();
    });
}

/// [MQTT-4.4.0-1] [MQTT-3.3.1-1] [MQTT-4.3.2-3] [MQTT3-4.4.0-1] [MQTT3-3.3.1-1]
#[test]
fn unacknowledged_messages_are_sent_again_with_dup_in_their_order() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.durable("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        for n in 0..10 {
            publisher.publish(&topic, n.to_string(), if n % 2 == 0 { QOS_1 } else { QOS_2 });
        }
        let first: Vec<Message> = (0..10).map(|_| subscriber.message_unacknowledged()).collect();
        // The first two are acknowledged; the others are not.
        subscriber.acknowledge(&first[0]);
        subscriber.acknowledge(&first[1]);
        subscriber.nothing();
        subscriber.fail();
        publisher.publish(&topic, "new", QOS_1);
        for _ in 0..2 {
            let mut subscriber = b.resume("subscriber");
            for sent in &first[2..] {
                let again = subscriber.message_unacknowledged();
                assert!(again.dup, "{again:?}");
                assert_eq!(Message { dup: false, ..again }, *sent);
            }
            let new = subscriber.message_unacknowledged();
            assert_eq!(new.text(), "new");
            subscriber.fail();
        }
        let mut subscriber = b.resume("subscriber");
        for n in 2..10 {
            assert_eq!(subscriber.message().text(), n.to_string());
        }
        assert_eq!(subscriber.message().text(), "new");
        subscriber.nothing_from(&mut publisher);
        subscriber.disconnect();
    });
}

/// [MQTT-4.4.0-1] [MQTT-4.3.3-5] [MQTT-4.3.3-6] [MQTT3-4.4.0-1]
#[test]
fn after_pubrec_the_server_retransmits_pubrel() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.durable("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        publisher.publish(&topic, "x", QOS_2);
        let packet_id = subscriber.message_unacknowledged().packet_id;
        subscriber.send_pubrec(packet_id);
        assert_eq!(subscriber.pubrel().packet_id, packet_id);
        for _ in 0..2 {
            subscriber.fail();
            subscriber = b.resume("subscriber");
            match subscriber.recv() {
                Received::PubRel(pubrel) => assert_eq!(pubrel.packet_id, packet_id),
                other => panic!("{other:?} instead of PUBREL"),
            }
        }
        subscriber.send_pubcomp(packet_id);
        subscriber.nothing();
        subscriber.fail();
        let mut subscriber = b.resume("subscriber");
        subscriber.nothing_from(&mut publisher);
        subscriber.disconnect();
    });
}

/// [MQTT-4.4.0-1]: a client that has forgotten a PUBREC still answers the PUBREL and continues.
#[test]
fn deliveries_in_every_stage_are_resumed() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.durable("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        for n in 0..4 {
            publisher.publish(&topic, n.to_string(), QOS_2);
        }
        publisher.publish(&topic, "4", QOS_1);
        let sent: Vec<Message> = (0..5).map(|_| subscriber.message_unacknowledged()).collect();
        for message in &sent[..2] {
            subscriber.send_pubrec(message.packet_id);
            assert_eq!(subscriber.pubrel().packet_id, message.packet_id);
        }
        subscriber.fail();
        let mut subscriber = b.resume("subscriber");
        let mut released = Vec::new();
        let mut published = Vec::new();
        for _ in 0..5 {
            match subscriber.recv() {
                Received::PubRel(pubrel) => released.push(pubrel.packet_id),
                Received::Publish(message) => {
                    assert!(message.dup);
                    published.push(message);
                }
                other => panic!("{other:?} is neither PUBREL nor PUBLISH"),
            }
        }
        assert_eq!(released, [sent[0].packet_id, sent[1].packet_id]);
        let texts: Vec<&str> = published.iter().map(Message::text).collect();
        assert_eq!(texts, ["2", "3", "4"]);
        for packet_id in released {
            subscriber.send_pubcomp(packet_id);
        }
        for message in &published {
            subscriber.acknowledge(message);
        }
        subscriber.nothing_from(&mut publisher);
        subscriber.disconnect();
    });
}

/// 4.1 [MQTT-4.3.3-10] [MQTT3-4.3.3-2]: the received QoS 2 messages are part of the session.
#[test]
fn a_publisher_that_reconnects_does_not_publish_twice() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        let mut publisher = b.durable("publisher");
        let message = Message::new(&topic, "once", QOS_2).packet_id(7);
        publisher.send_message(&message);
        assert_eq!(publisher.pubrec().packet_id, 7);
        publisher.fail();
        let mut publisher = b.resume("publisher");
        publisher.send_message(&message.clone().dup());
        assert_eq!(publisher.pubrec().packet_id, 7);
        publisher.send_pubrel(7);
        assert_eq!(publisher.pubcomp().packet_id, 7);
        assert_eq!(subscriber.message().text(), "once");
        subscriber.nothing_from(&mut publisher);
        // Only PUBREL after the reconnect.
        publisher.send_message(&Message::new(&topic, "twice", QOS_2).packet_id(8));
        assert_eq!(publisher.pubrec().packet_id, 8);
        publisher.fail();
        let mut publisher = b.resume("publisher");
        publisher.send_pubrel(8);
        let pubcomp = publisher.pubcomp();
        assert_eq!((pubcomp.packet_id, pubcomp.reason), (8, ReasonCode::Success));
        assert_eq!(subscriber.message().text(), "twice");
        subscriber.nothing_from(&mut publisher);
        publisher.disconnect();
    });
}

/// [MQTT-3.1.2-4]: the session holds the received identifiers, so a new session has none.
#[test]
fn a_new_session_knows_no_packet_identifiers() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        let mut publisher = b.connect("publisher");
        publisher.send_message(&Message::new(&topic, "first", QOS_2).packet_id(7));
        assert_eq!(publisher.pubrec().packet_id, 7);
        publisher.fail();
        let mut publisher = b.connect("publisher");
        publisher.publish_message(Message::new(&topic, "second", QOS_2).packet_id(7));
        // The first message was never released, so it may have been delivered or not.
        let mut text = subscriber.message().text().to_owned();
        if text == "first" {
            text = subscriber.message().text().to_owned();
        }
        assert_eq!(text, "second");
        subscriber.nothing_from(&mut publisher);
    });
}

/// [MQTT-4.1.0-1]: a connection keeps its session, whatever the Session Expiry Interval.
#[test]
fn a_session_does_not_expire_while_connected() {
    v5(|b| {
        let topic = b.topic("t");
        let (mut client, _) = b.connect_with(b.client("a").expiry(1));
        client.subscribe(&topic, QOS_1);
        std::thread::sleep(Duration::from_millis(2500));
        client.publish(&topic, "x", QOS_1);
        assert_eq!(client.message().text(), "x");
        client.fail();
        let (client, connack) = b.connect_with(b.client("a").resuming());
        assert!(connack.session_present);
        client.disconnect();
    });
}

/// [MQTT-4.1.0-2] [MQTT-3.1.2-23]
#[test]
fn a_session_expires_after_its_interval() {
    v5(|b| {
        let topic = b.topic("t");
        let (mut client, _) = b.connect_with(b.client("a").expiry(1));
        client.subscribe(&topic, QOS_1);
        client.disconnect();
        std::thread::sleep(Duration::from_millis(3000));
        let (mut client, connack) = b.connect_with(b.client("a").resuming());
        assert!(!connack.session_present);
        client.publish(&topic, "x", QOS_1);
        client.nothing_of_its_own();
    });
}

/// 3.1.2.11.2: without the property the interval is 0. Clean Start alone does not decide.
#[test]
fn session_expiry_interval_and_clean_start_are_independent() {
    v5(|b| {
        // Clean Start 0 with interval 0: the session ends with the connection.
        b.connect_with(b.client("a").resuming()).0.disconnect();
        let (client, connack) = b.connect_with(b.client("a").resuming());
        assert!(!connack.session_present);
        client.disconnect();
        // Clean Start 1 with an interval: the session remains.
        b.connect_with(b.client("a").expiry(100)).0.disconnect();
        let (client, connack) = b.connect_with(b.client("a").resuming().expiry(100));
        assert!(connack.session_present);
        client.fail();
        // The interval is that of the last CONNECT.
        let (client, connack) = b.connect_with(b.client("a").resuming());
        assert!(connack.session_present);
        client.fail();
        let (_client, connack) = b.connect_with(b.client("a").resuming());
        assert!(!connack.session_present);
    });
}

/// 3.14.2.2.2
#[test]
fn disconnect_may_change_the_session_expiry_interval() {
    v5(|b| {
        let present = || {
            let (client, connack) = b.connect_with(b.client("a").resuming().expiry(1));
            client.disconnect_with(ReasonCode::Success, &[Property::SessionExpiryInterval(1000)]);
            connack.session_present
        };
        assert!(!present());
        std::thread::sleep(Duration::from_millis(2500));
        assert!(present());
        let (client, _) = b.connect_with(b.client("a").resuming().expiry(1000));
        client.disconnect_with(ReasonCode::Success, &[Property::SessionExpiryInterval(0)]);
        let (client, connack) = b.connect_with(b.client("a").resuming());
        assert!(!connack.session_present);
        client.disconnect();
    });
}

/// 3.14.2.2.2: DISCONNECT cannot keep a session that ends with its connection.
#[test]
fn disconnect_cannot_keep_a_session_that_was_to_end() {
    v5(|b| {
        let mut client = b.connect("a");
        let longer = PropertiesBuf::from_iter([Property::SessionExpiryInterval(1000)]);
        client.send_disconnect(ReasonCode::Success, &longer);
        client.closed_for(ReasonCode::ProtocolError);
        let (_client, connack) = b.connect_with(b.client("a").resuming());
        assert!(!connack.session_present);
    });
}

/// 0xFFFFFFFF never expires. A server may shorten it, and says so.
#[test]
fn a_session_may_be_asked_to_last_for_ever() {
    v5(|b| {
        b.connect_with(b.client("a").resuming().expiry(u32::MAX)).0.disconnect();
        let (client, connack) = b.connect_with(b.client("a").resuming().expiry(u32::MAX));
        assert!(connack.session_present);
        client.disconnect_with(ReasonCode::Success, &[Property::SessionExpiryInterval(0)]);
    });
}

/// A session belongs to a client, not to a protocol version.
#[test]
fn a_session_may_be_resumed_by_another_version() {
    from_3_1_1(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.durable("subscriber");
        subscriber.subscribe(&topic, QOS_1);
        publisher.publish(&topic, "before", QOS_1);
        subscriber.message_unacknowledged();
        subscriber.fail();
        publisher.publish(&topic, "between", QOS_1);
        let other = if b.version == V5 { V3_1_1 } else { V5 };
        let (mut subscriber, connack) = b.connect_with(Connect::new(other, &b.id("subscriber")).durable());
        assert!(connack.session_present);
        let message = subscriber.message();
        assert_eq!((message.text(), message.dup), ("before", true));
        assert_eq!(subscriber.message().text(), "between");
        publisher.publish(&topic, "after", QOS_1);
        assert_eq!(subscriber.message().text(), "after");
        subscriber.disconnect();
        b.connect("subscriber").disconnect();
    });
}

/// [MQTT-3.1.2-4]: Clean Start discards queued messages too.
#[test]
fn a_clean_start_discards_what_was_queued() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.durable("subscriber");
        subscriber.subscribe(&topic, QOS_1);
        subscriber.disconnect();
        publisher.publish(&topic, "queued", QOS_1);
        let mut subscriber = b.connect("subscriber");
        publisher.publish(&topic, "nobody subscribes", QOS_1);
        subscriber.nothing_from(&mut publisher);
        subscriber.disconnect();
        let mut subscriber = b.durable("subscriber");
        subscriber.nothing_from(&mut publisher);
        subscriber.disconnect();
        b.connect("subscriber").disconnect();
    });
}

/// A queue has a bound (`queue.messages_max`), and a setting decides which messages it keeps.
#[test]
fn a_full_queue_drops_the_oldest_or_the_newest() {
    use broker::settings::QueueFull;
    for (full, expected) in [(QueueFull::DropOldest, 10..20), (QueueFull::DropNewest, 0..10)] {
        let (full, expected) = (&full, &expected);
        v5_with(
            |settings| {
                settings.queue.messages_max = 10;
                settings.queue.full = *full;
            },
            |b| {
                let topic = b.topic("t");
                let mut publisher = b.connect("publisher");
                let mut subscriber = b.durable("subscriber");
                subscriber.subscribe(&topic, QOS_1);
                subscriber.disconnect();
                for n in 0..20 {
                    publisher.try_publish(Message::new(&topic, n.to_string(), QOS_1));
                }
                let mut subscriber = b.resume("subscriber");
                for n in expected.clone() {
                    assert_eq!(subscriber.message().text(), n.to_string());
                }
                subscriber.nothing_from(&mut publisher);
            },
        );
    }
}
