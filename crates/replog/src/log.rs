use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, Hasher as _};

use fnv::FnvHasher;
use foldhash::quality::FixedState;
use hashbrown::HashTable;

use crate::delta::Value;
use crate::id::Position;

/// Last operation on each key of one writer, in order.
#[derive(Debug)]
pub struct Log<V> {
    entries: Vec<Entry<V>>,
    free: Vec<u32>,
    by_key: HashTable<Slot>,
    by_position: BTreeMap<Position, u32>,
    hasher: FixedState,
    /// Positions of deleted keys, for readers that do not know the deletion yet.
    tombstones: BTreeSet<Position>,
    /// Position up to which deletions are forgotten: a reader before it needs a whole copy.
    floor: Position,
    live: usize,
    key_bytes: usize,
    /// Sum of the hashes of all keys that are set, with their values. It is the same in every replica.
    digest: u64,
    scratch: Vec<u8>,
}

#[derive(Debug)]
struct Entry<V> {
    key: Box<[u8]>,
    position: Position,
    /// Value, or `None` for a deleted key.
    value: Option<V>,
    /// Round of the copy that contained it.
    round: u32,
}

/// Index of a key. The hash is kept: a table that grows would otherwise read every key again, each from a different
/// memory location.
#[derive(Clone, Copy, Debug)]
struct Slot {
    at: u32,
    hash: u32,
}

/// Round of entries that no copy contained.
pub const NO_ROUND: u32 = 0;

impl<V: Value> Log<V> {
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
            digest: 0,
            scratch: Vec::new(),
        }
    }

    /// Returns the number of keys that are set.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Returns the bytes of all keys, including remembered deleted ones.
    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    pub fn digest(&self) -> u64 {
        self.digest
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
        self.find_hashed(self.hash(key), key)
    }

    fn hash(&self, key: &[u8]) -> u32 {
        self.hasher.hash_one(key) as u32
    }

    fn find_hashed(&self, hash: u32, key: &[u8]) -> Option<u32> {
        let is_it = |slot: &Slot| slot.hash == hash && *self.entries[slot.at as usize].key == *key;
        self.by_key.find(spread(hash), is_it).map(|slot| slot.at)
    }

    /// Returns a key and its value.
    pub fn entry(&self, at: u32) -> (&[u8], Option<&V>) {
        let entry = &self.entries[at as usize];
        (&entry.key, entry.value.as_ref())
    }

    pub fn holds(&self, key: &[u8]) -> bool {
        self.find(key).is_some()
    }

    /// Applies an operation unless a later one on its key is known. `round` is that of the copy that contains it, or
    /// [`NO_ROUND`]. Returns `None` when a later one is known, otherwise the index of the key ([`Self::entry`]) and the
    /// previous value.
    pub fn put<K: AsRef<[u8]> + Into<Box<[u8]>>>(
        &mut self,
        key: K,
        position: Position,
        value: Option<V>,
        round: u32,
    ) -> Option<(u32, Option<V>)> {
        let hash = self.hash(key.as_ref());
        let Some(at) = self.find_hashed(hash, key.as_ref()) else {
            let into = part(key.as_ref(), value.as_ref(), &mut self.scratch);
            self.digest = self.digest.wrapping_add(into);
            return Some((self.insert(hash, key.into(), position, value, round), None));
        };
        let entry = &mut self.entries[at as usize];
        if entry.position >= position {
            if round != NO_ROUND {
                entry.round = round;
            }
            return None;
        }
        let out = part(&entry.key, entry.value.as_ref(), &mut self.scratch);
        let into = part(&entry.key, value.as_ref(), &mut self.scratch);
        self.digest = self.digest.wrapping_sub(out).wrapping_add(into);
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
        Some((at, std::mem::replace(&mut entry.value, value)))
    }

    fn insert(&mut self, hash: u32, key: Box<[u8]>, position: Position, value: Option<V>, round: u32) -> u32 {
        self.live += usize::from(value.is_some());
        self.key_bytes += key.len();
        if value.is_none() {
            self.tombstones.insert(position);
        }
        let entry = Entry { key, position, value, round };
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
        self.by_key.insert_unique(spread(hash), Slot { at, hash }, |slot| spread(slot.hash));
        self.by_position.insert(position, at);
        at
    }

    /// Removes an entry of any kind. Returns its key and value.
    fn take(&mut self, at: u32) -> (Box<[u8]>, Option<V>) {
        let entry = &mut self.entries[at as usize];
        let (key, value) = (std::mem::take(&mut entry.key), entry.value.take());
        self.by_position.remove(&entry.position);
        self.tombstones.remove(&entry.position);
        let hash = self.hasher.hash_one(&*key) as u32;
        if let Ok(found) = self.by_key.find_entry(spread(hash), |slot| slot.at == at) {
            found.remove();
        }
        self.free.push(at);
        let out = part(&key, value.as_ref(), &mut self.scratch);
        self.digest = self.digest.wrapping_sub(out);
        self.live -= usize::from(value.is_some());
        self.key_bytes -= key.len();
        (key, value)
    }

    /// Iterates over the operations after a position, in order.
    pub fn after(&self, position: Position) -> impl Iterator<Item = (Position, &[u8], Option<&V>)> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.by_position.range((Excluded(position), Unbounded)).map(|(position, at)| {
            let entry = &self.entries[*at as usize];
            (*position, &*entry.key, entry.value.as_ref())
        })
    }

    /// Iterates over the keys that are set.
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

    /// Forgets the deletions up to a position.
    pub fn raise_floor(&mut self, floor: Position) {
        self.floor = self.floor.max(floor);
        while let Some(position) = self.tombstones.first().copied().filter(|position| *position <= floor)
            && let Some(at) = self.by_position.get(&position).copied()
        {
            self.take(at);
        }
    }

    /// Removes the entries up to `position` that a whole copy did not contain: those of another round. Returns the keys
    /// that were set.
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

    /// Removes up to `count` entries of a log that is dropped. Returns the keys that were set; empty when none are
    /// left.
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
        let mut scratch = Vec::new();
        let parts = self.iter().map(|(key, value)| part(key, Some(value), &mut scratch));
        assert_eq!(parts.fold(0, u64::wrapping_add), self.digest);
        for (position, at) in &self.by_position {
            let entry = &self.entries[*at as usize];
            assert_eq!(entry.position, *position);
            assert_eq!(self.find(&entry.key), Some(*at));
            assert_eq!(entry.value.is_none(), self.tombstones.contains(position));
            assert!(entry.value.is_some() || *position > self.floor, "forgotten deletions are removed");
        }
    }
}

/// Spreads a hash: the table takes the slot from the lowest bits and a tag from the highest.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

/// Returns the contribution of a key with its value to the digest; 0 when it is deleted.
fn part<V: Value>(key: &[u8], value: Option<&V>, scratch: &mut Vec<u8>) -> u64 {
    let Some(value) = value else { return 0 };
    scratch.clear();
    value.encode(scratch);
    let mut hasher = FnvHasher::default();
    hasher.write(key);
    hasher.write(scratch);
    hasher.finish()
}
