//! PUBACK (3.4), PUBREC (3.5), PUBREL (3.6) and PUBCOMP (3.7), which look alike.

use super::{check_flags, reasons};
use crate::encoder::Encoder;
use crate::error::DecodeError;
use crate::packet_id::PacketId;
use crate::packet_type::PacketType;
use crate::properties::Properties;
use crate::properties::scope::Scope;
use crate::reader::Reader;
use crate::reason_code::ReasonCode;
use crate::version::Version;

/// A step of the delivery of a QoS 1 or 2 PUBLISH.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack<'a> {
    pub packet_id: PacketId,
    /// Before 5.0 always [`ReasonCode::Success`].
    pub reason: ReasonCode,
    pub properties: Properties<'a>,
}

impl<'a> Ack<'a> {
    #[inline]
    pub(crate) fn decode(
        version: Version,
        packet_type: PacketType,
        first: u8,
        mut reader: Reader<'a>,
    ) -> Result<Ack<'a>, DecodeError> {
        check_flags(version, packet_type, first)?;
        let packet_id = reader.packet_id()?;
        let (mut reason, mut properties) = (ReasonCode::Success, Properties::default());
        // 5.0 may leave out the properties, or these and the Reason Code (3.4.2.1, 3.4.2.2.1).
        if version == Version::V5 && !reader.is_empty() {
            reason = reasons::from_byte(packet_type, reader.u8()?)?;
            if !reader.is_empty() {
                properties = Properties::read(&mut reader, version, Scope::Acknowledgement)?;
            }
        }
        reader.finish()?;
        Ok(Ack { packet_id, reason, properties })
    }

    pub(crate) fn encode(&self, version: Version, packet_type: PacketType, out: &mut Vec<u8>) -> bool {
        let reason = match version {
            Version::V5 => reasons::in_v5(packet_type, self.reason),
            Version::V3_1 | Version::V3_1_1 => Some(ReasonCode::Success),
        };
        let Some(reason) = reason else { return false };
        let mut encoder = Encoder::new(out, packet_type.first_byte());
        encoder.packet_id(self.packet_id);
        if version == Version::V5 {
            let bare = self.properties.is_empty();
            if reason != ReasonCode::Success || !bare {
                encoder.u8(reason.as_u8());
            }
            if !bare {
                encoder.properties(version, self.properties);
            }
        }
        encoder.finish()
    }
}
