//! Message Expiry Interval (3.3.2.3.3).

use std::time::Duration;

use crate::harness::*;

fn expiring(topic: &str, payload: &str, qos: QoS, seconds: u32) -> Message {
    Message::new(topic, payload, qos).with(Property::MessageExpiryInterval(seconds))
}

fn left(message: &Message) -> Option<u32> {
    message.properties.as_properties().message_expiry_interval()
}

/// [MQTT-3.3.2-6]: the interval of a message that has not waited is not reduced. The test allows for a slow machine.
#[test]
fn the_interval_is_passed_on() {
    v5(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        for seconds in [1000, u32::MAX] {
            for qos in EVERY_QOS {
                publisher.publish_message(expiring(&topic, "x", qos, seconds));
                let left = left(&subscriber.message()).expect("an interval");
                assert!(left <= seconds && left >= seconds - 30, "{left}");
            }
        }
        publisher.publish(&topic, "x", QOS_1);
        assert_eq!(left(&subscriber.message()), None);
    });
}

/// [MQTT-3.3.2-5] [MQTT-3.3.2-6] [MQTT-4.3.3-13]
#[test]
fn messages_expire_while_they_wait() {
    v5(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.durable("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        subscriber.disconnect();
        publisher.publish_message(expiring(&topic, "gone 1", QOS_1, 1));
        publisher.publish_message(expiring(&topic, "gone 2", QOS_2, 1));
        publisher.publish_message(expiring(&topic, "there 1", QOS_1, 1000));
        publisher.publish_message(expiring(&topic, "there 2", QOS_2, 1000));
        publisher.publish(&topic, "for ever", QOS_1);
        std::thread::sleep(Duration::from_millis(3100));
        let mut subscriber = b.resume("subscriber");
        for text in ["there 1", "there 2"] {
            let message = subscriber.message();
            assert_eq!(message.text(), text);
            let left = left(&message).expect("an interval");
            assert!((900..=998).contains(&left), "{left}");
        }
        let message = subscriber.message();
        assert_eq!((message.text(), left(&message)), ("for ever", None));
        subscriber.nothing_from(&mut publisher);
        subscriber.disconnect();
    });
}

/// An expired retained message is not sent. One that has not expired carries the remaining interval.
#[test]
fn retained_messages_expire() {
    v5(|b| {
        let mut publisher = b.connect("publisher");
        publisher.publish_message(expiring(&b.topic("short"), "short", QOS_1, 1).retained());
        publisher.publish_message(expiring(&b.topic("long"), "long", QOS_1, 1000).retained());
        let mut early = b.connect("early");
        early.subscribe(&b.topic("long"), QOS_1);
        assert!(left(&early.message()).is_some_and(|left| left > 900));
        std::thread::sleep(Duration::from_millis(3100));
        let mut late = b.connect("late");
        late.subscribe(&b.topic("+"), QOS_1);
        let message = late.message();
        assert_eq!(message.text(), "long");
        let left = left(&message).expect("an interval");
        assert!((900..=998).contains(&left), "{left}");
        late.nothing_from(&mut publisher);
    });
}

/// A message that waits behind a full window has not been sent yet.
#[test]
fn messages_expire_behind_a_full_window() {
    v5(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let (mut subscriber, _) = b.connect_with(b.client("subscriber").with(Property::ReceiveMaximum(1)));
        subscriber.subscribe(&topic, QOS_1);
        publisher.publish_message(expiring(&topic, "sent", QOS_1, 1));
        publisher.publish_message(expiring(&topic, "gone", QOS_1, 1));
        publisher.publish_message(expiring(&topic, "there", QOS_1, 1000));
        let sent = subscriber.message_unacknowledged();
        assert_eq!(sent.text(), "sent");
        std::thread::sleep(Duration::from_millis(3100));
        subscriber.acknowledge(&sent);
        assert_eq!(subscriber.message().text(), "there");
        subscriber.nothing_from(&mut publisher);
    });
}

/// [MQTT-4.3.3-7], and the same for QoS 1: a message that was sent once is delivered, however late.
#[test]
fn a_message_in_flight_does_not_expire() {
    v5(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.durable("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        publisher.publish_message(expiring(&topic, "two", QOS_2, 1));
        let sent = subscriber.message_unacknowledged();
        std::thread::sleep(Duration::from_millis(2500));
        subscriber.fail();
        let mut subscriber = b.resume("subscriber");
        let again = subscriber.message();
        assert_eq!((again.text(), again.packet_id, again.dup), ("two", sent.packet_id, true));
        subscriber.nothing_from(&mut publisher);
        subscriber.disconnect();
    });
}

/// The exchange between publisher and server is completed [MQTT-4.3.3-13].
#[test]
fn an_expired_message_is_acknowledged_all_the_same() {
    v5(|b| {
        let mut publisher = b.connect("publisher");
        publisher.send_message(&expiring(&b.topic("t"), "x", QOS_2, 1).packet_id(5));
        assert_eq!(publisher.pubrec().packet_id, 5);
        std::thread::sleep(Duration::from_millis(1500));
        publisher.send_pubrel(5);
        let pubcomp = publisher.pubcomp();
        assert_eq!((pubcomp.packet_id, pubcomp.reason), (5, ReasonCode::Success));
    });
}

/// Clients before 5.0 never see the interval, but their messages expire too.
#[test]
fn messages_for_older_clients_expire_too() {
    v5(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let connect = || Connect::new(V3_1_1, &b.id("older")).durable();
        let (mut older, _) = b.connect_with(connect());
        older.subscribe(&topic, QOS_1);
        older.disconnect();
        publisher.publish_message(expiring(&topic, "gone", QOS_1, 1));
        publisher.publish_message(expiring(&topic, "there", QOS_1, 1000));
        std::thread::sleep(Duration::from_millis(2500));
        let (mut older, connack) = b.connect_with(connect());
        assert!(connack.session_present);
        assert_eq!(older.message().text(), "there");
        older.nothing_from(&mut publisher);
        older.disconnect();
        b.connect_as(V3_1_1, "older").disconnect();
    });
}
