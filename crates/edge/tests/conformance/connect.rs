//! CONNECT and CONNACK (3.1, 3.2).

use std::time::Duration;

use crate::harness::wire::{packet, string};
use crate::harness::*;

/// [MQTT-3.1.0-1] [MQTT3-3.1.0-1]; the server sends no DISCONNECT before CONNACK [MQTT-3.14.0-1].
#[test]
fn the_first_packet_must_be_connect() {
    every_version(|b| {
        let topic = string(b.topic("t"));
        let no_properties: &[u8] = if b.version == V5 { &[0] } else { &[] };
        let mut seen = b.connect("seen");
        seen.subscribe(&b.topic("t"), QOS_0);
        let packets = [
            packet(0x20, &[&[0, 0], no_properties]),
            packet(0x30, &[&topic, no_properties, b"x"]),
            packet(0x32, &[&topic, &[0, 1], no_properties, b"x"]),
            packet(0x34, &[&topic, &[0, 1], no_properties, b"x"]),
            packet(0x40, &[&[0, 1]]),
            packet(0x50, &[&[0, 1]]),
            packet(0x62, &[&[0, 1]]),
            packet(0x70, &[&[0, 1]]),
            packet(0x82, &[&[0, 1], no_properties, &topic, &[0]]),
            packet(0x90, &[&[0, 1], no_properties, &[0]]),
            packet(0xA2, &[&[0, 1], no_properties, &topic]),
            packet(0xB0, &[&[0, 1]]),
            packet(0xC0, &[]),
            packet(0xD0, &[]),
            packet(0xE0, &[]),
            packet(0xF0, &[]),
        ];
        for bytes in packets {
            let mut client = b.open();
            client.send_bytes(&bytes);
            assert_eq!(client.recv(), Received::Closed, "after {bytes:02x?}");
        }
        let mut publisher = b.connect("publisher");
        seen.nothing_from(&mut publisher);
    });
}

/// [MQTT-3.1.0-2] [MQTT3-3.1.0-2]
#[test]
fn a_second_connect_closes_the_connection() {
    every_version(|b| {
        let mut client = b.connect("a");
        client.send_connect(&b.client("a"));
        client.closed_for(ReasonCode::ProtocolError);

        let mut client = b.connect("a");
        client.send_connect(&b.client("other"));
        client.closed_for(ReasonCode::ProtocolError);
    });
}

/// [MQTT-3.2.0-1] [MQTT-3.2.0-2] [MQTT3-3.2.0-1] [MQTT-3.1.4-5]
#[test]
fn connack_comes_first_and_once() {
    every_version(|b| {
        let (mut client, connack) = b.connect_with(b.client("a"));
        assert_eq!(connack.reason, ReasonCode::Success);
        // [MQTT-3.2.2-2] [MQTT3-3.2.2-1]
        assert!(!connack.session_present);
        client.nothing();
    });
}

/// A client need not wait for CONNACK (3.1.4, non-normative comment) [MQTT3-3.1.4-5].
#[test]
fn packets_may_follow_connect_at_once() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut client = b.open();
        let mut bytes = b.client("a").encode();
        let no_properties: &[u8] = if b.version == V5 { &[0] } else { &[] };
        bytes.extend(packet(0x82, &[&[0, 7], no_properties, &string(&topic), &[1]]));
        bytes.extend(Message::new(&topic, "early", QOS_1).packet_id(8).encode(b.version));
        bytes.extend(packet(0xC0, &[]));
        client.send_bytes(&bytes);
        assert!(matches!(client.recv(), Received::ConnAck(_)));
        assert_eq!(client.suback().packet_id, 7);
        assert_eq!(client.puback().packet_id, 8);
        client.pingresp();
        assert_eq!(client.message().text(), "early");
    });
}

/// [MQTT-3.1.2-1] [MQTT3-3.1.2-1]: the server closes the connection, with or without a CONNACK that gives the reason.
#[test]
fn a_wrong_protocol_name_is_refused() {
    every_version(|b| {
        for name in ["MQTZ", "mqtt", "MQTTX", "MQIsdq", "", "hj", "HTTP"] {
            refuses_protocol(b, name, b.version as u8);
        }
    });
}

