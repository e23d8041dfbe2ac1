//! Retained messages: each shard of the store has those whose Topic Name hashes to it, ordered by topic. Worker 0 has
//! the broker's own ones, on `$SYS/`, which belong to no shard.
//!
//! They are part of no session and end with none [MQTT3-3.1.2-7]. One at QoS 0 replaces the last one as any other does
//! [MQTT3-3.3.1-7].

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use mqtt::{Properties, TopicFilter, TopicName};

use crate::admin::{RetainedInfo, RetainedMessage};
use crate::ids::{ConnectionId, ShardId, ShardSet, Time, hash};
use crate::message::Message;
use crate::origin;
use crate::store::SHARDS;
use crate::store::shard_clock::shifted;

/// Retained messages of one shard, or the broker's own.
#[derive(Debug, Default)]
pub struct RetainedShard {
    messages: BTreeMap<Box<str>, Message>,
    bytes: u64,
}

/// Request for the next page of the retained messages that match a filter.
#[derive(Debug)]
pub struct Scan {
    pub connection: ConnectionId,
    /// Topic Filter without a share name.
    pub filter: Box<str>,
    /// Shards that are skipped.
    pub done: ShardSet,
    /// `next` of the previous page.
    pub from: Option<ScanPosition>,
    /// Maximum number of messages of a page.
    pub limit: usize,
    /// Indexes of the previous page.
    pub indexes: Indexes,
}

impl Scan {
    /// Topic after which the scan continues in a shard; `None` at its beginning. It continues inside the shard at which
    /// it stopped, and reads the others from their start.
    pub fn after(&self, shard: ShardId) -> Option<&str> {
        let from = self.from.as_ref().filter(|(at, after)| *at == shard && !after.is_empty());
        from.map(|(_, after)| &**after)
    }
}

#[derive(Debug)]
pub struct Page {
    pub connection: ConnectionId,
    pub messages: Vec<Message>,
    /// Number of topics that were looked at.
    pub examined: usize,
    /// Position to continue from; `None` when this worker has no more.
    pub next: Option<ScanPosition>,
    pub indexes: Indexes,
}

/// Indexes up to which the shards of a worker must have applied their records before a scan reads them, in a cluster
/// whose shards have replicas. `None` until they are known, and on a node that has the shards alone.
pub type Indexes = Option<Arc<[(ShardId, u64)]>>;

/// Position from which a listing continues: in this shard, or among the broker's [`OWN_TOPICS`], after this topic. An
/// empty topic is the beginning.
pub type ScanPosition = (ShardId, Box<str>);

/// Remaining cost that one page may have.
#[derive(Clone, Copy, Debug)]
pub struct PageBudget {
    messages: usize,
    bytes: usize,
    /// Number of topics that may be looked at: a filter that matches few of many topics delays nothing else.
    topics: usize,
}

impl Default for PageBudget {
    fn default() -> Self {
        Self { messages: PAGE_MESSAGES, bytes: PAGE_BYTES, topics: PAGE_TOPICS }
    }
}

impl PageBudget {
    /// Makes the budget of a page of up to `count` messages.
    pub fn of_messages(count: usize) -> Self {
        Self { messages: count.min(PAGE_MESSAGES), ..Self::default() }
    }

    /// Number of messages for which there is room.
    pub fn messages(&self) -> usize {
        self.messages
    }

    /// Records that `topics` topics were looked at.
    pub fn examine(&mut self, topics: usize) {
        self.topics = self.topics.saturating_sub(topics);
    }

    /// Number of topics that were looked at.
    pub fn examined(&self) -> usize {
        PAGE_TOPICS - self.topics
    }

