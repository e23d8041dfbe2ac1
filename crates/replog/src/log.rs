use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher as _;

use foldhash::quality::FixedState;
use hashbrown::HashTable;

use crate::delta::Value;
use crate::id::Position;

/// The last operation on each key of one writer, and their order.
#[derive(Debug)]
pub struct Log<V> {
    entries: Vec<Entry<V>>,
    free: Vec<u32>,
    by_key: HashTable<Slot>,
    by_position: BTreeMap<Position, u32>,
    hasher: FixedState,
    /// Of keys that were deleted, while others may have to hear of that.
    tombstones: BTreeSet<Position>,
    /// Deletions up to here are forgotten: whoever is not that far needs a whole copy.
    floor: Position,
    live: usize,
    key_bytes: usize,
    /// The sum of the hashes of all keys that are set with their values, the same in every replica.
    digest: u64,
    scratch: Vec<u8>,
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

/// Where a key is. Its hash is kept, as a table that grows would otherwise look at every key again, each in a memory of its own.
#[derive(Clone, Copy, Debug)]
struct Slot {
    at: u32,
    hash: u32,
}

/// FNV-1a in 64 bits.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

/// Of what no copy mentioned.
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

    /// Keys that are set.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Bytes of all keys, deleted ones that are remembered among them.
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

    /// A key and what it has.
    pub fn entry(&self, at: u32) -> (&[u8], Option<&V>) {
        let entry = &self.entries[at as usize];
        (&entry.key, entry.value.as_ref())
    }

    pub fn holds(&self, key: &[u8]) -> bool {
        self.find(key).is_some()
    }

    /// Takes an operation unless a later one on its key is known; `round` is that of the copy that mentions it, or [`NO_ROUND`]. `None`: that
    /// is so. Otherwise where the key is now ([`Self::entry`]), and the value before.
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

    /// Forgets an entry, whatever it is. Returns its key and value.
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
        let mut scratch = Vec::new();
        let parts = self.iter().map(|(key, value)| part(key, Some(value), &mut scratch));
        assert_eq!(parts.fold(0, u64::wrapping_add), self.digest);
        for (position, at) in &self.by_position {
            let entry = &self.entries[*at as usize];
            assert_eq!(entry.position, *position);
            assert_eq!(self.find(&entry.key), Some(*at));
            assert_eq!(entry.value.is_none(), self.tombstones.contains(position));
            assert!(entry.value.is_some() || *position > self.floor, "what is forgotten is gone");
        }
    }
}

/// The table takes its place from the lowest bits and a mark from the highest.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

/// What a key with a value adds to the digest; nothing when it is deleted.
fn part<V: Value>(key: &[u8], value: Option<&V>, scratch: &mut Vec<u8>) -> u64 {
    let Some(value) = value else { return 0 };
    scratch.clear();
    value.encode(scratch);
    let bytes = key.iter().chain(&*scratch);
    bytes.fold(FNV_OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME))
}