/// [MQTT-3.1.2-2] [MQTT3-3.1.2-2]
#[test]
fn a_wrong_protocol_version_is_refused() {
    every_version(|b| {
        for (name, level) in [
            ("MQTT", 0),
            ("MQTT", 3),
            ("MQTT", 6),
            ("MQTT", 0x7F),
            // A bridge of an unknown version.
            ("MQTT", 0x83),
            ("MQTT", 0x86),
            ("MQIsdp", 0x84),
            ("MQIsdp", 0),
            ("MQIsdp", 2),
            ("MQIsdp", 4),
            ("MQIsdp", 5),
        ] {
            refuses_protocol(b, name, level);
        }
    });
}

fn refuses_protocol(b: &Broker, name: &str, level: u8) {
    let mut client = b.open();
    let connect = packet(0x10, &[&string(name), &[level, 2, 0, 60], &[0], &string("a")]);
    client.send_bytes(&connect);
    let mut answer = Vec::new();
    while let Some(bytes) = client.read_bytes() {
        answer.extend(bytes);
    }
    // "Unacceptable protocol version" in the form of 3.1.1, which every client can read. Other brokers send nothing, or
    // 0x84 of 5.0.
    let is_excused = Broker::is_external() && matches!(answer[..], [] | [0x20, _, 0, 0x84, ..]);
    assert!(answer == [0x20, 2, 0, 1] || is_excused, "{name:?} {level}: {answer:02x?}");
}

/// [MQTT-3.1.3-5] [MQTT3-3.1.3-5]
#[test]
fn client_identifiers_of_1_to_23_letters_and_digits_are_accepted() {
    every_version(|b| {
        // The three versions run at the same time, so their names must differ.
        let first = b.version as u8;
        let alphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
        for at in (0..alphabet.len()).step_by(22) {
            let id = format!("{first}{}", &alphabet[at..alphabet.len().min(at + 22)]);
            let (mut client, _) = b.connect_with(Connect::new(b.version, &id));
            client.ping();
        }
        b.open().connect(&Connect::new(b.version, &first.to_string()));
    });
}

/// [MQTT-3.1.3-4] [MQTT3-3.1.3-4]; the specification demands less of a server, but real clients need it.
#[test]
fn any_string_is_a_client_identifier() {
    from_3_1_1(|b| {
        for name in ["with space", "a/b", "+/#", "$SYS", "日本語", "🦀", "\u{FEFF}bom", &"long".repeat(200)]
        {
            let mut client = b.connect(name);
            client.ping();
            client.disconnect();
        }
    });
}

/// [MQTT-3.1.3-2] [MQTT3-3.1.3-2]: identifiers that differ in one bit are different clients.
#[test]
fn client_identifiers_are_compared_exactly() {
    from_3_1_1(|b| {
        let mut clients: Vec<Client> =
            ["a", "A", "a ", " a", "á", "a\u{301}"].map(|name| b.connect(name)).into();
        for client in &mut clients {
            client.nothing();
        }
    });
}

/// [MQTT3-3.1.3-6] [MQTT3-3.1.3-7] [MQTT-3.1.3-6]
#[test]
fn an_empty_client_identifier_creates_a_separate_client() {
    from_3_1_1(|b| {
        let topic = b.topic("t");
        let (mut one, _) = b.connect_with(Connect::new(b.version, ""));
        let (mut two, _) = b.connect_with(Connect::new(b.version, ""));
        one.subscribe(&topic, QOS_1);
        two.subscribe(&topic, QOS_1);
        one.publish(&topic, "both", QOS_1);
        assert_eq!(one.message().text(), "both");
        assert_eq!(two.message().text(), "both");
    });
}

/// [MQTT3-3.1.3-8] [MQTT3-3.1.3-9]; in 3.1 an identifier has at least one character.
#[test]
fn before_5_0_an_empty_client_identifier_cannot_name_a_session() {
    every_version(|b| {
        let connect = Connect::new(b.version, "").resuming();
        match b.version {
            V3_1 | V3_1_1 => {
                let connack = b.refused(&connect).expect("a CONNACK");
                assert_eq!(connack.reason, ReasonCode::ClientIdentifierNotValid);
            }
            V5 => {
                let (_client, connack) = b.connect_with(connect);
                assert!(!connack.session_present);
            }
        }
        if b.version == V3_1 {
            let connack = b.refused(&Connect::new(b.version, "")).expect("a CONNACK");
            assert_eq!(connack.reason, ReasonCode::ClientIdentifierNotValid);
        }
    });
}

