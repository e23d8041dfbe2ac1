//! Work of a replica for its agreement with the others: it applies batches that are committed, writes snapshots, and
//! takes those of others.
//!
//! The agreement gives one [`Step`] at a time and waits until it is done. So a snapshot is of exactly the state that
//! the agreement knows, although a batch may be applied in portions over several turns.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use shard::{Cursor, Mutation, PartId, REST, RETAINED_FIRST, Shard, mutated};

use super::checkpoint::{FETCHED_BYTES_AT_ONCE, KEPT_BYTES_AT_ONCE, LOOKED_AT_AT_ONCE, Needed, take_some};
use super::{Batch, Replica, ReplicaEvent};
use crate::ids::Time;
use crate::store::log::{Agreement, CommittedBatch, Condition, Frame, ReplicaProgress, Step};

/// The agreement, and its next time-out. A worker asks for the time-outs of all its shards at the end of each turn, and
/// few of them have changed.
pub(super) struct TimedAgreement {
    agreement: Box<dyn Agreement>,
    /// `None` since the agreement was last used.
    timeout: Cell<Option<Time>>,
}

impl TimedAgreement {
    pub fn new(agreement: Box<dyn Agreement>) -> Self {
        Self { agreement, timeout: Cell::new(None) }
    }

    /// [`Agreement::timeout`].
    pub fn timeout(&self) -> Time {
        let timeout = self.timeout.get().unwrap_or_else(|| self.agreement.timeout());
        debug_assert_eq!(timeout, self.agreement.timeout(), "the agreement has changed without being used");
        self.timeout.set(Some(timeout));
        timeout
    }

    /// [`Agreement::poll_frame`], which does not change the time-out.
    pub fn poll_frame(&mut self) -> Option<Frame> {
        self.agreement.poll_frame()
    }
}

impl Deref for TimedAgreement {
    type Target = dyn Agreement;

    fn deref(&self) -> &Self::Target {
        &*self.agreement
    }
}

impl DerefMut for TimedAgreement {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.timeout.set(None);
        &mut *self.agreement
    }
}

/// Work that the agreement has given.
pub(super) struct Applying {
    hash_key: [u8; 16],
    /// Batch that is being applied.
    batch: Option<Batch>,
    /// State of a snapshot that is being read. It replaces the present one when it is complete.
    restoring: Option<Box<Shard>>,
    /// Messages that the complete state of a snapshot refers to.
    fetching: Option<Fetching>,
    /// The agreement has something that its next turn handles.
    pub has_input: bool,
    /// The agreement has more steps than one turn took.
    has_more: bool,
}

/// Progress with the messages that a received state refers to. The log must have them before the replica confirms the
/// state.
struct Fetching {
    /// Position at which the walk over the state continues; `None` when it is complete.
    cursor: Option<Cursor>,
    /// Messages that are left.
    left: Needed,
    /// Others were asked for.
    is_asked: bool,
    /// Messages that have come and are not written yet, with the indexes of their batches, and their bytes.
    arrived: Vec<(u64, Vec<u8>)>,
    arrived_bytes: u64,
}

impl Default for Fetching {
    fn default() -> Self {
        let cursor = Some(Cursor::default());
        Self { cursor, left: Needed::new(), is_asked: false, arrived: Vec::new(), arrived_bytes: 0 }
    }
}

impl Fetching {
    /// Returns whether the messages that have come are enough for a write, or no others follow.
    fn is_write_due(&self) -> bool {
        self.arrived_bytes >= KEPT_BYTES_AT_ONCE || self.left.is_empty()
    }
}

/// Maximum number of steps in one turn, in addition to batches with effects. Each takes about as long as one part.
const STEPS_AT_ONCE: usize = 16;

impl Applying {
    pub fn new(hash_key: [u8; 16]) -> Self {
        Self { hash_key, batch: None, restoring: None, fetching: None, has_input: false, has_more: false }
    }

    /// Batch that is being applied.
    pub fn batch(&self) -> Option<&Batch> {
        self.batch.as_ref()
    }

    pub fn finish_batch(&mut self) {
        self.batch = None;
    }

    /// Returns whether a state is being received. The log gets messages that the present state does not refer to.
    pub fn is_restoring(&self) -> bool {
        self.restoring.is_some()
    }

