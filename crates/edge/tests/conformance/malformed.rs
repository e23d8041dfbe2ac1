//! Packets that no client should send, byte by byte (1.5, 2, 3, 4.13). Each one ends the connection of its sender. A
//! 5.0 sender gets a reason, and the broker continues to serve others.

use crate::harness::wire::{packet, properties, string};
use crate::harness::*;

const MALFORMED: &[ReasonCode] = &[ReasonCode::MalformedPacket];
/// Reason codes where the specification says Protocol Error, or does not say which of the two applies.
const EITHER: &[ReasonCode] = &[ReasonCode::MalformedPacket, ReasonCode::ProtocolError];

/// Expects that the broker refuses these bytes of a connected client.
fn refused(b: &Broker, bytes: &[u8], reasons: &[ReasonCode]) {
    let mut client = b.connect("bad");
    client.send_bytes(bytes);
    let received = client.recv();
    match &received {
        Received::Disconnect(disconnect) if b.version == V5 => {
            // Other brokers use Malformed Packet for a Protocol Error, and the reverse.
            let reasons = if Broker::is_external() { EITHER } else { reasons };
            assert!(
                reasons.contains(&disconnect.reason),
                "{bytes:02x?}: {} instead of {reasons:?}",
                disconnect.reason
            );
            assert_eq!(client.recv(), Received::Closed, "{bytes:02x?}");
        }
        Received::Closed if b.version != V5 || Broker::is_external() => {}
        other => panic!("{bytes:02x?}: {other:?} instead of {reasons:?}"),
    }
}

/// An HTTP client gets an answer that names MQTT. A TLS handshake fails at once.
#[test]
fn clients_of_other_protocols_get_an_answer() {
    use std::io::Read as _;
    every_version_ours(|b| {
        let all = |bytes: &[u8]| {
            let mut client = b.open();
            client.send_bytes(bytes);
            let mut answer = Vec::new();
            client.stream().read_to_end(&mut answer).expect("it ends");
            String::from_utf8(answer).expect("text")
        };
        for request in ["GET / HTTP/1.1\r\nHost: x\r\n\r\n", "POST /mqtt HTTP/1.1\r\n\r\n"] {
            let answer = all(request.as_bytes());
            assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
            let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
            assert!(head.contains(&format!("Content-Length: {}", body.len())), "{answer}");
            assert!(body.contains("This port speaks MQTT, not HTTP"), "{answer}");
        }
        assert_eq!(all(&[0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3]), "");
        b.connect("a good one").nothing();
    });
}

/// Expects that a CONNECT is refused, with or without a CONNACK [MQTT-3.1.4-1] [MQTT-3.1.4-2] [MQTT3-3.1.4-1].
fn refused_connect(b: &Broker, bytes: &[u8], reasons: &[ReasonCode]) {
    let mut client = b.open();
    client.send_bytes(bytes);
    match client.recv() {
        Received::Closed => {}
        Received::ConnAck(connack) => {
            let reasons = if Broker::is_external() { EITHER } else { reasons };
            assert!(connack.reason.is_error(), "{bytes:02x?}");
            // [MQTT-3.2.2-6] [MQTT-3.2.2-7]
            assert!(!connack.session_present);
            assert!(b.version != V5 || reasons.contains(&connack.reason), "{bytes:02x?}: {connack:?}");
            assert_eq!(client.recv(), Received::Closed);
        }
        other => panic!("{bytes:02x?}: {other:?}"),
    }
}

fn no_properties(b: &Broker) -> &'static [u8] {
    if b.version == V5 { &[0] } else { &[] }
}

/// Returns one of each packet that a client sends, in the version of the run.
fn good_packets(b: &Broker) -> Vec<Vec<u8>> {
    let none = no_properties(b);
    let topic = string(b.topic("t"));
    vec![
        packet(0x30, &[&topic, none, b"payload"]),
        packet(0x32, &[&topic, &[0, 1], none, b"payload"]),
        packet(0x34, &[&topic, &[0, 1], none, b"payload"]),
        packet(0x40, &[&[0, 1]]),
        packet(0x50, &[&[0, 1]]),
        packet(0x62, &[&[0, 1]]),
        packet(0x70, &[&[0, 1]]),
        packet(0x82, &[&[0, 1], none, &topic, &[1]]),
        packet(0xA2, &[&[0, 1], none, &topic]),
        packet(0xC0, &[]),
        packet(0xE0, &[]),
    ]
}

