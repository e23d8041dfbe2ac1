//! Properties by packet (table 2-4), and the check of a received block.

use super::id::{Kind, PropertyId};
use super::{Properties, value_len};
use crate::error::DecodeError;
use crate::reader::Reader;
use crate::topic::name::TopicName;
use crate::version::Version;

/// Location of a property block.
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
    /// Returns the set of properties that are allowed here: bit `n` stands for Identifier `n` (table 2-4).
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

    /// Returns the set of properties that may occur here more than once. Only a server sends a Subscription
    /// Identifier in PUBLISH, one for each subscription that matched [MQTT-3.3.4-3] [MQTT-3.3.4-4].
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
        // All eight are 0 or 1: a format (3.3.2.3.2), a QoS (3.2.2.3.4), a Boolean.
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
            // [MQTT-3.3.2-14]; an empty one is not a Topic Name either [MQTT-4.7.3-1].
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(scope: Scope, block: &[u8]) -> Result<Properties<'_>, DecodeError> {
        let mut reader = Reader::new(block);
        let properties = Properties::read(&mut reader, Version::V5, scope)?;
        reader.finish()?;
        Ok(properties)
    }

    fn with_length(properties: &[&[u8]]) -> Vec<u8> {
        crate::packet::check::block(properties)
    }

    const SCOPES: [Scope; 9] = [
        Scope::Connect,
        Scope::Will,
        Scope::ConnAck,
        Scope::Publish,
        Scope::Acknowledgement,
        Scope::Subscribe,
        Scope::Unsubscribe,
        Scope::Disconnect,
        Scope::Auth,
    ];

    /// Returns every property with a legal value on the wire, and the scopes that table 2-4 gives it.
    fn table() -> Vec<(PropertyId, &'static [u8], Vec<Scope>)> {
        use PropertyId as P;
        let message = [Scope::Publish, Scope::Will];
        let connection = [Scope::Connect, Scope::ConnAck];
        let authentication = [Scope::Connect, Scope::ConnAck, Scope::Auth];
        let reason = [Scope::ConnAck, Scope::Acknowledgement, Scope::Disconnect, Scope::Auth];
        let connack = [Scope::ConnAck];
        vec![
            (P::PayloadFormatIndicator, &[1], message.to_vec()),
            (P::MessageExpiryInterval, &[0, 0, 0, 1], message.to_vec()),
            (P::ContentType, b"\0\x01a", message.to_vec()),
            (P::ResponseTopic, b"\0\x01a", message.to_vec()),
            (P::CorrelationData, b"\0\x01\0", message.to_vec()),
            (P::SubscriptionIdentifier, &[0x80, 0x01], vec![Scope::Publish, Scope::Subscribe]),
            (
                P::SessionExpiryInterval,
                &[0xFF, 0xFF, 0xFF, 0xFF],
                vec![Scope::Connect, Scope::ConnAck, Scope::Disconnect],
            ),
            (P::AssignedClientIdentifier, b"\0\x01a", connack.to_vec()),
            (P::ServerKeepAlive, &[0, 0], connack.to_vec()),
            (P::AuthenticationMethod, b"\0\x01a", authentication.to_vec()),
            (P::AuthenticationData, b"\0\x00", authentication.to_vec()),
            (P::RequestProblemInformation, &[0], vec![Scope::Connect]),
            (P::WillDelayInterval, &[0, 0, 0, 0], vec![Scope::Will]),
            (P::RequestResponseInformation, &[1], vec![Scope::Connect]),
            (P::ResponseInformation, b"\0\x00", connack.to_vec()),
            (P::ServerReference, b"\0\x01a", vec![Scope::ConnAck, Scope::Disconnect]),
            (P::ReasonString, b"\0\x01a", reason.to_vec()),
            (P::ReceiveMaximum, &[0, 1], connection.to_vec()),
            (P::TopicAliasMaximum, &[0, 0], connection.to_vec()),
            (P::TopicAlias, &[0, 1], vec![Scope::Publish]),
            (P::MaximumQoS, &[1], connack.to_vec()),
            (P::RetainAvailable, &[0], connack.to_vec()),
            (P::UserProperty, b"\0\x01a\0\x00", SCOPES.to_vec()),
            (P::MaximumPacketSize, &[0, 0, 0, 1], connection.to_vec()),
            (P::WildcardSubscriptionAvailable, &[1], connack.to_vec()),
            (P::SubscriptionIdentifierAvailable, &[1], connack.to_vec()),
            (P::SharedSubscriptionAvailable, &[0], connack.to_vec()),
        ]
    }

    /// Table 2-4 in both directions: a property is accepted where it is listed and refused everywhere else
    /// (2.2.2.2).
    #[test]
    fn each_property_is_accepted_in_its_packets_only() {
        let table = table();
        assert_eq!(table.iter().map(|row| row.0).collect::<Vec<_>>(), PropertyId::ALL);
        for (id, value, scopes) in table {
            for scope in SCOPES {
                let method: &[u8] = if id == PropertyId::AuthenticationData { b"\x15\0\x01m" } else { b"" };
                let method = if scopes.contains(&scope) { method } else { b"" };
                let block = with_length(&[&[id as u8], value, method]);
                let result = read(scope, &block);
                if scopes.contains(&scope) {
                    let properties = result.unwrap_or_else(|error| panic!("{id} in {scope:?}: {error}"));
                    assert_eq!(properties.as_bytes(), &block[1..]);
                    assert_eq!(properties.iter().next().map(|property| property.id()), Some(id));
                } else {
                    assert_eq!(result, Err(DecodeError::PropertyNotAllowed { id }), "{id} in {scope:?}");
                }
            }
        }
    }

    /// (2.2.2.2): a second one is a Protocol Error, except for User Property anywhere and Subscription Identifier
    /// in PUBLISH.
    #[test]
    fn each_property_may_come_once() {
        for (id, value, scopes) in table() {
            for scope in scopes {
                let block = with_length(&[b"\x26\0\0\0\0", &[id as u8], value, &[id as u8], value]);
                let twice = id == PropertyId::UserProperty
                    || id == PropertyId::SubscriptionIdentifier && scope == Scope::Publish;
                let result = read(scope, &block);
                if twice {
                    assert_eq!(
                        result.map(|properties| properties.iter().count()),
                        Ok(3),
                        "{id} in {scope:?}"
                    );
                } else {
                    assert_eq!(result, Err(DecodeError::PropertyDuplicate { id }), "{id} in {scope:?}");
                }
            }
        }
    }

    #[test]
    fn no_value_may_be_cut_short() {
        for (id, value, scopes) in table() {
            for len in 0..value.len() {
                let block = with_length(&[&[id as u8], &value[..len]]);
                assert_eq!(read(scopes[0], &block), Err(DecodeError::Truncated), "{id} of {len} bytes");
            }
        }
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let invalid = |id, value| DecodeError::PropertyValueInvalid { id, value };
        let cases: [(Scope, &[u8], DecodeError); 21] = [
            // (3.3.2.3.2)
            (Scope::Publish, &[0x01, 2], invalid(PropertyId::PayloadFormatIndicator, 2)),
            (Scope::Will, &[0x01, 0xFF], invalid(PropertyId::PayloadFormatIndicator, 255)),
            // (3.1.2.11.7) (3.1.2.11.6)
            (Scope::Connect, &[0x17, 2], invalid(PropertyId::RequestProblemInformation, 2)),
            (Scope::Connect, &[0x19, 2], invalid(PropertyId::RequestResponseInformation, 2)),
            // (3.2.2.3.4) (3.2.2.3.5) (3.2.2.3.11) (3.2.2.3.12) (3.2.2.3.13)
            (Scope::ConnAck, &[0x24, 2], invalid(PropertyId::MaximumQoS, 2)),
            (Scope::ConnAck, &[0x25, 2], invalid(PropertyId::RetainAvailable, 2)),
            (Scope::ConnAck, &[0x28, 2], invalid(PropertyId::WildcardSubscriptionAvailable, 2)),
            (Scope::ConnAck, &[0x29, 2], invalid(PropertyId::SubscriptionIdentifierAvailable, 2)),
            (Scope::ConnAck, &[0x2A, 2], invalid(PropertyId::SharedSubscriptionAvailable, 2)),
            // (3.1.2.11.3) (3.1.2.11.4)
            (Scope::Connect, &[0x21, 0, 0], invalid(PropertyId::ReceiveMaximum, 0)),
            (Scope::ConnAck, &[0x27, 0, 0, 0, 0], invalid(PropertyId::MaximumPacketSize, 0)),
            // (3.8.2.1.2) (3.3.2.3.8)
            (Scope::Subscribe, &[0x0B, 0], invalid(PropertyId::SubscriptionIdentifier, 0)),
            (Scope::Publish, &[0x0B, 0], invalid(PropertyId::SubscriptionIdentifier, 0)),
            // [MQTT-1.5.5-1]
            (Scope::Subscribe, &[0x0B, 0x81, 0x00], DecodeError::VariableByteIntegerNotMinimal),
            (Scope::Subscribe, &[0x0B, 0xFF, 0xFF, 0xFF, 0xFF, 1], DecodeError::VariableByteIntegerTooLong),
            // [MQTT-3.3.2-8]
            (Scope::Publish, &[0x23, 0, 0], DecodeError::TopicAliasZero),
            // [MQTT-3.3.2-13] [MQTT-3.3.2-14]
            (Scope::Publish, b"\x08\0\x02\xC3\x28", DecodeError::StringNotUtf8),
            (Scope::Publish, b"\x08\0\x03a/+", DecodeError::ResponseTopicInvalid),
            (Scope::Will, b"\x08\0\0", DecodeError::ResponseTopicInvalid),
            // [MQTT-1.5.7-1]
            (Scope::Publish, b"\x26\0\x01\xFF\0\0", DecodeError::StringNotUtf8),
            (Scope::Publish, b"\x26\0\0\0\x01\0", DecodeError::StringContainsNull),
        ];
        for (scope, bytes, error) in cases {
            assert_eq!(read(scope, &with_length(&[bytes])), Err(error), "{scope:?} {bytes:02X?}");
        }
    }

    /// (2.2.2.2)
    #[test]
    fn unknown_identifiers_are_refused() {
        for id in (0..=u8::MAX).filter(|&id| PropertyId::from_byte(id).is_none()) {
            let error = Err(DecodeError::PropertyUnknown { id });
            assert_eq!(read(Scope::Publish, &with_length(&[&[id, 0, 0]])), error);
        }
    }

    /// (3.1.2.11.10) and the same rule in CONNACK and AUTH.
    #[test]
    fn authentication_data_needs_a_method() {
        for scope in [Scope::Connect, Scope::ConnAck, Scope::Auth] {
            let error = Err(DecodeError::AuthenticationMethodMissing);
            assert_eq!(read(scope, &with_length(&[b"\x16\0\x01a"])), error, "{scope:?}");
            assert!(read(scope, &with_length(&[b"\x16\0\x01a\x15\0\x01m"])).is_ok(), "{scope:?}");
        }
    }

    /// [MQTT-2.2.2-1]
    #[test]
    fn the_property_length_is_checked() {
        assert_eq!(read(Scope::Publish, &[0]), Ok(Properties::default()));
        assert_eq!(read(Scope::Publish, &[]), Err(DecodeError::Truncated));
        assert_eq!(read(Scope::Publish, &[2, 0x01]), Err(DecodeError::Truncated));
        // A property does not extend beyond the block, even where the packet continues.
        assert_eq!(read(Scope::Publish, &[2, 0x23, 0, 1]), Err(DecodeError::Truncated));
        assert_eq!(read(Scope::Publish, &[0x80, 0]), Err(DecodeError::VariableByteIntegerNotMinimal));
        let mut reader = Reader::new(&[7]);
        assert_eq!(Properties::read(&mut reader, Version::V3_1_1, Scope::Publish), Ok(Properties::default()));
        assert_eq!(reader.len(), 1, "3.x has no properties");
    }
}
