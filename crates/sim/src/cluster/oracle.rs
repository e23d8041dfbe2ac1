//! Expectations of clients in a cluster. A subscription that all nodes know gets every message, wherever it is
//! published. No message comes twice, to a client that did not subscribe, or in another order than it was sent.

mod groups;
mod retained;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use mqtt::{QoS, TopicFilter, TopicName};

pub use groups::{GROUP_TOPICS, GROUPS, SHARE};
pub use retained::{RETAINED, RETAINED_TOPICS, SKEW_MAX};

use crate::context::Context;
use crate::net::Link;
use crate::report::Report;
use crate::schedule::Micros;
use testkit::packets::Message;

/// Nodes that have to know of a subscription before SUBACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Local,
    Core,
    Region,
    Cluster,
}

/// State of one session as its client knows it.
#[derive(Debug)]
pub struct View {
    pub node: usize,
    /// Incarnation of the node in which the session's connection began.
    pub incarnation: u32,
    /// True while its connection exists, as far as the client knows.
    pub is_connected: bool,
    /// True if it survives its connection.
    pub is_durable: bool,
    /// Granted subscriptions that are still valid, with level and time.
    pub granted: BTreeMap<String, (QoS, Level, Micros)>,
    /// Filters that were ever requested.
    pub asked: BTreeSet<String>,
    /// Shared group that it is or was a member of.
    pub group: Option<&'static str>,
    /// Retained messages that it got for its subscriptions.
    pub retained: retained::FoundRetained,
    /// Messages that it has to get once they are acknowledged.
    owed: BTreeSet<usize>,
    arrived: BTreeSet<usize>,
    at_qos_0: BTreeSet<usize>,
    /// Last message by publishing connection, topic, QoS of the publish and QoS of the delivery.
    last: BTreeMap<(Link, String, QoS, QoS), usize>,
}

/// A published message. Its payload is its number.
pub struct Published {
    topic: String,
    qos: QoS,
    payload: String,
    link: Link,
    pub node: usize,
    pub incarnation: u32,
    pub sent: Micros,
    is_acknowledged: bool,
    is_retained: bool,
}

/// A PUBLISH that leaves its client.
pub struct OutgoingPublish<'a> {
    pub at: Micros,
    pub link: Link,
    pub node: usize,
    pub incarnation: u32,
    pub topic: &'a str,
    /// An empty payload deletes the retained message.
    pub payload: &'a str,
    pub qos: QoS,
    pub is_retained: bool,
}

#[derive(Default)]
pub struct Oracle {
    messages: Vec<Published>,
    views: Vec<View>,
    pub groups: groups::Groups,
    retained: retained::Retained,
    /// Messages acknowledged since [`Self::take_acknowledged`] was called.
    acknowledged: Vec<usize>,
    /// True if nodes may acknowledge without others having the message.
    pub serves_alone: bool,
    /// Regions of the nodes, by their numbers.
    regions: Vec<Box<str>>,
    /// Start of each process, by incarnation.
    started: BTreeMap<u32, Micros>,
    /// True if there may be no room for QoS 0 on the way to another node.
    pub is_tight: bool,
    /// A node that is off for long: no other node can copy data from it.
    pub absent_node: Option<usize>,
    /// True when all nodes know everything and no fault is left: every subscriber gets every message.
    pub is_settled: bool,
    /// Number of times that each excuse was used.
    pub excused: Report,
}

impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { topic, qos, payload, link, node, incarnation, sent, is_acknowledged, is_retained } = self;
        write!(
            f,
            "{topic:?} at {qos:?}, {} bytes, sent at {sent} us on {link} to incarnation {incarnation} of n{node}",
            payload.len()
        )?;
        write!(f, ", acknowledged: {is_acknowledged}, retained: {is_retained}")
    }
}

