//! Messages that clients have published.

use std::collections::BTreeMap;

use crate::schedule::Micros;

/// Number of the publisher, and of the message among its own.
pub type MessageId = (usize, u64);

/// Messages by topic.
#[derive(Default)]
pub struct Messages {
    by_topic: BTreeMap<String, BTreeMap<MessageId, Times>>,
    topics: BTreeMap<MessageId, String>,
}

struct Times {
    /// Time at which the message was sent first.
    sent: Micros,
    /// Time at which PUBACK or PUBCOMP arrived.
    acknowledged: Option<Micros>,
}

impl Messages {
    pub fn sent(&mut self, id: MessageId, topic: &str, sent: Micros) {
        self.topics.insert(id, topic.to_owned());
        self.by_topic.entry(topic.to_owned()).or_default().insert(id, Times { sent, acknowledged: None });
    }

    pub fn acknowledged(&mut self, id: MessageId, at: Micros) {
        let Some(messages) = self.topics.get(&id).and_then(|topic| self.by_topic.get_mut(topic)) else {
            return;
        };
        if let Some(times) = messages.get_mut(&id) {
            times.acknowledged = Some(at);
        }
    }

    /// Returns whether this message was published to a topic.
    pub fn is_of(&self, id: MessageId, topic: &str) -> bool {
        self.topics.get(&id).is_some_and(|known| known == topic)
    }

    /// Messages to a topic that were sent after a time and acknowledged before another one.
    pub fn owed(&self, topic: &str, from: Micros, until: Micros) -> impl Iterator<Item = MessageId> {
        let messages = self.by_topic.get(topic).into_iter().flatten();
        let is_owed =
            move |times: &Times| times.sent > from && times.acknowledged.is_some_and(|at| at < until);
        messages.filter(move |(_, times)| is_owed(times)).map(|(id, _)| *id)
    }
}
