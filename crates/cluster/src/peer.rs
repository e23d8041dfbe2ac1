use std::collections::{BTreeMap, VecDeque};

use broker::peers::{Copies, NodeIndex, PeerTicket};
use broker::{ShardId, WorkerId};
use link::{LANES_MAX, Lane, Time};
use mqtt::ReasonCode;
use replog::{Feed, Incarnation, Position, WriterId};

use crate::backlog::Backlog;
use crate::config::{NodeInfo, Role};
use crate::confirmations::Confirmations;
use crate::freshness::KnownPositions;
use crate::mutation::{Mutation, mutated};
use crate::wire::{FeedScope, Hello};

/// State of another node.
#[derive(Debug)]
pub struct Peer {
    pub info: NodeInfo,
    pub index: NodeIndex,
    pub is_up: bool,
    /// Time at which the peer was last suspected; 0 if never.
    pub suspected_at: Time,
    /// Messages for the peer that were refused or dropped since it was suspected, because no room was left in the link.
    pub turned_away: u64,
    /// Number of times that the peer has forgotten the link: tickets and positions of earlier epochs are void.
    pub link_epoch: u8,
    /// Scope that this node has requested from the peer in this epoch of the link.
    pub requested_scope: Option<FeedScope>,
    /// Number of the last hello to the peer.
    pub hello: u32,
    /// Incarnations in that hello that are greater than those in the roster.
    pub later: Vec<(WriterId, Incarnation)>,
    /// Scope that the peer has requested, and the number of its hello.
    pub feed_scope: FeedScope,
    pub scope_from_hello: u32,
    /// Incarnation of the peer that the link belongs to.
    pub incarnation: Option<Incarnation>,
    /// Later incarnation that it has started according to others, or the present one if it may have forgotten this
    /// node. Messages wait for the link that follows, unless the peer continues with this one.
    pub ahead: Option<Incarnation>,
    /// Position of its own changes at the first hello of its incarnation: the earlier interest of its sessions is among
    /// them.
    pub began_at: Option<(Incarnation, Position)>,
    /// Positions that a core knew when it first contacted this restarted core.
    pub knew: Option<KnownPositions>,
    /// Route positions of shards that the peer knew when it first contacted this restarted core.
    pub knew_of_shards: Option<BTreeMap<ShardId, Position>>,
    /// Last hello of the peer.
    pub last_hello: Option<Hello>,
    /// Incarnation that is a member.
    pub member: Option<Incarnation>,
    /// Number of nodes that are attached to it, as it reports.
    pub load: u32,
    pub feed: Option<Feed>,
    /// Deltas in transit to it.
    pub fed: VecDeque<Fed>,
    /// True when a whole copy of this node's own changes was sent since its hello. Its next hello contains its position
    /// in that copy and in later changes.
    pub is_copied: bool,
    /// Messages in transit to it, by lane.
    pub sent: [Sent; LANES_MAX as usize],
    pub confirmations: Confirmations,
    /// Retained messages that are in transit to it, or have arrived.
    pub copies: Option<Copies>,
    /// True when the peer must be asked to copy its retained messages to this node.
    pub needs_copy_request: bool,
    /// Copies for it that its link had no room for yet.
    pub backlog: Backlog,
    /// Changes of the peer that wait to be known everywhere, and in its region.
    pub settle: SettleRequests,
    /// Number of its questions that are being answered.
    pub answering: usize,
    /// True to pack frames to it.
    pub packs: bool,
    /// Greatest incarnation that is over according to the meta group.
    pub dead: Option<Incarnation>,
    /// Time since which this node knows that.
    pub dead_since: Option<Time>,
}

/// Changes of a peer that all nodes that may acknowledge must know, or all nodes of its region, and changes of shards.
#[derive(Debug, Default)]
pub struct SettleRequests {
    pub in_cluster: SettleRequest,
    pub in_region: SettleRequest,
    /// Requests for shards, until they are answered. All nodes that may acknowledge must know these changes.
    pub of_shards: BTreeMap<ShardId, SettleRequest>,
}

impl SettleRequests {
    /// Returns whether the peer waits for a report.
    pub fn are_waiting(&self) -> bool {
        self.is_waiting_for_own() || !self.of_shards.is_empty()
    }

