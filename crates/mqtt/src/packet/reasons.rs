//! Reason Codes by packet, and their replacements where the packet or its version does not have a code.

use crate::error::DecodeError;
use crate::packet_type::PacketType;
use crate::reason_code::ReasonCode as R;
use crate::version::Version;

/// Returns whether the packet lists the code: the tables of 3.2.2.2, 3.4.2.1, 3.5.2.1, 3.6.2.1, 3.7.2.1, 3.9.3,
/// 3.11.3, 3.14.2.1 and 3.15.2.1, joined with table 2-6. Only table 2-6 gives DISCONNECT the code 0x8C.
const fn lists(packet_type: PacketType, reason: R) -> bool {
    match packet_type {
        // [MQTT-3.2.2-8]
        PacketType::ConnAck => matches!(
            reason,
            R::Success
                | R::UnspecifiedError
                | R::MalformedPacket
                | R::ProtocolError
                | R::ImplementationSpecificError
                | R::UnsupportedProtocolVersion
                | R::ClientIdentifierNotValid
                | R::BadUserNameOrPassword
                | R::NotAuthorized
                | R::ServerUnavailable
                | R::ServerBusy
                | R::Banned
                | R::BadAuthenticationMethod
                | R::TopicNameInvalid
                | R::PacketTooLarge
                | R::QuotaExceeded
                | R::PayloadFormatInvalid
                | R::RetainNotSupported
                | R::QoSNotSupported
                | R::UseAnotherServer
                | R::ServerMoved
                | R::ConnectionRateExceeded
        ),
        // [MQTT-3.4.2-1] [MQTT-3.5.2-1]
        PacketType::PubAck | PacketType::PubRec => matches!(
            reason,
            R::Success
                | R::NoMatchingSubscribers
                | R::UnspecifiedError
                | R::ImplementationSpecificError
                | R::NotAuthorized
                | R::TopicNameInvalid
                | R::PacketIdentifierInUse
                | R::QuotaExceeded
                | R::PayloadFormatInvalid
        ),
        // [MQTT-3.6.2-1] [MQTT-3.7.2-1]
        PacketType::PubRel | PacketType::PubComp => {
            matches!(reason, R::Success | R::PacketIdentifierNotFound)
        }
        // [MQTT-3.9.3-2]
        PacketType::SubAck => matches!(
            reason,
            R::Success
                | R::GrantedQoS1
                | R::GrantedQoS2
                | R::UnspecifiedError
                | R::ImplementationSpecificError
                | R::NotAuthorized
                | R::TopicFilterInvalid
                | R::PacketIdentifierInUse
                | R::QuotaExceeded
                | R::SharedSubscriptionsNotSupported
                | R::SubscriptionIdentifiersNotSupported
                | R::WildcardSubscriptionsNotSupported
        ),
        // [MQTT-3.11.3-2]
        PacketType::UnsubAck => matches!(
            reason,
            R::Success
                | R::NoSubscriptionExisted
                | R::UnspecifiedError
                | R::ImplementationSpecificError
                | R::NotAuthorized
                | R::TopicFilterInvalid
                | R::PacketIdentifierInUse
        ),
        // [MQTT-3.14.2-1]
        PacketType::Disconnect => matches!(
            reason,
            R::Success
                | R::DisconnectWithWill
                | R::UnspecifiedError
                | R::MalformedPacket
                | R::ProtocolError
                | R::ImplementationSpecificError
                | R::NotAuthorized
                | R::ServerBusy
                | R::ServerShuttingDown
                | R::BadAuthenticationMethod
                | R::KeepAliveTimeout
                | R::SessionTakenOver
                | R::TopicFilterInvalid
                | R::TopicNameInvalid
                | R::ReceiveMaximumExceeded
                | R::TopicAliasInvalid
                | R::PacketTooLarge
                | R::MessageRateTooHigh
                | R::QuotaExceeded
                | R::AdministrativeAction
                | R::PayloadFormatInvalid
                | R::RetainNotSupported
                | R::QoSNotSupported
                | R::UseAnotherServer
                | R::ServerMoved
                | R::SharedSubscriptionsNotSupported
                | R::ConnectionRateExceeded
                | R::MaximumConnectTime
                | R::SubscriptionIdentifiersNotSupported
                | R::WildcardSubscriptionsNotSupported
        ),
        // [MQTT-3.15.2-1]
        PacketType::Auth => matches!(reason, R::Success | R::ContinueAuthentication | R::ReAuthenticate),
        PacketType::Connect
        | PacketType::Publish
        | PacketType::Subscribe
        | PacketType::Unsubscribe
        | PacketType::PingReq
        | PacketType::PingResp => false,
    }
}

