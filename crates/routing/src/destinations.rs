//! Destinations of each filter: a single one, or a set of them.
//!
//! The entry of a filter has a 32-bit reference. A set of up to [`BLOCK_MAX`] is one block, in which readers find a
//! plain array; larger ones are in `large.rs`. A block only grows at its end, in place; any other change replaces
//! the block.

use std::hash::Hash;

use crate::epoch::Guard;
use crate::hash::PathHasher;
use crate::large::Large;
use crate::pool::{FreeList, Pool, Tail};
use crate::retired::{Bin, Garbage};
use crate::slot::Member;
use crate::strip::Strip;
use crate::sync::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use crate::table::Table;
use crate::{Destination, Inserted, Removed};

/// All destinations of an index.
pub struct Destinations<D> {
    singles: Pool<D>,
    /// Sets by number: the [`Block`] of a set, or its [`Large`] with the lowest bit set.
    sets: Pool<AtomicPtr<u8>>,
    pub(crate) members: Table<Member>,
    /// Bytes of blocks and of lists of blocks.
    pub(crate) set_bytes: AtomicUsize,
}

/// Writer's half: the numbers that are taken.
#[derive(Default)]
pub struct DestinationsTail {
    singles: Tail,
    free_singles: FreeList,
    sets: Tail,
    free_sets: FreeList,
}

/// Maximum number of destinations of a block.
pub const BLOCK_MAX: usize = 64;

/// Consecutive destinations.
pub type Block<D> = Strip<BlockLength, D>;

/// Number of entries of a block. Existing entries never change.
pub struct BlockLength(AtomicU32);

/// Reference in an entry of the tree.
#[derive(Clone, Copy)]
enum Reference {
    None,
    Single(u32),
    Set(u32),
}

const SET: u32 = 1 << 31;
const LARGE: usize = 1;

impl Reference {
    #[inline(always)]
    fn decode(word: u32) -> Reference {
        match word {
            0 => Reference::None,
            word if word & SET == 0 => Reference::Single(word - 1),
            word => Reference::Set(word & !SET),
        }
    }

    fn encode(self) -> u32 {
        match self {
            Reference::None => 0,
            Reference::Single(number) => number + 1,
            Reference::Set(number) => number | SET,
        }
    }
}

/// A set as stored in the pool.
pub(crate) enum Set<D> {
    Small(Block<D>),
    Large(Large<D>),
}

impl<D: Destination> Destinations<D> {
    pub fn new() -> Destinations<D> {
        Destinations {
            singles: Pool::new(),
            sets: Pool::new(),
            members: Table::new(),
            set_bytes: AtomicUsize::new(0),
        }
    }

    pub fn has_room(tail: &DestinationsTail) -> bool {
        tail.singles.has_room(1) && tail.sets.has_room(1)
    }

    pub fn bytes(&self, tail: &DestinationsTail) -> usize {
        tail.singles.used() as usize * size_of::<D>()
            + tail.sets.used() as usize * size_of::<usize>()
            + (tail.free_singles.len() + tail.free_sets.len()) * size_of::<u32>()
            + self.members.bytes()
            + self.set_bytes.load(Ordering::Relaxed)
    }

    /// Starts loading the memory that `reference` refers to.
    #[inline(always)]
    pub fn prefetch(&self, reference: u32) {
        match Reference::decode(reference) {
            Reference::None => {}
            // SAFETY: a reference read from an entry refers to a number that was allocated.
            Reference::Single(number) => crate::prefetch::read(unsafe { self.singles.entry(number) }),
            // SAFETY: as above.
            Reference::Set(number) => crate::prefetch::read(unsafe { self.sets.entry(number) }),
        }
    }

    /// Appends the destinations of `reference`, which was read from an entry while the guard was held.
    #[inline(always)]
    pub fn extend(&self, reference: u32, out: &mut Vec<D>, guard: &Guard<'_>) {
        match Reference::decode(reference) {
            Reference::None => {}
            // SAFETY: written before the reference was published; not reused before the guard ends.
            Reference::Single(number) => out.push(unsafe { self.singles.entry(number).read() }),
            Reference::Set(number) => self.extend_set(number, out, guard),
        }
    }

    /// Returns whether one of the destinations of `reference` satisfies the predicate. The reference was read while
    /// the guard was held.
    pub fn any(&self, reference: u32, mut predicate: impl FnMut(&D) -> bool, _: &Guard<'_>) -> bool {
        // SAFETY: written before the reference was published; the guard keeps the set and its parts.
        unsafe {
            match Reference::decode(reference) {
                Reference::None => false,
                Reference::Single(number) => predicate(&self.singles.entry(number).read()),
                Reference::Set(number) => match self.set(number) {
                    Set::Small(block) => entries(block).iter().any(predicate),
                    Set::Large(large) => large.any(predicate),
                },
            }
        }
    }