/// [MQTT-2.1.3-1] [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.10.1-1] [MQTT-3.14.1-1] [MQTT-3.15.1-1] [MQTT3-2.2.2-1]
/// [MQTT3-2.2.2-2] [MQTT3-3.6.1-1] [MQTT3-3.8.1-1] [MQTT3-3.10.1-1] [MQTT3-3.14.1-1]
#[test]
fn reserved_flags_are_refused() {
    from_3_1_1(|b| {
        for good in good_packets(b).into_iter().filter(|good| good[0] >> 4 != 3) {
            for flags in (0..16).filter(|flags| *flags != good[0] & 0x0F) {
                let mut bytes = good.clone();
                bytes[0] = good[0] & 0xF0 | flags;
                refused(b, &bytes, MALFORMED);
            }
        }
    });
}

/// [MQTT-3.1.4-1] 3.1.1: CONNECT has no flags in its fixed header.
#[test]
fn flags_of_connect_are_refused() {
    from_3_1_1(|b| {
        for flags in 1..16 {
            let mut bytes = b.client("bad").encode();
            bytes[0] |= flags;
            refused_connect(b, &bytes, MALFORMED);
        }
    });
}

/// [MQTT-3.3.1-4] [MQTT3-3.3.1-4]; [MQTT-3.3.1-2] [MQTT3-3.3.1-2]
#[test]
fn invalid_flags_of_publish_are_refused() {
    every_version(|b| {
        for flags in [0b0110, 0b0111, 0b1110, 0b1111] {
            refused(
                b,
                &packet(0x30 | flags, &[&string(b.topic("t")), &[0, 1], no_properties(b), b"x"]),
                MALFORMED,
            );
        }
    });
    from_3_1_1(|b| {
        for flags in [0b1000, 0b1001] {
            refused(b, &packet(0x30 | flags, &[&string(b.topic("t")), no_properties(b), b"x"]), MALFORMED);
        }
    });
}

/// 2.1.2: type 0 is reserved, in any position and with any flags.
#[test]
fn packet_type_0_is_refused() {
    every_version(|b| {
        for first in 0..16 {
            refused(b, &[first, 0], MALFORMED);
            refused(b, &[first, 2, 0, 1], MALFORMED);
            let mut client = b.open();
            client.send_bytes(&[first, 0]);
            client.closed();
        }
    });
}

/// 2.1.2: packets that only a server sends.
#[test]
fn packets_of_a_server_are_refused() {
    every_version(|b| {
        let none = no_properties(b);
        for bytes in [
            packet(0x20, &[&[0, 0], none]),
            packet(0x90, &[&[0, 1], none, &[0]]),
            packet(0xB0, &[&[0, 1], none, if b.version == V5 { &[0] } else { &[] }]),
            packet(0xD0, &[]),
        ] {
            refused(b, &bytes, EITHER);
        }
    });
}

/// 1.5.5, 2.1.4: a length of five bytes is invalid.
#[test]
fn a_remaining_length_of_more_than_four_bytes_is_refused() {
    every_version(|b| {
        for first in [0x30, 0x32, 0x40, 0x50, 0x62, 0x70, 0x82, 0xA2, 0xC0, 0xE0] {
            refused(b, &[first, 0xFF, 0xFF, 0xFF, 0xFF, 0x01], MALFORMED);
            refused(b, &[first, 0x80, 0x80, 0x80, 0x80, 0x00], MALFORMED);
        }
        let mut client = b.open();
        client.send_bytes(&[0x10, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F]);
        client.closed();
    });
}

