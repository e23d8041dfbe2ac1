//! Topic Alias (3.3.2.3.4).

use crate::harness::*;

fn aliased(topic: &str, payload: &str, qos: QoS, alias: u16) -> Message {
    Message::new(topic, payload, qos).with(Property::TopicAlias(alias))
}

/// Returns a connected client and the number of aliases that it may use; `None` where aliases are disabled.
fn publisher(b: &Broker, name: &str) -> Option<(Client, u16)> {
    let (client, connack) = b.connect_with(b.client(name));
    let maximum = connack.properties.as_properties().topic_alias_maximum().unwrap_or(0);
    assert!(maximum > 0 || Broker::is_external());
    (maximum > 0).then_some((client, maximum))
}

/// [MQTT-3.3.2-12]
#[test]
fn an_alias_stands_for_its_topic() {
    v5(|b| {
        let Some((mut publisher, maximum)) = publisher(b, "publisher") else { return };
        let topic = b.topic("t");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        for alias in [1, maximum] {
            publisher.publish_message(aliased(&topic, "with topic", QOS_0, alias));
            // [MQTT-3.1.2-27] [MQTT-3.3.2-11]: aliases belong to a connection, and this subscriber accepts none.
            assert_eq!(subscriber.message(), Message::new(&topic, "with topic", QOS_0));
            for qos in EVERY_QOS {
                publisher.publish_message(aliased("", "without", qos, alias));
                let message = subscriber.message();
                assert_eq!((message.topic, message.properties), (topic.clone(), PropertiesBuf::default()));
            }
        }
    });
}

/// 3.3.2.3.4: "A sender can modify the Topic Alias mapping by sending another PUBLISH ... with a different ... Topic
/// Name."
#[test]
fn an_alias_may_be_given_to_another_topic() {
    v5(|b| {
        let Some((mut publisher, _)) = publisher(b, "publisher") else { return };
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&b.topic("+"), QOS_1);
        for name in ["a", "b", "a"] {
            publisher.publish_message(aliased(&b.topic(name), "x", QOS_1, 1));
            assert_eq!(subscriber.message().topic, b.topic(name));
            publisher.publish_message(aliased("", "x", QOS_1, 1));
            assert_eq!(subscriber.message().topic, b.topic(name));
        }
        // A PUBLISH may have both alias and topic, and two aliases may stand for one topic.
        publisher.publish_message(aliased(&b.topic("a"), "x", QOS_1, 2));
        publisher.publish_message(aliased("", "x", QOS_1, 1));
        publisher.publish_message(aliased("", "x", QOS_1, 2));
        for _ in 0..3 {
            assert_eq!(subscriber.message().topic, b.topic("a"));
        }
    });
}

/// A message sets an alias whether or not the message has subscribers.
#[test]
fn an_alias_needs_no_subscriber() {
    v5(|b| {
        let Some((mut publisher, _)) = publisher(b, "publisher") else { return };
        let topic = b.topic("t");
        publisher.publish_message(aliased(&topic, "nobody", QOS_1, 1));
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_1);
        publisher.publish_message(aliased("", "somebody", QOS_1, 1));
        assert_eq!(subscriber.message().topic, topic);
        // The message is retained under its full topic.
        publisher.publish_message(aliased("", "kept", QOS_1, 1).retained());
        let mut late = b.connect("late");
        late.subscribe(&topic, QOS_1);
        assert_eq!((late.message().topic, subscriber.message().text()), (topic, "kept"));
    });
}

/// 3.3.2.3.4: an unknown alias without a Topic Name is a Protocol Error.
#[test]
fn an_unknown_alias_is_an_error() {
    v5(|b| {
        let Some((mut publisher, _)) = publisher(b, "publisher") else { return };
        publisher.send_message(&aliased("", "x", QOS_0, 1));
        let reasons: &[ReasonCode] = &[ReasonCode::ProtocolError, ReasonCode::TopicAliasInvalid];
        publisher.closed_for_one_of(if Broker::is_external() { reasons } else { &reasons[..1] });
    });
}

/// [MQTT-3.3.2-8] [MQTT-3.3.2-9]
#[test]
fn an_alias_of_0_or_above_the_maximum_is_an_error() {
    v5(|b| {
        let Some((_, maximum)) = publisher(b, "publisher") else { return };
        for alias in [0, maximum + 1, u16::MAX] {
            let Some((mut publisher, _)) = publisher(b, "publisher") else { return };
            publisher.send_message(&aliased(&b.topic("t"), "x", QOS_1, alias).packet_id(1));
            publisher.closed_for(ReasonCode::TopicAliasInvalid);
        }
    });
}