/// [MQTT-3.1.3-7] [MQTT-3.2.2-16]
#[test]
fn an_assigned_client_identifier_is_new_and_names_the_session() {
    v5(|b| {
        let assigned = |connack: &ConnAck| {
            connack.properties.as_properties().assigned_client_identifier().expect("an identifier").to_owned()
        };
        let (client, connack) = b.connect_with(Connect::new(V5, "").resuming().expiry(3600));
        let (_other, connack_of_other) = b.connect_with(Connect::new(V5, ""));
        let id = assigned(&connack);
        assert_ne!(id, "");
        assert_ne!(id, assigned(&connack_of_other));
        client.disconnect();
        let (client, connack) = b.connect_with(Connect::new(V5, &id).resuming().expiry(0));
        assert!(connack.session_present);
        // CONNACK has the property only for clients without an identifier.
        assert_eq!(connack.properties.as_properties().assigned_client_identifier(), None);
        client.disconnect();
    });
}

/// [MQTT-3.1.2-16] to [MQTT-3.1.2-19], [MQTT3-3.1.2-18] to [MQTT3-3.1.2-21]; a password is bytes (3.1.3.6).
#[test]
fn user_name_and_password_are_accepted_without_authentication() {
    every_version(|b| {
        let connects = [
            b.client("a").username("user"),
            b.client("a").username(""),
            b.client("a").username("user").password(b"secret"),
            b.client("a").username("user").password(b""),
            b.client("a").username("ünïcödé").password(b"\0\xFF\xC3\x28"),
        ];
        for connect in connects {
            b.connect_with(connect).0.disconnect();
        }
        if b.version == V5 {
            b.connect_with(b.client("a").password(b"alone")).0.disconnect();
        }
    });
}

/// [MQTT-3.2.2-9] [MQTT-3.2.2-22]: a property that CONNACK omits has its default (3.2.2.3).
#[test]
fn connack_announces_the_capabilities_of_the_server() {
    v5(|b| {
        let (_client, connack) = b.connect_with(b.client("a").keep_alive(60));
        let properties = connack.properties.as_properties();
        assert_eq!(properties.maximum_qos(), None, "2 cannot be written (3.2.2.3.4)");
        assert_ne!(properties.retain_available(), Some(false));
        assert_ne!(properties.wildcard_subscription_available(), Some(false));
        assert_ne!(properties.subscription_identifier_available(), Some(false));
        assert_ne!(properties.shared_subscription_available(), Some(false));
        assert_eq!(properties.server_keep_alive(), None);
        assert_eq!(properties.response_information(), None);
        assert_eq!(properties.server_reference(), None);
        assert_eq!(properties.authentication_method(), None, "[MQTT-4.12.0-6]");
        if !Broker::is_external() {
            assert_eq!(properties.receive_maximum(), Some(1024));
            assert_eq!(properties.maximum_packet_size(), Some(1 << 20));
            assert_eq!(properties.topic_alias_maximum(), Some(32));
        }
    });
}

/// 3.2.2.3.2: the property is absent when the client gets the requested interval.
#[test]
fn connack_has_the_session_expiry_interval_when_it_differs_from_the_request() {
    v5_with(
        |settings| settings.session.expiry_max = Duration::from_secs(100),
        |b| {
            for (asked, told) in [(0, None), (100, None), (101, Some(100)), (u32::MAX, Some(100))] {
                let (client, connack) = b.connect_with(b.client("a").expiry(asked));
                assert_eq!(connack.properties.as_properties().session_expiry_interval(), told, "for {asked}");
                client.disconnect_with(ReasonCode::Success, &[Property::SessionExpiryInterval(0)]);
            }
        },
    );
}

/// [MQTT-3.1.4-6] [MQTT3-3.1.4-5]
#[test]
fn packets_after_a_refused_connect_are_not_processed() {
    v5(|b| {
        let topic = b.topic("t");
        let mut seen = b.connect("seen");
        seen.subscribe(&topic, QOS_1);
        let connect = b.client("refused").with(Property::AuthenticationMethod("nobody knows"));
        let mut client = b.open();
        let mut bytes = connect.encode();
        bytes.extend(Message::new(&topic, "no", QOS_1).packet_id(1).encode(V5));
        client.send_bytes(&bytes);
        match client.recv() {
            Received::ConnAck(connack) => {
                assert!(connack.reason.is_error());
                client.closed();
            }
            received => assert_eq!(received, Received::Closed),
        }
        let mut publisher = b.connect("publisher");
        seen.nothing_from(&mut publisher);
    });
}