impl View {
    /// Time since which it has the subscription that matches a message.
    fn granted_since(&self, message: &Published) -> Micros {
        let topic = TopicName::parse(&message.topic);
        let matches = |filter: &str| {
            topic.is_ok_and(|topic| TopicFilter::parse(filter).is_ok_and(|filter| filter.matches(topic)))
        };
        let those = self.granted.iter().filter(|(filter, _)| matches(filter));
        those.map(|(_, (.., at))| *at).min().unwrap_or(Micros::MAX)
    }
}

impl Oracle {
    pub fn new(serves_alone: bool, regions: Vec<Box<str>>) -> Self {
        Self { serves_alone, regions, ..Self::default() }
    }

    /// Records the start of a node's process.
    pub fn node_starts(&mut self, incarnation: u32, at: Micros) {
        self.started.insert(incarnation, at);
    }

    /// Returns whether the publisher's node must know a subscription on `node` before it acknowledges a message. The
    /// subscription was granted at `since` with this level of SUBACK. `publisher` is that node and its incarnation.
    fn is_known(&self, (level, since): (Level, Micros), node: usize, publisher: (usize, u32)) -> bool {
        let region = |node: usize| self.regions.get(node);
        let is_known = match level {
            Level::Local | Level::Core => false,
            Level::Region if self.regions.iter().all(|other| Some(other) == region(node)) => true,
            // A node that was restarted since then does not know what only its region knew.
            Level::Region => {
                let has_run = self.started.get(&publisher.1).is_some_and(|started| *started <= since);
                region(publisher.0) == region(node) && has_run
            }
            Level::Cluster => true,
        };
        is_known && !self.serves_alone
    }

    /// Returns whether the subscription is unknown only because the publisher's node was restarted since.
    fn is_forgotten(&self, (level, since): (Level, Micros), node: usize, publisher: (usize, u32)) -> bool {
        let started = self.started.get(&publisher.1).copied().unwrap_or_default();
        let before = (publisher.0, publisher.1);
        level == Level::Region
            && started > since
            && self.regions.get(node) == self.regions.get(publisher.0)
            && !self.is_known((level, since), node, before)
            && !self.serves_alone
    }

    pub fn new_view(&mut self, node: usize, incarnation: u32, is_durable: bool) -> usize {
        self.views.push(View {
            node,
            incarnation,
            is_connected: true,
            is_durable,
            granted: BTreeMap::new(),
            asked: BTreeSet::new(),
            group: None,
            retained: BTreeMap::new(),
            owed: BTreeSet::new(),
            arrived: BTreeSet::new(),
            at_qos_0: BTreeSet::new(),
            last: BTreeMap::new(),
        });
        self.views.len() - 1
    }

    pub fn view(&mut self, view: usize) -> &mut View {
        &mut self.views[view]
    }

    pub fn views(&self) -> &[View] {
        &self.views
    }

    pub fn next_number(&self) -> usize {
        self.messages.len()
    }

    /// Handles the end of a connection.
    pub fn connection_ends(&mut self, view: usize) {
        self.leaves_group(view);
        let view = &mut self.views[view];
        view.is_connected = false;
        if !view.is_durable {
            view.granted.clear();
            view.owed.clear();
        }
    }

