//! From requests to batches, and from batches that are durable to the state.

use std::collections::VecDeque;
use std::sync::Arc;

use mqtt::PacketId;
use shard::{BatchBuilder, CLOCK_STEP_MAX_MS, Command, SessionUid};

use super::{Claim, ShardHost, ShardOutput};
use crate::ids::{ConnectionId, GroupId, Ticket, Time};
use crate::mail::Token;
use crate::message::Message;
use crate::route::Options;
use crate::store::{Acknowledgement, Identity};

/// Batches on their way to the log.
#[derive(Default)]
pub(super) struct Proposals {
    open: Option<BatchBuilder>,
    /// Who asked for the commands of the open batch, in their order.
    asked: Vec<Asked>,
    /// Not yet durable, oldest first.
    underway: VecDeque<Underway>,
    /// Of the last batch that was made.
    last_index: u64,
    /// The state's clock when all of them are applied, ms.
    clock: u64,
}

/// A batch that is not durable yet, and who asked for what is in it.
pub(super) struct Underway {
    pub index: u64,
    pub bytes: Arc<[u8]>,
    pub asked: Vec<Asked>,
}

/// Who asked for a command, and what answering takes.
#[derive(Debug)]
pub(super) enum Asked {
    /// The answer is of no interest.
    Nobody,
    Claim(Box<Claim>),
    Release(Arc<str>),
    Subscribe {
        session: SessionUid,
        reply: (ConnectionId, Ticket),
        filters: Vec<(Box<str>, Options, u32)>,
    },
    Unsubscribe {
        session: SessionUid,
        reply: Option<(ConnectionId, Ticket)>,
        filters: Vec<Box<str>>,
    },
    /// `append` is told when the message has its places.
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
    /// Tick or Sweep.
    Clock {
        sweep: bool,
    },
    Overdue(SessionUid),
    /// A Will has its places; afterwards nobody publishes it again.
    WillDone {
        identity: Identity,
        shards: u16,
    },
    /// An operator deletes a retained message.
    Delete(Token),
}

impl Proposals {
    /// Batches for a state that has applied `index` and whose clock stands at `clock`.
    pub fn starting_after(index: u64, clock: u64) -> Self {
        Self { last_index: index, clock, ..Self::default() }
    }

    fn close(&mut self) -> Option<Underway> {
        let bytes = self.open.take()?.finish();
        self.last_index += 1;
        Some(Underway { index: self.last_index, bytes: bytes.into(), asked: std::mem::take(&mut self.asked) })
    }

    /// The index that the open batch will have, or the last one had.
    pub fn index(&self) -> u64 {
        self.last_index + u64::from(self.open.is_some())
    }

    pub fn is_idle(&self) -> bool {
        self.open.is_none() && self.underway.is_empty()
    }
}

impl ShardHost {
    /// Adds a command to the open batch.
    pub(super) fn propose(&mut self, now: Time, command: &Command<'_>, asked: Asked) {
        self.push(now, command);
        self.asked(asked);
    }

    /// Adds a command to the open batch; [`Self::asked`] has to follow, with what the command borrows from.
    pub(super) fn push(&mut self, now: Time, command: &Command<'_>) {
        if self.proposals.open.is_none() {
            self.catch_up(now);
        }
        self.proposals.open.get_or_insert_with(|| BatchBuilder::new(now.0)).push(command);
    }

    /// A batch moves the state's clock by a bounded step: after a long silence there have to be several, or what begins now would begin
    /// in the past.
    fn catch_up(&mut self, now: Time) {
        while self.proposals.clock.saturating_add(CLOCK_STEP_MAX_MS) < now.0 {
            self.proposals.clock += CLOCK_STEP_MAX_MS;
            let mut step = BatchBuilder::new(self.proposals.clock);
            step.push(&Command::Tick);
            self.proposals.open = Some(step);
            self.asked(Asked::Nobody);
            self.close_batch();
        }
        self.proposals.clock = self.proposals.clock.max(now.0);
    }

    pub(super) fn asked(&mut self, asked: Asked) {
        self.proposals.asked.push(asked);
        if self.proposals.open.as_ref().is_some_and(BatchBuilder::is_full) {
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

    /// Without a log: applies what was proposed, and what comes of that.
    pub(super) fn apply_at_once(&mut self, now: Time, out: &mut ShardOutput) {
        if self.log.is_some() {
            return;
        }
        loop {
            self.close_batch();
            let Some(batch) = self.proposals.underway.pop_front() else { return };
            self.apply_batch(now, batch, out);
        }
    }

    /// The end of a turn: the open batch goes to the log.
    pub fn end_turn(&mut self) {
        if self.log.is_some() {
            self.close_batch();
        }
    }

    /// Batches up to `index` are durable.
    pub(super) fn durable(&mut self, now: Time, index: u64, out: &mut ShardOutput) {
        while let Some(batch) = self.proposals.underway.pop_front_if(|batch| batch.index <= index) {
            self.apply_batch(now, batch, out);
        }
    }

    fn apply_batch(&mut self, now: Time, batch: Underway, out: &mut ShardOutput) {
        let Underway { index, bytes, mut asked } = batch;
        let mut effects = std::mem::take(&mut self.effects);
        self.state.apply(index, &bytes, &mut effects).expect("a batch of our own, in order");
        for effect in effects.drain(..) {
            self.effect(now, effect, &mut asked, out);
        }
        self.effects = effects;
        self.pump_touched(now, out);
    }
}
