//! Expectations: what was acknowledged arrives at each subscriber in every cluster, QoS 2 once, in the order of its
//! publisher. A message arrives in a cluster by one way only.

use std::collections::{BTreeMap, BTreeSet};

use mqtt::{QoS, TopicFilter, TopicName};

use crate::report::Report;

/// A published message. Its payload is its number.
struct Message {
    /// Cluster of its publisher.
    origin: usize,
    publisher: usize,
    topic: String,
    qos: QoS,
    is_acknowledged: bool,
    /// Subscribers that have to get it.
    owed: BTreeSet<usize>,
    arrived: BTreeSet<usize>,
    /// The group has a member that can get it.
    is_owed_to_group: bool,
    /// Number of times that it arrived at members of the group.
    arrived_in_group: u32,
    /// Number of crashes before it was sent.
    crashes: u64,
}

/// A subscription of a subscriber.
#[derive(Debug, Default)]
struct Subscription {
    is_granted: bool,
    /// Clusters of origin whose messages the links bring for it.
    settled: BTreeSet<usize>,
}

#[derive(Default)]
pub struct Oracle {
    messages: Vec<Message>,
    /// Cluster of each subscriber, and its subscriptions.
    subscribers: BTreeMap<usize, (usize, BTreeMap<String, Subscription>)>,
    /// Last first-time message by subscriber, publisher, topic and QoS.
    last: BTreeMap<(usize, usize, String, QoS), usize>,
    /// Cluster of each member of the group, and its subscription.
    members: BTreeMap<usize, (usize, Subscription)>,
    /// Number of processes that have ended.
    crashes: u64,
}

fn matches(filter: &str, topic: &str) -> bool {
    let (filter, topic) = (TopicFilter::parse(filter), TopicName::parse(topic));
    filter.is_ok_and(|filter| topic.is_ok_and(|topic| filter.matches(topic)))
}

impl Oracle {
    pub fn add_subscriber(&mut self, subscriber: usize, cluster: usize) {
        self.subscribers.insert(subscriber, (cluster, BTreeMap::new()));
    }

    pub fn add_member(&mut self, member: usize, cluster: usize) {
        self.members.insert(member, (cluster, Subscription::default()));
    }

    /// Notes that the process of a node ends.
    pub fn crashes(&mut self) {
        self.crashes += 1;
    }

    /// Notes a SUBSCRIBE with SUBACK.
    pub fn granted(&mut self, subscriber: usize, filter: &str) {
        if let Some((_, subscription)) = self.members.get_mut(&subscriber) {
            subscription.is_granted = true;
        }
        let Some((_, subscriptions)) = self.subscribers.get_mut(&subscriber) else { return };
        subscriptions.entry(filter.to_owned()).or_default().is_granted = true;
    }

    /// Notes that the links bring messages of an origin for a filter.
    pub fn settled(&mut self, subscriber: usize, filter: &str, origin: usize) {
        if let Some((_, subscription)) = self.members.get_mut(&subscriber) {
            subscription.settled.insert(origin);
        }
        let Some((_, subscriptions)) = self.subscribers.get_mut(&subscriber) else { return };
        if let Some(subscription) = subscriptions.get_mut(filter).filter(|it| it.is_granted) {
            subscription.settled.insert(origin);
        }
    }

    /// Notes an UNSUBSCRIBE that leaves its client.
    pub fn unsubscribes(&mut self, report: &mut Report, subscriber: usize, filter: &str) {
        if let Some((_, subscriptions)) = self.subscribers.get_mut(&subscriber) {
            subscriptions.remove(filter);
        }
        for message in &mut self.messages {
            let is_open = !message.arrived.contains(&subscriber);
            if is_open && matches(filter, &message.topic) && message.owed.remove(&subscriber) {
                report.linked_excused_unsubscribed += u64::from(message.is_acknowledged);
            }
        }
    }

    /// Notes a message that leaves its publisher for the first time. Returns its number.
    pub fn sends(&mut self, publisher: usize, origin: usize, topic: &str, qos: QoS) -> usize {
        let is_owed = |(_, (cluster, subscriptions)): &(&usize, &(usize, BTreeMap<String, Subscription>))| {
            subscriptions.iter().any(|(filter, subscription)| {
                let is_ready =
                    *cluster == origin && subscription.is_granted || subscription.settled.contains(&origin);
                is_ready && matches(filter, topic)
            })
        };
        let owed = self.subscribers.iter().filter(is_owed).map(|(subscriber, _)| *subscriber).collect();
        let is_owed_to_group = self.members.values().any(|(cluster, subscription)| {
            subscription.is_granted && (*cluster == origin || subscription.settled.contains(&origin))
        });
        self.messages.push(Message {
            origin,
            publisher,
            topic: topic.to_owned(),
            qos,
            is_acknowledged: false,
            owed,
            arrived: BTreeSet::new(),
            is_owed_to_group,
            arrived_in_group: 0,
            crashes: self.crashes,
        });
        self.messages.len() - 1
    }

