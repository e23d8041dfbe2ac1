//! Relays. When two nodes do not reach each other, a core that reaches both relays the messages of the meta group and
//! the proposals for the leader. Exactly one core relays a message, and no message waits there.

use std::collections::BTreeMap;
use std::time::Duration;

use link::{NodeId, Time};

use super::{LinkStatus, Meta, MetaFrame, MetaMessage, OwnedMetaMessage, State};
use crate::features::RELAYS;
use crate::mutation::{Mutation, mutated};
use crate::wire::{self, PeerMessage};

/// Relays by which nodes without a link to this one were reached.
#[derive(Debug, Default)]
pub struct Relays {
    learned: BTreeMap<NodeId, Relay>,
    /// Messages that this core has relayed.
    pub relayed_count: u64,
    /// Start of the current second and the bytes relayed in it, for each linked node.
    spent: BTreeMap<NodeId, (Time, usize)>,
}

#[derive(Debug)]
struct Relay {
    by: NodeId,
    at: Time,
    /// Features of the node, as reported by that core.
    features: u64,
}

/// Time for which a node counts as reachable after a relayed message. Cores of the group send each other something more
/// often.
const FRESH: Duration = Duration::from_secs(3);
/// Time for which each core is tried while nothing has arrived by any of them, in microseconds.
const TRY: u64 = 700_000;
const RELAYS_MAX: usize = 256;
/// Maximum bytes that are relayed for a node in one second, so that other messages on the link do not wait long.
const BYTES_PER_SECOND: usize = 4 << 20;
/// Maximum length in bytes of a message by a relay from which nothing has arrived.
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

    /// Notes that a node's link is up or down: relays by it, and to it, have changed.
    pub fn changed(&mut self, node: NodeId) {
        self.learned.retain(|to, relay| *to != node && relay.by != node);
        self.spent.remove(&node);
    }

    /// Returns the relay by which a node was reached recently.
    pub fn by(&self, now: Time, node: NodeId) -> Option<NodeId> {
        self.learned.get(&node).filter(|relay| relay.at.after(FRESH) > now).map(|relay| relay.by)
    }

    pub fn features(&self, now: Time, node: NodeId) -> Option<u64> {
        self.by(now, node).and_then(|_| self.learned.get(&node)).map(|relay| relay.features)
    }

    /// Chooses the relay, among the cores that relay, for a message of `bytes` bytes to a node.
    fn choose(&self, now: Time, node: NodeId, bytes: usize, relays: &[NodeId]) -> Option<NodeId> {
        let known = self.by(now, node).filter(|by| relays.contains(by));
        let tried = || relays.get((now.0 / TRY) as usize % relays.len().max(1)).copied();
        known.or_else(|| tried().filter(|_| bytes <= UNPROVEN_MAX))
    }

    /// Returns whether `bytes` more bytes may be relayed for a linked node.
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
    /// Returns the linked cores that relay messages.
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

    /// Returns whether messages may reach a node, linked or not.
    pub(super) fn may_reach(&self, node: NodeId, link_status: &[LinkStatus]) -> bool {
        link_status.iter().any(|link_status| link_status.id == node && link_status.is_up)
            || !self.is_dead(node) && !self.relays(link_status).is_empty()
    }

    /// Returns whether a linked node reads relayed messages.
    fn can_relay(&self, node: NodeId) -> bool {
        self.features.get(&node).is_some_and(|features| features & RELAYS != 0)
    }

    fn is_dead(&self, node: NodeId) -> bool {
        self.roster.members.get(&node).is_some_and(|member| member.state == State::Dead)
    }

    /// Returns the core that relays the leader's messages to this one, if the two are not linked.
    pub fn leader_via(&self, now: Time) -> Option<NodeId> {
        self.relays.by(now, self.leader()?)
    }

    /// Sends messages for nodes without a link by way of a linked core. Others are dropped, because they are repeated
    /// later.
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

    /// Forwards a relayed message to its destination. Returns false for a message that this version does not know.
    pub(super) fn relayed(
        &mut self,
        now: Time,
        by: NodeId,
        (from, to, features): (NodeId, NodeId, u64),
        message: &[u8],
    ) -> bool {
        if to != self.id {
            // A message crosses at most two links. Its features are those that the sender has announced to this core.
            let features = self.features.get(&by).copied().filter(|_| by == from && self.core.is_some());
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
        // A linked node uses its link: two ways would lose the order.
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

    /// Returns whether a message from or to a node is relayed. A dead node takes no part in agreement, but its next
    /// incarnation sends a proposal to join, and gets the answer.
    fn is_for(&self, node: NodeId, message: &MetaMessage<'_>, joins: bool) -> bool {
        message.may_be_relayed() && (joins || !self.is_dead(node))
    }
}

impl MetaMessage<'_> {
    /// Returns whether such a message may be relayed. Rosters and records come from any linked core.
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
    fn each_core_is_tried_until_a_message_arrives_by_one_of_them() {
        let mut relays = Relays::default();
        let tried: Vec<_> = (0..4).map(|turn| relays.choose(Time(turn * TRY), FAR, 9, &RELAYS)).collect();
        assert_eq!(tried, [1, 2, 1, 2].map(|core| Some(NodeId(core))));
        assert_eq!(
            relays.choose(Time(0), FAR, UNPROVEN_MAX + 1, &RELAYS),
            None,
            "perhaps it does not arrive"
        );
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
    fn a_relay_ends_with_either_of_its_links_and_relays_have_a_bound() {
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
    fn relayed_bytes_per_node_and_second_have_a_bound() {
        let mut relays = Relays::default();
        let half = BYTES_PER_SECOND / 2;
        let mut within_budget = |at: u64, node: u64| relays.within_budget(Time(at), NodeId(node), half);
        assert_eq!([within_budget(0, 1), within_budget(1, 1), within_budget(2, 1)], [true, true, false]);
        assert!(within_budget(2, 2), "each node has its own budget");
        assert!(within_budget(1_000_000, 1));
        assert_eq!(relays.relayed_count, 4);
    }
}
