//! An Application Message as the log, the checkpoints and the links between nodes carry it.

use mqtt::{QoS, TopicName};

use crate::error::{Malformed, malformed};
use crate::wire::Reader;

/// Time of the state's clock, in milliseconds, that is never reached.
pub const NEVER: u64 = u64::MAX;

/// An Application Message that borrows its bytes.
///
/// Its encoding is a header of [`MessageView::HEADER`] bytes (version, flags, lengths, the three numbers), the
/// topic, the properties, the payload. The encoding contains its own length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageView<'a> {
    /// A Topic Name.
    pub topic: &'a str,
    /// Encoded properties that are passed on unchanged [MQTT-3.3.2-17].
    pub properties: &'a [u8],
    pub payload: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    /// Time of expiry by the state's clock, in ms; [`NEVER`] without a Message Expiry Interval.
    pub expires: u64,
    /// Time of arrival by the state's clock, in ms.
    pub received: u64,
    /// [`fnv64`](crate::fnv64) of the publisher's Client Identifier, which No Local compares [MQTT-3.8.3-3]; 0 for
    /// Wills and the node's own messages.
    pub publisher_key: u64,
}

/// Returns the time `ms` after `at`; [`NEVER`] stays.
pub(crate) fn later(at: u64, ms: u64) -> u64 {
    if at == NEVER { NEVER } else { at.saturating_add(ms).min(NEVER - 1) }
}

const VERSION: u8 = 1;
const RETAIN: u8 = 0b100;

impl<'a> MessageView<'a> {
    /// Bytes before the topic.
    pub const HEADER: usize = 40;

    /// Number of bytes that [`Self::encode`] appends. Queues count it as the size of a message.
    pub fn encoded_len(&self) -> usize {
        Self::HEADER + self.topic.len() + self.properties.len() + self.payload.len()
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.encoded_len());
        let mut header = [0; Self::HEADER];
        header[0] = VERSION;
        header[1] = self.qos as u8 | if self.retain { RETAIN } else { 0 };
        // A Topic Name has at most 65,535 bytes [MQTT-1.5.4-1].
        header[2..4].copy_from_slice(&(self.topic.len() as u16).to_le_bytes());
        header[4..8].copy_from_slice(&(self.properties.len() as u32).to_le_bytes());
        header[8..12].copy_from_slice(&(self.payload.len() as u32).to_le_bytes());
        header[16..24].copy_from_slice(&self.expires.to_le_bytes());
        header[24..32].copy_from_slice(&self.received.to_le_bytes());
        header[32..40].copy_from_slice(&self.publisher_key.to_le_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(self.topic.as_bytes());
        out.extend_from_slice(self.properties);
        out.extend_from_slice(self.payload);
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.encoded_len());
        self.encode(&mut bytes);
        bytes
    }

    /// Decodes a message at the beginning of `bytes`; ignores the bytes after it.
    ///
    /// # Errors
    /// Bytes that [`Self::encode`] does not write, an invalid Topic Name included.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Self::read(&mut Reader::new(bytes))
    }

    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        if reader.u8()? != VERSION {
            return malformed("version of a message");
        }
        let flags = reader.u8()?;
        let Some(qos) = QoS::from_bits(flags & 3) else { return malformed("QoS of a message") };
        if flags & !(3 | RETAIN) != 0 {
            return malformed("flags of a message");
        }
        let topic_len = usize::from(reader.u16()?);
        let properties_len = reader.u32()? as usize;
        let payload_len = reader.u32()? as usize;
        if reader.u32()? != 0 {
            return malformed("reserved bytes of a message");
        }
        let (expires, received, publisher_key) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let topic = reader.str(topic_len)?;
        if TopicName::parse(topic).is_err() {
            return malformed("topic of a message");
        }
        Ok(MessageView {
            topic,
            properties: reader.bytes(properties_len)?,
            payload: reader.bytes(payload_len)?,
            qos,
            retain: flags & RETAIN != 0,
            expires,
            received,
            publisher_key,
        })
    }

    /// Returns the message with times of a clock that is `ms` ahead.
    #[must_use]
    pub fn shifted(self, ms: u64) -> Self {
        Self { expires: later(self.expires, ms), received: later(self.received, ms), ..self }
    }

    /// Returns the message that [`Self::shifted`] was called on.
    #[must_use]
    pub fn shifted_back(self, ms: u64) -> Self {
        let expires = if self.expires == NEVER { NEVER } else { self.expires.saturating_sub(ms) };
        Self { expires, received: self.received.saturating_sub(ms), ..self }
    }

    pub fn is_expired(&self, now: u64) -> bool {
        self.expires <= now && self.expires != NEVER
    }

    /// Returns the Message Expiry Interval to forward: the remaining time in seconds, rounded up [MQTT-3.3.2-6].
    /// `Err` when it is over [MQTT-3.3.2-5].
    pub fn remaining_expiry(&self, now: u64) -> Result<Option<u32>, Expired> {
        if self.expires == NEVER {
            return Ok(None);
        }
        if self.is_expired(now) {
            return Err(Expired);
        }
        Ok(Some(u32::try_from((self.expires - now).div_ceil(1000)).unwrap_or(u32::MAX)))
    }
}

/// The message's expiry interval has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired;

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
            expires: 70_000,
            received: 60_000,
            publisher_key: u64::MAX - 1,
        }
    }

    #[test]
    fn a_message_decodes_as_encoded_and_not_when_cut() {
        let mut bytes = view().to_bytes();
        assert_eq!(bytes.len(), view().encoded_len());
        assert_eq!(MessageView::decode(&bytes), Ok(view()));
        for end in 0..bytes.len() {
            assert!(MessageView::decode(&bytes[..end]).is_err());
        }
        bytes.push(9);
        assert_eq!(MessageView::decode(&bytes), Ok(view()), "the bytes after a message are ignored");
    }

    /// [MQTT-3.3.2-2] [MQTT-4.7.3-1]: a message with such a topic can only come from a fault.
    #[test]
    fn an_invalid_topic_is_refused() {
        for topic in ["", "a/#", "+", "a\0"] {
            let bytes = MessageView { topic, ..view() }.to_bytes();
            assert_eq!(MessageView::decode(&bytes), malformed("topic of a message"));
        }
    }

    /// [MQTT-3.3.2-5] [MQTT-3.3.2-6]
    #[test]
    fn the_forwarded_expiry_is_the_remaining_time() {
        let at = |expires| MessageView { expires, ..view() };
        assert_eq!(at(NEVER).remaining_expiry(5), Ok(None));
        assert_eq!(at(NEVER).remaining_expiry(NEVER), Ok(None));
        assert_eq!(at(10_000).remaining_expiry(8_500), Ok(Some(2)));
        assert_eq!(at(10_000).remaining_expiry(10_000), Err(Expired));
    }
}
