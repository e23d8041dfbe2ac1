//! Path of commands to the log, in batches.

use std::sync::Arc;
use std::time::Duration;

use shard::{BatchBuilder, CLOCK_STEP_MAX_MS, Command, ELAPSED_MAX_MS, RequestNumber};

use super::{Batch, Replica};
use crate::ids::Time;

/// Batches that this replica makes.
#[derive(Default)]
pub(super) struct Proposals {
    open: Option<Open>,
    /// Number of the last batch that was closed.
    last: u64,
    /// Clock of the state after all of them are applied, in milliseconds.
    clock: u64,
    /// Memory of applied batches, for later ones.
    spare: Vec<Arc<Vec<u8>>>,
}

/// The batch of this turn, or of a few turns while no request waits for it.
struct Open {
    batch: BatchBuilder,
    /// Allocation that the batch will be shared in; empty until then.
    shared: Arc<Vec<u8>>,
    /// Time at which the batch goes to the log by itself.
    due: Time,
    /// A request waits for a command in the batch.
    urgent: bool,
}

/// A batch that is closed.
pub(super) struct Closed {
    pub number: u64,
    pub bytes: Arc<Vec<u8>>,
}

/// Position of a command among those that this replica has proposed: the number of its batch, and its own number in
/// that. The log gives the batch its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Ticket {
    pub number: u64,
    pub ordinal: u32,
}

/// Urgency of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Urgency {
    /// A request waits for the answer.
    Now,
    /// Requests of very many clients wait: the command goes with the next batch that one waits for, or after
    /// [`SOON`].
    Soon,
    /// No request waits: the command goes with the next batch that one waits for, or after [`LATER`]. Until then a
    /// crash loses it. So the command must be for something that may as well not have arrived yet, such as a PUBACK:
    /// the message is then sent again with DUP.
    Later,
}

/// Maximum time for which a batch stays open for more commands of [`Urgency::Soon`].
const SOON: Duration = Duration::from_millis(4);
/// Maximum time for which a batch that no request waits for stays open. A client whose window such a command would open
/// waits for it, so then the batch is urgent.
const LATER: Duration = Duration::from_millis(10);
/// Number of applied batches whose memory is kept, and the maximum bytes of each.
const SPARES: usize = 2;
const SPARE_BYTES: usize = 256 * 1024;

impl Proposals {
    /// Makes batches for a state whose clock stands at `clock`.
    pub fn starting_at(clock: u64) -> Self {
        Self { clock, ..Self::default() }
    }

    /// Begins again, for a state whose clock stands at `clock`. Drops the open batch.
    pub fn restart(&mut self, clock: u64) {
        self.open = None;
        self.clock = clock;
    }

    /// The open batch; created when there is none.
    #[inline]
    fn opened(&mut self, shard_ms: u64) -> &mut Open {
        let spare = &mut self.spare;
        self.open.get_or_insert_with(|| {
            let mut shared = spare.pop().unwrap_or_default();
            let memory = Arc::get_mut(&mut shared).map(std::mem::take).unwrap_or_default();
            Open {
                batch: BatchBuilder::in_memory_of(memory, shard_ms),
                shared,
                due: Time::NEVER,
                urgent: false,
            }
        })
    }

    #[inline]
    fn close(&mut self) -> Option<Closed> {
        let Open { batch, shared: mut bytes, .. } = self.open.take()?;
        let built = batch.finish();
        match Arc::get_mut(&mut bytes) {
            Some(empty) => *empty = built,
            None => bytes = Arc::new(built),
        }
        self.last += 1;
        Some(Closed { number: self.last, bytes })
    }

    /// Keeps the memory of a batch that has been applied.
    #[inline]
    pub fn reuse(&mut self, mut bytes: Arc<Vec<u8>>) {
        let is_ours = Arc::get_mut(&mut bytes).is_some();
        if is_ours && bytes.capacity() <= SPARE_BYTES && self.spare.len() < SPARES {
            self.spare.push(bytes);
        }
    }

    /// Time at which the open batch goes to the log by itself; [`Time::NEVER`] without one.
    pub fn due(&self) -> Time {
        self.open.as_ref().map_or(Time::NEVER, |open| open.due)
    }

    /// Makes the open batch urgent.
    pub fn hurry(&mut self) {
        if let Some(open) = &mut self.open {
            open.urgent = true;
        }
    }