/// Returns the Reason Code of a byte in a 5.0 packet.
pub(crate) fn from_byte(packet_type: PacketType, byte: u8) -> Result<R, DecodeError> {
    let reason = R::try_from(byte).map_err(|byte| DecodeError::ReasonCodeUnknown { byte })?;
    if lists(packet_type, reason) {
        Ok(reason)
    } else {
        Err(DecodeError::ReasonCodeNotAllowed { packet_type, reason })
    }
}

/// Returns the code of a 5.0 packet for `reason`: `reason` itself, if the packet lists it; for another failure the
/// least specific one that it lists; `None` for another success.
pub(crate) fn in_v5(packet_type: PacketType, reason: R) -> Option<R> {
    if lists(packet_type, reason) {
        return Some(reason);
    }
    let general = match packet_type {
        // Only CONNACK has Banned; for a client that is connected, it is the action of an operator.
        PacketType::Disconnect if matches!(reason, R::Banned) => R::AdministrativeAction,
        PacketType::PubRel | PacketType::PubComp => R::PacketIdentifierNotFound,
        _ => R::UnspecifiedError,
    };
    (reason.is_error() && lists(packet_type, general)).then_some(general)
}

/// Returns the code of a return code in a 3.x CONNACK (table 3.1 of 3.1.1).
pub(crate) fn from_connect_return_code(byte: u8) -> Result<R, DecodeError> {
    Ok(match byte {
        0 => R::Success,
        1 => R::UnsupportedProtocolVersion,
        2 => R::ClientIdentifierNotValid,
        3 => R::ServerUnavailable,
        4 => R::BadUserNameOrPassword,
        5 => R::NotAuthorized,
        _ => return Err(DecodeError::ReasonCodeUnknown { byte }),
    })
}

/// Returns the return code of a 3.x CONNACK for `reason`. `None` where no return code fits: then the server closes
/// the Network Connection without a CONNACK [MQTT3-3.2.2-6].
pub(crate) const fn connect_return_code(reason: R) -> Option<u8> {
    Some(match reason {
        R::Success => 0,
        R::UnsupportedProtocolVersion => 1,
        R::ClientIdentifierNotValid => 2,
        R::BadUserNameOrPassword | R::BadAuthenticationMethod => 4,
        // The server would accept another client, or this one with another CONNECT.
        R::NotAuthorized
        | R::Banned
        | R::TopicNameInvalid
        | R::TopicFilterInvalid
        | R::PacketTooLarge
        | R::PayloadFormatInvalid
        | R::RetainNotSupported
        | R::QoSNotSupported => 5,
        // The server would accept this client at another time or on another server.
        R::UnspecifiedError
        | R::ImplementationSpecificError
        | R::ServerUnavailable
        | R::ServerBusy
        | R::ServerShuttingDown
        | R::KeepAliveTimeout
        | R::SessionTakenOver
        | R::MessageRateTooHigh
        | R::QuotaExceeded
        | R::AdministrativeAction
        | R::UseAnotherServer
        | R::ServerMoved
        | R::ConnectionRateExceeded
        | R::MaximumConnectTime => 3,
        // A packet that breaks the rules [MQTT3-3.1.4-1], or a code that does not answer a CONNECT.
        R::GrantedQoS1
        | R::GrantedQoS2
        | R::DisconnectWithWill
        | R::NoMatchingSubscribers
        | R::NoSubscriptionExisted
        | R::ContinueAuthentication
        | R::ReAuthenticate
        | R::MalformedPacket
        | R::ProtocolError
        | R::PacketIdentifierInUse
        | R::PacketIdentifierNotFound
        | R::ReceiveMaximumExceeded
        | R::TopicAliasInvalid
        | R::SharedSubscriptionsNotSupported
        | R::SubscriptionIdentifiersNotSupported
        | R::WildcardSubscriptionsNotSupported => return None,
    })
}

