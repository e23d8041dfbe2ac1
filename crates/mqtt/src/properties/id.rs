//! Property Identifiers and the type of each one's value (table 2-4).

use std::fmt;

/// Identifier of a property. It is a Variable Byte Integer, but all those of 5.0 fit into one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PropertyId {
    PayloadFormatIndicator = 0x01,
    MessageExpiryInterval = 0x02,
    ContentType = 0x03,
    ResponseTopic = 0x08,
    CorrelationData = 0x09,
    SubscriptionIdentifier = 0x0B,
    SessionExpiryInterval = 0x11,
    AssignedClientIdentifier = 0x12,
    ServerKeepAlive = 0x13,
    AuthenticationMethod = 0x15,
    AuthenticationData = 0x16,
    RequestProblemInformation = 0x17,
    WillDelayInterval = 0x18,
    RequestResponseInformation = 0x19,
    ResponseInformation = 0x1A,
    ServerReference = 0x1C,
    ReasonString = 0x1F,
    ReceiveMaximum = 0x21,
    TopicAliasMaximum = 0x22,
    TopicAlias = 0x23,
    MaximumQoS = 0x24,
    RetainAvailable = 0x25,
    UserProperty = 0x26,
    MaximumPacketSize = 0x27,
    WildcardSubscriptionAvailable = 0x28,
    SubscriptionIdentifierAvailable = 0x29,
    SharedSubscriptionAvailable = 0x2A,
}

/// Data type of a property's value (section 1.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Byte,
    TwoByteInteger,
    FourByteInteger,
    VariableByteInteger,
    Utf8String,
    Utf8StringPair,
    BinaryData,
}

impl PropertyId {
    /// All 27 properties in the order of their Identifiers.
    pub const ALL: [PropertyId; 27] = [
        PropertyId::PayloadFormatIndicator,
        PropertyId::MessageExpiryInterval,
        PropertyId::ContentType,
        PropertyId::ResponseTopic,
        PropertyId::CorrelationData,
        PropertyId::SubscriptionIdentifier,
        PropertyId::SessionExpiryInterval,
        PropertyId::AssignedClientIdentifier,
        PropertyId::ServerKeepAlive,
        PropertyId::AuthenticationMethod,
        PropertyId::AuthenticationData,
        PropertyId::RequestProblemInformation,
        PropertyId::WillDelayInterval,
        PropertyId::RequestResponseInformation,
        PropertyId::ResponseInformation,
        PropertyId::ServerReference,
        PropertyId::ReasonString,
        PropertyId::ReceiveMaximum,
        PropertyId::TopicAliasMaximum,
        PropertyId::TopicAlias,
        PropertyId::MaximumQoS,
        PropertyId::RetainAvailable,
        PropertyId::UserProperty,
        PropertyId::MaximumPacketSize,
        PropertyId::WildcardSubscriptionAvailable,
        PropertyId::SubscriptionIdentifierAvailable,
        PropertyId::SharedSubscriptionAvailable,
    ];

    /// Returns the property of an Identifier; `None` for one that 5.0 does not define.
    #[inline]
    pub const fn from_byte(byte: u8) -> Option<PropertyId> {
        Some(match byte {
            0x01 => PropertyId::PayloadFormatIndicator,
            0x02 => PropertyId::MessageExpiryInterval,
            0x03 => PropertyId::ContentType,
            0x08 => PropertyId::ResponseTopic,
            0x09 => PropertyId::CorrelationData,
            0x0B => PropertyId::SubscriptionIdentifier,
            0x11 => PropertyId::SessionExpiryInterval,
            0x12 => PropertyId::AssignedClientIdentifier,
            0x13 => PropertyId::ServerKeepAlive,
            0x15 => PropertyId::AuthenticationMethod,
            0x16 => PropertyId::AuthenticationData,
            0x17 => PropertyId::RequestProblemInformation,
            0x18 => PropertyId::WillDelayInterval,
            0x19 => PropertyId::RequestResponseInformation,
            0x1A => PropertyId::ResponseInformation,
            0x1C => PropertyId::ServerReference,
            0x1F => PropertyId::ReasonString,
            0x21 => PropertyId::ReceiveMaximum,
            0x22 => PropertyId::TopicAliasMaximum,
            0x23 => PropertyId::TopicAlias,
            0x24 => PropertyId::MaximumQoS,
            0x25 => PropertyId::RetainAvailable,
            0x26 => PropertyId::UserProperty,
            0x27 => PropertyId::MaximumPacketSize,
            0x28 => PropertyId::WildcardSubscriptionAvailable,
            0x29 => PropertyId::SubscriptionIdentifierAvailable,
            0x2A => PropertyId::SharedSubscriptionAvailable,
            _ => return None,
        })
    }

