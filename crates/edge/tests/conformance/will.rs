//! Wills (3.1.2.5, 3.1.3.2).

use std::time::{Duration, Instant};

use crate::harness::*;

/// Returns a subscriber to all topics of a run, and a topic for a Will.
fn witness(b: &Broker) -> (Client, String) {
    let mut witness = b.connect("witness");
    witness.subscribe(&b.topic("#"), QOS_2);
    (witness, b.topic("will"))
}

fn will(topic: &str, qos: QoS) -> Message {
    Message::new(topic, "gone", qos)
}

/// [MQTT-3.1.2-7] [MQTT-3.1.2-8] [MQTT-3.1.2-14] [MQTT3-3.1.2-8] [MQTT3-3.1.2-16]
#[test]
fn a_will_is_published_when_the_connection_fails() {
    every_version(|b| {
        for qos in EVERY_QOS {
            let (mut witness, topic) = witness(b);
            let (client, _) = b.connect_with(b.client("mortal").will(will(&topic, qos)));
            client.fail();
            let message = witness.message();
            assert_eq!(
                (message.topic.as_str(), message.text(), message.qos, message.retain),
                (&*topic, "gone", qos, false)
            );
            // [MQTT-3.1.2-10] [MQTT3-3.1.2-10]: the Will is published once.
            let mut mortal = b.connect("mortal");
            mortal.ping();
            witness.nothing_from(&mut mortal);
        }
    });
}

/// [MQTT-3.1.2-10] [MQTT-3.14.4-3] [MQTT3-3.1.2-10] [MQTT3-3.14.4-3]
#[test]
fn a_will_is_discarded_after_disconnect() {
    every_version(|b| {
        let (mut witness, topic) = witness(b);
        let (client, _) = b.connect_with(b.client("mortal").will(will(&topic, QOS_1)));
        client.disconnect();
        let mut again = b.connect("mortal");
        witness.nothing_from(&mut again);
        // The session's next connection has no Will, and does not inherit the old one.
        let (client, _) = b.connect_with(b.client("durable").durable().will(will(&topic, QOS_1)));
        client.disconnect();
        b.resume("durable").fail();
        let mut durable = b.resume("durable");
        witness.nothing_from(&mut durable);
        durable.disconnect();
    });
}

/// 3.14.2.1: 0x04 is Disconnect with Will Message. Any error code publishes the Will too [MQTT-3.1.2-8].
#[test]
fn a_will_is_published_after_a_disconnect_that_requests_it() {
    v5(|b| {
        let (mut witness, topic) = witness(b);
        for reason in
            [ReasonCode::DisconnectWithWill, ReasonCode::UnspecifiedError, ReasonCode::QuotaExceeded]
        {
            let (client, _) = b.connect_with(b.client("mortal").will(will(&topic, QOS_1)));
            client.disconnect_with(reason, &[]);
            assert_eq!(witness.message().text(), "gone", "{reason}");
        }
    });
}

/// 3.1.2.5: "A situation in which the Server ... detected ... a protocol error."
#[test]
fn a_will_is_published_when_the_server_closes_for_an_error() {
    every_version(|b| {
        let (mut witness, topic) = witness(b);
        let (mut client, _) = b.connect_with(b.client("mortal").will(will(&topic, QOS_1)));
        client.send_connect(&b.client("mortal"));
        client.closed_for(ReasonCode::ProtocolError);
        assert_eq!(witness.message().text(), "gone");
        let (mut client, _) = b.connect_with(b.client("mortal").will(will(&topic, QOS_1)));
        client.send_bytes(&[0, 0]);
        client.closed_for(ReasonCode::MalformedPacket);
        assert_eq!(witness.message().text(), "gone");
    });
}

/// [MQTT-3.1.2-15] [MQTT3-3.1.2-17]
#[test]
fn a_will_may_be_retained() {
    every_version(|b| {
        let (mut witness, topic) = witness(b);
        let (client, _) = b.connect_with(b.client("mortal").will(will(&topic, QOS_1).retained()));
        client.fail();
        let message = witness.message();
        assert_eq!((message.text(), message.retain), ("gone", false));
        let mut late = b.connect("late");
        late.subscribe(&topic, QOS_1);
        let message = late.message();
        assert_eq!((message.text(), message.retain), ("gone", true));
        // An empty Will deletes the retained message [MQTT-3.3.1-6].
        let (client, _) = b.connect_with(b.client("mortal").will(Message::new(&topic, "", QOS_1).retained()));
        client.fail();
        assert_eq!(witness.message().text(), "");
        let mut later = b.connect("later");
        later.subscribe(&topic, QOS_1);
        later.nothing_from(&mut witness);
    });
}

/// [MQTT-3.1.2-14] [MQTT3-3.1.2-16]
#[test]
fn a_will_without_retain_is_not_kept() {
    every_version(|b| {
        let (mut witness, topic) = witness(b);
        let (client, _) = b.connect_with(b.client("mortal").will(will(&topic, QOS_1)));
        client.fail();
        witness.message();
        let mut late = b.connect("late");
        late.subscribe(&topic, QOS_1);
        late.nothing_from(&mut witness);
    });
}

