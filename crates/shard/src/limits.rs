//! Limits that the state machine itself enforces, all of them per session.

use crate::error::{Malformed, malformed};
use crate::wire::{Reader, Writer};

/// Limits that [`Configure`](crate::Command::Configure) sets. Limits of a whole node, such as the number of
/// sessions or retained messages, are enforced by the host before it proposes a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of messages that wait for a session after the pinned ones.
    pub queue_messages_max: u32,
    /// Maximum number of bytes of the messages that wait for a session, and of those that are pinned for it. One
    /// pinned message may be larger.
    pub queue_bytes_max: u64,
    /// Maximum time that a message waits for a session, in ms; `u64::MAX`: until it expires. A message that waited
    /// longer counts as expired.
    pub queue_age_max_ms: u64,
    /// Message that a full queue drops.
    pub queue_full: QueueFull,
    /// Maximum number of bytes that wait for an absent session, when that is less than `queue_bytes_max`.
    /// `u64::MAX`: no such limit.
    pub absent_bytes_max: u64,
    /// Maximum number of subscriptions of a session.
    pub subscriptions_max: u32,
}

/// Limits of the queue of one session, instead of those of its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Value for [`Limits::queue_messages_max`].
    pub messages_max: u32,
    /// Value for [`Limits::queue_bytes_max`].
    pub bytes_max: u64,
    /// Value for [`Limits::queue_age_max_ms`].
    pub age_max_ms: u64,
    /// Value for [`Limits::queue_full`].
    pub full: QueueFull,
}

/// Rule for full queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QueueFull {
    DropOldest = 0,
    DropNewest = 1,
    /// A Publish or Enqueue of a publisher that waits is refused. Other messages are dropped as with `DropNewest`. Only
    /// [`QueueLimits`] have this rule.
    Refuse = 2,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue_messages_max: 1000,
            queue_bytes_max: 16 << 20,
            queue_age_max_ms: u64::MAX,
            queue_full: QueueFull::DropOldest,
            absent_bytes_max: u64::MAX,
            subscriptions_max: 100_000,
        }
    }
}

impl QueueLimits {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.messages_max);
        out.u64(self.bytes_max);
        out.u64(self.age_max_ms);
        out.u8(self.full as u8);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            messages_max: reader.u32()?,
            bytes_max: reader.u64()?,
            age_max_ms: reader.u64()?,
            full: QueueFull::decode(reader)?,
        })
    }
}

impl QueueFull {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        match reader.u8()? {
            0 => Ok(QueueFull::DropOldest),
            1 => Ok(QueueFull::DropNewest),
            2 => Ok(QueueFull::Refuse),
            _ => malformed("rule for full queues"),
        }
    }
}

impl Limits {
    /// Returns the limits of a session that may have its own for its queue.
    pub(crate) fn with(&self, own: Option<&QueueLimits>) -> Self {
        own.map_or(*self, |own| Self {
            queue_messages_max: own.messages_max,
            queue_bytes_max: own.bytes_max,
            queue_age_max_ms: own.age_max_ms,
            queue_full: own.full,
            ..*self
        })
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.queue_messages_max);
        out.u32(self.subscriptions_max);
        out.u64(self.queue_bytes_max);
        out.u64(self.absent_bytes_max);
        out.u64(self.queue_age_max_ms);
        out.u8(self.queue_full as u8);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (queue_messages_max, subscriptions_max) = (reader.u32()?, reader.u32()?);
        let (queue_bytes_max, absent_bytes_max) = (reader.u64()?, reader.u64()?);
        let queue_age_max_ms = reader.u64()?;
        let queue_full = QueueFull::decode(reader)?;
        if queue_full == QueueFull::Refuse {
            return malformed("rule for the full queues of all sessions");
        }
        Ok(Self {
            queue_messages_max,
            queue_bytes_max,
            queue_age_max_ms,
            queue_full,
            absent_bytes_max,
            subscriptions_max,
        })
    }
}
