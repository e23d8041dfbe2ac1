//! PUBLISH as most clients send it, read with few instructions.

use super::publish::Publish;
use crate::encoder::variable_byte_integer_len;
use crate::frame::remaining_length;
use crate::packet_id::PacketId;
use crate::packet_type::PacketType;
use crate::properties::Properties;
use crate::qos::QoS;
use crate::topic::name::TopicName;
use crate::version::Version;

/// A PUBLISH without DUP, RETAIN and properties. Its topic is not checked yet: usually it is one that was published
/// before, and a comparison with that is cheaper.
#[derive(Debug, Clone, Copy)]
pub struct PlainPublish<'a> {
    pub qos: QoS,
    /// Present exactly with QoS 1 and 2 [MQTT-2.2.1-2].
    pub packet_id: Option<PacketId>,
    /// Bytes in the place of the Topic Name. They may be no Topic Name, or empty.
    pub topic: &'a [u8],
    pub payload: &'a [u8],
    packet: &'a [u8],
    shape: PlainShape,
}

/// Positions of the parts of a [`PlainPublish`]. With them, a copy of the packet need not be read again.
#[derive(Debug, Clone, Copy)]
pub struct PlainShape {
    qos: QoS,
    has_properties: bool,
    topic_at: u8,
    /// Offset of the Packet Identifier, or of what follows in its place.
    id_at: u32,
    payload_at: u32,
}

impl<'a> PlainPublish<'a> {
    /// Takes a copy of a packet that had this shape.
    ///
    /// # Panics
    /// If the packet is shorter.
    #[inline]
    pub fn of_copy(shape: PlainShape, packet: &'a [u8]) -> Self {
        let (head, payload) = packet.split_at(shape.payload_at as usize);
        let id = head.get(shape.id_at as usize..).and_then(|rest| rest.first_chunk());
        let packet_id = id.filter(|_| shape.qos > QoS::AtMostOnce);
        Self {
            qos: shape.qos,
            packet_id: packet_id.and_then(|id| PacketId::new(u16::from_be_bytes(*id))),
            topic: &head[usize::from(shape.topic_at)..shape.id_at as usize],
            payload,
            packet,
            shape,
        }
    }

    /// Positions of the parts of the packet.
    #[inline]
    pub fn shape(&self) -> PlainShape {
        self.shape
    }

