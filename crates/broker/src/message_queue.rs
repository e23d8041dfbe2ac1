//! Messages that wait for the client of an ephemeral session.

use std::collections::VecDeque;
use std::collections::vec_deque::Iter;

use mqtt::{PacketId, QoS};

use crate::batch::{SubscriptionIds, Token};
use crate::ids::Time;
use crate::message::{Expired, MESSAGE_HEADER, Message, MessageView};
use crate::store::Enqueue;

/// Messages that wait for a client, oldest first. The first ones are in the client's queue. The others are its
/// overflow: they wait for a free slot in the queue, and most of their publishers wait too.
///
/// A plain message for one receiver is stored as the packet that the receiver gets: no allocation of its own, and one
/// copy to send it. Other messages are stored as [`Enqueue`].
///
/// **Invariant:** the entries are in the order in which the messages arrived. The packets are in the order of their
/// entries, and so are the other messages and the overflow.
#[derive(Debug, Default)]
pub(crate) struct MessageQueue {
    entries: VecDeque<Entry>,
    /// Number of entries in the queue.
    queued: usize,
    packets: Packets,
    others: VecDeque<Enqueue>,
    /// One for each entry behind the queue.
    overflow: VecDeque<Overflow>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Size of the message, as limits count it.
    size: u32,
    /// Length of the packet; 0 if the message is not a packet.
    packet: u16,
    /// Offset of the Packet Identifier in the packet.
    id_at: u16,
}

const _: () = assert!(size_of::<Entry>() == 8, "there is one for each waiting message");

/// State of a message that waits for a free slot in the queue.
#[derive(Debug)]
pub(crate) struct Overflow {
    pub awaited: Awaited,
    pub deadline: Time,
}

/// The party that waits until a message has a slot in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    Nobody,
    /// The message has one receiver on this worker. Its token completes when the message has a slot.
    By(Token),
    /// The message has several receivers. The worker has a record with this key.
    Record(u32),
}

/// A packet that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedPacket<'a> {
    /// Time of arrival of the message at this node.
    pub received: Time,
    bytes: &'a [u8],
    entry: Entry,
}

impl MessageQueue {
    /// Number of messages in the queue.
    #[inline]
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Number of messages that wait for a slot in the queue.
    #[inline]
    pub fn overflowing(&self) -> usize {
        self.overflow.len()
    }

    /// Number of all messages.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a message. With `overflow` it waits for a slot in the queue.
    ///
    /// # Panics
    /// If a message without `overflow` is added while others wait for a slot.
    pub fn push(&mut self, message: Enqueue, overflow: Option<Overflow>) {
        let size = message.message.size() as u32;
        self.others.push_back(message);
        self.push_entry(Entry { size, packet: 0, id_at: 0 }, overflow);
    }

    /// Adds a plain message as a packet of QoS 1 or 2. `write` appends the packet, with any Packet Identifier. The
    /// packet has at most 65,535 bytes.
    #[inline]
    pub fn push_packet(
        &mut self,
        view: &MessageView<'_>,
        overflow: Option<Overflow>,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let room = PUBLISH_OVERHEAD + view.topic.len() + view.payload.len();
        let chunk = self.packets.chunk(RECEIVED + room);
        let start = chunk.len();
        chunk.extend_from_slice(&view.received.0.to_le_bytes());
        write(chunk);
        let packet = &chunk[start + RECEIVED..];
        let id_at = header_len(packet) + 2 + view.topic.len();
        debug_assert!(packet.len() <= room && packet[0] & 0b1001 == 0 && packet.ends_with(view.payload));
        debug_assert!(
            view.properties.is_empty(),
            "the packet is the message with its topic and payload only"
        );
        let size = view.encoded_len() as u32;
        let entry = Entry { size, packet: packet.len() as u16, id_at: id_at as u16 };
        self.push_entry(entry, overflow);
    }

    #[inline]
    fn push_entry(&mut self, entry: Entry, overflow: Option<Overflow>) {
        match overflow {
            Some(overflow) => self.overflow.push_back(overflow),
            None => {
                assert!(self.overflow.is_empty(), "messages stay in order");
                self.queued += 1;
            }
        }
        self.entries.push_back(entry);
    }

