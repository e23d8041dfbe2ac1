//! What can be wrong with the bytes a peer sent.

use std::fmt;

use crate::packet_type::PacketType;
use crate::properties::id::PropertyId;
use crate::reason_code::ReasonCode;
use crate::version::Version;

/// A peer's mistake. Its network connection has to be closed, in 5.0 with [`DecodeError::reason_code`]
/// [MQTT-4.13.1-1] [MQTT3-4.8.0-1].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DecodeError {
    /// The packet ends within a field.
    Truncated,
    /// Bytes follow the last field.
    TrailingBytes { count: u32 },
    /// The slice is not one packet: the Remaining Length makes it `framed` bytes, `given` are there.
    LengthMismatch { framed: u32, given: u32 },
    /// Type 0 (2.1.2).
    PacketTypeReserved,
    /// Flags other than those of table 2-2 [MQTT-2.1.3-1] [MQTT3-2.2.2-2].
    FlagsReserved { packet_type: PacketType, flags: u8 },
    /// A packet that the connection's version does not have.
    PacketTypeNotInVersion { packet_type: PacketType, version: Version },
    /// A Variable Byte Integer goes on after four bytes (1.5.5).
    VariableByteIntegerTooLong,
    /// A Variable Byte Integer takes more bytes than it needs [MQTT-1.5.5-1].
    VariableByteIntegerNotMinimal,
    /// [MQTT-1.5.4-1] [MQTT3-1.5.3-1]
    StringNotUtf8,
    /// [MQTT-1.5.4-2] [MQTT3-1.5.3-2]
    StringContainsNull,
    /// Both QoS bits are set [MQTT-3.3.1-4] [MQTT-3.1.2-12] [MQTT3-3.3.1-4] [MQTT3-3.1.2-14].
    QoSReserved,
    /// DUP in a PUBLISH of QoS 0 [MQTT-3.3.1-2] [MQTT3-3.3.1-2].
    DupWithoutQoS,
    /// [MQTT-2.2.1-3] [MQTT3-2.3.1-1]
    PacketIdentifierZero,
    /// A Protocol Name that is not MQTT's [MQTT-3.1.2-1] [MQTT3-3.1.2-1].
    UnsupportedProtocolName,
    /// A Protocol Version that does not exist or does not go with the Protocol Name [MQTT-3.1.2-2] [MQTT3-3.1.2-2].
    UnsupportedProtocolVersion { level: u8 },
    /// Bit 0 of the Connect Flags [MQTT-3.1.2-3] [MQTT3-3.1.2-3].
    ConnectFlagReserved,
    /// Will QoS or Will Retain without the Will Flag [MQTT-3.1.2-11] [MQTT-3.1.2-13] [MQTT3-3.1.2-13] [MQTT3-3.1.2-15].
    WillFlagsWithoutWill,
    /// Before 5.0 a password needs a user name [MQTT3-3.1.2-22].
    PasswordWithoutUserName,
    /// Bits 7 to 1 of the Connect Acknowledge Flags [MQTT-3.2.2-1].
    ConnAckFlagsReserved { flags: u8 },
    /// Session Present in a CONNACK that refuses [MQTT-3.2.2-6] [MQTT3-3.2.2-4].
    SessionPresentWithError,
    /// No Reason Code, or no return code before 5.0.
    ReasonCodeUnknown { byte: u8 },
    /// A Reason Code that this packet does not list.
    ReasonCodeNotAllowed { packet_type: PacketType, reason: ReasonCode },
    /// SUBACK or UNSUBACK without a Reason Code.
    NoReasonCodes,
    /// A Topic Name with a wildcard [MQTT-3.3.2-2] [MQTT3-3.3.2-2], or an empty Will Topic [MQTT-4.7.3-1].
    TopicNameInvalid,
    /// An empty Topic Name without a Topic Alias (3.3.2.1) [MQTT3-4.7.3-1].
    TopicNameMissing,
    /// [MQTT-3.3.2-8]
    TopicAliasZero,
    /// SUBSCRIBE or UNSUBSCRIBE without a Topic Filter [MQTT-3.8.3-2] [MQTT-3.10.3-2] [MQTT3-3.8.3-3] [MQTT3-3.10.3-2].
    NoTopicFilters,
    /// [MQTT-4.7.3-1] [MQTT3-4.7.3-1]
    TopicFilterEmpty,
    /// An ill-formed Topic Filter (4.7.1, 4.8.2).
    TopicFilterInvalid,
    /// Reserved bits of the Subscription Options [MQTT-3.8.3-5] [MQTT3-3.8.3-4].
    SubscriptionOptionsReserved { options: u8 },
    /// QoS 3 in the Subscription Options (3.8.3.1) [MQTT3-3.8.3-4].
    SubscriptionQoSInvalid,
    /// Retain Handling 3 (3.8.3.1).
    RetainHandlingInvalid,
    /// An Identifier that 5.0 does not define (2.2.2.2).
    PropertyUnknown { id: u8 },
    /// A property that does not belong into this packet (2.2.2.2).
    PropertyNotAllowed { id: PropertyId },
    /// A property a second time that may be there only once (2.2.2.2).
    PropertyDuplicate { id: PropertyId },
    /// A value that is none: 0 where that is forbidden, 2 where only 0 and 1 are defined.
    PropertyValueInvalid { id: PropertyId, value: u32 },
    /// A Response Topic that is no Topic Name [MQTT-3.3.2-14].
    ResponseTopicInvalid,
    /// Authentication Data without an Authentication Method (3.1.2.11.10), or an AUTH without one (3.15.2.2.2).
    AuthenticationMethodMissing,
    /// Larger than the receiver allows; both in bytes.
    PacketTooLarge { size: u32, maximum: u32 },
}

