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
    /// The server has a Session of this client. Says nothing with a failure [MQTT-3.2.2-6] [MQTT3-3.2.2-4], nor in 3.1.
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