    /// Records a PUBLISH that leaves its client.
    pub fn publish(&mut self, outgoing: &OutgoingPublish<'_>) {
        let OutgoingPublish { at, link, node, incarnation, topic, payload, qos, is_retained } = *outgoing;
        let number = self.messages.len();
        let (is_settled, is_tight) = (self.is_settled, self.is_tight);
        // A deletion has no number by which it could be recognized.
        if let Ok(name) = TopicName::parse(topic)
            && !payload.is_empty()
        {
            let mut views = std::mem::take(&mut self.views);
            for view in &mut views {
                let is_here = (view.node, view.incarnation) == (node, incarnation);
                let is_durable = view.is_durable;
                let is_promised = |granted: QoS, by: (Level, Micros)| {
                    let is_known = is_here || self.is_known(by, view.node, (node, incarnation));
                    let is_assured = qos > QoS::AtMostOnce && granted > QoS::AtMostOnce;
                    is_known && is_assured
                        || is_settled
                            && (is_assured || !is_durable || qos == QoS::AtMostOnce)
                            && (is_here || !is_tight || qos > QoS::AtMostOnce)
                };
                let matches =
                    |filter: &str| TopicFilter::parse(filter).is_ok_and(|filter| filter.matches(name));
                let granted = || view.granted.iter().filter(|(filter, _)| matches(filter));
                let is_owed = granted().any(|(_, (qos, level, since))| is_promised(*qos, (*level, *since)));
                let is_excused = !is_owed
                    && qos > QoS::AtMostOnce
                    && granted().any(|(_, (granted, level, since))| {
                        *granted > QoS::AtMostOnce
                            && self.is_forgotten((*level, *since), view.node, (node, incarnation))
                    });
                self.excused.cluster_excused_region_restarted += u64::from(is_excused);
                if is_owed && (view.is_connected || view.is_durable && qos > QoS::AtMostOnce) {
                    view.owed.insert(number);
                }
            }
            self.views = views;
        }
        let message = Published {
            topic: topic.into(),
            qos,
            payload: payload.into(),
            link,
            node,
            incarnation,
            sent: at,
            is_acknowledged: qos == QoS::AtMostOnce,
            is_retained,
        };
        self.publish_to_groups(number, &message);
        self.messages.push(message);
        if is_retained {
            self.writes(number, payload.is_empty());
        }
    }

    pub fn acknowledged(&mut self, number: usize, now: Micros) {
        self.messages[number].is_acknowledged = true;
        self.write_acknowledged(number, now);
        self.acknowledged.push(number);
    }

    /// Handles the end of a link, closed by the node or lost: messages at QoS 0 on it may be lost.
    pub fn link_ends(&mut self, link: Link) {
        for message in self.messages.iter_mut().filter(|message| message.link == link) {
            self.excused.cluster_excused_qos0 += u64::from(message.qos == QoS::AtMostOnce);
            message.is_acknowledged &= message.qos != QoS::AtMostOnce;
        }
    }

    #[cfg(any(test, feature = "trial"))]
    pub fn is_acknowledged(&self, number: usize) -> bool {
        self.messages[number].is_acknowledged
    }

    #[cfg(any(test, feature = "trial"))]
    pub fn has_arrived(&self, view: usize, number: usize) -> bool {
        let view = &self.views[view];
        view.arrived.contains(&number) || view.at_qos_0.contains(&number)
    }

    pub fn sent_at(&self, number: usize) -> Micros {
        self.messages[number].sent
    }

    /// Records an UNSUBSCRIBE or another SUBSCRIBE: messages on their way may arrive or not.
    pub fn unsubscribes(&mut self, view: usize, filter: &str) {
        self.leaves_group(view);
        let Ok(parsed) = TopicFilter::parse(filter) else { return };
        let messages = &self.messages;
        let view = &mut self.views[view];
        view.granted.remove(filter);
        let owed = view.owed.len();
        view.owed.retain(|number| {
            !TopicName::parse(&messages[*number].topic).is_ok_and(|topic| parsed.matches(topic))
        });
        self.excused.cluster_excused_unsubscribed += (owed - view.owed.len()) as u64;
    }

    /// Handles the death of a node. What it had acknowledged for unreachable nodes is lost. `interrupted` returns
    /// whether the link to a node was interrupted since a time.
    pub fn node_dies(&mut self, incarnation: u32, mut interrupted: impl FnMut(usize, Micros) -> bool) {
        self.groups_lose_node(incarnation);
        for view in &mut self.views {
            if view.incarnation == incarnation {
                view.is_connected = false;
                if !view.is_durable {
                    view.granted.clear();
                    view.owed.clear();
                }
            }
            let (messages, node, excused) = (&self.messages, view.node, &mut self.excused);
            view.owed.retain(|number| {
                let message = &messages[*number];
                let is_lost = message.incarnation == incarnation
                    && (interrupted(node, message.sent) || !message.is_acknowledged);
                excused.cluster_excused_died += u64::from(is_lost && message.is_acknowledged);
                !is_lost
            });
        }
    }