    /// Size of the oldest message that waits for a slot in the queue.
    #[inline]
    pub fn overflow_size(&self) -> Option<usize> {
        self.entries.get(self.queued).map(|entry| entry.size as usize)
    }

    /// Gives the oldest message of the overflow a slot in the queue.
    #[inline]
    pub fn admit(&mut self) -> Option<Overflow> {
        let overflow = self.overflow.pop_front()?;
        self.queued += 1;
        Some(overflow)
    }

    /// Overflow, oldest first.
    pub fn overflow(&self) -> &VecDeque<Overflow> {
        &self.overflow
    }

    /// The first message, if it is a packet in the queue.
    #[inline]
    pub fn first_packet(&self) -> Option<QueuedPacket<'_>> {
        let entry = *self.entries.front().filter(|entry| entry.packet > 0 && self.queued > 0)?;
        Some(QueuedPacket::of(entry, self.packets.first(RECEIVED + usize::from(entry.packet))))
    }

    /// Removes the first message, which is a packet in the queue. Returns the size of the message.
    #[inline]
    pub fn remove_packet(&mut self) -> usize {
        let Some(entry) = self.entries.pop_front() else { return 0 };
        debug_assert!(entry.packet > 0 && self.queued > 0);
        self.queued -= 1;
        self.packets.remove(RECEIVED + usize::from(entry.packet));
        entry.size as usize
    }

    /// Remaining Message Expiry Interval of the first message of the queue, as [`Message::remaining_expiry`] returns
    /// it. A packet has none.
    pub fn first_expiry(&self, now: Time) -> Option<Result<Option<u32>, Expired>> {
        let entry = self.entries.front().filter(|_| self.queued > 0)?;
        if entry.packet > 0 {
            return Some(Ok(None));
        }
        self.others.front().map(|entry| entry.message.remaining_expiry(now))
    }

    /// The first message of the queue. A packet is converted.
    pub fn first_message(&self) -> Option<Message> {
        if self.queued == 0 {
            return None;
        }
        match self.first_packet() {
            Some(packet) => Some(packet.view().to_message()),
            None => self.others.front().map(|entry| entry.message.clone()),
        }
    }

    /// Removes the first message from the queue.
    pub fn pop(&mut self) -> Option<Enqueue> {
        if self.queued == 0 {
            return None;
        }
        if let Some(packet) = self.first_packet() {
            let entry = packet.to_entry();
            self.remove_packet();
            return Some(entry);
        }
        self.entries.pop_front();
        self.queued -= 1;
        self.others.pop_front()
    }

    /// Time of arrival of the oldest message.
    pub fn oldest(&self) -> Option<Time> {
        let entry = *self.entries.front()?;
        if entry.packet == 0 {
            return self.others.front().map(|entry| entry.message.view().received);
        }
        Some(QueuedPacket::of(entry, self.packets.first(RECEIVED + usize::from(entry.packet))).received)
    }

    /// Bytes of the messages in the queue, and of those that wait for a slot.
    pub fn sizes(&self) -> (usize, usize) {
        let sum = |entries: Iter<'_, Entry>| entries.map(|entry| entry.size as usize).sum();
        (sum(self.entries.range(..self.queued)), sum(self.entries.range(self.queued..)))
    }

    /// All messages, oldest first, each with whether it waits for a slot in the queue. Packets are converted.
    pub fn iter(&self) -> impl Iterator<Item = (bool, Enqueue)> {
        let (mut packets, mut others) = (self.packets.iter(), self.others.iter());
        self.entries.iter().enumerate().filter_map(move |(at, entry)| {
            let message = match entry.packet {
                0 => others.next()?.clone(),
                length => QueuedPacket::of(*entry, packets.take(RECEIVED + usize::from(length))?).to_entry(),
            };
            Some((at >= self.queued, message))
        })
    }

    /// Dissolves the queue: returns the messages that are not packets, oldest first, and the overflow.
    pub fn into_parts(self) -> (VecDeque<Enqueue>, VecDeque<Overflow>) {
        (self.others, self.overflow)
    }

    pub fn check_invariants(&self) {
        assert_eq!(self.entries.len(), self.queued + self.overflow.len());
        let packets = self.entries.iter().filter(|entry| entry.packet > 0);
        let bytes: usize = packets.clone().map(|entry| RECEIVED + usize::from(entry.packet)).sum();
        assert_eq!(self.entries.len(), packets.count() + self.others.len());
        assert_eq!(self.packets.bytes(), bytes);
    }
}

