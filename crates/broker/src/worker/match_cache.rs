//! Routes of topics that were published before.
//!
//! Most publishers repeat a few topics, and subscriptions change much less often than messages come. While the index
//! is unchanged, a topic has the same routes as before. One comparison of its bytes is cheaper than hashing each level
//! and following all wildcard shapes.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use mqtt::TopicName;
use routing::Reader;

use super::dispatch::find_routes;
use crate::route::Route;

/// Number of topics. A power of two.
const ENTRIES: usize = 1024;
/// Maximum number of bytes of a topic that is kept.
const TOPIC_MAX: usize = 256;
/// Maximum number of routes that are kept for a topic. With more, the deliveries cost much more than the match.
const ROUTES_MAX: usize = 16;

/// The last topics of a worker with their routes, at most about 600 KiB. It takes memory with the first topic that is
/// repeated.
#[derive(Default)]
pub(super) struct MatchCache {
    entries: Vec<Entry>,
}

#[derive(Clone, Default)]
struct Entry {
    hash: u64,
    /// Hash of the last topic that found the entry occupied by another. The next time it takes the entry, so topics
    /// that come once displace none.
    candidate: u64,
    /// Version of the index that has these routes.
    version: u64,
    topic: Box<str>,
    routes: Vec<Route>,
}

impl MatchCache {
    /// Returns all routes of a topic, as [`find_routes`] does.
    pub fn routes<'r>(
        &mut self,
        reader: &Reader<Route>,
        name: TopicName<'_>,
        routes: &'r mut Vec<Route>,
    ) -> &'r [Route] {
        let topic = name.as_str();
        if topic.len() > TOPIC_MAX {
            return find_routes(reader, name, routes);
        }
        if self.entries.is_empty() {
            self.entries.resize(ENTRIES, Entry::default());
        }
        let hash = FixedState::default().hash_one(topic.as_bytes()) | 1;
        let entry = &mut self.entries[(hash >> 1) as usize % ENTRIES];
        // The version comes first: a change during the search makes the found routes invalid.
        let version = reader.index().version();
        if entry.hash == hash && *entry.topic == *topic {
            if entry.version == version {
                routes.extend_from_slice(&entry.routes);
                return routes;
            }
        } else if std::mem::replace(&mut entry.candidate, hash) != hash {
            return find_routes(reader, name, routes);
        }
        let found = find_routes(reader, name, routes);
        if found.len() <= ROUTES_MAX {
            if entry.hash != hash || *entry.topic != *topic {
                entry.hash = hash;
                entry.topic = topic.into();
            }
            entry.version = version;
            entry.routes.clear();
            entry.routes.extend_from_slice(found);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mqtt::{SubscriptionOptions, TopicFilter};
    use random::Random;
    use routing::{Index, IndexLimits};

    use super::*;
    use crate::route::{Options, RouteKind};

    fn route(slot: u32) -> Route {
        let options = Options::from(SubscriptionOptions::default());
        Route { slot, generation: 0, subscription_id: 0, index: 0, options, kind: RouteKind::Connection }
    }

    fn name(topic: &str) -> TopicName<'_> {
        TopicName::parse(topic).expect("a Topic Name")
    }

    /// Subscriptions come and go while topics are published: the cache finds the same routes as the index.
    #[test]
    fn the_cache_finds_what_the_index_has() {
        let index = Arc::new(Index::new(*b"a fixed hash key", IndexLimits::default()));
        let reader = index.reader();
        let mut cache = MatchCache::default();
        let mut random = Random::new(1);
        let mut hits = 0;
        for _ in 0..20_000 {
            let filter = *random.pick(&["a/b", "a/+", "#", "a/#", "+/b", "c"]);
            let filter = TopicFilter::parse(filter).expect("a Topic Filter");
            let slot = random.below(24) as u32;
            match random.below(20) {
                0 => drop(index.insert(filter, route(slot)).expect("there is room")),
                1 => drop(index.remove(filter, (RouteKind::Connection, 0, slot, 0))),
                _ => {}
            }
            let topic = format!("{}/{}", random.pick(&["a", "b", "c"]), random.pick(&["a", "b"]));
            let topic = if random.percent(10) { "c" } else { &topic };
            let (mut found, mut expected) = (Vec::new(), Vec::new());
            let version = index.version();
            hits += usize::from(cache.entries.iter().any(|it| *it.topic == *topic && it.version == version));
            assert_eq!(
                cache.routes(&reader, name(topic), &mut found),
                find_routes(&reader, name(topic), &mut expected)
            );
        }
        assert!(hits > 2_000, "{hits}");
    }

    /// A topic is kept when it comes for the second time in sequence, so topics that come once displace no other.
    #[test]
    fn topics_that_come_once_are_not_kept() {
        let index = Arc::new(Index::new(*b"a fixed hash key", IndexLimits::default()));
        let reader = index.reader();
        let mut cache = MatchCache::default();
        let mut publish = |topic: &str| {
            cache.routes(&reader, name(topic), &mut Vec::new());
            cache.entries.iter().filter(|entry| !entry.topic.is_empty()).count()
        };
        for number in 0..10_000 {
            assert_eq!(publish(&format!("once/{number}")), 0);
        }
        assert_eq!((publish("twice"), publish("twice")), (0, 1));
        assert_eq!((publish(&"x".repeat(TOPIC_MAX + 1)), publish(&"x".repeat(TOPIC_MAX + 1))), (1, 1));
    }
}
