//! Properties of a packet (section 2.2.2). [`Properties`] reads a block that has been checked, wherever it is
//! stored. The check, and the properties of each packet, are in `scope`.

pub(crate) mod buf;
pub(crate) mod id;
pub(crate) mod property;
pub(crate) mod scope;

use std::fmt;

use crate::error::DecodeError;
use crate::reader::Reader;
use id::{Kind, PropertyId};
use property::Property;

/// A checked property block: the bytes after the Property Length. Empty in versions before 5.0.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Properties<'a>(&'a [u8]);

impl<'a> Properties<'a> {
    /// Block without properties.
    pub const EMPTY: Properties<'static> = Properties(&[]);

    /// Creates a view of a block that was checked before: a result of [`Self::as_bytes`] or [`Self::forwardable`].
    /// In any other block, properties may be missed.
    pub const fn of_checked(block: &'a [u8]) -> Self {
        Properties(block)
    }

    /// Returns the properties as on the wire, without the Property Length.
    #[inline]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all properties in the sender's order, which is significant for User Properties [MQTT-3.3.2-18].
    pub fn iter(&self) -> Iter<'a> {
        Iter { rest: self.0 }
    }

    /// Returns the properties that a server forwards with an Application Message: all except Topic Alias, Message
    /// Expiry Interval, Subscription Identifier and Will Delay Interval, in the same order [MQTT-3.3.2-17]
    /// [MQTT-3.3.2-18]. Borrowed when they are contiguous, otherwise copied to `scratch`, whose former contents are
    /// lost.
    pub fn forwardable<'s>(self, scratch: &'s mut Vec<u8>) -> &'s [u8]
    where
        'a: 's,
    {
        let block = self.0;
        // The current run of properties to forward, and whether an earlier one is in `scratch`.
        let (mut from, mut to, mut copied) = (0, 0, false);
        let mut at = 0;
        while let Some((id, len)) = split(&block[at..]) {
            let end = at + len;
            if !stops_at_the_server(id) {
                if at != to {
                    if to > from {
                        if !copied {
                            scratch.clear();
                            copied = true;
                        }
                        scratch.extend_from_slice(&block[from..to]);
                    }
                    from = at;
                }
                to = end;
            }
            at = end;
        }
        if copied {
            scratch.extend_from_slice(&block[from..to]);
            return scratch;
        }
        &block[from..to]
    }

    /// Session Expiry Interval in seconds; 0xFFFFFFFF means that the Session never expires (3.1.2.11.2).
    pub fn session_expiry_interval(&self) -> Option<u32> {
        self.four_byte_integer(PropertyId::SessionExpiryInterval)
    }

    /// Receive Maximum, never 0 (3.1.2.11.3).
    pub fn receive_maximum(&self) -> Option<u16> {
        self.two_byte_integer(PropertyId::ReceiveMaximum)
    }

    /// Maximum Packet Size in bytes, never 0 (3.1.2.11.4).
    pub fn maximum_packet_size(&self) -> Option<u32> {
        self.four_byte_integer(PropertyId::MaximumPacketSize)
    }

    /// Highest Topic Alias that the sender of the property accepts (3.1.2.11.5).
    pub fn topic_alias_maximum(&self) -> Option<u16> {
        self.two_byte_integer(PropertyId::TopicAliasMaximum)
    }

    /// Returns whether the client requests Response Information in CONNACK; without the property it does not
    /// (3.1.2.11.6).
    pub fn request_response_information(&self) -> bool {
        self.flag(PropertyId::RequestResponseInformation).unwrap_or(false)
    }

    /// Returns whether the client requests Reason Strings and User Properties with failures; without the property
    /// it does (3.1.2.11.7).
    pub fn request_problem_information(&self) -> bool {
        self.flag(PropertyId::RequestProblemInformation).unwrap_or(true)
    }

    /// Authentication Method (3.1.2.11.9).
    pub fn authentication_method(&self) -> Option<&'a str> {
        self.string(PropertyId::AuthenticationMethod)
    }

    /// Authentication Data (3.1.2.11.10).
    pub fn authentication_data(&self) -> Option<&'a [u8]> {
        self.binary(PropertyId::AuthenticationData)
    }

    /// Topic Alias, never 0 [MQTT-3.3.2-8].
    pub fn topic_alias(&self) -> Option<u16> {
        self.two_byte_integer(PropertyId::TopicAlias)
    }

    /// Message Expiry Interval in seconds (3.3.2.3.3).
    pub fn message_expiry_interval(&self) -> Option<u32> {
        self.four_byte_integer(PropertyId::MessageExpiryInterval)
    }

    /// Payload Format Indicator: 0 for bytes, 1 for UTF-8 (3.3.2.3.2).
    pub fn payload_format_indicator(&self) -> Option<u8> {
        self.byte(PropertyId::PayloadFormatIndicator)
    }

    /// Will Delay Interval in seconds (3.1.3.2.2).
    pub fn will_delay_interval(&self) -> Option<u32> {
        self.four_byte_integer(PropertyId::WillDelayInterval)
    }

    /// First Subscription Identifier, 1 to 268,435,455; a PUBLISH to a client may have several (3.3.2.3.8).
    pub fn subscription_identifier(&self) -> Option<u32> {
        let mut value = Reader::new(self.find(PropertyId::SubscriptionIdentifier)?);
        value.variable_byte_integer().ok()
    }

    /// Response Topic, a Topic Name (3.3.2.3.5).
    pub fn response_topic(&self) -> Option<&'a str> {
        self.string(PropertyId::ResponseTopic)
    }

    /// Correlation Data (3.3.2.3.6).
    pub fn correlation_data(&self) -> Option<&'a [u8]> {
        self.binary(PropertyId::CorrelationData)
    }

    /// Content Type (3.3.2.3.9).
    pub fn content_type(&self) -> Option<&'a str> {
        self.string(PropertyId::ContentType)
    }

    /// Assigned Client Identifier (3.2.2.3.7).
    pub fn assigned_client_identifier(&self) -> Option<&'a str> {
        self.string(PropertyId::AssignedClientIdentifier)
    }

    /// Server Keep Alive in seconds (3.2.2.3.14).
    pub fn server_keep_alive(&self) -> Option<u16> {
        self.two_byte_integer(PropertyId::ServerKeepAlive)
    }

    /// Response Information (3.2.2.3.15).
    pub fn response_information(&self) -> Option<&'a str> {
        self.string(PropertyId::ResponseInformation)
    }

    /// Server Reference (3.2.2.3.16).
    pub fn server_reference(&self) -> Option<&'a str> {
        self.string(PropertyId::ServerReference)
    }

    /// Reason String (3.2.2.3.9).
    pub fn reason_string(&self) -> Option<&'a str> {
        self.string(PropertyId::ReasonString)
    }

    /// Maximum QoS, 0 or 1; without the property it is 2 (3.2.2.3.4).
    pub fn maximum_qos(&self) -> Option<u8> {
        self.byte(PropertyId::MaximumQoS)
    }

    /// Retain Available; without the property it is (3.2.2.3.5).
    pub fn retain_available(&self) -> Option<bool> {
        self.flag(PropertyId::RetainAvailable)
    }

    /// Wildcard Subscription Available; without the property they are (3.2.2.3.11).
    pub fn wildcard_subscription_available(&self) -> Option<bool> {
        self.flag(PropertyId::WildcardSubscriptionAvailable)
    }

    /// Subscription Identifiers Available; without the property they are (3.2.2.3.12).
    pub fn subscription_identifier_available(&self) -> Option<bool> {
        self.flag(PropertyId::SubscriptionIdentifierAvailable)
    }

    /// Shared Subscription Available; without the property they are (3.2.2.3.13).
    pub fn shared_subscription_available(&self) -> Option<bool> {
        self.flag(PropertyId::SharedSubscriptionAvailable)
    }

    /// Returns names and values in the sender's order; a name may occur more than once.
    pub fn user_properties(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.iter().filter_map(|property| match property {
            Property::UserProperty(name, value) => Some((name, value)),
            _ => None,
        })
    }

    /// Returns the value of the first such property as on the wire.
    #[inline]
    fn find(&self, wanted: PropertyId) -> Option<&'a [u8]> {
        if self.0.is_empty() { None } else { find(self.0, wanted) }
    }

    #[inline]
    fn byte(&self, id: PropertyId) -> Option<u8> {
        self.find(id)?.first().copied()
    }

    #[inline]
    fn flag(&self, id: PropertyId) -> Option<bool> {
        self.byte(id).map(|value| value != 0)
    }

    #[inline]
    fn two_byte_integer(&self, id: PropertyId) -> Option<u16> {
        Reader::new(self.find(id)?).u16().ok()
    }

    #[inline]
    fn four_byte_integer(&self, id: PropertyId) -> Option<u32> {
        Reader::new(self.find(id)?).u32().ok()
    }

    #[inline]
    fn string(&self, id: PropertyId) -> Option<&'a str> {
        Reader::new(self.find(id)?).topic().ok()
    }

    #[inline]
    fn binary(&self, id: PropertyId) -> Option<&'a [u8]> {
        Reader::new(self.find(id)?).binary().ok()
    }
}

