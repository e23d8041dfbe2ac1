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
    /// Required with QoS 1 and 2, ignored with QoS 0 [MQTT-2.2.1-2].
    pub packet_id: Option<PacketId>,
    /// A Topic Name, or "" when only a Topic Alias identifies it.
    pub topic: &'a str,
    /// Topic Alias, never 0 [MQTT-3.3.2-8]. Written in 5.0 only, like the next two fields.
    pub topic_alias: Option<u16>,
    /// Remaining Message Expiry Interval in seconds [MQTT-3.3.2-6].
    pub message_expiry: Option<u32>,
    /// Subscription Identifiers of the matching subscriptions, 1 to 268,435,455 each [MQTT-3.3.4-3] [MQTT-3.3.4-4].
    pub subscription_ids: &'a [u32],
    /// Bytes of [`Properties::forwardable`](crate::Properties::forwardable).
    pub properties: &'a [u8],
    pub payload: &'a [u8],
}

/// Lengths in bytes of the parts of a packet whose length comes before them.
struct Lengths {
    /// Property Length; `None` before 5.0.
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
    /// Returns the length of the whole packet in bytes. `usize::MAX`, larger than any Maximum Packet Size, stands
    /// for a message that no packet can hold: a topic of more than 65,535 bytes, more than
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

    /// Appends everything except the payload, which the Remaining Length counts; nothing when
    /// [`Outgoing::encoded_len`] is `usize::MAX`.
    #[inline]
    pub fn encode_head(&self, version: Version, out: &mut Vec<u8>) {
        self.head(version, 0, out);
    }

    /// Appends everything except the payload, after reserving `room` more bytes.
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

    /// Returns the lengths; `None` for a message that no packet can hold.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::properties::Properties;
    use crate::properties::buf::PropertiesBuf;
    use crate::properties::property::Property;
    use crate::{Packet, Publish, decode};

    const PLAIN: Outgoing<'static> = Outgoing {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        packet_id: None,
        topic: "a/b",
        topic_alias: None,
        message_expiry: None,
        subscription_ids: &[],
        properties: &[],
        payload: b"payload",
    };

    /// Encodes it with all methods, which have to agree, and decodes it again.
    #[track_caller]
    fn written(outgoing: Outgoing<'_>, version: Version) -> Vec<u8> {
        let mut out = vec![0xAA];
        outgoing.encode(version, &mut out);
        let bytes = out.split_off(1);
        assert_eq!(out, [0xAA]);
        assert_eq!(outgoing.encoded_len(version), bytes.len());
        let mut head = Vec::new();
        outgoing.encode_head(version, &mut head);
        assert_eq!([&head[..], outgoing.payload].concat(), bytes);
        let packet = decode(version, &bytes);
        assert!(
            matches!(packet, Ok(Packet::Publish(publish)) if publish.payload == outgoing.payload),
            "{packet:?}"
        );
        bytes
    }

    /// Checks that `outgoing` decodes to `expected`.
    #[track_caller]
    fn check(outgoing: Outgoing<'_>, version: Version, expected: Publish<'_>) {
        let bytes = written(outgoing, version);
        assert_eq!(decode(version, &bytes), Ok(Packet::Publish(expected)));
    }

    #[test]
    fn older_versions_have_no_properties() {
        let passed_on = PropertiesBuf::from_iter([Property::ContentType("t")]);
        let packet_id = PacketId::new(7);
        let full = Outgoing {
            dup: true,
            qos: QoS::AtLeastOnce,
            retain: true,
            packet_id,
            topic_alias: Some(3),
            message_expiry: Some(60),
            subscription_ids: &[1, 268_435_455],
            properties: passed_on.as_properties().as_bytes(),
            ..PLAIN
        };
        let publish = Publish {
            dup: true,
            qos: QoS::AtLeastOnce,
            retain: true,
            topic: "a/b",
            packet_id,
            properties: Properties::EMPTY,
            payload: b"payload",
        };
        check(full, Version::V3_1, publish);
        check(full, Version::V3_1_1, publish);
        let properties = PropertiesBuf::from_iter([
            Property::TopicAlias(3),
            Property::MessageExpiryInterval(60),
            Property::SubscriptionIdentifier(1),
            Property::SubscriptionIdentifier(268_435_455),
            Property::ContentType("t"),
        ]);
        check(full, Version::V5, Publish { properties: properties.as_properties(), ..publish });
    }

    #[test]
    fn an_alias_replaces_the_topic() {
        let aliased = Outgoing { topic: "", topic_alias: Some(1), ..PLAIN };
        assert_eq!(written(aliased, Version::V5), b"\x30\x0D\0\0\x03\x23\0\x01payload");
        assert_eq!(aliased.encoded_len(Version::V3_1_1), usize::MAX);
    }

    /// [MQTT-3.3.1-2] [MQTT-2.2.1-2] [MQTT3-3.3.1-2] [MQTT3-2.3.1-5]
    #[test]
    fn qos_0_has_neither_dup_nor_packet_identifier() {
        let outgoing = Outgoing { dup: true, packet_id: PacketId::new(1), ..PLAIN };
        assert_eq!(written(outgoing, Version::V3_1_1), b"\x30\x0C\0\x03a/bpayload");
        assert_eq!(written(outgoing, Version::V5), b"\x30\x0D\0\x03a/b\0payload");
    }

    /// Payload sizes around the limits of the Remaining Length's width.
    #[test]
    fn lengths_are_right_for_every_payload_size() {
        for border in [0x80, 0x4000, 0x20_0000] {
            for len in border - 12..border + 2 {
                let payload = vec![0x55; len];
                for version in Version::ALL {
                    let size = written(Outgoing { payload: &payload, ..PLAIN }, version).len();
                    let body = 5 + usize::from(version == Version::V5) + len;
                    assert_eq!(
                        size,
                        2 + usize::from(body >= border) + body + border.ilog2() as usize / 7 - 1
                    );
                }
            }
        }
    }

    #[test]
    fn messages_that_no_packet_can_hold_are_not_written() {
        let long = "x".repeat(65_536);
        let cases = [
            Outgoing { topic: &long, ..PLAIN },
            Outgoing { qos: QoS::ExactlyOnce, ..PLAIN },
            Outgoing { subscription_ids: &[1, 0], ..PLAIN },
            Outgoing { subscription_ids: &[268_435_456], ..PLAIN },
        ];
        for outgoing in cases {
            let mut out = vec![0xAA];
            outgoing.encode(Version::V5, &mut out);
            outgoing.encode_head(Version::V5, &mut out);
            assert_eq!(out, [0xAA]);
            assert_eq!(outgoing.encoded_len(Version::V5), usize::MAX);
        }
    }

    /// The largest PUBLISH of 3.1.1 has one byte too many for 5.0.
    #[test]
    fn the_largest_publish_depends_on_the_version() {
        let payload = vec![0; 268_435_455 - 5];
        let largest = Outgoing { payload: &payload, ..PLAIN };
        assert_eq!(largest.encoded_len(Version::V3_1_1), crate::PACKET_SIZE_MAX as usize);
        assert_eq!(largest.encoded_len(Version::V5), usize::MAX);
        let mut head = Vec::new();
        largest.encode_head(Version::V3_1_1, &mut head);
        assert_eq!(head, b"\x30\xFF\xFF\xFF\x7F\0\x03a/b");
    }
}
