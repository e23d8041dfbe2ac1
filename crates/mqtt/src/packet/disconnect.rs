//! DISCONNECT (3.14).

use super::reasons;
use crate::encoder::Encoder;
use crate::error::DecodeError;
use crate::packet_type::PacketType;
use crate::properties::Properties;
use crate::properties::scope::Scope;
use crate::reader::Reader;
use crate::reason_code::ReasonCode;
use crate::version::Version;

/// The last packet of a connection. Before 5.0 only a client sends it, and it means [`ReasonCode::Success`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disconnect<'a> {
    pub reason: ReasonCode,
    pub properties: Properties<'a>,
}

impl<'a> Disconnect<'a> {
    pub(crate) fn decode(version: Version, reader: &mut Reader<'a>) -> Result<Disconnect<'a>, DecodeError> {
        let (mut reason, mut properties) = (ReasonCode::Success, Properties::default());
        // 5.0 allows to omit the properties, or these and the Reason Code (3.14.2.1, 3.14.2.2.1).
        if version == Version::V5 && !reader.is_empty() {
            reason = reasons::from_byte(PacketType::Disconnect, reader.u8()?)?;
            if !reader.is_empty() {
                properties = Properties::read(reader, version, Scope::Disconnect)?;
            }
        }
        reader.finish()?;
        Ok(Disconnect { reason, properties })
    }

    pub(crate) fn encode(&self, version: Version, out: &mut Vec<u8>) -> bool {
        let Some(reason) = reasons::in_v5(PacketType::Disconnect, self.reason) else { return false };
        if version != Version::V5 && reason != ReasonCode::Success {
            return false;
        }
        let mut encoder = Encoder::new(out, PacketType::Disconnect.first_byte());
        if version == Version::V5 {
            // 5.0 allows to omit the Property Length after a Reason Code (3.14.2.2.1). But some clients take the
            // resulting packet of three bytes for an incomplete one.
            if reason != ReasonCode::Success || !self.properties.is_empty() {
                encoder.u8(reason.as_u8());
                encoder.properties(version, self.properties);
            }
        }
        encoder.finish()
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

    fn disconnect(reason: ReasonCode) -> Disconnect<'static> {
        Disconnect { reason, properties: Properties::EMPTY }
    }

    #[test]
    fn a_normal_disconnect_is_decoded_and_encoded() {
        for version in Version::ALL {
            same(version, &[0xE0, 0], Packet::Disconnect(disconnect(ReasonCode::Success)));
        }
        // (3.14.2.1) (3.14.2.2.1)
        reads(V5, &[0xE0, 1, 0], Packet::Disconnect(disconnect(ReasonCode::Success)));
        reads(V5, &[0xE0, 2, 0, 0], Packet::Disconnect(disconnect(ReasonCode::Success)));
    }

    #[test]
    fn a_reason_is_decoded_and_encoded() {
        for reason in [ReasonCode::DisconnectWithWill, ReasonCode::ServerShuttingDown] {
            let packet = Packet::Disconnect(disconnect(reason));
            same(V5, &[0xE0, 2, reason.as_u8(), 0], packet);
            reads(V5, &[0xE0, 1, reason.as_u8()], packet);
            for version in [V3_1, V3_1_1] {
                // Before 5.0 a server only closes the connection.
                cannot_encode(version, packet);
                refuses(version, &[0xE0, 1, reason.as_u8()], DecodeError::TrailingBytes { count: 1 });
            }
        }
        // [MQTT-3.14.2-1]
        refuses(V5, &[0xE0, 1, 0x03], DecodeError::ReasonCodeUnknown { byte: 3 });
        let (packet_type, reason) = (PacketType::Disconnect, ReasonCode::Banned);
        refuses(V5, &[0xE0, 1, 0x8A], DecodeError::ReasonCodeNotAllowed { packet_type, reason });
        cannot_encode(V5, Packet::Disconnect(disconnect(ReasonCode::GrantedQoS1)));
    }

    #[test]
    fn properties_are_decoded_and_encoded() {
        let buf = PropertiesBuf::from_iter([Property::SessionExpiryInterval(5)]);
        let bytes = packet(0xE0, &[&[0], &block(&[&[0x11, 0, 0, 0, 5]])]);
        let with = Disconnect { reason: ReasonCode::Success, properties: buf.as_properties() };
        same(V5, &bytes, Packet::Disconnect(with));
        let bytes = packet(0xE0, &[&[0], &block(&[&[0x21, 0, 5]])]);
        refuses(V5, &bytes, DecodeError::PropertyNotAllowed { id: PropertyId::ReceiveMaximum });
        refuses(V5, &[0xE0, 3, 0, 0, 0], DecodeError::TrailingBytes { count: 1 });
        refuses(V5, &[0xE0, 2, 0, 1], DecodeError::Truncated);
    }

    /// [MQTT-3.14.1-1] [MQTT3-3.14.1-1]
    #[test]
    fn flags_are_checked() {
        for version in Version::ALL {
            let error = DecodeError::FlagsReserved { packet_type: PacketType::Disconnect, flags: 1 };
            refuses(version, &[0xE1, 0], error);
        }
    }
}
