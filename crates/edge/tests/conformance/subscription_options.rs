//! No Local, Retain As Published, Retain Handling, Subscription Identifiers, and overlapping subscriptions of one
//! client (3.8.3.1, 3.8.2.1.2, 3.3.4).

use crate::harness::wire::{packet, properties, string};
use crate::harness::*;

const NO_LOCAL: SubscriptionOptions = SubscriptionOptions {
    qos: QOS_2,
    no_local: true,
    retain_as_published: false,
    retain_handling: RetainHandling::Send,
};

fn handling(retain_handling: RetainHandling) -> SubscriptionOptions {
    SubscriptionOptions { retain_handling, ..at(QOS_2) }
}

/// [MQTT-3.8.3-3]
#[test]
fn with_no_local_a_client_does_not_get_its_own_messages() {
    v5(|b| {
        let topic = b.topic("t");
        let mut one = b.connect("one");
        let mut two = b.connect("two");
        one.subscribe_with(&topic, NO_LOCAL, &[]);
        two.subscribe_with(&topic, NO_LOCAL, &[]);
        for qos in EVERY_QOS {
            one.publish(&topic, "from one", qos);
            assert_eq!(two.message().text(), "from one");
            two.publish(&topic, "from two", qos);
            assert_eq!(one.message().text(), "from two");
        }
        one.nothing_of_its_own();
        two.nothing_of_its_own();
    });
}

/// [MQTT-3.8.3-3]: the Client Identifier decides, so No Local applies to a Will and to a resumed session too.
#[test]
fn no_local_outlives_the_connection() {
    v5(|b| {
        let topic = b.topic("t");
        let mut client = b.durable("a");
        client.subscribe_with(&topic, NO_LOCAL, &[]);
        client.disconnect();
        let mut client = b.resume("a");
        client.publish(&topic, "mine", QOS_1);
        client.nothing_of_its_own();
        client.disconnect();
        let (client, _) =
            b.connect_with(b.client("a").durable().will(Message::new(&topic, "my will", QOS_1)));
        client.fail();
        let mut client = b.resume("a");
        let mut other = b.connect("other");
        other.publish(&topic, "yours", QOS_1);
        assert_eq!(client.message().text(), "yours");
        client.disconnect();
    });
}

/// No Local applies to its subscription, not to the client.
#[test]
fn another_subscription_without_no_local_still_gets_messages() {
    v5(|b| {
        let topic = b.topic("t");
        let mut client = b.connect("a");
        client.subscribe_with(&topic, NO_LOCAL, &[Property::SubscriptionIdentifier(1)]);
        client.subscribe_with(&b.topic("+"), at(QOS_1), &[Property::SubscriptionIdentifier(2)]);
        client.publish(&topic, "x", QOS_2);
        let message = client.message();
        assert_eq!((message.subscription_ids(), message.qos), (vec![2], QOS_1));
        client.nothing_of_its_own();
        // Replacing the subscription ends No Local [MQTT-3.8.4-3].
        client.unsubscribe(&[&b.topic("+")]);
        client.subscribe(&topic, QOS_1);
        client.publish(&topic, "y", QOS_1);
        assert_eq!(client.message().text(), "y");
    });
}

/// [MQTT-3.8.3-3]: retained messages of the same client are not forwarded either.
#[test]
fn no_local_applies_to_retained_messages() {
    v5(|b| {
        let topic = b.topic("t");
        let mut client = b.connect("a");
        let mut other = b.connect("other");
        other.publish_message(Message::new(&topic, "of another", QOS_1).retained());
        client.subscribe_with(&topic, NO_LOCAL, &[]);
        let message = client.message();
        assert_eq!((message.text(), message.retain), ("of another", true));
        client.nothing_from(&mut other);
    });
}

/// [MQTT-3.3.1-12] [MQTT-3.3.1-13]
#[test]
fn retain_as_published_keeps_the_flag() {
    v5(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut keeps = b.connect("keeps");
        let mut clears = b.connect("clears");
        keeps.subscribe_with(&topic, SubscriptionOptions { retain_as_published: true, ..at(QOS_2) }, &[]);
        clears.subscribe(&topic, QOS_2);
        for qos in EVERY_QOS {
            publisher.publish(&topic, "x", qos);
            assert!(!keeps.message().retain);
            assert!(!clears.message().retain);
            publisher.publish_message(Message::new(&topic, "x", qos).retained());
            assert!(keeps.message().retain);
            assert!(!clears.message().retain);
        }
        // Messages that are sent because of the subscription carry RETAIN in any case (3.3.1.3).
        keeps.subscribe_with(&topic, SubscriptionOptions { retain_as_published: true, ..at(QOS_2) }, &[]);
        clears.subscribe(&topic, QOS_2);
        assert!(keeps.message().retain);
        assert!(clears.message().retain);
    });
}