    #[inline(never)]
    fn extend_set(&self, number: u32, out: &mut Vec<D>, _: &Guard<'_>) {
        // SAFETY: the guard keeps the set and its parts.
        unsafe {
            match self.set(number) {
                Set::Small(block) => out.extend_from_slice(entries(block)),
                Set::Large(large) => large.extend(out),
            }
        }
    }

    /// Returns the set of a number.
    ///
    /// # Safety
    /// `number` is that of a set that is not freed.
    unsafe fn set(&self, number: u32) -> Set<D> {
        // SAFETY: promised by the caller; the tag distinguishes the types of the pointer.
        unsafe {
            let pointer = (*self.sets.entry(number)).load(Ordering::Acquire);
            match pointer.addr() & LARGE {
                0 => Set::Small(Block::from_ptr(pointer)),
                _ => Set::Large(Large::from_ptr(pointer.map_addr(|address| address & !LARGE))),
            }
        }
    }

    pub(crate) fn put_set(&self, number: u32, set: Set<D>) {
        let pointer = match set {
            Set::Small(block) => block.as_ptr(),
            Set::Large(large) => large.as_ptr().map_addr(|address| address | LARGE),
        };
        // SAFETY: the number was allocated and its entry initialised at once.
        unsafe { &*self.sets.entry(number) }.store(pointer, Ordering::Release);
    }

    /// Adds a destination to those of `cell`, or replaces the one with its key.
    pub fn insert(
        &self,
        cell: &AtomicU32,
        destination: D,
        tail: &mut DestinationsTail,
        hasher: &PathHasher,
        bin: &mut Bin<'_>,
    ) -> Inserted {
        let key = destination.key();
        match Reference::decode(cell.load(Ordering::Relaxed)) {
            Reference::None => {
                cell.store(self.single(tail, destination), Ordering::Release);
                Inserted::New
            }
            Reference::Single(number) => {
                // SAFETY: the entry's own destination.
                let old = unsafe { self.singles.entry(number).read() };
                let (reference, inserted) = if old.key() == key {
                    (self.single(tail, destination), Inserted::Replaced)
                } else {
                    let block = self.block(4, &[&[old], &[destination]]);
                    (self.new_set(tail, Set::Small(block)), Inserted::Added)
                };
                cell.store(reference, Ordering::Release);
                bin.retire(Garbage::Single(number));
                inserted
            }
            // SAFETY: the entry's own set.
            Reference::Set(number) => match unsafe { self.set(number) } {
                Set::Small(block) => self.insert_small(number, block, destination, hasher, bin),
                Set::Large(large) => self.insert_large(number, large, destination, hasher, bin),
            },
        }
    }

    fn insert_small(
        &self,
        number: u32,
        block: Block<D>,
        destination: D,
        hasher: &PathHasher,
        bin: &mut Bin<'_>,
    ) -> Inserted {
        // SAFETY: the set's own block.
        let (now, capacity) = unsafe { (entries(block), block.capacity()) };
        if let Some(at) = position(now, destination.key()) {
            let new = self.block(capacity, &[&now[..at], &[destination], &now[at + 1..]]);
            self.put_set(number, Set::Small(new));
            self.retire_block(block, bin);
            return Inserted::Replaced;
        }
        if now.len() < capacity {
            // SAFETY: the set's own block, which has room.
            unsafe { push(block, destination) };
        } else if capacity < BLOCK_MAX {
            let new = self.block(capacity * 2, &[now, &[destination]]);
            self.put_set(number, Set::Small(new));
            self.retire_block(block, bin);
        } else {
            let large = self.make_large(number, block, hasher, bin);
            self.push_large(number, large, destination, hasher, bin);
        }
        Inserted::Added
    }

    /// Removes the destination with this key from those of `cell`.
    pub fn remove(
        &self,
        cell: &AtomicU32,
        key: D::Key,
        tail: &mut DestinationsTail,
        hasher: &PathHasher,
        bin: &mut Bin<'_>,
    ) -> Removed {
        match Reference::decode(cell.load(Ordering::Relaxed)) {
            Reference::None => Removed::NotFound,
            Reference::Single(number) => {
                // SAFETY: the entry's own destination.
                if unsafe { self.singles.entry(number).read() }.key() != key {
                    return Removed::NotFound;
                }
                cell.store(Reference::None.encode(), Ordering::Release);
                bin.retire(Garbage::Single(number));
                Removed::Last
            }
            // SAFETY: the entry's own set.
            Reference::Set(number) => match unsafe { self.set(number) } {
                Set::Small(block) => {
                    // SAFETY: the set's own block.
                    let now = unsafe { entries(block) };
                    let Some(at) = position(now, key) else { return Removed::NotFound };
                    if let [first, second] = now {
                        let left = if at == 0 { *second } else { *first };
                        cell.store(self.single(tail, left), Ordering::Release);
                        bin.retire(Garbage::Set(number));
                    } else {
                        let new =
                            self.block(now.len().next_power_of_two().max(4), &[&now[..at], &now[at + 1..]]);
                        self.put_set(number, Set::Small(new));
                    }
                    self.retire_block(block, bin);
                    Removed::Removed
                }
                Set::Large(large) => self.remove_large(number, large, key, hasher, bin),
            },
        }
    }

