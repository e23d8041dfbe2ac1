//! Sets of more than [`BLOCK_MAX`] destinations: a list of blocks, and for writers a table of the locations of
//! destinations.
//!
//! A change replaces the one block that it affects, at the same index of the list. So its cost does not depend on
//! the size of the set. Two neighbours that have become sparse are joined in a new list, because readers must find
//! a moved destination exactly once.

use crate::destinations::{BLOCK_MAX, Block, Destinations, Set, entries, push};
use crate::epoch::Guard;
use crate::hash::PathHasher;
use crate::retired::Bin;
use crate::slot::Member;
use crate::strip::Strip;
use crate::sync::{AtomicPtr, AtomicU32, Ordering};
use crate::{Destination, Inserted, Removed};

/// A list of blocks. A plain pointer, like its parts.
pub(crate) struct Large<D> {
    list: Strip<Counts, AtomicPtr<u8>>,
    entries: std::marker::PhantomData<*mut D>,
}

struct Counts {
    /// Number of blocks in the list.
    blocks: AtomicU32,
    /// Number of destinations in the blocks.
    total: AtomicU32,
    /// Block at which the next search for room begins.
    cursor: AtomicU32,
}

/// Size at which a set becomes one block again.
const SMALL: u32 = BLOCK_MAX as u32 / 2;
/// Maximum total size of two neighbours that are joined into one block.
const SPARSE: usize = BLOCK_MAX / 2;
/// Number of blocks that are searched for room before a new one is created.
const PROBES_MAX: u32 = 4;
/// Capacity of every block of a large set. A location is a block's number times this plus a position.
const BLOCK: usize = BLOCK_MAX;

impl<D> Clone for Large<D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D> Copy for Large<D> {}

/// # Safety
/// For all methods: the list is not freed. For those that access blocks: the blocks are not freed either.
impl<D: Destination> Large<D> {
    pub fn as_ptr(self) -> *mut u8 {
        self.list.as_ptr()
    }

    pub unsafe fn from_ptr(pointer: *mut u8) -> Self {
        // SAFETY: promised by the caller.
        Large { list: unsafe { Strip::from_ptr(pointer) }, entries: std::marker::PhantomData }
    }

    fn allocate(capacity: usize, total: u32) -> Self {
        let counts =
            Counts { blocks: AtomicU32::new(0), total: AtomicU32::new(total), cursor: AtomicU32::new(0) };
        Large { list: Strip::allocate(counts, capacity), entries: std::marker::PhantomData }
    }

    unsafe fn counts<'a>(self) -> &'a Counts {
        // SAFETY: promised by the caller.
        unsafe { self.list.header() }
    }

    unsafe fn blocks(self) -> u32 {
        // SAFETY: promised by the caller. Acquire: the entries of the list below this are written.
        unsafe { self.counts() }.blocks.load(Ordering::Acquire)
    }

    unsafe fn block(self, number: u32) -> Block<D> {
        // SAFETY: below `blocks`, as promised by the caller.
        unsafe { Block::from_ptr((*self.list.entries().add(number as usize)).load(Ordering::Acquire)) }
    }

    unsafe fn put_block(self, number: u32, block: Block<D>) {
        // SAFETY: below `blocks`, as promised by the caller.
        unsafe { &*self.list.entries().add(number as usize) }.store(block.as_ptr(), Ordering::Release);
    }

    unsafe fn push_block(self, block: Block<D>) {
        // SAFETY: below the capacity, as promised by the caller; readers look at it after the count is stored.
        unsafe {
            let at = self.blocks();
            self.list.entries().add(at as usize).write(AtomicPtr::new(block.as_ptr()));
            self.counts().blocks.store(at + 1, Ordering::Release);
        }
    }

    /// Returns the destination at the location of a member.
    unsafe fn at(self, location: u32) -> Option<D> {
        // SAFETY: checked here to be below the number of blocks.
        unsafe {
            let number = location / BLOCK as u32;
            let block = (number < self.blocks()).then(|| self.block(number))?;
            entries(block).get(location as usize % BLOCK).copied()
        }
    }

    /// Appends all destinations.
    pub unsafe fn extend(self, out: &mut Vec<D>) {
        // SAFETY: promised by the caller.
        unsafe {
            out.reserve(self.counts().total.load(Ordering::Relaxed) as usize);
            for number in 0..self.blocks() {
                out.extend_from_slice(entries(self.block(number)));
            }
        }
    }

    /// Returns whether one of the destinations satisfies the predicate.
    pub unsafe fn any(self, mut predicate: impl FnMut(&D) -> bool) -> bool {
        // SAFETY: promised by the caller.
        unsafe { (0..self.blocks()).any(|number| entries(self.block(number)).iter().any(&mut predicate)) }
    }

    /// Frees the list and its blocks.
    pub unsafe fn free(self) {
        // SAFETY: promised by the caller: no reader looks at them any more.
        unsafe {
            for number in 0..self.blocks() {
                self.block(number).into_memory().free();
            }
            self.list.into_memory().free();
        }
    }
}

