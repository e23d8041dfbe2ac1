//! What clients may expect of a broker, whatever happens on the way: nothing acknowledged is lost, nothing at QoS 2 comes twice,
//! messages of one publisher keep their order.

use std::collections::{BTreeMap, BTreeSet};

use mqtt::{QoS, TopicFilter, TopicName};

/// Knows what was published, who was subscribed, and what arrived.
#[derive(Default)]
pub struct Oracle {
    messages: Vec<Published>,
    sessions: Vec<SessionView>,
    /// By topic, the messages that may be the retained one.
    retained: BTreeMap<String, BTreeSet<usize>>,
    /// The shared group has a member that stays.
    pub group_is_steady: bool,
    /// Queues are small: a durable session that is away loses messages by rule, and Wills are dropped.
    tight: bool,
    /// The store fails now and then: nobody is told when that costs a Will.
    pub flaky: bool,
}

/// A message's number is its payload.
#[derive(Debug)]
struct Published {
    topic: String,
    qos: QoS,
    /// The connections it was sent on, the first first.
    connections: Vec<usize>,
    acknowledged: bool,
    is_will: bool,
    may_never_arrive: bool,
    must_never_arrive: bool,
    /// Sessions that have to get it once it is acknowledged.
    owed: BTreeSet<usize>,
    /// The group has to.
    owed_to_group: bool,
    arrived_in_group: bool,
    twice_at_qos_2: bool,
}

/// One session as its client knows it.
#[derive(Debug, Default)]
pub struct SessionView {
    pub connected: bool,
    pub durable: bool,
    /// Granted, and not taken back since.
    pub granted: BTreeMap<String, QoS>,
    arrived: BTreeSet<usize>,
    at_qos_2: BTreeSet<usize>,
    /// By publishing connection, topic, QoS of the publish and of the delivery: the last message that came for the first time.
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

    /// The session is no more, or nobody can say: nothing is owed to it.
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

    /// A PUBLISH leaves its client. Returns its number.
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
            // At QoS 2 a member that dies takes with it what it was sent.
            owed_to_group: topic.starts_with("s/")
                && qos == QoS::AtLeastOnce
                && self.group_is_steady
                && !self.tight,
            arrived_in_group: false,
            twice_at_qos_2: false,
        });
        self.messages.len() - 1
    }

    /// A CONNECT leaves with this Will.
    pub fn will(&mut self, connection: usize, topic: &str, qos: QoS) -> usize {
        let number = self.publish(connection, topic, qos);
        self.messages[number].is_will = true;
        self.messages[number].may_never_arrive = true;
        number
    }

    /// The connection is lost. For Wills nobody waits: full queues drop them.
    pub fn will_is_due(&mut self, number: usize) {
        if self.tight || self.flaky {
            return;
        }
        let owed = self.wanted_by(&self.messages[number].topic, self.messages[number].qos);
        let message = &mut self.messages[number];
        (message.owed, message.acknowledged, message.may_never_arrive) = (owed, true, false);
    }

    /// Sessions that were granted this at QoS 1 or 2.
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

    /// The client sends a message again on another connection.
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
            // Those before it on its connection have been replaced.
            let messages = &self.messages;
            let replaced = |other: &usize| *other < number && messages[*other].connections == connections;
            // One that was sent again may have come after one that was known already, at QoS 2.
            candidates.retain(|other| !replaced(other) || connections.len() > 1);
        }
    }

    /// Nobody is owed a message whose publisher has given up on it.
    pub fn abandoned(&mut self, number: usize) {
        self.messages[number].may_never_arrive = true;
    }

    pub fn must_never_arrive(&mut self, number: usize) {
        self.messages[number].may_never_arrive = true;
        self.messages[number].must_never_arrive = true;
    }

    /// UNSUBSCRIBE leaves: what is not acknowledged by now may come or not.
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

    /// A message that its client takes as new.
    pub fn arrives(&mut self, session: usize, number: usize, qos: QoS) {
        let message = &mut self.messages[number];
        assert!(!message.must_never_arrive, "message {number}, a Will that was taken back, arrives");
        let view = &mut self.sessions[session];
        let shared = message.topic.starts_with("s/");
        if qos == QoS::ExactlyOnce {
            // A publisher that gives up its session after it has sent a message again gives up knowing that it comes once.
            let given_up = message.may_never_arrive && message.connections.len() > 1;
            let is_first = view.at_qos_2.insert(number);
            assert!(is_first || given_up, "message {number} comes twice to session {session}");
            if shared {
                let is_first = !message.twice_at_qos_2;
                assert!(is_first || given_up, "message {number} comes to two members of a group");
                message.twice_at_qos_2 = true;
            }
        }
        message.arrived_in_group |= shared;
        // What was sent again may overtake; a group knows no order.
        if view.arrived.insert(number) && message.connections.len() == 1 && !shared {
            let key = (message.connections[0], message.topic.clone(), message.qos, qos);
            let before = view.last.insert(key, number);
            assert!(before < Some(number), "message {number} comes after {before:?} to session {session}");
        }
    }

    /// Everybody has had the time to get everything.
    pub fn check_all_arrived(&self) {
        for (number, message) in self.messages.iter().enumerate() {
            if !message.acknowledged || message.may_never_arrive {
                continue;
            }
            for session in &message.owed {
                let arrived = self.sessions[*session].arrived.contains(&number);
                assert!(arrived, "message {number} never came to session {session}: {message:?}");
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
