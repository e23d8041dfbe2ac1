//! SUBSCRIBE (3.8).

use std::fmt;

use super::subscription_options::SubscriptionOptions;
use super::{check_filter, check_flags};
use crate::encoder::{Encoder, put_binary};
use crate::error::DecodeError;
use crate::packet_id::PacketId;
use crate::packet_type::PacketType;
use crate::properties::Properties;
use crate::properties::scope::Scope;
use crate::reader::Reader;
use crate::version::Version;

/// A client's request for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscribe<'a> {
    pub packet_id: PacketId,
    pub properties: Properties<'a>,
    pub filters: SubscribeFilters<'a>,
}

impl<'a> Subscribe<'a> {
    pub(crate) fn decode(
        version: Version,
        first: u8,
        mut reader: Reader<'a>,
    ) -> Result<Subscribe<'a>, DecodeError> {
        check_flags(version, PacketType::Subscribe, first)?;
        let packet_id = reader.packet_id()?;
        let properties = Properties::read(&mut reader, version, Scope::Subscribe)?;
        let filters = SubscribeFilters::check(version, reader)?;
        Ok(Subscribe { packet_id, properties, filters })
    }

    pub(crate) fn encode(&self, version: Version, out: &mut Vec<u8>) -> bool {
        if self.filters.is_empty() {
            return false;
        }
        let mut encoder = Encoder::new(out, PacketType::Subscribe.first_byte());
        encoder.packet_id(self.packet_id).properties(version, self.properties);
        match version {
            Version::V5 => {
                encoder.bytes(self.filters.bytes);
            }
            Version::V3_1 | Version::V3_1_1 => {
                for (filter, options) in self.filters.iter() {
                    encoder.string(filter).u8(options.qos as u8);
                }
            }
        }
        encoder.finish()
    }
}

/// The Topic Filters of a SUBSCRIBE with their options, in order: a view of the payload, which has been checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SubscribeFilters<'a> {
    bytes: &'a [u8],
    count: usize,
}

impl<'a> SubscribeFilters<'a> {
    fn check(version: Version, mut reader: Reader<'a>) -> Result<SubscribeFilters<'a>, DecodeError> {
        let bytes = reader.remainder();
        let mut count = 0;
        while !reader.is_empty() {
            check_filter(version, reader.string()?)?; // [MQTT-3.8.3-1] [MQTT3-3.8.3-1]
            let options = reader.u8()?;
            // [MQTT3-3.8.3-4]: before 5.0 all bits except the QoS are reserved.
            if version != Version::V5 && options & 0b1111_1100 != 0 {
                return Err(DecodeError::SubscriptionOptionsReserved { options });
            }
            SubscriptionOptions::from_byte(options)?;
            count += 1;
        }
        // [MQTT-3.8.3-2] [MQTT3-3.8.3-3]
        if count == 0 {
            return Err(DecodeError::NoTopicFilters);
        }
        Ok(SubscribeFilters { bytes, count })
    }

    /// Returns the filters, not yet parsed, with their options.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, SubscriptionOptions)> + use<'a> {
        let mut reader = Reader::new(self.bytes);
        std::iter::from_fn(move || {
            let filter = reader.topic().ok()?;
            let options = SubscriptionOptions::from_byte(reader.u8().ok()?).ok()?;
            Some((filter, options))
        })
    }

    /// Number of filters; at least one in a packet that was decoded.
    #[inline]
    pub const fn len(&self) -> usize {
        self.count
    }

    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl fmt::Debug for SubscribeFilters<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The Topic Filters of a SUBSCRIBE to be sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubscribeFiltersBuf {
    bytes: Vec<u8>,
    count: usize,
}

impl SubscribeFiltersBuf {
    /// Appends a filter.
    ///
    /// # Panics
    /// Panics when the filter has more than 65,535 bytes, which [`Subscription::parse`](crate::Subscription::parse)
    /// would refuse.
    pub fn push(&mut self, filter: &str, options: SubscriptionOptions) -> &mut Self {
        assert!(put_binary(&mut self.bytes, filter.as_bytes()), "a Topic Filter of {} bytes", filter.len());
        self.bytes.push(options.to_byte());
        self.count += 1;
        self
    }

