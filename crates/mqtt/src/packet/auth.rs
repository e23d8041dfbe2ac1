//! AUTH (3.15).

use super::reasons;
use crate::encoder::Encoder;
use crate::error::DecodeError;
use crate::packet_type::PacketType;
use crate::properties::Properties;
use crate::properties::scope::Scope;
use crate::reader::Reader;
use crate::reason_code::ReasonCode;
use crate::version::Version;

/// A step of an authentication with several steps. Since 5.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Auth<'a> {
    pub reason: ReasonCode,
    /// Properties with the Authentication Method, except that a Success may have no properties (3.15.2.1).
    pub properties: Properties<'a>,
}

impl<'a> Auth<'a> {
    pub(crate) fn decode(version: Version, reader: &mut Reader<'a>) -> Result<Auth<'a>, DecodeError> {
        if version != Version::V5 {
            return Err(DecodeError::PacketTypeNotInVersion { packet_type: PacketType::Auth, version });
        }
        let (mut reason, mut properties) = (ReasonCode::Success, Properties::default());
        if !reader.is_empty() {
            reason = reasons::from_byte(PacketType::Auth, reader.u8()?)?;
            properties = Properties::read(reader, version, Scope::Auth)?;
        }
        reader.finish()?;
        let auth = Auth { reason, properties };
        // (3.15.2.2.2)
        if !auth.is_bare_success() && properties.authentication_method().is_none() {
            return Err(DecodeError::AuthenticationMethodMissing);
        }
        Ok(auth)
    }

    pub(crate) fn encode(&self, version: Version, out: &mut Vec<u8>) -> bool {
        if version != Version::V5 {
            return false;
        }
        let Some(reason) = reasons::in_v5(PacketType::Auth, self.reason) else { return false };
        let mut encoder = Encoder::new(out, PacketType::Auth.first_byte());
        if !self.is_bare_success() {
            encoder.u8(reason.as_u8()).properties(version, self.properties);
        }
        encoder.finish()
    }

    fn is_bare_success(&self) -> bool {
        self.reason == ReasonCode::Success && self.properties.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Version::*;
    use crate::packet::Packet;
    use crate::packet::check::{block, cannot_encode, packet, reads, refuses, same};
    use crate::properties::buf::PropertiesBuf;
    use crate::properties::id::PropertyId;
    use crate::properties::property::Property;

    #[test]
    fn each_step_is_decoded_and_encoded() {
        let buf = PropertiesBuf::from_iter([
            Property::AuthenticationMethod("m"),
            Property::AuthenticationData(&[1]),
        ]);
        for reason in [ReasonCode::Success, ReasonCode::ContinueAuthentication, ReasonCode::ReAuthenticate] {
            let auth = Packet::Auth(Auth { reason, properties: buf.as_properties() });
            let bytes = packet(0xF0, &[&[reason.as_u8()], &block(&[b"\x15\0\x01m\x16\0\x01\x01"])]);
            same(V5, &bytes, auth);
            for version in [V3_1, V3_1_1] {
                let error = DecodeError::PacketTypeNotInVersion { packet_type: PacketType::Auth, version };
                refuses(version, &bytes, error);
                cannot_encode(version, auth);
            }
        }
    }

    /// (3.15.2.1)
    #[test]
    fn a_success_may_have_no_properties() {
        let bare = Packet::Auth(Auth { reason: ReasonCode::Success, properties: Properties::EMPTY });
        same(V5, &[0xF0, 0], bare);
        reads(V5, &[0xF0, 2, 0, 0], bare);
    }

    #[test]
    fn invalid_auth_packets_are_refused() {
        // [MQTT-3.15.1-1]
        refuses(V5, &[0xF1, 0], DecodeError::FlagsReserved { packet_type: PacketType::Auth, flags: 1 });
        // [MQTT-3.15.2-1]
        let (packet_type, reason) = (PacketType::Auth, ReasonCode::NotAuthorized);
        refuses(V5, &[0xF0, 2, 0x87, 0], DecodeError::ReasonCodeNotAllowed { packet_type, reason });
        refuses(V5, &[0xF0, 2, 0x17, 0], DecodeError::ReasonCodeUnknown { byte: 0x17 });
        cannot_encode(V5, Packet::Auth(Auth { reason, properties: Properties::EMPTY }));
        // (3.15.2.2.2)
        refuses(V5, &[0xF0, 2, 0x18, 0], DecodeError::AuthenticationMethodMissing);
        let reason_string = packet(0xF0, &[&[0], &block(&[b"\x1F\0\x01r"])]);
        refuses(V5, &reason_string, DecodeError::AuthenticationMethodMissing);
        let method: &[u8] = b"\x15\0\x01m";
        let twice = packet(0xF0, &[&[0x18], &block(&[method, method])]);
        refuses(V5, &twice, DecodeError::PropertyDuplicate { id: PropertyId::AuthenticationMethod });
        // A Reason Code without properties is not one of the short forms.
        refuses(V5, &[0xF0, 1, 0x18], DecodeError::Truncated);
        refuses(V5, &[0xF0, 3, 0, 0, 0], DecodeError::TrailingBytes { count: 1 });
    }
}
