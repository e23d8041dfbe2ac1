//! SUBACK (3.9) and UNSUBACK (3.11), which have the same format in 5.0.

use super::reasons;
use crate::encoder::Encoder;
use crate::error::DecodeError;
use crate::packet_id::PacketId;
use crate::packet_type::PacketType;
use crate::properties::Properties;
use crate::properties::scope::Scope;
use crate::reader::Reader;
use crate::version::Version;

/// The server's answer to SUBSCRIBE or UNSUBSCRIBE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubAck<'a> {
    pub packet_id: PacketId,
    pub properties: Properties<'a>,
    /// A Reason Code for each Topic Filter, in their order [MQTT-3.8.4-6] [MQTT-3.9.3-1] [MQTT-3.11.3-1]. Empty in
    /// an UNSUBACK of 3.x, which has no payload.
    pub reasons: &'a [u8],
}

impl<'a> SubAck<'a> {
    pub(crate) fn decode(
        version: Version,
        packet_type: PacketType,
        mut reader: Reader<'a>,
    ) -> Result<SubAck<'a>, DecodeError> {
        let packet_id = reader.packet_id()?;
        let properties = Properties::read(&mut reader, version, Scope::Acknowledgement)?;
        if version != Version::V5 && packet_type == PacketType::UnsubAck {
            reader.finish()?;
            return Ok(SubAck { packet_id, properties, reasons: &[] });
        }
        let reasons = reader.remainder();
        if reasons.is_empty() {
            return Err(DecodeError::NoReasonCodes);
        }
        for &byte in reasons {
            match version {
                Version::V5 => {
                    reasons::from_byte(packet_type, byte)?;
                }
                // [MQTT3-3.9.3-2]. 3.1 has no 0x80, but its servers have no other way to refuse.
                Version::V3_1 | Version::V3_1_1 if matches!(byte, 0..=2 | 0x80) => {}
                Version::V3_1 | Version::V3_1_1 => return Err(DecodeError::ReasonCodeUnknown { byte }),
            }
        }
        Ok(SubAck { packet_id, properties, reasons })
    }

    pub(crate) fn encode(&self, version: Version, packet_type: PacketType, out: &mut Vec<u8>) -> bool {
        let has_payload = version == Version::V5 || packet_type == PacketType::SubAck;
        if has_payload && self.reasons.is_empty() {
            return false;
        }
        let mut encoder = Encoder::new(out, packet_type.first_byte());
        encoder.packet_id(self.packet_id).properties(version, self.properties);
        if has_payload {
            for &byte in self.reasons {
                encoder.u8(reasons::subscription_byte(version, packet_type, byte));
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
    use crate::packet::check::{block, cannot_encode, packet, refuses, same, writes};
    use crate::properties::buf::PropertiesBuf;
    use crate::properties::property::Property;
    use crate::reason_code::ReasonCode;

    fn suback(reasons: &[u8]) -> SubAck<'_> {
        SubAck { packet_id: PacketId::new(10).expect("not 0"), properties: Properties::EMPTY, reasons }
    }

    #[test]
    fn granted_qos_is_decoded_and_encoded() {
        let packet = Packet::SubAck(suback(&[0, 1, 2, 0x80]));
        same(V5, &[0x90, 7, 0, 10, 0, 0, 1, 2, 0x80], packet);
        same(V3_1_1, &[0x90, 6, 0, 10, 0, 1, 2, 0x80], packet);
        same(V3_1, &[0x90, 6, 0, 10, 0, 1, 2, 0x80], packet);
    }

    /// [MQTT-3.9.3-2] [MQTT3-3.9.3-2]
    #[test]
    fn failures_are_decoded_and_encoded() {
        let packet = Packet::SubAck(suback(&[0x8F, 0x01, 0xA2]));
        same(V5, &[0x90, 6, 0, 10, 0, 0x8F, 0x01, 0xA2], packet);
        writes(V3_1_1, packet, &[0x90, 5, 0, 10, 0x80, 0x01, 0x80]);
        refuses(V3_1_1, &[0x90, 3, 0, 10, 0x87], DecodeError::ReasonCodeUnknown { byte: 0x87 });
        refuses(V3_1_1, &[0x90, 3, 0, 10, 3], DecodeError::ReasonCodeUnknown { byte: 3 });
        refuses(V5, &[0x90, 4, 0, 10, 0, 3], DecodeError::ReasonCodeUnknown { byte: 3 });
        let (packet_type, reason) = (PacketType::SubAck, ReasonCode::NoSubscriptionExisted);
        refuses(V5, &[0x90, 4, 0, 10, 0, 0x11], DecodeError::ReasonCodeNotAllowed { packet_type, reason });
    }

    /// [MQTT-3.11.3-2]; before 5.0 there is no payload (3.11.3 of 3.1.1).
    #[test]
    fn unsuback_has_a_payload_only_in_5_0() {
        same(V5, &[0xB0, 6, 0, 10, 0, 0, 0x11, 0x87], Packet::UnsubAck(suback(&[0, 0x11, 0x87])));
        for version in [V3_1, V3_1_1] {
            same(version, &[0xB0, 2, 0, 10], Packet::UnsubAck(suback(&[])));
            writes(version, Packet::UnsubAck(suback(&[0x11])), &[0xB0, 2, 0, 10]);
            refuses(version, &[0xB0, 3, 0, 10, 0], DecodeError::TrailingBytes { count: 1 });
        }
        let (packet_type, reason) = (PacketType::UnsubAck, ReasonCode::GrantedQoS1);
        refuses(V5, &[0xB0, 4, 0, 10, 0, 1], DecodeError::ReasonCodeNotAllowed { packet_type, reason });
    }

    #[test]
    fn every_request_has_an_answer() {
        for version in Version::ALL {
            let none: &[u8] = if version == V5 { &[0] } else { &[] };
            refuses(version, &packet(0x90, &[&[0, 10], none]), DecodeError::NoReasonCodes);
            refuses(version, &packet(0x90, &[&[0, 0], none, &[0]]), DecodeError::PacketIdentifierZero);
            refuses(version, &packet(0xB0, &[&[0, 0], none, &[0]]), DecodeError::PacketIdentifierZero);
            refuses(version, &packet(0x90, &[&[0]]), DecodeError::Truncated);
            cannot_encode(version, Packet::SubAck(suback(&[])));
        }
        refuses(V5, &[0xB0, 3, 0, 10, 0], DecodeError::NoReasonCodes);
        cannot_encode(V5, Packet::UnsubAck(suback(&[])));
    }

    #[test]
    fn properties_are_decoded_and_encoded() {
        let buf = PropertiesBuf::from_iter([Property::ReasonString("r"), Property::UserProperty("a", "b")]);
        let with = SubAck { properties: buf.as_properties(), ..suback(&[1]) };
        let fields = block(&[b"\x1F\0\x01r\x26\0\x01a\0\x01b"]);
        same(V5, &packet(0x90, &[&[0, 10], &fields, &[1]]), Packet::SubAck(with));
        writes(V3_1_1, Packet::SubAck(with), &[0x90, 3, 0, 10, 1]);
        let with = SubAck { reasons: &[0], ..with };
        same(V5, &packet(0xB0, &[&[0, 10], &fields, &[0]]), Packet::UnsubAck(with));
    }
}