impl<'a> QueuedPacket<'a> {
    #[inline]
    fn of(entry: Entry, bytes: &'a [u8]) -> Self {
        let (received, bytes) = bytes.split_first_chunk().unwrap_or((&[0; RECEIVED], bytes));
        Self { received: Time(u64::from_le_bytes(*received)), bytes, entry }
    }

    #[inline]
    pub fn qos(&self) -> QoS {
        QoS::from_bits(self.bytes.first().map_or(0, |first| first >> 1 & 0b11)).unwrap_or(QoS::AtLeastOnce)
    }

    pub fn topic(&self) -> &'a str {
        let start = header_len(self.bytes) + 2;
        std::str::from_utf8(&self.bytes[start..usize::from(self.entry.id_at)]).expect("written from a str")
    }

    /// Appends the packet with this Packet Identifier. Returns its length.
    #[inline]
    pub fn copy_to(&self, packet_id: PacketId, out: &mut Vec<u8>) -> usize {
        let at = out.len() + usize::from(self.entry.id_at);
        out.extend_from_slice(self.bytes);
        if let Some(place) = out.get_mut(at..at + 2) {
            place.copy_from_slice(&packet_id.get().to_be_bytes());
        }
        self.bytes.len()
    }

    /// The message with what a receiver gets of it. Its publisher is not known any more.
    pub fn view(&self) -> MessageView<'a> {
        let topic = self.topic();
        let payload = self.entry.size as usize - MESSAGE_HEADER - topic.len();
        MessageView {
            payload: &self.bytes[self.bytes.len() - payload..],
            qos: self.qos(),
            received: self.received,
            ..MessageView::plain(topic)
        }
    }

    fn to_entry(self) -> Enqueue {
        let view = self.view();
        let (qos, subscription_ids) = (view.qos, SubscriptionIds::default());
        Enqueue { message: view.to_message(), qos, retain: false, subscription_ids, group: None }
    }
}

/// Length of a packet's fixed header: the first byte and the Remaining Length.
#[inline]
fn header_len(packet: &[u8]) -> usize {
    1 + packet[1..].iter().take_while(|byte| **byte & 0x80 != 0).count() + 1
}

/// Packets with the times of their arrival, one after another in chunks, so that none is moved and memory is freed as
/// they leave.
#[derive(Debug, Default)]
struct Packets {
    chunks: VecDeque<Vec<u8>>,
    /// Number of bytes of the first chunk that were removed.
    removed: usize,
    /// Memory of a chunk that has become empty.
    spare: Vec<u8>,
}

impl Packets {
    /// Chunk with room for `length` more bytes.
    #[inline]
    fn chunk(&mut self, length: usize) -> &mut Vec<u8> {
        let has_room = |chunk: &Vec<u8>| chunk.capacity() - chunk.len() >= length;
        if !self.chunks.back().is_some_and(has_room) {
            self.add_chunk(length);
        }
        let last = self.chunks.len() - 1;
        &mut self.chunks[last]
    }

    #[cold]
    fn add_chunk(&mut self, length: usize) {
        // One that was emptied and is too small is replaced.
        self.chunks.pop_back_if(|chunk| chunk.is_empty());
        let spare = std::mem::take(&mut self.spare);
        let before = self.chunks.back().map_or(0, Vec::capacity);
        self.chunks.push_back(if spare.capacity() >= length {
            spare
        } else {
            Vec::with_capacity(length.max((2 * before).clamp(CHUNK_MIN, CHUNK_MAX)))
        });
    }

    /// The first `length` bytes.
    #[inline]
    fn first(&self, length: usize) -> &[u8] {
        self.chunks
            .front()
            .and_then(|chunk| chunk.get(self.removed..self.removed + length))
            .unwrap_or_default()
    }

