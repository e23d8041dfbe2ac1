//! Storage of the sessions of a shard, and their index by Client Identifier.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::hash::BuildHasher;

use foldhash::quality::FixedState;
use hashbrown::HashTable;

use crate::ephemeral::Ephemeral;
use crate::ids::{SESSIONS_MAX, SessionUid, client_bucket};
use crate::queue::Queue;
use crate::session::Session;

/// A kind of session.
pub(crate) trait Slotted {
    fn client_id(&self) -> &str;
    fn uid(&self) -> SessionUid;
    fn bucket(&self) -> u16;
}

/// Sessions of one kind by slot. A new session takes the lowest free slot, which depends only on the slots in use.
#[derive(Debug)]
pub(crate) struct Sessions<T> {
    slots: Vec<Option<Box<T>>>,
    /// Number of the last request of the present epoch, by slot; 0 when there was none. Empty on a node that holds the
    /// shard alone, so that its sessions are no larger for it.
    last_numbers: Vec<u64>,
    free: BinaryHeap<Reverse<u32>>,
    /// Slots by Client Identifier.
    by_client: HashTable<u32>,
    /// Slots by bucket, in no particular order.
    by_bucket: BTreeMap<u16, Vec<u32>>,
    hasher: FixedState,
}

impl Slotted for Session {
    fn client_id(&self) -> &str {
        &self.client_id
    }

    fn uid(&self) -> SessionUid {
        self.uid
    }

    fn bucket(&self) -> u16 {
        self.bucket
    }
}

impl Slotted for Ephemeral {
    fn client_id(&self) -> &str {
        &self.client_id
    }

    fn uid(&self) -> SessionUid {
        self.uid
    }

    fn bucket(&self) -> u16 {
        client_bucket(&self.client_id)
    }
}

impl Sessions<Session> {
    pub fn queue(&self, slot: u32) -> Option<&Queue> {
        self.at(slot)?.queue.as_deref()
    }

    pub fn queue_mut(&mut self, slot: u32) -> Option<&mut Queue> {
        self.at_mut(slot)?.queue.as_deref_mut()
    }
}

impl<T: Slotted> Sessions<T> {
    pub fn new(hasher: FixedState) -> Self {
        Self {
            slots: Vec::new(),
            last_numbers: Vec::new(),
            free: BinaryHeap::new(),
            by_client: HashTable::new(),
            by_bucket: BTreeMap::new(),
            hasher,
        }
    }

    pub fn len(&self) -> usize {
        self.by_client.len()
    }

