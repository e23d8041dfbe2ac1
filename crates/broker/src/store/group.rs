//! One shared subscription group and how it chooses among its members.

use mqtt::QoS;

use super::{GroupName, Member};
use crate::ids::{ConnectionId, fold, hash};
use crate::message::MessageView;
use crate::route::Options;
use crate::settings::SharedStrategy;

#[derive(Debug)]
pub(super) struct Group {
    name: GroupName,
    members: Vec<GroupMember>,
    /// Round robin: whose turn it is.
    next: usize,
    sticky: Option<Member>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct GroupMember {
    pub member: Member,
    pub connection: Option<ConnectionId>,
    pub options: Options,
    pub subscription_id: u32,
}

/// The member a message goes to.
#[derive(Debug)]
pub(super) struct Choice {
    pub member: Member,
    pub connection: Option<ConnectionId>,
    pub options: Options,
    pub subscription_id: u32,
}

impl Group {
    pub fn new(name: GroupName) -> Self {
        Self { name, members: Vec::new(), next: 0, sticky: None }
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

    /// Adds or replaces a member; true when it was one already.
    pub fn join(&mut self, member: GroupMember) -> bool {
        match self.members.iter_mut().find(|known| known.member == member.member) {
            Some(known) => {
                *known = member;
                true
            }
            None => {
                // In the order of their subscriptions: so goes the first round.
                self.members.push(member);
                false
            }
        }
    }

    pub fn leave(&mut self, member: Member) -> bool {
        let before = self.members.len();
        self.members.retain(|known| known.member != member);
        self.members.len() < before
    }

    /// Chooses among connected members; among absent durable ones when nobody is connected and the message can wait.
    pub fn choose(
        &mut self,
        strategy: SharedStrategy,
        message: &MessageView<'_>,
        random: u64,
    ) -> Option<Choice> {
        let connected = |member: &GroupMember| member.connection.is_some();
        let durable = |member: &GroupMember| {
            message.qos.min(member.options.qos()) > QoS::AtMostOnce && !connected(member)
        };
        let at = self
            .choose_among(strategy, message, random, &connected)
            .or_else(|| self.choose_among(strategy, message, random, &durable))?;
        let chosen = self.members[at];
        self.sticky = Some(chosen.member);
        self.next = at + 1;
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
        // From the wanted place on, the first that is eligible.
        let from = |start: usize, eligible: &dyn Fn(&GroupMember) -> bool| {
            (0..count).map(|step| (start + step) % count.max(1)).find(|&at| eligible(&self.members[at]))
        };
        match strategy {
            SharedStrategy::RoundRobin => from(self.next, eligible),
            SharedStrategy::Random => from((random % count.max(1) as u64) as usize, eligible),
            SharedStrategy::Sticky => {
                let same = |member: &GroupMember| Some(member.member) == self.sticky && eligible(member);
                from(0, &same).or_else(|| from(self.next, eligible))
            }
            SharedStrategy::HashClientId => {
                from(fold(message.publisher_key) as usize % count.max(1), eligible)
            }
            SharedStrategy::HashTopic => {
                from(hash(message.topic.as_bytes()) as usize % count.max(1), eligible)
            }
            SharedStrategy::Local => {
                let worker = message.publisher.map(|publisher| publisher.worker);
                let near = |member: &GroupMember| {
                    eligible(member) && member.connection.map(|connection| connection.worker) == worker
                };
                from(self.next, &near).or_else(|| from(self.next, eligible))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Time, WorkerId};

    fn member(slot: u32, connected: bool) -> GroupMember {
        let connection = ConnectionId { worker: WorkerId((slot % 2) as u16), slot, generation: 0 };
        GroupMember {
            member: Member::Connection(connection),
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
        let choice = group.choose(strategy, &message(topic, publisher), random)?;
        match choice.member {
            Member::Connection(connection) => Some(connection.slot),
            Member::Session(session) => Some(session.slot),
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
    fn absent_members_are_chosen_only_when_nobody_is_there() {
        let mut group = group(&[false, false]);
        assert!(chosen(&mut group, SharedStrategy::RoundRobin, "t", 0, 0).is_some());
        group.join(member(1, true));
        assert_eq!(chosen(&mut group, SharedStrategy::RoundRobin, "t", 0, 0), Some(1));
        assert!(
            chosen(&mut Group::new(group.name().clone()), SharedStrategy::RoundRobin, "t", 0, 0).is_none()
        );
    }
}
