//! Candidates for the retained message of a topic.

use std::collections::BTreeMap;

use mqtt::{QoS, TopicFilter, TopicName};

use super::{Oracle, SHARE};
use crate::report::Report;

impl Oracle {
    /// Removes the candidates that an acknowledged message has replaced: those before it on its connection.
    pub(super) fn replaces(&mut self, number: usize) {
        let connections = self.messages[number].connections.clone();
        let messages = &self.messages;
        if let Some(candidates) = self.retained.get_mut(&messages[number].topic)
            && candidates.contains(&number)
        {
            let replaced = |other: &usize| *other < number && messages[*other].connections == connections;
            // A repeated QoS 2 message may have arrived after one that was known already.
            candidates.retain(|other| !replaced(other) || connections.len() > 1);
        }
    }

    /// Records a granted subscription. Retained messages of its topics are owed to the session until it ends or another
    /// client writes the topic.
    pub fn is_granted(&mut self, session: usize, filter: String, qos: QoS) {
        let is_plain = !filter.starts_with(SHARE) && qos > QoS::AtMostOnce;
        if let Some(parsed) = TopicFilter::parse(&filter).ok().filter(|_| is_plain && !self.tight) {
            let matching = self
                .retained
                .iter()
                .filter(|(topic, _)| TopicName::parse(topic).is_ok_and(|name| parsed.matches(name)));
            let only = matching.filter(|(_, candidates)| candidates.len() == 1);
            let is_sure = |number: &&usize| {
                let message = &self.messages[**number];
                message.acknowledged.is_some()
                    && message.qos > QoS::AtMostOnce
                    && message.connections.len() == 1
                    && !(message.deletes || message.may_never_arrive)
            };
            let owed: Vec<usize> =
                only.flat_map(|(_, candidates)| candidates).filter(is_sure).copied().collect();
            let view = &mut self.sessions[session];
            // Retained messages may arrive before SUBACK (MQTT 5.0, 3.8.4). An earlier SUBSCRIBE for the same filter
            // may have brought them: the client cannot tell.
            let early = view.arrived_since.get(&filter);
            let (came, owed): (Vec<_>, Vec<_>) =
                owed.into_iter().partition(|number| early.is_some_and(|early| early.contains(number)));
            if view.durable {
                self.excused.excused_retained_early += came.len() as u64;
                view.owed_retained.extend(owed);
            }
        }
        self.sessions[session].arrived_since.remove(&filter);
        self.sessions[session].granted.insert(filter, qos);
    }

    /// Records a write to a topic: its present retained message is not owed any more.
    pub(super) fn is_written(&mut self, topic: &str) {
        let Some(candidates) = self.retained.get(topic) else { return };
        for view in &mut self.sessions {
            view.owed_retained.retain(|number| !candidates.contains(number));
        }
    }

    /// Compares the retained messages that a new subscriber finds, by topic.
    pub fn check_retained(&self, report: &mut Report, found: &BTreeMap<String, String>) {
        for (topic, candidates) in &self.retained {
            let may_be = |payload: &str| {
                candidates.iter().any(|number| {
                    !self.messages[*number].deletes && self.messages[*number].payload == payload
                })
            };
            match found.get(topic) {
                Some(payload) => {
                    assert!(may_be(payload), "{payload} is retained on {topic}, not one of {candidates:?}");
                    report.check_retained += 1;
                }
                None => {
                    let messages = candidates.iter().map(|number| &self.messages[*number]);
                    let must_be = |all: &[&super::Published]| {
                        all.iter().any(|message| message.acknowledged.is_some() && !message.may_never_arrive)
                            && !all.iter().any(|message| message.deletes)
                    };
                    let all: Vec<_> = messages.collect();
                    assert!(!must_be(&all), "nothing is retained on {topic}: {candidates:?}");
                    report.check_retained_deleted += u64::from(all.iter().any(|message| message.deletes));
                    let is_excused = all.iter().any(|it| it.acknowledged.is_some() && !it.deletes);
                    report.excused_retained += u64::from(is_excused);
                }
            }
        }
        for topic in found.keys() {
            assert!(self.retained.contains_key(topic), "{topic} was never retained");
        }
    }
}
