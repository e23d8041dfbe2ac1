//! SUBSCRIBE (3.8).

use std::fmt;

use super::check_flags;
use super::subscription_options::SubscriptionOptions;
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
            // [MQTT-3.8.3-1] [MQTT3-3.8.3-1] [MQTT-4.7.3-1] [MQTT3-4.7.3-1]
            if reader.string()?.is_empty() {
                return Err(DecodeError::TopicFilterEmpty);
            }
            let options = reader.u8()?;
            // [MQTT3-3.8.3-4]: before 5.0 all bits but the QoS are reserved.
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

    /// The filters, not yet parsed, with their options.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, SubscriptionOptions)> + use<'a> {
        let mut reader = Reader::new(self.bytes);
        std::iter::from_fn(move || {
            let filter = reader.topic().ok()?;
            let options = SubscriptionOptions::from_byte(reader.u8().ok()?).ok()?;
            Some((filter, options))
        })
    }

    /// How many there are; in a packet that was decoded at least one.
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
    /// The filter has more than 65,535 bytes, which [`Subscription::parse`](crate::Subscription::parse) would refuse.
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