    pub fn has_open(&self) -> bool {
        self.open.is_some()
    }

    /// Number of the last batch that was closed.
    pub fn last(&self) -> u64 {
        self.last
    }
}

impl Replica {
    /// Adds a command to the open batch. `request`: its number, if a node of a cluster has requested it.
    #[inline]
    pub fn propose(
        &mut self,
        now: Time,
        command: &Command<'_>,
        request: Option<RequestNumber>,
        urgency: Urgency,
    ) -> Ticket {
        let shard_ms = self.shard_time(now);
        self.catch_up(shard_ms);
        let number = self.proposals.last + 1;
        let open = self.proposals.opened(shard_ms);
        // A batch may stay open for some turns.
        open.batch.advance(shard_ms);
        match urgency {
            Urgency::Now => open.urgent = true,
            Urgency::Soon => open.due = open.due.min(now.after(SOON)),
            Urgency::Later => open.due = open.due.min(now.after(LATER)),
        }
        let ordinal = open.batch.push_requested(command, request).ordinal;
        if open.batch.is_full() {
            self.close_batch();
        }
        Ticket { number, ordinal }
    }

    /// Moves the state's clock forward. A batch moves it by a bounded step: after a long pause several batches are
    /// needed, or a session that starts now would start in the past. The clock of a new shard has no such bound.
    fn catch_up(&mut self, shard_ms: u64) {
        while self.proposals.clock > 0 && self.proposals.clock.saturating_add(CLOCK_STEP_MAX_MS) < shard_ms {
            self.close_batch();
            self.step_clock();
        }
        self.proposals.clock = self.proposals.clock.max(shard_ms);
    }

    fn step_clock(&mut self) {
        self.proposals.clock += CLOCK_STEP_MAX_MS;
        let step = self.proposals.clock;
        self.proposals.opened(step).batch.push(&Command::Tick);
        self.close_batch();
    }

    /// Proposes the start of an incarnation: clients that were connected at the end of the previous one are
    /// disconnected as of now. The time in between is covered by one command. A shard that was idle before may lack
    /// more time than that command covers, and catches up first: otherwise its sessions would be released in the past.
    pub fn propose_start(&mut self, now: Time, incarnation: u64) {
        let shard_ms = self.shard_time(now);
        while self.proposals.clock.saturating_add(ELAPSED_MAX_MS) < shard_ms {
            self.step_clock();
        }
        let elapsed_ms = shard_ms.saturating_sub(self.proposals.clock);
        self.proposals.clock = self.proposals.clock.max(shard_ms);
        self.propose(now, &Command::Started { incarnation, elapsed_ms }, None, Urgency::Now);
    }

    /// Makes the open batch urgent: it goes to the log at the end of this turn.
    pub fn hurry(&mut self) {
        self.proposals.hurry();
    }

    /// Makes sure that the next commands, `bytes` in size, fit into the open batch. Otherwise closes the batch, which
    /// holds at most `max` bytes.
    pub fn make_room_in_batch(&mut self, bytes: usize, max: usize) {
        let len = self.proposals.open.as_ref().map_or(0, |open| open.batch.len());
        if len + bytes > max {
            self.close_batch();
        }
    }

    fn close_batch(&mut self) {
        let Some(Closed { number, bytes }) = self.proposals.close() else { return };
        if let Some(agreement) = &mut self.agreement {
            self.applying.has_input = true;
            return agreement.propose(number, bytes);
        }
        let index = self.appended.next_index();
        if let Some(log) = &self.log {
            self.checkpointing.appended(bytes.len());
            log.append(self.id, index, bytes.clone());
        } else {
            self.appended.durable = index;
        }
        self.appended.push(Batch { index, number: Some(number), bytes });
    }

    /// Number of the last batch, the open one included.
    pub fn last_proposal(&self) -> u64 {
        self.proposals.last + u64::from(self.proposals.open.is_some())
    }

    /// Returns whether a batch that no request waits for has been open for long enough.
    pub fn batch_is_due(&self, now: Time) -> bool {
        self.proposals.due() <= now
    }

    /// Ends a turn: passes the open batch to the log. A batch that no request waits for is passed only when `all` is
    /// set.
    pub fn end_turn(&mut self, now: Time, all: bool) {
        let is_closed = self.proposals.open.as_ref().is_some_and(|open| open.urgent || all);
        if is_closed {
            self.close_batch();
        }
        self.run_agreement(now);
    }
}
