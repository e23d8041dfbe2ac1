//! Retained messages: each worker hosts those whose Topic Name hashes to it, in the order of their topics.
//!
//! They are part of no session and end with none [MQTT3-3.1.2-7]. One at QoS 0 replaces the last one as any other does
//! [MQTT3-3.3.1-7].

use std::collections::BTreeMap;
use std::ops::Bound;

use mqtt::{Properties, TopicFilter, TopicName};

use crate::admin::{RetainedInfo, RetainedMessage, RetainedPage};
use crate::ids::{ConnectionId, Time, WorkerId, hash};
use crate::message::Message;

/// One worker's part of the retained messages.
#[derive(Debug, Default)]
pub struct RetainedShard {
    messages: BTreeMap<Box<str>, Message>,
    bytes: u64,
    /// Where the sweep for expired messages goes on.
    swept: Box<str>,
}

/// Asks for the next page of the retained messages that match a filter.
#[derive(Debug)]
pub struct Scan {
    pub connection: ConnectionId,
    /// Without a share name.
    pub filter: Box<str>,
    /// The last topic of the page before.
    pub after: Option<Box<str>>,
}

#[derive(Debug)]
pub struct Page {
    pub connection: ConnectionId,
    pub messages: Vec<Message>,
    /// Where to go on; `None` when this worker has no more.
    pub after: Option<Box<str>>,
}

/// Messages of one page, at most.
const PAGE_MESSAGES: usize = 64;
/// Bytes after which a page ends.
const PAGE_BYTES: usize = 256 * 1024;
/// Topics looked at for one page, at most: a filter that matches few of many topics holds nobody up.
const PAGE_TOPICS: usize = 2048;

/// The worker that hosts a topic's retained message. The broker's own topics are worker 0's, so that they make nobody look
/// for retained messages elsewhere.
pub fn host(topic: &str, workers: u16) -> WorkerId {
    if topic.starts_with(SYS) {
        return WorkerId(0);
    }
    WorkerId((hash(topic.as_bytes()) % u32::from(workers)) as u16)
}

/// The workers, first to last, that may host retained messages of a filter.
pub fn hosts(filter: &str, workers: u16) -> (WorkerId, WorkerId) {
    if filter.starts_with(SYS) || !filter.contains(['+', '#']) {
        let host = host(filter, workers);
        return (host, host);
    }
    (WorkerId(0), WorkerId(workers - 1))
}

pub const SYS: &str = "$SYS/";

impl RetainedShard {
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Stores the message, or removes the topic's when the payload is empty [MQTT-3.3.1-6] [MQTT-3.3.1-7]. `room` is for the
    /// limits: it is asked whether so many more messages and bytes may be kept.
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

    pub fn page(&self, now: Time, scan: Scan) -> Page {
        let Scan { connection, filter, after } = scan;
        let (messages, after) = self.scan(now, &filter, after, PAGE_MESSAGES);
        Page { connection, messages, after }
    }

    /// Messages that match, behind a topic, and where to go on.
    fn scan(
        &self,
        now: Time,
        filter: &str,
        after: Option<Box<str>>,
        limit: usize,
    ) -> (Vec<Message>, Option<Box<str>>) {
        let mut found = Vec::new();
        let Ok(filter) = TopicFilter::parse(filter) else { return (found, None) };
        if !filter.has_wildcard() {
            let message = self.messages.get(filter.as_str());
            found.extend(message.filter(|message| is_live(message, now)).cloned());
            return (found, None);
        }
        // Topics that match begin with the filter up to its first wildcard.
        let literal = literal_prefix(filter.as_str());
        let from = match &after {
            Some(topic) => Bound::Excluded(&**topic),
            None => Bound::Included(literal),
        };
        let mut bytes = 0;
        let range = self.messages.range::<str, _>((from, Bound::Unbounded));
        for (looked, (topic, message)) in
            range.take_while(|(topic, _)| topic.starts_with(literal)).enumerate()
        {
            if TopicName::parse(topic).is_ok_and(|name| filter.matches(name)) && is_live(message, now) {
                bytes += message.size();
                found.push(message.clone());
            }
            if found.len() >= limit || bytes >= PAGE_BYTES || looked + 1 >= PAGE_TOPICS {
                return (found, Some(topic.clone()));
            }
        }
        (found, None)
    }