/// 3.12, 3.14: packets with additional bytes.
#[test]
fn additional_bytes_are_refused() {
    from_3_1_1(|b| {
        refused(b, &[0xC0, 1, 0], MALFORMED);
        if b.version == V3_1_1 {
            refused(b, &[0xE0, 1, 0], MALFORMED);
            for first in [0x40, 0x50, 0x62, 0x70] {
                refused(b, &[first, 3, 0, 1, 0], MALFORMED);
            }
        } else {
            // A Reason Code, no properties, and further bytes.
            for first in [0x40, 0x50, 0x62, 0x70] {
                refused(b, &[first, 5, 0, 1, 0, 0, 0], MALFORMED);
            }
            refused(b, &[0xE0, 3, 0, 0, 0], MALFORMED);
        }
        // The beginning of another filter.
        let none = no_properties(b);
        let topic = string(b.topic("t"));
        refused(b, &packet(0x82, &[&[0, 1], none, &topic, &[0], &[0]]), MALFORMED);
        refused(b, &packet(0xA2, &[&[0, 1], none, &topic, &[0]]), MALFORMED);
        let mut connect = b.client("bad").encode();
        connect[1] += 1;
        connect.push(0);
        refused_connect(b, &connect, MALFORMED);
    });
}

/// Every packet, truncated after each of its bytes, with a matching Remaining Length.
#[test]
fn truncated_packets_are_refused() {
    from_3_1_1(|b| {
        let payload = b"payload".len();
        for good in good_packets(b) {
            let body = &good[2..];
            let optional = match good[0] >> 4 {
                // A payload may have any length, including 0.
                3 => payload + 1,
                12 | 14 => continue,
                _ => 1,
            };
            for length in 0..=body.len() - optional {
                refused(b, &packet(good[0], &[&body[..length]]), EITHER);
            }
        }
    });
}

/// Truncation of a CONNECT with all optional parts.
#[test]
fn a_truncated_connect_is_refused() {
    from_3_1_1(|b| {
        let mut connect = b.client("bad").username("user").password(b"secret");
        let mut will = Message::new(&b.topic("will"), "gone", QOS_1);
        if b.version == V5 {
            connect = connect.expiry(0).with(Property::UserProperty("a", "b"));
            will = will.with(Property::WillDelayInterval(1)).with(Property::ContentType("c"));
        }
        let good = connect.will(will).encode();
        let body = &good[2..];
        assert!(good[1] < 128, "a Remaining Length of one byte");
        for length in 0..body.len() {
            let mut client = b.open();
            client.send_bytes(&packet(0x10, &[&body[..length]]));
            match client.recv() {
                Received::ConnAck(connack) => {
                    assert!(connack.reason.is_error(), "{length} of {} bytes", body.len());
                    client.closed();
                }
                other => assert_eq!(other, Received::Closed, "{length} of {} bytes", body.len()),
            }
        }
    });
}

/// [MQTT-2.2.1-3] [MQTT-2.2.1-2] [MQTT3-2.3.1-1]
#[test]
fn packet_identifier_0_is_refused() {
    from_3_1_1(|b| {
        let none = no_properties(b);
        let topic = string(b.topic("t"));
        for bytes in [
            packet(0x32, &[&topic, &[0, 0], none, b"x"]),
            packet(0x34, &[&topic, &[0, 0], none, b"x"]),
            packet(0x40, &[&[0, 0]]),
            packet(0x50, &[&[0, 0]]),
            packet(0x62, &[&[0, 0]]),
            packet(0x70, &[&[0, 0]]),
            packet(0x82, &[&[0, 0], none, &topic, &[0]]),
            packet(0xA2, &[&[0, 0], none, &topic]),
        ] {
            refused(b, &bytes, EITHER);
        }
    });
}

/// [MQTT-3.8.3-2] [MQTT-3.10.3-2] [MQTT3-3.8.3-3] [MQTT3-3.10.3-2]
#[test]
fn a_subscribe_without_topic_filters_is_refused() {
    every_version(|b| {
        refused(b, &packet(0x82, &[&[0, 1], no_properties(b)]), &[ReasonCode::ProtocolError]);
        refused(b, &packet(0xA2, &[&[0, 1], no_properties(b)]), &[ReasonCode::ProtocolError]);
    });
}

/// [MQTT-3.8.3-5] 3.8.3.1 [MQTT3-3.8.3-4]
#[test]
fn reserved_subscription_options_are_refused() {
    from_3_1_1(|b| {
        let reserved: &[u8] = match b.version {
            V5 => &[0x40, 0x80, 0xC0, 0x41],
            _ => &[0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFC],
        };
        let subscribe =
            |options: u8| packet(0x82, &[&[0, 1], no_properties(b), &string(b.topic("t")), &[options]]);
        for options in reserved {
            refused(b, &subscribe(*options), MALFORMED);
        }
        // QoS 3, and Retain Handling 3.
        refused(b, &subscribe(0x03), EITHER);
        if b.version == V5 {
            refused(b, &subscribe(0x30), EITHER);
            refused(b, &subscribe(0x32), EITHER);
        }
    });
}

