//! Reason Codes (section 2.4).

use std::fmt;

/// Result of an operation, with the names of table 2-6. Four packets have another name for 0x00 (Normal
/// disconnection, Granted QoS 0); here it is always [`ReasonCode::Success`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ReasonCode {
    Success = 0x00,
    GrantedQoS1 = 0x01,
    GrantedQoS2 = 0x02,
    DisconnectWithWill = 0x04,
    NoMatchingSubscribers = 0x10,
    NoSubscriptionExisted = 0x11,
    ContinueAuthentication = 0x18,
    ReAuthenticate = 0x19,
    UnspecifiedError = 0x80,
    MalformedPacket = 0x81,
    ProtocolError = 0x82,
    ImplementationSpecificError = 0x83,
    UnsupportedProtocolVersion = 0x84,
    ClientIdentifierNotValid = 0x85,
    BadUserNameOrPassword = 0x86,
    NotAuthorized = 0x87,
    ServerUnavailable = 0x88,
    ServerBusy = 0x89,
    Banned = 0x8A,
    ServerShuttingDown = 0x8B,
    BadAuthenticationMethod = 0x8C,
    KeepAliveTimeout = 0x8D,
    SessionTakenOver = 0x8E,
    TopicFilterInvalid = 0x8F,
    TopicNameInvalid = 0x90,
    PacketIdentifierInUse = 0x91,
    PacketIdentifierNotFound = 0x92,
    ReceiveMaximumExceeded = 0x93,
    TopicAliasInvalid = 0x94,
    PacketTooLarge = 0x95,
    MessageRateTooHigh = 0x96,
    QuotaExceeded = 0x97,
    AdministrativeAction = 0x98,
    PayloadFormatInvalid = 0x99,
    RetainNotSupported = 0x9A,
    QoSNotSupported = 0x9B,
    UseAnotherServer = 0x9C,
    ServerMoved = 0x9D,
    SharedSubscriptionsNotSupported = 0x9E,
    ConnectionRateExceeded = 0x9F,
    MaximumConnectTime = 0xA0,
    SubscriptionIdentifiersNotSupported = 0xA1,
    WildcardSubscriptionsNotSupported = 0xA2,
}

impl ReasonCode {
    /// Returns whether the operation failed: 0x80 and above.
    #[inline]
    pub const fn is_error(self) -> bool {
        self as u8 >= 0x80
    }

    /// Returns the byte on the wire.
    #[inline]
    pub const fn as_u8(self) -> u8 {
        self as u8
    }

    /// Returns the specification's name of the code.
    pub const fn name(self) -> &'static str {
        match self {
            ReasonCode::Success => "Success",
            ReasonCode::GrantedQoS1 => "Granted QoS 1",
            ReasonCode::GrantedQoS2 => "Granted QoS 2",
            ReasonCode::DisconnectWithWill => "Disconnect with Will Message",
            ReasonCode::NoMatchingSubscribers => "No matching subscribers",
            ReasonCode::NoSubscriptionExisted => "No subscription existed",
            ReasonCode::ContinueAuthentication => "Continue authentication",
            ReasonCode::ReAuthenticate => "Re-authenticate",
            ReasonCode::UnspecifiedError => "Unspecified error",
            ReasonCode::MalformedPacket => "Malformed Packet",
            ReasonCode::ProtocolError => "Protocol Error",
            ReasonCode::ImplementationSpecificError => "Implementation specific error",
            ReasonCode::UnsupportedProtocolVersion => "Unsupported Protocol Version",
            ReasonCode::ClientIdentifierNotValid => "Client Identifier not valid",
            ReasonCode::BadUserNameOrPassword => "Bad User Name or Password",
            ReasonCode::NotAuthorized => "Not authorized",
            ReasonCode::ServerUnavailable => "Server unavailable",
            ReasonCode::ServerBusy => "Server busy",
            ReasonCode::Banned => "Banned",
            ReasonCode::ServerShuttingDown => "Server shutting down",
            ReasonCode::BadAuthenticationMethod => "Bad authentication method",
            ReasonCode::KeepAliveTimeout => "Keep Alive timeout",
            ReasonCode::SessionTakenOver => "Session taken over",
            ReasonCode::TopicFilterInvalid => "Topic Filter invalid",
            ReasonCode::TopicNameInvalid => "Topic Name invalid",
            ReasonCode::PacketIdentifierInUse => "Packet Identifier in use",
            ReasonCode::PacketIdentifierNotFound => "Packet Identifier not found",
            ReasonCode::ReceiveMaximumExceeded => "Receive Maximum exceeded",
            ReasonCode::TopicAliasInvalid => "Topic Alias invalid",
            ReasonCode::PacketTooLarge => "Packet too large",
            ReasonCode::MessageRateTooHigh => "Message rate too high",
            ReasonCode::QuotaExceeded => "Quota exceeded",
            ReasonCode::AdministrativeAction => "Administrative action",
            ReasonCode::PayloadFormatInvalid => "Payload format invalid",
            ReasonCode::RetainNotSupported => "Retain not supported",
            ReasonCode::QoSNotSupported => "QoS not supported",
            ReasonCode::UseAnotherServer => "Use another server",
            ReasonCode::ServerMoved => "Server moved",
            ReasonCode::SharedSubscriptionsNotSupported => "Shared Subscriptions not supported",
            ReasonCode::ConnectionRateExceeded => "Connection rate exceeded",
            ReasonCode::MaximumConnectTime => "Maximum connect time",
            ReasonCode::SubscriptionIdentifiersNotSupported => "Subscription Identifiers not supported",
            ReasonCode::WildcardSubscriptionsNotSupported => "Wildcard Subscriptions not supported",
        }
    }
}

