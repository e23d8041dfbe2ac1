//! Expectations of clients. No acknowledged message is lost, no QoS 2 message arrives twice, messages of one publisher
//! keep their order, Wills arrive once and in time, and expired or deleted state does not return.

mod retained;
mod wills;

use std::collections::{BTreeMap, BTreeSet};

use mqtt::{QoS, TopicFilter, TopicName};

use crate::net::Link;
use crate::report::Report;
use crate::schedule::{Micros, SECOND};
use testkit::packets::Message;

pub use wills::{Ending, Will};

/// Record of all publishes, subscriptions and arrivals.
#[derive(Default)]
pub struct Oracle {
    messages: Vec<Published>,
    sessions: Vec<View>,
    /// Messages that may be the retained one, by topic.
    retained: BTreeMap<String, BTreeSet<usize>>,
    wills: BTreeMap<Link, Will>,
    /// Time of the node since which no client may publish its Will.
    wills_denied: Option<u64>,
    /// Time of the node at which its process was stopped, and at which it resumed.
    paused: (u64, u64),
    /// True if the shared group has a member that stays.
    pub group_is_steady: bool,
    /// True if queues are small: durable sessions without a connection lose messages by rule, and Wills are dropped.
    pub tight: bool,
    /// True if connected sessions that are too slow also lose messages.
    pub impatient: bool,
    /// Number of owed messages that did not arrive and may have been dropped by rule.
    pub missing_by_rule: u64,
    /// Number of times that each excuse was used.
    pub excused: Report,
}

/// A published message. Its payload is its number.
#[derive(Debug)]
struct Published {
    topic: String,
    qos: QoS,
    payload: String,
    /// Message Expiry Interval, seconds.
    expiry: Option<u32>,
    /// Connections on which it was sent, in order.
    connections: Vec<Link>,
    /// Latest time of the node at which it was last sent.
    sent: u64,
    acknowledged: Option<Micros>,
    is_will: bool,
    deletes: bool,
    may_never_arrive: bool,
    /// True if its publisher may have repeated it in another session.
    may_come_twice: bool,
    /// Sessions that have to get it once it is acknowledged.
    owed: BTreeSet<usize>,
    /// Sessions that have to get it unless a full queue has dropped it.
    owed_by_rule: BTreeSet<usize>,
    /// True if the shared group has to get it.
    owed_to_group: bool,
    arrived_in_group: bool,
}

/// State of one session as its client knows it.
#[derive(Debug, Default)]
pub struct View {
    pub connected: bool,
    pub durable: bool,
    began: Micros,
    /// Granted subscriptions that are still valid.
    pub granted: BTreeMap<String, QoS>,
    /// Filters that were ever requested.
    pub asked: BTreeSet<String>,
    arrived: BTreeSet<usize>,
    /// Messages that arrived after the last SUBSCRIBE for each filter was sent and before its SUBACK.
    arrived_since: BTreeMap<String, BTreeSet<usize>>,
    /// Retained messages that a subscription has to bring. Nobody has replaced them since.
    owed_retained: BTreeSet<usize>,
    at_qos_2: BTreeSet<usize>,
    /// Last first-time message by publishing connection, topic, QoS of the publish and QoS of the delivery.
    last: BTreeMap<(Link, String, QoS, QoS), usize>,
}

/// A PUBLISH that leaves its client.
pub struct OutgoingPublish {
    pub link: Link,
    pub topic: String,
    pub payload: String,
    pub qos: QoS,
    pub retain: bool,
    pub expiry: Option<u32>,
    /// Time of the node.
    pub at: u64,
}

pub const SHARE: &str = "$share/g/";
/// Maximum delay of a packet by slow links, partitions and paused readers, milliseconds.
const LATE_MS: u64 = 45_000;

impl Oracle {
    pub fn new(tight: bool, impatient: bool) -> Self {
        Self { tight, impatient, ..Self::default() }
    }

    pub fn new_session(&mut self, now: Micros, durable: bool) -> usize {
        self.sessions.push(View { connected: true, durable, began: now, ..View::default() });
        self.sessions.len() - 1
    }

    /// Renews a session that may be another one than before: the client cannot tell. No message is owed to it, and all
    /// may arrive again.
    pub fn renew(&mut self, session: usize) -> usize {
        self.session_ends(session);
        let (began, asked) = (self.sessions[session].began, self.sessions[session].asked.clone());
        self.sessions.push(View { connected: true, durable: true, began, asked, ..View::default() });
        self.sessions.len() - 1
    }

    pub fn session(&mut self, session: usize) -> &mut View {
        &mut self.sessions[session]
    }

    /// Number of the next message.
    pub fn next_number(&self) -> usize {
        self.messages.len()
    }

    /// Ends a session, certainly or perhaps: no message is owed to it any more.
    pub fn session_ends(&mut self, session: usize) {
        self.sessions[session].granted.clear();
        self.sessions[session].owed_retained.clear();
        self.sessions[session].connected = false;
        for message in &mut self.messages {
            let was_owed = message.owed.remove(&session) | message.owed_by_rule.remove(&session);
            let is_excused = was_owed && message.acknowledged.is_some();
            self.excused.excused_session_ended += u64::from(is_excused);
        }
        self.will_is_unwanted(session);
    }