/// [MQTT-3.3.2-7]
#[test]
fn aliases_end_with_their_connection() {
    v5(|b| {
        if publisher(b, "probe").is_none() {
            return;
        }
        let topic = b.topic("t");
        let mut first = b.durable("publisher");
        first.publish_message(aliased(&topic, "x", QOS_1, 1));
        first.fail();
        let mut second = b.resume("publisher");
        second.send_message(&aliased("", "x", QOS_1, 1).packet_id(1));
        second.closed_for_one_of(&[ReasonCode::ProtocolError, ReasonCode::TopicAliasInvalid]);
        // Aliases do not apply to other connections.
        let mut one = b.connect("one");
        let mut two = b.connect("two");
        one.publish_message(aliased(&b.topic("one"), "x", QOS_1, 1));
        two.publish_message(aliased(&b.topic("two"), "x", QOS_1, 1));
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&b.topic("#"), QOS_1);
        one.publish_message(aliased("", "x", QOS_1, 1));
        assert_eq!(subscriber.message().topic, b.topic("one"));
        two.publish_message(aliased("", "x", QOS_1, 1));
        assert_eq!(subscriber.message().topic, b.topic("two"));
    });
}

/// [MQTT-3.1.2-26] [MQTT-3.3.2-11]: a server may use the allowed aliases as it likes, but they must be resolvable.
#[test]
fn the_servers_aliases_can_be_resolved() {
    v5(|b| {
        for allowed in [1, 2, 5] {
            let mut publisher = b.connect("publisher");
            let connect = b.client("subscriber").with(Property::TopicAliasMaximum(allowed));
            let (mut subscriber, _) = b.connect_with(connect);
            subscriber.subscribe(&b.topic("+"), QOS_2);
            let mut known: Vec<Option<String>> = vec![None; usize::from(allowed) + 1];
            for n in 0..60 {
                let topic = b.topic(&format!("t{}", n % 7));
                publisher.publish(&topic, n.to_string(), EVERY_QOS[n % 3]);
                let message = subscriber.message();
                let alias = message.properties.as_properties().topic_alias();
                let named = match alias {
                    Some(alias) => {
                        assert!((1..=allowed).contains(&alias), "alias {alias}");
                        let known = &mut known[usize::from(alias)];
                        if !message.topic.is_empty() {
                            *known = Some(message.topic.clone());
                        }
                        known.clone().expect("an alias that was introduced")
                    }
                    None => message.topic.clone(),
                };
                assert_eq!((named, message.text()), (topic, &*n.to_string()));
            }
        }
    });
}

/// Meridian uses aliases: it sends the topic once and then the alias. A new connection starts without aliases
/// [MQTT-3.3.2-7].
#[test]
fn the_server_uses_the_aliases_that_a_client_allows() {
    v5_ours(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let connect = b.client("subscriber").durable().with(Property::TopicAliasMaximum(1));
        for _ in 0..2 {
            let (mut subscriber, _) = b.connect_with(connect.clone());
            subscriber.subscribe(&topic, QOS_2);
            for (n, qos) in EVERY_QOS.into_iter().enumerate() {
                publisher.publish(&topic, "x", qos);
                let message = subscriber.message();
                assert_eq!(message.properties.as_properties().topic_alias(), Some(1));
                assert_eq!(message.topic, if n == 0 { &topic } else { "" });
            }
            subscriber.fail();
        }
    });
}

/// `mqtt.topic_alias_max = 0`: the property is absent, and every alias an error [MQTT-3.2.2-18].
#[test]
fn a_server_may_take_no_aliases() {
    v5_with(
        |settings| settings.mqtt.topic_alias_max = 0,
        |b| {
            let (mut client, connack) = b.connect_with(b.client("a"));
            assert_eq!(connack.properties.as_properties().topic_alias_maximum().unwrap_or(0), 0);
            client.send_message(&aliased(&b.topic("t"), "x", QOS_0, 1));
            client.closed_for(ReasonCode::TopicAliasInvalid);
        },
    );
}

/// `mqtt.topic_alias_bytes_max`
#[test]
fn the_topics_of_all_aliases_have_a_maximum_of_bytes() {
    v5_with(
        |settings| settings.mqtt.topic_alias_bytes_max = settings::ByteSize::kib(1),
        |b| {
            let Some((mut publisher, _)) = publisher(b, "publisher") else { return };
            let topic = b.topic(&"x".repeat(600));
            // An alias that is set again frees its bytes.
            for _ in 0..3 {
                publisher.publish_message(aliased(&topic, "x", QOS_1, 1));
            }
            publisher.send_message(&aliased(&topic, "x", QOS_1, 2).packet_id(9));
            publisher.closed_for(ReasonCode::QuotaExceeded);
        },
    );
}
