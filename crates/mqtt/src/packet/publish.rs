//! PUBLISH (3.3).

use std::fmt;

use super::outgoing::Outgoing;
use crate::error::DecodeError;
use crate::packet_id::PacketId;
use crate::properties::Properties;
use crate::properties::scope::Scope;
use crate::qos::QoS;
use crate::reader::Reader;
use crate::topic::name::forbidden;
use crate::version::Version;

/// An Application Message on its way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Publish<'a> {
    /// Sent before under this Packet Identifier. Never with QoS 0 [MQTT-3.3.1-2].
    pub dup: bool,
    pub qos: QoS,
    pub retain: bool,
    /// A Topic Name; empty only when the properties have a Topic Alias.
    pub topic: &'a str,
    /// There with QoS 1 and 2 and only then [MQTT-2.2.1-2].
    pub packet_id: Option<PacketId>,
    pub properties: Properties<'a>,
    pub payload: &'a [u8],
}

impl<'a> Publish<'a> {
    #[inline]
    pub(crate) fn decode(
        version: Version,
        first: u8,
        mut reader: Reader<'a>,
    ) -> Result<Publish<'a>, DecodeError> {
        let qos = QoS::from_bits(first >> 1 & 0b11).ok_or(DecodeError::QoSReserved)?;
        let topic = reader.topic()?;
        match forbidden(topic.as_bytes()) {
            None => {}
            // [MQTT-1.5.4-2] [MQTT3-1.5.3-2]
            Some(0) => return Err(DecodeError::StringContainsNull),
            // [MQTT-3.3.2-2] [MQTT3-3.3.2-2]
            Some(_) => return Err(DecodeError::TopicNameInvalid),
        }
        // [MQTT-2.2.1-2] [MQTT3-2.3.1-5]
        let packet_id = match qos {
            QoS::AtMostOnce => None,
            QoS::AtLeastOnce | QoS::ExactlyOnce => Some(reader.packet_id()?),
        };
        let properties = Properties::read(&mut reader, version, Scope::Publish)?;
        // (3.3.2.1) [MQTT3-4.7.3-1]
        if topic.is_empty() && properties.topic_alias().is_none() {
            return Err(DecodeError::TopicNameMissing);
        }
        let payload = reader.remainder();
        Ok(Publish {
            dup: first & 0b1000 != 0,
            qos,
            retain: first & 0b0001 != 0,
            topic,
            packet_id,
            properties,
            payload,
        })
    }

    pub(crate) fn encode(&self, version: Version, out: &mut Vec<u8>) -> bool {
        let named_by_alias = version == Version::V5 && self.properties.topic_alias().is_some();
        if self.topic.is_empty() && !named_by_alias || forbidden(self.topic.as_bytes()).is_some() {
            return false;
        }
        let start = out.len();
        let outgoing = Outgoing {
            dup: self.dup,
            qos: self.qos,
            retain: self.retain,
            packet_id: self.packet_id,
            topic: self.topic,
            topic_alias: None,
            message_expiry: None,
            subscription_ids: &[],
            properties: self.properties.as_bytes(),
            payload: self.payload,
        };
        outgoing.encode(version, out);
        out.len() > start
    }
}

impl fmt::Debug for Publish<'_> {
    /// Without the payload, which may be large.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publish")
            .field("dup", &self.dup)
            .field("qos", &self.qos)
            .field("retain", &self.retain)
            .field("topic", &self.topic)
            .field("packet_id", &self.packet_id)
            .field("properties", &self.properties)
            .field("payload_len", &self.payload.len())
            .finish()
    }
}
