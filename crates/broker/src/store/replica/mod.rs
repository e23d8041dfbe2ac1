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
mod agreed;
mod appended;
mod checkpoint;
mod proposals;
mod reads;
mod repair;
mod time;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use shard::{Effect, Shard};

pub(super) use self::ages::Ages;
use self::agreed::{Applying, TimedAgreement};
use self::appended::Appended;
use self::checkpoint::Checkpointing;
use self::proposals::Proposals;
pub(super) use self::proposals::{Ticket, Urgency};
pub(super) use self::reads::{Read, ReadResult};
use self::repair::Repair;
use super::log::{Agreement, Condition, StoreEvent, StoreLog, Wanted};
use super::shard_clock::ShardClock;
use crate::ids::{ShardId, Time};
use crate::node::NodeLoad;

/// State and log of one shard.
pub(super) struct Replica {
    id: ShardId,
    state: Shard,
    /// Log of the shard; `None` when nothing is kept on disk.
    log: Option<Arc<dyn StoreLog>>,
    /// Agreement with the other replicas of the shard. Without it, the log of this node alone decides.
    agreement: Option<TimedAgreement>,
    condition: Condition,
    ahead_bytes: u64,
    proposals: Proposals,
    /// Batches that the log has, without an agreement.
    appended: Appended,
    /// Time of a shard with other replicas. Without them the time of the node counts.
    clock: Option<ShardClock>,
    /// Work for the agreement.
    applying: Applying,
    /// Number of the last own batch that was applied.
    applied: u64,
    /// Index of the last entry of the agreement's own that the state includes. It is the same on all replicas.
    passed_over: u64,
    /// Messages that are read when this node's log has them.
    reads_held: Vec<Wanted>,
    /// Messages that the disk cannot return.
    repair: Repair,
    counters: ReplicaCounters,
    ages: Ages,
    checkpointing: Checkpointing,
    /// Events for the host that no batch has caused.
    events: VecDeque<ReplicaEvent>,
    /// Memory for the effects of a batch.
    effects: Vec<Effect>,
}

/// Counters of a replica and its hosts since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaCounters {
    /// States that were received from other replicas.
    pub restored: u64,
    /// Records of messages that were fetched for them.
    pub fetched: u64,
    /// Messages that the disk could not return and that another replica has sent.
    pub repaired: u64,
    /// Connections that an earlier leader had served.
    pub attached: u64,
    /// Requests of connections that served their session no more.
    pub stale: u64,
}

impl ReplicaCounters {
    /// Sum of two.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            restored: self.restored + other.restored,
            fetched: self.fetched + other.fetched,
            repaired: self.repaired + other.repaired,
            attached: self.attached + other.attached,
            stale: self.stale + other.stale,
        }
    }
}

/// A batch that is not applied yet.
struct Batch {
    index: u64,
    /// Number of the batch, if this replica proposed it since it leads.
    number: Option<u64>,
    bytes: Arc<Vec<u8>>,
}

/// An event of a replica for its host.
#[derive(Debug)]
pub(super) enum ReplicaEvent {
    /// The replica is the one that proposes: its host serves clients from now on. On a single node this is the first
    /// event, and the term is the number of the incarnation.
    Leads { term: u64 },
    /// The replica leads no more. What its host has proposed may be lost.
    Follows,
    /// The state is one that another replica has sent. The filters are those of the one before.
    Restored { filters: BTreeSet<Box<str>> },
    /// A batch is durable, and it or a portion of it was applied to the state.
    Committed(Committed),
    /// Messages that the host requested.
    Read(Vec<Read>),
    /// The read barrier with this number has passed.
    Readable(u64),
}

/// Effects of a batch, or of a portion of it.
#[derive(Debug)]
pub(super) struct Committed {
    /// Index of the batch in the log of the shard.
    pub index: u64,
    /// Number of the batch, if this replica proposed it since it leads.
    pub number: Option<u64>,
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
    /// from. With an agreement, that decides when the replica leads; otherwise [`Self::lead`] makes it lead.
    pub fn new(
        state: Shard,
        log: Option<Arc<dyn StoreLog>>,
        mut agreement: Option<Box<dyn Agreement>>,
        (hash_key, load): ([u8; 16], &Arc<NodeLoad>),
    ) -> Self {
        let condition = log.as_ref().map_or(Condition::Good, |log| log.condition());
        if let Some(agreement) = &mut agreement {
            agreement.set_condition(condition);
        }
        Self {
            id: ShardId(state.id()),
            ahead_bytes: log.as_ref().map_or(u64::MAX, |log| log.ahead_bytes()),
            condition,
            proposals: Proposals::starting_at(state.now()),
            appended: Appended::starting_after(state.applied()),
            clock: agreement.is_some().then(|| ShardClock::new(load.clone())),
            applying: Applying::new(hash_key),
            applied: 0,
            passed_over: 0,
            reads_held: Vec::new(),
            repair: Repair::default(),
            counters: ReplicaCounters::default(),
            state,
            log,
            agreement: agreement.map(TimedAgreement::new),
            ages: Ages::default(),
            checkpointing: Checkpointing::default(),
            events: VecDeque::new(),
            effects: Vec::new(),
        }
    }

    /// Makes the replica lead. The log of a single node has no other replicas, so nothing else decides.
    pub fn lead(&mut self, term: u64) {
        debug_assert!(self.agreement.is_none(), "the replicas decide who leads");
        self.events.push_back(ReplicaEvent::Leads { term });
    }

    /// Returns whether other nodes may have replicas of the shard.
    pub fn is_agreed(&self) -> bool {
        self.agreement.is_some()
    }

