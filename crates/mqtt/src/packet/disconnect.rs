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
        // 5.0 may leave out the properties, or these and the Reason Code (3.14.2.1, 3.14.2.2.1).
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