    pub fn has_work(&self) -> bool {
        self.batch.is_some() || self.has_more
    }
}

/// Passes a part of a checkpoint on, unless a mutation drops it.
pub(super) fn write_part(part: PartId, bytes: &[u8], out: &mut dyn FnMut(u32, &[u8])) {
    let retained = u32::from(RETAINED_FIRST)..u32::from(REST);
    let is_retained = retained.contains(&part.as_u32());
    if !(is_retained && mutated(Mutation::DropRetained)) {
        out(part.as_u32(), bytes);
    }
}

impl Replica {
    /// Passes an event to the agreement. [`Self::run_agreement`] must follow.
    pub(super) fn with_agreement(&mut self, handle: impl FnOnce(&mut dyn Agreement)) {
        // A node that has another view of the shard may send a frame to one without an agreement.
        if let Some(agreement) = &mut self.agreement {
            handle(&mut **agreement);
            self.applying.has_input = true;
        }
    }

    /// Requests a read barrier while the replica leads. [`ReplicaEvent::Readable`] follows, unless it leads no more.
    pub fn read_barrier(&mut self, number: u64) {
        self.with_agreement(|agreement| agreement.read_barrier(number));
    }

    /// Number of the last own batch that a majority has in memory ([`Agreement::held`]).
    pub fn held(&mut self) -> u64 {
        self.agreement.as_mut().map_or(0, |agreement| agreement.held())
    }

    /// Returns the progress of the other replicas, while this one leads.
    pub fn progress(&self) -> Vec<ReplicaProgress> {
        self.agreement.as_ref().map(|agreement| agreement.progress()).unwrap_or_default()
    }

    /// Takes a frame for another replica.
    pub fn poll_frame(&mut self) -> Option<Frame> {
        self.agreement.as_mut()?.poll_frame()
    }

    /// Runs the agreement if it has something to handle. It answers other replicas also while a batch is applied in
    /// portions. Its steps become events.
    pub fn run_agreement(&mut self, now: Time) {
        if let Some(agreement) = &mut self.agreement
            && (std::mem::take(&mut self.applying.has_input) || agreement.timeout() <= now)
        {
            agreement.turn(now);
            self.applying.has_more = true;
        }
    }

    /// Takes steps until there is an event for the host or a batch to apply.
    pub(super) fn take_steps(&mut self, now: Time) {
        for _ in 0..STEPS_AT_ONCE {
            if self.applying.batch.is_some() || !self.events.is_empty() {
                return;
            }
            if self.fetch_bodies() {
                continue;
            }
            let Some(agreement) = &mut self.agreement else { return };
            // The answer to the last step may bring the next one.
            let step = agreement.poll().or_else(|| {
                agreement.turn(now);
                agreement.poll()
            });
            let Some(step) = step else {
                self.applying.has_more = false;
                return;
            };
            self.applying.has_more = true;
            self.step(step);
        }
    }