    /// Removes the first `length` bytes.
    #[inline]
    fn remove(&mut self, length: usize) {
        self.removed += length;
        let Some(first) = self.chunks.front_mut().filter(|first| self.removed == first.len()) else { return };
        first.clear();
        self.removed = 0;
        if self.chunks.len() == 1 {
            // A queue that is empty keeps one chunk.
            self.spare = Vec::new();
        } else if let Some(empty) = self.chunks.pop_front()
            && empty.capacity() > self.spare.capacity()
        {
            self.spare = empty;
        }
    }

    fn iter(&self) -> PacketsIter<'_> {
        PacketsIter {
            rest: self.chunks.front().map_or(&[], |first| &first[self.removed..]),
            chunks: self.chunks.range(self.chunks.len().min(1)..),
        }
    }

    fn bytes(&self) -> usize {
        self.chunks.iter().map(Vec::len).sum::<usize>() - self.removed
    }
}

/// The bytes of all packets. No packet is divided between chunks.
struct PacketsIter<'a> {
    rest: &'a [u8],
    chunks: Iter<'a, Vec<u8>>,
}

impl<'a> PacketsIter<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            self.rest = self.chunks.next()?;
        }
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(bytes)
    }
}

/// Maximum number of bytes that a PUBLISH without properties adds to its topic and payload: first byte, Remaining
/// Length, length of the topic, Packet Identifier and Property Length.
const PUBLISH_OVERHEAD: usize = 1 + 4 + 2 + 2 + 1;
/// Bytes of the time of arrival before each packet.
const RECEIVED: usize = 8;
const CHUNK_MIN: usize = 512;
const CHUNK_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use mqtt::{Outgoing, Version};
    use random::Random;

    use super::*;
    use crate::connection::queued;
    use crate::ids::GroupId;
    use crate::ids::ShardId;

    fn packet_of<'a>(view: &MessageView<'a>, packet_id: Option<PacketId>) -> Outgoing<'a> {
        Outgoing {
            dup: false,
            qos: view.qos,
            retain: false,
            packet_id,
            topic: view.topic,
            topic_alias: None,
            message_expiry: None,
            subscription_ids: &[],
            properties: &[],
            payload: view.payload,
        }
    }

    /// Topic, payload, QoS and time of arrival of a message, and whether it is stored as a packet.
    type Known = (String, Vec<u8>, QoS, u64, bool);

    /// The queue has what a list of messages has, whether they are packets or not, and whichever wait for a
    /// slot.
    #[test]
    fn it_is_a_list_of_messages_in_order() {
        let mut random = Random::new(3);
        let (mut packets, mut others) = (0, 0);
        for version in Version::ALL {
            let mut queue = MessageQueue::default();
            let mut expected: VecDeque<Known> = VecDeque::new();
            let mut admitted = 0;
            for step in 0..20_000_u64 {
                match random.below(10) {
                    0..=3 => {
                        let length = if random.percent(5) { 5_000 } else { random.below(300) };
                        let topic = "t/ü".repeat(1 + random.below(4));
                        let payload = vec![step as u8; length];
                        let qos = *random.pick(&[QoS::AtLeastOnce, QoS::ExactlyOnce]);
                        let view = MessageView {
                            payload: &payload,
                            qos,
                            received: Time(step),
                            ..MessageView::plain(&topic)
                        };
                        let overflows = admitted < expected.len() || random.percent(20);
                        let overflow =
                            || Overflow { awaited: Awaited::Record(step as u32), deadline: Time(step) };
                        let overflow = overflows.then(overflow);
                        let is_packet = random.percent(70);
                        if is_packet {
                            let packet = packet_of(&view, PacketId::new(7));
                            queue.push_packet(&view, overflow, |out| packet.encode(version, out));
                        } else {
                            let group = GroupId { shard: ShardId(1), slot: step as u32, generation: 0 };
                            queue.push(queued(view.to_message(), qos, true, &[9], Some(group)), overflow);
                        }
                        expected.push_back((topic, payload, qos, step, is_packet));
                        admitted += usize::from(!overflows);
                    }
                    4..=5 => {
                        let size = queue.overflow_size();
                        let next = expected.get(admitted);
                        assert_eq!(size, next.map(|next| MESSAGE_HEADER + next.0.len() + next.1.len()));
                        let overflow = queue.admit();
                        assert_eq!(overflow.map(|overflow| overflow.deadline), next.map(|next| Time(next.3)));
                        admitted += usize::from(next.is_some());
                    }
                    6 => {
                        let popped = queue.pop();
                        let next = if admitted > 0 { expected.pop_front() } else { None };
                        assert_eq!(popped.is_some(), next.is_some());
                        if let (Some(entry), Some((topic, payload, qos, received, is_packet))) =
                            (popped, next)
                        {
                            let view = entry.message.view();
                            assert_eq!((view.topic, view.payload), (&topic[..], &payload[..]));
                            assert_eq!((entry.qos, view.received.0), (qos, received));
                            assert_eq!((entry.group.is_none(), entry.retain), (is_packet, !is_packet));
                            admitted -= 1;
                            others += 1;
                        }
                    }
                    _ => {
                        let Some(packet) = queue.first_packet() else { continue };
                        let (topic, payload, qos, received, is_packet) =
                            expected.pop_front().expect("a packet");
                        assert!(is_packet && admitted > 0);
                        let id = PacketId::new(step as u16 | 1).expect("not 0");
                        let (mut sent, mut out) = (vec![], vec![]);
                        let view = MessageView {
                            payload: &payload,
                            qos,
                            received: Time(received),
                            ..MessageView::plain(&topic)
                        };
                        packet_of(&view, Some(id)).encode(version, &mut sent);
                        assert_eq!(packet.copy_to(id, &mut out), sent.len());
                        assert_eq!((out, packet.qos()), (sent, qos));
                        assert_eq!(format!("{:?}", packet.view()), format!("{view:?}"));
                        assert_eq!(queue.remove_packet(), view.encoded_len());
                        admitted -= 1;
                        packets += 1;
                    }
                }
                queue.check_invariants();
                let first = expected.front().filter(|_| admitted > 0);
                let message = queue.first_message();
                assert_eq!(message.as_ref().map(|message| message.view().payload), first.map(|it| &it.1[..]));
                assert_eq!(queue.first_expiry(Time(step)), first.map(|_| Ok(None)));
                assert_eq!((queue.queued(), queue.len()), (admitted, expected.len()));
                assert_eq!(queue.oldest(), expected.front().map(|first| Time(first.3)));
                if step % 512 == 0 {
                    let all: Vec<_> = queue.iter().collect();
                    let of = |(at, it): (usize, &Known)| {
                        (at >= admitted, it.3, MESSAGE_HEADER + it.0.len() + it.1.len())
                    };
                    let found = all.iter().map(|(is_over, entry)| {
                        (*is_over, entry.message.view().received.0, entry.message.size())
                    });
                    assert!(found.eq(expected.iter().enumerate().map(of)));
                    let sum = |over: bool| {
                        let all = expected.iter().enumerate().map(of);
                        all.filter(|(is_over, ..)| *is_over == over).map(|(.., size)| size).sum::<usize>()
                    };
                    assert_eq!(queue.sizes(), (sum(false), sum(true)));
                }
                // A slow phase follows each fast one.
                if step % 2_000 > 1_000 && random.percent(60) && queue.pop().is_some() {
                    expected.pop_front();
                    admitted -= 1;
                }
            }
        }
        assert!(packets > 1_000 && others > 1_000, "{packets} {others}");
    }

    /// A packet that waits takes its bytes and 16 more. A part of the last chunk is unused.
    #[test]
    fn a_waiting_packet_takes_little_memory() {
        let mut queue = MessageQueue::default();
        let payload = [0; 256];
        let view = MessageView {
            payload: &payload,
            qos: QoS::AtLeastOnce,
            ..MessageView::plain("plant/7/temperature")
        };
        let packet = packet_of(&view, PacketId::new(1));
        let room = packet.encoded_len(Version::V5);
        for _ in 0..1_000 {
            queue.push_packet(&view, None, |out| packet.encode(Version::V5, out));
        }
        let chunks: usize = queue.packets.chunks.iter().map(Vec::capacity).sum();
        let all = chunks + queue.entries.capacity() * size_of::<Entry>();
        assert!(all < 1_000 * (room + 16) + CHUNK_MAX + 1_024 * 8, "{all} bytes");
        while queue.first_packet().is_some() {
            queue.remove_packet();
        }
        assert_eq!(queue.packets.chunks.len(), 1);
        assert_eq!(queue.packets.spare.capacity(), 0);
    }
}
