//! Path from requests to batches, and from durable batches to the state.

use std::collections::VecDeque;
use std::sync::Arc;

use mqtt::PacketId;
use shard::{BatchBuilder, CLOCK_STEP_MAX_MS, Command, ELAPSED_MAX_MS, SessionUid};

use super::payers::RetainedCharge;
use super::{Claim, ShardHost, ShardOutput};
use crate::batch::Token;
use crate::ids::{ConnectionId, GroupId, Ticket, Time};
use crate::message::Message;
use crate::route::Options;
use crate::shapes::ShapeReservations;
use crate::store::{Acknowledgement, Identity};

/// Batches on their way to the log.
#[derive(Default)]
pub(super) struct Proposals {
    open: Option<Open>,
    /// Continuations of the commands of the open batch, in their order.
    continuations: Vec<Continuation>,
    /// Batches that are not durable yet, oldest first.
    underway: VecDeque<Underway>,
    /// Index of the last batch that was made.
    last_index: u64,
    /// Clock of the state after all of them are applied, in milliseconds.
    clock: u64,
    /// Memory of applied batches, for later ones.
    spare: Vec<(Arc<Vec<u8>>, Vec<Continuation>)>,
}

/// The batch of this turn, or of a few turns while no request waits for it.
struct Open {
    batch: BatchBuilder,
    /// Allocation that the batch will be shared in; empty until then.
    shared: Arc<Vec<u8>>,
    since: Time,
    /// A request waits for a command in the batch.
    urgent: bool,
}

/// A batch that is not durable yet, and the continuations of its commands.
pub(super) struct Underway {
    pub index: u64,
    pub bytes: Arc<Vec<u8>>,
    pub continuations: Vec<Continuation>,
}

/// Urgency of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// A request waits for the answer.
    Now,
    /// No request waits: the command goes with the next batch that one waits for, or after [`LAZY_MS`]. Until then a
    /// crash loses it. So the command must be for something that may as well not have arrived yet, such as a PUBACK:
    /// the message is then sent again with DUP.
    Later,
}

/// Maximum time for which a batch that no request waits for stays open. A client whose window such a command would open
/// waits for it, so then the batch is urgent.
const LAZY_MS: u64 = 10;
/// Number of applied batches whose memory is kept, and the maximum bytes and commands of each.
const SPARES: usize = 2;
const SPARE_BYTES: usize = 256 * 1024;
const SPARE_COMMANDS: usize = 1024;
/// Number of effects of one batch before other shards have their turn, without a log. A worker has up to 16 shards.
const EFFECTS_AT_ONCE: usize = 512;
/// Number of effects whose memory is kept.
const EFFECTS_KEPT: usize = 4096;

/// Origin of a command, with the data that the answer needs.
#[derive(Debug)]
pub(super) enum Continuation {
    /// The answer is ignored.
    Nobody,
    Claim(Box<Claim>),
    Release(Arc<str>),
    Subscribe {
        session: SessionUid,
        reply: (ConnectionId, Ticket),
        filters: Vec<(Box<str>, Options, u32)>,
        shapes: Option<Arc<ShapeReservations>>,
    },
    Unsubscribe {
        session: SessionUid,
        reply: Option<(ConnectionId, Ticket)>,
        filters: Vec<Box<str>>,
    },
    /// `append` is completed when the message is queued.
    Publish {
        message: Message,
        append: Option<u32>,
    },
    Enqueue {
        message: Message,
        append: Option<u32>,
        group: Option<GroupId>,
    },
    Retain {
        append: Option<u32>,
        charge: RetainedCharge,
    },
    Acknowledge {
        session: SessionUid,
        connection: ConnectionId,
        packet_id: PacketId,
        kind: Acknowledgement,
    },
    Skip {
        session: SessionUid,
    },
    Token(Token),
    Released {
        connection: ConnectionId,
        packet_id: PacketId,
    },
    /// A Tick or Sweep.
    Clock {
        sweep: bool,
    },
    Overdue(SessionUid),
    /// A Will or an orphan is queued. Afterwards nothing sends it again, and these shards may forget its identity.
    Forget {
        identity: Identity,
        shards: u16,
    },
    /// A message is moved out of a segment that is freed; `references` deliveries and orphans use it.
    Rewrite {
        segment: u64,
        references: usize,
    },
    /// An operator deletes a retained message.
    Delete(Token, RetainedCharge),
}

