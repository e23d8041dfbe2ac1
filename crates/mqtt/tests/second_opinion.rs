//! Agreement with `mqtt-protocol-core`, an independent codec of 3.1.1 and 5.0, on valid and on mutated packets. Where
//! the two differ, the reason is listed in `THEY_DO_NOT_CHECK` or in `they_refuse`.

mod common;
#[path = "../fuzz/mutate.rs"]
mod mutate;

use common::sample;
use mqtt::{DecodeError, Packet, PacketType, Version, decode};
use mqtt_protocol_core::mqtt::packet::{v3_1_1, v5_0};
use mqtt_protocol_core::mqtt::result_code::MqttError;
use mutate::{Random, mutate};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

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

/// Both accept `bytes` and mean the same by them, or both refuse them, or the difference is a known one.
fn agree(version: Version, bytes: &[u8]) -> Result<(), String> {
    let Some(body) = body(bytes) else { return Ok(()) };
    let version = match bytes[0] >> 4 {
        1 => match mqtt::connect_version(bytes) {
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
        (Err(error), Ok(_)) if they_do_not_check(error) => Ok(()),
        (Ok(packet), Err(_)) if they_refuse(packet) => Ok(()),
        (ours, theirs) => Err(format!("{version} {bytes:02X?}\nours   {ours:?}\ntheirs {theirs:?}")),
    }
}

/// What follows the fixed header, if `bytes` is one whole packet.
fn body(bytes: &[u8]) -> Option<&[u8]> {
    let size = mqtt::frame(bytes, u32::MAX).ok()??;
    if size != bytes.len() {
        return None;
    }
    let header = 2 + bytes[1..].iter().position(|byte| byte & 0x80 == 0)?;
    Some(&bytes[header..])
}

/// Rules of the specification that the other codec leaves to its connection layer or to nobody.
fn they_do_not_check(_error: DecodeError) -> bool {
    false
}

/// Packets that the specification allows and the other codec refuses.
fn they_refuse(_packet: Packet<'_>) -> bool {
    false
}

/// Their packet, written by them again.
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
