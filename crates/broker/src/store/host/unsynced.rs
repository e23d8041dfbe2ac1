//! Messages of durability `memory`: acknowledged when they are on their way to the log, not when they are on the disk.
//!
//! They go the same way as all others, so a session has them in the same order; only whoever waits for them does not wait for the disk.
//! **Invariant:** what was acknowledged so and has not its places yet is bounded by `limits.memory_unsynced_max`.

use mqtt::ReasonCode;
use shard::{Mutation, mutated};

use super::{ShardHost, ShardOutput, Waiter};
use crate::durability::Durability;
use crate::ids::Time;
use crate::message::Message;
use crate::store::SHARDS;

impl ShardHost {
    /// The append under which a message is proposed: `append`, unless that need not wait. Then it is told now, and another one stands
    /// for the message until it has its places.
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
        self.unsynced += bytes;
        self.counters.acknowledged_unsynced += 1;
        let ahead = self.new_append(Waiter::Unsynced(bytes));
        if let Some(identity) = self.appends[key as usize].identity.take() {
            // Until it has its places, the same message sent again is answered with this one.
            self.appends[ahead as usize].identity = Some(identity);
            self.accepting.insert(identity, ahead);
        }
        self.accepted(now, key, ReasonCode::Success, out);
        Some(ahead)
    }

    fn may_acknowledge_early(&mut self, message: &Message, bytes: u64) -> bool {
        if self.log.is_none()
            || message.view().durability == Durability::LocalDisk && !mutated(Mutation::AcknowledgeEarly)
        {
            return false;
        }
        let max = self.settings.limits.memory_unsynced_max.bytes() / u64::from(SHARDS);
        let fits = self.unsynced + bytes <= max;
        self.counters.unsynced_limited += u64::from(!fits);
        fits
    }
}
