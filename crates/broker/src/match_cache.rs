//! Routes of topics that were published before.
//!
//! Most publishers repeat a few topics, and subscriptions change much less often than messages come. While the index
//! is unchanged, a topic has the same routes as before. One comparison of its bytes is cheaper than hashing each level
//! and following all wildcard shapes.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use mqtt::{TopicName, TopicNameBuf};
use routing::Reader;

use crate::route::{Route, RouteKind};
use crate::settings::Mqtt;

/// Number of topics. A power of two.
const PLACES: usize = 1024;
/// Maximum number of bytes of a topic that is kept.
const TOPIC_MAX: usize = 256;
/// Maximum number of routes that are kept for a topic. With more, the deliveries cost much more than the match.
const ROUTES_MAX: usize = 16;

/// The last topics of a worker with their routes, at most about 600 KiB. It takes memory with the first topic that is
/// repeated.
#[derive(Default)]
pub(crate) struct MatchCache {
    /// Hash function with a secret of the node: clients cannot choose topics for the places of others.
    hasher: FixedState,
    places: Vec<Place>,
}

#[derive(Default)]
struct Place {
    /// Hash of the topic that has the place.
    hash: u64,
    /// Hash of the last topic that found the place occupied by another. The next time it takes the place, so topics
    /// that come once displace none.
    candidate: u64,
    topic: Option<Box<KnownTopic>>,
}

/// A Topic Name with its routes.
pub(crate) struct KnownTopic {
    hash: u64,
    /// Version of the index that has these routes.
    version: u64,
    topic: TopicNameBuf,
    routes: Vec<Route>,
    /// Number of `/` in the topic.
    separators: u16,
    /// The topic does not begin with `$`. Its routes lead to connections of ephemeral sessions, one to each, without
    /// No Local. Or its only route leads to the shared groups of a shard.
    is_plain: bool,
}

impl KnownTopic {
    fn new(hash: u64, name: TopicName<'_>) -> Self {
        let separators = name.as_str().bytes().filter(|byte| *byte == b'/').count() as u16;
        Self { hash, version: 0, topic: name.into(), routes: Vec::new(), separators, is_plain: false }
    }

    pub fn name(&self) -> TopicName<'_> {
        self.topic.as_name()
    }

    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The only route of the topic, if it leads to shared groups.
    pub fn route_to_groups(&self) -> Option<&Route> {
        match &self.routes[..] {
            [route] if route.kind == RouteKind::ShardGroups => Some(route),
            _ => None,
        }
    }

    /// Returns whether the topic has more levels or bytes than the settings allow.
    pub fn is_beyond_limits(&self, mqtt: &Mqtt) -> bool {
        self.name().as_str().len() > usize::from(mqtt.topic_len_max)
            || self.separators >= mqtt.topic_levels_max
    }

    fn set_routes(&mut self, version: u64, routes: &[Route]) {
        self.version = version;
        self.routes.clear();
        self.routes.extend_from_slice(routes);
        let is_plain = |route: &Route| route.kind == RouteKind::Connection && !route.options.no_local();
        let receiver = |route: &Route| (route.index, route.slot, route.generation);
        let are_plain = match routes {
            [Route { kind: RouteKind::ShardGroups, .. }] => true,
            _ => routes.iter().all(is_plain) && routes.is_sorted_by(|a, b| receiver(a) < receiver(b)),
        };
        self.is_plain = are_plain && !self.name().starts_with_dollar();
    }
}