    pub fn connection_ends(&mut self, session: usize) {
        self.sessions[session].connected = false;
        if !self.sessions[session].durable {
            self.session_ends(session);
        } else if self.tight {
            for message in &mut self.messages {
                if message.owed.remove(&session) {
                    message.owed_by_rule.insert(session);
                }
            }
        }
    }

    /// Records a PUBLISH that leaves its client. Returns its number.
    pub fn publish(&mut self, outgoing: OutgoingPublish) -> usize {
        let OutgoingPublish { link, topic, payload, qos, retain, expiry, at } = outgoing;
        let number = self.messages.len();
        let deletes = retain && payload.is_empty();
        // A deletion has no number by which it could be recognized.
        let owed = if deletes { BTreeSet::new() } else { self.wanted_by(&topic, qos) };
        let (owed, owed_by_rule) = owed
            .into_iter()
            .partition(|session| !self.tight || self.sessions[*session].connected && !self.impatient);
        let to_group =
            topic.starts_with("s/") && qos == QoS::AtLeastOnce && self.group_is_steady && !self.tight;
        if retain {
            self.is_written(&topic);
            self.retained.entry(topic.clone()).or_default().insert(number);
        }
        self.messages.push(Published {
            topic,
            qos,
            payload,
            expiry,
            connections: vec![link],
            sent: at,
            acknowledged: None,
            is_will: false,
            deletes,
            may_never_arrive: expiry.is_some(),
            may_come_twice: false,
            owed,
            owed_by_rule,
            owed_to_group: to_group,
            arrived_in_group: false,
        });
        number
    }

    /// Durable sessions that have a subscription for this topic at QoS 1 or 2.
    fn wanted_by(&self, topic: &str, qos: QoS) -> BTreeSet<usize> {
        let Ok(name) = TopicName::parse(topic) else { return BTreeSet::new() };
        let wants = |view: &View| {
            let matches = |filter: &str| TopicFilter::parse(filter).is_ok_and(|filter| filter.matches(name));
            view.granted.iter().any(|(filter, granted)| {
                *granted > QoS::AtMostOnce && !filter.starts_with(SHARE) && matches(filter)
            })
        };
        let sessions = self.sessions.iter().enumerate();
        // Sessions that end with their connection have no guarantee after a crash.
        let owed = sessions.filter(|(_, view)| qos > QoS::AtMostOnce && view.durable && wants(view));
        owed.map(|(at, _)| at).collect()
    }

    /// Records that a client repeats a message on another connection.
    pub fn repeat(&mut self, number: usize, link: Link, at: u64, old: bool) {
        let message = &mut self.messages[number];
        if old {
            // MQTT 3.1.1 has no Message Expiry Interval.
            message.expiry = None;
        }
        message.connections.push(link);
        message.sent = at;
        let topic = message.topic.clone();
        self.is_written(&topic);
        if let Some(candidates) = self.retained.get_mut(&topic) {
            candidates.insert(number);
        }
    }

    /// Returns whether a durable session waits for the message.
    pub fn is_owed(&self, number: usize) -> bool {
        !self.messages[number].owed.is_empty()
    }

    pub fn acknowledged(&mut self, number: usize, now: Micros) {
        self.messages[number].acknowledged = Some(now);
        self.replaces(number);
    }

    /// Cancels the debts of a message that was refused, or that its publisher has given up.
    pub fn abandoned(&mut self, number: usize) {
        self.messages[number].may_never_arrive = true;
    }

    /// Records that the publisher repeats the message, perhaps in another session. Then the node cannot recognize it.
    pub fn may_come_twice(&mut self, number: usize) {
        self.messages[number].may_come_twice = true;
    }

    /// Records a message that its client takes for a known one, and that may be another.
    pub fn may_have_come(&mut self, session: usize, got: &Message) {
        if let Some(number) = number_of(&got.payload) {
            self.excused.excused_doubtful += 1;
            self.sessions[session].arrived.insert(number);
            self.sessions[session].owed_retained.remove(&number);
        }
    }

    /// Records an UNSUBSCRIBE or another SUBSCRIBE: messages that are not acknowledged may arrive or not.
    pub fn unsubscribes(&mut self, session: usize, filter: &str) {
        let view = &mut self.sessions[session];
        view.granted.remove(filter);
        view.owed_retained.clear();
        view.arrived_since.insert(filter.to_owned(), BTreeSet::new());
        if filter.starts_with('w') {
            self.will_is_unwanted(session);
        }
        // A repeated QoS 2 message is answered at once, while the first may still be on its way.
        let under_way = |message: &&mut Published| {
            message.acknowledged.is_none() || message.is_will || message.connections.len() > 1
        };
        for message in self.messages.iter_mut().filter(under_way) {
            let was_owed = message.owed.remove(&session) | message.owed_by_rule.remove(&session);
            self.excused.excused_unsubscribed += u64::from(was_owed);
        }
    }