    pub fn as_filters(&self) -> SubscribeFilters<'_> {
        SubscribeFilters { bytes: &self.bytes, count: self.count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Version::*;
    use crate::packet::Packet;
    use crate::packet::check::{block, cannot_encode, packet, reads, refuses, same, writes};
    use crate::packet::subscription_options::RetainHandling;
    use crate::properties::buf::PropertiesBuf;
    use crate::properties::id::PropertyId;
    use crate::properties::property::Property;
    use crate::qos::QoS;

    fn subscribe(filters: &SubscribeFiltersBuf) -> Subscribe<'_> {
        Subscribe {
            packet_id: PacketId::new(10).expect("not 0"),
            properties: Properties::EMPTY,
            filters: filters.as_filters(),
        }
    }

    fn qos(qos: QoS) -> SubscriptionOptions {
        SubscriptionOptions { qos, ..Default::default() }
    }

    fn none(version: Version) -> &'static [u8] {
        if version == V5 { &[0] } else { &[] }
    }

    #[test]
    fn filters_keep_their_order() {
        let mut filters = SubscribeFiltersBuf::default();
        filters
            .push("a/+", qos(QoS::AtLeastOnce))
            .push("#", qos(QoS::ExactlyOnce))
            .push("a/+", qos(QoS::AtMostOnce));
        for version in Version::ALL {
            let bytes = packet(0x82, &[&[0, 10], none(version), b"\0\x03a/+\x01\0\x01#\x02\0\x03a/+\x00"]);
            same(version, &bytes, Packet::Subscribe(subscribe(&filters)));
            let view = filters.as_filters();
            assert_eq!((view.len(), view.is_empty()), (3, false));
            let expected =
                [("a/+", qos(QoS::AtLeastOnce)), ("#", qos(QoS::ExactlyOnce)), ("a/+", qos(QoS::AtMostOnce))];
            assert_eq!(view.iter().collect::<Vec<_>>(), expected);
        }
    }

    /// A payload that is cut anywhere except between two filters is refused.
    #[test]
    fn no_field_may_be_missing() {
        for version in Version::ALL {
            let whole = packet(0x82, &[&[0, 10], none(version), b"\0\x03a/+\x01\0\x01#\x02"]);
            let between = whole.len() - 4;
            for end in (2..whole.len()).filter(|&end| end != between) {
                let mut cut = whole[..end].to_vec();
                cut[1] = (end - 2) as u8;
                let bare = end == 4 + none(version).len();
                refuses(
                    version,
                    &cut,
                    if bare { DecodeError::NoTopicFilters } else { DecodeError::Truncated },
                );
            }
        }
    }

    #[test]
    fn options_are_checked() {
        let all = SubscriptionOptions {
            qos: QoS::AtLeastOnce,
            no_local: true,
            retain_as_published: true,
            retain_handling: RetainHandling::DoNotSend,
        };
        let mut filters = SubscribeFiltersBuf::default();
        filters.push("a", all);
        same(V5, b"\x82\x07\0\x0A\0\0\x01a\x2D", Packet::Subscribe(subscribe(&filters)));
        writes(V3_1_1, Packet::Subscribe(subscribe(&filters)), b"\x82\x06\0\x0A\0\x01a\x01");
        for version in [V3_1, V3_1_1] {
            for options in [0x04, 0x08, 0x10, 0x20, 0x40, 0x80] {
                // [MQTT3-3.8.3-4]
                let bytes = packet(0x82, &[&[0, 10], b"\0\x01a", &[options]]);
                refuses(version, &bytes, DecodeError::SubscriptionOptionsReserved { options });
            }
        }
        for version in Version::ALL {
            let with = |options| packet(0x82, &[&[0, 10], none(version), b"\0\x01a", &[options]]);
            refuses(version, &with(3), DecodeError::SubscriptionQoSInvalid);
            // [MQTT-3.8.3-5]
            refuses(version, &with(0x40), DecodeError::SubscriptionOptionsReserved { options: 0x40 });
        }
        let error = DecodeError::RetainHandlingInvalid;
        refuses(V5, &packet(0x82, &[&[0, 10], &[0], b"\0\x01a", &[0x30]]), error);
    }