    pub fn id(&self) -> ShardId {
        self.id
    }

    pub fn counters(&self) -> ReplicaCounters {
        self.counters
    }

    pub fn counters_mut(&mut self) -> &mut ReplicaCounters {
        &mut self.counters
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

    /// Index of the last entry of the agreement's own that the state includes. The first one of each leader is such an
    /// entry.
    pub fn passed_over(&self) -> u64 {
        self.passed_over
    }

    /// Index up to which all changes of the state were passed on as events, or more while a record is applied in part.
    pub fn passed_on(&self) -> u64 {
        let is_restored = |event: &ReplicaEvent| matches!(event, ReplicaEvent::Restored { .. });
        if self.events.iter().any(is_restored) { 0 } else { self.state.applied() }
    }

    /// Value of [`StoreLog::ahead_bytes`]; no limit without a log.
    pub fn ahead_bytes(&self) -> u64 {
        self.ahead_bytes
    }

    pub fn ages(&self) -> &Ages {
        &self.ages
    }

    /// Returns whether the batch of this number has been applied.
    pub fn has_applied(&self, number: u64) -> bool {
        self.applied >= number
    }

    /// Returns whether all proposals have been applied.
    pub fn is_idle(&self) -> bool {
        !self.proposals.has_open() && self.applied == self.proposals.last()
    }

    /// Handles an event of the log. [`Self::poll_event`] returns its results.
    pub fn handle_log_event(&mut self, event: StoreEvent) {
        match event {
            StoreEvent::Durable(index) => self.appended.durable = self.appended.durable.max(index),
            StoreEvent::Checkpointed(index) => self.checkpoint_durable(index),
            StoreEvent::Read(mut read) => {
                let messages = read.iter_mut().filter_map(|(_, message)| message.as_mut());
                messages.for_each(|message| self.to_node(message));
                let read = self.was_read(read);
                self.events.push_back(ReplicaEvent::Read(read));
            }
            StoreEvent::Vacate(vacate) => self.vacate(vacate),
            StoreEvent::Kept { records, failed } => self.kept(records, failed),
            StoreEvent::KeptDurable(records) => self.kept_durable(records),
            StoreEvent::Condition(condition) => {
                self.condition = condition;
                self.with_agreement(|agreement| agreement.set_condition(condition));
            }
            StoreEvent::Agreement(event) => {
                self.with_agreement(|agreement| agreement.handle(event));
                self.read_held();
            }
            StoreEvent::Frame(frame) => self.with_agreement(|agreement| agreement.receive(frame)),
            StoreEvent::LinkLost(node) => self.with_agreement(|agreement| agreement.link_lost(node)),
            StoreEvent::More => {}
        }
    }

    /// Returns whether [`Self::poll_event`] has an event.
    #[inline]
    pub fn has_event(&self) -> bool {
        !self.events.is_empty() || self.appended.has_durable() || self.applying.has_work()
    }

    /// Returns the next event. A batch that is durable, on a majority if there are other replicas, is applied for that,
    /// or a portion of it with about `effects_max` effects.
    pub fn poll_event(&mut self, now: Time, effects_max: usize) -> Option<ReplicaEvent> {
        if self.agreement.is_some() {
            self.take_steps(now);
            self.observe_time(now);
        }
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        let batch = self.appended.durable().or(self.applying.batch())?;
        let mut effects = std::mem::take(&mut self.effects);
        let applied = self.state.apply_some(batch.index, &batch.bytes, effects_max, &mut effects);
        let (index, number) = (batch.index, batch.number);
        self.ages.note(index, now);
        if let Some(clock) = &mut self.clock {
            clock.observe(now, self.state.now());
        }
        let is_whole = match (applied, &mut self.agreement) {
            (Ok(is_whole), _) => is_whole,
            // A later version of the program has proposed it.
            (Err(error), Some(agreement)) => {
                self.applying.finish_batch();
                agreement.refuse(&error.to_string());
                return None;
            }
            (Err(error), None) => panic!("the log returns the shard's own batches in order: {error}"),
        };
        if is_whole {
            self.applied = number.unwrap_or(self.applied);
            self.finish_batch();
        }
        Some(ReplicaEvent::Committed(Committed { index, number, effects, is_whole }))
    }

    /// Removes the batch that has been applied.
    fn finish_batch(&mut self) {
        match &mut self.agreement {
            None => {
                if let Some(batch) = self.appended.pop() {
                    self.proposals.reuse(batch.bytes);
                }
            }
            Some(agreement) => {
                self.applying.finish_batch();
                agreement.done();
            }
        }
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
        let left = self.log.is_none() && !self.appended.is_empty();
        let checkpoint = match self.applying.is_restoring() {
            true => Time::NEVER,
            false => self.checkpointing.due(self.state.applied()),
        };
        let own = checkpoint.min(self.proposals.due()).min(self.repair.due());
        let agreement = self.agreement.as_ref().map_or(Time::NEVER, |agreement| agreement.timeout());
        own.min(agreement).min(if left { Time::default() } else { Time::NEVER })
    }

    /// Continues the current checkpoint, the freeing of segments, repairs, and the agreement.
    pub fn tick(&mut self, now: Time) {
        self.continue_checkpoint();
        self.observe_time(now);
        self.continue_repair();
        self.run_agreement(now);
    }

    /// Reports to the log how much of it is needed.
    pub fn report_live(&self) {
        if let Some(log) = &self.log {
            let (messages, bytes) = self.state.needed();
            log.report_live(self.id, bytes + messages * KEPT_OVERHEAD);
        }
    }
}