/// Returns the byte of a SUBACK or UNSUBACK for one of its Reason Codes, which the caller gives as a byte. 3.x has
/// the granted QoS and 0x80 [MQTT3-3.9.3-2].
pub(crate) fn subscription_byte(version: Version, packet_type: PacketType, byte: u8) -> u8 {
    let failure = R::UnspecifiedError.as_u8();
    match version {
        Version::V5 => match R::try_from(byte) {
            Ok(reason) => in_v5(packet_type, reason).map_or(failure, R::as_u8),
            Err(_) => failure,
        },
        Version::V3_1 | Version::V3_1_1 => {
            if byte <= 2 {
                byte
            } else {
                failure
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(packet_type: PacketType) -> Vec<u8> {
        (0..=u8::MAX).filter(|&byte| from_byte(packet_type, byte).is_ok()).collect()
    }

    /// [MQTT-3.2.2-8] [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.6.2-1] [MQTT-3.7.2-1] [MQTT-3.9.3-2] [MQTT-3.11.3-2]
    /// [MQTT-3.14.2-1] [MQTT-3.15.2-1]
    #[test]
    fn each_packet_has_its_codes() {
        let connack = [
            0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97,
            0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F,
        ];
        assert_eq!(listed(PacketType::ConnAck), connack);
        let puback = [0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99];
        assert_eq!(listed(PacketType::PubAck), puback);
        assert_eq!(listed(PacketType::PubRec), puback);
        assert_eq!(listed(PacketType::PubRel), [0x00, 0x92]);
        assert_eq!(listed(PacketType::PubComp), [0x00, 0x92]);
        let suback = [0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2];
        assert_eq!(listed(PacketType::SubAck), suback);
        assert_eq!(listed(PacketType::UnsubAck), [0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91]);
        let disconnect = [
            0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94,
            0x95, 0x96, 0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
        ];
        assert_eq!(listed(PacketType::Disconnect), disconnect);
        assert_eq!(listed(PacketType::Auth), [0x00, 0x18, 0x19]);
        assert_eq!(listed(PacketType::Publish), []);
    }

    /// Table 3.1 of 3.1.1 and [MQTT3-3.2.2-6].
    #[test]
    fn connack_before_5_has_the_nearest_return_code() {
        for byte in 0..=5 {
            let reason = from_connect_return_code(byte).expect("in the table");
            assert_eq!(connect_return_code(reason), Some(byte));
        }
        assert_eq!(from_connect_return_code(6), Err(DecodeError::ReasonCodeUnknown { byte: 6 }));
        let cases = [
            (R::BadAuthenticationMethod, Some(4)),
            (R::Banned, Some(5)),
            (R::ServerBusy, Some(3)),
            (R::QuotaExceeded, Some(3)),
            (R::ConnectionRateExceeded, Some(3)),
            (R::UseAnotherServer, Some(3)),
            (R::RetainNotSupported, Some(5)),
            (R::MalformedPacket, None),
            (R::ProtocolError, None),
        ];
        for (reason, code) in cases {
            assert_eq!(connect_return_code(reason), code, "{reason}");
        }
    }

    #[test]
    fn a_failure_that_a_packet_does_not_list_stays_a_failure() {
        assert_eq!(in_v5(PacketType::ConnAck, R::ServerShuttingDown), Some(R::UnspecifiedError));
        assert_eq!(in_v5(PacketType::PubAck, R::PacketTooLarge), Some(R::UnspecifiedError));
        assert_eq!(in_v5(PacketType::PubRel, R::QuotaExceeded), Some(R::PacketIdentifierNotFound));
        assert_eq!(in_v5(PacketType::Disconnect, R::Banned), Some(R::AdministrativeAction));
        assert_eq!(in_v5(PacketType::PubAck, R::GrantedQoS1), None);
        assert_eq!(in_v5(PacketType::Auth, R::NotAuthorized), None);
    }

    /// [MQTT3-3.9.3-2]
    #[test]
    fn subscription_results_before_5_are_a_qos_or_0x80() {
        let cases = [
            (Version::V5, PacketType::SubAck, 0xA2, 0xA2),
            (Version::V5, PacketType::SubAck, 0x99, 0x80),
            (Version::V5, PacketType::SubAck, 0x77, 0x80),
            (Version::V5, PacketType::UnsubAck, 0x11, 0x11),
            (Version::V3_1_1, PacketType::SubAck, 0x02, 0x02),
            (Version::V3_1_1, PacketType::SubAck, 0x03, 0x80),
            (Version::V3_1_1, PacketType::SubAck, 0x87, 0x80),
            (Version::V3_1, PacketType::SubAck, 0x8F, 0x80),
        ];
        for (version, packet_type, byte, expected) in cases {
            assert_eq!(subscription_byte(version, packet_type, byte), expected, "{version} {byte:02X}");
        }
    }
}
