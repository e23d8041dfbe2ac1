//! Guarantees of a broker, whatever happens on the way: no acknowledged message is lost, no QoS 2 message arrives
//! twice, and messages of one publisher keep their order.

use std::collections::{BTreeMap, BTreeSet};

use mqtt::{QoS, TopicFilter, TopicName};

/// Record of publishes, subscriptions and arrivals.
#[derive(Default)]
pub struct Oracle {
    messages: Vec<Published>,
    sessions: Vec<SessionView>,
    /// Messages that may be the retained one, by topic.
    retained: BTreeMap<String, BTreeSet<usize>>,
    /// The shared group has a member that stays.
    pub group_is_steady: bool,
    /// Queues are small: an absent durable session loses messages by rule, and Wills are dropped.
    tight: bool,
    /// The store fails now and then: nobody is notified when that costs a Will.
    pub flaky: bool,
}

/// A published message. Its number is its payload.
#[derive(Debug)]
struct Published {
    topic: String,
    qos: QoS,
    /// Connections on which it was sent, in this order.
    connections: Vec<usize>,
    acknowledged: bool,
    is_will: bool,
    may_never_arrive: bool,
    must_never_arrive: bool,
    /// Sessions that must get it once it is acknowledged.
    owed: BTreeSet<usize>,
    /// The group must get it once it is acknowledged.
    owed_to_group: bool,
    arrived_in_group: bool,
    twice_at_qos_2: bool,
}

/// One session as its client knows it.
#[derive(Debug, Default)]
pub struct SessionView {
    pub connected: bool,
    pub durable: bool,
    /// Subscriptions that are granted and not ended.
    pub granted: BTreeMap<String, QoS>,
    arrived: BTreeSet<usize>,
    at_qos_2: BTreeSet<usize>,
    /// The last message that arrived for the first time, by publishing connection, topic, QoS of the publish and of the
    /// delivery.
    last: BTreeMap<(usize, String, QoS, QoS), usize>,
}

pub const SHARE: &str = "$share/g/";

impl Oracle {
    pub fn new(tight: bool, flaky: bool) -> Self {
        Self { tight, flaky, ..Self::default() }
    }

    pub fn new_session(&mut self, durable: bool) -> usize {
        self.sessions.push(SessionView { connected: true, durable, ..SessionView::default() });
        self.sessions.len() - 1
    }

    pub fn session(&mut self, session: usize) -> &mut SessionView {
        &mut self.sessions[session]
    }

    /// Records that the session has ended, or may have: nothing is owed to it.
    pub fn session_ends(&mut self, session: usize) {
        self.sessions[session].granted.clear();
        self.sessions[session].connected = false;
        for message in &mut self.messages {
            message.owed.remove(&session);
        }
    }

    pub fn connection_ends(&mut self, session: usize) {
        self.sessions[session].connected = false;
        if !self.sessions[session].durable {
            self.session_ends(session);
        } else if self.tight {
            for message in &mut self.messages {
                message.owed.remove(&session);
            }
        }
    }

    /// Records that a PUBLISH is sent. Returns its number.
    pub fn publish(&mut self, connection: usize, topic: &str, qos: QoS) -> usize {
        self.messages.push(Published {
            topic: topic.into(),
            qos,
            connections: vec![connection],
            acknowledged: false,
            is_will: false,
            may_never_arrive: false,
            must_never_arrive: false,
            owed: self.wanted_by(topic, qos),
            // At QoS 2 the messages that a member was sent are lost with it.
            owed_to_group: topic.starts_with("s/")
                && qos == QoS::AtLeastOnce
                && self.group_is_steady
                && !self.tight,
            arrived_in_group: false,
            twice_at_qos_2: false,
        });
        self.messages.len() - 1
    }

    /// Records that a CONNECT with this Will is sent.
    pub fn will(&mut self, connection: usize, topic: &str, qos: QoS) -> usize {
        let number = self.publish(connection, topic, qos);
        self.messages[number].is_will = true;
        self.messages[number].may_never_arrive = true;
        number
    }

    /// Records that the connection is lost. No publisher waits for Wills: full queues drop them.
    pub fn will_is_due(&mut self, number: usize) {
        if self.tight || self.flaky {
            return;
        }
        let owed = self.wanted_by(&self.messages[number].topic, self.messages[number].qos);
        let message = &mut self.messages[number];
        (message.owed, message.acknowledged, message.may_never_arrive) = (owed, true, false);
    }