#[test]
fn a_will_may_be_empty_or_binary() {
    every_version(|b| {
        let (mut witness, topic) = witness(b);
        for payload in [&b""[..], b"\0\xFF\xC3\x28"] {
            let (client, _) = b.connect_with(b.client("mortal").will(Message::new(&topic, payload, QOS_1)));
            client.fail();
            assert_eq!(witness.message().payload, payload);
        }
    });
}

/// 3.1.3.2 [MQTT-3.1.3-10] [MQTT-3.3.2-17]; Will Delay Interval is for the server only.
#[test]
fn a_will_keeps_its_properties() {
    v5(|b| {
        let (mut witness, topic) = witness(b);
        let sent = will(&topic, QOS_1)
            .with(Property::PayloadFormatIndicator(1))
            .with(Property::ContentType("text/plain"))
            .with(Property::ResponseTopic("r/t"))
            .with(Property::CorrelationData(b"\0\x01"))
            .with(Property::UserProperty("z", "1"))
            .with(Property::UserProperty("a", "2"))
            .with(Property::UserProperty("z", "3"));
        let with_delay = sent.clone().with(Property::WillDelayInterval(0));
        let (client, _) = b.connect_with(b.client("mortal").will(with_delay));
        client.fail();
        assert_eq!(witness.message().properties, sent.properties);
    });
}

/// 3.1.3.2.4: the Message Expiry Interval counts from the publication of the Will.
#[test]
fn a_will_may_expire() {
    v5(|b| {
        let (mut witness, topic) = witness(b);
        let expiring = will(&topic, QOS_1).with(Property::MessageExpiryInterval(100));
        let (client, _) = b.connect_with(b.client("mortal").will(expiring));
        client.fail();
        let left = witness.message().properties.as_properties().message_expiry_interval();
        assert!(matches!(left, Some(80..=100)), "{left:?}");
    });
}

/// [MQTT-4.5.0-1]: a Will is an ordinary Application Message.
#[test]
fn a_will_waits_for_a_disconnected_session() {
    every_version(|b| {
        let topic = b.topic("will");
        let (mut witness, will_topic) = witness(b);
        assert_eq!(topic, will_topic);
        let mut away = b.durable("away");
        away.subscribe(&topic, QOS_2);
        away.disconnect();
        let (client, _) = b.connect_with(b.client("mortal").will(will(&topic, QOS_2)));
        client.fail();
        assert_eq!(witness.message().text(), "gone");
        let mut away = b.resume("away");
        assert_eq!(away.message().text(), "gone");
        away.disconnect();
    });
}

/// [MQTT-3.1.2-22] [MQTT3-3.1.2-24]: "as if the network had failed".
#[test]
fn a_will_is_published_when_keep_alive_expires() {
    every_version(|b| {
        let (mut witness, topic) = witness(b);
        let before = Instant::now();
        let (mut client, _) = b.connect_with(b.client("mortal").keep_alive(1).will(will(&topic, QOS_1)));
        assert_eq!(witness.message().text(), "gone");
        assert_waited(before, Duration::from_millis(1500));
        client.closed_for(ReasonCode::KeepAliveTimeout);
    });
}

/// [MQTT-3.1.2-8] 3.1.3.2.2
#[test]
fn a_will_waits_for_its_delay() {
    v5(|b| {
        let (mut witness, topic) = witness(b);
        let delayed = will(&topic, QOS_1).with(Property::WillDelayInterval(1));
        let before = Instant::now();
        let (client, _) = b.connect_with(b.client("mortal").expiry(1000).will(delayed));
        client.fail();
        assert_eq!(witness.message().text(), "gone");
        assert_waited(before, Duration::from_secs(1));
        // The session still exists.
        let (client, connack) = b.connect_with(b.client("mortal").resuming());
        assert!(connack.session_present);
        client.disconnect();
        let mut after = b.connect("after");
        witness.nothing_from(&mut after);
    });
}

/// [MQTT-3.1.2-8]: the session ends before the delay.
#[test]
fn a_will_is_published_when_the_session_ends_before_its_delay() {
    v5(|b| {
        let (mut witness, topic) = witness(b);
        let delayed = || will(&topic, QOS_1).with(Property::WillDelayInterval(3600));
        // Session Expiry Interval 0: at once.
        let (client, _) = b.connect_with(b.client("mortal").will(delayed()));
        client.fail();
        assert_eq!(witness.message().text(), "gone");
        // Later, but long before the delay.
        let before = Instant::now();
        let (client, _) = b.connect_with(b.client("mortal").expiry(1).will(delayed()));
        client.fail();
        assert_eq!(witness.message().text(), "gone");
        assert_waited(before, Duration::from_secs(1));
        // [MQTT-4.1.0-2]
        let (client, connack) = b.connect_with(b.client("mortal").resuming());
        assert!(!connack.session_present);
        client.disconnect();
        // A new session with the same Client Identifier ends the old one.
        let (client, _) = b.connect_with(b.client("mortal").expiry(1000).will(delayed()));
        client.fail();
        let _new = b.connect("mortal");
        assert_eq!(witness.message().text(), "gone");
    });
}

