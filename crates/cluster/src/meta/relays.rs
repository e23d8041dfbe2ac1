//! Two nodes that do not reach each other have a core between them that reaches both: it hands on what cores say to each other to agree, and what a node wants of
//! the core that leads. One core does, and no further one, and nothing waits there.

use std::collections::BTreeMap;
use std::time::Duration;

use link::{NodeId, Time};

use super::{LinkStatus, Meta, MetaFrame, MetaMessage, OwnedMetaMessage, State};
use crate::features::RELAYS;
use crate::mutation::{Mutation, mutated};
use crate::wire::{self, PeerMessage};

/// By which core a node was heard that is not linked here.
#[derive(Debug, Default)]
pub struct Relays {
    learned: BTreeMap<NodeId, Relay>,
    /// Words that this core has handed on.
    pub relayed_count: u64,
    /// Bytes that were handed on for each linked node in the second that began then.
    spent: BTreeMap<NodeId, (Time, usize)>,
}

#[derive(Debug)]
struct Relay {
    by: NodeId,
    at: Time,
    /// What the node understands, as that core says.
    features: u64,
}

/// Whoever was heard is there for so long: cores that agree say something to each other more often.
const FRESH: Duration = Duration::from_secs(3);
/// While nothing has come by any of them, each core is tried for so long, microseconds.
const TRY: u64 = 700_000;
const RELAYS_MAX: usize = 256;
/// Bytes that are handed on for a node in a second: what is for others on a link must not wait for it long.
const BYTES_PER_SECOND: usize = 4 << 20;
/// Longer words go by a way only by which something has come.
const UNPROVEN_MAX: usize = 4 << 10;

impl Relays {
    fn learned(&mut self, now: Time, node: NodeId, by: NodeId, features: u64) {
        if self.learned.len() >= RELAYS_MAX {
            self.learned.retain(|_, relay| relay.at.after(FRESH) > now);
        }
        if self.learned.len() < RELAYS_MAX || self.learned.contains_key(&node) {
            self.learned.insert(node, Relay { by, at: now, features });
        }
    }

    /// A node is linked, or cut off: nothing goes by it, or to it, as before.
    pub fn changed(&mut self, node: NodeId) {
        self.learned.retain(|to, relay| *to != node && relay.by != node);
        self.spent.remove(&node);
    }

    /// By whom a node was heard lately.
    pub fn by(&self, now: Time, node: NodeId) -> Option<NodeId> {
        self.learned.get(&node).filter(|relay| relay.at.after(FRESH) > now).map(|relay| relay.by)
    }

    pub fn features(&self, now: Time, node: NodeId) -> Option<u64> {
        self.by(now, node).and_then(|_| self.learned.get(&node)).map(|relay| relay.features)
    }

    /// The core that so many bytes for a node are given to, of those that hand on.
    fn choose(&self, now: Time, node: NodeId, bytes: usize, relays: &[NodeId]) -> Option<NodeId> {
        let known = self.by(now, node).filter(|by| relays.contains(by));
        let tried = || relays.get((now.0 / TRY) as usize % relays.len().max(1)).copied();
        known.or_else(|| tried().filter(|_| bytes <= UNPROVEN_MAX))
    }

    /// Whether so many bytes more are handed on for a linked node.
    fn within_budget(&mut self, now: Time, node: NodeId, bytes: usize) -> bool {
        let spent = self.spent.entry(node).or_insert((now, 0));
        if spent.0.after(Duration::from_secs(1)) <= now {
            *spent = (now, 0);
        }
        let within_budget = spent.1 + bytes <= BYTES_PER_SECOND;
        spent.1 += if within_budget { bytes } else { 0 };
        self.relayed_count += u64::from(within_budget);
        within_budget
    }
}

impl Meta {
    /// Cores that are linked and hand on what is for others.
    fn relays(&self, link_status: &[LinkStatus]) -> Vec<NodeId> {
        let can_relay = |link_status: &&LinkStatus| {
            link_status.is_up && link_status.features.is_some_and(|features| features & RELAYS != 0)
        };
        let serves = |id: &NodeId| {
            let member = self.roster.members.get(id);
            member.is_some_and(|member| member.is_core() && member.state != State::Dead)
        };
        link_status.iter().filter(can_relay).map(|link_status| link_status.id).filter(serves).collect()
    }

    /// Whether words may get to a node, which is linked or not.
    pub(super) fn may_reach(&self, node: NodeId, link_status: &[LinkStatus]) -> bool {
        link_status.iter().any(|link_status| link_status.id == node && link_status.is_up)
            || !self.is_dead(node) && !self.relays(link_status).is_empty()
    }

    /// Whether a linked node reads what is handed on.
    fn can_relay(&self, node: NodeId) -> bool {
        self.features.get(&node).is_some_and(|features| features & RELAYS != 0)
    }

    fn is_dead(&self, node: NodeId) -> bool {
        self.roster.members.get(&node).is_some_and(|member| member.state == State::Dead)
    }

    /// The core that hands on to this one what the core that leads says, where the two are not linked.
    pub fn leader_via(&self, now: Time) -> Option<NodeId> {
        self.relays.by(now, self.leader()?)
    }

