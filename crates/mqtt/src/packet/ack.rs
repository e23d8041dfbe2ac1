//! PUBACK (3.4), PUBREC (3.5), PUBREL (3.6) and PUBCOMP (3.7), which have the same format.

use super::{check_flags, reasons};
use crate::encoder::Encoder;
use crate::error::DecodeError;
use crate::packet_id::PacketId;
use crate::packet_type::PacketType;
use crate::properties::Properties;
use crate::properties::scope::Scope;
use crate::reader::Reader;
use crate::reason_code::ReasonCode;
use crate::version::Version;

/// Returns type and Packet Identifier of an acknowledgement without Reason Code and properties, which means success in
/// all versions. Returns `None` for any other packet. [`decode`](crate::decode()) gives the same answer with more
/// instructions.
#[inline]
pub fn short_ack(packet: &[u8]) -> Option<(PacketType, PacketId)> {
    let [first, 2, high, low] = *packet else { return None };
    let packet_type = match first {
        0x40 => PacketType::PubAck,
        0x50 => PacketType::PubRec,
        0x62 => PacketType::PubRel,
        0x70 => PacketType::PubComp,
        _ => return None,
    };
    Some((packet_type, PacketId::new(u16::from_be_bytes([high, low]))?))
}

/// Appends an acknowledgement, PUBACK to PUBCOMP, that means success in all versions.
#[inline]
pub fn put_short_ack(packet_type: PacketType, packet_id: PacketId, out: &mut Vec<u8>) {
    debug_assert!((4..=7).contains(&(packet_type as u8)));
    let [high, low] = packet_id.get().to_be_bytes();
    out.extend_from_slice(&[packet_type.first_byte(), SHORT_ACK_LEN as u8 - 2, high, low]);
}

/// Length in bytes of what [`put_short_ack`] appends.
pub const SHORT_ACK_LEN: usize = 4;

/// A step of the delivery of a QoS 1 or 2 PUBLISH.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack<'a> {
    pub packet_id: PacketId,
    /// Reason Code; before 5.0 always [`ReasonCode::Success`].
    pub reason: ReasonCode,
    pub properties: Properties<'a>,
}

