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
    /// Words that this core has handed on.
    pub handed_on: u64,
    /// Bytes that were handed on for each linked node in the second that began then.
    spent: BTreeMap<NodeId, (Time, usize)>,
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
/// Bytes that are handed on for a node in a second: what is for others on a link must not wait for it long.
const BYTES_PER_SECOND: usize = 4 << 20;
/// Longer words go by a way only by which something has come.
const UNHEARD_MAX: usize = 4 << 10;

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
        self.spent.remove(&node);
    }

    /// By whom a node was heard lately.
    pub fn by(&self, now: Time, node: NodeId) -> Option<NodeId> {
        self.heard.get(&node).filter(|way| way.at.after(FRESH) > now).map(|way| way.by)
    }

    pub fn features(&self, now: Time, node: NodeId) -> Option<u64> {
        self.by(now, node).and_then(|_| self.heard.get(&node)).map(|way| way.features)
    }

    /// The core that so many bytes for a node are given to, of those that hand on.
    fn choose(&self, now: Time, node: NodeId, bytes: usize, relays: &[NodeId]) -> Option<NodeId> {
        let known = self.by(now, node).filter(|by| relays.contains(by));
        let tried = || relays.get((now.0 / TRY) as usize % relays.len().max(1)).copied();
        known.or_else(|| tried().filter(|_| bytes <= UNHEARD_MAX))
    }

    /// Whether so many bytes more are handed on for a linked node.
    fn affords(&mut self, now: Time, node: NodeId, bytes: usize) -> bool {
        let spent = self.spent.entry(node).or_insert((now, 0));
        if spent.0.after(Duration::from_secs(1)) <= now {
            *spent = (now, 0);
        }
        let affords = spent.1 + bytes <= BYTES_PER_SECOND;
        spent.1 += if affords { bytes } else { 0 };
        self.handed_on += u64::from(affords);
        affords
    }
}

impl Meta {
    /// Cores that are linked and hand on what is for others.
    fn relays(&self, seen: &[Seen]) -> Vec<NodeId> {
        let hands_on =
            |seen: &&Seen| seen.is_up && seen.features.is_some_and(|features| features & RELAYS != 0);
        let serves = |id: &NodeId| {
            let member = self.roster.members.get(id);
            member.is_some_and(|member| member.is_core() && member.state != State::Dead)
        };
        seen.iter().filter(hands_on).map(|seen| seen.id).filter(serves).collect()
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
            } else if self.is_for(frame.to, &frame.word.word(), matches!(frame.word, OwnedWord::Proposed(..)))
                && !mutated(Mutation::ForgetWays)
            {
                let word = Word::Meta(frame.word.word()).encode();
                if let Some(by) = self.ways.choose(now, frame.to, word.len(), &relays) {
                    let (from, to, features) = (self.id, frame.to, self.config.features);
                    let word = OwnedWord::Relay { from, to, features, word };
                    self.out.push_back(MetaFrame { to: by, word });
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
        word: &[u8],
    ) -> bool {
        if to != self.id {
            // It goes no further than over two links, and says what the sender has shown to this core.
            let features = self.features.get(&by).copied().filter(|_| by == from && self.group.is_some());
            if let (Some(features), true) = (features, self.hands_on(to))
                && self.ways.affords(now, from, word.len())
            {
                self.out.push_back(MetaFrame {
                    to,
                    word: OwnedWord::Relay { from, to, features, word: word.to_vec() },
                });
            }
            return true;
        }
        let is_of_a_core = self.roster.members.get(&by).is_some_and(super::Member::is_core);
        // Whoever is linked says it over the link: two ways are no order.
        if !is_of_a_core || self.features.contains_key(&from) {
            return true;
        }
        match wire::decode(word) {
            Some(Word::Meta(word)) if word.may_be_relayed() => {
                if !self.is_for(from, &word, matches!(word, MetaWord::Propose { .. })) {
                    return true;
                }
                self.ways.heard(now, from, by, features);
                self.heard(now, from, &word)
            }
            _ => false,
        }
    }

    /// Whether a word is handed on, to or from a node. With one that is dead nothing is agreed; its next life wants to join, and hears what came of that.
    fn is_for(&self, node: NodeId, word: &MetaWord<'_>, joins: bool) -> bool {
        word.may_be_relayed() && (joins || !self.is_dead(node))
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

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: NodeId = NodeId(9);
    const RELAYS: [NodeId; 2] = [NodeId(1), NodeId(2)];

    #[test]
    fn each_core_is_tried_until_something_comes_by_one_of_them() {
        let mut ways = Ways::default();
        let tried: Vec<_> = (0..4).map(|turn| ways.choose(Time(turn * TRY), FAR, 9, &RELAYS)).collect();
        assert_eq!(tried, [1, 2, 1, 2].map(|core| Some(NodeId(core))));
        assert_eq!(ways.choose(Time(0), FAR, UNHEARD_MAX + 1, &RELAYS), None, "perhaps nobody hears it");
        ways.heard(Time(0), FAR, NodeId(2), 7);
        assert_eq!(ways.choose(Time(0), FAR, UNHEARD_MAX + 1, &RELAYS), Some(NodeId(2)));
        assert_eq!(ways.features(Time(0), FAR), Some(7));
        assert_eq!(ways.by(Time(0), FAR), Some(NodeId(2)));
        let later = Time::default().after(FRESH);
        assert_eq!((ways.by(later, FAR), ways.features(later, FAR)), (None, None), "that was long ago");
        assert_eq!(ways.choose(Time(0), FAR, 9, &RELAYS[..1]), Some(NodeId(1)), "that one is gone");
        assert_eq!(ways.choose(Time(0), FAR, 9, &[]), None);
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

    #[test]
    fn no_more_is_handed_on_for_a_node_in_a_second_than_others_can_bear() {
        let mut ways = Ways::default();
        let half = BYTES_PER_SECOND / 2;
        let mut affords = |at: u64, node: u64| ways.affords(Time(at), NodeId(node), half);
        assert_eq!([affords(0, 1), affords(1, 1), affords(2, 1)], [true, true, false]);
        assert!(affords(2, 2), "each has its own");
        assert!(affords(1_000_000, 1));
        assert_eq!(ways.handed_on, 4);
    }
}
