//! Two nodes that do not reach each other have a core between them that reaches both: it hands on what cores say to each other to agree, and what a node wants of
//! the core that leads. One core does, and no further one, and nothing waits there.

use std::collections::BTreeMap;
use std::time::Duration;

use link::{NodeId, Time};

use super::{Meta, MetaFrame, MetaWord, OwnedWord, Seen, State};
use crate::features::RELAYS;
use crate::mutation::{Mutation, mutated};
use crate::wire::{self, Word};

/// By which core a node was heard that is not linked here.
#[derive(Debug, Default)]
pub struct Ways {
    heard: BTreeMap<NodeId, Way>,
}

#[derive(Debug)]
struct Way {
    by: NodeId,
    at: Time,
    /// What the node understands, as that core says.
    features: u64,
}

/// Whoever was heard is there for so long: cores that agree say something to each other more often.
const FRESH: Duration = Duration::from_secs(3);
/// While nothing has come by any of them, each core is tried for so long, microseconds.
const TRY: u64 = 700_000;
const WAYS_MAX: usize = 256;

impl Ways {
    fn heard(&mut self, now: Time, node: NodeId, by: NodeId, features: u64) {
        if self.heard.len() >= WAYS_MAX {
            self.heard.retain(|_, way| way.at.after(FRESH) > now);
        }
        if self.heard.len() < WAYS_MAX || self.heard.contains_key(&node) {
            self.heard.insert(node, Way { by, at: now, features });
        }
    }

    /// A node is linked, or cut off: nothing goes by it, or to it, as before.
    pub fn changed(&mut self, node: NodeId) {
        self.heard.retain(|to, way| *to != node && way.by != node);
    }

    /// By whom a node was heard lately.
    pub fn by(&self, now: Time, node: NodeId) -> Option<NodeId> {
        self.heard.get(&node).filter(|way| way.at.after(FRESH) > now).map(|way| way.by)
    }

    pub fn features(&self, node: NodeId) -> Option<u64> {
        self.heard.get(&node).map(|way| way.features)
    }

    /// The core that something for a node is given to, of those that hand on.
    fn choose(&self, now: Time, node: NodeId, relays: &[NodeId]) -> Option<NodeId> {
        let known = self.by(now, node).filter(|by| relays.contains(by));
        known.or_else(|| relays.get((now.0 / TRY) as usize % relays.len().max(1)).copied())
    }
}

impl Meta {
    /// Cores that are linked and hand on what is for others.
    fn relays(&self, seen: &[Seen]) -> Vec<NodeId> {
        let hands_on =
            |seen: &&Seen| seen.is_up && seen.features.is_some_and(|features| features & RELAYS != 0);
        let is_core = |id: &NodeId| self.roster.members.get(id).is_some_and(super::Member::is_core);
        seen.iter().filter(hands_on).map(|seen| seen.id).filter(is_core).collect()
    }

    /// Whether words may get to a node, which is linked or not.
    pub(super) fn may_reach(&self, node: NodeId, seen: &[Seen]) -> bool {
        seen.iter().any(|seen| seen.id == node && seen.is_up)
            || !self.is_dead(node) && !self.relays(seen).is_empty()
    }

    /// Whether a linked node reads what is handed on.
    fn hands_on(&self, node: NodeId) -> bool {
        self.features.get(&node).is_some_and(|features| features & RELAYS != 0)
    }

    fn is_dead(&self, node: NodeId) -> bool {
        self.roster.members.get(&node).is_some_and(|member| member.state == State::Dead)
    }

    /// The core that hands on to this one what the core that leads says, where the two are not linked.
    pub fn leader_by(&self, now: Time) -> Option<NodeId> {
        self.ways.by(now, self.leader()?)
    }