    #[test]
    fn filters_are_strings() {
        for version in Version::ALL {
            let with = |filter: &[u8]| packet(0x82, &[&[0, 10], none(version), filter, &[0]]);
            // [MQTT-3.8.3-1] [MQTT3-3.8.3-1]
            refuses(version, &with(b"\0\x01\xFF"), DecodeError::StringNotUtf8);
            refuses(version, &with(b"\0\x02a\0"), DecodeError::StringContainsNull);
            // [MQTT-4.7.3-1] [MQTT3-4.7.3-1]
            refuses(version, &with(b"\0\0"), DecodeError::TopicFilterEmpty);
            // [MQTT-4.7.1-1] [MQTT3-4.7.1-2]
            refuses(version, &with(b"\0\x02a#"), DecodeError::TopicFilterInvalid);
            let shared = with(b"\0\x08$share/g");
            if version == V5 {
                refuses(version, &shared, DecodeError::TopicFilterInvalid); // [MQTT-4.8.2-1]
            } else {
                let mut filters = SubscribeFiltersBuf::default();
                filters.push("$share/g", qos(QoS::AtMostOnce));
                reads(version, &shared, Packet::Subscribe(subscribe(&filters)));
            }
        }
    }

    #[test]
    fn a_packet_without_filters_is_refused() {
        for version in Version::ALL {
            // [MQTT-3.8.3-2] [MQTT3-3.8.3-3]
            refuses(version, &packet(0x82, &[&[0, 10], none(version)]), DecodeError::NoTopicFilters);
            cannot_encode(version, Packet::Subscribe(subscribe(&SubscribeFiltersBuf::default())));
        }
    }

    /// [MQTT-2.2.1-3] [MQTT3-2.3.1-1]
    #[test]
    fn a_packet_identifier_of_0_is_refused() {
        for version in Version::ALL {
            let bytes = packet(0x82, &[&[0, 0], none(version), b"\0\x01a\0"]);
            refuses(version, &bytes, DecodeError::PacketIdentifierZero);
        }
    }

    /// [MQTT-3.8.1-1] [MQTT3-3.8.1-1]; 3.1 has a DUP flag here.
    #[test]
    fn flags_are_checked() {
        let mut filters = SubscribeFiltersBuf::default();
        filters.push("a", qos(QoS::AtMostOnce));
        reads(V3_1, b"\x8A\x06\0\x0A\0\x01a\0", Packet::Subscribe(subscribe(&filters)));
        let error = DecodeError::FlagsReserved { packet_type: PacketType::Subscribe, flags: 0b1010 };
        refuses(V3_1_1, b"\x8A\x06\0\x0A\0\x01a\0", error);
        refuses(V5, b"\x8A\x07\0\x0A\0\0\x01a\0", error);
    }

    #[test]
    fn the_subscription_identifier_occurs_once() {
        let mut filters = SubscribeFiltersBuf::default();
        filters.push("a", qos(QoS::AtMostOnce));
        let buf = PropertiesBuf::from_iter([Property::SubscriptionIdentifier(300)]);
        let with = Subscribe { properties: buf.as_properties(), ..subscribe(&filters) };
        let bytes = packet(0x82, &[&[0, 10], &block(&[&[0x0B, 0xAC, 0x02]]), b"\0\x01a\0"]);
        same(V5, &bytes, Packet::Subscribe(with));
        // (3.8.2.1.2)
        let twice = packet(0x82, &[&[0, 10], &block(&[&[0x0B, 1, 0x0B, 2]]), b"\0\x01a\0"]);
        refuses(V5, &twice, DecodeError::PropertyDuplicate { id: PropertyId::SubscriptionIdentifier });
    }
}
