//! Limits that a server announces and enforces (3.2.2.3).

use crate::harness::*;

/// [MQTT-3.2.2-9] [MQTT-3.2.2-10] [MQTT-3.2.2-11] [MQTT-3.2.2-12]
#[test]
fn a_server_may_have_a_maximum_qos() {
    for maximum in [0u8, 1] {
        v5_with(
            move |settings| settings.mqtt.qos_max = maximum,
            |b| {
                let topic = b.topic("t");
                let (mut client, connack) = b.connect_with(b.client("a"));
                assert_eq!(connack.properties.as_properties().maximum_qos(), Some(maximum));
                for qos in EVERY_QOS {
                    let granted = client.try_subscribe(&[(&topic, at(qos))], &[]);
                    assert_eq!(granted, [maximum.min(qos as u8)]);
                }
                for qos in EVERY_QOS {
                    let will = Message::new(&topic, "gone", qos);
                    if (qos as u8) <= maximum {
                        client.publish(&topic, "x", qos);
                        assert_eq!(client.message().qos, qos);
                        b.connect_with(b.client("mortal").will(will)).0.disconnect();
                        continue;
                    }
                    let connack = b.refused(&b.client("mortal").will(will)).expect("a CONNACK");
                    assert_eq!(connack.reason, ReasonCode::QoSNotSupported);
                    let mut other = b.connect("other");
                    other.send_message(&Message::new(&topic, "x", qos).packet_id(1));
                    other.closed_for(ReasonCode::QoSNotSupported);
                }
            },
        );
    }
}

/// [MQTT-3.2.2-13] [MQTT-3.2.2-14]
#[test]
fn a_server_may_retain_nothing() {
    v5_with(
        |settings| settings.mqtt.retain_available = false,
        |b| {
            let topic = b.topic("t");
            let (mut client, connack) = b.connect_with(b.client("a"));
            assert_eq!(connack.properties.as_properties().retain_available(), Some(false));
            client.publish(&topic, "x", QOS_1);
            client.send_message(&Message::new(&topic, "kept", QOS_1).retained().packet_id(9));
            client.closed_for(ReasonCode::RetainNotSupported);
            let connect = b.client("mortal").will(Message::new(&topic, "gone", QOS_0).retained());
            assert_eq!(b.refused(&connect).expect("a CONNACK").reason, ReasonCode::RetainNotSupported);
        },
    );
}

