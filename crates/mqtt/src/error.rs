//! Errors in the bytes that a peer sent.

use std::fmt;

use crate::packet_type::PacketType;
use crate::properties::id::PropertyId;
use crate::reason_code::ReasonCode;
use crate::version::Version;

/// An error of the peer. Its network connection has to be closed, in 5.0 with [`DecodeError::reason_code`]
/// [MQTT-4.13.1-1] [MQTT3-4.8.0-1].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DecodeError {
    /// The packet ends within a field.
    Truncated,
    /// Bytes follow the last field.
    TrailingBytes { count: u32 },
    /// The slice is not exactly one packet: with its Remaining Length it has `framed` bytes, but `given` are there.
    LengthMismatch { framed: u32, given: u32 },
    /// The packet type is 0, which is reserved (2.1.2).
    PacketTypeReserved,
    /// The flags are not those of table 2-2 [MQTT-2.1.3-1] [MQTT3-2.2.2-2].
    FlagsReserved { packet_type: PacketType, flags: u8 },
    /// The connection's version does not have this packet.
    PacketTypeNotInVersion { packet_type: PacketType, version: Version },
    /// A Variable Byte Integer has more than four bytes (1.5.5).
    VariableByteIntegerTooLong,
    /// A Variable Byte Integer has more bytes than it needs [MQTT-1.5.5-1].
    VariableByteIntegerNotMinimal,
    /// A string is not UTF-8 [MQTT-1.5.4-1] [MQTT3-1.5.3-1].
    StringNotUtf8,
    /// A string contains U+0000 [MQTT-1.5.4-2] [MQTT3-1.5.3-2].
    StringContainsNull,
    /// Both QoS bits are set [MQTT-3.3.1-4] [MQTT-3.1.2-12] [MQTT3-3.3.1-4] [MQTT3-3.1.2-14].
    QoSReserved,
    /// DUP is set in a PUBLISH of QoS 0 [MQTT-3.3.1-2] [MQTT3-3.3.1-2].
    DupWithoutQoS,
    /// The Packet Identifier is 0 [MQTT-2.2.1-3] [MQTT3-2.3.1-1].
    PacketIdentifierZero,
    /// The Protocol Name is not MQTT's [MQTT-3.1.2-1] [MQTT3-3.1.2-1].
    UnsupportedProtocolName,
    /// The Protocol Version does not exist or does not go with the Protocol Name [MQTT-3.1.2-2] [MQTT3-3.1.2-2].
    UnsupportedProtocolVersion { level: u8 },
    /// Bit 0 of the Connect Flags is set [MQTT-3.1.2-3] [MQTT3-3.1.2-3].
    ConnectFlagReserved,
    /// Will QoS or Will Retain is set without the Will Flag [MQTT-3.1.2-11] [MQTT-3.1.2-13] [MQTT3-3.1.2-13]
    /// [MQTT3-3.1.2-15].
    WillFlagsWithoutWill,
    /// A packet before 5.0 has a password without a user name [MQTT3-3.1.2-22].
    PasswordWithoutUserName,
    /// Bits 7 to 1 of the Connect Acknowledge Flags are not 0 [MQTT-3.2.2-1].
    ConnAckFlagsReserved { flags: u8 },
    /// Session Present is set in a CONNACK that refuses [MQTT-3.2.2-6] [MQTT3-3.2.2-4].
    SessionPresentWithError,
    /// A byte is not a Reason Code, or not a return code before 5.0.
    ReasonCodeUnknown { byte: u8 },
    /// This packet does not list the Reason Code.
    ReasonCodeNotAllowed { packet_type: PacketType, reason: ReasonCode },
    /// A SUBACK or UNSUBACK has no Reason Code.
    NoReasonCodes,
    /// A Topic Name has a wildcard [MQTT-3.3.2-2] [MQTT3-3.3.2-2], or a Will Topic is empty [MQTT-4.7.3-1].
    TopicNameInvalid,
    /// A Topic Name is empty without a Topic Alias (3.3.2.1) [MQTT3-4.7.3-1].
    TopicNameMissing,
    /// The Topic Alias is 0 [MQTT-3.3.2-8].
    TopicAliasZero,
    /// A SUBSCRIBE or UNSUBSCRIBE has no Topic Filter [MQTT-3.8.3-2] [MQTT-3.10.3-2] [MQTT3-3.8.3-3]
    /// [MQTT3-3.10.3-2].
    NoTopicFilters,
    /// A Topic Filter is empty [MQTT-4.7.3-1] [MQTT3-4.7.3-1].
    TopicFilterEmpty,
    /// A Topic Filter is ill-formed (4.7.1, 4.8.2).
    TopicFilterInvalid,
    /// Reserved bits of the Subscription Options are set [MQTT-3.8.3-5] [MQTT3-3.8.3-4].
    SubscriptionOptionsReserved { options: u8 },
    /// The Subscription Options have QoS 3 (3.8.3.1) [MQTT3-3.8.3-4].
    SubscriptionQoSInvalid,
    /// Retain Handling is 3 (3.8.3.1).
    RetainHandlingInvalid,
    /// 5.0 does not define this Property Identifier (2.2.2.2).
    PropertyUnknown { id: u8 },
    /// The property is not allowed in this packet (2.2.2.2).
    PropertyNotAllowed { id: PropertyId },
    /// A property that may occur once occurs again (2.2.2.2).
    PropertyDuplicate { id: PropertyId },
    /// The value of a property is not allowed: 0 where that is forbidden, or 2 where only 0 and 1 are defined.
    PropertyValueInvalid { id: PropertyId, value: u32 },
    /// The Response Topic is not a Topic Name [MQTT-3.3.2-14].
    ResponseTopicInvalid,
    /// A packet has Authentication Data without an Authentication Method (3.1.2.11.10), or an AUTH without one
    /// (3.15.2.2.2).
    AuthenticationMethodMissing,
    /// The packet is larger than the receiver allows; both sizes are in bytes.
    PacketTooLarge { size: u32, maximum: u32 },
}

