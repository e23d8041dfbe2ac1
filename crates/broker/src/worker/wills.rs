//! Wills: whether a client may publish its Will, and when it is published.

use std::collections::VecDeque;
use std::sync::Arc;

use mqtt::{QoS, TopicName, Will};
use shard::{Mutation, mutated};

use super::Worker;
use super::dispatch::{Dispatched, Publishing};
use super::publish::{OVERLOAD_RETRY_MS, is_reserved};
use crate::access::{Action, RetryAuthorize};
use crate::batch::{AuthorizeSubject, Token};
use crate::connection::{Connection, Phase};
use crate::durability::Durability;
use crate::groups::GroupRequest;
use crate::ids::{ConnectionId, ShardId, ShardSet, Time};
use crate::message::{Message, MessageView};
use crate::mount::mounted;
use crate::node::Node;
use crate::quota::Payers;
use crate::store::{DueWill, Identity, Request};
use crate::will::WillOwner;

/// Maximum number of waiting messages that one turn publishes.
const WAITING_AT_ONCE: usize = 100;

/// Messages that wait until this node knows the routes of the other nodes. Shards have them in their state.
pub(super) struct WaitingWills {
    queue: VecDeque<Waiting>,
    /// Time at which the waiting messages are checked.
    due: Time,
}

enum Waiting {
    /// A Will of a durable session: there is at most one for each.
    Will(DueWill),
    /// A message that a member of a shared group left unfinished.
    Orphan(ShardId, GroupRequest),
}

impl Default for WaitingWills {
    fn default() -> Self {
        Self { queue: VecDeque::new(), due: Time::NEVER }
    }
}

impl WaitingWills {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Time of the next call of [`Self::take_due`].
    pub fn due(&self) -> Time {
        self.due
    }

    fn push(&mut self, waiting: Waiting, now: Time) {
        self.queue.push_back(waiting);
        self.due = self.due.min(Time(now.0 + OVERLOAD_RETRY_MS));
    }

    /// Takes the messages to publish now: none while the node is stale, else as many as fit one turn.
    fn take_due(&mut self, now: Time, is_stale: bool) -> Vec<Waiting> {
        let count = if is_stale { 0 } else { self.queue.len().min(WAITING_AT_ONCE) };
        let waiting = self.queue.drain(..count).collect();
        self.due = match self.queue.is_empty() {
            true => Time::NEVER,
            false if is_stale => Time(now.0 + OVERLOAD_RETRY_MS),
            false => now,
        };
        waiting
    }
}

impl Worker {
    /// Publishes the Will of a session that ends with its connection. The Message Expiry Interval starts now.
    pub(super) fn publish_will(&mut self, will: &Message, payers: &Payers) {
        let view = will.view().arrived(self.clock.now());
        if let Ok(name) = TopicName::parse(view.topic) {
            self.dispatch_as(name, view, Publishing { will_payers: Some(payers), ..Publishing::default() });
        }
    }

    /// Publishes a Will of a durable session. A node that has just started keeps the Will until it knows the routes of
    /// the other nodes.
    pub(super) fn receive_will(&mut self, will: DueWill) {
        if self.wills.is_empty() && !self.node.is_stale(self.clock.now()) {
            return self.publish_due(will);
        }
        self.wills.push(Waiting::Will(will), self.clock.now());
    }

    /// Gives a message that a member left unfinished to its group. A node that has just started keeps it until it knows
    /// the members on other nodes.
    pub(super) fn receive_orphan(&mut self, shard: ShardId, orphan: GroupRequest) {
        if self.wills.is_empty() && !self.node.is_stale(self.clock.now()) {
            return self.outbox.group_request(shard, orphan);
        }
        self.wills.push(Waiting::Orphan(shard, orphan), self.clock.now());
    }

    /// Publishes waiting messages, up to the maximum of one turn.
    pub(super) fn publish_waiting_wills(&mut self) {
        let is_stale = self.node.is_stale(self.clock.now());
        for waiting in self.wills.take_due(self.clock.now(), is_stale) {
            match waiting {
                Waiting::Will(will) => self.publish_due(will),
                Waiting::Orphan(shard, orphan) => self.outbox.group_request(shard, orphan),
            }
        }
    }

