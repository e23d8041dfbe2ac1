//! Messages that clients have published.

use std::collections::BTreeMap;

use broker::{ShardId, ShardSet};
use mqtt::QoS;

use crate::schedule::{Micros, SECOND};

/// First part of the topics whose messages have durability `memory`.
pub const FAST: &str = "fast/";
/// Maximum time in which the disk of a node that runs gets what the node has in memory.
const WRITTEN_AFTER: Micros = 2 * SECOND;

/// Number of the publisher, and of the message among its own.
pub type MessageId = (usize, u64);

/// Messages by topic.
#[derive(Default)]
pub struct Messages {
    by_topic: BTreeMap<String, BTreeMap<MessageId, Times>>,
    topics: BTreeMap<MessageId, String>,
    ended: Vec<EndedProcess>,
}

/// A process that has ended.
struct EndedProcess {
    /// Shards whose replicas it had.
    replicas: ShardSet,
    /// Time since which its disk got nothing.
    written: Micros,
    at: Micros,
}

struct Times {
    /// Time at which the message was sent first.
    sent: Micros,
    /// Time at which PUBACK or PUBCOMP arrived.
    acknowledged: Option<Micros>,
    /// True if PUBACK need not wait for the disks of a majority. PUBREC does.
    is_in_memory: bool,
}

impl Messages {
    pub fn sent(&mut self, id: MessageId, (topic, qos): (&str, QoS), sent: Micros) {
        self.topics.insert(id, topic.to_owned());
        let is_in_memory = topic.starts_with(FAST) && qos == QoS::AtLeastOnce;
        let times = Times { sent, acknowledged: None, is_in_memory };
        self.by_topic.entry(topic.to_owned()).or_default().insert(id, times);
    }

    /// Time at which a message was sent first.
    pub fn sent_at(&self, id: MessageId) -> Option<Micros> {
        Some(self.by_topic.get(self.topics.get(&id)?)?.get(&id)?.sent)
    }

    /// Notes that a process with these replicas ends. Its disk got nothing since a time.
    pub fn replicas_ended(&mut self, replicas: ShardSet, written: Micros, at: Micros) {
        self.ended.push(EndedProcess { replicas, written, at });
    }

    /// Returns whether a shard may lose an acknowledged message: a process that may have counted for its majority ended
    /// before its disk had the message.
    pub fn may_be_lost(&self, id: MessageId, shard: ShardId) -> bool {
        let times = self.topics.get(&id).and_then(|topic| self.by_topic.get(topic)?.get(&id));
        let Some(Times { sent, acknowledged: Some(acknowledged), is_in_memory: true }) = times else {
            return false;
        };
        let written_by = acknowledged + WRITTEN_AFTER;
        let mut ended = self.ended.iter().filter(|ended| ended.replicas.contains(shard));
        ended.any(|ended| ended.written < written_by && *sent <= ended.at)
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

    /// Returns whether a message was first sent after a time.
    pub fn was_sent_after(&self, id: MessageId, from: Micros) -> bool {
        let times = self.topics.get(&id).and_then(|topic| self.by_topic.get(topic)?.get(&id));
        times.is_some_and(|times| times.sent > from)
    }

    /// Messages to a topic that were sent after a time and acknowledged before another one.
    pub fn owed(&self, topic: &str, from: Micros, until: Micros) -> impl Iterator<Item = MessageId> {
        let messages = self.by_topic.get(topic).into_iter().flatten();
        let is_owed =
            move |times: &Times| times.sent > from && times.acknowledged.is_some_and(|at| at < until);
        messages.filter(move |(_, times)| is_owed(times)).map(|(id, _)| *id)
    }
}
