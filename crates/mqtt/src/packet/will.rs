//! The Will in a CONNECT's payload (3.1.3.2 to 3.1.3.4).

use std::fmt;

use crate::encoder::Encoder;
use crate::error::DecodeError;
use crate::properties::Properties;
use crate::properties::scope::Scope;
use crate::qos::QoS;
use crate::reader::Reader;
use crate::topic::name::forbidden;
use crate::version::Version;

/// The Application Message that the server publishes when the connection ends without a DISCONNECT.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Will<'a> {
    pub qos: QoS,
    pub retain: bool,
    /// A Topic Name: not empty, without wildcards.
    pub topic: &'a str,
    /// Payload of at most 65,535 bytes.
    pub payload: &'a [u8],
    pub properties: Properties<'a>,
}

impl<'a> Will<'a> {
    pub(crate) fn decode(
        version: Version,
        qos: QoS,
        retain: bool,
        reader: &mut Reader<'a>,
    ) -> Result<Will<'a>, DecodeError> {
        let properties = Properties::read(reader, version, Scope::Will)?;
        // [MQTT-3.1.3-11] [MQTT3-3.1.3-10]
        let topic = reader.topic()?;
        match forbidden(topic.as_bytes()) {
            Some(0) => return Err(DecodeError::StringContainsNull),
            // [MQTT-4.7.3-1] [MQTT3-4.7.3-1]
            None if !topic.is_empty() => {}
            _ => return Err(DecodeError::TopicNameInvalid),
        }
        let payload = reader.binary()?;
        Ok(Will { qos, retain, topic, payload, properties })
    }

    pub(crate) fn encode(&self, version: Version, encoder: &mut Encoder<'_>) {
        encoder.properties(version, self.properties).string(self.topic).binary(self.payload);
    }
}

impl fmt::Debug for Will<'_> {
    /// Formats the Will without the payload, which may be large.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Will")
            .field("qos", &self.qos)
            .field("retain", &self.retain)
            .field("topic", &self.topic)
            .field("payload_len", &self.payload.len())
            .field("properties", &self.properties)
            .finish()
    }
}
