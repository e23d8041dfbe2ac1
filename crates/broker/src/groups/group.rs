//! One shared group as its worker sees it, and the choice among its members.

use mqtt::QoS;

use super::{GroupMember, Member};
use crate::ids::{ConnectionId, ShardId, ShardSet, fold, hash};
use crate::message::MessageView;
use crate::settings::SharedStrategy;

/// Members of a shared group: connections of this node, and other nodes.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// Members that are connected, and nodes that have such members.
    pub connected: Candidates,
    /// Nodes with absent members only.
    pub absent: Candidates,
}

/// Members that take turns.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    members: Vec<GroupMember>,
    /// Weight of all members.
    weight: u64,
    /// Number of the next turn in round robin, see [`Self::at_weight`].
    next: u64,
    sticky: Option<Member>,
}

impl Group {
    pub fn is_empty(&self) -> bool {
        self.connected.members.is_empty() && self.absent.members.is_empty()
    }

    /// Adds or replaces a member.
    pub fn join(&mut self, member: GroupMember) {
        let (to, from) = match member.is_connected() {
            true => (&mut self.connected, &mut self.absent),
            false => (&mut self.absent, &mut self.connected),
        };
        from.leave(member.member);
        to.join(member);
    }

    pub fn leave(&mut self, member: Member) {
        self.connected.leave(member);
        self.absent.leave(member);
    }

    /// Number of members with a connection to this node.
    pub fn connections(&self) -> u32 {
        self.connected.members.iter().filter(|member| !member.is_elsewhere()).count() as u32
    }
}

impl Candidates {
    pub fn members(&self) -> &[GroupMember] {
        &self.members
    }

    /// Shards of the members, if each message for any of them goes to its shard. Empty otherwise, and without members.
    pub fn shards(&self) -> ShardSet {
        let shards: Option<ShardSet> = self.members.iter().map(GroupMember::shard).collect();
        shards.unwrap_or_default()
    }

    fn join(&mut self, member: GroupMember) {
        match self.members.iter_mut().find(|known| known.member == member.member) {
            Some(known) => *known = member,
            // Members are kept in the order of their subscriptions, which is the order of the first round.
            None => self.members.push(member),
        }
        self.weigh();
    }

    fn leave(&mut self, member: Member) {
        self.members.retain(|known| known.member != member);
        self.weigh();
    }

    fn weigh(&mut self) {
        self.weight = self.members.iter().map(|member| u64::from(member.weight)).sum();
    }

    /// Chooses a member. `is_candidate` says which members may be chosen at all.
    pub fn choose(
        &mut self,
        strategy: SharedStrategy,
        message: &MessageView<'_>,
        random: u64,
        is_candidate: &dyn Fn(&GroupMember) -> bool,
    ) -> Option<GroupMember> {
        let at = self.choose_index(strategy, message, random, is_candidate)?;
        let chosen = self.members[at];
        self.sticky = Some(chosen.member);
        // Another node has as many turns as it has members.
        let (before, with) = self.numbers_of(at);
        let number = self.next % self.weight.max(1);
        self.next = if number >= before && number + 1 < with { number + 1 } else { with };
        Some(chosen)
    }

    fn choose_index(
        &self,
        strategy: SharedStrategy,
        message: &MessageView<'_>,
        random: u64,
        eligible: &dyn Fn(&GroupMember) -> bool,
    ) -> Option<usize> {
        let count = self.members.len();
        // The first eligible member from the wanted index on.
        let from = |start: usize, eligible: &dyn Fn(&GroupMember) -> bool| {
            (0..count).map(|step| (start + step) % count.max(1)).find(|&at| eligible(&self.members[at]))
        };
        // Another node represents as many members as it has.
        let at = |number: u64| self.at_weight(number);
        match strategy {
            SharedStrategy::Sticky => {
                let same = |member: &GroupMember| Some(member.member) == self.sticky && eligible(member);
                from(0, &same).or_else(|| from(at(self.next), eligible))
            }
            SharedStrategy::Local => {
                let worker = message.publisher.map(|publisher| publisher.worker);
                let near = |member: &GroupMember| {
                    let connection = member.connection();
                    eligible(member) && connection.map(|connection| connection.worker) == worker
                };
                let here = |member: &GroupMember| eligible(member) && !member.is_elsewhere();
                from(at(self.next), &near)
                    .or_else(|| from(at(self.next), &here))
                    .or_else(|| from(at(self.next), eligible))
            }
            SharedStrategy::RoundRobin
            | SharedStrategy::Random
            | SharedStrategy::HashClientId
            | SharedStrategy::HashTopic => from(at(number(strategy, message, random, self.next)), eligible),
        }
    }