/// A disconnected session keeps the option.
#[test]
fn retain_as_published_applies_to_queued_messages() {
    v5(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut client = b.durable("a");
        client.subscribe_with(&topic, SubscriptionOptions { retain_as_published: true, ..at(QOS_2) }, &[]);
        client.disconnect();
        publisher.publish_message(Message::new(&topic, "kept", QOS_1).retained());
        publisher.publish(&topic, "passing", QOS_1);
        let mut client = b.resume("a");
        assert!(client.message().retain);
        assert!(!client.message().retain);
        client.disconnect();
    });
}

/// [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11] [MQTT-3.8.4-4]
#[test]
fn retain_handling_decides_about_retained_messages() {
    v5(|b| {
        let filter = b.topic("+");
        let mut publisher = b.connect("publisher");
        for (n, qos) in EVERY_QOS.into_iter().enumerate() {
            publisher.publish_message(Message::new(&b.topic(&n.to_string()), "kept", qos).retained());
        }
        let mut three = |client: &mut Client, options| {
            client.subscribe_with(&filter, options, &[]);
            let mut qos: Vec<QoS> =
                (0..3).map(|_| client.message()).inspect(|m| assert!(m.retain)).map(|m| m.qos).collect();
            qos.sort();
            assert_eq!(qos, EVERY_QOS);
            client.nothing_from(&mut publisher);
        };
        // 0: each time.
        let mut client = b.connect("a");
        three(&mut client, handling(RetainHandling::Send));
        three(&mut client, handling(RetainHandling::Send));
        // 1: when it is new.
        let mut client = b.connect("b");
        three(&mut client, handling(RetainHandling::SendIfNew));
        client.subscribe_with(&filter, handling(RetainHandling::SendIfNew), &[]);
        client.nothing();
        client.unsubscribe(&[&filter]);
        three(&mut client, handling(RetainHandling::SendIfNew));
        // 2: never.
        let mut client = b.connect("c");
        client.subscribe_with(&filter, handling(RetainHandling::DoNotSend), &[]);
        client.nothing();
        client.subscribe_with(&filter, handling(RetainHandling::SendIfNew), &[]);
        client.nothing();
        three(&mut client, handling(RetainHandling::Send));
    });
}

/// [MQTT-3.3.1-10]: a subscription of a resumed session exists already.
#[test]
fn a_subscription_of_a_resumed_session_is_not_new() {
    v5(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut client = b.durable("a");
        client.subscribe(&topic, QOS_1);
        client.disconnect();
        publisher.publish_message(Message::new(&topic, "kept", QOS_0).retained());
        publisher.ping();
        let mut client = b.resume("a");
        // A QoS 0 message is sent to the resumed session or dropped.
        if let Received::Publish(message) = {
            client.send_ping();
            client.recv()
        } {
            assert!(!message.retain);
            client.pingresp();
        }
        client.subscribe_with(&topic, handling(RetainHandling::SendIfNew), &[]);
        client.nothing();
        client.disconnect();
        b.connect("a").disconnect();
    });
}

/// [MQTT-3.3.4-3] 3.8.2.1.2
#[test]
fn a_message_names_its_subscription() {
    v5(|b| {
        let mut client = b.connect("a");
        for (n, id) in
            [1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455].into_iter().enumerate()
        {
            let topic = b.topic(&n.to_string());
            client.subscribe_with(&topic, at(QOS_1), &[Property::SubscriptionIdentifier(id)]);
            client.publish(&topic, "x", QOS_1);
            assert_eq!(client.message().subscription_ids(), [id]);
        }
        client.subscribe(&b.topic("none"), QOS_1);
        client.publish(&b.topic("none"), "x", QOS_1);
        assert_eq!(client.message().subscription_ids(), [0; 0]);
    });
}

/// 3.8.2.1.2: one identifier for all filters of a SUBSCRIBE.
#[test]
fn filters_of_one_subscribe_share_an_identifier() {
    v5(|b| {
        let (one, two) = (b.topic("one"), b.topic("two"));
        let mut client = b.connect("a");
        client.try_subscribe(&[(&one, at(QOS_1)), (&two, at(QOS_1))], &[Property::SubscriptionIdentifier(9)]);
        for topic in [&one, &two] {
            client.publish(topic, "x", QOS_1);
            assert_eq!(client.message().subscription_ids(), [9]);
        }
    });
}

