//! SUBACK (3.9) and UNSUBACK (3.11), which look alike in 5.0.

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
    /// A Reason Code for each Topic Filter, in their order [MQTT-3.8.4-6] [MQTT-3.9.3-1] [MQTT-3.11.3-1]. Empty in an
    /// UNSUBACK of 3.x, which has no payload.
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
                // [MQTT3-3.9.3-2]. 3.1 has no 0x80, but its servers have nothing else to refuse with.
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