impl TryFrom<u8> for ReasonCode {
    type Error = u8;

    /// Converts a byte. The error is a byte that is not a Reason Code of MQTT 5.0.
    fn try_from(byte: u8) -> Result<ReasonCode, u8> {
        Ok(match byte {
            0x00 => ReasonCode::Success,
            0x01 => ReasonCode::GrantedQoS1,
            0x02 => ReasonCode::GrantedQoS2,
            0x04 => ReasonCode::DisconnectWithWill,
            0x10 => ReasonCode::NoMatchingSubscribers,
            0x11 => ReasonCode::NoSubscriptionExisted,
            0x18 => ReasonCode::ContinueAuthentication,
            0x19 => ReasonCode::ReAuthenticate,
            0x80 => ReasonCode::UnspecifiedError,
            0x81 => ReasonCode::MalformedPacket,
            0x82 => ReasonCode::ProtocolError,
            0x83 => ReasonCode::ImplementationSpecificError,
            0x84 => ReasonCode::UnsupportedProtocolVersion,
            0x85 => ReasonCode::ClientIdentifierNotValid,
            0x86 => ReasonCode::BadUserNameOrPassword,
            0x87 => ReasonCode::NotAuthorized,
            0x88 => ReasonCode::ServerUnavailable,
            0x89 => ReasonCode::ServerBusy,
            0x8A => ReasonCode::Banned,
            0x8B => ReasonCode::ServerShuttingDown,
            0x8C => ReasonCode::BadAuthenticationMethod,
            0x8D => ReasonCode::KeepAliveTimeout,
            0x8E => ReasonCode::SessionTakenOver,
            0x8F => ReasonCode::TopicFilterInvalid,
            0x90 => ReasonCode::TopicNameInvalid,
            0x91 => ReasonCode::PacketIdentifierInUse,
            0x92 => ReasonCode::PacketIdentifierNotFound,
            0x93 => ReasonCode::ReceiveMaximumExceeded,
            0x94 => ReasonCode::TopicAliasInvalid,
            0x95 => ReasonCode::PacketTooLarge,
            0x96 => ReasonCode::MessageRateTooHigh,
            0x97 => ReasonCode::QuotaExceeded,
            0x98 => ReasonCode::AdministrativeAction,
            0x99 => ReasonCode::PayloadFormatInvalid,
            0x9A => ReasonCode::RetainNotSupported,
            0x9B => ReasonCode::QoSNotSupported,
            0x9C => ReasonCode::UseAnotherServer,
            0x9D => ReasonCode::ServerMoved,
            0x9E => ReasonCode::SharedSubscriptionsNotSupported,
            0x9F => ReasonCode::ConnectionRateExceeded,
            0xA0 => ReasonCode::MaximumConnectTime,
            0xA1 => ReasonCode::SubscriptionIdentifiersNotSupported,
            0xA2 => ReasonCode::WildcardSubscriptionsNotSupported,
            _ => return Err(byte),
        })
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_its_byte() {
        let codes: Vec<ReasonCode> =
            (0..=u8::MAX).filter_map(|byte| ReasonCode::try_from(byte).ok()).collect();
        assert_eq!(codes.len(), 43, "table 2-6 has 43 values");
        for code in codes {
            assert_eq!(ReasonCode::try_from(code.as_u8()), Ok(code));
            assert_eq!(code.is_error(), code.as_u8() >= 0x80);
        }
        assert_eq!(ReasonCode::try_from(0x03), Err(0x03));
        assert_eq!(ReasonCode::TopicFilterInvalid.to_string(), "Topic Filter invalid");
    }
}