/// Byte strings that are not UTF-8, and one that is UTF-8 but contains U+0000.
const NOT_UTF_8: [&[u8]; 16] = [
    b"\0",
    b"a\0b",
    b"\x80",
    b"\xBF",
    b"\xC3",
    b"\xC3\x28",
    b"\xC0\x80",
    b"\xC1\xBF",
    b"\xE0\x80\xAF",
    b"\xED\xA0\x80",
    b"\xED\xBF\xBF",
    b"\xED\xA0\xBD\xED\xB8\x80",
    b"\xF0\x82\x82\xAC",
    b"\xF4\x90\x80\x80",
    b"\xF5\x80\x80\x80",
    b"\xFF\xFE",
];

/// [MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-3.3.2-1] [MQTT-3.8.3-1] [MQTT-3.10.3-1] [MQTT-4.7.3-2] [MQTT3-1.5.3-1]
/// [MQTT3-1.5.3-2] [MQTT3-3.3.2-1] [MQTT3-3.8.3-1] [MQTT3-3.10.3-1] [MQTT3-4.7.3-2]
#[test]
fn topics_that_are_not_utf_8_are_refused() {
    every_version(|b| {
        let none = no_properties(b);
        for bad in NOT_UTF_8 {
            let bad = string([b.topic("").as_bytes(), bad].concat());
            refused(b, &packet(0x30, &[&bad, none, b"x"]), MALFORMED);
            refused(b, &packet(0x32, &[&bad, &[0, 1], none, b"x"]), MALFORMED);
            refused(b, &packet(0x82, &[&[0, 1], none, &bad, &[0]]), MALFORMED);
            refused(b, &packet(0xA2, &[&[0, 1], none, &bad]), MALFORMED);
        }
    });
}

/// [MQTT-3.1.3-4] [MQTT-3.1.3-11] [MQTT-3.1.3-12] [MQTT3-3.1.3-4] [MQTT3-3.1.3-10] [MQTT3-3.1.3-11]
#[test]
fn strings_of_connect_that_are_not_utf_8_are_refused() {
    every_version(|b| {
        let none = no_properties(b);
        let name: &[u8] = if b.version == V3_1 { b"\0\x06MQIsdp" } else { b"\0\x04MQTT" };
        let connect = |flags: u8, payload: &[&[u8]]| {
            packet(0x10, &[name, &[b.version as u8, flags, 0, 0], none, &payload.concat()])
        };
        let id = string(b.id("bad"));
        for bad in NOT_UTF_8 {
            let bad = string(bad);
            let reasons = &[ReasonCode::MalformedPacket, ReasonCode::ClientIdentifierNotValid];
            refused_connect(b, &connect(0x02, &[&bad]), reasons);
            refused_connect(b, &connect(0x06, &[&id, none, &bad, b"\0\x01x"]), MALFORMED);
            refused_connect(b, &connect(0x82, &[&id, &bad]), MALFORMED);
        }
    });
}

/// [MQTT-1.5.7-1] [MQTT-3.3.2-13] [MQTT-3.3.2-19]
#[test]
fn properties_that_are_not_utf_8_are_refused() {
    v5(|b| {
        let topic = string(b.topic("t"));
        for bad in NOT_UTF_8 {
            let bad = string(bad);
            for block in [
                properties(&[&[0x03], &bad]),
                properties(&[&[0x08], &bad]),
                properties(&[&[0x26], &bad, &string("value")]),
                properties(&[&[0x26], &string("name"), &bad]),
            ] {
                refused(b, &packet(0x30, &[&topic, &block, b"x"]), MALFORMED);
            }
        }
    });
}

