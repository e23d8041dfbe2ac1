//! Table of a fixed size that removes its oldest entries first.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Entries by a keyed hash of their key, so that an entry has the same size whatever name a client has. Two keys with
/// the same hash share an entry: among 65,536 that is one pair in 8 billion tables, and no client can search for it.
#[derive(Debug)]
pub struct Table<V> {
    hasher: RandomState,
    shard_max: usize,
    evicted: AtomicU64,
    /// Several shards, so that reactors rarely contend for a lock, which is held for one look-up.
    shards: [Mutex<Shard<V>>; SHARDS],
}

#[derive(Debug)]
struct Shard<V> {
    entries: HashMap<u64, V>,
    /// Keys in `entries`, in order of arrival, each once.
    order: VecDeque<u64>,
}

/// Size of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableFigures {
    pub entries: u64,
    pub evicted: u64,
}

impl<V: Default> Table<V> {
    /// Creates a table for about `max` entries.
    pub fn new(max: usize) -> Self {
        let shard = |_| Mutex::new(Shard { entries: HashMap::new(), order: VecDeque::new() });
        Self {
            hasher: RandomState::new(),
            shard_max: max.div_ceil(SHARDS).max(1),
            evicted: AtomicU64::new(0),
            shards: std::array::from_fn(shard),
        }
    }

    /// Reads the entry, if there is one.
    pub fn get<T>(&self, key: &impl Hash, use_it: impl FnOnce(&V) -> T) -> Option<T> {
        let hash = self.hasher.hash_one(key);
        sync::lock(self.shard(hash)).entries.get(&hash).map(use_it)
    }

    /// Changes the entry, and creates it if needed.
    pub fn with<T>(&self, key: &impl Hash, use_it: impl FnOnce(&mut V) -> T) -> T {
        let hash = self.hasher.hash_one(key);
        let mut shard = sync::lock(self.shard(hash));
        if !shard.entries.contains_key(&hash) {
            if shard.order.len() >= self.shard_max
                && let Some(oldest) = shard.order.pop_front()
            {
                shard.entries.remove(&oldest);
                self.evicted.fetch_add(1, Ordering::Relaxed);
            }
            shard.order.push_back(hash);
        }
        use_it(shard.entries.entry(hash).or_default())
    }

    pub fn figures(&self) -> TableFigures {
        let len = |shard: &Mutex<Shard<V>>| sync::lock(shard).entries.len() as u64;
        TableFigures {
            entries: self.shards.iter().map(len).sum(),
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard<V>> {
        &self.shards[(hash % SHARDS as u64) as usize]
    }
}

const SHARDS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_never_grows_beyond_its_size_and_removes_the_oldest_entries() {
        let table = Table::<u32>::new(32);
        for n in 0..1_000_u32 {
            table.with(&n, |value| *value = n);
        }
        let figures = table.figures();
        assert!(figures.entries <= 32 && figures.evicted == 1_000 - figures.entries, "{figures:?}");
        assert_eq!(table.get(&999_u32, |value| *value), Some(999), "the last entry exists");
        assert_eq!(table.get(&0_u32, |value| *value), None);
    }

    #[test]
    fn one_key_is_one_entry() {
        let table = Table::<u32>::new(1);
        for key in ["a", "a", "a"] {
            table.with(&key, |value| *value += 1);
        }
        assert_eq!(table.get(&"a", |value| *value), Some(3));
        assert_eq!(table.figures(), TableFigures { entries: 1, evicted: 0 });
    }
}
