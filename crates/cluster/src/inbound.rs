use broker::peers::{Copies, Forwarded, Inbound, NodeIndex};
use broker::{ConnectionId, Ticket, Token, WorkerId};
use link::{Credit, Lane, NodeId};
use mqtt::ReasonCode;
use slab::Slab;

/// Batches for the workers at the end of the turn, and the credits of peers' messages until the workers have handled
/// them.
#[derive(Debug)]
pub struct InboundQueues {
    by_worker: Vec<Queue>,
    /// Credits of messages that workers have, by the key of their batch.
    taken: Slab<Vec<(NodeId, Credit)>>,
}

#[derive(Debug, Default)]
struct Queue {
    inbound: Inbound,
    /// Credits of the messages in `inbound`.
    credits: Vec<(NodeId, Credit)>,
}

impl InboundQueues {
    pub fn new(workers: usize) -> Self {
        Self { by_worker: (0..workers).map(|_| Queue::default()).collect(), taken: Slab::new() }
    }

    /// Queues a peer's message for the worker of its lane.
    pub fn push_message(&mut self, from: NodeId, lane: Lane, message: Forwarded, credit: Credit) {
        let worker = usize::from(lane.index()) % self.by_worker.len();
        let queue = &mut self.by_worker[worker];
        queue.inbound.messages.push(message);
        queue.credits.push((from, credit));
    }

    /// Answers the publisher that waits with a token.
    pub fn acknowledge(&mut self, worker: WorkerId, token: Token, reason: ReasonCode) {
        self.by_worker[worker.index()].inbound.acknowledged.push((token, reason));
    }

    /// Releases a SUBACK. `is_known`: the nodes that must know the subscription know it.
    pub fn announce(&mut self, connection: ConnectionId, ticket: Ticket, is_known: bool) {
        self.by_worker[connection.worker.index()].inbound.announced.push((connection, ticket, is_known));
    }

    /// Asks all workers to copy their retained messages to a node.
    pub fn copy_to(&mut self, node: NodeIndex, copies: Copies) {
        self.by_worker.iter_mut().for_each(|queue| queue.inbound.copies.push((node, copies)));
    }

    /// Takes the batches of this turn.
    pub fn drain(&mut self) -> impl Iterator<Item = (WorkerId, Inbound)> {
        let Self { by_worker, taken } = self;
        let queues = by_worker.iter_mut().enumerate().filter(|(_, queue)| !queue.inbound.is_empty());
        queues.map(|(worker, queue)| {
            let mut inbound = std::mem::take(&mut queue.inbound);
            if !inbound.messages.is_empty() {
                inbound.key = taken.insert(std::mem::take(&mut queue.credits)) as u32;
            }
            (WorkerId(worker as u16), inbound)
        })
    }

    /// Returns the credits of a batch that its worker has handled. Each batch has them once.
    pub fn handled(&mut self, key: u32) -> Vec<(NodeId, Credit)> {
        self.taken.try_remove(key as usize).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_gets_one_batch_a_turn() {
        let mut queues = InboundQueues::new(3);
        let token = Token::Append { shard: broker::ShardId(0), key: 7 };
        queues.acknowledge(WorkerId(2), token, ReasonCode::Success);
        queues.acknowledge(WorkerId(2), token, ReasonCode::QuotaExceeded);
        let batches: Vec<_> = queues.drain().collect();
        assert_eq!(batches.len(), 1, "workers without input get nothing");
        assert_eq!((batches[0].0, batches[0].1.acknowledged.len()), (WorkerId(2), 2));
        assert_eq!(queues.drain().count(), 0);
        queues.copy_to(NodeIndex(1), Copies::All);
        assert_eq!(queues.drain().count(), 3);
        assert!(queues.handled(0).is_empty(), "no batch had messages");
    }
}
