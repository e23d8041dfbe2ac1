//! How the packets' table tests look at bytes.

use crate::{DecodeError, Packet, Version, decode, frame};

/// `bytes` mean `packet`, and `packet` is written as `bytes`.
#[track_caller]
pub(crate) fn same(version: Version, bytes: &[u8], packet: Packet<'_>) {
    reads(version, bytes, packet);
    writes(version, packet, bytes);
}

/// `bytes` mean `packet`.
#[track_caller]
pub(crate) fn reads(version: Version, bytes: &[u8], packet: Packet<'_>) {
    assert_eq!(frame(bytes, u32::MAX), Ok(Some(bytes.len())), "frame {bytes:02X?}");
    assert_eq!(decode(version, bytes), Ok(packet), "MQTT {version} {bytes:02X?}");
}

/// `packet` is written as `bytes`, after what the buffer already holds.
#[track_caller]
pub(crate) fn writes(version: Version, packet: Packet<'_>, bytes: &[u8]) {
    let mut out = vec![0xAA];
    assert!(packet.encode(version, &mut out), "MQTT {version} {packet:?}");
    assert_eq!(out[0], 0xAA);
    assert_eq!(out[1..], *bytes, "MQTT {version} {packet:?}");
}

/// `bytes` are refused.
#[track_caller]
pub(crate) fn refuses(version: Version, bytes: &[u8], error: DecodeError) {
    assert_eq!(decode(version, bytes), Err(error), "MQTT {version} {bytes:02X?}");
}

/// The version has no words for `packet`.
#[track_caller]
pub(crate) fn cannot_encode(version: Version, packet: Packet<'_>) {
    let mut out = vec![0xAA];
    assert!(!packet.encode(version, &mut out), "MQTT {version} {packet:?}");
    assert_eq!(out, [0xAA], "nothing is appended");
}

/// Every proper prefix of the body, with the Remaining Length made to fit, is refused: no field may be missing. Only for
/// packets without optional fields at the end and of less than 130 bytes.
#[track_caller]
pub(crate) fn refuses_every_prefix(version: Version, bytes: &[u8]) {
    for end in 2..bytes.len() {
        let mut cut = bytes[..end].to_vec();
        cut[1] = (end - 2) as u8;
        assert!(decode(version, &cut).is_err(), "MQTT {version} {cut:02X?}");
    }
}

/// A packet with one byte of Remaining Length.
pub(crate) fn packet(first: u8, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    assert!(body.len() < 128);
    let mut bytes = vec![first, body.len() as u8];
    bytes.extend_from_slice(&body);
    bytes
}

/// A body as a packet with one byte of Property Length before `properties`.
pub(crate) fn block(properties: &[&[u8]]) -> Vec<u8> {
    packet(0, properties)[1..].to_vec()
}