    /// Publishes a Will that is due. Its shard keeps the Will until all receivers have it.
    fn publish_due(&mut self, will: DueWill) {
        let DueWill { shard, key, id, message, owner } = will;
        if owner
            .as_ref()
            .is_some_and(|owner| !owner.may_still_publish(&self.node, self.clock.now(), &message))
        {
            self.counters.wills_denied += 1;
            return self
                .outbox
                .request(shard, Request::WillDispatched { key, outstanding: 0, shards: ShardSet::EMPTY });
        }
        let view = message.view().arrived(self.clock.now());
        let name = TopicName::parse(view.topic);
        debug_assert!(name.is_ok(), "checked at CONNECT");
        let payers = owner.as_ref().filter(|_| view.retain);
        let payers = payers.map(|owner| self.node.payers(owner.mountpoint(), owner.identity().username));
        let payers = payers.unwrap_or_default();
        let publishing = Publishing {
            token: Some(Token::Append { shard, key }),
            identity: (view.qos > QoS::AtMostOnce).then(|| Identity::of_will(shard, id)),
            will_payers: Some(&payers),
            will_owner: owner.as_deref(),
            ..Publishing::default()
        };
        let dispatched = name.map(|name| self.dispatch_as(name, view, publishing)).unwrap_or_default();
        let Dispatched { outstanding, shards, .. } = dispatched;
        self.outbox.request(shard, Request::WillDispatched { key, outstanding, shards });
    }

    /// Checks the Will of a connected client against the current rules and drops a denied Will. Returns false if the
    /// answer is not known yet.
    pub(super) fn recheck_will(&mut self, slot: u32) -> bool {
        let rules = self.node.access.generation();
        let Some(connection) = self.connections.occupant_ref(slot) else { return true };
        if connection.extra.as_ref().is_none_or(|extra| extra.will.is_none()) {
            return true;
        }
        let answer = connection.may_will(&self.node);
        let Some(connection) = self.connections.occupant(slot) else { return true };
        let client_id = connection.client_id.clone();
        let extra = connection.extra();
        match answer {
            Some(true) => extra.will_rules = rules,
            Some(false) => {
                extra.will = None;
                self.counters.wills_denied += 1;
                tracing::debug!(client = &*client_id, "Will discarded: access rules deny it");
            }
            None => {}
        }
        answer.is_some()
    }
}

impl Connection {
    /// Returns whether the client may publish its Will. `None` means that the answer is not known yet.
    pub(super) fn may_will(&self, node: &Arc<Node>) -> Option<bool> {
        let will = self.extra.as_ref().and_then(|extra| extra.will.as_ref());
        let Some((will, _)) = will else { return Some(true) };
        let view = will.view();
        let Some(topic) = self.unmounted(view.topic) else { return Some(false) };
        // Authentication may have changed the Client Identifier.
        if is_reserved(topic, self.own_client_id()) || (self.marks.mounted && topic.starts_with('$')) {
            return Some(false);
        }
        if !node.access.guards_topics() {
            return Some(true);
        }
        let action = Action::Publish { qos: view.qos, retain: view.retain };
        let about =
            if self.phase == Phase::Open { AuthorizeSubject::Subscription } else { AuthorizeSubject::Will };
        self.authorize(node, action, topic, about).map(|permission| permission.allowed)
    }
}

impl WillOwner {
    /// Returns whether the client may still publish its Will while it is closed, or afterwards. The client must not be
    /// banned, removed or expired, and the current rules must allow the Will. A rule that needs the answer of another
    /// server does not prevent the Will.
    pub(super) fn may_still_publish(&self, node: &Node, now: Time, will: &Message) -> bool {
        let access = &node.access;
        let identity = self.identity();
        if self.has_ended(now) || access.revoked(identity).is_some() {
            return false;
        }
        if !access.guards_topics()
            || !self.needs_check(access.generation())
            || mutated(Mutation::PublishDeniedWills)
        {
            return true;
        }
        let view = will.view();
        let Some(topic) = view.topic.strip_prefix(self.mountpoint()) else { return false };
        let action = Action::Publish { qos: view.qos, retain: view.retain };
        let mut later = || RetryAuthorize::new(|| {});
        access.authorize(identity, action, topic, &mut later).is_none_or(|permission| permission.allowed)
    }
}

/// Builds the Will Message. `expires` is the Message Expiry Interval, which starts when the Will is published.
pub(super) fn will_message(will: &Will<'_>, publisher: ConnectionId, publisher_key: u64) -> Message {
    let mut scratch = Vec::new();
    let expiry = will.properties.message_expiry_interval();
    let view = MessageView {
        topic: will.topic,
        properties: will.properties.forwardable(&mut scratch),
        payload: will.payload,
        qos: will.qos,
        retain: will.retain,
        expires: expiry.map_or(Time::NEVER, |seconds| Time(u64::from(seconds) * 1000)),
        received: Time::default(),
        publisher: Some(publisher),
        publisher_key,
        durability: Durability::LocalDisk,
        span: 0,
    };
    view.to_message()
}

pub(super) fn will_delay(will: &Will<'_>) -> u32 {
    will.properties.will_delay_interval().unwrap_or(0)
}

/// Rebuilds a Will with its mountpoint and the current key of its publisher.
pub(super) fn moved(
    will: &Message,
    mountpoint: &str,
    publisher: ConnectionId,
    publisher_key: u64,
) -> Message {
    let view = will.view();
    let mut room = String::new();
    let topic = mounted(mountpoint, view.topic, &mut room);
    MessageView { topic, publisher: Some(publisher), publisher_key, ..view }.to_message()
}