    /// Returns whether the peer waits for a report about its own changes.
    pub fn is_waiting_for_own(&self) -> bool {
        self.in_cluster.wanted.or(self.in_region.wanted).is_some()
    }

    /// Forgets the reported positions: the peer has another incarnation.
    pub fn forget_reported(&mut self) {
        self.in_cluster.reported = Position::default();
        self.in_region.reported = Position::default();
    }
}

/// Changes of one writer that others must know.
#[derive(Clone, Copy, Debug, Default)]
pub struct SettleRequest {
    /// Position up to which the changes are not known to them.
    pub wanted: Option<Position>,
    /// Last position reported to the peer.
    pub reported: Position,
}

/// A delta in transit.
#[derive(Debug)]
pub struct Fed {
    pub number: u64,
    pub cost: u64,
    /// This node's own position after it, if it is about this node's changes.
    pub own: Option<Position>,
}

/// Messages of one lane whose publishers wait.
#[derive(Debug, Default)]
pub struct Sent {
    waiting: VecDeque<Waiting>,
}

#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    pub number: u64,
    pub worker: WorkerId,
    pub token: broker::Token,
    pub if_lost: IfLost,
    /// True when no other node gets it.
    pub is_alone: bool,
    is_answered: bool,
}

impl Waiting {
    pub fn new(number: u64, worker: WorkerId, token: broker::Token, if_lost: IfLost, is_alone: bool) -> Self {
        Self { number, worker, token, if_lost, is_alone, is_answered: false }
    }
}

/// Treatment of a message if it is unknown whether a peer has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfLost {
    /// Ignore it: its recipients are gone with their connections.
    Nothing,
    /// Refuse it: a durable session should have it, and its publisher gets no acknowledgement if it is surely lost.
    Refuse,
    /// Refuse it, unless the peer's next incarnation starts: the message is for that.
    Wait,
    /// Give it to another member: it is for one of several.
    GiveAnother,
}

impl Peer {
    pub fn new(info: NodeInfo, index: NodeIndex) -> Self {
        Self {
            info,
            index,
            is_up: false,
            suspected_at: Time::default(),
            turned_away: 0,
            link_epoch: 0,
            requested_scope: None,
            hello: 0,
            later: Vec::new(),
            feed_scope: FeedScope::Nothing,
            scope_from_hello: 0,
            incarnation: None,
            ahead: None,
            began_at: None,
            knew: None,
            knew_of_shards: None,
            dead_since: None,
            last_hello: None,
            member: None,
            load: 0,
            feed: None,
            fed: VecDeque::new(),
            is_copied: false,
            sent: Default::default(),
            confirmations: Confirmations::default(),
            copies: None,
            needs_copy_request: false,
            backlog: Backlog::default(),
            settle: SettleRequests::default(),
            answering: 0,
            packs: false,
            dead: None,
        }
    }

    pub fn is_core(&self) -> bool {
        self.info.role == Role::Core
    }

    /// Returns whether a replicant may rely on the peer to pass changes both ways. A peer that the cores have declared
    /// dead may be reachable from this node alone.
    pub fn serves(&self) -> bool {
        self.is_core() && self.is_up && (self.dead.is_none() || mutated(Mutation::StayAttached))
    }

    /// Notes that the peer has forgotten the link.
    pub fn restarted(&mut self) {
        self.link_epoch = self.link_epoch.wrapping_add(1);
        self.incarnation = None;
        self.last_hello = None;
        self.ahead = None;
        self.requested_scope = None;
        self.later.clear();
        self.feed_scope = FeedScope::Nothing;
        self.feed = None;
        self.fed.clear();
        self.is_copied = false;
        self.confirmations.clear();
        self.copies = None;
        self.needs_copy_request = false;
        self.settle = SettleRequests::default();
        self.answering = 0;
    }

    /// Notes that the peer continues with the link: messages for its next incarnation are for this one, and lost with
    /// it.
    pub fn goes_on(&mut self) {
        self.ahead = None;
        let waiting = self.sent.iter_mut().flat_map(|sent| &mut sent.waiting);
        waiting.filter(|waiting| waiting.if_lost == IfLost::Wait).for_each(|it| it.if_lost = IfLost::Refuse);
    }

    /// Returns the ticket of a message from the peer.
    pub fn ticket(&self, lane: Lane, number: u64) -> PeerTicket {
        PeerTicket {
            from: self.index,
            link_epoch: self.link_epoch,
            lane: lane.index(),
            number: number as u32,
        }
    }