/// [MQTT-3.1.3-9]
#[test]
fn a_delayed_will_is_not_published_when_the_client_reconnects() {
    v5(|b| {
        let (mut witness, topic) = witness(b);
        let delayed = will(&topic, QOS_1).with(Property::WillDelayInterval(2));
        let (client, _) = b.connect_with(b.client("mortal").expiry(1000).will(delayed));
        client.fail();
        let (mut client, connack) = b.connect_with(b.client("mortal").resuming().expiry(1000));
        assert!(connack.session_present);
        // That the Will is not published can only be seen by waiting.
        std::thread::sleep(Duration::from_millis(3500));
        witness.nothing_from(&mut client);
        client.disconnect_with(ReasonCode::Success, &[Property::SessionExpiryInterval(0)]);
    });
}

/// 3.1.4 step 3, non-normative comment; [MQTT-3.1.2-8] [MQTT3-3.1.2-8]
#[test]
fn a_will_without_delay_is_published_on_takeover() {
    every_version(|b| {
        let (mut witness, topic) = witness(b);
        for durable in [false, true] {
            let connect = if durable { b.client("mortal").durable() } else { b.client("mortal") };
            let (mut old, _) = b.connect_with(connect.clone().will(will(&topic, QOS_1)));
            let (new, _) = b.connect_with(connect);
            old.closed_for(ReasonCode::SessionTakenOver);
            assert_eq!(witness.message().text(), "gone");
            new.disconnect();
        }
    });
}

/// [MQTT-3.14.4-3] [MQTT3-3.1.2-10]: the next connection with the same Client Identifier may be served before the
/// DISCONNECT that was sent before its CONNECT.
#[test]
fn a_disconnect_that_was_sent_before_a_takeover_counts() {
    every_version(|b| {
        let (mut witness, topic) = witness(b);
        let connect = b.client("mortal").will(will(&topic, QOS_1));
        let (mut holder, _) = b.connect_with(connect.clone());
        for _ in 0..50 {
            let mut next = b.open();
            holder.send_disconnect(ReasonCode::Success, &PropertiesBuf::default());
            next.connect(&connect);
            holder = next;
        }
        witness.nothing_from(&mut holder);
        holder.disconnect();
    });
}

/// 3.1.4 step 3, non-normative comment; [MQTT-3.1.3-9]
#[test]
fn a_delayed_will_survives_a_takeover_only_with_its_session() {
    v5(|b| {
        let (mut witness, topic) = witness(b);
        let delayed = || will(&topic, QOS_1).with(Property::WillDelayInterval(3600));
        let connect = || b.client("mortal").resuming().expiry(1000);
        let (mut old, _) = b.connect_with(connect().will(delayed()));
        let (mut new, connack) = b.connect_with(connect().will(delayed()));
        assert!(connack.session_present);
        old.closed_for(ReasonCode::SessionTakenOver);
        witness.nothing_from(&mut new);
        // Clean Start ends the session, and that publishes.
        let mut newest = b.connect("mortal");
        new.closed_for(ReasonCode::SessionTakenOver);
        assert_eq!(witness.message().text(), "gone");
        witness.nothing_from(&mut newest);
    });
}

/// [MQTT-3.1.2-7]: the Will belongs to the last connection.
#[test]
fn a_new_connection_has_its_own_will() {
    every_version(|b| {
        let (mut witness, topic) = witness(b);
        let (client, _) =
            b.connect_with(b.client("mortal").durable().will(Message::new(&topic, "first", QOS_1)));
        client.disconnect();
        let (client, _) =
            b.connect_with(b.client("mortal").durable().will(Message::new(&topic, "second", QOS_1)));
        client.fail();
        assert_eq!(witness.message().text(), "second");
        b.resume("mortal").disconnect();
    });
}

/// [MQTT-3.3.2-2] [MQTT-4.7.3-1]: a Will Topic is a Topic Name.
#[test]
fn a_will_topic_with_a_wildcard_is_refused() {
    every_version(|b| {
        for topic in ["a/#", "+/a", "#"] {
            // Meridian's encoder does not write such a topic.
            let mut bytes = b.client("mortal").will(Message::new("?/?", "x", QOS_0)).encode();
            let at = bytes.windows(3).position(|three| three == b"?/?").expect("the topic");
            bytes.splice(at..at + 3, format!("{topic:a<3}").into_bytes());
            let mut client = b.open();
            client.send_bytes(&bytes);
            match client.recv() {
                Received::ConnAck(connack) => {
                    assert!(connack.reason.is_error());
                    client.closed();
                }
                other => assert_eq!(other, Received::Closed),
            }
        }
    });
}