    /// Frees a number: no reader holds it.
    pub fn free_single(&self, tail: &mut DestinationsTail, number: u32) {
        tail.free_singles.push(number);
    }

    /// Frees a number: no reader holds it.
    pub fn free_set(&self, tail: &mut DestinationsTail, number: u32) {
        // SAFETY: the number was allocated and its entry initialised at once.
        unsafe { &*self.sets.entry(number) }.store(std::ptr::null_mut(), Ordering::Relaxed);
        tail.free_sets.push(number);
    }

    fn single(&self, tail: &mut DestinationsTail, destination: D) -> u32 {
        let new = || self.singles.allocate(&mut tail.singles, 1).expect("room was checked");
        let number = tail.free_singles.pop().unwrap_or_else(new);
        // SAFETY: new, or freed after every reader released it.
        unsafe { self.singles.entry(number).write(destination) };
        Reference::Single(number).encode()
    }

    fn new_set(&self, tail: &mut DestinationsTail, set: Set<D>) -> u32 {
        let number = tail.free_sets.pop().unwrap_or_else(|| {
            let number = self.sets.allocate(&mut tail.sets, 1).expect("room was checked");
            // SAFETY: new.
            unsafe { self.sets.entry(number).write(AtomicPtr::new(std::ptr::null_mut())) };
            number
        });
        self.put_set(number, set);
        Reference::Set(number).encode()
    }

    /// Creates a block of these entries.
    pub(crate) fn block(&self, capacity: usize, parts: &[&[D]]) -> Block<D> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        assert!(length <= capacity);
        let block = Block::allocate(BlockLength(AtomicU32::new(0)), capacity);
        for destination in parts.iter().copied().flatten() {
            // SAFETY: new, and large enough.
            unsafe { push(block, *destination) };
        }
        self.set_bytes.fetch_add(Block::<D>::bytes(capacity), Ordering::Relaxed);
        block
    }

    pub(crate) fn retire_block(&self, block: Block<D>, bin: &mut Bin<'_>) {
        // SAFETY: the caller replaced the only pointer to it.
        let memory = unsafe { block.into_memory() };
        self.set_bytes.fetch_sub(memory.bytes(), Ordering::Relaxed);
        bin.retire_memory(memory);
    }

    /// Frees the sets. Everything in the retired list was freed before, and no reader is left.
    pub fn clear(&mut self, tail: &DestinationsTail) {
        for number in 0..tail.sets.used() {
            // SAFETY: every number that was allocated is initialised; a freed one is null. The parts of a set
            // belong to it alone and are freed only here.
            unsafe {
                if (*self.sets.entry(number)).load(Ordering::Relaxed).is_null() {
                    continue;
                }
                match self.set(number) {
                    Set::Small(block) => block.into_memory().free(),
                    Set::Large(large) => large.free(),
                }
            }
        }
    }
}

/// Returns the entries of a block.
///
/// # Safety
/// The block is not freed during `'a`.
pub(crate) unsafe fn entries<'a, D>(block: Block<D>) -> &'a [D] {
    // SAFETY: the length is stored after that many entries are written.
    unsafe {
        let length = block.header().0.load(Ordering::Acquire);
        block.slice(length as usize)
    }
}

/// Appends to a block that has room.
///
/// # Safety
/// The block is not freed, is not full, and has no other writer.
pub(crate) unsafe fn push<D>(block: Block<D>, destination: D) {
    // SAFETY: below the capacity as promised by the caller; readers look at it after the length is stored.
    unsafe {
        let length = &block.header().0;
        let at = length.load(Ordering::Relaxed);
        debug_assert!((at as usize) < block.capacity());
        block.entries().add(at as usize).write(destination);
        length.store(at + 1, Ordering::Release);
    }
}

pub(crate) fn position<D: Destination>(entries: &[D], key: D::Key) -> Option<usize>
where
    D::Key: Eq + Hash,
{
    entries.iter().position(|entry| entry.key() == key)
}