    /// What is for nodes that are not linked goes by way of a core that is, or not at all: it is said again.
    pub(super) fn route_via_relays(&mut self, now: Time, link_status: &[LinkStatus]) {
        let is_up =
            |id: NodeId| link_status.iter().any(|link_status| link_status.id == id && link_status.is_up);
        if self.out.iter().all(|frame| is_up(frame.to)) {
            return;
        }
        let relays = self.relays(link_status);
        for frame in std::mem::take(&mut self.out) {
            if is_up(frame.to) {
                self.out.push_back(frame);
            } else if self.is_for(
                frame.to,
                &frame.message.message(),
                matches!(frame.message, OwnedMetaMessage::Proposed(..)),
            ) && !mutated(Mutation::ForgetRelays)
            {
                let message = PeerMessage::Meta(frame.message.message()).encode();
                if let Some(by) = self.relays.choose(now, frame.to, message.len(), &relays) {
                    let (from, to, features) = (self.id, frame.to, self.config.features);
                    let message = OwnedMetaMessage::Relay { from, to, features, message };
                    self.out.push_back(MetaFrame { to: by, message });
                }
            }
        }
    }

    /// A word of a node that is not linked to whom it is for. False for what is no word of this version.
    pub(super) fn relayed(
        &mut self,
        now: Time,
        by: NodeId,
        (from, to, features): (NodeId, NodeId, u64),
        message: &[u8],
    ) -> bool {
        if to != self.id {
            // It goes no further than over two links, and says what the sender has shown to this core.
            let features = self.features.get(&by).copied().filter(|_| by == from && self.group.is_some());
            if let (Some(features), true) = (features, self.can_relay(to))
                && self.relays.within_budget(now, from, message.len())
            {
                self.out.push_back(MetaFrame {
                    to,
                    message: OwnedMetaMessage::Relay { from, to, features, message: message.to_vec() },
                });
            }
            return true;
        }
        let is_of_a_core = self.roster.members.get(&by).is_some_and(super::Member::is_core);
        // Whoever is linked says it over the link: two ways are no order.
        if !is_of_a_core || self.features.contains_key(&from) {
            return true;
        }
        match wire::decode(message) {
            Some(PeerMessage::Meta(message)) if message.may_be_relayed() => {
                if !self.is_for(from, &message, matches!(message, MetaMessage::Propose { .. })) {
                    return true;
                }
                self.relays.learned(now, from, by, features);
                self.handle_message(now, from, &message)
            }
            _ => false,
        }
    }

    /// Whether a word is handed on, to or from a node. With one that is dead nothing is agreed; its next life wants to join, and hears what came of that.
    fn is_for(&self, node: NodeId, message: &MetaMessage<'_>, joins: bool) -> bool {
        message.may_be_relayed() && (joins || !self.is_dead(node))
    }
}

impl MetaMessage<'_> {
    /// Roster and records are had from whichever core is linked.
    fn may_be_relayed(&self) -> bool {
        match self {
            Self::Replica(_) | Self::Propose { .. } | Self::Proposed { .. } | Self::Reachability(_) => true,
            Self::Roster(_) | Self::Copied(_) | Self::Records(_) | Self::Relay { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: NodeId = NodeId(9);
    const RELAYS: [NodeId; 2] = [NodeId(1), NodeId(2)];

    #[test]
    fn each_core_is_tried_until_something_comes_by_one_of_them() {
        let mut relays = Relays::default();
        let tried: Vec<_> = (0..4).map(|turn| relays.choose(Time(turn * TRY), FAR, 9, &RELAYS)).collect();
        assert_eq!(tried, [1, 2, 1, 2].map(|core| Some(NodeId(core))));
        assert_eq!(relays.choose(Time(0), FAR, UNPROVEN_MAX + 1, &RELAYS), None, "perhaps nobody hears it");
        relays.learned(Time(0), FAR, NodeId(2), 7);
        assert_eq!(relays.choose(Time(0), FAR, UNPROVEN_MAX + 1, &RELAYS), Some(NodeId(2)));
        assert_eq!(relays.features(Time(0), FAR), Some(7));
        assert_eq!(relays.by(Time(0), FAR), Some(NodeId(2)));
        let later = Time::default().after(FRESH);
        assert_eq!((relays.by(later, FAR), relays.features(later, FAR)), (None, None), "that was long ago");
        assert_eq!(relays.choose(Time(0), FAR, 9, &RELAYS[..1]), Some(NodeId(1)), "that one is gone");
        assert_eq!(relays.choose(Time(0), FAR, 9, &[]), None);
    }

    #[test]
    fn a_way_ends_with_either_of_its_links_and_there_are_not_too_many() {
        let mut relays = Relays::default();
        for changed in [FAR, NodeId(1)] {
            relays.learned(Time(0), FAR, NodeId(1), 7);
            relays.changed(changed);
            assert_eq!(relays.by(Time(0), FAR), None);
        }
        for node in 0..2 * RELAYS_MAX as u64 {
            relays.learned(Time(0), NodeId(node), NodeId(1), 7);
        }
        assert_eq!(relays.learned.len(), RELAYS_MAX);
        relays.learned(Time::default().after(FRESH), FAR, NodeId(1), 7);
        assert_eq!(relays.learned.len(), 1);
    }

    #[test]
    fn no_more_is_handed_on_for_a_node_in_a_second_than_others_can_bear() {
        let mut relays = Relays::default();
        let half = BYTES_PER_SECOND / 2;
        let mut within_budget = |at: u64, node: u64| relays.within_budget(Time(at), NodeId(node), half);
        assert_eq!([within_budget(0, 1), within_budget(1, 1), within_budget(2, 1)], [true, true, false]);
        assert!(within_budget(2, 2), "each has its own");
        assert!(within_budget(1_000_000, 1));
        assert_eq!(relays.relayed_count, 4);
    }
}