impl Proposals {
    /// Makes batches for a state that has applied `index` and whose clock stands at `clock`.
    pub fn starting_after(index: u64, clock: u64) -> Self {
        Self { last_index: index, clock, ..Self::default() }
    }

    /// The open batch; created when there is none.
    fn opened(&mut self, now: Time) -> &mut Open {
        let (spare, continuations) = (&mut self.spare, &mut self.continuations);
        self.open.get_or_insert_with(|| {
            let (mut shared, spare_continuations) = spare.pop().unwrap_or_default();
            *continuations = spare_continuations;
            let memory = Arc::get_mut(&mut shared).map(std::mem::take).unwrap_or_default();
            Open { batch: BatchBuilder::in_memory_of(memory, now.0), shared, since: now, urgent: false }
        })
    }

    fn close(&mut self) -> Option<Underway> {
        let Open { batch, shared: mut bytes, .. } = self.open.take()?;
        let built = batch.finish();
        match Arc::get_mut(&mut bytes) {
            Some(empty) => *empty = built,
            None => bytes = Arc::new(built),
        }
        self.last_index += 1;
        Some(Underway {
            index: self.last_index,
            bytes,
            continuations: std::mem::take(&mut self.continuations),
        })
    }

    /// Keeps the memory of an applied batch.
    fn recycle(&mut self, mut bytes: Arc<Vec<u8>>, mut continuations: Vec<Continuation>) {
        continuations.clear();
        let is_ours = Arc::get_mut(&mut bytes).is_some();
        let is_small = bytes.capacity() <= SPARE_BYTES && continuations.capacity() <= SPARE_COMMANDS;
        if is_ours && is_small && self.spare.len() < SPARES {
            self.spare.push((bytes, continuations));
        }
    }

    /// Time at which the open batch goes to the log by itself; [`Time::NEVER`] without one.
    pub fn due(&self) -> Time {
        self.open
            .as_ref()
            .map_or(Time::NEVER, |open| open.since.after(std::time::Duration::from_millis(LAZY_MS)))
    }

    /// Makes the open batch urgent.
    pub fn hurry(&mut self) {
        if let Some(open) = &mut self.open {
            open.urgent = true;
        }
    }

    /// Index that the open batch will have, or that the last one had.
    pub fn index(&self) -> u64 {
        self.last_index + u64::from(self.open.is_some())
    }

    /// Returns whether batches are in progress. Without a log, requests wait only for their turn.
    pub fn has_underway(&self) -> bool {
        !self.underway.is_empty()
    }

    pub fn is_idle(&self) -> bool {
        self.open.is_none() && self.underway.is_empty()
    }
}

impl ShardHost {
    /// Adds a command to the open batch.
    pub(super) fn propose(&mut self, now: Time, command: &Command<'_>, continuation: Continuation) {
        self.push(now, command, Urgency::Now);
        self.push_continuation(continuation);
    }

    /// Adds a command for which no request waits.
    pub(super) fn propose_later(&mut self, now: Time, command: &Command<'_>, continuation: Continuation) {
        self.push(now, command, Urgency::Later);
        self.push_continuation(continuation);
    }

    /// Adds a command to the open batch. [`Self::push_continuation`] must follow, with the data that the command
    /// borrows from.
    pub(super) fn push(&mut self, now: Time, command: &Command<'_>, urgency: Urgency) {
        self.catch_up(now);
        let open = self.proposals.opened(now);
        // A batch may stay open for some turns.
        open.batch.advance(now.0);
        open.urgent |= urgency == Urgency::Now;
        open.batch.push(command);
    }

    /// Moves the state's clock forward. A batch moves it by a bounded step: after a long pause several batches are
    /// needed, or a session that starts now would start in the past.
    fn catch_up(&mut self, now: Time) {
        while self.proposals.clock.saturating_add(CLOCK_STEP_MAX_MS) < now.0 {
            self.close_batch();
            self.step_clock();
        }
        self.proposals.clock = self.proposals.clock.max(now.0);
    }

    fn step_clock(&mut self) {
        self.proposals.clock += CLOCK_STEP_MAX_MS;
        let step = Time(self.proposals.clock);
        self.proposals.opened(step).batch.push(&Command::Tick);
        self.push_continuation(Continuation::Nobody);
        self.close_batch();
    }

