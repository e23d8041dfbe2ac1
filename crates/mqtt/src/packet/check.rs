//! Helpers of the packets' table tests.

use crate::{DecodeError, Packet, Version, decode, frame};

/// Checks that `bytes` decode to `packet`, and `packet` encodes to `bytes`.
#[track_caller]
pub(crate) fn same(version: Version, bytes: &[u8], packet: Packet<'_>) {
    reads(version, bytes, packet);
    writes(version, packet, bytes);
}

/// Checks that `bytes` decode to `packet`.
#[track_caller]
pub(crate) fn reads(version: Version, bytes: &[u8], packet: Packet<'_>) {
    assert_eq!(frame(bytes, u32::MAX), Ok(Some(bytes.len())), "frame {bytes:02X?}");
    assert_eq!(decode(version, bytes), Ok(packet), "MQTT {version} {bytes:02X?}");
}

/// Checks that `packet` encodes to `bytes`, after the existing contents of the buffer.
#[track_caller]
pub(crate) fn writes(version: Version, packet: Packet<'_>, bytes: &[u8]) {
    let mut out = vec![0xAA];
    assert!(packet.encode(version, &mut out), "MQTT {version} {packet:?}");
    assert_eq!(out[0], 0xAA);
    assert_eq!(out[1..], *bytes, "MQTT {version} {packet:?}");
}

/// Checks that `bytes` are refused.
#[track_caller]
pub(crate) fn refuses(version: Version, bytes: &[u8], error: DecodeError) {
    assert_eq!(decode(version, bytes), Err(error), "MQTT {version} {bytes:02X?}");
}

/// Checks that the version cannot express `packet`.
#[track_caller]
pub(crate) fn cannot_encode(version: Version, packet: Packet<'_>) {
    let mut out = vec![0xAA];
    assert!(!packet.encode(version, &mut out), "MQTT {version} {packet:?}");
    assert_eq!(out, [0xAA], "nothing is appended");
}

/// Checks that every proper prefix of the body, with a matching Remaining Length, is refused: no field may be missing.
/// Only for packets of fewer than 130 bytes without optional fields at the end.
#[track_caller]
pub(crate) fn refuses_every_prefix(version: Version, bytes: &[u8]) {
    for end in 2..bytes.len() {
        let mut cut = bytes[..end].to_vec();
        cut[1] = (end - 2) as u8;
        assert!(decode(version, &cut).is_err(), "MQTT {version} {cut:02X?}");
    }
}

/// Builds a packet with one byte of Remaining Length.
pub(crate) fn packet(first: u8, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    assert!(body.len() < 128);
    let mut bytes = vec![first, body.len() as u8];
    bytes.extend_from_slice(&body);
    bytes
}

/// Builds a property block with one byte of Property Length.
pub(crate) fn block(properties: &[&[u8]]) -> Vec<u8> {
    packet(0, properties)[1..].to_vec()
}