impl MatchCache {
    pub fn new(secret: u64) -> Self {
        Self { hasher: FixedState::with_seed(secret), places: Vec::new() }
    }

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
        if self.places.is_empty() {
            self.places.resize_with(PLACES, Place::default);
        }
        let hash = self.hash_of(topic.as_bytes());
        let place = &mut self.places[place_of(hash)];
        // The version comes first: a change during the search makes the found routes invalid.
        let version = reader.index().version();
        let known = place.topic.as_mut().filter(|known| known.hash == hash && known.name() == name);
        if let Some(known) = &known
            && known.version == version
        {
            routes.extend_from_slice(&known.routes);
            return routes;
        }
        if known.is_none() && std::mem::replace(&mut place.candidate, hash) != hash {
            return find_routes(reader, name, routes);
        }
        let found = find_routes(reader, name, routes);
        if found.len() <= ROUTES_MAX {
            if known.is_none() {
                (place.hash, place.topic) = (hash, Some(Box::new(KnownTopic::new(hash, name))));
            }
            if let Some(known) = &mut place.topic {
                known.set_routes(version, found);
            }
        }
        found
    }

    /// Returns a known topic with the routes of this version of the index.
    pub fn find(&self, topic: &str, version: u64) -> Option<&KnownTopic> {
        let hash = self.hash_of(topic.as_bytes());
        let known = self.places.get(place_of(hash)).filter(|place| place.hash == hash)?.topic.as_deref()?;
        (known.version == version && known.name().as_str() == topic).then_some(known)
    }

    /// Takes out a plain topic with the routes of this version of the index. [`Self::put_back`] must follow.
    pub fn take_plain(&mut self, topic: &[u8], version: u64) -> Option<Box<KnownTopic>> {
        let hash = self.hash_of(topic);
        let place = self.places.get_mut(place_of(hash))?;
        if place.hash != hash {
            return None;
        }
        let is_found = |known: &KnownTopic| {
            known.is_plain && known.version == version && known.name().as_str().as_bytes() == topic
        };
        if place.topic.as_deref().is_some_and(is_found) { place.topic.take() } else { None }
    }

    pub fn put_back(&mut self, known: Box<KnownTopic>) {
        if let Some(place) = self.places.get_mut(place_of(known.hash)) {
            (place.hash, place.topic) = (known.hash, Some(known));
        }
    }

    /// Hash of a topic, never 0.
    fn hash_of(&self, topic: &[u8]) -> u64 {
        self.hasher.hash_one(topic) | 1
    }
}

/// Returns all routes of a topic. The routes of one receiver are adjacent, and [`RouteKind::Origin`] comes first.
pub(crate) fn find_routes<'r>(
    reader: &Reader<Route>,
    name: TopicName<'_>,
    routes: &'r mut Vec<Route>,
) -> &'r [Route] {
    if reader.matches(name, routes) > 1 {
        routes.sort_unstable_by_key(|route| (route.kind, route.index, route.slot, route.generation));
        // A shard gets a message once, however many of its filters match.
        routes.dedup_by(|a, b| {
            let is_same = a.kind == b.kind
                && a.index == b.index
                && matches!(a.kind, RouteKind::Origin | RouteKind::Shard | RouteKind::ShardGroups);
            if is_same {
                b.subscription_id = b.subscription_id.saturating_add(a.subscription_id);
            }
            is_same
        });
    } else if let Some(at) = routes.iter().position(|route| route.kind == RouteKind::Origin) {
        // One filter matches, and each of its routes has another receiver.
        routes.swap(0, at);
    }
    routes
}

fn place_of(hash: u64) -> usize {
    (hash >> 1) as usize % PLACES
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
        let (mut hits, mut plain) = (0, 0);
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
            let known = |known: &KnownTopic| known.name().as_str() == topic && known.version == version;
            hits += usize::from(cache.places.iter().any(|place| place.topic.as_deref().is_some_and(known)));
            if let Some(known) = cache.find(topic, version) {
                assert_eq!(
                    (known.name(), known.routes()),
                    (name(topic), find_routes(&reader, name(topic), &mut Vec::new()))
                );
            }
            if let Some(known) = cache.take_plain(topic.as_bytes(), version) {
                plain += 1;
                assert_eq!(
                    (known.name(), known.routes()),
                    (name(topic), find_routes(&reader, name(topic), &mut Vec::new()))
                );
                cache.put_back(known);
            }
            assert_eq!(
                cache.routes(&reader, name(topic), &mut found),
                find_routes(&reader, name(topic), &mut expected)
            );
        }
        assert!(hits > 2_000 && (100..hits).contains(&plain), "{hits} {plain}");
    }

    /// A topic is kept when it comes for the second time in sequence, so topics that come once displace no other.
    #[test]
    fn topics_that_come_once_are_not_kept() {
        let index = Arc::new(Index::new(*b"a fixed hash key", IndexLimits::default()));
        let reader = index.reader();
        let mut cache = MatchCache::default();
        let mut publish = |topic: &str| {
            cache.routes(&reader, name(topic), &mut Vec::new());
            cache.places.iter().filter(|place| place.topic.is_some()).count()
        };
        for number in 0..10_000 {
            assert_eq!(publish(&format!("once/{number}")), 0);
        }
        assert_eq!((publish("twice"), publish("twice")), (0, 1));
        assert_eq!((publish(&"x".repeat(TOPIC_MAX + 1)), publish(&"x".repeat(TOPIC_MAX + 1))), (1, 1));
    }
}