/// Sends a SUBSCRIBE for something that is not available. SUBACK or DISCONNECT carries the reason (3.9.3,
/// 3.2.2.3.11-13).
fn is_not_available(b: &Broker, filter: &str, properties: &[Property<'_>], reason: ReasonCode) {
    let mut client = b.connect("a");
    client.send_subscribe(1, &[(filter, at(QOS_0))], properties);
    match client.recv() {
        Received::SubAck(suback) => assert_eq!(suback.reasons, [reason.as_u8()]),
        Received::Disconnect(disconnect) => {
            assert_eq!(disconnect.reason, reason);
            client.closed();
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_may_have_no_wildcards() {
    v5_with(
        |settings| settings.mqtt.wildcard_subscription_available = false,
        |b| {
            let (mut client, connack) = b.connect_with(b.client("b"));
            assert_eq!(connack.properties.as_properties().wildcard_subscription_available(), Some(false));
            for filter in ["#", "a/+", "a/#"] {
                is_not_available(b, filter, &[], ReasonCode::WildcardSubscriptionsNotSupported);
            }
            client.subscribe(&b.topic("t"), QOS_0);
        },
    );
}

#[test]
fn a_server_may_have_no_shared_subscriptions() {
    v5_with(
        |settings| settings.mqtt.shared_subscription_available = false,
        |b| {
            let (mut client, connack) = b.connect_with(b.client("b"));
            assert_eq!(connack.properties.as_properties().shared_subscription_available(), Some(false));
            is_not_available(b, "$share/g/t", &[], ReasonCode::SharedSubscriptionsNotSupported);
            client.subscribe(&b.topic("t"), QOS_0);
        },
    );
}

#[test]
fn a_server_may_have_no_subscription_identifiers() {
    v5_with(
        |settings| settings.mqtt.subscription_identifier_available = false,
        |b| {
            let (mut client, connack) = b.connect_with(b.client("b"));
            assert_eq!(connack.properties.as_properties().subscription_identifier_available(), Some(false));
            let reason = ReasonCode::SubscriptionIdentifiersNotSupported;
            is_not_available(b, "t", &[Property::SubscriptionIdentifier(1)], reason);
            client.subscribe(&b.topic("t"), QOS_0);
        },
    );
}

/// `session.subscriptions_max`: 0x97 in 5.0, 0x80 before. Other subscriptions remain.
#[test]
fn a_client_has_a_maximum_of_subscriptions() {
    v5_with(
        |settings| settings.session.subscriptions_max = 3,
        |b| {
            for version in [V3_1_1, V5] {
                let mut client = b.connect_as(version, "a");
                let topics: Vec<String> = (0..5).map(|n| b.topic(&n.to_string())).collect();
                let wanted: Vec<(&str, SubscriptionOptions)> =
                    topics.iter().map(|topic| (topic.as_str(), at(QOS_0))).collect();
                let refused = if version == V5 { ReasonCode::QuotaExceeded.as_u8() } else { 0x80 };
                assert_eq!(client.try_subscribe(&wanted, &[]), [0, 0, 0, refused, refused]);
                // Replacing a subscription does not add one.
                client.subscribe(&topics[0], QOS_1);
                client.unsubscribe(&[&topics[1]]);
                client.subscribe(&topics[4], QOS_0);
                client.publish(&topics[4], "x", QOS_0);
                assert_eq!(client.message().topic, topics[4]);
            }
        },
    );
}

/// `mqtt.client_id_len_max`
#[test]
fn a_client_identifier_has_a_maximum_of_bytes() {
    v5_with(
        |settings| settings.mqtt.client_id_len_max = 23,
        |b| {
            b.connect_with(Connect::new(V5, &"x".repeat(23))).0.disconnect();
            for version in Version::ALL {
                let connack = b.refused(&Connect::new(version, &"x".repeat(24))).expect("a CONNACK");
                assert_eq!(connack.reason, ReasonCode::ClientIdentifierNotValid);
            }
        },
    );
}

/// `mqtt.topic_levels_max` and `mqtt.topic_len_max` apply to filters and to names.
#[test]
fn a_topic_has_a_maximum_of_levels_and_bytes() {
    v5_with(
        |settings| {
            settings.mqtt.topic_levels_max = 5;
            settings.mqtt.topic_len_max = 100;
        },
        |b| {
            let topic = b.topic("2/3/4/5");
            let mut witness = b.connect("witness");
            witness.subscribe(&topic, QOS_0);
            witness.publish(&topic, "x", QOS_1);
            witness.message();
            for bad in [b.topic("2/3/4/5/6"), b.topic(&"x".repeat(100))] {
                let mut client = b.connect("a");
                let reasons = client.try_subscribe(&[(&bad, at(QOS_0))], &[]);
                assert!(reasons[0] >= 0x80, "{reasons:?}");
                client.send_message(&Message::new(&bad, "x", QOS_1).packet_id(7));
                assert_eq!(client.puback().reason, ReasonCode::TopicNameInvalid);
                client.send_message(&Message::new(&bad, "x", QOS_2).packet_id(8));
                assert_eq!(client.pubrec().reason, ReasonCode::TopicNameInvalid);
                client.ping();
                // At QoS 0 there is no other way to report it.
                client.send_message(&Message::new(&bad, "x", QOS_0));
                client.closed_for(ReasonCode::TopicNameInvalid);
            }
        },
    );
}

/// Matching, retaining and storing such a topic do not overflow the stack.
#[test]
fn a_topic_may_have_as_many_levels_as_fit_in_it() {
    v5_with(
        |settings| {
            settings.mqtt.topic_levels_max = 65_535;
            settings.mqtt.topic_len_max = 65_535;
        },
        |b| {
            let topic = b.topic(&"d/".repeat(32_000));
            let (all, plus) = (b.topic("#"), b.topic(&format!("+/{}#", "d/".repeat(20_000))));
            let mut durable = b.durable("durable");
            let filters = [topic.as_str(), all.as_str(), plus.as_str()];
            for filter in filters {
                durable.subscribe(filter, QOS_1);
            }
            durable.fail();
            let mut publisher = b.connect("publisher");
            publisher.publish_message(Message::new(&topic, "x", QOS_1).retained());
            let mut durable = b.resume("durable");
            assert_eq!(durable.message().topic, topic);
            for filter in filters {
                let mut late = b.connect("late");
                late.subscribe(filter, QOS_0);
                assert_eq!(late.message().topic, topic);
            }
            publisher.publish_message(Message::new(&topic, "", QOS_1).retained());
        },
    );
}

/// The tree of routes cannot hold a `+` after the 128th level.
#[test]
fn a_plus_behind_the_first_128_levels_is_refused() {
    v5_with(
        |settings| settings.mqtt.topic_levels_max = 1_000,
        |b| {
            let mut client = b.connect("a");
            let prefix = b.topic("").matches('/').count();
            let at_level = |level: usize| b.topic(&("d/".repeat(level - 1 - prefix) + "+"));
            let (last, beyond) = (at_level(128), at_level(129));
            let filters = [(last.as_str(), at(QOS_0)), (beyond.as_str(), at(QOS_0))];
            let refused = ReasonCode::TopicFilterInvalid.as_u8();
            assert_eq!(client.try_subscribe(&filters, &[]), [0, refused]);
        },
    );
}

/// `limits.connections_max`: one connection too many is refused. Its slot is free again when another client leaves.
#[test]
fn a_server_has_a_maximum_of_connections() {
    v5_with(
        |settings| settings.limits.connections_max = 3,
        |b| {
            // In the placement with extra connections, these already use the limit up.
            let mut clients = Vec::new();
            let mut refused = false;
            for n in 0..12 {
                let mut client =
                    Client::new(std::net::TcpStream::connect(b.address()).expect("a connection"), V5);
                client.send_connect(&b.client(&format!("c{n}")));
                match client.recv() {
                    Received::ConnAck(connack) if !connack.reason.is_error() => clients.push(client),
                    Received::ConnAck(connack) => {
                        let reasons = [
                            ReasonCode::QuotaExceeded,
                            ReasonCode::ServerBusy,
                            ReasonCode::ServerUnavailable,
                        ];
                        assert!(reasons.contains(&connack.reason), "{connack:?}");
                        refused = true;
                    }
                    other => {
                        assert_eq!(other, Received::Closed);
                        refused = true;
                    }
                }
            }
            assert!(refused);
            assert_eq!(clients.len(), 3);
            for client in &mut clients {
                client.nothing();
            }
            clients.remove(0).disconnect();
            // The slot is free once the broker has noticed the end, which may be after the client has.
            loop {
                let mut client =
                    Client::new(std::net::TcpStream::connect(b.address()).expect("a connection"), V5);
                client.send_connect(&b.client("late"));
                match client.recv() {
                    Received::ConnAck(connack) if connack.reason == ReasonCode::Success => break,
                    Received::ConnAck(_) | Received::Closed => {}
                    other => panic!("{other:?}"),
                }
            }
        },
    );
}
