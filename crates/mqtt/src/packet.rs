//! The packets of section 3, a file each; [`Packet`] is any of them.

pub(crate) mod ack;
pub(crate) mod auth;
#[cfg(test)]
pub(crate) mod check;
pub(crate) mod connack;
pub(crate) mod connect;
pub(crate) mod disconnect;
pub(crate) mod outgoing;
pub(crate) mod plain;
pub(crate) mod publish;
pub(crate) mod reasons;
pub(crate) mod suback;
pub(crate) mod subscribe;
pub(crate) mod subscription_options;
pub(crate) mod unsubscribe;
pub(crate) mod will;

use crate::encoder::{Encoder, variable_byte_integer_len};
use crate::error::DecodeError;
use crate::frame::{frame, remaining_length};
use crate::packet_type::PacketType;
use crate::reader::Reader;
use crate::topic::error::TopicError;
use crate::topic::filter::TopicFilter;
use crate::topic::subscription::Subscription;
use crate::version::Version;
use ack::Ack;
use auth::Auth;
use connack::ConnAck;
use connect::Connect;
use disconnect::Disconnect;
use publish::Publish;
use suback::SubAck;
use subscribe::Subscribe;
use unsubscribe::Unsubscribe;

/// A Control Packet in the shape of 5.0. A field that an older version does not have gets the value that 5.0 gives
/// to its absence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packet<'a> {
    Connect(Connect<'a>),
    ConnAck(ConnAck<'a>),
    Publish(Publish<'a>),
    PubAck(Ack<'a>),
    PubRec(Ack<'a>),
    PubRel(Ack<'a>),
    PubComp(Ack<'a>),
    Subscribe(Subscribe<'a>),
    SubAck(SubAck<'a>),
    Unsubscribe(Unsubscribe<'a>),
    UnsubAck(SubAck<'a>),
    PingReq,
    PingResp,
    Disconnect(Disconnect<'a>),
    Auth(Auth<'a>),
}

/// Decodes exactly one whole packet, whose length comes from [`frame`](crate::frame()). CONNECT ignores `version`
/// and carries its own. The result borrows from `packet`; nothing is allocated.
///
/// # Errors
/// Any violation of sections 1.5, 2, 3 and 4.7 of the version's specification that is visible in a single packet.
/// Topic Filters are only checked for UTF-8 and length; see [`Subscription::parse`](crate::Subscription::parse).
#[inline]
pub fn decode(version: Version, packet: &[u8]) -> Result<Packet<'_>, DecodeError> {
    let size = frame(packet, u32::MAX)?.ok_or(DecodeError::Truncated)?;
    if size != packet.len() {
        return Err(DecodeError::LengthMismatch { framed: size as u32, given: packet.len() as u32 });
    }
    let (remaining, header) = remaining_length(packet)?.ok_or(DecodeError::Truncated)?;
    let first = packet[0];
    let packet_type = PacketType::of(first).ok_or(DecodeError::PacketTypeReserved)?;
    let mut reader = Reader::new(&packet[header..]);
    let mut version = version;
    let decoded = match packet_type {
        PacketType::Publish => Packet::Publish(Publish::decode(version, first, reader)?),
        PacketType::PubAck => Packet::PubAck(Ack::decode(version, packet_type, first, reader)?),
        PacketType::PubRec => Packet::PubRec(Ack::decode(version, packet_type, first, reader)?),
        PacketType::PubRel => Packet::PubRel(Ack::decode(version, packet_type, first, reader)?),
        PacketType::PubComp => Packet::PubComp(Ack::decode(version, packet_type, first, reader)?),
        PacketType::Connect => {
            let connect = Connect::decode(reader)?;
            version = connect.version;
            Packet::Connect(connect)
        }
        PacketType::ConnAck => Packet::ConnAck(ConnAck::decode(version, reader)?),
        PacketType::Subscribe => Packet::Subscribe(Subscribe::decode(version, first, reader)?),
        PacketType::SubAck => Packet::SubAck(SubAck::decode(version, packet_type, reader)?),
        PacketType::Unsubscribe => Packet::Unsubscribe(Unsubscribe::decode(version, first, reader)?),
        PacketType::UnsubAck => Packet::UnsubAck(SubAck::decode(version, packet_type, reader)?),
        PacketType::PingReq => Packet::PingReq,
        PacketType::PingResp => Packet::PingResp,
        PacketType::Disconnect => Packet::Disconnect(Disconnect::decode(version, &mut reader)?),
        PacketType::Auth => Packet::Auth(Auth::decode(version, &mut reader)?),
    };
    // Before 5.0 nothing forbids padding of the Remaining Length.
    if version == Version::V5 && variable_byte_integer_len(remaining) != Some(header - 1) {
        return Err(DecodeError::VariableByteIntegerNotMinimal);
    }
    Ok(decoded)
}

/// Checks the flags. DUP belongs to SUBSCRIBE, UNSUBSCRIBE and PUBREL in 3.1 only; later the flags are fixed
/// [MQTT-2.1.3-1] [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.10.1-1].
fn check_flags(version: Version, packet_type: PacketType, first: u8) -> Result<(), DecodeError> {
    if version == Version::V3_1 || first == packet_type.first_byte() {
        Ok(())
    } else {
        Err(DecodeError::FlagsReserved { packet_type, flags: first & 0x0F })
    }
}

/// Checks that a Topic Filter of SUBSCRIBE or UNSUBSCRIBE is well-formed: [MQTT-4.7.1-1] [MQTT-4.7.1-2]
/// [MQTT-4.7.3-1] [MQTT-4.8.2-1] [MQTT-4.8.2-2] [MQTT3-4.7.1-2] [MQTT3-4.7.1-3] [MQTT3-4.7.3-1]. Reason Code 0x8F
/// is for a filter that is well-formed and not accepted (3.9.3, 3.11.3).
fn check_filter(version: Version, text: &str) -> Result<(), DecodeError> {
    match Subscription::parse(text) {
        Ok(_) => Ok(()),
        Err(TopicError::Empty) => Err(DecodeError::TopicFilterEmpty),
        // Before 5.0 `$share` is an ordinary level.
        Err(TopicError::ShareNameInvalid | TopicError::ShareFilterMissing)
            if version != Version::V5 && TopicFilter::parse(text).is_ok() =>
        {
            Ok(())
        }
        Err(_) => Err(DecodeError::TopicFilterInvalid),
    }
}

impl Packet<'_> {
    /// Type of the packet.
    pub const fn packet_type(&self) -> PacketType {
        match self {
            Packet::Connect(_) => PacketType::Connect,
            Packet::ConnAck(_) => PacketType::ConnAck,
            Packet::Publish(_) => PacketType::Publish,
            Packet::PubAck(_) => PacketType::PubAck,
            Packet::PubRec(_) => PacketType::PubRec,
            Packet::PubRel(_) => PacketType::PubRel,
            Packet::PubComp(_) => PacketType::PubComp,
            Packet::Subscribe(_) => PacketType::Subscribe,
            Packet::SubAck(_) => PacketType::SubAck,
            Packet::Unsubscribe(_) => PacketType::Unsubscribe,
            Packet::UnsubAck(_) => PacketType::UnsubAck,
            Packet::PingReq => PacketType::PingReq,
            Packet::PingResp => PacketType::PingResp,
            Packet::Disconnect(_) => PacketType::Disconnect,
            Packet::Auth(_) => PacketType::Auth,
        }
    }

    /// Appends the packet to `out`. CONNECT ignores `version` and carries its own.
    ///
    /// Older versions drop the fields that they do not have: properties, Reason Codes of acknowledgements,
    /// subscription options except QoS. Reason Codes of CONNACK and SUBACK become the nearest one of the version. A
    /// failure that a 5.0 packet does not list becomes one that it does; `reasons` has the table.
    ///
    /// Returns `false` and appends nothing for a packet that the version cannot express at all: AUTH, a DISCONNECT
    /// from the server, a Topic Alias instead of a Topic Name in 3.x. The same holds for contents that no packet
    /// can hold: fields of more than 65,535 bytes, strings with U+0000, more than
    /// [`PACKET_SIZE_MAX`](crate::PACKET_SIZE_MAX).
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) -> bool {
        let packet_type = self.packet_type();
        match self {
            Packet::Connect(packet) => packet.encode(out),
            Packet::ConnAck(packet) => packet.encode(version, out),
            Packet::Publish(packet) => packet.encode(version, out),
            Packet::PubAck(packet)
            | Packet::PubRec(packet)
            | Packet::PubRel(packet)
            | Packet::PubComp(packet) => packet.encode(version, packet_type, out),
            Packet::Subscribe(packet) => packet.encode(version, out),
            Packet::SubAck(packet) | Packet::UnsubAck(packet) => packet.encode(version, packet_type, out),
            Packet::Unsubscribe(packet) => packet.encode(version, out),
            Packet::PingReq | Packet::PingResp => Encoder::new(out, packet_type.first_byte()).finish(),
            Packet::Disconnect(packet) => packet.encode(version, out),
            Packet::Auth(packet) => packet.encode(version, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use check::{refuses, same};

    #[test]
    fn pings_are_two_bytes_long() {
        for version in Version::ALL {
            same(version, &[0xC0, 0], Packet::PingReq);
            same(version, &[0xD0, 0], Packet::PingResp);
            refuses(version, &[0xC0, 1, 0], DecodeError::TrailingBytes { count: 1 });
            refuses(
                version,
                &[0xC1, 0],
                DecodeError::FlagsReserved { packet_type: PacketType::PingReq, flags: 1 },
            );
        }
    }

    #[test]
    fn decode_takes_exactly_one_packet() {
        for version in Version::ALL {
            refuses(version, &[], DecodeError::Truncated);
            refuses(version, &[0xC0], DecodeError::Truncated);
            refuses(version, &[0xC0, 0, 0xC0], DecodeError::LengthMismatch { framed: 2, given: 3 });
            refuses(version, &[0x40, 2, 0], DecodeError::LengthMismatch { framed: 4, given: 3 });
            refuses(version, &[0x00, 0], DecodeError::PacketTypeReserved);
        }
    }

    /// [MQTT-1.5.5-1]; 3.x allows it (2.2.3 of 3.1.1).
    #[test]
    fn a_padded_remaining_length_is_refused_by_5_0_only() {
        for version in Version::ALL {
            let expected = match version {
                Version::V5 => Err(DecodeError::VariableByteIntegerNotMinimal),
                Version::V3_1 | Version::V3_1_1 => Ok(Packet::PingReq),
            };
            assert_eq!(decode(version, &[0xC0, 0x80, 0x00]), expected);
            assert_eq!(decode(version, &[0xC0, 0x80, 0x80, 0x80, 0x00]), expected);
        }
    }
}
