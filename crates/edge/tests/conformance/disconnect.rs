//! DISCONNECT (3.14).

use crate::harness::*;

/// [MQTT-3.14.4-2] [MQTT3-3.14.4-2]: the server closes the connection if the client does not.
#[test]
fn the_connection_ends_with_disconnect() {
    every_version(|b| {
        let mut client = b.connect("a");
        client.send_bytes(&[0xE0, 0]);
        client.closed();
    });
}

/// [MQTT-3.14.4-1] [MQTT3-3.14.4-1]
#[test]
fn packets_after_disconnect_are_ignored() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut witness = b.connect("witness");
        witness.subscribe(&topic, QOS_1);
        let mut client = b.connect("a");
        let mut bytes = Message::new(&topic, "last words", QOS_0).encode(b.version);
        bytes.extend([0xE0, 0]);
        bytes.extend(Message::new(&topic, "too late", QOS_0).encode(b.version));
        bytes.extend([0xC0, 0]);
        client.send_bytes(&bytes);
        client.closed();
        assert_eq!(witness.message().text(), "last words");
        let mut other = b.connect("other");
        witness.nothing_from(&mut other);
    });
}

/// 3.14.2.1: the Reason Codes that a client may send.
#[test]
fn a_client_may_send_any_reason_code_of_clients() {
    v5(|b| {
        for reason in [0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99] {
            let mut client = b.connect("a");
            client.send_bytes(&[0xE0, 1, reason]);
            assert_eq!(client.recv(), Received::Closed, "{reason:#04x}");
            let mut client = b.connect("a");
            client.send_bytes(&[0xE0, 2, reason, 0]);
            assert_eq!(client.recv(), Received::Closed, "{reason:#04x}");
        }
    });
}

/// A DISCONNECT may carry a Reason String and User Properties (3.14.2.2).
#[test]
fn a_client_may_explain_its_reason() {
    v5(|b| {
        let mut client = b.connect("a");
        let properties = PropertiesBuf::from_iter([
            Property::ReasonString("tired"),
            Property::UserProperty("a", "b"),
            Property::SessionExpiryInterval(0),
        ]);
        client.send_disconnect(ReasonCode::Success, &properties);
        client.closed();
    });
}

/// [MQTT-3.14.2-1]: the code is not a Reason Code of DISCONNECT.
#[test]
fn an_unknown_reason_code_is_an_error() {
    v5(|b| {
        for reason in [0x01, 0x10, 0x7F, 0xFF] {
            let mut client = b.connect("a");
            client.send_bytes(&[0xE0, 2, reason, 0]);
            client.closed_for_one_of(&[ReasonCode::MalformedPacket, ReasonCode::ProtocolError]);
        }
    });
}