const _: () = assert!(size_of::<DecodeError>() <= 12);

impl DecodeError {
    /// Returns the Reason Code for a 5.0 peer, in CONNACK or DISCONNECT (4.13).
    pub const fn reason_code(&self) -> ReasonCode {
        match self {
            DecodeError::Truncated
            | DecodeError::TrailingBytes { .. }
            | DecodeError::LengthMismatch { .. }
            | DecodeError::PacketTypeReserved
            | DecodeError::FlagsReserved { .. }
            | DecodeError::VariableByteIntegerTooLong
            | DecodeError::VariableByteIntegerNotMinimal
            | DecodeError::StringNotUtf8
            | DecodeError::StringContainsNull
            | DecodeError::QoSReserved
            | DecodeError::DupWithoutQoS
            | DecodeError::ConnectFlagReserved
            | DecodeError::WillFlagsWithoutWill
            | DecodeError::PasswordWithoutUserName
            | DecodeError::ConnAckFlagsReserved { .. }
            | DecodeError::ReasonCodeUnknown { .. }
            | DecodeError::TopicFilterEmpty
            | DecodeError::TopicFilterInvalid
            | DecodeError::SubscriptionOptionsReserved { .. }
            | DecodeError::PropertyUnknown { .. }
            | DecodeError::PropertyNotAllowed { .. } => ReasonCode::MalformedPacket,
            DecodeError::PacketTypeNotInVersion { .. }
            | DecodeError::PacketIdentifierZero
            | DecodeError::SessionPresentWithError
            | DecodeError::ReasonCodeNotAllowed { .. }
            | DecodeError::NoReasonCodes
            | DecodeError::TopicNameMissing
            | DecodeError::NoTopicFilters
            | DecodeError::SubscriptionQoSInvalid
            | DecodeError::RetainHandlingInvalid
            | DecodeError::PropertyDuplicate { .. }
            | DecodeError::PropertyValueInvalid { .. }
            | DecodeError::ResponseTopicInvalid
            | DecodeError::AuthenticationMethodMissing => ReasonCode::ProtocolError,
            DecodeError::UnsupportedProtocolName | DecodeError::UnsupportedProtocolVersion { .. } => {
                ReasonCode::UnsupportedProtocolVersion
            }
            DecodeError::TopicNameInvalid => ReasonCode::TopicNameInvalid,
            DecodeError::TopicAliasZero => ReasonCode::TopicAliasInvalid,
            DecodeError::PacketTooLarge { .. } => ReasonCode::PacketTooLarge,
        }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            DecodeError::Truncated => f.write_str("the packet ends within a field"),
            DecodeError::TrailingBytes { count } => write!(f, "{count} bytes after the last field"),
            DecodeError::LengthMismatch { framed, given } => {
                write!(f, "{given} bytes given for a packet of {framed} bytes")
            }
            DecodeError::PacketTypeReserved => f.write_str("packet type 0 is reserved"),
            DecodeError::FlagsReserved { packet_type, flags } => {
                write!(f, "invalid flags {flags:#06b} in the fixed header of {packet_type}")
            }
            DecodeError::PacketTypeNotInVersion { packet_type, version } => {
                write!(f, "{packet_type} does not exist in MQTT {version}")
            }
            DecodeError::VariableByteIntegerTooLong => {
                f.write_str("a Variable Byte Integer of more than 4 bytes")
            }
            DecodeError::VariableByteIntegerNotMinimal => {
                f.write_str("a Variable Byte Integer has more bytes than it needs")
            }
            DecodeError::StringNotUtf8 => f.write_str("a string is not UTF-8"),
            DecodeError::StringContainsNull => f.write_str("a string contains U+0000"),
            DecodeError::QoSReserved => f.write_str("QoS 3 is reserved"),
            DecodeError::DupWithoutQoS => f.write_str("DUP in a PUBLISH of QoS 0"),
            DecodeError::PacketIdentifierZero => f.write_str("Packet Identifier 0"),
            DecodeError::UnsupportedProtocolName => f.write_str("the Protocol Name is not MQTT's"),
            DecodeError::UnsupportedProtocolVersion { level } => {
                write!(f, "Protocol Version {level} is not supported under this Protocol Name")
            }
            DecodeError::ConnectFlagReserved => f.write_str("the reserved Connect Flag is set"),
            DecodeError::WillFlagsWithoutWill => f.write_str("Will QoS or Will Retain without Will Flag"),
            DecodeError::PasswordWithoutUserName => f.write_str("a password without a user name"),
            DecodeError::ConnAckFlagsReserved { flags } => {
                write!(f, "reserved Connect Acknowledge Flags in {flags:#010b}")
            }
            DecodeError::SessionPresentWithError => f.write_str("Session Present in a CONNACK that refuses"),
            DecodeError::ReasonCodeUnknown { byte } => write!(f, "{byte:#04x} is not a Reason Code"),
            DecodeError::ReasonCodeNotAllowed { packet_type, reason } => {
                write!(f, "{packet_type} does not allow {reason} ({:#04x})", reason.as_u8())
            }
            DecodeError::NoReasonCodes => f.write_str("no Reason Codes in the payload"),
            DecodeError::TopicNameInvalid => {
                f.write_str("a Topic Name with a wildcard, or an empty Will Topic")
            }
            DecodeError::TopicNameMissing => f.write_str("neither a Topic Name nor a Topic Alias"),
            DecodeError::TopicAliasZero => f.write_str("Topic Alias 0"),
            DecodeError::NoTopicFilters => f.write_str("no Topic Filters in the payload"),
            DecodeError::TopicFilterEmpty => f.write_str("an empty Topic Filter"),
            DecodeError::TopicFilterInvalid => {
                f.write_str("a Topic Filter with a misplaced wildcard, or without a ShareName")
            }
            DecodeError::SubscriptionOptionsReserved { options } => {
                write!(f, "reserved bits in Subscription Options {options:#010b}")
            }
            DecodeError::SubscriptionQoSInvalid => f.write_str("QoS 3 in Subscription Options"),
            DecodeError::RetainHandlingInvalid => f.write_str("Retain Handling 3"),
            DecodeError::PropertyUnknown { id } => write!(f, "{id:#04x} is not a Property Identifier"),
            DecodeError::PropertyNotAllowed { id } => write!(f, "{id} is not allowed in this packet"),
            DecodeError::PropertyDuplicate { id } => write!(f, "{id} occurs more than once"),
            DecodeError::PropertyValueInvalid { id, value } => write!(f, "{value} is not a value of {id}"),
            DecodeError::ResponseTopicInvalid => f.write_str("the Response Topic is not a Topic Name"),
            DecodeError::AuthenticationMethodMissing => f.write_str("the Authentication Method is missing"),
            DecodeError::PacketTooLarge { size, maximum } => {
                write!(f, "a packet of {size} bytes exceeds the maximum of {maximum}")
            }
        }
    }
}

impl std::error::Error for DecodeError {}