/// Changes of large sets by writers. The callers hold a `Bin`, so there is no other writer, and a set's list and
/// blocks are not freed before they are retired here.
impl<D: Destination> Destinations<D> {
    fn list(&self, capacity: usize, total: u32) -> Large<D> {
        self.set_bytes.fetch_add(Strip::<Counts, AtomicPtr<u8>>::bytes(capacity), Ordering::Relaxed);
        Large::allocate(capacity, total)
    }

    fn retire_list(&self, large: Large<D>, bin: &mut Bin<'_>) {
        // SAFETY: the caller replaced the only pointer to it.
        let memory = unsafe { large.list.into_memory() };
        self.set_bytes.fetch_sub(memory.bytes(), Ordering::Relaxed);
        bin.retire_memory(memory);
    }

    /// Turns the full block of a set into the first of a list.
    pub(crate) fn make_large(
        &self,
        set: u32,
        block: Block<D>,
        hasher: &PathHasher,
        bin: &mut Bin<'_>,
    ) -> Large<D> {
        // SAFETY: the set's own block; the list is new and has room.
        let (now, large) = unsafe {
            let now = entries(block);
            assert_eq!((now.len(), block.capacity()), (BLOCK, BLOCK));
            let large = self.list(4, now.len() as u32);
            large.push_block(block);
            (now, large)
        };
        for (location, destination) in now.iter().enumerate() {
            self.add_member(set, destination.key(), location as u32, hasher, bin);
        }
        self.put_set(set, Set::Large(large));
        large
    }

    pub(crate) fn insert_large(
        &self,
        set: u32,
        large: Large<D>,
        destination: D,
        hasher: &PathHasher,
        bin: &mut Bin<'_>,
    ) -> Inserted {
        let key = destination.key();
        let Some(location) = self.with_member(set, large, key, hasher, |_, location| location) else {
            self.push_large(set, large, destination, hasher, bin);
            return Inserted::Added;
        };
        // SAFETY: the set's own block.
        unsafe {
            let (number, at) = (location / BLOCK as u32, location as usize % BLOCK);
            let old = large.block(number);
            let now = entries(old);
            large.put_block(number, self.block(BLOCK, &[&now[..at], &[destination], &now[at + 1..]]));
            self.retire_block(old, bin);
        }
        Inserted::Replaced
    }

    /// Adds a destination that is not in the set.
    pub(crate) fn push_large(
        &self,
        set: u32,
        mut large: Large<D>,
        destination: D,
        hasher: &PathHasher,
        bin: &mut Bin<'_>,
    ) {
        // SAFETY: the set's own list and blocks.
        let location = unsafe {
            let number = self.room(large).unwrap_or_else(|| {
                if large.blocks() as usize == large.list.capacity() {
                    large = self.copy_list(set, large, large.list.capacity() * 2, bin);
                }
                large.push_block(self.block(BLOCK, &[]));
                large.blocks() - 1
            });
            let block = large.block(number);
            let at = entries(block).len();
            push(block, destination);
            large.counts().total.fetch_add(1, Ordering::Relaxed);
            number * BLOCK as u32 + at as u32
        };
        self.add_member(set, destination.key(), location, hasher, bin);
    }

    /// Returns the number of a block with room: the last or one of a few others.
    ///
    /// # Safety
    /// Same as for the methods of `Large`.
    unsafe fn room(&self, large: Large<D>) -> Option<u32> {
        // SAFETY: promised by the caller; numbers are below `blocks`.
        unsafe {
            let (blocks, cursor) = (large.blocks(), &large.counts().cursor);
            let has_room = |number: u32| entries(large.block(number)).len() < BLOCK;
            if has_room(blocks - 1) {
                return Some(blocks - 1);
            }
            for _ in 0..PROBES_MAX.min(blocks) {
                let number = cursor.load(Ordering::Relaxed) % blocks;
                if has_room(number) {
                    return Some(number);
                }
                cursor.store(number + 1, Ordering::Relaxed);
            }
            None
        }
    }

    pub(crate) fn remove_large(
        &self,
        set: u32,
        large: Large<D>,
        key: D::Key,
        hasher: &PathHasher,
        bin: &mut Bin<'_>,
    ) -> Removed {
        let Some(location) = self.with_member(set, large, key, hasher, |member, location| {
            member.clear();
            location
        }) else {
            return Removed::NotFound;
        };
        self.members.count_dead(hasher.member(set, &key), bin, |_, _| {});
        let (number, at) = (location / BLOCK as u32, location as usize % BLOCK);
        // SAFETY: the set's own list and blocks.
        unsafe {
            let old = large.block(number);
            let now = entries(old);
            let last = now.len() - 1;
            let new = if at == last {
                self.block(BLOCK, &[&now[..at]])
            } else {
                self.move_member(set, now[last].key(), location - at as u32 + last as u32, location, hasher);
                self.block(BLOCK, &[&now[..at], &now[last..], &now[at + 1..last]])
            };
            large.put_block(number, new);
            self.retire_block(old, bin);
            let total = large.counts().total.fetch_sub(1, Ordering::Relaxed) - 1;
            if total <= SMALL {
                self.make_small(set, large, hasher, bin);
            } else {
                self.join_neighbours(set, large, number, hasher, bin);
            }
        }
        Removed::Removed
    }

