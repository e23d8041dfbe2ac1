//! Messages of linked clusters for groups that have no member.
//!
//! Another cluster has given such a message to this one, so nobody else gets it. The members may be about to connect,
//! for example after a restart. So the message waits for a while, and its link gets no acknowledgement.
//!
//! A link acknowledges in order, so a message that waits holds back the others of its link. Therefore the wait belongs
//! to the group: it begins with the first message that finds no member. For a minute after it, messages do not wait,
//! unless a member has joined meanwhile.

use std::collections::{BTreeMap, VecDeque};

use mqtt::QoS;
use shard::origin_cluster;

use super::GroupHost;
use super::linked::target;
use super::offers::Delivery;
use crate::ids::Time;
use crate::message::Message;
use crate::store::{GroupName, ShardOutput};

/// Time for which messages wait for the first member of their group, in milliseconds.
const WAIT_MS: u64 = 10_000;
/// Time between two looks for members that this host is not notified of: durable sessions of other workers.
const LOOK_MS: u64 = 500;
/// Time after the wait for which it is remembered, in milliseconds.
const REMEMBER_MS: u64 = 60_000;
/// Maximum number of groups without a member that are known.
const GROUPS_MAX: usize = 1_000;
/// Maximum number of messages that wait: as many as a link may have in flight.
const MESSAGES_MAX: usize = 32_768;
/// Maximum size of these messages, the same.
const BYTES_MAX: usize = 64 << 20;

/// Groups that had no member for a message of a linked cluster.
#[derive(Debug)]
pub(super) struct VacantGroups {
    groups: BTreeMap<GroupName, Vacancy>,
    messages: usize,
    bytes: usize,
    /// Time of the next look.
    due: Time,
}

#[derive(Debug)]
struct Vacancy {
    /// End of the wait.
    until: Time,
    waiting: VecDeque<(Message, Delivery)>,
}

impl Default for VacantGroups {
    fn default() -> Self {
        Self { groups: BTreeMap::new(), messages: 0, bytes: 0, due: Time::NEVER }
    }
}

impl VacantGroups {
    /// Bytes of the messages that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps a message. Returns its delivery if the message does not wait.
    fn push(
        &mut self,
        now: Time,
        name: GroupName,
        message: &Message,
        delivery: Delivery,
    ) -> Option<Delivery> {
        let is_full = self.messages >= MESSAGES_MAX || self.bytes + message.size() > BYTES_MAX;
        if is_full || self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&name) {
            return Some(delivery);
        }
        let begun = || Vacancy { until: Time(now.0 + WAIT_MS), waiting: VecDeque::new() };
        let vacancy = self.groups.entry(name).or_insert_with(begun);
        if vacancy.until <= now {
            return Some(delivery);
        }
        // Another attempt may reach those that had no member.
        vacancy.waiting.push_back((message.clone(), Delivery { refused: Vec::new(), ..delivery }));
        self.messages += 1;
        self.bytes += message.size();
        self.due = self.due.min(Time(now.0 + LOOK_MS));
        None
    }

    /// Takes the oldest message of a group.
    fn pop(&mut self, name: &GroupName) -> Option<(Message, Delivery)> {
        let (message, delivery) = self.groups.get_mut(name)?.waiting.pop_front()?;
        self.messages -= 1;
        self.bytes -= message.size();
        Some((message, delivery))
    }

    fn len(&self, name: &GroupName) -> usize {
        self.groups.get(name).map_or(0, |vacancy| vacancy.waiting.len())
    }

    /// Moves the newest message of a group to its front.
    fn move_to_front(&mut self, name: &GroupName) {
        if let Some(Vacancy { waiting, .. }) = self.groups.get_mut(name) {
            waiting.rotate_right(1);
        }
    }

    fn check_empty(&self) {
        assert_eq!((self.messages, self.bytes), (0, 0), "messages that wait for a first member");
    }
}

impl GroupHost {
    /// Keeps a message of a linked cluster whose group has no member. Returns its delivery if the message does not
    /// wait. Only one whose publisher waits does, so that its link bounds their number.
    pub(super) fn wait_for_member(
        &mut self,
        now: Time,
        message: &Message,
        delivery: Delivery,
    ) -> Option<Delivery> {
        let view = message.view();
        let may_wait = view.qos > QoS::AtMostOnce
            && delivery.token.is_some()
            && delivery.identity.is_none()
            && !origin_cluster(view.properties).is_empty()
            && view.remaining_expiry(now).is_ok();
        match target(view.properties).filter(|_| may_wait) {
            Some(name) => self.vacant.push(now, name, message, delivery),
            None => Some(delivery),
        }
    }

    /// Gives the messages that wait to a member that has joined.
    pub(super) fn member_joined(&mut self, now: Time, name: &GroupName, out: &mut ShardOutput) {
        if self.vacant.groups.contains_key(name) {
            self.offer_waiting(now, name, out);
            self.vacant.groups.retain(|known, vacancy| known != name || !vacancy.waiting.is_empty());
        }
    }

    /// Offers the messages of a group, oldest first, until one has to wait again.
    fn offer_waiting(&mut self, now: Time, name: &GroupName, out: &mut ShardOutput) {
        for _ in 0..self.vacant.len(name) {
            let Some((message, delivery)) = self.vacant.pop(name) else { return };
            let left = self.vacant.len(name);
            self.deliver_to_one(now, name, &message, delivery, out);
            if self.vacant.len(name) > left {
                return self.vacant.move_to_front(name);
            }
        }
    }

    /// Returns the time at which [`Self::tick`] is due.
    pub fn next_deadline(&self) -> Time {
        self.vacant.due
    }

    /// Looks for members again. Messages that have waited long enough are dropped.
    pub fn tick(&mut self, now: Time, out: &mut ShardOutput) {
        let names: Vec<GroupName> = self.vacant.groups.keys().cloned().collect();
        for name in &names {
            self.offer_waiting(now, name, out);
        }
        let is_remembered = |vacancy: &Vacancy| vacancy.until.0.saturating_add(REMEMBER_MS) > now.0;
        self.vacant.groups.retain(|_, vacancy| !vacancy.waiting.is_empty() || is_remembered(vacancy));
        let due = |vacancy: &Vacancy| match vacancy.waiting.is_empty() {
            true => Time(vacancy.until.0.saturating_add(REMEMBER_MS)),
            false => vacancy.until.min(Time(now.0 + LOOK_MS)),
        };
        self.vacant.due = self.vacant.groups.values().map(due).min().unwrap_or(Time::NEVER);
    }

    pub(super) fn check_none_wait(&self) {
        self.vacant.check_empty();
    }
}
