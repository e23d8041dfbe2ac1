//! Application Messages on their way through the broker: a view over bytes, and a shared copy for messages that wait.

use std::sync::Arc;

use mqtt::QoS;

use crate::durability::Durability;
use crate::ids::{ConnectionId, Time, WorkerId};

/// An Application Message whose bytes are borrowed from the receive buffer, a batch between workers, or a [`Message`].
#[derive(Clone, Copy, Debug)]
pub struct MessageView<'a> {
    pub topic: &'a str,
    /// Encoded properties that are passed on unchanged [MQTT-3.3.2-17].
    pub properties: &'a [u8],
    pub payload: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    /// Time of expiry; [`Time::NEVER`] without a Message Expiry Interval.
    pub expires: Time,
    /// Time of arrival at this node, up to 2^48 ms.
    pub received: Time,
    /// Connection that published the message, for No Local [MQTT-3.8.3-3]. `None` for Wills and the node's own
    /// messages.
    pub publisher: Option<ConnectionId>,
    /// [`client_key`](crate::ids::client_key) of the publisher's Client Identifier; 0 for the node's own messages.
    /// Shared subscriptions may be distributed by it, and it remains valid after the connection.
    pub publisher_key: u64,
    /// Durability class: says whether the publisher waits for the disk.
    pub durability: Durability,
    /// Number of the message's first span on this node, if the message is traced; 0 otherwise. It stays in this
    /// process.
    pub span: u32,
}

/// An Application Message that outlives its packet: one allocation, shared by everything on the node that needs it.
#[derive(Clone, Debug)]
pub struct Message(Arc<[u8]>);

/// Length of the fixed part of an encoded message, before topic, properties and payload.
pub(crate) const MESSAGE_HEADER: usize = HEADER;
const HEADER: usize = 48;
const RETAIN: u8 = 0b100;
const HAS_PUBLISHER: u8 = 0b1000;
const IN_MEMORY: u8 = 0b1_0000;

impl<'a> MessageView<'a> {
    /// Empty QoS 0 message of the node itself on a topic.
    pub(crate) fn plain(topic: &'a str) -> Self {
        Self {
            topic,
            properties: &[],
            payload: &[],
            qos: QoS::AtMostOnce,
            retain: false,
            expires: Time::NEVER,
            received: Time(0),
            publisher: None,
            publisher_key: 0,
            durability: Durability::LocalDisk,
            span: 0,
        }
    }

    /// Number of bytes that [`Self::encode`] appends.
    pub fn encoded_len(&self) -> usize {
        HEADER + self.topic.len() + self.properties.len() + self.payload.len()
    }

    /// Appends the message in the form that [`Self::decode`] reads, to pass it between workers of one process.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.header());
        out.extend_from_slice(self.topic.as_bytes());
        out.extend_from_slice(self.properties);
        out.extend_from_slice(self.payload);
    }

    fn header(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[0..8].copy_from_slice(&self.expires.0.to_le_bytes());
        let mut flags = self.qos as u8;
        if self.retain {
            flags |= RETAIN;
        }
        if self.durability == Durability::Memory {
            flags |= IN_MEMORY;
        }
        if let Some(publisher) = self.publisher {
            flags |= HAS_PUBLISHER;
            header[8..12].copy_from_slice(&publisher.slot.to_le_bytes());
            header[12..16].copy_from_slice(&publisher.generation.to_le_bytes());
            header[16..18].copy_from_slice(&publisher.worker.0.to_le_bytes());
        }
        header[18] = flags;
        header[20..24].copy_from_slice(&self.span.to_le_bytes());
        header[40..48].copy_from_slice(&self.publisher_key.to_le_bytes());
        // A Topic Name has at most 65,535 bytes [MQTT-1.5.4-1].
        header[24..26].copy_from_slice(&(self.topic.len() as u16).to_le_bytes());
        header[26..28].copy_from_slice(&((self.received.0 >> 32) as u16).to_le_bytes());
        header[28..32].copy_from_slice(&(self.properties.len() as u32).to_le_bytes());
        header[32..36].copy_from_slice(&(self.payload.len() as u32).to_le_bytes());
        header[36..40].copy_from_slice(&(self.received.0 as u32).to_le_bytes());
        header
    }

    /// Reads the output of [`Self::encode`]. The bytes are this process's own, so a fault in them is a bug.
    pub fn decode(bytes: &'a [u8]) -> Self {
        let (header, rest) = bytes.split_first_chunk::<HEADER>().expect("it begins with the fixed part");
        let u32_at =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let u16_at = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let flags = header[18];
        let qos = match flags & 3 {
            0 => QoS::AtMostOnce,
            1 => QoS::AtLeastOnce,
            _ => QoS::ExactlyOnce,
        };
        let publisher = (flags & HAS_PUBLISHER != 0).then(|| ConnectionId {
            worker: WorkerId(u16_at(16)),
            slot: u32_at(8),
            generation: u32_at(12),
        });
        let (topic, rest) = rest.split_at(usize::from(u16_at(24)));
        let (properties, rest) = rest.split_at(u32_at(28) as usize);
        let payload = &rest[..u32_at(32) as usize];
        let topic = std::str::from_utf8(topic).expect("encoded from a str");
        MessageView {
            topic,
            properties,
            payload,
            qos,
            retain: flags & RETAIN != 0,
            expires: Time(u64_at(0)),
            received: Time(u64::from(u32_at(36)) | u64::from(u16_at(26)) << 32),
            publisher,
            publisher_key: u64_at(40),
            durability: if flags & IN_MEMORY == 0 { Durability::LocalDisk } else { Durability::Memory },
            span: u32_at(20),
        }
    }

    /// Converts the message to the form of the log, without the connection, which has no meaning outside of this
    /// process.
    pub(crate) fn stored(&self) -> shard::MessageView<'a> {
        shard::MessageView {
            topic: self.topic,
            properties: self.properties,
            payload: self.payload,
            qos: self.qos,
            retain: self.retain,
            expires: self.expires.0,
            received: self.received.0,
            publisher_key: self.publisher_key,
        }
    }

    pub fn to_message(self) -> Message {
        // Allocated in its final form: a vector would be copied to it.
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, self.encoded_len()).collect();
        let mut rest = Arc::get_mut(&mut bytes).unwrap_or_default();
        for part in [&self.header(), self.topic.as_bytes(), self.properties, self.payload] {
            let (target, after) = rest.split_at_mut(part.len());
            target.copy_from_slice(part);
            rest = after;
        }
        Message(bytes)
    }

    /// Converts `expires` of a new message from an interval to a time.
    #[must_use]
    pub fn arrived(mut self, now: Time) -> Self {
        if self.expires != Time::NEVER {
            self.expires = Time(now.0.saturating_add(self.expires.0));
        }
        self.received = now;
        self
    }

    /// Remaining Message Expiry Interval to pass on, in seconds, rounded up [MQTT-3.3.2-6]. `Err` when it has passed
    /// [MQTT-3.3.2-5].
    pub fn remaining_expiry(&self, now: Time) -> Result<Option<u32>, Expired> {
        remaining_expiry(self.expires, now)
    }
}

