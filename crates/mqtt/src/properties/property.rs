//! One property with its value.

use super::id::PropertyId;
use crate::encoder::{put_binary, put_string, put_variable_byte_integer, variable_byte_integer_len};
use crate::reader::Reader;

/// A property with its value (section 2.2.2.2). Intervals are in seconds; a `u8` that the specification uses as a
/// Boolean is 0 or 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Property<'a> {
    PayloadFormatIndicator(u8),
    MessageExpiryInterval(u32),
    ContentType(&'a str),
    ResponseTopic(&'a str),
    CorrelationData(&'a [u8]),
    SubscriptionIdentifier(u32),
    SessionExpiryInterval(u32),
    AssignedClientIdentifier(&'a str),
    ServerKeepAlive(u16),
    AuthenticationMethod(&'a str),
    AuthenticationData(&'a [u8]),
    RequestProblemInformation(u8),
    WillDelayInterval(u32),
    RequestResponseInformation(u8),
    ResponseInformation(&'a str),
    ServerReference(&'a str),
    ReasonString(&'a str),
    ReceiveMaximum(u16),
    TopicAliasMaximum(u16),
    TopicAlias(u16),
    MaximumQoS(u8),
    RetainAvailable(u8),
    UserProperty(&'a str, &'a str),
    MaximumPacketSize(u32),
    WildcardSubscriptionAvailable(u8),
    SubscriptionIdentifierAvailable(u8),
    SharedSubscriptionAvailable(u8),
}

impl<'a> Property<'a> {
    /// Returns the property's Identifier.
    pub const fn id(&self) -> PropertyId {
        match self {
            Property::PayloadFormatIndicator(..) => PropertyId::PayloadFormatIndicator,
            Property::MessageExpiryInterval(..) => PropertyId::MessageExpiryInterval,
            Property::ContentType(..) => PropertyId::ContentType,
            Property::ResponseTopic(..) => PropertyId::ResponseTopic,
            Property::CorrelationData(..) => PropertyId::CorrelationData,
            Property::SubscriptionIdentifier(..) => PropertyId::SubscriptionIdentifier,
            Property::SessionExpiryInterval(..) => PropertyId::SessionExpiryInterval,
            Property::AssignedClientIdentifier(..) => PropertyId::AssignedClientIdentifier,
            Property::ServerKeepAlive(..) => PropertyId::ServerKeepAlive,
            Property::AuthenticationMethod(..) => PropertyId::AuthenticationMethod,
            Property::AuthenticationData(..) => PropertyId::AuthenticationData,
            Property::RequestProblemInformation(..) => PropertyId::RequestProblemInformation,
            Property::WillDelayInterval(..) => PropertyId::WillDelayInterval,
            Property::RequestResponseInformation(..) => PropertyId::RequestResponseInformation,
            Property::ResponseInformation(..) => PropertyId::ResponseInformation,
            Property::ServerReference(..) => PropertyId::ServerReference,
            Property::ReasonString(..) => PropertyId::ReasonString,
            Property::ReceiveMaximum(..) => PropertyId::ReceiveMaximum,
            Property::TopicAliasMaximum(..) => PropertyId::TopicAliasMaximum,
            Property::TopicAlias(..) => PropertyId::TopicAlias,
            Property::MaximumQoS(..) => PropertyId::MaximumQoS,
            Property::RetainAvailable(..) => PropertyId::RetainAvailable,
            Property::UserProperty(..) => PropertyId::UserProperty,
            Property::MaximumPacketSize(..) => PropertyId::MaximumPacketSize,
            Property::WildcardSubscriptionAvailable(..) => PropertyId::WildcardSubscriptionAvailable,
            Property::SubscriptionIdentifierAvailable(..) => PropertyId::SubscriptionIdentifierAvailable,
            Property::SharedSubscriptionAvailable(..) => PropertyId::SharedSubscriptionAvailable,
        }
    }

    /// Reads the value of `id` from `value`, which holds exactly the value. Returns `None` if it is malformed.
    pub(crate) fn read(id: PropertyId, value: &'a [u8]) -> Option<Property<'a>> {
        let r = &mut Reader::new(value);
        Some(match id {
            PropertyId::PayloadFormatIndicator => Property::PayloadFormatIndicator(r.u8().ok()?),
            PropertyId::MessageExpiryInterval => Property::MessageExpiryInterval(r.u32().ok()?),
            PropertyId::ContentType => Property::ContentType(r.string().ok()?),
            PropertyId::ResponseTopic => Property::ResponseTopic(r.string().ok()?),
            PropertyId::CorrelationData => Property::CorrelationData(r.binary().ok()?),
            PropertyId::SubscriptionIdentifier => {
                Property::SubscriptionIdentifier(r.variable_byte_integer().ok()?)
            }
            PropertyId::SessionExpiryInterval => Property::SessionExpiryInterval(r.u32().ok()?),
            PropertyId::AssignedClientIdentifier => Property::AssignedClientIdentifier(r.string().ok()?),
            PropertyId::ServerKeepAlive => Property::ServerKeepAlive(r.u16().ok()?),
            PropertyId::AuthenticationMethod => Property::AuthenticationMethod(r.string().ok()?),
            PropertyId::AuthenticationData => Property::AuthenticationData(r.binary().ok()?),
            PropertyId::RequestProblemInformation => Property::RequestProblemInformation(r.u8().ok()?),
            PropertyId::WillDelayInterval => Property::WillDelayInterval(r.u32().ok()?),
            PropertyId::RequestResponseInformation => Property::RequestResponseInformation(r.u8().ok()?),
            PropertyId::ResponseInformation => Property::ResponseInformation(r.string().ok()?),
            PropertyId::ServerReference => Property::ServerReference(r.string().ok()?),
            PropertyId::ReasonString => Property::ReasonString(r.string().ok()?),
            PropertyId::ReceiveMaximum => Property::ReceiveMaximum(r.u16().ok()?),
            PropertyId::TopicAliasMaximum => Property::TopicAliasMaximum(r.u16().ok()?),
            PropertyId::TopicAlias => Property::TopicAlias(r.u16().ok()?),
            PropertyId::MaximumQoS => Property::MaximumQoS(r.u8().ok()?),
            PropertyId::RetainAvailable => Property::RetainAvailable(r.u8().ok()?),
            PropertyId::UserProperty => Property::UserProperty(r.string().ok()?, r.string().ok()?),
            PropertyId::MaximumPacketSize => Property::MaximumPacketSize(r.u32().ok()?),
            PropertyId::WildcardSubscriptionAvailable => {
                Property::WildcardSubscriptionAvailable(r.u8().ok()?)
            }
            PropertyId::SubscriptionIdentifierAvailable => {
                Property::SubscriptionIdentifierAvailable(r.u8().ok()?)
            }
            PropertyId::SharedSubscriptionAvailable => Property::SharedSubscriptionAvailable(r.u8().ok()?),
        })
    }

    fn value(&self) -> Value<'a> {
        match *self {
            Property::PayloadFormatIndicator(value)
            | Property::RequestProblemInformation(value)
            | Property::RequestResponseInformation(value)
            | Property::MaximumQoS(value)
            | Property::RetainAvailable(value)
            | Property::WildcardSubscriptionAvailable(value)
            | Property::SubscriptionIdentifierAvailable(value)
            | Property::SharedSubscriptionAvailable(value) => Value::Byte(value),
            Property::ServerKeepAlive(value)
            | Property::ReceiveMaximum(value)
            | Property::TopicAliasMaximum(value)
            | Property::TopicAlias(value) => Value::TwoByteInteger(value),
            Property::MessageExpiryInterval(value)
            | Property::SessionExpiryInterval(value)
            | Property::WillDelayInterval(value)
            | Property::MaximumPacketSize(value) => Value::FourByteInteger(value),
            Property::SubscriptionIdentifier(value) => Value::VariableByteInteger(value),
            Property::ContentType(value)
            | Property::ResponseTopic(value)
            | Property::AssignedClientIdentifier(value)
            | Property::AuthenticationMethod(value)
            | Property::ResponseInformation(value)
            | Property::ServerReference(value)
            | Property::ReasonString(value) => Value::Utf8String(value),
            Property::CorrelationData(value) | Property::AuthenticationData(value) => {
                Value::BinaryData(value)
            }
            Property::UserProperty(name, value) => Value::Utf8StringPair(name, value),
        }
    }

    /// Appends Identifier and value. Returns `false` and appends nothing for a value that no packet can hold: more
    /// than 65,535 bytes, a string with U+0000 [MQTT-1.5.4-2], a Variable Byte Integer above 268,435,455.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        out.push(self.id() as u8);
        let encodable = match self.value() {
            Value::Byte(value) => {
                out.push(value);
                true
            }
            Value::TwoByteInteger(value) => {
                out.extend_from_slice(&value.to_be_bytes());
                true
            }
            Value::FourByteInteger(value) => {
                out.extend_from_slice(&value.to_be_bytes());
                true
            }
            Value::VariableByteInteger(value) => {
                let encodable = variable_byte_integer_len(value).is_some();
                if encodable {
                    put_variable_byte_integer(out, value);
                }
                encodable
            }
            Value::Utf8String(value) => put_string(out, value),
            Value::Utf8StringPair(name, value) => put_string(out, name) && put_string(out, value),
            Value::BinaryData(value) => put_binary(out, value),
        };
        if !encodable {
            out.truncate(start);
        }
        encodable
    }
}

/// A value by its data type (section 1.5).
enum Value<'a> {
    Byte(u8),
    TwoByteInteger(u16),
    FourByteInteger(u32),
    VariableByteInteger(u32),
    Utf8String(&'a str),
    Utf8StringPair(&'a str, &'a str),
    BinaryData(&'a [u8]),
}
