//! Which packet may hold which property (table 2-4), and the check of a block that arrives.

use super::id::{Kind, PropertyId};
use super::{Properties, value_len};
use crate::error::DecodeError;
use crate::reader::Reader;
use crate::topic::name::TopicName;
use crate::version::Version;

/// The places where a property block can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Connect,
    Will,
    ConnAck,
    Publish,
    /// PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK and UNSUBACK.
    Acknowledgement,
    Subscribe,
    Unsubscribe,
    Disconnect,
    Auth,
}

impl Scope {
    /// The properties that may be here, as a set: bit `n` stands for Identifier `n` (table 2-4).
    const fn allowed(self) -> u64 {
        use PropertyId as P;
        match self {
            Scope::Connect => set(&[
                P::SessionExpiryInterval,
                P::AuthenticationMethod,
                P::AuthenticationData,
                P::RequestProblemInformation,
                P::RequestResponseInformation,
                P::ReceiveMaximum,
                P::TopicAliasMaximum,
                P::UserProperty,
                P::MaximumPacketSize,
            ]),
            Scope::Will => set(&[
                P::PayloadFormatIndicator,
                P::MessageExpiryInterval,
                P::ContentType,
                P::ResponseTopic,
                P::CorrelationData,
                P::WillDelayInterval,
                P::UserProperty,
            ]),
            Scope::ConnAck => set(&[
                P::SessionExpiryInterval,
                P::AssignedClientIdentifier,
                P::ServerKeepAlive,
                P::AuthenticationMethod,
                P::AuthenticationData,
                P::ResponseInformation,
                P::ServerReference,
                P::ReasonString,
                P::ReceiveMaximum,
                P::TopicAliasMaximum,
                P::MaximumQoS,
                P::RetainAvailable,
                P::UserProperty,
                P::MaximumPacketSize,
                P::WildcardSubscriptionAvailable,
                P::SubscriptionIdentifierAvailable,
                P::SharedSubscriptionAvailable,
            ]),
            Scope::Publish => set(&[
                P::PayloadFormatIndicator,
                P::MessageExpiryInterval,
                P::ContentType,
                P::ResponseTopic,
                P::CorrelationData,
                P::SubscriptionIdentifier,
                P::TopicAlias,
                P::UserProperty,
            ]),
            Scope::Acknowledgement => set(&[P::ReasonString, P::UserProperty]),
            Scope::Subscribe => set(&[P::SubscriptionIdentifier, P::UserProperty]),
            Scope::Unsubscribe => set(&[P::UserProperty]),
            Scope::Disconnect => {
                set(&[P::SessionExpiryInterval, P::ServerReference, P::ReasonString, P::UserProperty])
            }
            Scope::Auth => {
                set(&[P::AuthenticationMethod, P::AuthenticationData, P::ReasonString, P::UserProperty])
            }
        }
    }

    /// The properties that may be here more than once. Only a server sends a Subscription Identifier in PUBLISH, one
    /// for each subscription that matched [MQTT-3.3.4-3] [MQTT-3.3.4-4].
    const fn repeatable(self) -> u64 {
        match self {
            Scope::Publish => set(&[PropertyId::UserProperty, PropertyId::SubscriptionIdentifier]),
            _ => set(&[PropertyId::UserProperty]),
        }
    }
}

const fn bit(id: PropertyId) -> u64 {
    1 << id as u8
}

const fn set(ids: &[PropertyId]) -> u64 {
    let mut bits = 0;
    let mut index = 0;
    while index < ids.len() {
        bits |= bit(ids[index]);
        index += 1;
    }
    bits
}

impl<'a> Properties<'a> {
    /// Reads Property Length and properties of `scope`; reads nothing in versions before 5.0.
    #[inline]
    pub(crate) fn read(
        reader: &mut Reader<'a>,
        version: Version,
        scope: Scope,
    ) -> Result<Properties<'a>, DecodeError> {
        if version != Version::V5 {
            return Ok(Properties::default());
        }
        let len = reader.variable_byte_integer()?;
        if len == 0 {
            return Ok(Properties::default());
        }
        let block = reader.take(len as usize)?;
        check(block, scope)?;
        Ok(Properties(block))
    }
}

fn check(mut block: &[u8], scope: Scope) -> Result<(), DecodeError> {
    let (allowed, repeatable) = (scope.allowed(), scope.repeatable());
    let mut seen = 0;
    while let Some((&byte, rest)) = block.split_first() {
        let id = PropertyId::from_byte(byte).ok_or(DecodeError::PropertyUnknown { id: byte })?;
        if allowed & bit(id) == 0 {
            return Err(DecodeError::PropertyNotAllowed { id });
        }
        if seen & bit(id) & !repeatable != 0 {
            return Err(DecodeError::PropertyDuplicate { id });
        }
        seen |= bit(id);
        let (value, rest) = rest.split_at(value_len(id, rest)?);
        check_value(id, value)?;
        block = rest;
    }
    if seen & bit(PropertyId::AuthenticationData) != 0 && seen & bit(PropertyId::AuthenticationMethod) == 0 {
        return Err(DecodeError::AuthenticationMethodMissing);
    }
    Ok(())
}

fn check_value(id: PropertyId, value: &[u8]) -> Result<(), DecodeError> {
    let mut reader = Reader::new(value);
    let (number, legal) = match id.kind() {
        // All eight are 0 or 1: a format (3.3.2.3.2), a QoS (3.2.2.3.4), a truth value.
        Kind::Byte => {
            let number = u32::from(reader.u8()?);
            (number, number <= 1)
        }
        Kind::TwoByteInteger => {
            let number = u32::from(reader.u16()?);
            match id {
                PropertyId::TopicAlias if number == 0 => return Err(DecodeError::TopicAliasZero),
                PropertyId::ReceiveMaximum => (number, number != 0),
                _ => (number, true),
            }
        }
        Kind::FourByteInteger => {
            let number = reader.u32()?;
            (number, id != PropertyId::MaximumPacketSize || number != 0)
        }
        // A Subscription Identifier is not 0 (3.8.2.1.2, 3.3.2.3.8).
        Kind::VariableByteInteger => {
            let number = reader.variable_byte_integer()?;
            (number, number != 0)
        }
        Kind::Utf8String => {
            let string = reader.string()?;
            // [MQTT-3.3.2-14]; an empty one is no Topic Name either [MQTT-4.7.3-1].
            if id == PropertyId::ResponseTopic && TopicName::parse(string).is_err() {
                return Err(DecodeError::ResponseTopicInvalid);
            }
            (0, true)
        }
        Kind::Utf8StringPair => {
            reader.string()?;
            reader.string()?;
            (0, true)
        }
        Kind::BinaryData => (0, true),
    };
    if legal { Ok(()) } else { Err(DecodeError::PropertyValueInvalid { id, value: number }) }
}