    /// Returns whether every member has the weight 1. The members of other nodes have one entry for each node, and an
    /// entry represents at least one member.
    fn has_equal_members(&self) -> bool {
        self.weight == self.members.len() as u64
    }

    /// Index of the member with this number. Each member has as many consecutive numbers as its weight, and numbering
    /// starts again after the last member.
    fn at_weight(&self, number: u64) -> usize {
        let mut number = number % self.weight.max(1);
        if self.has_equal_members() {
            return number as usize;
        }
        for (at, member) in self.members.iter().enumerate() {
            match number.checked_sub(u64::from(member.weight)) {
                Some(rest) => number = rest,
                None => return at,
            }
        }
        0
    }

    /// Total weight of the members before one, and the same including it.
    fn numbers_of(&self, at: usize) -> (u64, u64) {
        if self.has_equal_members() {
            return (at as u64, at as u64 + 1);
        }
        let weights = |members: &[GroupMember]| members.iter().map(|member| u64::from(member.weight)).sum();
        (weights(&self.members[..at]), weights(&self.members[..=at]))
    }
}

impl GroupMember {
    /// Returns whether the entry represents the members of another node.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self.member, Member::Node(_))
    }

    /// Shard of the member's queue. A member without one answers at once.
    pub fn shard(&self) -> Option<ShardId> {
        self.session.filter(|_| self.options.qos() > QoS::AtMostOnce).map(|session| session.shard)
    }

    pub fn connection(&self) -> Option<ConnectionId> {
        match self.member {
            Member::Connection(connection) => Some(connection),
            Member::Node(_) => None,
        }
    }

    /// Returns whether the member is connected.
    pub fn is_connected(&self) -> bool {
        !self.is_elsewhere() || self.are_connected
    }
}

