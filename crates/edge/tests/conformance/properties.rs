//! Properties of a PUBLISH (3.3.2.3).

use crate::harness::wire::{packet, properties, string};
use crate::harness::*;

/// [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-20]
#[test]
fn properties_arrive_as_they_were_sent() {
    v5(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        let long = "x".repeat(3000);
        let each: [&[Property<'_>]; 12] = [
            &[Property::PayloadFormatIndicator(0)],
            &[Property::PayloadFormatIndicator(1)],
            &[Property::ContentType("")],
            &[Property::ContentType("text/plain; charset=utf-8")],
            &[Property::ResponseTopic("answer/to/this")],
            &[Property::CorrelationData(b"")],
            &[Property::CorrelationData(b"\0\xFF\x01")],
            &[Property::UserProperty("", "")],
            &[Property::UserProperty("k", "v"), Property::UserProperty("k", "v")],
            &[Property::UserProperty("ключ", "🦀")],
            &[Property::ContentType(&long), Property::UserProperty(&long, &long)],
            &[
                Property::UserProperty("b", "1"),
                Property::PayloadFormatIndicator(1),
                Property::CorrelationData(b"data"),
                Property::ResponseTopic("answer"),
                Property::ContentType("type"),
                Property::UserProperty("a", "2"),
            ],
        ];
        for set in each {
            for qos in EVERY_QOS {
                let mut message = Message::new(&topic, "x", qos);
                message.properties = set.iter().copied().collect();
                publisher.publish_message(message.clone());
                let received = subscriber.message();
                let sorted = |properties: &PropertiesBuf| {
                    let mut all: Vec<String> =
                        properties.as_properties().iter().map(|p| format!("{p:?}")).collect();
                    all.sort();
                    all
                };
                assert_eq!(sorted(&received.properties), sorted(&message.properties), "{set:?}");
                assert_eq!(received.user_properties(), message.user_properties());
            }
        }
    });
}

/// [MQTT-3.3.2-18]
#[test]
fn user_properties_keep_their_order() {
    v5(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_0);
        let mut message = Message::new(&topic, "x", QOS_0);
        for n in 0..50 {
            message = message.with(Property::UserProperty(&format!("name{}", n * 7 % 10), &n.to_string()));
            if n == 25 {
                message = message.with(Property::ContentType("in between"));
            }
        }
        publisher.publish_message(message.clone());
        assert_eq!(subscriber.message().user_properties(), message.user_properties());
    });
}

/// Messages that wait for a session keep their properties.
#[test]
fn properties_survive_waiting() {
    v5(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.durable("subscriber");
        subscriber.subscribe_with(&topic, at(QOS_2), &[Property::SubscriptionIdentifier(300)]);
        subscriber.disconnect();
        let message = Message::new(&topic, "x", QOS_2)
            .with(Property::ContentType("type"))
            .with(Property::UserProperty("a", "1"))
            .with(Property::UserProperty("a", "0"));
        publisher.publish_message(message.clone());
        let mut subscriber = b.resume("subscriber");
        let received = subscriber.message_unacknowledged();
        assert_eq!(received.subscription_ids(), [300]);
        assert_eq!(received.user_properties(), message.user_properties());
        assert_eq!(received.properties.as_properties().content_type(), Some("type"));
        subscriber.fail();
        // And after a retransmission.
        let mut subscriber = b.resume("subscriber");
        let again = subscriber.message();
        assert_eq!(again.properties, received.properties);
        subscriber.disconnect();
    });
}

/// [MQTT-3.3.4-6]
#[test]
fn a_client_sends_no_subscription_identifier_with_a_message() {
    v5(|b| {
        let mut client = b.connect("a");
        let block = properties(&[&[0x0B, 5]]);
        client.send_bytes(&packet(0x30, &[&string(b.topic("t")), &block, b"x"]));
        client.closed_for(ReasonCode::ProtocolError);
    });
}

/// [MQTT-3.3.2-14] [MQTT-3.3.2-13]
#[test]
fn a_response_topic_has_no_wildcards() {
    v5(|b| {
        for response in ["a/#", "+", "a/+/b"] {
            let mut client = b.connect("a");
            let block = properties(&[&[0x08], &string(response)]);
            client.send_bytes(&packet(0x30, &[&string(b.topic("t")), &block, b"x"]));
            client.closed_for_one_of(&[
                ReasonCode::ProtocolError,
                ReasonCode::TopicNameInvalid,
                ReasonCode::MalformedPacket,
            ]);
        }
    });
}

/// 3.3.2.3.2: a server may check; Meridian does, and answers 0x99.
#[test]
fn a_payload_that_claims_to_be_text_is_checked() {
    v5_ours(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_2);
        for qos in [QOS_1, QOS_2] {
            let mut client = b.connect("a");
            let lie =
                Message::new(&topic, b"\xC3\x28", qos).with(Property::PayloadFormatIndicator(1)).packet_id(1);
            client.send_message(&lie);
            match client.recv() {
                Received::PubAck(ack) | Received::PubRec(ack) => {
                    assert_eq!((ack.packet_id, ack.reason), (1, ReasonCode::PayloadFormatInvalid));
                    client.nothing();
                    // The identifier is free again [MQTT-4.3.3-9].
                    client.publish_message(Message::new(&topic, "text", qos).packet_id(1));
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(subscriber.message().text(), "text");
            publisher
                .publish_message(Message::new(&topic, "ünï", qos).with(Property::PayloadFormatIndicator(1)));
            assert_eq!(subscriber.message().text(), "ünï");
            publisher.publish_message(
                Message::new(&topic, b"\xC3\x28", qos).with(Property::PayloadFormatIndicator(0)),
            );
            assert_eq!(subscriber.message().payload, b"\xC3\x28");
        }
        subscriber.nothing_from(&mut publisher);
    });
}

/// 3.1.2.11.6 and 4.10: request and response.
#[test]
fn a_request_finds_its_response() {
    v5(|b| {
        let topic = b.topic("requests");
        let mut requester = b.connect("requester");
        let mut responder = b.connect("responder");
        let no_local = SubscriptionOptions { no_local: true, ..at(QOS_2) };
        requester.subscribe_with(&topic, no_local, &[]);
        responder.subscribe_with(&topic, no_local, &[]);
        let request = Message::new(&topic, "request", QOS_1)
            .with(Property::ResponseTopic(&topic))
            .with(Property::CorrelationData(b"334"));
        requester.publish_message(request.clone());
        let received = responder.message();
        assert_eq!(received.properties, request.properties);
        let to = received.properties.as_properties().response_topic().expect("a Response Topic").to_owned();
        responder
            .publish_message(Message::new(&to, "response", QOS_1).with(Property::CorrelationData(b"334")));
        let response = requester.message();
        assert_eq!(response.text(), "response");
        assert_eq!(response.properties.as_properties().correlation_data(), Some(&b"334"[..]));
        responder.nothing_from(&mut requester);
        requester.nothing_from(&mut responder);
    });
}

/// [MQTT-3.1.2-28] 3.2.2.3.15
#[test]
fn response_information_is_sent_on_request() {
    v5_with(
        |settings| settings.mqtt.response_information = "answers/here".into(),
        |b| {
            for (asked, told) in [(None, None), (Some(0), None), (Some(1), Some("answers/here"))] {
                let mut connect = b.client("a");
                if let Some(asked) = asked {
                    connect = connect.with(Property::RequestResponseInformation(asked));
                }
                let (client, connack) = b.connect_with(connect);
                assert_eq!(connack.properties.as_properties().response_information(), told);
                client.disconnect();
            }
        },
    );
}