/// Unusual but valid strings: U+FEFF and others [MQTT-1.5.4-3] [MQTT3-1.5.3-3].
#[test]
fn unusual_utf_8_strings_are_accepted() {
    every_version(|b| {
        let mut client = b.connect("a");
        client.subscribe(&b.topic("#"), QOS_0);
        for good in
            ["\u{FEFF}", "\u{FFFD}", "\u{D7FF}", "\u{E000}", "\u{10000}", "\u{10FFFD}", "\u{2028}", "ẞ"]
        {
            let topic = b.topic(good);
            client.publish(&topic, "x", QOS_0);
            assert_eq!(client.message().topic, topic);
        }
    });
}

/// [MQTT-4.7.3-1] [MQTT3-4.7.3-1] 3.3.2.1: a PUBLISH without a topic and without an alias.
#[test]
fn an_empty_topic_name_is_refused() {
    every_version(|b| {
        let none = no_properties(b);
        refused(
            b,
            &packet(0x30, &[&string(""), none, b"x"]),
            &[ReasonCode::ProtocolError, ReasonCode::TopicNameInvalid],
        );
        refused(
            b,
            &packet(0x32, &[&string(""), &[0, 1], none, b"x"]),
            &[ReasonCode::ProtocolError, ReasonCode::TopicNameInvalid],
        );
    });
}

/// Flags of CONNECT that contradict each other or the payload [MQTT-3.1.2-3] [MQTT-3.1.2-9] [MQTT-3.1.2-11]
/// [MQTT-3.1.2-12] [MQTT-3.1.2-13] [MQTT-3.1.2-16] to [MQTT-3.1.2-19] [MQTT3-3.1.2-3] [MQTT3-3.1.2-11]
/// [MQTT3-3.1.2-13] [MQTT3-3.1.2-14] [MQTT3-3.1.2-15] [MQTT3-3.1.2-18] to [MQTT3-3.1.2-22]
#[test]
fn contradictory_connect_flags_are_refused() {
    from_3_1_1(|b| {
        let none = no_properties(b);
        let connect = |flags: u8, payload: &[&[u8]]| {
            packet(0x10, &[b"\0\x04MQTT", &[b.version as u8, flags, 0, 0], none, &payload.concat()])
        };
        let id = string(b.id("bad"));
        let (topic, gone) = (string("will"), string("gone"));
        let (user, secret) = (string("user"), string("secret"));
        let mut cases: Vec<(u8, Vec<&[u8]>)> = vec![
            // The reserved flag.
            (0x03, vec![&id]),
            // Will QoS 1, 2, 3 and Will Retain without a Will.
            (0x0A, vec![&id]),
            (0x12, vec![&id]),
            (0x1A, vec![&id]),
            (0x22, vec![&id]),
            // Will QoS 3.
            (0x1E, vec![&id, none, &topic, &gone]),
            // A missing Will, in whole or in part.
            (0x06, vec![&id]),
            (0x06, vec![&id, none, &topic]),
            // A Will that the flags do not announce.
            (0x02, vec![&id, none, &topic, &gone]),
            // A missing user name, and one that the flags do not announce.
            (0x82, vec![&id]),
            (0x02, vec![&id, &user]),
            // The same for a password.
            (0xC2, vec![&id, &user]),
            (0x82, vec![&id, &user, &secret]),
            // No Client Identifier [MQTT-3.1.3-3] [MQTT3-3.1.3-3].
            (0x02, vec![]),
        ];
        if b.version == V3_1_1 {
            cases.push((0x42, vec![&id, &secret]));
        }
        for (flags, payload) in cases {
            refused_connect(b, &connect(flags, &payload), EITHER);
        }
    });
}

/// [MQTT-3.1.0-2] with raw bytes: a second CONNECT is an error, however malformed it is.
#[test]
fn a_malformed_second_connect_is_refused() {
    from_3_1_1(|b| {
        refused(b, &[0x10, 0], EITHER);
    });
}