    /// Checks a message that its client takes as new, at a time of the node. Messages of hostile clients are ignored.
    pub fn arrives(&mut self, report: &mut Report, session: usize, got: &Message, time: u64) {
        let Some(number) = number_of(&got.payload) else { return };
        assert!(number < self.messages.len(), "message {number} was never sent");
        let message = &mut self.messages[number];
        assert_eq!(message.topic, got.topic, "message {number} comes under another topic");
        assert!(message.payload == got.payload, "message {number} comes with another payload");
        assert!(got.qos <= message.qos, "message {number} comes at a higher QoS");
        if let (Some(expiry), Some(left)) = (message.expiry, got.expiry) {
            assert!(left <= expiry, "message {number} has a longer expiry than it was sent with");
        }
        if let Some(expiry) = message.expiry {
            report.check_expiry += 1;
            let limit = message.sent + u64::from(expiry) * 1000 + LATE_MS;
            assert!(got.dup || time <= limit, "message {number} comes at {time} ms, expired by {limit} ms");
        }
        let view = &mut self.sessions[session];
        report.check_retained_came += u64::from(view.owed_retained.remove(&number));
        for arrived in view.arrived_since.values_mut() {
            arrived.insert(number);
        }
        if got.retain {
            return;
        }
        let shared = message.topic.starts_with("s/");
        let asked = TopicName::parse(&got.topic).is_ok_and(|name| {
            view.asked.iter().any(|filter| {
                let filter = filter.strip_prefix(SHARE).unwrap_or(filter);
                TopicFilter::parse(filter).is_ok_and(|filter| filter.matches(name))
            })
        });
        assert!(asked, "message {number} comes to session {session}, which never asked for {}", got.topic);
        let is_old = message.acknowledged.is_some_and(|at| at + 10 * SECOND < view.began);
        assert!(
            !is_old || message.is_will || shared,
            "message {number} was acknowledged before session {session} began"
        );
        if got.qos == QoS::ExactlyOnce {
            // A publisher that gives up its session after it has repeated a message gives up the guarantee, too.
            let given_up = message.may_never_arrive && message.connections.len() > 1;
            let is_first = view.at_qos_2.insert(number);
            // Exactly once requires durable sessions on both ends. A shared group may get a message twice after a crash
            // (docs/durability.md).
            let was_repeated = message.connections.len() > 1 || message.is_will;
            let may_be_twice = given_up || message.may_come_twice || shared || !view.durable && was_repeated;
            assert!(is_first || may_be_twice, "message {number} comes twice to session {session}");
            if !is_first {
                let excused = &mut self.excused;
                excused.excused_twice_given_up += u64::from(given_up);
                excused.excused_twice_in_other_session += u64::from(message.may_come_twice);
                excused.excused_twice_in_group += u64::from(shared);
                excused.excused_twice_not_durable += u64::from(!view.durable && was_repeated);
            }
            report.check_once += 1;
        }
        message.arrived_in_group |= shared;
        if message.is_will {
            let link = message.connections[0];
            self.wills[&link].check_arrival(report, number, time);
        }
        let message = &self.messages[number];
        let view = &mut self.sessions[session];
        // A repeated message may overtake others, and groups have no order.
        if view.arrived.insert(number) && message.connections.len() == 1 && !shared && !message.is_will {
            let key = (message.connections[0], message.topic.clone(), message.qos, got.qos);
            let before = view.last.insert(key, number);
            assert!(before < Some(number), "message {number} comes after {before:?} to session {session}");
            report.check_order += u64::from(before.is_some());
        }
    }

    /// Asserts at the end that every owed message has arrived.
    pub fn check_all_arrived(&mut self, report: &mut Report) {
        self.missing_by_rule = 0;
        for (number, message) in self.messages.iter().enumerate() {
            if message.acknowledged.is_some() && message.may_never_arrive && !message.is_will {
                let missing = |session: &&usize| !self.sessions[**session].arrived.contains(&number);
                self.excused.excused_given_up += message.owed.iter().filter(missing).count() as u64;
            }
            if message.acknowledged.is_none() || message.may_never_arrive || message.is_will {
                continue;
            }
            for session in &message.owed {
                let arrived = self.sessions[*session].arrived.contains(&number);
                assert!(arrived, "message {number} never came to session {session}: {message:?}");
                report.check_delivered += 1;
            }
            let missing =
                message.owed_by_rule.iter().filter(|at| !self.sessions[**at].arrived.contains(&number));
            self.missing_by_rule += missing.count() as u64;
            if message.owed_to_group {
                assert!(message.arrived_in_group, "no member of the group got message {number}: {message:?}");
                report.check_groups += 1;
            }
        }
        for (session, view) in self.sessions.iter().enumerate() {
            let missing = view.owed_retained.first().map(|number| (number, &self.messages[*number]));
            assert!(missing.is_none(), "a retained message never came to session {session}: {missing:?}");
        }
        self.excused.excused_by_full_queue += self.missing_by_rule;
        self.check_wills(report);
    }
}

/// Number in a payload, without the padding.
fn number_of(payload: &str) -> Option<usize> {
    payload.trim_start_matches('.').parse().ok()
}
