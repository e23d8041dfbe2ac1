//! Batches for the workers of the node, filled in one turn.

use mqtt::ReasonCode;

use crate::batch::{Batch, FlushWaiter, Token, WorkerCommand};
use crate::groups::GroupRequest;
use crate::ids::{ShardId, WorkerId};
use crate::store::Request;
use crate::store::wire::ShardAnswer;

/// Batches that each worker gets at the end of the turn, including the worker that fills them.
///
/// **Invariant:** what one worker gets is in the order in which it was queued, within each kind.
pub(super) struct Outbox {
    own: WorkerId,
    batches: Vec<Batch>,
    /// Memory of the next batch for the own worker.
    spare: Batch,
    /// Parties to notify once the batches of this turn are sent.
    flush_waiters: Vec<FlushWaiter>,
    last_ticket: u32,
    /// Requests wait here until they have numbers: other nodes may lead the shards.
    numbers_requests: bool,
    requests: Vec<(ShardId, Request)>,
    /// Answers of shards here for workers of any node, by their lanes.
    answers: Vec<(WorkerId, ShardAnswer)>,
}

impl Outbox {
    pub fn new(own: WorkerId, workers: u16, numbers_requests: bool) -> Self {
        let batches = (0..workers).map(|_| Batch::default()).collect();
        Self {
            own,
            batches,
            spare: Batch::default(),
            flush_waiters: Vec::new(),
            last_ticket: 0,
            numbers_requests,
            requests: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// Queues a command for a worker until the end of the turn. A completion of a shard may be for a lane.
    pub fn post(&mut self, to: WorkerId, command: WorkerCommand) {
        if let Some(batch) = self.batches.get_mut(to.index()) {
            return batch.commands.push(command);
        }
        match command {
            WorkerCommand::Completion(completion) => {
                self.answers.push((to, ShardAnswer::Completion(completion)));
            }
            other => debug_assert!(false, "no command for a lane: {other:?}"),
        }
    }

    /// Queues a request for a shard.
    pub fn request(&mut self, shard: ShardId, request: Request) {
        if self.numbers_requests {
            return self.requests.push((shard, request));
        }
        let host = WorkerId::host_of(shard, self.batches.len() as u16);
        self.post(host, WorkerCommand::Request(shard, request));
    }

    /// Queues a request for the host of shared groups on this node that belongs to a shard.
    pub fn group_request(&mut self, shard: ShardId, request: GroupRequest) {
        let host = WorkerId::host_of(shard, self.batches.len() as u16);
        self.post(host, WorkerCommand::Group(shard, request));
    }

    /// Queues a completion for the worker of the party that waits for it.
    pub fn complete(&mut self, to: WorkerId, token: Token, reason: ReasonCode) {
        if let Some(batch) = self.batches.get_mut(to.index()) {
            return batch.acknowledged.push((token, reason));
        }
        if let Some((lane, number)) = token.as_requested() {
            self.answers.push((lane, ShardAnswer::Acknowledged { number, reason }));
        }
    }

    /// Takes the requests that need numbers.
    pub fn take_requests(&mut self) -> Vec<(ShardId, Request)> {
        std::mem::take(&mut self.requests)
    }

    /// Takes the answers for lanes.
    pub fn take_answers(&mut self) -> Vec<(WorkerId, ShardAnswer)> {
        std::mem::take(&mut self.answers)
    }

    /// Queues the completion of a message whose last receiver has a queue slot. Even a publisher on this worker gets it
    /// later, because it may be in the middle of an operation.
    pub fn complete_later(&mut self, token: Token) {
        let to = match token {
            Token::Publish { connection, .. } => connection.worker,
            Token::Operator { worker, .. }
            | Token::Copy { worker, .. }
            | Token::Forwarded { worker, .. }
            | Token::Requested { lane: worker, .. } => worker,
            // A request to the shard follows, which only a worker sends.
            Token::Append { .. } | Token::Offered { .. } | Token::Groups { .. } => self.own,
        };
        self.complete(to, token, ReasonCode::Success);
    }

    /// Queues a completion for the own worker. The publisher may be in the middle of an operation.
    pub fn complete_here(&mut self, token: Token, reason: ReasonCode) {
        self.complete(self.own, token, reason);
    }

    /// Number for a request for confirmations. None of the last 2^32 requests of this worker has it.
    pub fn flush_ticket(&mut self) -> u32 {
        self.last_ticket = self.last_ticket.wrapping_add(1);
        self.last_ticket
    }

    /// Adds a party to notify once the batches of this turn are sent.
    pub fn await_flush(&mut self, waiter: FlushWaiter) {
        self.flush_waiters.push(waiter);
    }

    /// Notifies the parties that waited for the batches of a turn. Call this after the batches are sent.
    pub fn answer_flushes(&mut self) {
        for waiter in self.flush_waiters.drain(..) {
            self.batches[waiter.worker().index()].commands.push(WorkerCommand::Flushed(waiter));
        }
    }

    pub fn batch(&mut self, to: WorkerId) -> &mut Batch {
        &mut self.batches[to.index()]
    }

    pub fn is_empty(&self) -> bool {
        self.batches.iter().all(Batch::is_empty) && self.requests.is_empty() && self.answers.is_empty()
    }

    /// Takes the batch for the own worker; `None` if it is empty. [`Self::recycle`] gets it back.
    pub fn take_own(&mut self) -> Option<Batch> {
        let own = &mut self.batches[self.own.index()];
        if own.is_empty() {
            return None;
        }
        Some(std::mem::replace(own, std::mem::take(&mut self.spare)))
    }

    /// Keeps the memory of a handled batch. Two batches alternate, because handling one may fill the next.
    pub fn recycle(&mut self, mut batch: Batch) {
        batch.recycle(usize::MAX);
        self.spare = batch;
    }
}
