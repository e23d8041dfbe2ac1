//! An alternative: filters in an ordered map. A match seeks the first filter below each prefix that could match,
//! and skips those that the found key rules out.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::RwLock;

use mqtt::TopicName;

use crate::contender::{Contender, Subscriber};

/// Filters by key. In a key, every level ends with a byte below all others, so that all keys below a prefix are
/// adjacent.
#[derive(Default)]
pub struct OrderedIndex(RwLock<BTreeMap<Box<[u8]>, Destinations>>);

enum Destinations {
    One(Subscriber),
    Many(Vec<Subscriber>),
}

const END: u8 = 0;

fn key(filter: &str) -> Box<[u8]> {
    filter.bytes().map(|byte| if byte == b'/' { END } else { byte }).chain([END]).collect()
}

fn take(destinations: &Destinations, out: &mut Vec<Subscriber>) {
    match destinations {
        Destinations::One(one) => out.push(*one),
        Destinations::Many(many) => out.extend_from_slice(many),
    }
}

/// Finds the filters that match the levels from `rest` on below `prefix`. `first` is the first key below `prefix`.
fn search(
    map: &BTreeMap<Box<[u8]>, Destinations>,
    prefix: &mut Vec<u8>,
    rest: &str,
    first: &[u8],
    out: &mut Vec<Subscriber>,
) {
    let length = prefix.len();
    let (level, below) = rest.split_once('/').map_or((rest, None), |(level, below)| (level, Some(below)));
    for name in ["#", "+", level] {
        prefix.truncate(length);
        prefix.extend_from_slice(name.as_bytes());
        prefix.push(END);
        // There is no key below the prefix if the first key below the parent comes after it.
        if first > &prefix[..] && !first.starts_with(prefix) {
            continue;
        }
        let mut range = map.range::<[u8], _>((Bound::Included(&prefix[..]), Bound::Unbounded));
        let Some((mut found, mut destinations)) = range.next() else { continue };
        if !found.starts_with(prefix) {
            continue;
        }
        if **found == prefix[..] {
            if name == "#" || below.is_none() {
                take(destinations, out);
            }
            let Some(next) = range.next().filter(|(key, _)| key.starts_with(prefix)) else { continue };
            (found, destinations) = next;
        }
        match below {
            _ if name == "#" => {}
            Some(below) => search(map, prefix, below, found, out),
            // `a/#` matches `a`, and is the first key below it.
            None if found[prefix.len()..] == [b'#', END] => take(destinations, out),
            None => {
                let at = prefix.len();
                prefix.extend_from_slice(&[b'#', END]);
                if let Some(destinations) = map.get(&prefix[..]) {
                    take(destinations, out);
                }
                prefix.truncate(at);
            }
        }
    }
    prefix.truncate(length);
}

impl Contender for OrderedIndex {
    type Reader<'a> = Vec<u8>;

    fn new() -> Self {
        OrderedIndex::default()
    }

    fn insert(&self, filter: &str, subscriber: Subscriber) {
        let mut map = self.0.write().expect("nobody panicked");
        let one = map.entry(key(filter));
        one.and_modify(|found| match found {
            Destinations::One(first) => *found = Destinations::Many(vec![*first, subscriber]),
            Destinations::Many(many) => many.push(subscriber),
        })
        .or_insert(Destinations::One(subscriber));
    }

    fn remove(&self, filter: &str, _: Subscriber) {
        self.0.write().expect("nobody panicked").remove(&key(filter));
    }

    fn reader(&self) -> Vec<u8> {
        Vec::new()
    }

    fn matches(&self, prefix: &mut Vec<u8>, topic: TopicName<'_>, out: &mut Vec<Subscriber>) {
        let map = self.0.read().expect("nobody panicked");
        prefix.clear();
        if let Some((first, _)) = map.first_key_value() {
            search(&map, prefix, topic.as_str(), first, out);
        }
    }

    fn turn(_: &mut Vec<u8>) {}

    fn memory(&self) -> usize {
        0
    }
}
