//! Messages of durability `memory`: acknowledged when they are on their way to the log, not when they are on the disk.
//!
//! They take the same path as all others, so a session has them in the same order; only their publishers do not wait
//! for the disk.
//!
//! **Invariant:** the bytes that were acknowledged in this way and are not queued yet are bounded by
//! `limits.memory_unsynced_max`.

use mqtt::ReasonCode;
use shard::{Mutation, mutated};

use super::appends::Waiter;
use super::{ShardHost, ShardOutput};
use crate::durability::Durability;
use crate::ids::Time;
use crate::message::Message;
use crate::store::SHARDS;

impl ShardHost {
    /// Returns the append under which a message is proposed: `append`, if that must wait. Otherwise `append` is
    /// completed now, and another append represents the message until it is queued.
    pub(super) fn acknowledge_early(
        &mut self,
        now: Time,
        message: &Message,
        append: Option<u32>,
        out: &mut ShardOutput,
    ) -> Option<u32> {
        let key = append?;
        let bytes = message.size() as u64;
        if !self.may_acknowledge_early(message, bytes) {
            return append;
        }
        self.appends.unsynced += bytes;
        self.counters.acknowledged_unsynced += 1;
        let ahead = self.appends.insert(Waiter::Unsynced(bytes));
        if let Some(identity) = self.appends[key].identity.take() {
            // Until the message is queued, a repetition of it is answered with this append.
            self.appends.identify(ahead, identity);
        }
        self.accepted(now, key, ReasonCode::Success, out);
        Some(ahead)
    }

    fn may_acknowledge_early(&mut self, message: &Message, bytes: u64) -> bool {
        if !self.replica.has_log()
            || message.view().durability == Durability::LocalDisk && !mutated(Mutation::AcknowledgeEarly)
        {
            return false;
        }
        let max = self.settings.limits.memory_unsynced_max.bytes() / u64::from(SHARDS);
        let fits = self.appends.unsynced + bytes <= max;
        self.counters.unsynced_limited += u64::from(!fits);
        fits
    }
}
