//! SUBSCRIBE and SUBACK (3.8, 3.9).

use crate::harness::wire::{packet, string};
use crate::harness::*;

/// [MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-2.2.1-6] [MQTT3-3.8.4-1] [MQTT3-3.8.4-2]
#[test]
fn suback_has_the_packet_identifier_of_its_subscribe() {
    every_version(|b| {
        let mut client = b.connect("a");
        for packet_id in [1, 256, 65_535] {
            client.send_subscribe(packet_id, &[(&b.topic("t"), at(QOS_0))], &[]);
            assert_eq!(client.suback().packet_id, packet_id);
        }
    });
}

/// The bytes on the wire (3.9).
#[test]
fn suback_looks_as_specified() {
    every_version(|b| {
        let mut client = b.connect("a");
        let (one, two) = (b.topic("one"), b.topic("two"));
        client.send_subscribe(0x1234, &[(&one, at(QOS_1)), (&two, at(QOS_2))], &[]);
        let no_properties: &[u8] = if b.version == V5 { &[0] } else { &[] };
        let expected = packet(0x90, &[&[0x12, 0x34], no_properties, &[1, 2]]);
        assert_eq!(client.read_bytes(), Some(expected));
    });
}

/// [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.8.4-7] [MQTT-3.9.3-1] [MQTT3-3.8.4-4] [MQTT3-3.8.4-5] [MQTT3-3.9.3-1]
#[test]
fn suback_grants_each_filter_in_order() {
    every_version(|b| {
        let mut client = b.connect("a");
        let filters: Vec<String> = (0..9).map(|n| b.topic(&format!("f/{n}"))).collect();
        let wanted: Vec<(&str, SubscriptionOptions)> =
            filters.iter().enumerate().map(|(n, filter)| (filter.as_str(), at(EVERY_QOS[n % 3]))).collect();
        assert_eq!(client.try_subscribe(&wanted, &[]), [0, 1, 2, 0, 1, 2, 0, 1, 2]);
        for (n, filter) in filters.iter().enumerate() {
            client.publish(filter, "x", QOS_2);
            let message = client.message();
            assert_eq!((&message.topic, message.qos), (filter, EVERY_QOS[n % 3]));
        }
    });
}

#[test]
fn a_subscribe_may_have_hundreds_of_filters() {
    every_version(|b| {
        let mut client = b.connect("a");
        let filters: Vec<String> = (0..700).map(|n| b.topic(&format!("many/{n}/+"))).collect();
        let wanted: Vec<(&str, SubscriptionOptions)> =
            filters.iter().map(|filter| (filter.as_str(), at(QOS_1))).collect();
        assert_eq!(client.try_subscribe(&wanted, &[]), [1; 700]);
        for n in [0, 350, 699] {
            let topic = b.topic(&format!("many/{n}/x"));
            client.publish(&topic, "x", QOS_1);
            assert_eq!(client.message().topic, topic);
        }
        client.publish(&b.topic("many/700/x"), "x", QOS_1);
        client.nothing_of_its_own();
    });
}

/// [MQTT-3.8.4-3] [MQTT3-3.8.4-3]
#[test]
fn subscribing_again_replaces_the_subscription() {
    every_version(|b| {
        for filter in [b.topic("t"), b.topic("+")] {
            let mut client = b.connect("a");
            for qos in [QOS_2, QOS_0, QOS_1] {
                client.subscribe(&filter, qos);
                client.publish(&b.topic("t"), "x", QOS_2);
                assert_eq!(client.message().qos, qos);
            }
            client.nothing_of_its_own();
        }
    });
}

/// [MQTT-3.8.4-5] [MQTT3-3.8.4-4]: as if the server received one SUBSCRIBE after the other.
#[test]
fn the_last_of_equal_filters_in_one_subscribe_counts() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut client = b.connect("a");
        assert_eq!(client.try_subscribe(&[(&topic, at(QOS_2)), (&topic, at(QOS_1))], &[]), [2, 1]);
        client.publish(&topic, "x", QOS_2);
        assert_eq!(client.message().qos, QOS_1);
        client.nothing_of_its_own();
    });
}

/// A subscription is effective when its SUBACK arrives, whichever worker the publisher is connected to.
#[test]
fn messages_published_after_suback_arrive() {
    every_version(|b| {
        let mut publishers: Vec<Client> = (0..3).map(|n| b.connect(&format!("p{n}"))).collect();
        let mut subscribers: Vec<Client> = (0..3).map(|n| b.connect(&format!("s{n}"))).collect();
        for round in 0..20 {
            for (n, subscriber) in subscribers.iter_mut().enumerate() {
                let topic = b.topic(&format!("{round}/{n}"));
                let filter = if round % 2 == 0 { topic.clone() } else { b.topic(&format!("{round}/{n}/#")) };
                subscriber.subscribe(&filter, QOS_1);
                for publisher in &mut publishers {
                    publisher.publish(&topic, "x", QOS_0);
                    assert_eq!(subscriber.message().topic, topic);
                }
            }
        }
    });
}