    /// Records that a message of `bytes` bytes was taken.
    pub fn spend(&mut self, bytes: usize) {
        self.messages = self.messages.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    pub fn is_spent(&self) -> bool {
        self.messages == 0 || self.bytes == 0 || self.topics == 0
    }
}

/// Maximum number of messages of one page.
const PAGE_MESSAGES: usize = 64;
/// Number of bytes after which a page ends.
const PAGE_BYTES: usize = 256 * 1024;
/// Maximum number of topics that are looked at for one page.
const PAGE_TOPICS: usize = 2048;

/// Shard that has a topic's retained message, or [`OWN_TOPICS`].
pub fn shard_of(topic: &str) -> ShardId {
    if topic.starts_with(SYS) && !topic.starts_with(BRIDGES) {
        return OWN_TOPICS;
    }
    ShardId::of_hash(hash(topic.as_bytes()))
}

/// First and last place that may have retained messages of a filter: shards, [`OWN_TOPICS`], or both.
pub fn shard_range(filter: &str) -> (ShardId, ShardId) {
    if !filter.contains(['+', '#']) {
        let shard = shard_of(filter);
        return (shard, shard);
    }
    if !filter.starts_with(SYS) {
        return (ShardId(0), ShardId(SHARDS - 1));
    }
    // The first level that is `#` or does not match the topics of bridges.
    let mut of_bridges = filter.split('/').zip(BRIDGES.trim_end_matches('/').split('/'));
    let may_match =
        of_bridges.by_ref().find(|(level, name)| *level == "#" || (*level != "+" && level != name));
    match may_match {
        Some(("#", _)) | None => (ShardId(0), OWN_TOPICS),
        Some(_) => (OWN_TOPICS, OWN_TOPICS),
    }
}

/// Id for the broker's own topics, which belong to no shard and are in no [`ShardSet`]. They are created again after a
/// start, and cause no search for retained messages elsewhere.
pub const OWN_TOPICS: ShardId = ShardId(SHARDS);

pub const SYS: &str = "$SYS/";

/// Prefix of the topics on which bridges publish whether they are connected. They are messages of clients, so shards
/// retain them.
pub const BRIDGES: &str = "$SYS/broker/connection/";

impl RetainedShard {
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Stores the message, or removes the topic's message when the payload is empty [MQTT-3.3.1-6] [MQTT-3.3.1-7].
    /// `room` checks the limits: it returns whether this number of further messages and bytes may be kept.
    pub fn set(&mut self, message: Message, room: impl FnOnce(u64, u64) -> bool) -> Result<(), RetainedFull> {
        let view = message.view();
        if view.payload.is_empty() {
            self.remove(view.topic.to_owned().as_str());
            return Ok(());
        }
        let size = message.size() as u64;
        if let Some(known) = self.messages.get_mut(view.topic) {
            let before = known.size() as u64;
            if size > before && !room(0, size - before) {
                return Err(RetainedFull);
            }
            self.bytes = self.bytes - before + size;
            *known = message; // [MQTT-3.3.1-5]
            return Ok(());
        }
        if !room(1, size) {
            return Err(RetainedFull);
        }
        self.bytes += size;
        let topic = view.topic.into();
        self.messages.insert(topic, message);
        Ok(())
    }

    fn remove(&mut self, topic: &str) {
        if let Some(gone) = self.messages.remove(topic) {
            self.bytes -= gone.size() as u64;
        }
    }

    /// Adds matching messages after a topic, as far as the budget allows. Returns the topic after which the next page
    /// begins.
    pub fn page(
        &self,
        now: Time,
        filter: &str,
        after: Option<&str>,
        budget: &mut PageBudget,
        found: &mut Vec<Message>,
    ) -> Option<Box<str>> {
        let filter = TopicFilter::parse(filter).ok()?;
        if !filter.has_wildcard() {
            let message = self.messages.get(filter.as_str());
            found.extend(message.filter(|message| is_live(message, now)).cloned());
            return None;
        }
        // Topics that match begin with the filter up to its first wildcard.
        let literal = literal_prefix(filter.as_str());
        let from = match after {
            Some(topic) => Bound::Excluded(topic),
            None => Bound::Included(literal),
        };
        let range = self.messages.range::<str, _>((from, Bound::Unbounded));
        for (topic, message) in range.take_while(|(topic, _)| topic.starts_with(literal)) {
            budget.examine(1);
            if TopicName::parse(topic).is_ok_and(|name| filter.matches(name)) && is_live(message, now) {
                budget.bytes = budget.bytes.saturating_sub(message.size());
                budget.messages -= 1;
                found.push(message.clone());
            }
            if budget.is_spent() {
                return Some(topic.clone());
            }
        }
        None
    }