    /// Sessions that were granted this topic at QoS 1 or 2.
    fn wanted_by(&self, topic: &str, qos: QoS) -> BTreeSet<usize> {
        let name = TopicName::parse(topic).expect("a Topic Name");
        let wants = |session: &SessionView| {
            let matches = |filter: &str| TopicFilter::parse(filter).is_ok_and(|filter| filter.matches(name));
            session.granted.iter().any(|(filter, granted)| {
                *granted > QoS::AtMostOnce && !filter.starts_with(SHARE) && matches(filter)
            })
        };
        let reached = |session: &SessionView| session.connected || !self.tight;
        let sessions = self.sessions.iter().enumerate();
        let owed =
            sessions.filter(|(_, session)| qos > QoS::AtMostOnce && wants(session) && reached(session));
        owed.map(|(at, _)| at).collect()
    }

    pub fn retains(&mut self, number: usize) {
        let topic = self.messages[number].topic.clone();
        self.retained.entry(topic).or_default().insert(number);
    }

    /// Records that the client sends a message again on another connection.
    pub fn repeat(&mut self, number: usize, connection: usize) {
        let message = &mut self.messages[number];
        message.connections.push(connection);
        if let Some(candidates) = self.retained.get_mut(&message.topic) {
            candidates.insert(number);
        }
    }

    pub fn acknowledged(&mut self, number: usize) {
        self.messages[number].acknowledged = true;
        let connections = self.messages[number].connections.clone();
        if let Some(candidates) = self.retained.get_mut(&self.messages[number].topic) {
            // Earlier ones on its connection have been replaced.
            let messages = &self.messages;
            let replaced = |other: &usize| *other < number && messages[*other].connections == connections;
            // A message that was sent again may have arrived after one that was known already, at QoS 2.
            candidates.retain(|other| !replaced(other) || connections.len() > 1);
        }
    }

    /// Records that a publisher has given up on a message: nobody is owed it.
    pub fn abandoned(&mut self, number: usize) {
        self.messages[number].may_never_arrive = true;
    }

    pub fn must_never_arrive(&mut self, number: usize) {
        self.messages[number].may_never_arrive = true;
        self.messages[number].must_never_arrive = true;
    }

    /// Records that UNSUBSCRIBE is sent: a message that is not acknowledged by now may arrive or not.
    pub fn unsubscribes(&mut self, session: usize, filter: &str) {
        self.sessions[session].granted.remove(filter);
        // A QoS 2 message that is sent again is answered at once, while the first may still be on its way.
        let under_way = |message: &&mut Published| {
            !message.acknowledged || message.is_will || message.connections.len() > 1
        };
        for message in self.messages.iter_mut().filter(under_way) {
            message.owed.remove(&session);
        }
    }

    /// Judges a message that its client takes as new.
    pub fn arrives(&mut self, session: usize, number: usize, qos: QoS) {
        let message = &mut self.messages[number];
        assert!(!message.must_never_arrive, "message {number}, a Will that was deleted, arrives");
        let view = &mut self.sessions[session];
        let shared = message.topic.starts_with("s/");
        if qos == QoS::ExactlyOnce {
            // A publisher that gives up its session after it has sent a message again gives up the guarantee of a
            // single arrival.
            let given_up = message.may_never_arrive && message.connections.len() > 1;
            // A Will that the store could not record everywhere is published again. Only the store knows who has it.
            let is_repeated_will = message.is_will && self.flaky && !view.durable;
            let is_first = view.at_qos_2.insert(number);
            let may_be_twice = given_up || is_repeated_will;
            assert!(is_first || may_be_twice, "message {number} arrives twice at session {session}");
            if shared {
                let is_first = !message.twice_at_qos_2;
                assert!(is_first || given_up, "message {number} arrives at two members of a group");
                message.twice_at_qos_2 = true;
            }
        }
        message.arrived_in_group |= shared;
        // A message that was sent again may overtake others; a group knows no order.
        if view.arrived.insert(number) && message.connections.len() == 1 && !shared {
            let key = (message.connections[0], message.topic.clone(), message.qos, qos);
            let before = view.last.insert(key, number);
            assert!(before < Some(number), "message {number} arrives after {before:?} at session {session}");
        }
    }

    /// Checks that everything has arrived, after everybody has had the time to get it.
    pub fn check_all_arrived(&self) {
        for (number, message) in self.messages.iter().enumerate() {
            if !message.acknowledged || message.may_never_arrive {
                continue;
            }
            for session in &message.owed {
                let arrived = self.sessions[*session].arrived.contains(&number);
                assert!(arrived, "message {number} never arrived at session {session}: {message:?}");
            }
            assert!(
                !message.owed_to_group || message.arrived_in_group,
                "no member got {number}: {message:?}"
            );
        }
    }

    pub fn check_retained(&self, found: &BTreeMap<String, usize>) {
        for (topic, candidates) in &self.retained {
            match found.get(topic) {
                Some(number) => {
                    assert!(candidates.contains(number), "{number} is retained, not one of {candidates:?}");
                }
                None => {
                    let kept = candidates.iter().any(|number| self.messages[*number].acknowledged);
                    assert!(!kept, "nothing is retained on {topic}");
                }
            }
        }
    }
}