    /// Returns whether messages were acknowledged since the last call of [`Self::take_acknowledged`].
    pub fn has_acknowledged(&self) -> bool {
        !self.acknowledged.is_empty()
    }

    /// Messages that were acknowledged since the last call.
    pub fn take_acknowledged(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.acknowledged)
    }

    /// Removes the debt of a message to the sessions for which `is_lost` returns true.
    pub fn forget_owed(&mut self, number: usize, mut is_lost: impl FnMut(&Published, &View, Micros) -> bool) {
        self.groups_forget(number, &mut is_lost);
        let message = &self.messages[number];
        for view in &mut self.views {
            if view.owed.contains(&number) && is_lost(message, view, view.granted_since(message)) {
                view.owed.remove(&number);
            }
        }
    }

    /// Returns whether a session has got a message.
    pub fn has(&self, view: usize, got: &Message) -> bool {
        number_of(got).is_some_and(|number| self.views[view].arrived.contains(&number))
    }

    /// Checks a message that arrives at a session.
    pub fn arrives(&mut self, cx: &mut Context, view: usize, got: &Message) {
        if got.payload.is_empty() && got.topic.starts_with("r/") || got.payload == NOISE {
            return; // A deletion for subscribers, or a message of the hostile client.
        }
        let number = number_of(got).expect("a payload is a number");
        assert!(number < self.messages.len(), "message {number} was never sent");
        let message = &self.messages[number];
        assert_eq!(message.topic, got.topic, "message {number} comes under another topic");
        assert!(message.payload == got.payload, "message {number} comes with another payload");
        assert!(got.qos <= message.qos, "message {number} comes at a higher QoS");
        let at = view;
        let view = &mut self.views[view];
        let is_asked = TopicName::parse(&got.topic).is_ok_and(|name| {
            view.asked.iter().any(|filter| {
                TopicFilter::parse(groups::filter_of(filter)).is_ok_and(|filter| filter.matches(name))
            })
        });
        assert!(is_asked, "message {number} comes to session {at}, which never asked for {}", got.topic);
        cx.report.cluster_check_asked += 1;
        if let Some(group) = view.group {
            return self.arrives_in_group(cx, (at, number), group, got);
        }
        if got.retain {
            return self.arrives_retained(cx, (at, number), got);
        }
        let report = &mut cx.report;
        let is_across = (message.node, message.incarnation) != (view.node, view.incarnation);
        // A durable session gets messages for its QoS 0 subscriptions independently of the others.
        let by_itself = view.is_durable && got.qos == QoS::AtMostOnce;
        let is_new = if by_itself { view.at_qos_0.insert(number) } else { view.arrived.insert(number) };
        assert!(is_new, "message {number} comes twice to session {at}");
        report.cluster_check_once += u64::from(is_across && got.qos == QoS::ExactlyOnce);
        if (!by_itself || message.qos == QoS::AtMostOnce) && view.owed.remove(&number) {
            report.cluster_check_delivered += u64::from(!is_across);
            report.cluster_check_delivered_across += u64::from(is_across);
            report.cluster_check_settled += u64::from(self.is_settled);
        }
        let key = (message.link, message.topic.clone(), message.qos, got.qos);
        let before = view.last.insert(key, number);
        assert!(before < Some(number), "message {number} comes after {before:?} to session {at}");
        report.cluster_check_order += u64::from(before.is_some() && is_across);
    }

    /// Asserts at the end that every owed message has arrived.
    pub fn check_all_arrived(&self) {
        self.check_groups();
        for (at, view) in
            self.views.iter().enumerate().filter(|(_, view)| Some(view.node) != self.absent_node)
        {
            for number in &view.owed {
                let message = &self.messages[*number];
                assert!(
                    !message.is_acknowledged,
                    "message {number} of node {} never came to session {at} of node {}: {message:?}",
                    message.node, view.node
                );
            }
        }
    }
}

/// Payload of hostile clients.
pub const NOISE: &str = "x";

/// Number in the payload, without the padding.
fn number_of(message: &Message) -> Option<usize> {
    message.payload.rsplit('.').next()?.parse().ok()
}
