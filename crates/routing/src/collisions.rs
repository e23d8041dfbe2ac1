//! Tests with hashes so short that paths collide all the time. With 64 bits a collision is extremely rare, but then
//! the index must not mistake one filter for another.

use std::collections::BTreeMap;
use std::sync::Arc;

use mqtt::{TopicFilter, TopicName};

use crate::hash::PathHasher;
use random::Random;

use crate::{Destination, Index, IndexLimits, Reader, Removed};

impl Destination for u64 {
    type Key = u64;
    fn key(&self) -> u64 {
        *self
    }
}

fn random_filter(random: &mut Random) -> String {
    let mut levels: Vec<String> = (0..1 + random.below(5))
        .map(|_| match random.below(4) {
            0 => "+".into(),
            1 => format!("a rather long name of a level {}", random.below(3)),
            _ => format!("n{}", random.below(4)),
        })
        .collect();
    if random.below(4) == 0 {
        levels.push("#".into());
    }
    levels.join("/")
}

fn found(reader: &Reader<u64>, topic: TopicName<'_>) -> Vec<u64> {
    let mut out = Vec::new();
    let filters = reader.matches(topic, &mut out);
    assert_eq!(filters, out.len(), "every filter has one destination");
    out.sort_unstable();
    out
}

fn run(width: u32, tries_max: usize, seed: u64) -> usize {
    let limits = IndexLimits { tries_max, ..IndexLimits::default() };
    let index = Arc::new(Index::with_hasher(PathHasher::narrow([3; 16], width), limits));
    let reader = index.reader();
    let mut random = Random::new(seed);
    let mut model: BTreeMap<String, u64> = BTreeMap::new();
    for step in 0..1500u64 {
        let name = random_filter(&mut random);
        let filter = TopicFilter::parse(&name).expect("a valid filter");
        if random.below(3) > 0 {
            let id = *model.entry(name.clone()).or_insert(step);
            index.insert(filter, id).expect("within the limits");
        } else {
            let expected = if model.contains_key(&name) { Removed::Last } else { Removed::NotFound };
            assert_eq!(index.remove(filter, model.remove(&name).unwrap_or(0)), expected, "{name}");
        }
        let name = random_filter(&mut random).replace(['+', '#'], "n1");
        let topic = TopicName::parse(&name).expect("a valid topic");
        let matches = |name: &str| TopicFilter::parse(name).expect("a valid filter").matches(topic);
        let mut expected: Vec<u64> =
            model.iter().filter(|(name, _)| matches(name)).map(|(_, id)| *id).collect();
        expected.sort_unstable();
        assert_eq!(found(&reader, topic), expected, "{name}, seed {seed}");
        if step % 64 == 0 {
            reader.quiescent();
            index.check_invariants(&reader);
        }
    }
    let mut all = BTreeMap::new();
    index.for_each(&reader, |name, id| assert_eq!(all.insert(name.to_owned(), id), None));
    assert_eq!(all, model);
    index.unindexed.live()
}

#[test]
fn filters_with_colliding_hashes_are_distinguished() {
    for (seed, width) in (0..).zip([4, 6, 8, 8, 10, 10, 12, 64]) {
        for tries_max in [0, usize::MAX] {
            let unindexed = run(width, tries_max, seed);
            assert_eq!(unindexed > 0, width < 64, "{unindexed} unindexed filters with {width} bits");
        }
    }
}
