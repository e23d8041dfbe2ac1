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

/// An Application Message in transit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Publish<'a> {
    /// Sent before under this Packet Identifier. Never set with QoS 0 [MQTT-3.3.1-2].
    pub dup: bool,
    pub qos: QoS,
    pub retain: bool,
    /// A Topic Name; empty only when the properties have a Topic Alias.
    pub topic: &'a str,
    /// Present exactly with QoS 1 and 2 [MQTT-2.2.1-2].
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
    /// Formats the packet without the payload, which may be large.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReasonCode;
    use crate::Version::*;
    use crate::packet::Packet;
    use crate::packet::check::{block, cannot_encode, packet, reads, refuses, same, writes};
    use crate::properties::buf::PropertiesBuf;
    use crate::properties::property::Property;

    const PLAIN: Publish<'static> = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "a/b",
        packet_id: None,
        properties: Properties::EMPTY,
        payload: b"hi",
    };

    fn none(version: Version) -> &'static [u8] {
        if version == V5 { &[0] } else { &[] }
    }

    #[test]
    fn flags_and_packet_identifier_are_checked() {
        let id = PacketId::new(0x1234);
        for version in Version::ALL {
            let none = none(version);
            for retain in [false, true] {
                let bit = u8::from(retain);
                let plain = packet(0x30 | bit, &[b"\0\x03a/b", none, b"hi"]);
                same(version, &plain, Packet::Publish(Publish { retain, ..PLAIN }));
                for (bits, qos) in [(0b010, QoS::AtLeastOnce), (0b100, QoS::ExactlyOnce)] {
                    for dup in [false, true] {
                        let first = 0x30 | u8::from(dup) << 3 | bits | bit;
                        let bytes = packet(first, &[b"\0\x03a/b\x12\x34", none, b"hi"]);
                        let publish = Publish { dup, qos, retain, packet_id: id, ..PLAIN };
                        same(version, &bytes, Packet::Publish(publish));
                    }
                }
            }
            // [MQTT-3.3.1-4] [MQTT3-3.3.1-4]
            refuses(version, &packet(0x36, &[b"\0\x03a/b\0\x01", none]), DecodeError::QoSReserved);
            // [MQTT-3.3.1-2] [MQTT3-3.3.1-2]
            refuses(version, &packet(0x38, &[b"\0\x03a/b", none]), DecodeError::DupWithoutQoS);
            // [MQTT-2.2.1-4] [MQTT3-2.3.1-1]
            refuses(version, &packet(0x32, &[b"\0\x03a/b\0\0", none]), DecodeError::PacketIdentifierZero);
            refuses(version, &packet(0x32, &[b"\0\x03a/b\0"]), DecodeError::Truncated);
        }
    }

    #[test]
    fn the_payload_is_any_bytes() {
        for version in Version::ALL {
            // (3.3.3): the payload may be empty, and is any bytes.
            same(
                version,
                &packet(0x30, &[b"\0\x03a/b", none(version)]),
                Packet::Publish(Publish { payload: b"", ..PLAIN }),
            );
            let payload: Vec<u8> = (0..70_000).map(|i| i as u8).collect();
            let mut bytes = vec![0x30];
            crate::encoder::put_variable_byte_integer(&mut bytes, 70_005 + none(version).len() as u32);
            bytes.extend_from_slice(b"\0\x03a/b");
            bytes.extend_from_slice(none(version));
            bytes.extend_from_slice(&payload);
            same(version, &bytes, Packet::Publish(Publish { payload: &payload, ..PLAIN }));
        }
    }

    #[test]
    fn the_topic_is_checked() {
        for version in Version::ALL {
            let with = |topic: &[u8]| packet(0x30, &[topic, none(version)]);
            // [MQTT-3.3.2-1] [MQTT3-3.3.2-1]
            refuses(version, &with(b"\0\x02\xC3\x28"), DecodeError::StringNotUtf8);
            // [MQTT-1.5.4-2] [MQTT3-1.5.3-2]
            refuses(version, &with(b"\0\x03a\0b"), DecodeError::StringContainsNull);
            for topic in [&b"\0\x01#"[..], b"\0\x03a/+", b"\0\x03a+b", b"\0\x03a#b"] {
                // [MQTT-3.3.2-2] [MQTT3-3.3.2-2]
                refuses(version, &with(topic), DecodeError::TopicNameInvalid);
            }
            assert_eq!(DecodeError::TopicNameInvalid.reason_code(), ReasonCode::TopicNameInvalid);
            // (3.3.2.1) [MQTT3-4.7.3-1]
            refuses(version, &with(b"\0\0"), DecodeError::TopicNameMissing);
            refuses(version, &packet(0x30, &[b"\0\x03a/"]), DecodeError::Truncated);
            refuses(version, &packet(0x30, &[b"\0"]), DecodeError::Truncated);
            for topic in ["", "a/+", "#", "a\0b"] {
                cannot_encode(version, Packet::Publish(Publish { topic, ..PLAIN }));
            }
            reads(
                version,
                &packet(0x30, &[b"\0\x04$SYS", none(version)]),
                Packet::Publish(Publish { topic: "$SYS", payload: b"", ..PLAIN }),
            );
        }
        refuses(V5, &packet(0x30, &[b"\0\x03a/b"]), DecodeError::Truncated);
    }

    #[test]
    fn an_alias_may_replace_the_topic() {
        let alias = PropertiesBuf::from_iter([Property::TopicAlias(7)]);
        let publish = Publish { topic: "", properties: alias.as_properties(), ..PLAIN };
        same(V5, &packet(0x30, &[b"\0\0", &block(&[&[0x23, 0, 7]]), b"hi"]), Packet::Publish(publish));
        cannot_encode(V3_1_1, Packet::Publish(publish));
        // [MQTT-3.3.2-8]
        let zero = packet(0x30, &[b"\0\0", &block(&[&[0x23, 0, 0]])]);
        refuses(V5, &zero, DecodeError::TopicAliasZero);
        assert_eq!(DecodeError::TopicAliasZero.reason_code(), ReasonCode::TopicAliasInvalid);
    }

    #[test]
    fn properties_are_decoded_and_encoded() {
        let buf = PropertiesBuf::from_iter([
            Property::UserProperty("k", "2"),
            Property::SubscriptionIdentifier(1),
            Property::UserProperty("k", "1"),
            Property::SubscriptionIdentifier(128),
        ]);
        let publish = Packet::Publish(Publish { properties: buf.as_properties(), ..PLAIN });
        let bytes = packet(
            0x30,
            &[b"\0\x03a/b", &block(&[b"\x26\0\x01k\0\x012\x0B\x01\x26\0\x01k\0\x011\x0B\x80\x01"]), b"hi"],
        );
        same(V5, &bytes, publish);
        writes(V3_1, publish, &packet(0x30, &[b"\0\x03a/b", b"hi"]));
    }

    /// [MQTT-2.2.1-2] [MQTT3-2.3.1-5]
    #[test]
    fn the_packet_identifier_is_present_exactly_with_qos_1_and_2() {
        cannot_encode(V5, Packet::Publish(Publish { qos: QoS::AtLeastOnce, ..PLAIN }));
        let superfluous = Publish { dup: true, packet_id: PacketId::new(1), ..PLAIN };
        writes(V3_1_1, Packet::Publish(superfluous), &packet(0x30, &[b"\0\x03a/b", b"hi"]));
    }
}
