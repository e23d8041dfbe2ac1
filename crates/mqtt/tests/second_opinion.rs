//! Agreement with `mqtt-protocol-core`, an independent codec of 3.1.1 and 5.0, on valid and on mutated packets.
//! Where the two differ, `they_do_not_check` or `they_refuse` has the reason.

mod common;
#[path = "../fuzz/mutate.rs"]
mod mutate;

use common::sample;
use mqtt::{DecodeError, Packet, PacketType, ReasonCode, Subscription, Version, decode};
use mqtt_protocol_core::mqtt::packet::{v3_1_1, v5_0};
use mqtt_protocol_core::mqtt::result_code::MqttError;
use mutate::mutate;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;
use random::Random;

/// Configuration with a fixed seed, so that a rare, unreviewed difference does not stop unrelated work;
/// `PROPTEST_RNG_SEED` and `PROPTEST_CASES` search for one.
fn config() -> ProptestConfig {
    let standard = ProptestConfig::default();
    let asked =
        std::env::var_os("PROPTEST_RNG_SEED").is_some() || std::env::var_os("PROPTEST_CASES").is_some();
    let (cases, rng_seed) =
        if asked { (standard.cases, standard.rng_seed) } else { (1024, RngSeed::Fixed(0)) };
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..standard }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn valid_packets(sample in sample(), version in select(&[Version::V3_1_1, Version::V5][..])) {
        let mut bytes = Vec::new();
        if sample.with(|packet| packet.encode(version, &mut bytes)) {
            agree(version, &bytes).map_err(TestCaseError::fail)?;
        }
    }

    #[test]
    fn mutated_packets(
        samples in vec(sample(), 2),
        version in select(&[Version::V3_1_1, Version::V5][..]),
        seed in any::<u64>(),
    ) {
        let [bytes, other] = [0, 1].map(|index: usize| {
            let mut bytes = Vec::new();
            samples[index].with(|packet| packet.encode(version, &mut bytes));
            bytes
        });
        for round in 0..32 {
            let mut random = Random::new(seed.wrapping_add(round));
            let mut mutated = bytes.clone();
            mutate(&mut random, &mut mutated, &other);
            agree(version, &mutated).map_err(TestCaseError::fail)?;
        }
    }
}

/// Checks that both codecs accept `bytes` with the same meaning, or both refuse them, or the difference is a known
/// one.
fn agree(version: Version, bytes: &[u8]) -> Result<(), String> {
    let Some(body) = body(bytes) else { return Ok(()) };
    let Some(packet_type) = PacketType::of(bytes[0]) else { return Ok(()) };
    let version = match packet_type {
        PacketType::Connect => match mqtt::connect_version(bytes) {
            Some(Version::V3_1) => return Ok(()),
            Some(version) => version,
            None => version,
        },
        _ => version,
    };
    let ours = decode(version, bytes);
    let theirs = their_decode(version, bytes[0], body);
    match (ours, theirs) {
        (Ok(packet), Ok(again)) => match decode(version, &again) {
            Ok(theirs) if theirs == packet => Ok(()),
            theirs => Err(format!("{version} {bytes:02X?}\nours   {packet:?}\ntheirs {theirs:?}")),
        },
        (Err(_), Err(_)) => Ok(()),
        (Err(error), Ok(_)) if they_do_not_check(version, packet_type, error) => Ok(()),
        (Ok(packet), Err(_)) if they_refuse(packet) => Ok(()),
        (ours, theirs) => Err(format!("{version} {bytes:02X?}\nours   {ours:?}\ntheirs {theirs:?}")),
    }
}

/// Returns the bytes after the fixed header, if `bytes` is one whole packet.
fn body(bytes: &[u8]) -> Option<&[u8]> {
    let size = mqtt::frame(bytes, u32::MAX).ok()??;
    if size != bytes.len() {
        return None;
    }
    let header = 2 + bytes[1..].iter().position(|byte| byte & 0x80 == 0)?;
    Some(&bytes[header..])
}

/// Returns whether the other codec leaves this rule of the specification to its connection layer, or does not check
/// it at all.
fn they_do_not_check(version: Version, packet_type: PacketType, error: DecodeError) -> bool {
    use PacketType::*;
    let v5 = version == Version::V5;
    match error {
        // [MQTT-1.5.4-2] [MQTT3-1.5.3-2]
        DecodeError::StringContainsNull => true,
        // [MQTT-1.5.5-1]
        DecodeError::VariableByteIntegerNotMinimal => v5,
        // [MQTT-2.2.1-3] [MQTT-2.2.1-4] [MQTT3-2.3.1-1], of all but 3.1.1 acknowledgements
        DecodeError::PacketIdentifierZero => true,
        // The flags of the fixed header, which do not reach their parsers: [MQTT-3.6.1-1] [MQTT-3.8.1-1]
        // [MQTT-3.10.1-1]
        DecodeError::FlagsReserved { .. } => matches!(packet_type, PubRel | Subscribe | Unsubscribe),
        // [MQTT-3.1.2-3] [MQTT-3.1.2-11] [MQTT-3.1.2-12] [MQTT-3.1.2-13]
        DecodeError::ConnectFlagReserved | DecodeError::WillFlagsWithoutWill | DecodeError::QoSReserved => {
            packet_type == Connect
        }
        // [MQTT-3.2.2-1] [MQTT-3.2.2-6] [MQTT3-3.2.2-4]
        DecodeError::ConnAckFlagsReserved { .. } | DecodeError::SessionPresentWithError => true,
        // [MQTT-3.3.2-2], [MQTT-4.7.3-1], (3.3.2.1), [MQTT-3.3.2-14]
        DecodeError::TopicNameInvalid | DecodeError::TopicNameMissing => {
            matches!(packet_type, Connect | Publish)
        }
        DecodeError::ResponseTopicInvalid => v5,
        // [MQTT-4.7.3-1]
        DecodeError::TopicFilterEmpty | DecodeError::TopicFilterInvalid => {
            matches!(packet_type, Subscribe | Unsubscribe)
        }
        // [MQTT3-3.8.3-4]: the other codec reads the options of 5.0 in 3.1.1 too.
        DecodeError::SubscriptionOptionsReserved { .. } => !v5,
        // The other codec reads the Reason Code of 5.0 in 3.1.1 too.
        DecodeError::TrailingBytes { .. } => !v5 && matches!(packet_type, PubAck | PubRec | PubRel | PubComp),
        // The other codec lets the Property Length be absent where the specification does not (3.3.2.3.1,
        // 3.15.2.2.1).
        DecodeError::Truncated => v5 && matches!(packet_type, Publish | Auth),
        // (3.1.2.11.10), (3.2.2.3.18), (3.15.2.2.2)
        DecodeError::AuthenticationMethodMissing => matches!(packet_type, Connect | ConnAck | Auth),
        _ => false,
    }
}