/// Identifier and a value of its type, for each of the 27 properties (2.2.2.2).
const PROPERTIES: [(u8, &[u8]); 27] = [
    (0x01, &[1]),
    (0x02, &[0, 0, 0, 9]),
    (0x03, b"\0\x01c"),
    (0x08, b"\0\x01r"),
    (0x09, b"\0\x01d"),
    (0x0B, &[5]),
    (0x11, &[0, 0, 0, 0]),
    (0x12, b"\0\x01i"),
    (0x13, &[0, 9]),
    (0x15, b"\0\x01m"),
    (0x16, b"\0\x01d"),
    (0x17, &[1]),
    (0x18, &[0, 0, 0, 9]),
    (0x19, &[1]),
    (0x1A, b"\0\x01i"),
    (0x1C, b"\0\x01s"),
    (0x1F, b"\0\x01r"),
    (0x21, &[0, 9]),
    (0x22, &[0, 9]),
    (0x23, &[0, 1]),
    (0x24, &[1]),
    (0x25, &[1]),
    (0x26, b"\0\x01n\0\x01v"),
    (0x27, &[0, 1, 0, 0]),
    (0x28, &[1]),
    (0x29, &[1]),
    (0x2A, &[1]),
];

/// Packet with a property block, and the properties that are allowed in it (2.2.2.2).
type WithProperties<'a> = (&'a dyn Fn(&[u8]) -> Vec<u8>, &'a [u8]);

