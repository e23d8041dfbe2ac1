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

/// A step of an authentication that takes several. Since 5.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Auth<'a> {
    pub reason: ReasonCode,
    /// With the Authentication Method, except that a Success may go without any properties (3.15.2.1).
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
