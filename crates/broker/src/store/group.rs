//! One shared group and its choice among its members.

use mqtt::QoS;

use super::{GroupName, Member};
use crate::ids::{ConnectionId, fold, hash};
use crate::message::MessageView;
use crate::peers::Members;
use crate::route::Options;
use crate::settings::SharedStrategy;

#[derive(Debug)]
pub(super) struct Group {
    name: GroupName,
    members: Vec<GroupMember>,
    /// Weight of all members.
    weight: u64,
    /// Number of the next turn in round robin, see [`Self::at_weight`].
    next: u64,
    sticky: Option<Member>,
    /// Members that other nodes were last notified of.
    pub announced: Members,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct GroupMember {
    pub member: Member,
    /// Number of members that the entry represents: 1 unless it is another node.
    pub weight: u32,
    /// True when the members of the other node are connected.
    pub are_connected: bool,
    pub connection: Option<ConnectionId>,
    pub options: Options,
    pub subscription_id: u32,
}

/// The member that gets a message.
#[derive(Debug)]
pub(super) struct Choice {
    pub member: Member,
    pub connection: Option<ConnectionId>,
    pub options: Options,
    pub subscription_id: u32,
}

impl Group {
    pub fn new(name: GroupName) -> Self {
        Self { name, members: Vec::new(), weight: 0, next: 0, sticky: None, announced: Members::NONE }
    }

    pub fn name(&self) -> &GroupName {
        &self.name
    }

