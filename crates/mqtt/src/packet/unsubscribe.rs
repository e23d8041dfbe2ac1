//! UNSUBSCRIBE (3.10).

use std::fmt;

use super::{check_filter, check_flags};
use crate::encoder::{Encoder, put_binary};
use crate::error::DecodeError;
use crate::packet_id::PacketId;
use crate::packet_type::PacketType;
use crate::properties::Properties;
use crate::properties::scope::Scope;
use crate::reader::Reader;
use crate::version::Version;

/// A client's request to end subscriptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsubscribe<'a> {
    pub packet_id: PacketId,
    pub properties: Properties<'a>,
    pub filters: UnsubscribeFilters<'a>,
}

impl<'a> Unsubscribe<'a> {
    pub(crate) fn decode(
        version: Version,
        first: u8,
        mut reader: Reader<'a>,
    ) -> Result<Unsubscribe<'a>, DecodeError> {
        check_flags(version, PacketType::Unsubscribe, first)?;
        let packet_id = reader.packet_id()?;
        let properties = Properties::read(&mut reader, version, Scope::Unsubscribe)?;
        let filters = UnsubscribeFilters::check(version, reader)?;
        Ok(Unsubscribe { packet_id, properties, filters })
    }

    pub(crate) fn encode(&self, version: Version, out: &mut Vec<u8>) -> bool {
        !self.filters.is_empty()
            && Encoder::new(out, PacketType::Unsubscribe.first_byte())
                .packet_id(self.packet_id)
                .properties(version, self.properties)
                .bytes(self.filters.bytes)
                .finish()
    }
}

/// The Topic Filters of an UNSUBSCRIBE in order: a view of the payload, which has been checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UnsubscribeFilters<'a> {
    bytes: &'a [u8],
    count: usize,
}

impl<'a> UnsubscribeFilters<'a> {
    fn check(version: Version, mut reader: Reader<'a>) -> Result<UnsubscribeFilters<'a>, DecodeError> {
        let bytes = reader.remainder();
        let mut count = 0;
        while !reader.is_empty() {
            check_filter(version, reader.string()?)?; // [MQTT-3.10.3-1] [MQTT3-3.10.3-1]
            count += 1;
        }
        // [MQTT-3.10.3-2] [MQTT3-3.10.3-2]
        if count == 0 {
            return Err(DecodeError::NoTopicFilters);
        }
        Ok(UnsubscribeFilters { bytes, count })
    }

    /// Returns the filters, not yet parsed.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut reader = Reader::new(self.bytes);
        std::iter::from_fn(move || reader.topic().ok())
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

impl fmt::Debug for UnsubscribeFilters<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The Topic Filters of an UNSUBSCRIBE to be sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnsubscribeFiltersBuf {
    bytes: Vec<u8>,
    count: usize,
}

impl UnsubscribeFiltersBuf {
    /// Appends a filter.
    ///
    /// # Panics
    /// Panics when the filter has more than 65,535 bytes, which [`Subscription::parse`](crate::Subscription::parse)
    /// would refuse.
    pub fn push(&mut self, filter: &str) -> &mut Self {
        assert!(put_binary(&mut self.bytes, filter.as_bytes()), "a Topic Filter of {} bytes", filter.len());
        self.count += 1;
        self
    }

    pub fn as_filters(&self) -> UnsubscribeFilters<'_> {
        UnsubscribeFilters { bytes: &self.bytes, count: self.count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Version::*;
    use crate::packet::Packet;
    use crate::packet::check::{block, cannot_encode, packet, reads, refuses, same};
    use crate::properties::buf::PropertiesBuf;
    use crate::properties::id::PropertyId;
    use crate::properties::property::Property;

    fn unsubscribe(filters: &UnsubscribeFiltersBuf) -> Unsubscribe<'_> {
        Unsubscribe {
            packet_id: PacketId::new(10).expect("not 0"),
            properties: Properties::EMPTY,
            filters: filters.as_filters(),
        }
    }

    fn none(version: Version) -> &'static [u8] {
        if version == V5 { &[0] } else { &[] }
    }

    #[test]
    fn filters_keep_their_order() {
        let mut filters = UnsubscribeFiltersBuf::default();
        filters.push("b").push("a/#").push("b");
        for version in Version::ALL {
            let bytes = packet(0xA2, &[&[0, 10], none(version), b"\0\x01b\0\x03a/#\0\x01b"]);
            same(version, &bytes, Packet::Unsubscribe(unsubscribe(&filters)));
        }
        let view = filters.as_filters();
        assert_eq!((view.len(), view.is_empty()), (3, false));
        assert_eq!(view.iter().collect::<Vec<_>>(), ["b", "a/#", "b"]);
    }

    #[test]
    fn filters_are_strings() {
        for version in Version::ALL {
            let with = |filter: &[u8]| packet(0xA2, &[&[0, 10], none(version), filter]);
            // [MQTT-3.10.3-1] [MQTT3-3.10.3-1]
            refuses(version, &with(b"\0\x01\xFF"), DecodeError::StringNotUtf8);
            refuses(version, &with(b"\0\x02a\0"), DecodeError::StringContainsNull);
            // [MQTT-4.7.3-1] [MQTT3-4.7.3-1]
            refuses(version, &with(b"\0\0"), DecodeError::TopicFilterEmpty);
            refuses(version, &with(b"\0\x02a"), DecodeError::Truncated);
            refuses(version, &with(b"\0\x01a\0"), DecodeError::Truncated);
            // [MQTT-3.10.3-2] [MQTT3-3.10.3-2]
            refuses(version, &with(b""), DecodeError::NoTopicFilters);
            cannot_encode(version, Packet::Unsubscribe(unsubscribe(&UnsubscribeFiltersBuf::default())));
            // [MQTT-2.2.1-3] [MQTT3-2.3.1-1]
            let zero = packet(0xA2, &[&[0, 0], none(version), b"\0\x01a"]);
            refuses(version, &zero, DecodeError::PacketIdentifierZero);
        }
    }

    /// [MQTT-3.10.1-1] [MQTT3-3.10.1-1]; 3.1 has a DUP flag here.
    #[test]
    fn flags_are_checked() {
        let mut filters = UnsubscribeFiltersBuf::default();
        filters.push("a");
        reads(V3_1, b"\xAA\x05\0\x0A\0\x01a", Packet::Unsubscribe(unsubscribe(&filters)));
        let error = DecodeError::FlagsReserved { packet_type: PacketType::Unsubscribe, flags: 0b1010 };
        refuses(V3_1_1, b"\xAA\x05\0\x0A\0\x01a", error);
        refuses(V5, b"\xAA\x06\0\x0A\0\0\x01a", error);
    }

    #[test]
    fn properties_are_decoded_and_encoded() {
        let mut filters = UnsubscribeFiltersBuf::default();
        filters.push("a");
        let buf = PropertiesBuf::from_iter([Property::UserProperty("", "v")]);
        let with = Unsubscribe { properties: buf.as_properties(), ..unsubscribe(&filters) };
        let bytes = packet(0xA2, &[&[0, 10], &block(&[b"\x26\0\0\0\x01v"]), b"\0\x01a"]);
        same(V5, &bytes, Packet::Unsubscribe(with));
        let id = PropertyId::SubscriptionIdentifier;
        let bytes = packet(0xA2, &[&[0, 10], &block(&[&[0x0B, 1]]), b"\0\x01a"]);
        refuses(V5, &bytes, DecodeError::PropertyNotAllowed { id });
    }
}