    /// The whole packet.
    #[inline]
    pub fn packet(&self) -> &'a [u8] {
        self.packet
    }

    /// Reads exactly one packet. Returns `None` for any other packet, also for one that [`decode`](crate::decode())
    /// refuses.
    #[inline]
    pub fn read(version: Version, packet: &'a [u8]) -> Option<Self> {
        const DUP_AND_RETAIN: u8 = 0b1001;
        let first = *packet.first()?;
        if first & (0xF0 | DUP_AND_RETAIN) != PacketType::Publish.first_byte() {
            return None;
        }
        let qos = QoS::from_bits(first >> 1 & 0b11)?;
        let (remaining, header) = remaining_length(packet).ok()??;
        let body = packet.get(header..)?;
        if body.len() != remaining as usize || variable_byte_integer_len(remaining) != Some(header - 1) {
            return None;
        }
        let (length, rest) = body.split_first_chunk()?;
        let (topic, mut rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        let id_at = (header + 2 + topic.len()) as u32;
        let mut packet_id = None;
        if qos > QoS::AtMostOnce {
            let (id, after) = rest.split_first_chunk()?;
            packet_id = Some(PacketId::new(u16::from_be_bytes(*id))?);
            rest = after;
        }
        let has_properties = version.has_properties();
        if has_properties {
            let (0, after) = rest.split_first()? else { return None };
            rest = after;
        }
        let (topic_at, payload_at) = (header as u8 + 2, (packet.len() - rest.len()) as u32);
        let shape = PlainShape { qos, has_properties, topic_at, id_at, payload_at };
        Some(Self { qos, packet_id, topic, payload: rest, packet, shape })
    }

    /// Length of the packet in bytes.
    #[inline]
    pub fn packet_len(&self) -> usize {
        self.packet.len()
    }

    /// Returns the packet with its Topic Name, which has to have the bytes of `topic`. [`decode`](crate::decode())
    /// returns the same.
    #[inline]
    pub fn named<'n>(&self, name: TopicName<'n>) -> Publish<'n>
    where
        'a: 'n,
    {
        debug_assert_eq!(name.as_str().as_bytes(), self.topic);
        Publish {
            dup: false,
            qos: self.qos,
            retain: false,
            topic: name.as_str(),
            packet_id: self.packet_id,
            properties: Properties::EMPTY,
            payload: self.payload,
        }
    }

    /// Returns whether a receiver of this version, at this QoS, gets the same bytes except for the Packet Identifier.
    #[inline]
    pub fn has_form(&self, version: Version, qos: QoS) -> bool {
        self.shape.has_properties == version.has_properties() && self.qos == qos
    }

    /// Appends the packet, with the Packet Identifier of the receiver if it has one.
    #[inline]
    pub fn copy_to(&self, packet_id: Option<PacketId>, out: &mut Vec<u8>) {
        let at = out.len() + self.shape.id_at as usize;
        out.extend_from_slice(self.packet);
        if self.packet_id.is_some()
            && let Some(id) = packet_id
            && let Some(place) = out.get_mut(at..at + 2)
        {
            place.copy_from_slice(&id.get().to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::check::packet;
    use crate::{Outgoing, Packet, decode};

    fn id(value: u16) -> Option<PacketId> {
        PacketId::new(value)
    }

    /// Compares with the general decoder and encoder, for all first bytes, versions and many contents.
    #[test]
    fn it_reads_and_writes_what_the_general_functions_do() {
        let contents: [&[u8]; 10] = [
            b"\0\x03a/b\x12\x34\0payload",
            b"\0\x03a/b\0payload",
            b"\0\x03a/b\x12\x34",
            b"\0\x03a/b\0\0\0payload",
            b"\0\x03a/b\x12\x34\x02\x01\x01payload",
            b"\0\0\x12\x34\x03\x23\0\x01payload",
            b"\0\x09a/b\x12\x34",
            b"\0\x03a/+\x12\x34\0payload",
            b"\0",
            b"",
        ];
        let (mut plain, mut written) = (0, 0);
        for version in Version::ALL {
            for first in 0..=u8::MAX {
                for body in contents {
                    let bytes = packet(first, &[body]);
                    let Some(read) = PlainPublish::read(version, &bytes) else { continue };
                    plain += 1;
                    let copy = PlainPublish::of_copy(read.shape(), read.packet());
                    assert_eq!(format!("{copy:?}"), format!("{read:?}"));
                    let topic = std::str::from_utf8(read.topic).expect("UTF-8");
                    let Ok(name) = TopicName::parse(topic) else {
                        assert!(decode(version, &bytes).is_err(), "{version:?} {bytes:02X?}");
                        continue;
                    };
                    let publish = read.named(name);
                    assert_eq!(decode(version, &bytes), Ok(Packet::Publish(publish)), "{bytes:02X?}");
                    for to in Version::ALL.into_iter().filter(|to| read.has_form(*to, publish.qos)) {
                        let outgoing = Outgoing {
                            dup: false,
                            qos: publish.qos,
                            retain: false,
                            packet_id: id(0xABCD),
                            topic,
                            topic_alias: None,
                            message_expiry: None,
                            subscription_ids: &[],
                            properties: &[],
                            payload: publish.payload,
                        };
                        let (mut expected, mut found) = (vec![1], vec![1]);
                        outgoing.encode(to, &mut expected);
                        read.copy_to(id(0xABCD), &mut found);
                        assert_eq!(found, expected, "{version:?} {to:?} {bytes:02X?}");
                        written += 1;
                    }
                }
            }
        }
        assert!(plain >= 20 && written >= 20, "{plain} {written}");
    }

    #[test]
    fn other_packets_are_left_to_the_general_decoder() {
        let read = |bytes: &[u8]| PlainPublish::read(Version::V3_1_1, bytes).is_some();
        assert!(read(b"\x30\x04\0\x01a!"));
        // RETAIN, DUP, a padded Remaining Length, an incomplete packet, bytes after the packet, no Packet Identifier.
        for other in [
            &b"\x31\x04\0\x01a!"[..],
            b"\x3A\x06\0\x01a\0\x01!",
            b"\x30\x84\0\0\x01a!",
            b"\x30\x04\0\x01a",
            b"\x30\x04\0\x01a!!",
            b"\x32\x05\0\x01a\0\0",
            b"\x40\x02\0\x01",
        ] {
            assert!(!read(other), "{other:02X?}");
        }
    }
}
