//! CONNACK (3.2).

use super::reasons;
use crate::encoder::Encoder;
use crate::error::DecodeError;
use crate::packet_type::PacketType;
use crate::properties::Properties;
use crate::properties::scope::Scope;
use crate::reader::Reader;
use crate::reason_code::ReasonCode;
use crate::version::Version;

/// The server's answer to CONNECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnAck<'a> {
    /// The server has a Session of this client. Always false with a failure [MQTT-3.2.2-6] [MQTT3-3.2.2-4], and in
    /// 3.1.
    pub session_present: bool,
    pub reason: ReasonCode,
    pub properties: Properties<'a>,
}

impl<'a> ConnAck<'a> {
    pub(crate) fn decode(version: Version, mut reader: Reader<'a>) -> Result<ConnAck<'a>, DecodeError> {
        let flags = reader.u8()?;
        let session_present = match version {
            // 3.1 does not use this byte.
            Version::V3_1 => false,
            // [MQTT-3.2.2-1]
            Version::V3_1_1 | Version::V5 => match flags {
                0 | 1 => flags == 1,
                _ => return Err(DecodeError::ConnAckFlagsReserved { flags }),
            },
        };
        let byte = reader.u8()?;
        let reason = match version {
            Version::V5 => reasons::from_byte(PacketType::ConnAck, byte)?,
            Version::V3_1 | Version::V3_1_1 => reasons::from_connect_return_code(byte)?,
        };
        if session_present && reason.is_error() {
            return Err(DecodeError::SessionPresentWithError);
        }
        let properties = Properties::read(&mut reader, version, Scope::ConnAck)?;
        reader.finish()?;
        Ok(ConnAck { session_present, reason, properties })
    }

    pub(crate) fn encode(&self, version: Version, out: &mut Vec<u8>) -> bool {
        let code = match version {
            Version::V5 => reasons::in_v5(PacketType::ConnAck, self.reason).map(ReasonCode::as_u8),
            Version::V3_1 | Version::V3_1_1 => reasons::connect_return_code(self.reason),
        };
        let Some(code) = code else { return false };
        let session_present = self.session_present && code == 0 && version != Version::V3_1;
        Encoder::new(out, PacketType::ConnAck.first_byte())
            .u8(u8::from(session_present))
            .u8(code)
            .properties(version, self.properties)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Version::*;
    use crate::packet::Packet;
    use crate::packet::check::{
        block, cannot_encode, packet, reads, refuses, refuses_every_prefix, same, writes,
    };
    use crate::properties::buf::PropertiesBuf;
    use crate::properties::property::Property;

    fn connack(session_present: bool, reason: ReasonCode) -> ConnAck<'static> {
        ConnAck { session_present, reason, properties: Properties::default() }
    }

    #[test]
    fn an_acceptance_is_decoded_and_encoded() {
        for session_present in [false, true] {
            let packet = Packet::ConnAck(connack(session_present, ReasonCode::Success));
            let flags = u8::from(session_present);
            same(V5, &[0x20, 3, flags, 0, 0], packet);
            same(V3_1_1, &[0x20, 2, flags, 0], packet);
            writes(V3_1, packet, &[0x20, 2, 0, 0]);
        }
        // 3.1 does not use the first byte.
        reads(V3_1, &[0x20, 2, 0xFF, 0], Packet::ConnAck(connack(false, ReasonCode::Success)));
        refuses_every_prefix(V5, &[0x20, 3, 0, 0, 0]);
        refuses_every_prefix(V3_1_1, &[0x20, 2, 0, 0]);
    }

    #[test]
    fn reserved_flags_are_refused() {
        for version in [V3_1_1, V5] {
            for flags in [2, 3, 0x80] {
                // [MQTT-3.2.2-1]
                let error = DecodeError::ConnAckFlagsReserved { flags };
                refuses(version, &packet(0x20, &[&[flags, 0], &[0][..usize::from(version == V5)]]), error);
            }
        }
    }

    #[test]
    fn a_refusal_is_decoded_and_encoded() {
        let busy = Packet::ConnAck(connack(false, ReasonCode::ServerBusy));
        same(V5, &[0x20, 3, 0, 0x89, 0], busy);
        writes(V3_1_1, busy, &[0x20, 2, 0, 3]);
        for (code, reason) in [
            (1, ReasonCode::UnsupportedProtocolVersion),
            (2, ReasonCode::ClientIdentifierNotValid),
            (3, ReasonCode::ServerUnavailable),
            (4, ReasonCode::BadUserNameOrPassword),
            (5, ReasonCode::NotAuthorized),
        ] {
            same(V3_1_1, &[0x20, 2, 0, code], Packet::ConnAck(connack(false, reason)));
            same(V3_1, &[0x20, 2, 0, code], Packet::ConnAck(connack(false, reason)));
        }
        refuses(V3_1_1, &[0x20, 2, 0, 6], DecodeError::ReasonCodeUnknown { byte: 6 });
        refuses(V5, &[0x20, 3, 0, 0x01, 0], {
            DecodeError::ReasonCodeNotAllowed {
                packet_type: PacketType::ConnAck,
                reason: ReasonCode::GrantedQoS1,
            }
        });
        refuses(V5, &[0x20, 3, 0, 0x03, 0], DecodeError::ReasonCodeUnknown { byte: 3 });
        // [MQTT3-3.2.2-6]
        cannot_encode(V3_1_1, Packet::ConnAck(connack(false, ReasonCode::ProtocolError)));
        cannot_encode(V5, Packet::ConnAck(connack(false, ReasonCode::ContinueAuthentication)));
    }

    /// [MQTT-3.2.2-6] [MQTT3-3.2.2-4]
    #[test]
    fn a_refusal_has_no_session() {
        refuses(V5, &[0x20, 3, 1, 0x87, 0], DecodeError::SessionPresentWithError);
        refuses(V3_1_1, &[0x20, 2, 1, 5], DecodeError::SessionPresentWithError);
        writes(V5, Packet::ConnAck(connack(true, ReasonCode::NotAuthorized)), &[0x20, 3, 0, 0x87, 0]);
        writes(V3_1_1, Packet::ConnAck(connack(true, ReasonCode::NotAuthorized)), &[0x20, 2, 0, 5]);
    }

    #[test]
    fn properties_are_decoded_and_encoded() {
        let buf = PropertiesBuf::from_iter([
            Property::AssignedClientIdentifier("auto-1"),
            Property::ServerKeepAlive(30),
            Property::MaximumQoS(1),
        ]);
        let with = Packet::ConnAck(ConnAck {
            properties: buf.as_properties(),
            ..connack(false, ReasonCode::Success)
        });
        let bytes = packet(0x20, &[&[0, 0], &block(&[b"\x12\0\x06auto-1", &[0x13, 0, 30, 0x24, 1]])]);
        same(V5, &bytes, with);
        refuses_every_prefix(V5, &bytes);
        writes(V3_1_1, with, &[0x20, 2, 0, 0]);
    }

    #[test]
    fn trailing_bytes_are_refused() {
        refuses(V5, &[0x20, 4, 0, 0, 0, 0], DecodeError::TrailingBytes { count: 1 });
        refuses(V3_1_1, &[0x20, 3, 0, 0, 0], DecodeError::TrailingBytes { count: 1 });
    }
}