    /// Turns a list of blocks with few destinations into one block.
    fn make_small(&self, set: u32, large: Large<D>, hasher: &PathHasher, bin: &mut Bin<'_>) {
        let mut all = Vec::with_capacity(SMALL as usize);
        // SAFETY: the set's own list and blocks, retired once no reference to them is left.
        unsafe {
            large.extend(&mut all);
            for number in 0..large.blocks() {
                for (at, destination) in entries(large.block(number)).iter().enumerate() {
                    let location = number * BLOCK as u32 + at as u32;
                    let hash = hasher.member(set, &destination.key());
                    let cleared =
                        self.find_member(hash, |m| m.location_in(set) == Some(location), Member::clear);
                    assert!(cleared.is_some(), "every destination of a large set is a member");
                    self.members.count_dead(hash, bin, |_, _| {});
                }
            }
            self.put_set(set, Set::Small(self.block(BLOCK, &[&all])));
            for number in 0..large.blocks() {
                self.retire_block(large.block(number), bin);
            }
        }
        self.retire_list(large, bin);
    }

    /// Joins block `number` and its neighbour if both are sparse; the last block moves to the free index.
    ///
    /// # Safety
    /// Same as for the methods of `Large`.
    unsafe fn join_neighbours(
        &self,
        set: u32,
        large: Large<D>,
        number: u32,
        hasher: &PathHasher,
        bin: &mut Bin<'_>,
    ) {
        // SAFETY: promised by the caller, and numbers are checked to be below `blocks`.
        unsafe {
            let (low, high, last) = (number & !1, number | 1, large.blocks() - 1);
            if high > last || entries(large.block(low)).len() + entries(large.block(high)).len() > SPARSE {
                return;
            }
            let (first, second) = (large.block(low), large.block(high));
            let (kept, moved) = (entries(first), entries(second));
            let joined = self.block(BLOCK, &[kept, moved]);
            let new = self.list(large.list.capacity(), large.counts().total.load(Ordering::Relaxed));
            for number in 0..last {
                new.push_block(match number {
                    number if number == low => joined,
                    number if number == high => large.block(last),
                    number => large.block(number),
                });
            }
            let location = |number: u32, at: usize| number * BLOCK as u32 + at as u32;
            for (at, destination) in moved.iter().enumerate() {
                let to = location(low, kept.len() + at);
                self.move_member(set, destination.key(), location(high, at), to, hasher);
            }
            if high != last {
                for (at, destination) in entries(large.block(last)).iter().enumerate() {
                    self.move_member(set, destination.key(), location(last, at), location(high, at), hasher);
                }
            }
            self.put_set(set, Set::Large(new));
            self.retire_block(first, bin);
            self.retire_block(second, bin);
        }
        self.retire_list(large, bin);
    }

    /// Replaces a list by one of the same blocks with room for `capacity`.
    fn copy_list(&self, set: u32, old: Large<D>, capacity: usize, bin: &mut Bin<'_>) -> Large<D> {
        // SAFETY: the set's own list; the new one has room.
        unsafe {
            let new = self.list(capacity, old.counts().total.load(Ordering::Relaxed));
            for number in 0..old.blocks() {
                new.push_block(old.block(number));
            }
            self.put_set(set, Set::Large(new));
            self.retire_list(old, bin);
            new
        }
    }

    fn add_member(&self, set: u32, key: D::Key, location: u32, hasher: &PathHasher, bin: &mut Bin<'_>) {
        let hash = hasher.member(set, &key);
        self.members.insert(hash, bin, |_, _| {}, |member| member.publish(hash, set, location));
        self.members.count_live(hash);
    }

    fn move_member(&self, set: u32, key: D::Key, from: u32, to: u32, hasher: &PathHasher) {
        let hash = hasher.member(set, &key);
        let moved = self.find_member(hash, |m| m.location_in(set) == Some(from), |m| m.move_to(to));
        assert!(moved.is_some(), "every destination of a large set is a member");
    }

    /// Applies `f` to the member of this key and its location.
    fn with_member<R>(
        &self,
        set: u32,
        large: Large<D>,
        key: D::Key,
        hasher: &PathHasher,
        f: impl FnOnce(&Member, u32) -> R,
    ) -> Option<R> {
        // SAFETY: the set's own list and blocks.
        let predicate = |location| unsafe { large.at(location) }.is_some_and(|found| found.key() == key);
        let hash = hasher.member(set, &key);
        self.find_member(
            hash,
            |member| member.location_in(set).is_some_and(predicate),
            |member| {
                let location = member.location_in(set).expect("it was found by its location");
                f(member, location)
            },
        )
    }

    fn find_member<R>(
        &self,
        hash: u64,
        predicate: impl FnMut(&Member) -> bool,
        f: impl FnOnce(&Member) -> R,
    ) -> Option<R> {
        // SAFETY: this is the only writer, which frees nothing during the call.
        let guard = unsafe { Guard::new() };
        self.members.view(&guard).find(hash, predicate).map(f)
    }
}
