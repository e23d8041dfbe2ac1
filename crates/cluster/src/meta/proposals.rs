//! Proposals of this node, until they are answered or expire. A command may be proposed more than once, because it
//! describes the wanted state.

use std::collections::BTreeMap;
use std::time::Duration;

use broker::ShardId;
use link::{NodeId, Time};
use replog::Incarnation;

use super::ProposalId;

#[derive(Debug)]
pub struct Proposals {
    /// Last proposal number. No other incarnation of the node uses the same numbers, because its proposals may be
    /// answered in a later one.
    last: u64,
    all: BTreeMap<u64, Proposal>,
}

#[derive(Debug)]
struct Proposal {
    reply: Reply,
    command: Vec<u8>,
    deadline: Time,
    /// Time at which it is proposed next.
    due: Time,
    /// Node that was asked and has not answered. `hint` is the leader according to the last node that answered.
    asked: Option<NodeId>,
    hint: Option<NodeId>,
    tries: u32,
    /// True when an earlier request was not answered: the node that was asked may still propose the command.
    may_be_applied: bool,
}

/// Recipient of a proposal's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// No recipient: the node sees the result in the roster.
    Own,
    /// No recipient: the node sees the result in the first placement of the shards.
    Placement,
    /// No recipient: the node sees the result in the placement of this shard.
    Shard(ShardId),
    Operator(ProposalId),
}

/// A proposal that is due.
#[derive(Debug)]
pub struct Due {
    pub number: u64,
    pub command: Vec<u8>,
    pub hint: Option<NodeId>,
    pub tries: u32,
}

/// Time to the next attempt after a refusal, and after a request without an answer.
const RETRY_DELAY: Duration = Duration::from_millis(200);
const UNANSWERED: Duration = Duration::from_secs(2);
/// Maximum number of operators' proposals that wait.
const PROPOSALS_MAX: usize = 256;
/// Bits of a proposal number below the incarnation. Incarnations are about 1,000 apart and count milliseconds of the
/// wall clock: that leaves room for a billion proposals until the year 2248.
const NUMBER_BITS: u32 = 20;

impl Proposals {
    /// Creates the queue of an incarnation.
    pub fn new(incarnation: Incarnation) -> Self {
        Self { last: incarnation.0 << NUMBER_BITS, all: BTreeMap::new() }
    }

    /// Queues a proposal. Returns false when too many wait.
    pub fn push(&mut self, deadline: Time, reply: Reply, command: Vec<u8>) -> bool {
        if reply != Reply::Own && self.all.len() >= PROPOSALS_MAX {
            return false;
        }
        self.last += 1;
        let proposal = Proposal {
            reply,
            command,
            deadline,
            due: Time::default(),
            asked: None,
            hint: None,
            tries: 0,
            may_be_applied: false,
        };
        self.all.insert(self.last, proposal);
        true
    }

    pub fn has_own(&self) -> bool {
        self.all.values().any(|proposal| proposal.reply == Reply::Own)
    }

    /// Returns whether a proposal for the first placement waits.
    pub fn has_placement(&self) -> bool {
        self.all.values().any(|proposal| proposal.reply == Reply::Placement)
    }

    /// Returns whether a proposal about a shard waits.
    pub fn has_shard(&self, shard: ShardId) -> bool {
        self.all.values().any(|proposal| proposal.reply == Reply::Shard(shard))
    }

    pub fn forget_own(&mut self) {
        self.all.retain(|_, proposal| proposal.reply != Reply::Own);
    }

    /// Returns the proposals that are due; each is repeated later.
    pub fn take_due(&mut self, now: Time) -> Vec<Due> {
        let due = self.all.iter_mut().filter(|(_, proposal)| proposal.due <= now);
        due.map(|(number, proposal)| {
            proposal.due = now.after(UNANSWERED);
            proposal.tries += 1;
            proposal.may_be_applied |= proposal.asked.take().is_some();
            Due {
                number: *number,
                command: proposal.command.clone(),
                hint: proposal.hint,
                tries: proposal.tries,
            }
        })
        .collect()
    }

    pub fn asked(&mut self, number: u64, node: NodeId) {
        if let Some(proposal) = self.all.get_mut(&number) {
            proposal.asked = Some(node);
        }
    }

    /// Notes that the node that was asked does not lead.
    pub fn not_leader(&mut self, now: Time, from: NodeId, number: u64, leader: NodeId) {
        let Some(proposal) = self.all.get_mut(&number).filter(|proposal| proposal.asked == Some(from)) else {
            return;
        };
        let is_known = leader != NodeId(0) && leader != from;
        proposal.asked = None;
        proposal.hint = is_known.then_some(leader);
        // It is due at once, unless leaders name each other.
        proposal.due = if is_known && proposal.tries < 3 { now } else { now.after(RETRY_DELAY) };
    }

    pub fn retry(&mut self, now: Time, number: u64) {
        if let Some(proposal) = self.all.get_mut(&number) {
            (proposal.due, proposal.hint) = (now.after(RETRY_DELAY), None);
        }
    }

    /// Notes that the link to a node that was asked is down.
    pub fn lost(&mut self, node: NodeId) {
        for proposal in self.all.values_mut().filter(|proposal| proposal.asked == Some(node)) {
            (proposal.hint, proposal.due) = (None, Time::default());
        }
    }

    /// Removes an answered proposal. Returns the recipient, and whether a node may still propose it.
    pub fn done(&mut self, number: u64) -> Option<(Reply, bool)> {
        self.all.remove(&number).map(|proposal| (proposal.reply, proposal.may_be_applied))
    }

    /// Removes expired proposals. Returns the operators' requests that wait for them.
    pub fn take_overdue(&mut self, now: Time) -> Vec<ProposalId> {
        let mut overdue = Vec::new();
        self.all.retain(|_, proposal| {
            let is_overdue = proposal.deadline <= now;
            if let (true, Reply::Operator(id)) = (is_overdue, proposal.reply) {
                overdue.push(id);
            }
            !is_overdue
        });
        overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Time = Time(5_000_000);
    const CORE: NodeId = NodeId(7);
    const LEADER: NodeId = NodeId(8);

    /// Returns a queue with an operator's proposal that a core was asked for.
    fn asked() -> (Proposals, u64) {
        let mut proposals = Proposals::new(Incarnation(1));
        assert!(proposals.push(LATER, Reply::Operator(ProposalId(1)), vec![1]));
        let number = proposals.take_due(Time(0))[0].number;
        proposals.asked(number, CORE);
        (proposals, number)
    }

    #[test]
    fn an_unanswered_proposal_may_still_be_proposed() {
        let (mut proposals, number) = asked();
        assert_eq!(proposals.done(number), Some((Reply::Operator(ProposalId(1)), false)));
        for is_lost in [true, false] {
            let (mut proposals, number) = asked();
            if is_lost {
                proposals.lost(CORE);
            }
            assert_eq!(proposals.take_due(Time(2_000_000)).len(), 1);
            assert_eq!(proposals.done(number), Some((Reply::Operator(ProposalId(1)), true)));
        }
        let (mut proposals, number) = asked();
        proposals.not_leader(Time(1), CORE, number, LEADER);
        let due = proposals.take_due(Time(1));
        assert_eq!((due[0].number, due[0].hint), (number, Some(LEADER)));
        proposals.asked(number, LEADER);
        assert_eq!(proposals.done(number), Some((Reply::Operator(ProposalId(1)), false)));
    }
}