/// Returns whether the specification allows a packet that the other codec refuses.
fn they_refuse(packet: Packet<'_>) -> bool {
    match packet {
        // 5.0 allows a password without a user name (3.1.2.9).
        Packet::Connect(connect) => {
            // No specification defines bridges.
            connect.bridge
                || connect.version == Version::V5 && connect.password.is_some() && connect.username.is_none()
        }
        // Table 2-6 gives DISCONNECT this code; 3.14.2.1 leaves it out.
        Packet::Disconnect(disconnect) => disconnect.reason == ReasonCode::BadAuthenticationMethod,
        // The other codec checks the ShareName in 3.1.1 too.
        Packet::Subscribe(subscribe) => {
            subscribe.filters.iter().any(|(filter, _)| Subscription::parse(filter).is_err())
        }
        Packet::Unsubscribe(unsubscribe) => {
            unsubscribe.filters.iter().any(|filter| Subscription::parse(filter).is_err())
        }
        _ => false,
    }
}

/// Decodes and encodes a packet with the other codec.
fn their_decode(version: Version, first: u8, body: &[u8]) -> Result<Vec<u8>, MqttError> {
    macro_rules! parse {
        ($packet:ty) => {{
            let (packet, used) = <$packet>::parse(body)?;
            if used != body.len() {
                return Err(MqttError::MalformedPacket);
            }
            packet.to_continuous_buffer()
        }};
    }
    macro_rules! publish {
        ($packet:ty) => {
            <$packet>::parse(first & 0x0F, body.into())?.0.to_continuous_buffer()
        };
    }
    let packet_type = PacketType::of(first).ok_or(MqttError::MalformedPacket)?;
    Ok(match (version, packet_type) {
        (Version::V5, PacketType::Connect) => parse!(v5_0::Connect),
        (Version::V5, PacketType::ConnAck) => parse!(v5_0::Connack),
        (Version::V5, PacketType::Publish) => publish!(v5_0::Publish),
        (Version::V5, PacketType::PubAck) => parse!(v5_0::Puback),
        (Version::V5, PacketType::PubRec) => parse!(v5_0::Pubrec),
        (Version::V5, PacketType::PubRel) => parse!(v5_0::Pubrel),
        (Version::V5, PacketType::PubComp) => parse!(v5_0::Pubcomp),
        (Version::V5, PacketType::Subscribe) => parse!(v5_0::Subscribe),
        (Version::V5, PacketType::SubAck) => parse!(v5_0::Suback),
        (Version::V5, PacketType::Unsubscribe) => parse!(v5_0::Unsubscribe),
        (Version::V5, PacketType::UnsubAck) => parse!(v5_0::Unsuback),
        (Version::V5, PacketType::PingReq) => parse!(v5_0::Pingreq),
        (Version::V5, PacketType::PingResp) => parse!(v5_0::Pingresp),
        (Version::V5, PacketType::Disconnect) => parse!(v5_0::Disconnect),
        (Version::V5, PacketType::Auth) => parse!(v5_0::Auth),
        (_, PacketType::Connect) => parse!(v3_1_1::Connect),
        (_, PacketType::ConnAck) => parse!(v3_1_1::Connack),
        (_, PacketType::Publish) => publish!(v3_1_1::Publish),
        (_, PacketType::PubAck) => parse!(v3_1_1::Puback),
        (_, PacketType::PubRec) => parse!(v3_1_1::Pubrec),
        (_, PacketType::PubRel) => parse!(v3_1_1::Pubrel),
        (_, PacketType::PubComp) => parse!(v3_1_1::Pubcomp),
        (_, PacketType::Subscribe) => parse!(v3_1_1::Subscribe),
        (_, PacketType::SubAck) => parse!(v3_1_1::Suback),
        (_, PacketType::Unsubscribe) => parse!(v3_1_1::Unsubscribe),
        (_, PacketType::UnsubAck) => parse!(v3_1_1::Unsuback),
        (_, PacketType::PingReq) => parse!(v3_1_1::Pingreq),
        (_, PacketType::PingResp) => parse!(v3_1_1::Pingresp),
        (_, PacketType::Disconnect) => parse!(v3_1_1::Disconnect),
        (_, PacketType::Auth) => return Err(MqttError::MalformedPacket),
    })
}
