//! Messages of durability `memory`: acknowledged when they are on their way to the log, not when they are on the disk.
//! In a cluster those of QoS 1 are acknowledged when a majority of the shard's replicas has them in memory. PUBREC
//! waits for the disks of a majority.
//!
//! They take the same path as all others, so a session has them in the same order; only their publishers do not wait
//! for the disk.
//!
//! Messages of QoS 0 that are stored for a session have no acknowledgement to wait for, and count in the same way.
//!
//! **Invariant:** the bytes that were acknowledged in this way and are not queued yet are bounded by
//! `limits.memory_unsynced_max`, or by one message of QoS 0 for each shard.

use mqtt::{QoS, ReasonCode};
use shard::{Command, Mutation, mutated};

use super::appends::{Unheld, Waiter};
use super::propose::Continuation;
use super::{ShardHost, ShardOutput};
use crate::durability::Durability;
use crate::ids::{SessionId, Time};
use crate::message::Message;
use crate::store::{Enqueue, SHARDS, session_uid};

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
        if self.replica.is_agreed() || !self.may_acknowledge_early(message, bytes) {
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

    /// Acknowledges a message that was just proposed when a majority of the replicas has it in memory, in a cluster.
    pub(super) fn acknowledge_when_held(&mut self, message: &Message, append: Option<u32>) {
        let bytes = message.size() as u64;
        let waits = !self.replica.is_agreed() || message.view().qos == QoS::ExactlyOnce;
        let Some(key) = append.filter(|_| !waits) else { return };
        if self.may_acknowledge_early(message, bytes) {
            let number = self.replica.last_proposal();
            self.appends[key].unheld = number;
            self.appends.unsynced += bytes;
            self.appends.unheld.push_back(Unheld { number, key, bytes });
        }
    }

    /// Acknowledges messages that a majority has in memory now.
    pub(super) fn acknowledge_held(&mut self, out: &mut ShardOutput) {
        if self.appends.unheld.is_empty() {
            return;
        }
        let held = self.replica.held();
        while let Some(Unheld { number, key, bytes }) =
            self.appends.unheld.pop_front_if(|unheld| unheld.number <= held)
        {
            let append = self.appends.get_mut(key).filter(|append| append.unheld == number);
            let Some(append) = append.filter(|append| matches!(append.waiter, Waiter::Token(_))) else {
                self.appends.unsynced -= bytes;
                continue;
            };
            let answered = append.duplicates.drain(..);
            out.acknowledged.extend(answered.map(|token| (token, ReasonCode::Success)));
            if let Waiter::Token(token) = std::mem::replace(&mut append.waiter, Waiter::Unsynced(bytes)) {
                out.acknowledged.push((token, ReasonCode::Success));
            }
            self.counters.acknowledged_unsynced += 1;
        }
    }

    /// Queues messages for one session that no publisher waits for: they were QoS 0. They count as acknowledged
    /// already, and are dropped where others would wait for the disk. One may always be queued, whatever its size.
    pub(super) fn enqueue_unawaited(&mut self, now: Time, id: SessionId, entries: Vec<Enqueue>) {
        for Enqueue { message, qos, retain, subscription_ids, .. } in entries {
            let bytes = message.size() as u64;
            if self.appends.unsynced > 0 && self.appends.unsynced + bytes > self.unsynced_max() {
                self.counters.dropped_not_stored += 1;
                continue;
            }
            self.appends.unsynced += bytes;
            let append = Some(self.appends.insert(Waiter::Unsynced(bytes)));
            let command = Command::Enqueue(shard::Enqueue {
                session: session_uid(id),
                message: self.replica.stored(&message.view()),
                qos,
                retain,
                ids: subscription_ids.as_slice().to_vec(),
                identity: None,
                group: None,
            });
            let (gone, message) = (ReasonCode::ServerBusy, message.clone());
            self.propose(now, &command, Continuation::Enqueue { message, append, group: None, gone });
        }
    }

    /// Maximum number of bytes of this shard that are acknowledged and not queued yet.
    fn unsynced_max(&self) -> u64 {
        self.settings.limits.memory_unsynced_max.bytes() / u64::from(SHARDS)
    }

    fn may_acknowledge_early(&mut self, message: &Message, bytes: u64) -> bool {
        if !self.replica.has_log()
            // The publisher could not learn that a queue refuses the message.
            || self.replica.state().refuses_messages()
            || message.view().durability == Durability::LocalDisk
                && !mutated(Mutation::AcknowledgeEarly)
                && !(self.replica.is_agreed() && mutated(Mutation::AcknowledgeAlone))
        {
            return false;
        }
        let fits = self.appends.unsynced + bytes <= self.unsynced_max();
        self.counters.unsynced_limited += u64::from(!fits);
        fits
    }
}