    fn step(&mut self, step: Step) {
        let Some(agreement) = &mut self.agreement else { return };
        match step {
            Step::Leads { term } => {
                self.proposals.restart(self.state.now());
                self.events.push_back(ReplicaEvent::Leads { term });
            }
            Step::Follows => {
                self.proposals.restart(self.state.now());
                self.applied = self.proposals.last();
                self.reads_held.clear();
                self.repair.end_reads();
                self.events.push_back(ReplicaEvent::Follows);
            }
            Step::Commit(CommittedBatch { index, number, bytes }) => {
                // Entries in between are the agreement's own.
                if index > self.state.applied() + 1 {
                    self.state.pass_over(index - 1);
                    self.passed_over = index - 1;
                }
                self.applying.batch = Some(Batch { index, number, bytes });
            }
            Step::PassOver(index) => {
                self.state.pass_over(index);
                self.passed_over = index;
                agreement.done();
            }
            Step::BeginCheckpoint => {
                self.state.begin_checkpoint();
                agreement.done();
            }
            Step::WriteParts { budget } => {
                let put = &mut |part, bytes: &[u8]| agreement.put(part, bytes);
                let is_last = self.state.write_parts(budget, &mut |part, bytes| write_part(part, bytes, put));
                agreement.wrote(is_last);
            }
            Step::BeginRestore => {
                self.applying.restoring = Some(Box::new(Shard::new(self.id.0, self.applying.hash_key)));
                agreement.done();
            }
            Step::RestorePart { part, bytes } => {
                let state = self.applying.restoring.as_mut();
                let restored = state.map(|state| state.restore_part(PartId::from_u32(part), &bytes));
                match restored {
                    Some(Ok(())) => agreement.done(),
                    Some(Err(error)) => agreement.refuse(&error.to_string()),
                    None => agreement.refuse("a part without a beginning"),
                }
            }
            Step::Prepare { index } => {
                let restored = self.applying.restoring.as_mut().map(|state| state.restored(index));
                match restored {
                    Some(Ok(())) => self.applying.fetching = Some(Fetching::default()),
                    Some(Err(error)) => agreement.refuse(&error.to_string()),
                    None => agreement.refuse("an end without a beginning"),
                }
            }
            Step::Restored => match self.applying.restoring.take() {
                Some(state) => {
                    let filters =
                        self.state.filters().into_iter().map(|text| text.into_owned().into()).collect();
                    self.events.push_back(ReplicaEvent::Restored { filters });
                    self.state = *state;
                    self.counters.restored += 1;
                    agreement.done();
                    self.checkpointing.begin_again();
                    self.repair.begin_again();
                    self.report_live();
                }
                None => agreement.refuse("no state was read"),
            },
            Step::AbandonRestore => (self.applying.restoring, self.applying.fetching) = (None, None),
            Step::Bodies(bodies) => self.bodies_came(bodies),
            Step::Sought(bodies) => self.sought(bodies),
            Step::Unreadable(keys) => self.repair.add_for_others(keys),
            Step::Readable(number) => self.events.push_back(ReplicaEvent::Readable(number)),
            Step::Vacate(vacate) => self.vacate(vacate),
        }
    }

    /// Continues to fetch the messages of a received state. Returns whether there may be more to do at once.
    fn fetch_bodies(&mut self) -> bool {
        let Applying { fetching, restoring, .. } = &mut self.applying;
        let (Some(current), Some(state)) = (fetching.as_mut(), restoring.as_ref()) else { return false };
        let (Some(agreement), Some(log)) = (&mut self.agreement, &self.log) else { return false };
        if self.condition == Condition::Full {
            (*fetching, *restoring) = (None, None);
            agreement.prepared(false);
            return true;
        }
        if let Some(cursor) = current.cursor {
            // A batch that was applied here is in the log here, unless nothing needed it any more. One that other nodes
            // have and this one not yet may be lost with the process.
            let here = self.state.applied().min(agreement.durable());
            let is_here = |index| index <= here && log.has_bodies(self.id, index);
            let found = state.needed_messages(|index| !is_here(index), cursor, LOOKED_AT_AT_ONCE);
            current.left.extend(found.messages);
            current.cursor = found.cursor;
            return true;
        }
        if mutated(Mutation::DropBodies) {
            current.left.clear();
        }
        if current.is_asked {
            return false;
        }
        if current.is_write_due() {
            // The log has one write at a time, so that few messages wait for the disk.
            if !self.checkpointing.all_kept_durable() {
                return false;
            }
            if !current.arrived.is_empty() {
                self.checkpointing.fetched(current.arrived.len());
                log.append_bodies(self.id, std::mem::take(&mut current.arrived));
                current.arrived_bytes = 0;
                return true;
            }
        }
        let next = take_some(&mut current.left, FETCHED_BYTES_AT_ONCE);
        if !next.is_empty() {
            current.is_asked = true;
            agreement.fetch(next);
            return false;
        }
        *fetching = None;
        agreement.prepared(true);
        true
    }

    /// Takes messages of a received state. [`Self::fetch_bodies`] writes them, so that a sync is for many of them.
    fn bodies_came(&mut self, bodies: Vec<(u64, Vec<u8>)>) {
        let Some(current) = &mut self.applying.fetching else { return };
        current.is_asked = false;
        current.arrived_bytes += bodies.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
        self.counters.fetched += bodies.len() as u64;
        current.arrived.extend(bodies);
    }
}
