//! A model of the index, and filters and topics that often match.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::collections::BTreeMap;
use std::sync::Arc;

use mqtt::{TopicFilter, TopicName};
use proptest::prelude::*;
use routing::{Destination, Index, IndexLimits, Inserted, Reader, Removed};

/// Destination of sixteen bytes like the broker's. `options` is not part of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subscriber {
    pub id: u64,
    pub options: u64,
}

impl Destination for Subscriber {
    type Key = u64;
    fn key(&self) -> u64 {
        self.id
    }
}

pub fn index(limits: IndexLimits) -> (Arc<Index<Subscriber>>, Reader<Subscriber>) {
    let index = Arc::new(Index::new(*b"sixteen secrets!", limits));
    let reader = index.reader();
    (index, reader)
}

pub fn filter(text: &str) -> TopicFilter<'_> {
    TopicFilter::parse(text).expect("a valid filter")
}

pub fn topic(text: &str) -> TopicName<'_> {
    TopicName::parse(text).expect("a valid topic")
}

/// Returns the reader's destinations, sorted, and the number of filters that it matched.
pub fn found(reader: &Reader<Subscriber>, name: &str) -> (usize, Vec<Subscriber>) {
    let mut out = Vec::new();
    let filters = reader.matches(topic(name), &mut out);
    out.sort_unstable();
    (filters, out)
}

/// Model of the index that compares every filter.
#[derive(Default)]
pub struct Model {
    pub filters: BTreeMap<String, BTreeMap<u64, u64>>,
}

impl Model {
    pub fn insert(&mut self, name: &str, subscriber: Subscriber) -> Inserted {
        let new = !self.filters.contains_key(name);
        let old = self.filters.entry(name.into()).or_default().insert(subscriber.id, subscriber.options);
        match (new, old) {
            (true, _) => Inserted::New,
            (false, None) => Inserted::Added,
            (false, Some(_)) => Inserted::Replaced,
        }
    }

    pub fn remove(&mut self, name: &str, id: u64) -> Removed {
        let Some(destinations) = self.filters.get_mut(name) else { return Removed::NotFound };
        if destinations.remove(&id).is_none() {
            return Removed::NotFound;
        }
        if destinations.is_empty() {
            self.filters.remove(name);
            return Removed::Last;
        }
        Removed::Removed
    }

    pub fn has(&self, name: &str, id: u64) -> bool {
        self.filters.get(name).is_some_and(|destinations| destinations.contains_key(&id))
    }

    pub fn found(&self, name: &str) -> (usize, Vec<Subscriber>) {
        let topic = topic(name);
        let matching = self.filters.iter().filter(|(name, _)| filter(name).matches(topic));
        let (mut count, mut out) = (0, Vec::new());
        for (_, destinations) in matching {
            count += 1;
            out.extend(destinations.iter().map(|(id, options)| Subscriber { id: *id, options: *options }));
        }
        out.sort_unstable();
        (count, out)
    }

    pub fn dump(&self) -> Vec<(String, Subscriber)> {
        let all = self.filters.iter().flat_map(|(name, destinations)| {
            let pair =
                |(id, options): (&u64, &u64)| (name.clone(), Subscriber { id: *id, options: *options });
            destinations.iter().map(pair)
        });
        all.collect()
    }

    /// Compares counts, contents and matches of some topics with those of the index.
    pub fn agrees(&self, index: &Index<Subscriber>, reader: &Reader<Subscriber>, topics: &[String]) {
        index.check_invariants(reader);
        assert_eq!(index.filters(), self.filters.len());
        assert_eq!(index.len(), self.filters.values().map(BTreeMap::len).sum::<usize>());
        let mut dump = Vec::new();
        index.for_each(reader, |name, subscriber| dump.push((name.to_owned(), subscriber)));
        dump.sort();
        assert_eq!(dump, self.dump());
        for name in topics {
            assert_eq!(found(reader, name), self.found(name), "{name}");
        }
    }
}

/// Names of levels that often match: empty, `$`, short, of eleven, twelve and more bytes, with several bytes per
/// character.
const NAMES: [&str; 9] = [
    "",
    "a",
    "b",
    "$SYS",
    "elevenbytes",
    "twelve bytes",
    "t\u{e9}l\u{e9}m\u{e9}trie \u{1f321}",
    "seven77",
    "eight888",
];

pub fn a_topic() -> impl Strategy<Value = String> {
    let level = prop_oneof![6 => Just("a"), 2 => Just("b"), 3 => proptest::sample::select(&NAMES[..])];
    proptest::collection::vec(level, 1..7)
        .prop_map(|levels| levels.join("/"))
        .prop_filter("empty", |t| !t.is_empty())
}

pub fn a_filter() -> impl Strategy<Value = String> {
    let level = prop_oneof![5 => Just("a"), 1 => Just("b"), 3 => Just("+"), 2 => proptest::sample::select(&NAMES[..])];
    let levels = proptest::collection::vec(level, 0..7);
    (levels, proptest::bool::weighted(0.3))
        .prop_map(|(mut levels, rest)| {
            if rest {
                levels.push("#");
            }
            levels.join("/")
        })
        .prop_filter("empty", |filter| !filter.is_empty())
}
