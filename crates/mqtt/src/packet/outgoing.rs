//! PUBLISH (3.3) as a server writes it to a subscriber, many times per message.

use crate::encoder::{
    FIELD_SIZE_MAX, VARIABLE_BYTE_INTEGER_MAX, put_variable_byte_integer, variable_byte_integer_len,
};
use crate::packet_id::PacketId;
use crate::packet_type::PacketType;
use crate::properties::id::PropertyId;
use crate::qos::QoS;
use crate::version::Version;

/// A PUBLISH to one receiver.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// Sent before under this Packet Identifier [MQTT-3.3.1-1]. Ignored with QoS 0 [MQTT-3.3.1-2].
    pub dup: bool,
    pub qos: QoS,
    pub retain: bool,
    /// Needed with QoS 1 and 2, ignored with QoS 0 [MQTT-2.2.1-2].
    pub packet_id: Option<PacketId>,
    /// A Topic Name, or "" when an alias alone names it.
    pub topic: &'a str,
    /// Never 0 [MQTT-3.3.2-8]. Written in 5.0 only, as the next two.
    pub topic_alias: Option<u16>,
    /// Seconds that are left [MQTT-3.3.2-6].
    pub message_expiry: Option<u32>,
    /// 1 to 268,435,455 each; those of the subscriptions that matched [MQTT-3.3.4-3] [MQTT-3.3.4-4].
    pub subscription_ids: &'a [u32],
    /// Bytes of [`Properties::forwardable`](crate::Properties::forwardable).
    pub properties: &'a [u8],
    pub payload: &'a [u8],
}

/// Bytes of the parts of a packet whose length comes before them.
struct Lengths {
    /// `None` before 5.0.
    properties: Option<u32>,
    remaining: u32,
}

impl Lengths {
    #[inline]
    fn total(&self) -> usize {
        1 + variable_byte_integer_len(self.remaining).unwrap_or(4) + self.remaining as usize
    }
}

impl Outgoing<'_> {
    /// Length of the whole packet in bytes. `usize::MAX` for what no packet can hold, so that it is larger than any
    /// Maximum Packet Size: a topic of more than 65,535 bytes, more than
    /// [`PACKET_SIZE_MAX`](crate::PACKET_SIZE_MAX) in all, QoS 1 or 2 without Packet Identifier, a Subscription
    /// Identifier out of bounds, in 3.x an alias instead of a topic.
    #[inline]
    pub fn encoded_len(&self, version: Version) -> usize {
        self.lengths(version).map_or(usize::MAX, |lengths| lengths.total())
    }

    /// Appends the packet; nothing when [`Outgoing::encoded_len`] is `usize::MAX`.
    #[inline]
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        if self.head(version, self.payload.len(), out) {
            out.extend_from_slice(self.payload);
        }
    }

    /// Appends all but the payload, which the Remaining Length counts; nothing when [`Outgoing::encoded_len`] is
    /// `usize::MAX`.
    #[inline]
    pub fn encode_head(&self, version: Version, out: &mut Vec<u8>) {
        self.head(version, 0, out);
    }

    /// Appends all but the payload, after making room for `room` bytes more.
    #[inline]
    fn head(&self, version: Version, room: usize, out: &mut Vec<u8>) -> bool {
        let Some(lengths) = self.lengths(version) else { return false };
        out.reserve(lengths.total() - self.payload.len() + room);

        let dup = self.dup && self.qos > QoS::AtMostOnce;
        let flags = u8::from(dup) << 3 | (self.qos as u8) << 1 | u8::from(self.retain);
        out.push(PacketType::Publish.first_byte() | flags);
        put_variable_byte_integer(out, lengths.remaining);
        out.extend_from_slice(&(self.topic.len() as u16).to_be_bytes());
        out.extend_from_slice(self.topic.as_bytes());
        if let (Some(packet_id), true) = (self.packet_id, self.qos > QoS::AtMostOnce) {
            out.extend_from_slice(&packet_id.get().to_be_bytes());
        }
        if let Some(len) = lengths.properties {
            put_variable_byte_integer(out, len);
            if len != 0 {
                self.put_properties(out);
            }
        }
        true
    }

    fn put_properties(&self, out: &mut Vec<u8>) {
        if let Some(alias) = self.topic_alias {
            out.push(PropertyId::TopicAlias as u8);
            out.extend_from_slice(&alias.to_be_bytes());
        }
        if let Some(seconds) = self.message_expiry {
            out.push(PropertyId::MessageExpiryInterval as u8);
            out.extend_from_slice(&seconds.to_be_bytes());
        }
        for &id in self.subscription_ids {
            out.push(PropertyId::SubscriptionIdentifier as u8);
            put_variable_byte_integer(out, id);
        }
        out.extend_from_slice(self.properties);
    }

    /// `None` for what no packet can hold.
    #[inline]
    fn lengths(&self, version: Version) -> Option<Lengths> {
        if self.topic.len() > FIELD_SIZE_MAX {
            return None;
        }
        let packet_id = match self.qos {
            QoS::AtMostOnce => 0,
            QoS::AtLeastOnce | QoS::ExactlyOnce => {
                self.packet_id?;
                2
            }
        };
        let fixed = 2 + self.topic.len() + packet_id + self.payload.len();
        if version != Version::V5 {
            if self.topic.is_empty() {
                return None;
            }
            return Some(Lengths { properties: None, remaining: remaining(fixed)? });
        }
        let alias = if self.topic_alias.is_some() { 3 } else { 0 };
        let expiry = if self.message_expiry.is_some() { 5 } else { 0 };
        let mut properties = alias + expiry + self.properties.len();
        for &id in self.subscription_ids {
            properties += 1 + variable_byte_integer_len(id).filter(|_| id != 0)?;
        }
        let properties = remaining(properties)?;
        let len = variable_byte_integer_len(properties)?;
        let remaining = remaining(fixed + len + properties as usize)?;
        Some(Lengths { properties: Some(properties), remaining })
    }
}

#[inline]
fn remaining(len: usize) -> Option<u32> {
    u32::try_from(len).ok().filter(|&len| len <= VARIABLE_BYTE_INTEGER_MAX)
}