    pub fn members(&self) -> &[GroupMember] {
        &self.members
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Adds or replaces a member. Returns true when it was a member already.
    pub fn join(&mut self, member: GroupMember) -> bool {
        let known = self.members.iter_mut().find(|known| known.member == member.member);
        let existed = known.is_some();
        match known {
            Some(known) => *known = member,
            // Members are kept in the order of their subscriptions, which is the order of the first round.
            None => self.members.push(member),
        }
        self.weight = self.members.iter().map(|member| u64::from(member.weight)).sum();
        existed
    }

    pub fn leave(&mut self, member: Member) -> bool {
        let before = self.members.len();
        self.members.retain(|known| known.member != member);
        self.weight = self.members.iter().map(|member| u64::from(member.weight)).sum();
        self.members.len() < before
    }

    /// Members of this node, as other nodes are notified of them.
    pub fn own_members(&self) -> Members {
        let own = || self.members.iter().filter(|member| !member.is_elsewhere());
        let connected = own().filter(|member| member.is_connected()).count() as u32;
        match connected {
            0 => Members { count: own().count() as u32, are_connected: false },
            count => Members { count, are_connected: true },
        }
    }

    /// Chooses among connected members. Chooses among absent durable ones when none is connected and the message can
    /// wait. `is_candidate` says which members may be chosen at all.
    pub fn choose(
        &mut self,
        strategy: SharedStrategy,
        message: &MessageView<'_>,
        random: u64,
        is_candidate: &dyn Fn(&GroupMember) -> bool,
    ) -> Option<Choice> {
        let connected = |member: &GroupMember| member.is_connected() && is_candidate(member);
        let durable = |member: &GroupMember| {
            message.qos.min(member.options.qos()) > QoS::AtMostOnce
                && !member.is_connected()
                && is_candidate(member)
        };
        let at = self
            .choose_among(strategy, message, random, &connected)
            .or_else(|| self.choose_among(strategy, message, random, &durable))?;
        let chosen = self.members[at];
        self.sticky = Some(chosen.member);
        // Another node has as many turns as it has members.
        let (before, with) = self.numbers_of(at);
        let number = self.next % self.weight.max(1);
        self.next = if number >= before && number + 1 < with { number + 1 } else { with };
        let GroupMember { member, connection, options, subscription_id, .. } = chosen;
        Some(Choice { member, connection, options, subscription_id })
    }

    fn choose_among(
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
            SharedStrategy::RoundRobin => from(at(self.next), eligible),
            SharedStrategy::Random => from(at(random), eligible),
            SharedStrategy::Sticky => {
                let same = |member: &GroupMember| Some(member.member) == self.sticky && eligible(member);
                from(0, &same).or_else(|| from(at(self.next), eligible))
            }
            SharedStrategy::HashClientId => from(at(u64::from(fold(message.publisher_key))), eligible),
            SharedStrategy::HashTopic => from(at(u64::from(hash(message.topic.as_bytes()))), eligible),
            SharedStrategy::Local => {
                let worker = message.publisher.map(|publisher| publisher.worker);
                let near = |member: &GroupMember| {
                    eligible(member) && member.connection.map(|connection| connection.worker) == worker
                };
                let here = |member: &GroupMember| eligible(member) && !member.is_elsewhere();
                from(at(self.next), &near)
                    .or_else(|| from(at(self.next), &here))
                    .or_else(|| from(at(self.next), eligible))
            }
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

    /// Returns whether the member is connected.
    pub fn is_connected(&self) -> bool {
        self.connection.is_some() || self.is_elsewhere() && self.are_connected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Time, WorkerId};
    use crate::peers::NodeIndex;

    fn member(slot: u32, connected: bool) -> GroupMember {
        let connection = ConnectionId { worker: WorkerId((slot % 2) as u16), slot, generation: 0 };
        GroupMember {
            member: Member::Connection(connection),
            weight: 1,
            are_connected: connected,
            connection: connected.then_some(connection),
            options: Options::default().with_qos(QoS::AtLeastOnce),
            subscription_id: 0,
        }
    }

    fn group(connected: &[bool]) -> Group {
        let mut group = Group::new(GroupName { share: "g".into(), filter: "t".into() });
        for (slot, connected) in (0..).zip(connected) {
            assert!(!group.join(member(slot, *connected)));
        }
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
        }
    }

    fn chosen(
        group: &mut Group,
        strategy: SharedStrategy,
        topic: &str,
        publisher: u32,
        random: u64,
    ) -> Option<u32> {
        let choice = group.choose(strategy, &message(topic, publisher), random, &|_| true)?;
        match choice.member {
            Member::Connection(connection) => Some(connection.slot),
            Member::Session(session) => Some(session.slot),
            Member::Node(node) => Some(1000 + u32::from(node.0)),
        }
    }

    #[test]
    fn round_robin_visits_every_connected_member() {
        let mut group = group(&[true, false, true]);
        let order: Vec<_> =
            (0..4).filter_map(|_| chosen(&mut group, SharedStrategy::RoundRobin, "t", 0, 0)).collect();
        assert_eq!(order, [0, 2, 0, 2]);
    }

    #[test]
    fn sticky_stays_until_the_member_leaves() {
        let mut group = group(&[true, true]);
        let first = chosen(&mut group, SharedStrategy::Sticky, "t", 0, 0);
        assert_eq!(chosen(&mut group, SharedStrategy::Sticky, "u", 1, 7), first);
        group.leave(member(first.unwrap_or_default(), true).member);
        assert_ne!(chosen(&mut group, SharedStrategy::Sticky, "t", 0, 0), first);
    }

    #[test]
    fn hashes_choose_the_same_member_for_the_same_client_or_topic() {
        let mut group = group(&[true, true, true]);
        let by_client = chosen(&mut group, SharedStrategy::HashClientId, "a", 4, 0);
        assert_eq!(chosen(&mut group, SharedStrategy::HashClientId, "b", 4, 9), by_client);
        assert_ne!(chosen(&mut group, SharedStrategy::HashClientId, "b", 5, 9), by_client);
        let by_topic = chosen(&mut group, SharedStrategy::HashTopic, "a", 1, 0);
        assert_eq!(chosen(&mut group, SharedStrategy::HashTopic, "a", 2, 5), by_topic);
    }

    #[test]
    fn local_prefers_the_publishers_worker_and_random_follows_its_number() {
        let mut group = group(&[true, true, true]);
        assert_eq!(chosen(&mut group, SharedStrategy::Local, "t", 1, 0), Some(1));
        assert_eq!(chosen(&mut group, SharedStrategy::Local, "t", 1, 0), Some(1));
        assert_eq!(chosen(&mut group, SharedStrategy::Random, "t", 0, 2), Some(2));
    }

    #[test]
    fn absent_members_are_chosen_only_when_no_member_is_connected() {
        let mut group = group(&[false, false]);
        assert!(chosen(&mut group, SharedStrategy::RoundRobin, "t", 0, 0).is_some());
        group.join(member(1, true));
        assert_eq!(chosen(&mut group, SharedStrategy::RoundRobin, "t", 0, 0), Some(1));
        assert!(
            chosen(&mut Group::new(group.name().clone()), SharedStrategy::RoundRobin, "t", 0, 0).is_none()
        );
    }

    fn on_another_node(count: u32) -> GroupMember {
        let (member, options) = (Member::Node(NodeIndex(0)), Options::default().with_qos(QoS::ExactlyOnce));
        GroupMember {
            member,
            weight: count,
            are_connected: true,
            connection: None,
            options,
            subscription_id: 0,
        }
    }

    #[test]
    fn another_node_has_the_turns_of_all_its_members() {
        let mut group = group(&[true, true]);
        assert!(!group.join(on_another_node(3)));
        let order: Vec<_> =
            (0..7).filter_map(|_| chosen(&mut group, SharedStrategy::RoundRobin, "t", 0, 0)).collect();
        assert_eq!(order, [0, 1, 1000, 1000, 1000, 0, 1]);
        assert_eq!(group.own_members(), Members { count: 2, are_connected: true });
        let local: Vec<_> =
            (0..4).filter_map(|_| chosen(&mut group, SharedStrategy::Local, "t", 0, 0)).collect();
        assert!(local.iter().all(|slot| *slot < 2), "{local:?}");
    }
}