impl fmt::Debug for Properties<'_> {
    /// Formats the properties without Authentication Data, which may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.iter().map(|property| match property {
                Property::AuthenticationData(_) => Property::AuthenticationData(b"(hidden)"),
                other => other,
            }))
            .finish()
    }
}

/// The properties of a block in order.
#[derive(Debug, Clone)]
pub struct Iter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Iter<'a> {
    type Item = Property<'a>;

    fn next(&mut self) -> Option<Property<'a>> {
        let (id, len) = split(self.rest)?;
        let (first, rest) = self.rest.split_at(len);
        self.rest = rest;
        Property::read(id, &first[1..])
    }
}

/// Returns whether a property is not forwarded with an Application Message; the server writes its own
/// [MQTT-3.3.2-6] (3.3.2.3.3, 3.3.2.3.4, 3.1.3.2.2, 3.3.4).
fn stops_at_the_server(id: PropertyId) -> bool {
    matches!(
        id,
        PropertyId::TopicAlias
            | PropertyId::MessageExpiryInterval
            | PropertyId::SubscriptionIdentifier
            | PropertyId::WillDelayInterval
    )
}

fn find(mut block: &[u8], wanted: PropertyId) -> Option<&[u8]> {
    while let Some((id, len)) = split(block) {
        let (first, rest) = block.split_at(len);
        if id == wanted {
            return Some(&first[1..]);
        }
        block = rest;
    }
    None
}