/// A well-formed filter that the server does not accept (3.9.3) fails alone: the connection and the other filters
/// remain.
#[test]
fn a_filter_that_is_not_accepted_fails_alone() {
    from_3_1_1(|b| {
        let expected = if b.version == V5 { ReasonCode::TopicFilterInvalid.as_u8() } else { 0x80 };
        let (good, also_good, too_deep) = (b.topic("good"), b.topic("+/good"), "d/".repeat(200));
        let mut client = b.connect("a");
        let filters = [
            (good.as_str(), at(QOS_1)),
            (&too_deep, at(QOS_1)),
            (&too_deep, at(QOS_1)),
            (also_good.as_str(), at(QOS_2)),
        ];
        assert_eq!(client.try_subscribe(&filters, &[]), [1, expected, expected, 2]);
        client.publish(&good, "x", QOS_1);
        assert_eq!(client.message().topic, good);
    });
}

/// [MQTT-4.7.3-1] [MQTT3-4.7.3-1]: a filter has at least one character.
#[test]
fn an_empty_filter_is_refused() {
    from_3_1_1(|b| {
        let mut client = b.connect("a");
        let no_properties: &[u8] = if b.version == V5 { &[0] } else { &[] };
        client.send_bytes(&packet(0x82, &[&[0, 1], no_properties, &string(""), &[0]]));
        match client.recv() {
            Received::SubAck(suback) => assert!(suback.reasons[0] >= 0x80),
            Received::Disconnect(disconnect) => {
                let reasons =
                    [ReasonCode::MalformedPacket, ReasonCode::ProtocolError, ReasonCode::TopicFilterInvalid];
                assert!(reasons.contains(&disconnect.reason));
                client.closed();
            }
            other => assert_eq!(other, Received::Closed),
        }
    });
}

/// Subscriptions belong to a session, not to an identifier or a topic.
#[test]
fn each_client_has_its_own_subscriptions() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut one = b.connect("one");
        let mut two = b.connect("two");
        one.subscribe(&topic, QOS_2);
        two.subscribe(&topic, QOS_0);
        one.publish(&topic, "x", QOS_2);
        assert_eq!(one.message().qos, QOS_2);
        assert_eq!(two.message().qos, QOS_0);
        one.unsubscribe(&[&topic]);
        two.publish(&topic, "y", QOS_2);
        assert_eq!(two.message().text(), "y");
        one.nothing_from(&mut two);
    });
}

/// [MQTT-3.8.4-4]: a subscription is replaced without a gap, however often.
#[test]
fn no_message_is_lost_while_a_subscription_is_replaced() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_1);
        let mut received = Vec::new();
        for n in 0..100u16 {
            let id = publisher.packet_id();
            publisher.send_message(&Message::new(&topic, n.to_string(), QOS_1).packet_id(id));
            if n % 5 == 0 {
                subscriber.subscribe(&topic, QOS_1);
            }
        }
        while received.len() < 100 {
            received.push(subscriber.message().text().to_owned());
        }
        assert_eq!(received, (0..100).map(|n| n.to_string()).collect::<Vec<_>>());
        subscriber.nothing_from(&mut publisher);
    });
}

/// 3.9.2.1.2: a refused subscription has a reason where it fits [MQTT-3.9.2-1].
#[test]
fn a_refusal_says_why_where_the_packet_has_room_for_it() {
    v5(|b| {
        let topic = b.topic("t");
        let too_deep = "d/".repeat(200);
        let filters = [(topic.as_str(), at(QOS_0)), (too_deep.as_str(), at(QOS_0))];
        let why = |client: &mut Client| {
            client.send_subscribe(1, &filters, &[]);
            let suback = client.suback();
            assert_eq!(suback.reasons, [0, ReasonCode::TopicFilterInvalid.as_u8()]);
            suback.properties.as_properties().reason_string().map(str::to_owned)
        };
        let reason = why(&mut b.connect("a")).expect("a reason");
        assert!(reason.starts_with("Topic Filter 2: Topic Filter invalid: "), "{reason}");
        let (mut small, _) = b.connect_with(b.client("b").with(Property::MaximumPacketSize(64)));
        assert_eq!(why(&mut small), None);
        let mut client = b.connect("c");
        client.send_subscribe(2, &filters[..1], &[]);
        assert_eq!(client.suback().properties.as_properties().reason_string(), None);
    });
}
