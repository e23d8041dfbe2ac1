//! Checks at the end of a run: the messages that must have arrived, and those that must not.

use std::collections::{BTreeMap, BTreeSet};

use bridge::{Settings, Side, Sides, TopicMap};
use mqtt::{QoS, TopicName};

use super::broker::{Broker, Caps, Message};
use super::report::Report;

/// Messages that the brokers had for the bridge's session.
#[derive(Debug)]
pub struct Oracle {
    map: TopicMap,
    published: Sides<Vec<Expected>>,
    may_be_lost: BTreeSet<u32>,
    may_be_duplicated: BTreeSet<u32>,
}

#[derive(Debug)]
struct Expected {
    number: u32,
    /// Broker that the message comes from.
    origin: &'static str,
    /// Topic at the other broker.
    topic: String,
    /// QoS of the message and QoS at which it arrives.
    qos: (QoS, QoS),
    arrives: bool,
}

impl Oracle {
    pub fn new(settings: &Settings) -> Self {
        Self {
            map: settings.check().expect("valid settings"),
            published: Sides::default(),
            may_be_lost: BTreeSet::new(),
            may_be_duplicated: BTreeSet::new(),
        }
    }

    /// Notes a message that a broker has for the bridge.
    pub fn published(&mut self, from: Side, origin: &'static str, message: &Message, target: &Caps) {
        let topic = TopicName::parse(&message.topic).expect("a Topic Name");
        let mapped = self.map.map(from, topic).expect("the topics are carried");
        let qos = message.qos.min(mapped.qos).min(target.maximum_qos);
        let is_large = message.padding > 1_100 || message.padding > 800 && target.packet_size_max <= 800;
        // Only MQTT 5.0 can refuse. A packet of 3.1.1 has no limit in these tests.
        let is_v5 = target.packet_size_max <= 800;
        let is_refused = message.topic.contains("refused") && mapped.topic.ends_with("refused") && is_v5;
        let expected = Expected {
            number: message.number,
            origin,
            topic: mapped.topic,
            qos: (message.qos.min(mapped.qos), qos),
            arrives: !is_large && !is_refused && !matches!(message.origin(), Some("own" | "third")),
        };
        self.published.of_mut(from).push(expected);
    }

    /// Notes messages that their broker has lost with the session.
    pub fn may_be_lost(&mut self, messages: &[Message]) {
        self.may_be_lost.extend(messages.iter().map(|message| message.number));
    }

    /// Notes messages whose receiver has forgotten that it has them.
    pub fn may_be_duplicated(&mut self, numbers: &[u32]) {
        self.may_be_duplicated.extend(numbers);
    }

    pub fn check(&self, brokers: &Sides<Broker>, report: &mut Report) {
        for from in Side::ALL {
            let target = brokers.of(from.other());
            let mut arrived: BTreeMap<u32, usize> = BTreeMap::new();
            // Numbers in the order of their first arrival, by origin, topic and QoS of the message.
            let mut streams: BTreeMap<(&str, &str, QoS), Vec<u32>> = BTreeMap::new();
            let expected: BTreeMap<u32, &Expected> =
                self.published.of(from).iter().map(|it| (it.number, it)).collect();
            for accepted in &target.accepted {
                let number = accepted.number;
                let expected = expected.get(&number).unwrap_or_else(|| panic!("{accepted:?} came back"));
                assert_eq!(accepted.topic, expected.topic);
                assert_eq!(accepted.qos, expected.qos.1, "{expected:?}");
                let count = arrived.entry(number).or_default();
                *count += 1;
                // Later messages may overtake one that was refused.
                if *count == 1 && !target.refused.contains(&number) {
                    streams
                        .entry((expected.origin, &expected.topic, expected.qos.0))
                        .or_default()
                        .push(number);
                }
            }
            for ((_, topic, qos), numbers) in &streams {
                assert!(numbers.is_sorted(), "order of {topic} at {qos:?}: {numbers:?}");
            }
            for (number, expected) in &expected {
                let count = arrived.get(number).copied().unwrap_or(0);
                self.check_count(*number, expected, count, report);
            }
        }
    }

    fn check_count(&self, number: u32, expected: &Expected, count: usize, report: &mut Report) {
        if !expected.arrives {
            assert_eq!(count, 0, "{number} must not arrive: {expected:?}");
            return;
        }
        let may_be_lost = self.may_be_lost.contains(&number) || expected.qos.1 == QoS::AtMostOnce;
        let may_be_duplicated = self.may_be_duplicated.contains(&number);
        assert!(count > 0 || may_be_lost, "{number} is lost: {expected:?}");
        match expected.qos {
            (QoS::ExactlyOnce, QoS::ExactlyOnce) => {
                assert!(count <= 1 || may_be_duplicated, "{number} arrived {count} times: {expected:?}");
                report.add("exactly once");
            }
            (QoS::AtMostOnce, _) => {
                assert!(count <= 1, "{number} arrived {count} times: {expected:?}");
                report.add("at most once");
            }
            _ => report.add(if count > 1 { "more than once, as QoS 1 may" } else { "at least once" }),
        }
    }
}