/// Returns the Identifier of the first property of a checked block, and its length in bytes with the Identifier;
/// `None` at the end.
#[inline]
fn split(block: &[u8]) -> Option<(PropertyId, usize)> {
    let (&id, value) = block.split_first()?;
    let id = PropertyId::from_byte(id)?;
    Some((id, 1 + value_len(id, value).ok()?))
}

/// Returns the length in bytes of the value at the beginning of `bytes`. A Variable Byte Integer or a string may
/// still be ill-formed.
///
/// # Errors
/// `bytes` is shorter than the value.
#[inline]
fn value_len(id: PropertyId, bytes: &[u8]) -> Result<usize, DecodeError> {
    let mut reader = Reader::new(bytes);
    match id.kind() {
        Kind::Byte => reader.take(1).map(|_| ())?,
        Kind::TwoByteInteger => reader.take(2).map(|_| ())?,
        Kind::FourByteInteger => reader.take(4).map(|_| ())?,
        Kind::VariableByteInteger => reader.variable_byte_integer().map(|_| ())?,
        Kind::Utf8String | Kind::BinaryData => reader.binary().map(|_| ())?,
        Kind::Utf8StringPair => {
            reader.binary()?;
            reader.binary()?;
        }
    }
    Ok(bytes.len() - reader.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use buf::PropertiesBuf;

    const TABLE: [Property<'static>; 27] = [
        Property::PayloadFormatIndicator(1),
        Property::MessageExpiryInterval(2),
        Property::ContentType("type"),
        Property::ResponseTopic("reply/to"),
        Property::CorrelationData(&[0, 1]),
        Property::SubscriptionIdentifier(268_435_455),
        Property::SessionExpiryInterval(3),
        Property::AssignedClientIdentifier("id"),
        Property::ServerKeepAlive(4),
        Property::AuthenticationMethod("method"),
        Property::AuthenticationData(&[5]),
        Property::RequestProblemInformation(0),
        Property::WillDelayInterval(6),
        Property::RequestResponseInformation(1),
        Property::ResponseInformation("info"),
        Property::ServerReference("elsewhere"),
        Property::ReasonString("reason"),
        Property::ReceiveMaximum(7),
        Property::TopicAliasMaximum(8),
        Property::TopicAlias(9),
        Property::MaximumQoS(1),
        Property::RetainAvailable(0),
        Property::UserProperty("name", "value"),
        Property::MaximumPacketSize(10),
        Property::WildcardSubscriptionAvailable(0),
        Property::SubscriptionIdentifierAvailable(0),
        Property::SharedSubscriptionAvailable(0),
    ];

    #[test]
    fn each_property_is_found_among_all() {
        let buf = PropertiesBuf::from_iter(TABLE);
        let p = buf.as_properties();
        assert_eq!(p.iter().collect::<Vec<_>>(), TABLE);
        assert_eq!(TABLE.map(|property| property.id()), PropertyId::ALL);
        assert_eq!(p.payload_format_indicator(), Some(1));
        assert_eq!(p.message_expiry_interval(), Some(2));
        assert_eq!(p.content_type(), Some("type"));
        assert_eq!(p.response_topic(), Some("reply/to"));
        assert_eq!(p.correlation_data(), Some(&[0, 1][..]));
        assert_eq!(p.subscription_identifier(), Some(268_435_455));
        assert_eq!(p.session_expiry_interval(), Some(3));
        assert_eq!(p.assigned_client_identifier(), Some("id"));
        assert_eq!(p.server_keep_alive(), Some(4));
        assert_eq!(p.authentication_method(), Some("method"));
        assert_eq!(p.authentication_data(), Some(&[5][..]));
        assert!(!p.request_problem_information());
        assert_eq!(p.will_delay_interval(), Some(6));
        assert!(p.request_response_information());
        assert_eq!(p.response_information(), Some("info"));
        assert_eq!(p.server_reference(), Some("elsewhere"));
        assert_eq!(p.reason_string(), Some("reason"));
        assert_eq!(p.receive_maximum(), Some(7));
        assert_eq!(p.topic_alias_maximum(), Some(8));
        assert_eq!(p.topic_alias(), Some(9));
        assert_eq!(p.maximum_qos(), Some(1));
        assert_eq!(p.retain_available(), Some(false));
        assert_eq!(p.user_properties().collect::<Vec<_>>(), [("name", "value")]);
        assert_eq!(p.maximum_packet_size(), Some(10));
        assert_eq!(p.wildcard_subscription_available(), Some(false));
        assert_eq!(p.subscription_identifier_available(), Some(false));
        assert_eq!(p.shared_subscription_available(), Some(false));
    }

    #[test]
    fn nothing_is_found_in_an_empty_block() {
        let p = Properties::default();
        assert!(p.is_empty());
        assert_eq!(p.iter().count(), 0);
        assert_eq!(p.session_expiry_interval(), None);
        assert_eq!(p.topic_alias(), None);
        assert_eq!(p.reason_string(), None);
        // (3.1.2.11.6) (3.1.2.11.7)
        assert!(!p.request_response_information());
        assert!(p.request_problem_information());
    }

    /// [MQTT-3.3.2-17] [MQTT-3.3.2-18]
    #[test]
    fn a_server_forwards_the_properties_of_the_message() {
        use Property as P;
        let (a, b, c) = (P::UserProperty("n", "a"), P::ContentType("t"), P::UserProperty("n", "c"));
        let (alias, expiry) = (P::TopicAlias(1), P::MessageExpiryInterval(9));
        let (id, delay) = (P::SubscriptionIdentifier(5), P::WillDelayInterval(7));
        let cases: [(&[P<'_>], &[P<'_>], bool); 12] = [
            (&[], &[], true),
            (&[a], &[a], true),
            (&[a, b, c], &[a, b, c], true),
            (&[alias], &[], true),
            (&[alias, expiry, id, delay], &[], true),
            (&[alias, a, b], &[a, b], true),
            (&[a, b, expiry], &[a, b], true),
            (&[alias, a, id], &[a], true),
            (&[a, alias, b], &[a, b], false),
            (&[alias, a, expiry, b, id, c, delay], &[a, b, c], false),
            (&[a, alias, expiry, c, b], &[a, c, b], false),
            (&[c, id, a, id], &[c, a], false),
        ];
        for (given, expected, borrowed) in cases {
            let (given, expected) =
                (PropertiesBuf::from_iter(given.to_vec()), PropertiesBuf::from_iter(expected.to_vec()));
            let properties = given.as_properties();
            let mut scratch = vec![0xAA];
            let passed_on = properties.forwardable(&mut scratch).to_vec();
            assert_eq!(passed_on, expected.as_properties().as_bytes(), "{given:?}");
            assert_eq!(scratch == [0xAA], borrowed, "{given:?}");
        }
    }

    /// [MQTT-1.5.4-2] and the limits of 1.5.4 to 1.5.6.
    #[test]
    fn values_that_no_packet_can_hold_are_refused() {
        let long = "x".repeat(65_536);
        let mut buf = PropertiesBuf::default();
        assert!(!buf.push(Property::ReasonString(&long)));
        assert!(!buf.push(Property::CorrelationData(long.as_bytes())));
        assert!(!buf.push(Property::UserProperty("name", &long)));
        assert!(!buf.push(Property::UserProperty("name", "a\0b")));
        assert!(!buf.push(Property::SubscriptionIdentifier(268_435_456)));
        assert!(buf.is_empty());
        assert!(buf.push(Property::ReasonString(&long[1..])));
        buf.clear();
        assert!(buf.is_empty());
    }

    #[test]
    fn authentication_data_is_not_printed() {
        let buf =
            PropertiesBuf::from_iter([Property::AuthenticationData(b"AAAA"), Property::ReasonString("r")]);
        let printed = format!("{buf:?}");
        assert!(printed.contains("ReasonString(\"r\")"), "{printed}");
        assert!(!printed.contains("65, 65"), "{printed}");
    }
}
