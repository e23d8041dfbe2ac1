use std::sync::Arc;

use broker::peers::{Copies, Forwarded, Inbound, Leader, MemberIncarnations, NodeIndex, ShardFrame};
use broker::{ConnectionId, PeerFrame, ShardId, Ticket, Token, WorkerId};
use link::{Credit, Lane, NodeId};
use mqtt::ReasonCode;
use slab::Slab;

/// Batches for the workers at the end of the turn, and the credits of peers' messages until the workers have handled
/// them.
#[derive(Debug)]
pub struct InboundQueues {
    by_worker: Vec<Queue>,
    /// Batches that workers have not reported as taken yet, by their keys.
    taken: Slab<Taken>,
}

/// Parts of a batch that count when its worker has handled it.
#[derive(Debug, Default)]
pub struct Taken {
    /// Credits of the messages and frames in it.
    pub credits: Vec<(NodeId, Credit)>,
    /// Nodes in [`Inbound::links_lost`].
    pub links_lost: Vec<u64>,
}

#[derive(Debug, Default)]
struct Queue {
    inbound: Inbound,
    /// Credits of the messages and frames in `inbound`.
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

    /// Notifies a worker of the route position of a shard on a core.
    pub fn reach(&mut self, worker: WorkerId, shard: ShardId, position: u64) {
        self.by_worker[worker.index()].inbound.route_positions.push((shard, position));
    }

    /// Names a node that knows more routes of a shard than this node.
    pub fn name_route_source(&mut self, worker: WorkerId, shard: ShardId, node: NodeId) {
        self.by_worker[worker.index()].inbound.route_sources.push((shard, node.0));
    }

    /// Asks all workers to copy their retained messages to a node.
    pub fn copy_to(&mut self, node: NodeIndex, copies: Copies) {
        self.by_worker.iter_mut().for_each(|queue| queue.inbound.copies.push((node, copies)));
    }

    /// Queues a frame of a shard, or for one, for a worker.
    pub fn push_frame(&mut self, worker: WorkerId, frame: ShardFrame, credit: Credit) {
        let queue = &mut self.by_worker[worker.index()];
        queue.credits.push((NodeId(frame.node), credit));
        queue.inbound.shard_frames.push(frame);
    }

    /// Queues a frame of a replica of a shard for the worker of the shard.
    pub fn push_agreement(&mut self, worker: WorkerId, shard: ShardId, frame: PeerFrame, credit: Credit) {
        let queue = &mut self.by_worker[worker.index()];
        queue.credits.push((NodeId(frame.from), credit));
        queue.inbound.agreement_frames.push((shard, frame));
    }

    /// Drops frames of replicas on a node whose link is lost.
    pub fn lose_agreements(&mut self, node: NodeId) {
        for queue in &mut self.by_worker {
            queue.inbound.agreement_frames.retain(|(_, frame)| frame.from != node.0);
        }
    }

    /// Notifies a worker that frames to a node may be lost. Returns true if one more batch will be reported as taken
    /// for this node.
    pub fn lose_link(&mut self, worker: WorkerId, node: NodeId) -> bool {
        let inbound = &mut self.by_worker[worker.index()].inbound;
        inbound.links_open.retain(|open| *open != node.0);
        inbound.leaders.retain(|(_, leader)| leader.node != node.0);
        let is_new = !inbound.links_lost.contains(&node.0);
        if is_new {
            inbound.links_lost.push(node.0);
        }
        is_new
    }

    /// Notifies a worker that it may send frames to a node.
    pub fn open_link(&mut self, worker: WorkerId, node: NodeId) {
        self.by_worker[worker.index()].inbound.links_open.push(node.0);
    }

    /// Notifies a worker of the leader of a shard.
    pub fn lead(&mut self, worker: WorkerId, shard: ShardId, leader: Leader) {
        let leaders = &mut self.by_worker[worker.index()].inbound.leaders;
        leaders.retain(|(known, _)| *known != shard);
        leaders.push((shard, leader));
    }

    /// Notifies all workers of the incarnation that this node runs in from now on.
    pub fn restart(&mut self, incarnation: u64) {
        self.by_worker.iter_mut().for_each(|queue| queue.inbound.incarnation = Some(incarnation));
    }

    /// Notifies all workers of the members of a new roster.
    pub fn set_members(&mut self, members: &Arc<MemberIncarnations>) {
        self.by_worker.iter_mut().for_each(|queue| queue.inbound.members = Some(members.clone()));
    }

    /// Notifies a worker that a shard that it leads knows each roster that an earlier leader may have known.
    pub fn settle_members(&mut self, worker: WorkerId, shard: ShardId, term: u64) {
        self.by_worker[worker.index()].inbound.members_settled.push((shard, term));
    }

    /// Takes the batches of this turn.
    pub fn drain(&mut self) -> impl Iterator<Item = (WorkerId, Inbound)> {
        let Self { by_worker, taken } = self;
        let queues = by_worker.iter_mut().enumerate().filter(|(_, queue)| !queue.inbound.is_empty());
        queues.map(|(worker, queue)| {
            let mut inbound = std::mem::take(&mut queue.inbound);
            let links_lost = inbound.links_lost.clone();
            if !queue.credits.is_empty() || !links_lost.is_empty() {
                let credits = std::mem::take(&mut queue.credits);
                inbound.key = taken.insert(Taken { credits, links_lost }) as u32;
            }
            (WorkerId(worker as u16), inbound)
        })
    }

    /// Returns the parts that count of a batch that its worker has handled. Each batch has them once.
    pub fn handled(&mut self, key: u32) -> Taken {
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
        assert!(queues.handled(0).credits.is_empty(), "no batch had messages");
    }

    /// A leader that is known before the link is lost may not be asked after it.
    #[test]
    fn a_lost_link_comes_once_a_batch_and_after_it_nothing_of_before() {
        let mut queues = InboundQueues::new(2);
        let (worker, node) = (WorkerId(1), NodeId(7));
        let leader = |node, term| (ShardId(3), Leader { node, term });
        queues.open_link(worker, node);
        queues.lead(worker, ShardId(3), leader(7, 1).1);
        assert!(queues.lose_link(worker, node));
        assert!(!queues.lose_link(worker, node));
        queues.lead(worker, ShardId(3), leader(8, 2).1);
        queues.lead(worker, ShardId(3), leader(9, 3).1);
        let batches: Vec<_> = queues.drain().collect();
        let [(WorkerId(1), inbound)] = &batches[..] else { panic!("{batches:?}") };
        assert_eq!((&inbound.links_lost[..], inbound.links_open.len()), (&[7][..], 0));
        assert_eq!(inbound.leaders, [leader(9, 3)]);
        assert_eq!(queues.handled(inbound.key).links_lost, [7]);
        assert!(queues.handled(inbound.key).links_lost.is_empty(), "once");
        assert!(queues.lose_link(worker, node), "the worker has the other batch");
    }
}
