use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher as _;

use foldhash::quality::FixedState;
use hashbrown::HashTable;

use crate::id::Position;

/// The last operation on each key of one writer, and their order.
#[derive(Debug)]
pub struct Log<V> {
    entries: Vec<Entry<V>>,
    free: Vec<u32>,
    by_key: HashTable<u32>,
    by_position: BTreeMap<Position, u32>,
    hasher: FixedState,
    /// Of keys that were deleted, while others may have to hear of that.
    tombstones: BTreeSet<Position>,
    /// Deletions up to here are forgotten: whoever is not that far needs a whole copy.
    floor: Position,
    live: usize,
    key_bytes: usize,
}

#[derive(Debug)]
struct Entry<V> {
    key: Box<[u8]>,
    position: Position,
    /// `None`: deleted.
    value: Option<V>,
    /// The copy that mentioned it.
    round: u32,
}

/// Of what no copy mentioned.
pub const NO_ROUND: u32 = 0;

impl<V> Log<V> {
    pub fn new(hasher: FixedState) -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            by_key: HashTable::new(),
            by_position: BTreeMap::new(),
            hasher,
            tombstones: BTreeSet::new(),
            floor: Position::default(),
            live: 0,
            key_bytes: 0,
        }
    }

    /// Keys that are set.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Bytes of all keys, deleted ones that are remembered among them.
    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    pub fn tombstones(&self) -> usize {
        self.tombstones.len()
    }

    pub fn floor(&self) -> Position {
        self.floor
    }

    pub fn get(&self, key: &[u8]) -> Option<&V> {
        self.entries[self.find(key)? as usize].value.as_ref()
    }

    fn find(&self, key: &[u8]) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        self.by_key.find(hash, |at| *self.entries[*at as usize].key == *key).copied()
    }

    pub fn holds(&self, key: &[u8]) -> bool {
        self.find(key).is_some()
    }

    /// Takes an operation unless a later one on its key is known; `round` is that of the copy that mentions it, or [`NO_ROUND`]. `None`: that is so. Otherwise the value before.
    pub fn put(&mut self, key: &[u8], position: Position, value: Option<V>, round: u32) -> Option<Option<V>> {
        let Some(at) = self.find(key) else {
            self.insert(key, position, value, round);
            return Some(None);
        };
        let entry = &mut self.entries[at as usize];
        if entry.position >= position {
            if round != NO_ROUND {
                entry.round = round;
            }
            return None;
        }
        entry.round = round;
        self.by_position.remove(&entry.position);
        self.tombstones.remove(&entry.position);
        entry.position = position;
        self.by_position.insert(position, at);
        self.live += usize::from(value.is_some());
        self.live -= usize::from(entry.value.is_some());
        if value.is_none() {
            self.tombstones.insert(position);
        }
        Some(std::mem::replace(&mut entry.value, value))
    }

    fn insert(&mut self, key: &[u8], position: Position, value: Option<V>, round: u32) {
        self.live += usize::from(value.is_some());
        self.key_bytes += key.len();
        if value.is_none() {
            self.tombstones.insert(position);
        }
        let entry = Entry { key: key.into(), position, value, round };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        let hash = self.hasher.hash_one(key);
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.by_key.insert_unique(hash, at, |at| hasher.hash_one(&*entries[*at as usize].key));
        self.by_position.insert(position, at);
    }

    /// Forgets an entry, whatever it is. Returns its key and value.
    fn take(&mut self, at: u32) -> (Box<[u8]>, Option<V>) {
        let entry = &mut self.entries[at as usize];
        let (key, value) = (std::mem::take(&mut entry.key), entry.value.take());
        self.by_position.remove(&entry.position);
        self.tombstones.remove(&entry.position);
        let hash = self.hasher.hash_one(&*key);
        if let Ok(found) = self.by_key.find_entry(hash, |known| *known == at) {
            found.remove();
        }
        self.free.push(at);
        self.live -= usize::from(value.is_some());
        self.key_bytes -= key.len();
        (key, value)
    }

    /// Operations after a position, in their order.
    pub fn after(&self, position: Position) -> impl Iterator<Item = (Position, &[u8], Option<&V>)> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.by_position.range((Excluded(position), Unbounded)).map(|(position, at)| {
            let entry = &self.entries[*at as usize];
            (*position, &*entry.key, entry.value.as_ref())
        })
    }

    /// Every key that is set.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &V)> {
        self.after(Position::default()).filter_map(|(_, key, value)| Some((key, value?)))
    }

    /// Forgets the oldest deletions beyond `keep`, but none after `upto`.
    pub fn compact(&mut self, keep: usize, upto: Position) {
        while self.tombstones.len() > keep
            && let Some(position) = self.tombstones.first().copied().filter(|position| *position <= upto)
        {
            self.raise_floor(position);
        }
    }

    /// Deletions up to there are forgotten.
    pub fn raise_floor(&mut self, floor: Position) {
        self.floor = self.floor.max(floor);
        while let Some(position) = self.tombstones.first().copied().filter(|position| *position <= floor)
            && let Some(at) = self.by_position.get(&position).copied()
        {
            self.take(at);
        }
    }

    /// Forgets what a whole copy did not mention: those of another round up to `position`. Returns keys that were set.
    pub fn sweep(&mut self, round: u32, position: Position) -> Vec<Box<[u8]>> {
        let unmentioned = self.by_position.range(..=position).filter_map(|(_, at)| {
            let entry = &self.entries[*at as usize];
            (entry.round != round).then_some(*at)
        });
        let unmentioned: Vec<u32> = unmentioned.collect();
        unmentioned
            .into_iter()
            .filter_map(|at| {
                let (key, value) = self.take(at);
                value.map(|_| key)
            })
            .collect()
    }

    /// Takes out up to `count` entries, for a log that is given up. Keys that were set are returned; empty when there are no more.
    pub fn drain(&mut self, count: usize) -> Vec<Box<[u8]>> {
        let mut keys = Vec::new();
        while keys.len() < count
            && let Some((_, at)) = self.by_position.first_key_value().map(|(position, at)| (*position, *at))
        {
            let (key, value) = self.take(at);
            keys.extend(value.map(|_| key));
        }
        keys
    }

    pub fn check_invariants(&self) {
        assert_eq!(self.by_key.len(), self.by_position.len());
        assert_eq!(self.entries.len(), self.by_key.len() + self.free.len());
        let set = self.by_position.values().filter(|at| self.entries[**at as usize].value.is_some());
        assert_eq!(set.count(), self.live);
        for (position, at) in &self.by_position {
            let entry = &self.entries[*at as usize];
            assert_eq!(entry.position, *position);
            assert_eq!(self.find(&entry.key), Some(*at));
            assert_eq!(entry.value.is_none(), self.tombstones.contains(position));
            assert!(entry.value.is_some() || *position > self.floor, "what is forgotten is gone");
        }
    }
}
