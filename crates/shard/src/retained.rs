//! Retained messages, in the order of their topics.
//!
//! They belong to no session and do not end with one [MQTT3-3.1.2-7]. A QoS 0 message replaces the last one like
//! any other [MQTT3-3.3.1-7].

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use mqtt::{TopicFilter, TopicName};

use crate::ids::retained_bucket;
use crate::message::{MessageView, NEVER};

#[derive(Debug, Default)]
pub(crate) struct Retained {
    messages: BTreeSet<ByTopic>,
    /// Messages by the part of the checkpoint that they are in.
    buckets: BTreeMap<u16, BTreeSet<ByTopic>>,
    /// Messages that expire, by time.
    expiries: BTreeSet<(u64, ByTopic)>,
    bytes: u64,
}

/// A page of a scan.
#[derive(Clone, Debug, Default)]
pub struct RetainedPage {
    /// Messages that match and have not expired, each an encoded [`MessageView`], in the order of their topics.
    pub messages: Vec<Arc<[u8]>>,
    /// The topic to continue after; `None` when there is no more.
    pub after: Option<Box<str>>,
    /// Number of messages that were examined, whether or not they match.
    pub examined: usize,
}

/// Bytes of messages after which a page ends.
const PAGE_BYTES: usize = 256 * 1024;
/// Maximum number of topics that are examined for one page, so that a filter that matches few of many topics delays
/// nothing.
const PAGE_TOPICS: usize = 2048;

/// An encoded message that is compared by its topic.
#[derive(Clone, Debug)]
struct ByTopic(Arc<[u8]>);

impl ByTopic {
    fn topic(&self) -> &[u8] {
        let len = usize::from(u16::from_le_bytes([self.0[2], self.0[3]]));
        &self.0[MessageView::HEADER..MessageView::HEADER + len]
    }

    fn view(&self) -> MessageView<'_> {
        MessageView::decode(&self.0).unwrap_or_else(|_| unreachable!("decoded before it was stored"))
    }
}

// The order of UTF-8 text is that of its bytes.
impl Borrow<[u8]> for ByTopic {
    fn borrow(&self) -> &[u8] {
        self.topic()
    }
}

impl PartialEq for ByTopic {
    fn eq(&self, other: &Self) -> bool {
        self.topic() == other.topic()
    }
}

impl Eq for ByTopic {}

impl PartialOrd for ByTopic {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByTopic {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.topic().cmp(other.topic())
    }
}

impl Retained {
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Bytes of the encoded messages.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn get(&self, topic: &str) -> Option<&Arc<[u8]>> {
        self.messages.get(topic.as_bytes()).map(|message| &message.0)
    }

    /// Stores the message in place of the topic's last one. Returns true when there was one [MQTT-3.3.1-5].
    pub fn set(&mut self, view: &MessageView<'_>) -> bool {
        let replaced = self.remove(view.topic);
        let message = ByTopic(view.to_bytes().into());
        self.bytes += message.0.len() as u64;
        if view.expires != NEVER {
            self.expiries.insert((view.expires, message.clone()));
        }
        self.buckets.entry(retained_bucket(view.topic)).or_default().insert(message.clone());
        self.messages.insert(message);
        replaced
    }

    /// Removes the topic's message. Returns true when there was one.
    pub fn remove(&mut self, topic: &str) -> bool {
        let Some(message) = self.messages.take(topic.as_bytes()) else { return false };
        self.bytes -= message.0.len() as u64;
        let bucket = retained_bucket(topic);
        if let Some(others) = self.buckets.get_mut(&bucket) {
            others.remove(topic.as_bytes());
            if others.is_empty() {
                self.buckets.remove(&bucket);
            }
        }
        let expires = message.view().expires;
        if expires != NEVER {
            self.expiries.remove(&(expires, message));
        }
        true
    }

    /// Moves the times of all messages.
    pub fn shift(&mut self, ms: u64) {
        let messages = std::mem::take(self).messages;
        for message in &messages {
            self.set(&message.view().shifted(ms));
        }
    }

    /// Time at which the next message expires.
    pub fn next_expiry(&self) -> u64 {
        self.expiries.first().map_or(NEVER, |(at, _)| *at)
    }

    /// Topic of the next message that expires.
    pub fn next_expiring(&self) -> Option<Box<str>> {
        self.expiries.first().map(|(_, message)| message.view().topic.into())
    }

    /// Returns the messages of a bucket in the order of their topics.
    pub fn of_bucket(&self, bucket: u16) -> impl Iterator<Item = &[u8]> {
        self.buckets.get(&bucket).into_iter().flatten().map(|message| &*message.0)
    }

    pub fn count_of_bucket(&self, bucket: u16) -> usize {
        self.buckets.get(&bucket).map_or(0, BTreeSet::len)
    }

    pub fn buckets(&self) -> impl Iterator<Item = u16> {
        self.buckets.keys().copied()
    }