/// 3.1.4: "If the Server does not receive a CONNECT packet within a reasonable amount of time ..."
#[test]
fn a_connection_without_connect_is_closed_after_a_while() {
    v5_with(
        |settings| settings.mqtt.connect_timeout = Duration::from_millis(300),
        |b| {
            let mut silent = b.open();
            let mut half = b.open();
            let connect = b.client("half").encode();
            half.send_bytes(&connect[..connect.len() - 1]);
            let mut prompt = b.connect("prompt");
            silent.closed();
            half.closed();
            prompt.nothing();
        },
    );
}

/// 3.2.2.3.9, 3.4.2.2.2, 3.5.2.2.2: a reason is sent where it fits [MQTT-3.2.2-19] [MQTT-3.4.2-2] [MQTT-3.5.2-2], and
/// only to clients that request it [MQTT-3.1.2-29].
#[test]
fn a_refusal_of_a_connection_or_a_message_says_why() {
    let change = |settings: &mut broker::settings::Settings| {
        settings.retained.messages_max = 0;
        settings.mqtt.will_size_max = settings::ByteSize::kib(1);
    };
    v5_with(change, |b| {
        let told = |properties: &PropertiesBuf| properties.as_properties().reason_string().map(str::to_owned);
        let wants = |b: &Broker, name: &str| b.client(name);
        let wants_none = |b: &Broker, name: &str| b.client(name).with(Property::RequestProblemInformation(0));
        let has_no_room = |b: &Broker, name: &str| b.client(name).with(Property::MaximumPacketSize(32));
        for (name, connect, is_told) in [
            ("a", wants as fn(&Broker, &str) -> Connect, true),
            ("b", wants_none, false),
            ("c", has_no_room, false),
        ] {
            let (mut client, _) = b.connect_with(connect(b, name));
            let topic = b.topic("t");
            for (topic, reason, part) in [
                (&topic[..], ReasonCode::QuotaExceeded, "no room"),
                ("$SYS/x", ReasonCode::NotAuthorized, "access control"),
            ] {
                client.send_message(&Message::new(topic, "x", QOS_1).retained().packet_id(3));
                let puback = client.puback();
                client.send_message(&Message::new(topic, "x", QOS_2).retained().packet_id(4));
                let pubrec = client.pubrec();
                for ack in [puback, pubrec] {
                    assert_eq!(ack.reason, reason, "{topic}");
                    let why = told(&ack.properties);
                    assert_eq!(why.is_some_and(|why| why.contains(part)), is_told, "{name} {topic}");
                }
            }
            let will = Message::new(&topic, "x".repeat(2000), QOS_0);
            let connack = b.refused(&connect(b, "will").will(will)).expect("CONNACK");
            assert_eq!(connack.reason, ReasonCode::QuotaExceeded);
            assert_eq!(told(&connack.properties).is_some_and(|why| why.contains("Will")), is_told, "{name}");
        }
    });
}

/// 3.1.2.11.7 [MQTT-3.1.2-29]
#[test]
fn reason_strings_come_only_when_asked_for() {
    v5(|b| {
        let topic = b.topic("t");
        let connect = b.client("a").with(Property::RequestProblemInformation(0));
        let (mut client, _) = b.connect_with(connect);
        let bare = |properties: &PropertiesBuf| {
            properties.as_properties().reason_string().is_none()
                && !properties.as_properties().iter().any(|p| matches!(p, Property::UserProperty(..)))
        };
        // A filter with too many levels is refused.
        client.send_subscribe(1, &[(&"d/".repeat(200), at(QOS_0)), (&topic, at(QOS_0))], &[]);
        assert!(bare(&client.suback().properties));
        client.send_unsubscribe(2, &["not/there", &topic]);
        assert!(bare(&client.unsuback().properties));
        client.send_message(&Message::new(&topic, "x", QOS_1).packet_id(3));
        assert!(bare(&client.puback().properties));
        client.send_message(&Message::new(&topic, "x", QOS_2).packet_id(4));
        assert!(bare(&client.pubrec().properties));
        client.send_pubrel(4);
        assert!(bare(&client.pubcomp().properties));
        client.send_pubrel(5);
        assert!(bare(&client.pubcomp().properties));
    });
}
