//! One copy of a shard: its state, and the log that makes the changes of the state durable.
//!
//! [`Replica::propose`] adds a command to the open batch and returns a [`Ticket`]. At the end of a turn the batch goes
//! to the log. When the log reports it as durable ([`Replica::handle_log_event`]), it is applied to the state
//! ([`shard::Shard`]), and [`Replica::poll_event`] returns the effects. Without a log (a node that keeps nothing) a
//! batch counts as durable as soon as it is closed.
//!
//! The replica also writes checkpoints, frees segments of the log, and reads messages back.
//!
//! **Invariant:** batches are applied in the order of their indexes, and only when they are durable.
//!
//! **Invariant:** a replica knows no connection, no quota and no route. They belong to the
//! [`ShardHost`](super::ShardHost), which is the only user of the replica and never touches the log.

mod ages;
mod checkpoint;
mod proposals;
mod reads;

use std::collections::VecDeque;
use std::sync::Arc;

use shard::{Effect, Shard};

pub(super) use self::ages::Ages;
use self::checkpoint::Checkpointing;
use self::proposals::Proposals;
pub(super) use self::proposals::{Ticket, Urgency};
pub(super) use self::reads::{Read, ReadResult};
use super::log::{Condition, StoreEvent, StoreLog};
use crate::ids::{ShardId, Time};

/// State and log of one shard.
pub(super) struct Replica {
    id: ShardId,
    state: Shard,
    /// Log of the shard; `None` when nothing is kept on disk.
    log: Option<Arc<dyn StoreLog>>,
    condition: Condition,
    ahead_bytes: u64,
    proposals: Proposals,
    /// Index up to which batches may be applied.
    durable: u64,
    ages: Ages,
    checkpointing: Checkpointing,
    /// Events for the host that no batch has caused.
    events: VecDeque<ReplicaEvent>,
    /// Memory for the effects of a batch.
    effects: Vec<Effect>,
}

/// An event of a replica for its host.
#[derive(Debug)]
pub(super) enum ReplicaEvent {
    /// The replica is the one that proposes: its host serves clients from now on. On a single node this is the first
    /// event, and the term is the number of the incarnation.
    Leads { term: u64 },
    /// A batch is durable, and it or a portion of it was applied to the state.
    Committed(Committed),
    /// Messages that the host requested.
    Read(Vec<Read>),
}

/// Effects of a batch, or of a portion of it.
#[derive(Debug)]
pub(super) struct Committed {
    pub index: u64,
    /// Effects in their order. [`Replica::reuse`] takes the memory back.
    pub effects: Vec<Effect>,
    /// The whole batch has been applied: no further portion follows.
    pub is_whole: bool,
}

/// Number of bytes that the log needs for a message that it keeps by itself, in addition to the message.
const KEPT_OVERHEAD: u64 = 112;
/// Number of effects whose memory is kept.
const EFFECTS_KEPT: usize = 4096;

impl Replica {
    /// Creates a replica that begins with a state and, unless nothing is kept on disk, the log that the state comes
    /// from.
    pub fn new(state: Shard, log: Option<Arc<dyn StoreLog>>) -> Self {
        Self {
            id: ShardId(state.id()),
            ahead_bytes: log.as_ref().map_or(u64::MAX, |log| log.ahead_bytes()),
            condition: log.as_ref().map_or(Condition::Good, |log| log.condition()),
            proposals: Proposals::starting_after(state.applied(), state.now()),
            durable: state.applied(),
            state,
            log,
            ages: Ages::default(),
            checkpointing: Checkpointing::default(),
            events: VecDeque::new(),
            effects: Vec::new(),
        }
    }

    /// Makes the replica lead. The log of a single node has no other replicas, so nothing else decides.
    pub fn lead(&mut self, term: u64) {
        self.events.push_back(ReplicaEvent::Leads { term });
    }

    pub fn id(&self) -> ShardId {
        self.id
    }

    /// The state after all batches that were applied.
    pub fn state(&self) -> &Shard {
        &self.state
    }

    #[cfg(test)]
    pub fn into_state(self) -> Shard {
        self.state
    }

    /// Returns false when nothing is kept on disk.
    pub fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Condition of the log: whether messages may be accepted at all.
    pub fn condition(&self) -> Condition {
        self.condition
    }

    /// Value of [`StoreLog::ahead_bytes`]; no limit without a log.
    pub fn ahead_bytes(&self) -> u64 {
        self.ahead_bytes
    }

    pub fn ages(&self) -> &Ages {
        &self.ages
    }

    pub fn has_applied(&self, index: u64) -> bool {
        self.state.applied() >= index
    }

    /// Returns whether all proposals have been applied.
    pub fn is_idle(&self) -> bool {
        self.proposals.is_idle()
    }

    /// Handles an event of the log. [`Self::poll_event`] returns its results.
    pub fn handle_log_event(&mut self, event: StoreEvent) {
        match event {
            StoreEvent::Durable(index) => self.durable = self.durable.max(index),
            StoreEvent::Checkpointed(index) => self.checkpoint_durable(index),
            StoreEvent::Read(read) => {
                let read = self.was_read(read);
                self.events.push_back(ReplicaEvent::Read(read));
            }
            StoreEvent::Vacate(vacate) => self.vacate(vacate),
            StoreEvent::Kept { records, failed } => self.kept(records, failed),
            StoreEvent::KeptDurable(records) => self.kept_durable(records),
            StoreEvent::Condition(condition) => self.condition = condition,
        }
    }

    /// Returns whether [`Self::poll_event`] has an event.
    #[inline]
    pub fn has_event(&self) -> bool {
        !self.events.is_empty() || self.proposals.durable(self.durable).is_some()
    }

    /// Returns the next event. A durable batch is applied for that, or a portion of it with about `effects_max`
    /// effects.
    pub fn poll_event(&mut self, now: Time, effects_max: usize) -> Option<ReplicaEvent> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        let batch = self.proposals.durable(self.durable)?;
        let mut effects = std::mem::take(&mut self.effects);
        let applied = self.state.apply_some(batch.index, &batch.bytes, effects_max, &mut effects);
        let is_whole = applied.expect("the log returns the shard's own batches in order");
        let index = batch.index;
        self.ages.note(index, now);
        if is_whole {
            self.proposals.finish();
        }
        Some(ReplicaEvent::Committed(Committed { index, effects, is_whole }))
    }

    /// Keeps the memory of effects that were handled.
    #[inline]
    pub fn reuse(&mut self, mut effects: Vec<Effect>) {
        debug_assert!(effects.is_empty(), "all effects were handled");
        // A message for very many sessions has as many effects.
        effects.shrink_to(EFFECTS_KEPT);
        self.effects = effects;
    }

    /// Time at which [`Self::tick`], [`Self::end_turn`] or [`Self::poll_event`] has work; [`Time::NEVER`] without any.
    pub fn next_deadline(&self) -> Time {
        let left = self.log.is_none() && self.proposals.has_underway();
        let own = self.checkpointing.due(self.state.applied()).min(self.proposals.due());
        own.min(if left { Time::default() } else { Time::NEVER })
    }

    /// Continues the current checkpoint and the freeing of segments.
    pub fn tick(&mut self) {
        self.continue_checkpoint();
    }

    /// Reports to the log how much of it is needed.
    pub fn report_live(&self) {
        if let Some(log) = &self.log {
            let (messages, bytes) = self.state.needed();
            log.report_live(self.id, bytes + messages * KEPT_OVERHEAD);
        }
    }
}
