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
}

fn matches(filter: &str, topic: &str) -> bool {
    let (filter, topic) = (TopicFilter::parse(filter), TopicName::parse(topic));
    filter.is_ok_and(|filter| topic.is_ok_and(|topic| filter.matches(topic)))
}

impl Oracle {
    pub fn add_subscriber(&mut self, subscriber: usize, cluster: usize) {
        self.subscribers.insert(subscriber, (cluster, BTreeMap::new()));
    }

    /// Notes a SUBSCRIBE with SUBACK.
    pub fn granted(&mut self, subscriber: usize, filter: &str) {
        let Some((_, subscriptions)) = self.subscribers.get_mut(&subscriber) else { return };
        subscriptions.entry(filter.to_owned()).or_default().is_granted = true;
    }

    /// Notes that the links bring messages of an origin for a filter.
    pub fn settled(&mut self, subscriber: usize, filter: &str, origin: usize) {
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
            if matches(filter, &message.topic) && message.owed.remove(&subscriber) {
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
        self.messages.push(Message {
            origin,
            publisher,
            topic: topic.to_owned(),
            qos,
            is_acknowledged: false,
            owed,
            arrived: BTreeSet::new(),
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
        let last = self.last.insert(key, number);
        assert!(
            last.is_none_or(|last| last < number),
            "message {number} arrives after {last:?} at subscriber {subscriber}"
        );
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
