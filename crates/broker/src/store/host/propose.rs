//! Commands that wait for their answers, and the effects of batches that are applied.

use std::collections::VecDeque;
use std::sync::Arc;

use mqtt::{PacketId, ReasonCode};
use shard::{Command, SessionUid};

use super::payers::RetainedCharge;
use super::{Claim, ShardHost, ShardOutput};
use crate::batch::Token;
use crate::ids::{ConnectionId, GroupId, ShardSet, Ticket, Time};
use crate::message::Message;
use crate::route::Options;
use crate::shapes::ShapeReservations;
use crate::store::replica::{self, Committed, ReplicaEvent, Urgency};
use crate::store::{Acknowledgement, Identity};

/// Number of effects of one batch before other shards have their turn, without a log. A worker may have all shards.
const EFFECTS_AT_ONCE: usize = 512;
/// Number of lists whose memory is kept, and the maximum commands of each.
const SPARES: usize = 2;
const SPARE_COMMANDS: usize = 1024;

/// Continuations of proposed commands. A batch without a command of the host has none.
#[derive(Default)]
pub(super) struct Continuations {
    /// Continuations of the last batch.
    last: OfBatch,
    /// Continuations of earlier batches that are not applied yet, oldest first.
    earlier: VecDeque<OfBatch>,
    /// Memory of lists, for later batches.
    spare: Vec<Vec<Continuation>>,
}

/// Continuations of the commands of one batch, by their ordinals.
#[derive(Default)]
struct OfBatch {
    number: u64,
    list: Vec<Continuation>,
}

/// Reason why a delivery is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SkipReason {
    Expired,
    /// The disk cannot return the message.
    Unreadable,
}

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
        /// Reason for the group when the session has ended.
        gone: ReasonCode,
    },
    Retain {
        append: Option<u32>,
        charge: RetainedCharge,
    },
    Acknowledge {
        session: SessionUid,
        epoch: u32,
        connection: ConnectionId,
        packet_id: PacketId,
        kind: Acknowledgement,
    },
    Skip {
        session: SessionUid,
        n: u64,
        epoch: u32,
        reason: SkipReason,
    },
    Token(Token),
    Released {
        connection: ConnectionId,
        packet_id: PacketId,
    },
    /// The shard has forgotten an identity.
    Forgotten(Identity),
    /// A Tick or Sweep.
    Clock,
    Overdue(SessionUid),
    /// A Will or an orphan is queued. Afterwards nothing sends it again, and these shards may forget its identity.
    Forget {
        identity: Identity,
        shards: ShardSet,
    },
    /// An operator deletes a retained message.
    Delete(Token, RetainedCharge),
}

impl Continuations {
    #[inline]
    fn push(&mut self, ticket: replica::Ticket, continuation: Continuation) {
        if self.last.number != ticket.number {
            self.begin(ticket.number);
        }
        // The batch may contain commands of the replica too.
        while self.last.list.len() < ticket.ordinal as usize {
            self.last.list.push(Continuation::Nobody);
        }
        self.last.list.push(continuation);
    }

    fn begin(&mut self, number: u64) {
        if !self.last.list.is_empty() {
            let list = self.take_last();
            self.earlier.push_back(OfBatch { number: self.last.number, list });
        }
        self.last.number = number;
    }

    /// Takes the list of the last batch, and leaves memory for the next one.
    #[inline]
    fn take_last(&mut self) -> Vec<Continuation> {
        std::mem::replace(&mut self.last.list, self.spare.pop().unwrap_or_default())
    }

    /// Takes the list of a batch that is being applied. [`Self::put_back`] or [`Self::reuse`] must follow.
    #[inline]
    fn take(&mut self, number: u64) -> Vec<Continuation> {
        match self.earlier.pop_front_if(|first| first.number == number) {
            Some(first) => first.list,
            None if self.last.number == number => self.take_last(),
            None => Vec::new(),
        }
    }

    /// Puts the list back, for the next portion of its batch.
    fn put_back(&mut self, number: u64, list: Vec<Continuation>) {
        self.earlier.push_front(OfBatch { number, list });
    }

    /// Keeps the memory of a list whose batch was applied.
    #[inline]
    fn reuse(&mut self, mut list: Vec<Continuation>) {
        list.clear();
        let has_memory = (1..=SPARE_COMMANDS).contains(&list.capacity());
        if has_memory && self.spare.len() < SPARES {
            self.spare.push(list);
        }
    }
}