    /// Returns messages that match a filter, after a topic. Examines a bounded number of them.
    pub fn page(&self, now: u64, filter: &str, after: Option<&str>, limit: usize) -> RetainedPage {
        let mut page = RetainedPage::default();
        let Ok(filter) = TopicFilter::parse(filter) else { return page };
        if !filter.has_wildcard() {
            let message = self.messages.get(filter.as_str().as_bytes());
            page.examined = 1;
            page.messages
                .extend(message.filter(|message| !message.view().is_expired(now)).map(|m| m.0.clone()));
            return page;
        }
        // Topics that match begin with the filter up to its first wildcard.
        let literal = literal_prefix(filter.as_str()).as_bytes();
        let from = match after {
            Some(topic) => Bound::Excluded(topic.as_bytes()),
            None => Bound::Included(literal),
        };
        let range = self.messages.range::<[u8], _>((from, Bound::Unbounded));
        let mut bytes = 0;
        for message in range.take_while(|m| m.topic().starts_with(literal)) {
            page.examined += 1;
            let view = message.view();
            if TopicName::parse(view.topic).is_ok_and(|name| filter.matches(name)) && !view.is_expired(now) {
                bytes += message.0.len();
                page.messages.push(message.0.clone());
            }
            if page.messages.len() >= limit || bytes >= PAGE_BYTES || page.examined >= PAGE_TOPICS {
                page.after = Some(view.topic.into());
                return page;
            }
        }
        page
    }

    pub fn check_invariants(&self) {
        assert_eq!(self.bytes, self.messages.iter().map(|message| message.0.len() as u64).sum::<u64>());
        assert_eq!(self.messages.len(), self.buckets.values().map(BTreeSet::len).sum::<usize>());
        for message in &self.messages {
            let view = message.view();
            assert!(!view.payload.is_empty(), "an empty one removes [MQTT-3.3.1-6]");
            assert!(self.buckets[&retained_bucket(view.topic)].contains(message));
            assert!(view.expires == NEVER || self.expiries.contains(&(view.expires, message.clone())));
        }
        let expiring = self.messages.iter().filter(|message| message.view().expires != NEVER).count();
        assert_eq!(expiring, self.expiries.len());
    }
}

/// Returns the part of a filter that every matching topic begins with. `a/#` matches `a` too, so the separator is
/// not included.
fn literal_prefix(filter: &str) -> &str {
    let wildcard = filter.find(['+', '#']).unwrap_or(filter.len());
    filter[..wildcard].trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use mqtt::QoS;

    use super::*;

    fn message<'a>(topic: &'a str, payload: &'a str, expires: u64) -> MessageView<'a> {
        MessageView {
            topic,
            properties: &[],
            payload: payload.as_bytes(),
            qos: QoS::AtMostOnce,
            retain: true,
            expires,
            received: 0,
            publisher_key: 0,
        }
    }

    fn all(retained: &Retained, now: u64, filter: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let page = retained.page(now, filter, after.as_deref(), 64);
            let topic = |bytes: &Arc<[u8]>| MessageView::decode(bytes).expect("ours").topic.to_owned();
            found.extend(page.messages.iter().map(topic));
            after = page.after;
            if after.is_none() {
                return found;
            }
        }
    }

    #[test]
    fn a_filter_finds_what_it_matches_over_many_pages() {
        let mut retained = Retained::default();
        for number in 0..5_000 {
            let topic = format!("a/{number:04}/{}", if number % 10 == 0 { "x" } else { "y" });
            retained.set(&message(&topic, "1", NEVER));
        }
        retained.set(&message("a", "1", NEVER));
        retained.set(&message("$SYS/x", "1", NEVER));
        assert_eq!(all(&retained, 0, "a/+/x").len(), 500);
        assert_eq!(all(&retained, 0, "a/#").len(), 5_001);
        assert_eq!(all(&retained, 0, "#").len(), 5_001);
        assert_eq!(all(&retained, 0, "a/0010/x"), ["a/0010/x"]);
        assert_eq!(all(&retained, 0, "$SYS/#"), ["$SYS/x"]);
        retained.check_invariants();
    }

    /// [MQTT-3.3.1-5]
    #[test]
    fn a_message_is_replaced_with_its_expiry() {
        let mut retained = Retained::default();
        assert!(!retained.set(&message("t", "one", 10)));
        assert!(retained.set(&message("t", "three", 20)));
        assert_eq!((retained.len(), retained.next_expiry()), (1, 20));
        retained.check_invariants();
        assert!(retained.set(&message("t", "four", NEVER)));
        assert_eq!(retained.next_expiring(), None);
        assert!(retained.remove("t") && !retained.remove("t"));
        assert_eq!((retained.len(), retained.bytes()), (0, 0));
        retained.check_invariants();
    }

    #[test]
    fn an_expired_message_is_not_found() {
        let mut retained = Retained::default();
        retained.set(&message("t/1", "1", 10));
        retained.set(&message("t/2", "1", 11));
        assert_eq!(all(&retained, 10, "t/+"), ["t/2"]);
        assert!(all(&retained, 10, "t/1").is_empty());
        assert_eq!(retained.next_expiring().as_deref(), Some("t/1"));
    }
}
