//! Enhanced authentication (3.15, 4.12) without a configured mechanism.

use crate::harness::*;

/// [MQTT-4.12.0-1]
#[test]
fn an_unknown_authentication_method_is_refused() {
    v5(|b| {
        let connects = [
            b.client("a").with(Property::AuthenticationMethod("SCRAM-SHA-1")),
            b.client("a").with(Property::AuthenticationMethod("")),
            b.client("a")
                .with(Property::AuthenticationMethod("X"))
                .with(Property::AuthenticationData(b"\0data")),
            b.client("a").with(Property::AuthenticationMethod("X")).username("user").password(b"secret"),
        ];
        for connect in connects {
            let connack = b.refused(&connect).expect("a CONNACK");
            let reasons: &[ReasonCode] = &[ReasonCode::BadAuthenticationMethod, ReasonCode::NotAuthorized];
            let allowed = if Broker::is_external() { reasons } else { &reasons[..1] };
            assert!(allowed.contains(&connack.reason), "{connack:?}");
        }
    });
}

/// [MQTT-4.12.0-7] [MQTT-4.12.0-6]
#[test]
fn auth_without_a_method_is_an_error() {
    v5(|b| {
        for reason in [ReasonCode::ReAuthenticate, ReasonCode::ContinueAuthentication] {
            for properties in [&[][..], &[Property::AuthenticationMethod("X")]] {
                let mut client = b.connect("a");
                let properties: PropertiesBuf = properties.iter().copied().collect();
                let code = reason.as_u8();
                if properties.is_empty() {
                    client.send_bytes(&[0xF0, 2, code, 0]);
                } else {
                    client.send_auth(reason, &properties);
                }
                client.closed_for_one_of(&[ReasonCode::ProtocolError, ReasonCode::BadAuthenticationMethod]);
            }
        }
    });
}

/// MQTT 3.1.1 (2.2.1) and 3.1 have no AUTH: packet type 15 is forbidden before 5.0 (3.15).
#[test]
fn auth_does_not_exist_before_5_0() {
    for version in [V3_1, V3_1_1] {
        v5(|b| {
            let mut client = b.connect_as(version, "a");
            client.send_bytes(&[0xF0, 0]);
            client.closed();
        });
    }
}

/// [MQTT-3.15.1-1]
#[test]
fn auth_has_no_flags() {
    v5(|b| {
        for flags in [1, 2, 8, 15] {
            let mut client = b.connect("a");
            client.send_bytes(&[0xF0 | flags, 2, 0x19, 0]);
            client.closed_for(ReasonCode::MalformedPacket);
        }
    });
}