    /// What an operator sees of the messages that match, behind a topic; looks at a bounded number of them.
    pub fn list(
        &self,
        now: Time,
        filter: &str,
        after: Option<Box<str>>,
        limit: usize,
        own: WorkerId,
        last: WorkerId,
    ) -> RetainedPage {
        let page = self.scan(now, filter, after, limit.min(PAGE_MESSAGES));
        let next = match page.1 {
            Some(after) => Some((own, Some(after))),
            None => (own < last).then(|| (WorkerId(own.0 + 1), None)),
        };
        RetainedPage { items: page.0.iter().map(|message| info(now, message)).collect(), next }
    }

    /// One message with its payload.
    pub fn whole(&self, now: Time, topic: &str) -> Option<RetainedMessage> {
        let message = self.messages.get(topic).filter(|message| is_live(message, now))?;
        let view = message.view();
        let properties = Properties::of_checked(view.properties);
        Some(RetainedMessage {
            info: info(now, message),
            payload: view.payload.to_vec(),
            content_type: properties.content_type().map(str::to_owned),
            user_properties: properties
                .user_properties()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        })
    }

    /// True when there was one.
    pub fn delete(&mut self, topic: &str) -> bool {
        let before = self.messages.len();
        self.remove(topic);
        self.messages.len() < before
    }

    /// Looks at up to `count` topics and removes messages that have expired.
    pub fn sweep(&mut self, now: Time, count: usize) {
        let from = Bound::Excluded(&*self.swept);
        let looked: Vec<_> = self.messages.range::<str, _>((from, Bound::Unbounded)).take(count).collect();
        let swept = if looked.len() < count {
            Box::default()
        } else {
            looked.last().map(|(t, _)| (*t).clone()).unwrap_or_default()
        };
        let expired: Vec<Box<str>> = looked
            .iter()
            .filter(|(_, message)| !is_live(message, now))
            .map(|(topic, _)| (*topic).clone())
            .collect();
        self.swept = swept;
        for topic in expired {
            self.remove(&topic);
        }
    }
}

/// There is no room for another retained message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainedFull;

fn info(now: Time, message: &Message) -> RetainedInfo {
    let view = message.view();
    RetainedInfo {
        topic: view.topic.into(),
        qos: view.qos,
        payload_bytes: view.payload.len(),
        age: now.since(view.received),
        expires_in: (view.expires != Time::NEVER).then(|| view.expires.since(now)),
    }
}

fn is_live(message: &Message, now: Time) -> bool {
    message.view().remaining_expiry(now).is_ok()
}

/// The part of a filter that every matching topic begins with. `a/#` matches `a` too, so the separator stays out.
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
            publisher_hash: 0,
        };
        view.to_message()
    }

    fn all(shard: &mut RetainedShard, now: Time, filter: &str) -> Vec<String> {
        let connection = ConnectionId { worker: WorkerId(0), slot: 0, generation: 0 };
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let page = shard.page(now, Scan { connection, filter: filter.into(), after });
            found.extend(page.messages.iter().map(|message| message.view().topic.to_owned()));
            after = page.after;
            if after.is_none() {
                return found;
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
    fn expired_messages_are_not_found_and_swept_away() {
        let mut shard = RetainedShard::default();
        for number in 0..30 {
            let expires = if number % 3 == 0 { Time(10) } else { Time::NEVER };
            shard.set(message(&format!("t/{number:02}"), "1", expires), |_, _| true).expect("room");
        }
        assert_eq!(all(&mut shard, Time(10), "t/#").len(), 20);
        for _ in 0..5 {
            shard.sweep(Time(10), 7);
        }
        assert_eq!(shard.len(), 20);
    }
}