    pub fn acknowledged(&mut self, number: usize) {
        self.messages[number].is_acknowledged = true;
    }

    /// Checks a message that arrives at a subscriber.
    pub fn arrives(&mut self, report: &mut Report, subscriber: usize, topic: &str, payload: &str) {
        let number: usize = payload.parse().expect("a payload of the simulation");
        let message = self.messages.get_mut(number).expect("a message that was sent");
        assert_eq!(message.topic, topic, "the topic of message {number}");
        let cluster = self.subscribers.get(&subscriber).map_or(0, |(cluster, _)| *cluster);
        report.linked_arrivals += 1;
        report.linked_arrivals_over_links += u64::from(cluster != message.origin);
        if !message.arrived.insert(subscriber) {
            assert!(
                message.qos < QoS::ExactlyOnce,
                "message {number} arrives twice at subscriber {subscriber}"
            );
            report.linked_excused_again += 1;
            return;
        }
        let key = (subscriber, message.publisher, topic.to_owned(), message.qos);
        let last = self.last.get(&key).copied();
        if last.is_some_and(|last| number < last) {
            // It came before the subscription, and a link brings it again.
            let is_again = message.qos < QoS::ExactlyOnce && !message.owed.contains(&subscriber);
            assert!(is_again, "message {number} arrives after {last:?} at subscriber {subscriber}");
            report.linked_excused_before_subscription += 1;
            return;
        }
        self.last.insert(key, number);
    }

    /// Checks a message that arrives at a member of the group. One member over all clusters gets it.
    pub fn arrives_in_group(&mut self, report: &mut Report, member: usize, topic: &str, payload: &str) {
        let number: usize = payload.parse().expect("a payload of the simulation");
        let message = self.messages.get_mut(number).expect("a message that was sent");
        assert_eq!(message.topic, topic, "the topic of message {number}");
        let cluster = self.members.get(&member).map_or(0, |(cluster, _)| *cluster);
        report.linked_group_arrivals += 1;
        report.linked_group_arrivals_over_links += u64::from(cluster != message.origin);
        message.arrived_in_group += 1;
        if message.arrived_in_group > 1 {
            // The process that gave it to a member may have ended before it recorded that.
            let is_excused = message.qos < QoS::ExactlyOnce || self.crashes > message.crashes;
            assert!(is_excused, "message {number} arrives twice in the group");
            report.linked_excused_twice_in_group += 1;
        }
    }

    /// Acknowledged messages that have arrived at no member of the group.
    pub fn missing_in_group(&self) -> Vec<usize> {
        let is_missing = |message: &Message| {
            message.is_acknowledged && message.is_owed_to_group && message.arrived_in_group == 0
        };
        let all = self.messages.iter().enumerate();
        all.filter(|(_, message)| is_missing(message)).map(|(number, _)| number).collect()
    }

    /// Number of acknowledged messages that had to arrive at one member of the group.
    pub fn checked_in_group(&self) -> u64 {
        let is_checked = |message: &&Message| message.is_acknowledged && message.is_owed_to_group;
        self.messages.iter().filter(is_checked).count() as u64
    }

    /// Messages that are acknowledged, and have not arrived where they have to.
    pub fn missing(&self) -> Vec<(usize, usize)> {
        let acknowledged = self.messages.iter().enumerate().filter(|(_, message)| message.is_acknowledged);
        acknowledged
            .flat_map(|(number, message)| {
                message.owed.difference(&message.arrived).map(move |it| (number, *it))
            })
            .collect()
    }

    /// Number of pairs of acknowledged message and subscriber that were checked.
    pub fn checked(&self) -> (u64, u64) {
        let acknowledged = || self.messages.iter().filter(|message| message.is_acknowledged);
        let is_far = |message: &Message, it: &&usize| {
            self.subscribers.get(*it).is_some_and(|(cluster, _)| *cluster != message.origin)
        };
        let all = acknowledged().map(|message| message.owed.len() as u64).sum();
        let far = acknowledged()
            .map(|message| message.owed.iter().filter(|it| is_far(message, it)).count() as u64)
            .sum();
        (all, far)
    }
}