fn each_packet(b: &Broker, check: impl Fn(WithProperties<'_>)) {
    let topic = string(b.topic("t"));
    let publish = |block: &[u8]| packet(0x30, &[&topic, block, b"x"]);
    let acks = [0x40, 0x50, 0x62, 0x70].map(|first| move |block: &[u8]| packet(first, &[&[0, 9, 0], block]));
    let subscribe = |block: &[u8]| packet(0x82, &[&[0, 9], block, &topic, &[0]]);
    let unsubscribe = |block: &[u8]| packet(0xA2, &[&[0, 9], block, &topic]);
    let disconnect = |block: &[u8]| packet(0xE0, &[&[0], block]);
    check((&publish, &[0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x23, 0x26]));
    for ack in &acks {
        check((ack, &[0x1F, 0x26]));
    }
    check((&subscribe, &[0x0B, 0x26]));
    check((&unsubscribe, &[0x26]));
    // Server Reference is for servers, but DISCONNECT may contain it.
    check((&disconnect, &[0x11, 0x1C, 0x1F, 0x26]));
}

/// 2.2.2.2: a property of another packet type.
#[test]
fn properties_of_other_packets_are_refused() {
    v5(|b| {
        each_packet(b, |(build, allowed)| {
            for (id, value) in PROPERTIES.into_iter().filter(|(id, _)| !allowed.contains(id)) {
                refused(b, &build(&properties(&[&[id], value])), EITHER);
            }
        });
    });
}

/// 2.2.2.2: an unknown Identifier, in one byte or more.
#[test]
fn unknown_properties_are_refused() {
    v5(|b| {
        each_packet(b, |(build, _)| {
            for id in [&[0x00][..], &[0x04], &[0x0A], &[0x14], &[0x2B], &[0x7F], &[0x81, 0x01], &[0xFF, 0x7F]]
            {
                refused(b, &build(&properties(&[id, &[1]])), EITHER);
            }
        });
    });
}

/// 2.2.2.2: "It is a Protocol Error to include ... more than once", but for User Properties.
#[test]
fn repeated_properties_are_refused() {
    v5(|b| {
        each_packet(b, |(build, allowed)| {
            for id in allowed.iter().filter(|id| **id != 0x26) {
                let (_, value) = PROPERTIES.iter().find(|(known, _)| known == id).expect("one of the 27");
                // A Topic Alias and a Subscription Identifier are wrong for another reason too.
                refused(b, &build(&properties(&[&[*id], value, &[*id], value])), EITHER);
            }
        });
    });
}

/// 2.2.2.1: a wrong or invalid Property Length.
#[test]
fn a_wrong_property_length_is_refused() {
    v5(|b| {
        each_packet(b, |(build, allowed)| {
            let user = b"\x26\0\x01n\0\x01v";
            // Longer than the packet, and too long for a length.
            refused(b, &build(&[&[100], &user[..]].concat()), EITHER);
            refused(b, &build(&[0x80, 0x80, 0x80, 0x80, 0x01]), EITHER);
            // Truncated within a property.
            for length in 1..user.len() {
                refused(b, &build(&properties(&[&user[..length]])), EITHER);
            }
            for id in allowed {
                refused(b, &build(&properties(&[&[*id]])), EITHER);
            }
        });
    });
}

/// CONNECT with properties of other packets, unknown or repeated properties, or invalid values (3.1.2.11)
/// [MQTT-3.1.4-2].
#[test]
fn invalid_properties_of_connect_are_refused() {
    v5(|b| {
        let connect = |block: &[u8]| packet(0x10, &[b"\0\x04MQTT\x05\x02\0\0", block, &string(b.id("bad"))]);
        let allowed = [0x11, 0x15, 0x16, 0x17, 0x19, 0x21, 0x22, 0x26, 0x27];
        for (id, value) in PROPERTIES {
            if !allowed.contains(&id) {
                refused_connect(b, &connect(&properties(&[&[id], value])), EITHER);
            } else if id != 0x26 {
                refused_connect(b, &connect(&properties(&[&[id], value, &[id], value])), EITHER);
            }
        }
        let wrong: [&[u8]; 9] = [
            // Receive Maximum 0, Maximum Packet Size 0.
            &[0x21, 0, 0],
            &[0x27, 0, 0, 0, 0],
            // Boolean values other than 0 and 1.
            &[0x17, 2],
            &[0x19, 2],
            &[0x17, 0xFF],
            // Authentication Data without a method.
            b"\x16\0\x01d",
            &[0x00],
            &[0x7F, 1],
            &[0x11, 0, 0],
        ];
        for value in wrong {
            refused_connect(b, &connect(&properties(&[value])), EITHER);
        }
    });
}

/// The same for a Will (3.1.3.2).
#[test]
fn invalid_properties_of_a_will_are_refused() {
    v5(|b| {
        let connect = |block: &[u8]| {
            packet(
                0x10,
                &[b"\0\x04MQTT\x05\x06\0\0\0", &string(b.id("bad")), block, &string("will"), &string("gone")],
            )
        };
        let allowed = [0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26];
        for (id, value) in PROPERTIES {
            if !allowed.contains(&id) {
                refused_connect(b, &connect(&properties(&[&[id], value])), EITHER);
            } else if id != 0x26 {
                refused_connect(b, &connect(&properties(&[&[id], value, &[id], value])), EITHER);
            }
        }
        refused_connect(b, &connect(&properties(&[&[0x01, 2]])), EITHER);
    });
}

/// 3.3.2.3: invalid values.
#[test]
fn invalid_property_values_of_publish_are_refused() {
    v5(|b| {
        let topic = string(b.topic("t"));
        for flag in [2, 0xFF] {
            refused(b, &packet(0x30, &[&topic, &properties(&[&[0x01, flag]]), b"x"]), EITHER);
        }
        // An empty Response Topic [MQTT-4.7.3-1].
        refused(
            b,
            &packet(0x30, &[&topic, &properties(&[b"\x08\0\0"]), b"x"]),
            &[ReasonCode::MalformedPacket, ReasonCode::ProtocolError, ReasonCode::TopicNameInvalid],
        );
    });
}

/// [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.6.2-1] [MQTT-3.7.2-1]
#[test]
fn reason_codes_of_other_packets_are_refused() {
    v5(|b| {
        for (first, reasons) in [
            (0x40, &[0x01, 0x04, 0x11, 0x92, 0x8E, 0xFF][..]),
            (0x50, &[0x02, 0x04, 0x92, 0xFF]),
            (0x62, &[0x01, 0x10, 0x80, 0x97]),
            (0x70, &[0x01, 0x10, 0x80, 0x97]),
        ] {
            for reason in reasons {
                refused(b, &[first, 3, 0, 9, *reason], EITHER);
                refused(b, &[first, 4, 0, 9, *reason, 0], EITHER);
            }
        }
    });
}

/// [MQTT-1.5.5-1]: a length with more bytes than it needs. Other brokers may accept it where it has no effect; Meridian
/// refuses it.
#[test]
fn a_padded_length_is_refused() {
    v5_ours(|b| {
        let topic = string(b.topic("t"));
        refused(b, &packet(0x30, &[&topic, &[0x80, 0x00], b"x"]), MALFORMED);
        refused(b, &packet(0x82, &[&[0, 9], &[0x03, 0x0B, 0x81, 0x00], &topic, &[0]]), MALFORMED);
        refused(b, &[0xC0, 0x80, 0x00], MALFORMED);
    });
}