    /// Confirms a message of the peer that is stored here. It does nothing if the peer has forgotten the link since:
    /// the next incarnation counts its messages from 0 again, and would take this for a confirmation of one of its own.
    pub fn confirm(&mut self, ticket: PeerTicket, reason: ReasonCode) {
        if ticket.link_epoch == self.link_epoch || mutated(Mutation::ConfirmToNext) {
            self.confirmations.push(ticket, reason);
        }
    }

    /// Returns whether a publisher waits for the peer.
    pub fn has_waiting(&self) -> bool {
        self.sent.iter().any(|sent| sent.len() > 0)
    }

    /// Takes all messages whose publishers wait.
    pub fn take_sent(&mut self) -> impl Iterator<Item = Waiting> {
        self.sent.iter_mut().flat_map(|sent| sent.waiting.drain(..)).filter(|waiting| !waiting.is_answered)
    }
}

impl Sent {
    pub fn push(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Calls `on_answer` for the publishers of `count` messages whose numbers end like `first` and the following ones.
    /// Some of these numbers may have no waiting publisher.
    pub fn answer(&mut self, first: u32, count: u32, mut on_answer: impl FnMut(Waiting)) {
        let Some(front) = self.waiting.front().map(|waiting| waiting.number) else { return };
        // Fewer than 2^31 messages are in transit in either direction.
        let ahead = i64::from(first.wrapping_sub(front as u32).cast_signed());
        let begin = front.saturating_add_signed(ahead);
        let end = front.saturating_add_signed(ahead + i64::from(count));
        let at = self.waiting.partition_point(|waiting| waiting.number < begin);
        let those = self.waiting.range_mut(at..).take_while(|waiting| waiting.number < end);
        for waiting in those.filter(|waiting| !waiting.is_answered) {
            waiting.is_answered = true;
            on_answer(*waiting);
        }
        while self.waiting.pop_front_if(|first| first.is_answered).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use broker::Token;

    use super::*;

    #[test]
    fn answers_come_in_any_order_and_once() {
        let mut sent = Sent::default();
        let first = (1 << 32) - 1;
        for step in 0..4_u32 {
            let token = Token::Append { shard: ShardId(0), key: step };
            sent.push(Waiting::new(first + u64::from(step), WorkerId(0), token, IfLost::Nothing, false));
        }
        let mut answer = |number: u64, count| {
            let mut keys = Vec::new();
            sent.answer(number as u32, count, |waiting| match waiting.token {
                Token::Append { key, .. } => keys.push(key),
                _ => unreachable!("none was sent"),
            });
            keys
        };
        assert_eq!(answer(first + 2, 1), [2]);
        assert!(answer(first + 2, 1).is_empty());
        assert_eq!(answer(first, 1), [0]);
        assert!(answer(first, 1).is_empty());
        assert!(answer(first + 4, 1000).is_empty(), "never sent");
        assert_eq!(answer(first - 5, u32::MAX), [1, 3], "any answer of a peer");
        assert!(sent.waiting.is_empty());
    }

    /// Both incarnations of the peer begin with number 0 in each lane.
    #[test]
    fn messages_of_an_earlier_incarnation_are_not_confirmed_to_the_next() {
        let info = NodeInfo { name: "n".into(), role: Role::Core, region: "r".into(), address: "a".into() };
        let mut peer = Peer::new(info, NodeIndex(0));
        let earlier = peer.ticket(Lane::assured(3), 0);
        let later = peer.ticket(Lane::assured(3), 1);
        peer.confirm(later, ReasonCode::Success);
        assert_eq!(peer.confirmations.ranges().len(), 1);
        peer.restarted();
        peer.confirm(earlier, ReasonCode::Success);
        assert!(peer.confirmations.is_empty(), "the next incarnation may not have sent it yet");
        let of_next = peer.ticket(Lane::assured(3), 0);
        assert_ne!(of_next, earlier);
        peer.confirm(of_next, ReasonCode::QuotaExceeded);
        let reported: Vec<_> =
            peer.confirmations.ranges().iter().map(|it| (it.first, it.count, it.reason)).collect();
        assert_eq!(reported, [(0, 1, ReasonCode::QuotaExceeded.as_u8())]);
    }
}