    /// Lists matching messages after a topic for an operator. Looks at a bounded number of them, and returns the topic
    /// after which the next page begins.
    pub fn list(
        &self,
        now: Time,
        filter: &str,
        after: Option<&str>,
        limit: usize,
    ) -> (Vec<RetainedInfo>, Option<Box<str>>) {
        let mut found = Vec::new();
        let next = self.page(now, filter, after, &mut PageBudget::of_messages(limit.max(1)), &mut found);
        (found.iter().map(|message| info(now, message)).collect(), next)
    }

    /// One message with its payload.
    pub fn whole(&self, now: Time, topic: &str) -> Option<RetainedMessage> {
        let message = self.messages.get(topic).filter(|message| is_live(message, now))?;
        Some(whole(now, message))
    }

    /// Deletes a message. Returns true when there was one.
    pub fn delete(&mut self, topic: &str) -> bool {
        let before = self.messages.len();
        self.remove(topic);
        self.messages.len() < before
    }
}

/// Adds matching messages of a shard, which is ahead of this node by a time, after a topic, as far as the budget
/// allows. Returns the topic after which the next page begins.
pub fn page_of(
    (state, ahead_ms): (&shard::Shard, i64),
    now: Time,
    filter: &str,
    after: Option<&str>,
    budget: &mut PageBudget,
    found: &mut Vec<Message>,
) -> Option<Box<str>> {
    let page = state.retained_page(filter, after, budget.messages());
    budget.examine(page.examined);
    for bytes in &page.messages {
        let Some(stored) = decode(bytes, ahead_ms) else { continue };
        // The state's clock stands still while nothing happens.
        if !stored.is_expired(now.0) {
            budget.spend(bytes.len());
            found.push(Message::of_stored(&stored));
        }
    }
    page.after
}

/// Decodes a message of a shard, with its end by the clock of this node.
fn decode(bytes: &[u8], ahead_ms: i64) -> Option<shard::MessageView<'_>> {
    let stored = shard::MessageView::decode(bytes).ok()?;
    Some(shard::MessageView { expires: shifted(stored.expires, ahead_ms.saturating_neg()), ..stored })
}

/// Lists matching messages of a shard after a topic for an operator. Looks at a bounded number of them, and returns the
/// topic after which the next page begins.
pub fn list_of(
    state: (&shard::Shard, i64),
    now: Time,
    filter: &str,
    after: Option<&str>,
    limit: usize,
) -> (Vec<RetainedInfo>, Option<Box<str>>) {
    let mut found = Vec::new();
    let mut budget = PageBudget::of_messages(limit.max(1));
    let next = page_of(state, now, filter, after, &mut budget, &mut found);
    (found.iter().map(|message| info(now, message)).collect(), next)
}

/// One message of a shard with its payload.
pub fn whole_of((state, ahead_ms): (&shard::Shard, i64), now: Time, topic: &str) -> Option<RetainedMessage> {
    let stored = decode(state.retained(topic)?, ahead_ms)?;
    (!stored.is_expired(now.0)).then(|| whole(now, &Message::of_stored(&stored)))
}

/// Error: there is no room for another retained message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainedFull;

pub fn info(now: Time, message: &Message) -> RetainedInfo {
    let view = message.view();
    RetainedInfo {
        topic: view.topic.into(),
        qos: view.qos,
        payload_bytes: view.payload.len(),
        age: now.since(view.received),
        expires_in: (view.expires != Time::NEVER).then(|| view.expires.since(now)),
    }
}