impl<'a> Ack<'a> {
    #[inline]
    pub(crate) fn decode(
        version: Version,
        packet_type: PacketType,
        first: u8,
        mut reader: Reader<'a>,
    ) -> Result<Ack<'a>, DecodeError> {
        check_flags(version, packet_type, first)?;
        let packet_id = reader.packet_id()?;
        let (mut reason, mut properties) = (ReasonCode::Success, Properties::default());
        // 5.0 allows to omit the properties, or these and the Reason Code (3.4.2.1, 3.4.2.2.1).
        if version == Version::V5 && !reader.is_empty() {
            reason = reasons::from_byte(packet_type, reader.u8()?)?;
            if !reader.is_empty() {
                properties = Properties::read(&mut reader, version, Scope::Acknowledgement)?;
            }
        }
        reader.finish()?;
        Ok(Ack { packet_id, reason, properties })
    }

    pub(crate) fn encode(&self, version: Version, packet_type: PacketType, out: &mut Vec<u8>) -> bool {
        let reason = match version {
            Version::V5 => reasons::in_v5(packet_type, self.reason),
            Version::V3_1 | Version::V3_1_1 => Some(ReasonCode::Success),
        };
        let Some(reason) = reason else { return false };
        if reason == ReasonCode::Success && (version != Version::V5 || self.properties.is_empty()) {
            put_short_ack(packet_type, self.packet_id, out);
            return true;
        }
        let mut encoder = Encoder::new(out, packet_type.first_byte());
        encoder.packet_id(self.packet_id);
        if version == Version::V5 {
            let bare = self.properties.is_empty();
            if reason != ReasonCode::Success || !bare {
                encoder.u8(reason.as_u8());
            }
            if !bare {
                encoder.properties(version, self.properties);
            }
        }
        encoder.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Version::*;
    use crate::packet::Packet;
    use crate::packet::check::{block, cannot_encode, packet, reads, refuses, same, writes};
    use crate::properties::buf::PropertiesBuf;
    use crate::properties::id::PropertyId;
    use crate::properties::property::Property;

    type Wrap = for<'a> fn(Ack<'a>) -> Packet<'a>;

    /// First byte, variant, and a failure that the packet lists.
    const FOUR: [(u8, Wrap, ReasonCode); 4] = [
        (0x40, |ack| Packet::PubAck(ack), ReasonCode::QuotaExceeded),
        (0x50, |ack| Packet::PubRec(ack), ReasonCode::NotAuthorized),
        (0x62, |ack| Packet::PubRel(ack), ReasonCode::PacketIdentifierNotFound),
        (0x70, |ack| Packet::PubComp(ack), ReasonCode::PacketIdentifierNotFound),
    ];

    fn ack(reason: ReasonCode) -> Ack<'static> {
        Ack { packet_id: PacketId::new(0x0102).expect("not 0"), reason, properties: Properties::EMPTY }
    }

    #[test]
    fn short_acknowledgements_are_read_as_by_the_decoder() {
        let mut read = 0;
        for first in 0..=u8::MAX {
            for rest in [&[2, 1, 2][..], &[2, 0, 0], &[3, 1, 2, 0], &[2, 1], &[0x82, 0, 1, 2]] {
                let bytes = [&[first], rest].concat();
                let Some((packet_type, packet_id)) = short_ack(&bytes) else { continue };
                read += 1;
                for version in Version::ALL {
                    let decoded = crate::decode(version, &bytes).expect("an acknowledgement");
                    assert_eq!(decoded.packet_type(), packet_type);
                    let (Packet::PubAck(ack)
                    | Packet::PubRec(ack)
                    | Packet::PubRel(ack)
                    | Packet::PubComp(ack)) = decoded
                    else {
                        panic!("{decoded:?}");
                    };
                    assert_eq!(
                        ack,
                        Ack { packet_id, reason: ReasonCode::Success, properties: Properties::EMPTY }
                    );
                }
            }
        }
        assert_eq!(read, 4, "one for each type");
    }

    #[test]
    fn success_is_two_bytes_long() {
        for (first, wrap, _) in FOUR {
            for version in Version::ALL {
                same(version, &[first, 2, 1, 2], wrap(ack(ReasonCode::Success)));
                // [MQTT-2.2.1-3] [MQTT3-2.3.1-1]
                refuses(version, &[first, 2, 0, 0], DecodeError::PacketIdentifierZero);
                refuses(version, &[first, 1, 1], DecodeError::Truncated);
                refuses(version, &[first, 0], DecodeError::Truncated);
            }
        }
    }

    /// (3.4.2.1) (3.4.2.2.1) and the like: optional fields may also be present.
    #[test]
    fn optional_fields_may_be_absent_or_present() {
        let buf = PropertiesBuf::from_iter([Property::ReasonString("why")]);
        for (first, wrap, failure) in FOUR {
            reads(V5, &[first, 3, 1, 2, 0], wrap(ack(ReasonCode::Success)));
            reads(V5, &[first, 4, 1, 2, 0, 0], wrap(ack(ReasonCode::Success)));
            same(V5, &[first, 3, 1, 2, failure.as_u8()], wrap(ack(failure)));
            reads(V5, &[first, 4, 1, 2, failure.as_u8(), 0], wrap(ack(failure)));
            for reason in [ReasonCode::Success, failure] {
                let bytes = packet(first, &[&[1, 2, reason.as_u8()], &block(&[b"\x1F\0\x03why"])]);
                same(V5, &bytes, wrap(Ack { properties: buf.as_properties(), ..ack(reason) }));
            }
            for version in [V3_1, V3_1_1] {
                // (2.2.3) of 3.1.1: the Remaining Length is 2.
                refuses(version, &[first, 3, 1, 2, 0], DecodeError::TrailingBytes { count: 1 });
                writes(
                    version,
                    wrap(Ack { properties: buf.as_properties(), ..ack(failure) }),
                    &[first, 2, 1, 2],
                );
            }
            refuses(V5, &[first, 5, 1, 2, 0, 0, 0], DecodeError::TrailingBytes { count: 1 });
            refuses(V5, &[first, 4, 1, 2, 0, 1], DecodeError::Truncated);
            let alias = packet(first, &[&[1, 2, 0], &block(&[&[0x23, 0, 1]])]);
            refuses(V5, &alias, DecodeError::PropertyNotAllowed { id: PropertyId::TopicAlias });
        }
    }

    /// [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.6.2-1] [MQTT-3.7.2-1]
    #[test]
    fn only_listed_reason_codes_are_accepted() {
        for (first, wrap, _) in FOUR {
            refuses(V5, &[first, 3, 1, 2, 0x05], DecodeError::ReasonCodeUnknown { byte: 5 });
            let (packet_type, reason) =
                (wrap(ack(ReasonCode::Success)).packet_type(), ReasonCode::KeepAliveTimeout);
            refuses(V5, &[first, 3, 1, 2, 0x8D], DecodeError::ReasonCodeNotAllowed { packet_type, reason });
            cannot_encode(V5, wrap(ack(ReasonCode::GrantedQoS2)));
        }
        writes(V5, Packet::PubAck(ack(ReasonCode::TopicAliasInvalid)), &[0x40, 3, 1, 2, 0x80]);
        same(V5, &[0x40, 3, 1, 2, 0x10], Packet::PubAck(ack(ReasonCode::NoMatchingSubscribers)));
    }

    /// [MQTT-3.6.1-1] [MQTT3-3.6.1-1]; 3.1 has a DUP flag here.
    #[test]
    fn pubrel_flags_are_checked() {
        reads(V3_1, &[0x6A, 2, 1, 2], Packet::PubRel(ack(ReasonCode::Success)));
        for version in [V3_1_1, V5] {
            let error = DecodeError::FlagsReserved { packet_type: PacketType::PubRel, flags: 0b1010 };
            refuses(version, &[0x6A, 2, 1, 2], error);
        }
    }
}