    /// What is for nodes that are not linked goes by way of a core that is, or not at all: it is said again.
    pub(super) fn find_ways(&mut self, now: Time, seen: &[Seen]) {
        let is_up = |id: NodeId| seen.iter().any(|seen| seen.id == id && seen.is_up);
        if self.out.iter().all(|frame| is_up(frame.to)) {
            return;
        }
        let relays = self.relays(seen);
        for frame in std::mem::take(&mut self.out) {
            if is_up(frame.to) {
                self.out.push_back(frame);
            } else if !self.is_dead(frame.to)
                && frame.word.may_be_relayed()
                && !mutated(Mutation::ForgetWays)
                && let Some(by) = self.ways.choose(now, frame.to, &relays)
            {
                let word = Word::Meta(frame.word.word()).encode();
                let word =
                    OwnedWord::Relay { from: self.id, to: frame.to, features: self.config.features, word };
                self.out.push_back(MetaFrame { to: by, word });
            }
        }
    }

    /// A word of a node that is not linked to whom it is for. False for what is no word of this version.
    pub(super) fn relayed(
        &mut self,
        now: Time,
        by: NodeId,
        (from, to, features): (NodeId, NodeId, u64),
        word: &[u8],
    ) -> bool {
        if to != self.id {
            // It goes no further than over two links, and says what the sender has shown to this core.
            let features = self.features.get(&by).copied().filter(|_| by == from && self.group.is_some());
            if let (Some(features), true) = (features, self.hands_on(to)) {
                self.out.push_back(MetaFrame {
                    to,
                    word: OwnedWord::Relay { from, to, features, word: word.to_vec() },
                });
            }
            return true;
        }
        let is_of_a_core = self.roster.members.get(&by).is_some_and(super::Member::is_core);
        // Whoever is linked says it over the link: two ways are no order.
        if !is_of_a_core || self.features.contains_key(&from) || self.is_dead(from) {
            return true;
        }
        match wire::decode(word) {
            Some(Word::Meta(word)) if word.may_be_relayed() => {
                self.ways.heard(now, from, by, features);
                self.heard(now, from, &word)
            }
            _ => false,
        }
    }
}

impl MetaWord<'_> {
    /// Roster and records are had from whichever core is linked.
    fn may_be_relayed(&self) -> bool {
        match self {
            Self::Replica(_) | Self::Propose { .. } | Self::Proposed { .. } | Self::Sight(_) => true,
            Self::Roster(_) | Self::Copied(_) | Self::Records(_) | Self::Relay { .. } => false,
        }
    }
}

impl OwnedWord {
    fn may_be_relayed(&self) -> bool {
        self.word().may_be_relayed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: NodeId = NodeId(9);
    const RELAYS: [NodeId; 2] = [NodeId(1), NodeId(2)];

    #[test]
    fn each_core_is_tried_until_something_comes_by_one_of_them() {
        let mut ways = Ways::default();
        let tried: Vec<_> = (0..4).map(|turn| ways.choose(Time(turn * TRY), FAR, &RELAYS)).collect();
        assert_eq!(tried, [1, 2, 1, 2].map(|core| Some(NodeId(core))));
        ways.heard(Time(0), FAR, NodeId(2), 7);
        assert_eq!(ways.choose(Time(0), FAR, &RELAYS), Some(NodeId(2)));
        assert_eq!(ways.by(Time(0), FAR), Some(NodeId(2)));
        assert_eq!(ways.by(Time::default().after(FRESH), FAR), None, "that was long ago");
        assert_eq!(ways.choose(Time(0), FAR, &RELAYS[..1]), Some(NodeId(1)), "that one is gone");
        assert_eq!(ways.choose(Time(0), FAR, &[]), None);
    }

    #[test]
    fn a_way_ends_with_either_of_its_links_and_there_are_not_too_many() {
        let mut ways = Ways::default();
        for changed in [FAR, NodeId(1)] {
            ways.heard(Time(0), FAR, NodeId(1), 7);
            ways.changed(changed);
            assert_eq!(ways.by(Time(0), FAR), None);
        }
        for node in 0..2 * WAYS_MAX as u64 {
            ways.heard(Time(0), NodeId(node), NodeId(1), 7);
        }
        assert_eq!(ways.heard.len(), WAYS_MAX);
        ways.heard(Time::default().after(FRESH), FAR, NodeId(1), 7);
        assert_eq!(ways.heard.len(), 1);
    }
}
