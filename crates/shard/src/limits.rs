//! Limits that the state machine itself holds, all of them per session.

use crate::error::{Malformed, malformed};
use crate::wire::{Reader, Writer};

/// What [`Configure`](crate::Command::Configure) sets. What a node counts over all its shards, such as sessions or retained
/// messages, the host refuses before it proposes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Messages that may wait for a session behind those that are pinned.
    pub queue_messages_max: u32,
    /// Bytes of the messages that may wait for a session, and of those that are pinned for it; one of these may be larger.
    pub queue_bytes_max: u64,
    /// How long a message may wait for a session, ms; `u64::MAX`: as long as it does not expire. One that has waited longer is
    /// treated as expired.
    pub queue_age_max_ms: u64,
    /// Which message a full queue loses.
    pub queue_full: QueueFull,
    /// Bytes that may wait for a session that is away, when that is less than `queue_bytes_max`. `u64::MAX`: no such limit.
    pub absent_bytes_max: u64,
    /// Subscriptions of a session.
    pub subscriptions_max: u32,
}

/// The rule for full queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QueueFull {
    DropOldest = 0,
    DropNewest = 1,
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

impl Limits {
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
        let queue_full = match reader.u8()? {
            0 => QueueFull::DropOldest,
            1 => QueueFull::DropNewest,
            _ => return malformed("rule for full queues"),
        };
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