/// [MQTT-3.8.4-3]: the identifier is part of the replaced subscription.
#[test]
fn subscribing_again_replaces_the_identifier() {
    v5(|b| {
        let topic = b.topic("t");
        let mut client = b.connect("a");
        for ids in [&[1][..], &[2], &[], &[3]] {
            let properties: Vec<Property<'_>> =
                ids.iter().map(|id| Property::SubscriptionIdentifier(*id)).collect();
            client.subscribe_with(&topic, at(QOS_1), &properties);
            client.publish(&topic, "x", QOS_1);
            assert_eq!(client.message().subscription_ids(), ids);
        }
    });
}

/// 3.8.4: the identifier is part of the Session State.
#[test]
fn an_identifier_outlives_the_connection() {
    v5(|b| {
        let topic = b.topic("t");
        let mut client = b.durable("a");
        client.subscribe_with(&topic, at(QOS_1), &[Property::SubscriptionIdentifier(77)]);
        client.fail();
        let mut client = b.resume("a");
        client.publish(&topic, "x", QOS_1);
        assert_eq!(client.message().subscription_ids(), [77]);
        client.disconnect();
    });
}

/// [MQTT-3.3.4-3] applies to retained messages too.
#[test]
fn a_retained_message_names_the_subscription_that_fetched_it() {
    v5(|b| {
        let topic = b.topic("t");
        let mut client = b.connect("a");
        client.publish_message(Message::new(&topic, "kept", QOS_1).retained());
        client.subscribe_with(&topic, at(QOS_1), &[Property::SubscriptionIdentifier(5)]);
        assert_eq!(client.message().subscription_ids(), [5]);
    });
}

/// 3.8.2.1.2: 0 and a second identifier are errors.
#[test]
fn identifier_0_and_a_second_identifier_are_refused() {
    v5(|b| {
        for block in [&[0x0B, 0][..], &[0x0B, 1, 0x0B, 2]] {
            let mut client = b.connect("a");
            let bytes = packet(0x82, &[&[0, 1], &properties(&[block]), &string(b.topic("t")), &[0]]);
            client.send_bytes(&bytes);
            client.closed_for_one_of(&[ReasonCode::ProtocolError, ReasonCode::MalformedPacket]);
        }
    });
}

/// [MQTT-3.3.4-2] [MQTT3-3.3.5-1]; among the allowed behaviours, Meridian sends one copy.
#[test]
fn overlapping_subscriptions_deliver_at_the_highest_qos() {
    every_version_ours(|b| {
        let topic = b.topic("a/b");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        for (filter, qos) in [("a/+", QOS_0), ("a/#", QOS_2), ("+/b", QOS_1), ("a/b", QOS_0)] {
            subscriber.subscribe(&b.topic(filter), qos);
        }
        for qos in EVERY_QOS {
            publisher.publish(&topic, "x", qos);
            assert_eq!(subscriber.message().qos, qos);
            subscriber.nothing_from(&mut publisher);
        }
        subscriber.unsubscribe(&[&b.topic("a/#")]);
        publisher.publish(&topic, "x", QOS_2);
        assert_eq!(subscriber.message().qos, QOS_1);
        subscriber.nothing_from(&mut publisher);
    });
}

/// [MQTT-3.3.4-3] [MQTT-3.3.4-4]
#[test]
fn overlapping_subscriptions_name_all_their_identifiers() {
    v5_ours(|b| {
        let mut client = b.connect("a");
        let subscriptions =
            [("t", Some(2)), ("t/#", Some(3)), ("+", None), ("#", Some(3)), ("+/x", Some(400))];
        for (filter, id) in subscriptions {
            let property = id.map(Property::SubscriptionIdentifier);
            client.subscribe_with(&b.topic(filter), at(QOS_1), property.as_slice());
        }
        client.publish(&b.topic("t"), "x", QOS_1);
        let mut ids = client.message().subscription_ids();
        ids.dedup();
        assert_eq!(ids, [2, 3]);
        client.nothing_of_its_own();
        client.publish(&b.topic("t/x"), "x", QOS_1);
        let mut ids = client.message().subscription_ids();
        ids.dedup();
        assert_eq!(ids, [3, 400]);
    });
}

/// One copy serves all subscriptions. It keeps RETAIN if any of them asks for that.
#[test]
fn overlapping_subscriptions_may_differ_in_retain_as_published() {
    v5_ours(|b| {
        let topic = b.topic("t");
        let mut client = b.connect("a");
        client.subscribe(&topic, QOS_1);
        client.subscribe_with(
            &b.topic("+"),
            SubscriptionOptions { retain_as_published: true, ..at(QOS_0) },
            &[],
        );
        client.publish_message(Message::new(&topic, "x", QOS_1).retained());
        let message = client.message();
        assert_eq!((message.qos, message.retain), (QOS_1, true));
        client.nothing_of_its_own();
    });
}