    /// Proposes the start of an incarnation: clients that were connected at the end of the previous one are
    /// disconnected as of now. The time in between is covered by one command. A shard that was idle before may lack
    /// more time than that command covers, and catches up first: otherwise its sessions would be released in the past.
    pub(super) fn propose_start(&mut self, now: Time, incarnation: u64) {
        while self.proposals.clock.saturating_add(ELAPSED_MAX_MS) < now.0 {
            self.step_clock();
        }
        let elapsed_ms = now.0.saturating_sub(self.proposals.clock);
        self.proposals.clock = self.proposals.clock.max(now.0);
        self.propose(now, &Command::Started { incarnation, elapsed_ms }, Continuation::Nobody);
    }

    pub(super) fn push_continuation(&mut self, continuation: Continuation) {
        self.proposals.continuations.push(continuation);
        if self.proposals.open.as_ref().is_some_and(|open| open.batch.is_full()) {
            self.close_batch();
        }
    }

    /// Makes sure that the next commands, of so many bytes, fit into the open batch, which has at most `max`.
    pub(super) fn make_room_in_batch(&mut self, bytes: usize, max: usize) {
        let len = self.proposals.open.as_ref().map_or(0, |open| open.batch.len());
        if len + bytes > max {
            self.close_batch();
        }
    }

    fn close_batch(&mut self) {
        let Some(batch) = self.proposals.close() else { return };
        if let Some(log) = &self.log {
            self.checkpointing.appended(batch.bytes.len());
            log.append(self.id, batch.index, batch.bytes.clone());
        }
        self.proposals.underway.push_back(batch);
    }

    /// Applies the proposals, and proposals that result from them, without a log. The rest is left for the next tick
    /// when it is too much for now.
    pub(super) fn apply_at_once(&mut self, now: Time, out: &mut ShardOutput) {
        if self.log.is_some() {
            return;
        }
        let mut effects = 0;
        loop {
            self.close_batch();
            if effects >= EFFECTS_AT_ONCE || self.proposals.underway.is_empty() {
                return;
            }
            effects += self.apply_next(now, EFFECTS_AT_ONCE, out);
        }
    }

    /// Returns whether a batch that no request waits for has been open for long enough.
    pub fn batch_is_due(&self, now: Time) -> bool {
        self.proposals.due() <= now
    }

    /// Ends a turn, with a log: passes the open batch to it. A batch that no request waits for is passed only when
    /// `all` is set.
    pub fn end_turn(&mut self, all: bool) {
        let urgent = self.proposals.open.as_ref().is_some_and(|open| open.urgent);
        if urgent || all {
            self.close_batch();
        }
    }

    /// Applies durable batches up to `index` until about `effects_max` effects were handled. Returns their number;
    /// [`Self::has_applied`] says whether any are left.
    pub(crate) fn durable(
        &mut self,
        now: Time,
        index: u64,
        effects_max: usize,
        out: &mut ShardOutput,
    ) -> usize {
        let mut effects = 0;
        let is_durable = |batch: &Underway| batch.index <= index;
        while effects < effects_max && self.proposals.underway.front().is_some_and(is_durable) {
            effects += self.apply_next(now, effects_max - effects, out);
        }
        effects
    }

    /// Applies the oldest batch, or continues with it. Returns the number of effects, at least one.
    fn apply_next(&mut self, now: Time, effects_max: usize, out: &mut ShardOutput) -> usize {
        let Some(mut batch) = self.proposals.underway.pop_front() else { return 1 };
        let mut effects = std::mem::take(&mut self.effects);
        let applied = self.state.apply_some(batch.index, &batch.bytes, effects_max, &mut effects);
        let is_applied = applied.expect("the log returns the shard's own batches in order");
        self.ages.note(batch.index, now);
        let count = effects.len();
        for effect in effects.drain(..) {
            self.effect(now, effect, &mut batch.continuations, out);
        }
        // A message for very many sessions has as many effects.
        effects.shrink_to(EFFECTS_KEPT);
        self.effects = effects;
        if is_applied {
            self.proposals.recycle(batch.bytes, batch.continuations);
        } else {
            self.proposals.underway.push_front(batch);
        }
        self.pump_touched(now, out);
        // A portion may be spent on parts of a checkpoint alone.
        if is_applied { count.max(1) } else { count.max(effects_max) }
    }
}
