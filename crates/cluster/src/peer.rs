use std::collections::VecDeque;

use broker::WorkerId;
use broker::peers::{Copies, NodeIndex, PeerTicket};
use link::{LANES_MAX, Lane, Time};
use mqtt::ReasonCode;
use replog::{Feed, Incarnation, Position, WriterId};

use crate::backlog::Backlog;
use crate::config::{NodeInfo, Role};
use crate::confirmations::Confirmations;
use crate::freshness::KnownPositions;
use crate::mutation::{Mutation, mutated};
use crate::wire::{FeedScope, Hello};

/// What this node keeps of another one.
#[derive(Debug)]
pub struct Peer {
    pub info: NodeInfo,
    pub index: NodeIndex,
    pub is_up: bool,
    /// When the peer was suspected last; 0 when it never was.
    pub suspected_at: Time,
    /// Messages for the peer that were refused or dropped since it was suspected, because no room was left in the link.
    pub turned_away: u64,
    /// How often the peer has forgotten the link: what was of an earlier life is void.
    pub link_epoch: u8,
    /// What this node has asked the peer for, in this life of the link.
    pub requested_scope: Option<FeedScope>,
    /// Of the last hello to the peer.
    pub hello: u32,
    /// Lives of which that spoke, with greater numbers than those that the cores agree on.
    pub later: Vec<(WriterId, Incarnation)>,
    /// What the peer has asked for, and by which hello.
    pub feed_scope: FeedScope,
    pub scope_from_hello: u32,
    /// Of its life that the link is about.
    pub incarnation: Option<Incarnation>,
    /// It has begun this later life, as others have said, or may have forgotten this node: messages wait for the link that follows, unless it
    /// goes on with this one.
    pub ahead: Option<Incarnation>,
    /// How far its own changes were when it first said hello in its life: what its sessions had wanted before is among them.
    pub began_at: Option<(Incarnation, Position)>,
    /// What a core knew when it spoke first to this one that has begun anew.
    pub knew: Option<KnownPositions>,
    /// What it asked for last.
    pub last_hello: Option<Hello>,
    /// Its life that is a member, where the cores agree on members.
    pub member: Option<Incarnation>,
    /// Nodes that are attached to it, as it says.
    pub load: u32,
    pub feed: Option<Feed>,
    /// Deltas on their way to it.
    pub fed: VecDeque<Fed>,
    /// A whole copy of this node's own changes has been sent to it since its hello: what it has taken in of that, and of what came behind, its next one says.
    pub is_copied: bool,
    /// Messages on their way to it, by lane.
    pub sent: [Sent; LANES_MAX as usize],
    pub confirmations: Confirmations,
    /// What of that which is retained here is on its way to it, or has arrived.
    pub copies: Option<Copies>,
    /// It is to be asked to copy to this node what is retained there.
    pub needs_copy_request: bool,
    /// What of it has found no place yet.
    pub backlog: Backlog,
    /// What it waits for that is to be known everywhere, and in its region.
    pub settle: SettleRequest,
    pub settle_in_region: SettleRequest,
    /// Questions of it that are being answered.
    pub answering: usize,
    /// Frames to it are packed.
    pub packs: bool,
    /// That life of it, and every one before, is over: the cores agree on it.
    pub dead: Option<Incarnation>,
    /// Since when this node knows that.
    pub dead_since: Option<Time>,
}

/// The changes of a peer that others are to know.
#[derive(Clone, Copy, Debug, Default)]
pub struct SettleRequest {
    /// Its changes up to here are not known to them.
    pub wanted: Option<Position>,
    /// What the peer was told last.
    pub reported: Position,
}

/// A delta on its way.
#[derive(Debug)]
pub struct Fed {
    pub number: u64,
    pub cost: u64,
    /// This node's own position after it, when it is of that.
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
    /// Nobody else gets it.
    pub is_alone: bool,
    is_answered: bool,
}

impl Waiting {
    pub fn new(number: u64, worker: WorkerId, token: broker::Token, if_lost: IfLost, is_alone: bool) -> Self {
        Self { number, worker, token, if_lost, is_alone, is_answered: false }
    }
}

/// What becomes of a message when nobody knows whether a peer has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfLost {
    /// Those who should have had it are gone with their connections.
    Nothing,
    /// A durable session should have had it: its publisher gets no acknowledgement when it is lost for sure.
    Refuse,
    /// As before, and it is for the peer's next life: it is not lost when that begins.
    Wait,
    /// It is for one of several, and another may have it.
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
            settle: SettleRequest::default(),
            settle_in_region: SettleRequest::default(),
            answering: 0,
            packs: false,
            dead: None,
        }
    }

    pub fn is_core(&self) -> bool {
        self.info.role == Role::Core
    }

    /// The peer has forgotten the link.
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
        self.settle = SettleRequest::default();
        self.settle_in_region = SettleRequest::default();
        self.answering = 0;
    }

    /// The peer goes on with the link: what was for its next life is for this one, and lost with it.
    pub fn goes_on(&mut self) {
        self.ahead = None;
        let waiting = self.sent.iter_mut().flat_map(|sent| &mut sent.waiting);
        waiting.filter(|waiting| waiting.if_lost == IfLost::Wait).for_each(|it| it.if_lost = IfLost::Refuse);
    }

    /// The ticket of a message that came from the peer.
    pub fn ticket(&self, lane: Lane, number: u64) -> PeerTicket {
        PeerTicket {
            from: self.index,
            link_epoch: self.link_epoch,
            lane: lane.index(),
            number: number as u32,
        }
    }

    /// A message has its places here. The peer is told, unless it has forgotten the link since: the next incarnation counts its messages
    /// from 0 again, and would take this for a confirmation of one of its own.
    pub fn confirm(&mut self, ticket: PeerTicket, reason: ReasonCode) {
        if ticket.link_epoch == self.link_epoch || mutated(Mutation::ConfirmToNext) {
            self.confirmations.push(ticket, reason);
        }
    }

    /// Whether a publisher waits for the peer.
    pub fn has_waiting(&self) -> bool {
        self.sent.iter().any(|sent| sent.len() > 0)
    }

    /// All messages whose publishers wait.
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

    /// Tells `on_answer` who waits for messages whose numbers end so: `count` of them from `first` on, of which some may be nobody's.
    pub fn answer(&mut self, first: u32, count: u32, mut on_answer: impl FnMut(Waiting)) {
        let Some(front) = self.waiting.front().map(|waiting| waiting.number) else { return };
        // Fewer than 2^31 are on their way, in either direction.
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
    use broker::{ShardId, Token};

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
        assert_eq!(answer(first - 5, u32::MAX), [1, 3], "whatever a peer says");
        assert!(sent.waiting.is_empty());
    }

    /// Both incarnations of the peer begin with number 0 in each lane.
    #[test]
    fn what_an_earlier_incarnation_sent_is_not_confirmed_to_the_next() {
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