fn remaining_expiry(expires: Time, now: Time) -> Result<Option<u32>, Expired> {
    if expires == Time::NEVER {
        return Ok(None);
    }
    if expires <= now {
        return Err(Expired);
    }
    let seconds = expires.since(now).as_millis().div_ceil(1000);
    Ok(Some(u32::try_from(seconds).unwrap_or(u32::MAX)))
}

/// The message's expiry interval has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired;

impl Message {
    /// Converts a message from the form of the log.
    pub fn of_stored(stored: &shard::MessageView<'_>) -> Self {
        let view = MessageView {
            topic: stored.topic,
            properties: stored.properties,
            payload: stored.payload,
            qos: stored.qos,
            retain: stored.retain,
            expires: Time(stored.expires),
            received: Time(stored.received),
            publisher: None,
            publisher_key: stored.publisher_key,
            durability: Durability::LocalDisk,
            span: 0,
        };
        view.to_message()
    }

    pub fn view(&self) -> MessageView<'_> {
        MessageView::decode(&self.0)
    }

    /// Returns the same as [`MessageView::remaining_expiry`], without decoding the rest.
    pub fn remaining_expiry(&self, now: Time) -> Result<Option<u32>, Expired> {
        let expires = self.0.first_chunk().map_or(Time::NEVER, |bytes| Time(u64::from_le_bytes(*bytes)));
        remaining_expiry(expires, now)
    }

    /// Encoded message; it ends with the payload.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Bytes of memory of the message, whether shared or not.
    pub fn size(&self) -> usize {
        self.0.len()
    }
}

/// Makes the shared copy of a message at the first request, and returns the same one later.
pub struct Shared<'a> {
    pub view: MessageView<'a>,
    /// The message of the view, if it is one.
    source: Option<&'a Message>,
    made: Option<Message>,
}

impl<'a> Shared<'a> {
    pub fn of(view: MessageView<'a>) -> Self {
        Self { view, source: None, made: None }
    }

    /// Returns whether the shared copy exists already.
    pub fn is_shared(&self) -> bool {
        self.source.is_some() || self.made.is_some()
    }

    pub fn message(&mut self) -> Message {
        match self.source {
            Some(message) => message.clone(),
            None => self.made.get_or_insert_with(|| self.view.to_message()).clone(),
        }
    }
}

impl<'a> From<&'a Message> for Shared<'a> {
    fn from(message: &'a Message) -> Self {
        Self { view: message.view(), source: Some(message), made: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> MessageView<'static> {
        MessageView {
            topic: "a/ü",
            properties: &[1, 1],
            payload: b"payload",
            qos: QoS::ExactlyOnce,
            retain: true,
            expires: Time(u64::MAX - 7),
            received: Time(0xffff_0123_4567),
            publisher: Some(ConnectionId { worker: WorkerId(3), slot: 70_000, generation: u32::MAX }),
            publisher_key: u64::MAX - 99,
            durability: Durability::Memory,
            span: 0x0123_4567,
        }
    }

    #[test]
    fn a_message_reads_as_it_was_written() {
        let message = view().to_message();
        assert_eq!(format!("{:?}", message.view()), format!("{:?}", view()));
        let bare = MessageView { publisher: None, retain: false, properties: &[], payload: &[], ..view() };
        assert_eq!(format!("{:?}", bare.to_message().view()), format!("{bare:?}"));
    }

    /// [MQTT-3.3.2-5] [MQTT-3.3.2-6]
    #[test]
    fn the_remaining_expiry_is_passed_on() {
        let at = |expires| MessageView { expires, ..view() };
        assert_eq!(at(Time::NEVER).remaining_expiry(Time(5)), Ok(None));
        assert_eq!(at(Time(10_000)).remaining_expiry(Time(0)), Ok(Some(10)));
        assert_eq!(at(Time(10_000)).remaining_expiry(Time(8_500)), Ok(Some(2)));
        assert_eq!(at(Time(10_000)).remaining_expiry(Time(10_000)), Err(Expired));
        for expires in [Time::NEVER, Time(10_000), Time(8_500), Time(0)] {
            let view = at(expires);
            assert_eq!(view.to_message().remaining_expiry(Time(8_500)), view.remaining_expiry(Time(8_500)));
        }
    }
}