    #[inline]
    pub(crate) const fn kind(self) -> Kind {
        match self {
            PropertyId::PayloadFormatIndicator
            | PropertyId::RequestProblemInformation
            | PropertyId::RequestResponseInformation
            | PropertyId::MaximumQoS
            | PropertyId::RetainAvailable
            | PropertyId::WildcardSubscriptionAvailable
            | PropertyId::SubscriptionIdentifierAvailable
            | PropertyId::SharedSubscriptionAvailable => Kind::Byte,
            PropertyId::ServerKeepAlive
            | PropertyId::ReceiveMaximum
            | PropertyId::TopicAliasMaximum
            | PropertyId::TopicAlias => Kind::TwoByteInteger,
            PropertyId::MessageExpiryInterval
            | PropertyId::SessionExpiryInterval
            | PropertyId::WillDelayInterval
            | PropertyId::MaximumPacketSize => Kind::FourByteInteger,
            PropertyId::SubscriptionIdentifier => Kind::VariableByteInteger,
            PropertyId::ContentType
            | PropertyId::ResponseTopic
            | PropertyId::AssignedClientIdentifier
            | PropertyId::AuthenticationMethod
            | PropertyId::ResponseInformation
            | PropertyId::ServerReference
            | PropertyId::ReasonString => Kind::Utf8String,
            PropertyId::UserProperty => Kind::Utf8StringPair,
            PropertyId::CorrelationData | PropertyId::AuthenticationData => Kind::BinaryData,
        }
    }

    /// Returns the specification's name of the property.
    pub const fn name(self) -> &'static str {
        match self {
            PropertyId::PayloadFormatIndicator => "Payload Format Indicator",
            PropertyId::MessageExpiryInterval => "Message Expiry Interval",
            PropertyId::ContentType => "Content Type",
            PropertyId::ResponseTopic => "Response Topic",
            PropertyId::CorrelationData => "Correlation Data",
            PropertyId::SubscriptionIdentifier => "Subscription Identifier",
            PropertyId::SessionExpiryInterval => "Session Expiry Interval",
            PropertyId::AssignedClientIdentifier => "Assigned Client Identifier",
            PropertyId::ServerKeepAlive => "Server Keep Alive",
            PropertyId::AuthenticationMethod => "Authentication Method",
            PropertyId::AuthenticationData => "Authentication Data",
            PropertyId::RequestProblemInformation => "Request Problem Information",
            PropertyId::WillDelayInterval => "Will Delay Interval",
            PropertyId::RequestResponseInformation => "Request Response Information",
            PropertyId::ResponseInformation => "Response Information",
            PropertyId::ServerReference => "Server Reference",
            PropertyId::ReasonString => "Reason String",
            PropertyId::ReceiveMaximum => "Receive Maximum",
            PropertyId::TopicAliasMaximum => "Topic Alias Maximum",
            PropertyId::TopicAlias => "Topic Alias",
            PropertyId::MaximumQoS => "Maximum QoS",
            PropertyId::RetainAvailable => "Retain Available",
            PropertyId::UserProperty => "User Property",
            PropertyId::MaximumPacketSize => "Maximum Packet Size",
            PropertyId::WildcardSubscriptionAvailable => "Wildcard Subscription Available",
            PropertyId::SubscriptionIdentifierAvailable => "Subscription Identifier Available",
            PropertyId::SharedSubscriptionAvailable => "Shared Subscription Available",
        }
    }
}

impl fmt::Display for PropertyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_identifier_is_its_byte() {
        let known: Vec<PropertyId> = (0..=u8::MAX).filter_map(PropertyId::from_byte).collect();
        assert_eq!(known, PropertyId::ALL);
        assert!(known.iter().all(|&id| PropertyId::from_byte(id as u8) == Some(id)));
    }
}