/// Number that a strategy gives a message, for receivers that have no state of their own here. `turn` is the number of
/// the next turn.
pub(super) fn number(strategy: SharedStrategy, message: &MessageView<'_>, random: u64, turn: u64) -> u64 {
    match strategy {
        SharedStrategy::RoundRobin | SharedStrategy::Local => turn,
        SharedStrategy::Random => random,
        SharedStrategy::Sticky => 0,
        SharedStrategy::HashClientId => u64::from(fold(message.publisher_key)),
        SharedStrategy::HashTopic => u64::from(hash(message.topic.as_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Time, WorkerId};
    use crate::peers::NodeIndex;
    use crate::route::Options;

    fn member(slot: u32) -> GroupMember {
        let connection = ConnectionId { worker: WorkerId((slot % 2) as u16), slot, generation: 0 };
        GroupMember {
            member: Member::Connection(connection),
            weight: 1,
            are_connected: true,
            session: None,
            options: Options::default().with_qos(QoS::AtLeastOnce),
            subscription_id: 0,
        }
    }

    fn group(members: u32) -> Group {
        let mut group = Group::default();
        (0..members).for_each(|slot| group.join(member(slot)));
        group
    }

    fn message(topic: &str, publisher: u32) -> MessageView<'_> {
        MessageView {
            topic,
            properties: &[],
            payload: &[],
            qos: QoS::AtLeastOnce,
            retain: false,
            expires: Time::NEVER,
            received: Time::default(),
            publisher: Some(ConnectionId {
                worker: WorkerId((publisher % 2) as u16),
                slot: 99,
                generation: 0,
            }),
            publisher_key: u64::from(publisher),
            durability: crate::durability::Durability::LocalDisk,
            span: 0,
        }
    }

    fn chosen(
        group: &mut Group,
        strategy: SharedStrategy,
        topic: &str,
        publisher: u32,
        random: u64,
    ) -> Option<u32> {
        let choice = group.connected.choose(strategy, &message(topic, publisher), random, &|_| true)?;
        match choice.member {
            Member::Connection(connection) => Some(connection.slot),
            Member::Node(node) => Some(1000 + u32::from(node.0)),
        }
    }

    #[test]
    fn round_robin_visits_every_connected_member() {
        let mut group = group(3);
        group.leave(member(1).member);
        let order: Vec<_> =
            (0..4).filter_map(|_| chosen(&mut group, SharedStrategy::RoundRobin, "t", 0, 0)).collect();
        assert_eq!(order, [0, 2, 0, 2]);
    }

    #[test]
    fn sticky_stays_until_the_member_leaves() {
        let mut group = group(2);
        let first = chosen(&mut group, SharedStrategy::Sticky, "t", 0, 0);
        assert_eq!(chosen(&mut group, SharedStrategy::Sticky, "u", 1, 7), first);
        group.leave(member(first.unwrap_or_default()).member);
        assert_ne!(chosen(&mut group, SharedStrategy::Sticky, "t", 0, 0), first);
    }

    #[test]
    fn hashes_choose_the_same_member_for_the_same_client_or_topic() {
        let mut group = group(3);
        let by_client = chosen(&mut group, SharedStrategy::HashClientId, "a", 4, 0);
        assert_eq!(chosen(&mut group, SharedStrategy::HashClientId, "b", 4, 9), by_client);
        assert_ne!(chosen(&mut group, SharedStrategy::HashClientId, "b", 5, 9), by_client);
        let by_topic = chosen(&mut group, SharedStrategy::HashTopic, "a", 1, 0);
        assert_eq!(chosen(&mut group, SharedStrategy::HashTopic, "a", 2, 5), by_topic);
    }

    #[test]
    fn local_prefers_the_publishers_worker_and_random_follows_its_number() {
        let mut group = group(3);
        assert_eq!(chosen(&mut group, SharedStrategy::Local, "t", 1, 0), Some(1));
        assert_eq!(chosen(&mut group, SharedStrategy::Local, "t", 1, 0), Some(1));
        assert_eq!(chosen(&mut group, SharedStrategy::Random, "t", 0, 2), Some(2));
    }

    #[test]
    fn a_node_whose_members_leave_is_a_candidate_for_stored_messages_only() {
        let mut group = Group::default();
        group.join(GroupMember { are_connected: false, ..on_another_node(2) });
        assert!(chosen(&mut group, SharedStrategy::RoundRobin, "t", 0, 0).is_none());
        assert_eq!((group.absent.members().len(), group.is_empty()), (1, false));
        group.join(on_another_node(2));
        assert_eq!(chosen(&mut group, SharedStrategy::RoundRobin, "t", 0, 0), Some(1000));
        assert!(group.absent.members().is_empty());
        group.leave(Member::Node(NodeIndex(0)));
        assert!(group.is_empty());
    }

    fn on_another_node(count: u32) -> GroupMember {
        let (member, options) = (Member::Node(NodeIndex(0)), Options::default().with_qos(QoS::ExactlyOnce));
        GroupMember { member, weight: count, are_connected: true, session: None, options, subscription_id: 0 }
    }

    #[test]
    fn another_node_has_the_turns_of_all_its_members() {
        let mut group = group(2);
        group.join(on_another_node(3));
        let order: Vec<_> =
            (0..7).filter_map(|_| chosen(&mut group, SharedStrategy::RoundRobin, "t", 0, 0)).collect();
        assert_eq!(order, [0, 1, 1000, 1000, 1000, 0, 1]);
        assert_eq!(group.connections(), 2);
        let local: Vec<_> =
            (0..4).filter_map(|_| chosen(&mut group, SharedStrategy::Local, "t", 0, 0)).collect();
        assert!(local.iter().all(|slot| *slot < 2), "{local:?}");
    }
}