pub fn whole(now: Time, message: &Message) -> RetainedMessage {
    let view = message.view();
    let properties = Properties::of_checked(origin::split(view.properties).1);
    RetainedMessage {
        info: info(now, message),
        payload: view.payload.to_vec(),
        content_type: properties.content_type().map(str::to_owned),
        user_properties: properties
            .user_properties()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    }
}

fn is_live(message: &Message, now: Time) -> bool {
    message.view().remaining_expiry(now).is_ok()
}

/// Part of a filter that every matching topic begins with. `a/#` matches `a` too, so the separator is left out.
fn literal_prefix(filter: &str) -> &str {
    let wildcard = filter.find(['+', '#']).unwrap_or(filter.len());
    filter[..wildcard].trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use mqtt::QoS;

    use super::*;
    use crate::message::MessageView;

    fn message(topic: &str, payload: &str, expires: Time) -> Message {
        let view = MessageView {
            topic,
            properties: &[],
            payload: payload.as_bytes(),
            qos: QoS::AtMostOnce,
            retain: true,
            expires,
            received: Time::default(),
            publisher: None,
            publisher_key: 0,
            durability: crate::durability::Durability::LocalDisk,
            span: 0,
        };
        view.to_message()
    }

    fn all(shard: &mut RetainedShard, now: Time, filter: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut after: Option<Box<str>> = None;
        loop {
            let before = found.len();
            after = shard.page(now, filter, after.as_deref(), &mut PageBudget::default(), &mut found);
            assert!(found.len() - before <= PAGE_MESSAGES);
            if after.is_none() {
                return found.iter().map(|message| message.view().topic.to_owned()).collect();
            }
        }
    }

    #[test]
    fn a_filter_finds_what_it_matches_over_many_pages() {
        let mut shard = RetainedShard::default();
        for number in 0..5_000 {
            let topic = format!("a/{number:04}/{}", if number % 10 == 0 { "x" } else { "y" });
            shard.set(message(&topic, "1", Time::NEVER), |_, _| true).expect("room");
        }
        shard.set(message("a", "1", Time::NEVER), |_, _| true).expect("room");
        shard.set(message("$SYS/x", "1", Time::NEVER), |_, _| true).expect("room");
        assert_eq!(all(&mut shard, Time(0), "a/+/x").len(), 500);
        assert_eq!(all(&mut shard, Time(0), "a/#").len(), 5_001);
        assert_eq!(all(&mut shard, Time(0), "#").len(), 5_001);
        assert_eq!(all(&mut shard, Time(0), "a/0010/x"), ["a/0010/x"]);
        assert_eq!(all(&mut shard, Time(0), "$SYS/#"), ["$SYS/x"]);
    }

    /// [MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-7]
    #[test]
    fn a_message_is_replaced_and_an_empty_one_removes_it() {
        let mut shard = RetainedShard::default();
        shard.set(message("t", "one", Time::NEVER), |_, _| true).expect("room");
        shard
            .set(message("t", "three", Time::NEVER), |messages, bytes| (messages, bytes) == (0, 2))
            .expect("room");
        shard.set(message("t", "four", Time::NEVER), |_, _| false).expect("a smaller one needs no room");
        assert_eq!(shard.set(message("t", "longer", Time::NEVER), |_, _| false), Err(RetainedFull));
        assert_eq!(shard.len(), 1);
        assert_eq!(shard.set(message("u", "x", Time::NEVER), |_, _| false), Err(RetainedFull));
        shard.set(message("t", "", Time::NEVER), |_, _| false).expect("removing needs no room");
        assert_eq!((shard.len(), shard.bytes()), (0, 0));
    }

    #[test]
    fn expired_messages_are_not_found() {
        let mut shard = RetainedShard::default();
        for number in 0..30 {
            let expires = if number % 3 == 0 { Time(10) } else { Time::NEVER };
            shard.set(message(&format!("t/{number:02}"), "1", expires), |_, _| true).expect("room");
        }
        assert_eq!(all(&mut shard, Time(10), "t/#").len(), 20);
    }
}