    pub fn at(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize)?.as_deref()
    }

    pub fn at_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.slots.get_mut(slot as usize)?.as_deref_mut()
    }

    /// Number of the last request of a session's present epoch; 0 when there was none.
    pub fn last_number(&self, slot: u32) -> u64 {
        self.last_numbers.get(slot as usize).copied().unwrap_or_default()
    }

    pub fn set_last_number(&mut self, slot: u32, number: u64) {
        let at = slot as usize;
        if self.last_numbers.len() <= at {
            if number == 0 {
                return;
            }
            let more = at + 1 - self.last_numbers.len();
            if self.last_numbers.capacity() - self.last_numbers.len() < more {
                self.last_numbers.reserve_exact(more.max(self.last_numbers.len() / 8));
            }
            self.last_numbers.resize(at + 1, 0);
        }
        self.last_numbers[at] = number;
    }

    pub fn get(&self, uid: SessionUid) -> Option<&T> {
        self.at(uid.slot()).filter(|session| session.uid() == uid)
    }

    pub fn slot_of(&self, client_id: &str) -> Option<u32> {
        if self.by_client.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(client_id);
        let same = |slot: &u32| self.at(*slot).is_some_and(|session| session.client_id() == client_id);
        self.by_client.find(hash, same).copied()
    }

    /// Returns the slot of the next session; `None` when all are taken.
    pub fn next_slot(&self) -> Option<u32> {
        let slot = self.free.peek().map_or(self.slots.len() as u32, |Reverse(slot)| *slot);
        (slot < SESSIONS_MAX).then_some(slot)
    }

    /// Stores a session in its slot, which is [`Self::next_slot`] except while a checkpoint is read.
    pub fn insert(&mut self, session: T) {
        let slot = session.uid().slot();
        if self.free.peek() == Some(&Reverse(slot)) {
            self.free.pop();
        }
        if self.slots.len() <= slot as usize {
            // The vector grows by an eighth, so that little of it stays empty.
            let more = slot as usize + 1 - self.slots.len();
            if self.slots.capacity() - self.slots.len() < more {
                self.slots.reserve_exact(more.max(self.slots.len() / 8));
            }
            self.slots.resize_with(slot as usize + 1, || None);
        }
        let hash = self.hasher.hash_one(session.client_id());
        let of_bucket = self.by_bucket.entry(session.bucket()).or_default();
        if of_bucket.len() == of_bucket.capacity() {
            of_bucket.reserve_exact(1 + of_bucket.len() / 8);
        }
        of_bucket.push(slot);
        debug_assert!(self.slots[slot as usize].is_none());
        self.slots[slot as usize] = Some(Box::new(session));
        let (slots, hasher) = (&self.slots, &self.hasher);
        let rehash = |slot: &u32| {
            slots[*slot as usize].as_ref().map_or(0, |session| hasher.hash_one(session.client_id()))
        };
        self.by_client.insert_unique(hash, slot, rehash);
    }

    pub fn remove(&mut self, slot: u32) -> Option<Box<T>> {
        let hash = self.hasher.hash_one(self.at(slot)?.client_id());
        if let Ok(found) = self.by_client.find_entry(hash, |known| *known == slot) {
            found.remove();
        }
        let session = self.slots[slot as usize].take()?;
        self.set_last_number(slot, 0);
        self.free.push(Reverse(slot));
        let bucket = session.bucket();
        if let Some(slots) = self.by_bucket.get_mut(&bucket) {
            slots.retain(|known| *known != slot);
            if slots.is_empty() {
                self.by_bucket.remove(&bucket);
            }
        }
        Some(session)
    }

    /// Collects the free slots after a checkpoint was read.
    pub fn find_free(&mut self) {
        let free = (0_u32..).zip(&self.slots).filter(|(_, session)| session.is_none());
        self.free = free.map(|(slot, _)| Reverse(slot)).collect();
    }

    /// Returns the sessions from a slot on, in the order of their slots.
    pub fn from(&self, slot: u32) -> impl Iterator<Item = &T> {
        let from = (slot as usize).min(self.slots.len());
        self.slots[from..].iter().filter_map(Option::as_deref)
    }

    /// Returns the slots of a bucket, in order.
    pub fn of_bucket(&self, bucket: u16) -> Vec<u32> {
        let mut slots = self.by_bucket.get(&bucket).cloned().unwrap_or_default();
        slots.sort_unstable();
        slots
    }

    pub fn has_bucket(&self, bucket: u16) -> bool {
        self.by_bucket.contains_key(&bucket)
    }

    pub fn buckets(&self) -> impl Iterator<Item = u16> {
        self.by_bucket.keys().copied()
    }

    pub fn check_invariants(&self) {
        let mut count = 0;
        assert!(self.last_numbers.len() <= self.slots.len());
        for (slot, session) in (0_u32..).zip(&self.slots) {
            assert!(session.is_some() || self.last_number(slot) == 0);
            let Some(session) = session else { continue };
            count += 1;
            assert_eq!(session.uid().slot(), slot);
            assert_eq!(session.bucket(), client_bucket(session.client_id()));
            assert_eq!(self.slot_of(session.client_id()), Some(slot), "a Client Identifier has one session");
            assert!(self.by_bucket[&session.bucket()].contains(&slot));
        }
        assert_eq!(count, self.len());
        assert_eq!(count, self.by_bucket.values().map(Vec::len).sum::<usize>());
        assert_eq!(count + self.free.len(), self.slots.len());
    }
}