impl ShardHost {
    /// Proposes a command.
    pub(super) fn propose(&mut self, now: Time, command: &Command<'_>, continuation: Continuation) {
        let ticket = self.ask(now, command, Urgency::Now);
        self.continuations.push(ticket, continuation);
    }

    /// Proposes a command for which no request waits.
    pub(super) fn propose_later(&mut self, now: Time, command: &Command<'_>, continuation: Continuation) {
        let ticket = self.ask(now, command, Urgency::Later);
        self.continuations.push(ticket, continuation);
    }

    /// Proposes a command whose continuation [`Self::continue_with`] sets.
    #[inline]
    pub(super) fn ask(&mut self, now: Time, command: &Command<'_>, urgency: Urgency) -> replica::Ticket {
        let number = if self.producers.is_asking() { self.number_of(command) } else { None };
        self.replica.propose(now, command, number, urgency)
    }

    /// Sets the continuation of a command that borrowed from its data.
    pub(super) fn continue_with(&mut self, ticket: replica::Ticket, continuation: Continuation) {
        self.continuations.push(ticket, continuation);
    }

    /// Applies the proposals, and proposals that result from them, without a log. The rest is left for the next tick
    /// when it is too much for now.
    pub(super) fn apply_at_once(&mut self, now: Time, out: &mut ShardOutput) {
        if self.replica.has_log() {
            return;
        }
        let mut effects = 0;
        loop {
            self.replica.end_turn(now, true);
            if effects >= EFFECTS_AT_ONCE || !self.replica.has_event() {
                return;
            }
            let Some(had) = self.next_replica_event(now, EFFECTS_AT_ONCE, out) else { return };
            effects += had;
        }
    }

    /// Returns whether a batch that no request waits for has been open for long enough.
    pub fn batch_is_due(&self, now: Time) -> bool {
        self.replica.batch_is_due(now)
    }

    /// Ends a turn, with a log: passes the open batch to it. A batch that no request waits for is passed only when
    /// `all` is set.
    pub fn end_turn(&mut self, now: Time, all: bool) {
        self.replica.end_turn(now, all);
    }

    /// Reports to the log how much of it is needed.
    pub fn report_live(&self) {
        self.replica.report_live();
    }

    /// Handles the next event of the replica, of about `effects_max` effects. Returns their number, which is at least
    /// one for a batch, or `None` without an event.
    pub(super) fn next_replica_event(
        &mut self,
        now: Time,
        effects_max: usize,
        out: &mut ShardOutput,
    ) -> Option<usize> {
        match self.replica.poll_event(now, effects_max)? {
            ReplicaEvent::Leads { term } => self.serve(now, term, out),
            ReplicaEvent::Follows => self.has_ended = true,
            // A replica that leads receives no state.
            ReplicaEvent::Restored { filters } => self.routes.restore(&filters, self.replica.state()),
            ReplicaEvent::Committed(committed) => {
                return Some(self.committed(now, committed, effects_max, out));
            }
            ReplicaEvent::Read(read) => self.was_read(now, read, out),
            ReplicaEvent::Readable(number) => self.barrier_passed(number),
        }
        Some(0)
    }

    pub(super) fn committed(
        &mut self,
        now: Time,
        Committed { index, number, mut effects, is_whole }: Committed,
        effects_max: usize,
        out: &mut ShardOutput,
    ) -> usize {
        let mut continuations = number.map(|number| self.continuations.take(number)).unwrap_or_default();
        let count = effects.len();
        self.routes.begin(index);
        for effect in effects.drain(..) {
            self.effect(now, effect, &mut continuations, out);
        }
        self.replica.reuse(effects);
        if is_whole {
            self.routes.end();
        }
        match number {
            Some(number) if !is_whole => self.continuations.put_back(number, continuations),
            _ => self.continuations.reuse(continuations),
        }
        self.count_sessions();
        self.pump_touched(now, out);
        if self.replica.state().sweeping() {
            self.sweep(now);
        }
        // A portion may be spent on parts of a checkpoint alone.
        if is_whole { count.max(1) } else { count.max(effects_max) }
    }
}