const _: () = assert!(size_of::<DecodeError>() <= 12);

impl DecodeError {
    /// What to tell a 5.0 peer in CONNACK or DISCONNECT (4.13).
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
                write!(f, "{given} bytes given for a packet of {framed}")
            }
            DecodeError::PacketTypeReserved => f.write_str("packet type 0 is reserved"),
            DecodeError::FlagsReserved { packet_type, flags } => {
                write!(f, "illegal flags {flags:#06b} in the fixed header of {packet_type}")
            }
            DecodeError::PacketTypeNotInVersion { packet_type, version } => {
                write!(f, "{packet_type} does not exist in MQTT {version}")
            }
            DecodeError::VariableByteIntegerTooLong => {
                f.write_str("a Variable Byte Integer of more than 4 bytes")
            }
            DecodeError::VariableByteIntegerNotMinimal => {
                f.write_str("a Variable Byte Integer takes more bytes than it needs")
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
            DecodeError::ReasonCodeUnknown { byte } => write!(f, "{byte:#04x} is no Reason Code"),
            DecodeError::ReasonCodeNotAllowed { packet_type, reason } => {
                write!(f, "{packet_type} cannot say {reason} ({:#04x})", reason.as_u8())
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
            DecodeError::PropertyUnknown { id } => write!(f, "{id:#04x} is no Property Identifier"),
            DecodeError::PropertyNotAllowed { id } => write!(f, "{id} does not belong into this packet"),
            DecodeError::PropertyDuplicate { id } => write!(f, "{id} more than once"),
            DecodeError::PropertyValueInvalid { id, value } => write!(f, "{value} is not a value of {id}"),
            DecodeError::ResponseTopicInvalid => f.write_str("the Response Topic is not a Topic Name"),
            DecodeError::AuthenticationMethodMissing => f.write_str("the Authentication Method is missing"),
            DecodeError::PacketTooLarge { size, maximum } => {
                write!(f, "a packet of {size} bytes where {maximum} are allowed")
            }
        }
    }
}

impl std::error::Error for DecodeError {}
