//! A hash table that any number of threads read while one writes.
//!
//! A directory, indexed by the top bits of a hash, points to segments of open addressing with linear probing. A
//! full segment is copied into a larger one, or into two once it is a whole unit of memory. So no insert copies
//! more than a unit, however large the table is. Readers continue in the old segment, which never changes from then
//! on.
//!
//! An entry never leaves its segment and never changes its identity. When it is no longer in use, it is dead and is
//! left out of the next copy.

use std::marker::PhantomData;

use crate::epoch::Guard;
use crate::retired::{Bin, Garbage};
use crate::slot::Slot;
use crate::strip::Strip;
use crate::sync::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use crate::units::{UNIT_BYTES, Units};

/// Entries of type `S` by 64-bit hash, which is never 0.
pub struct Table<S> {
    directory: AtomicPtr<u8>,
    bytes: AtomicUsize,
    slots: PhantomData<S>,
}

// SAFETY: a table is reached through atomics only, owns its memory, and its slots are shared between threads.
unsafe impl<S: Send + Sync> Send for Table<S> {}
// SAFETY: as above; changes are made by the holder of a `Bin`, and there is one for each index at a time.
unsafe impl<S: Send + Sync> Sync for Table<S> {}

struct Bits {
    /// Number of top bits of a hash that select an entry.
    bits: u32,
}
type Directory = Strip<Bits, AtomicPtr<u8>>;

struct Counts {
    /// Number of top bits that all hashes in the segment share.
    bits: u32,
    /// Number of the segment's unit, or [`NO_UNIT`].
    unit: u32,
    /// Number of entries that are not empty.
    used: AtomicU32,
    /// Number of entries that are in use.
    live: AtomicU32,
}
type Segment<S> = Strip<Counts, S>;

const NO_UNIT: u32 = u32::MAX;
/// Mask of the low bits of a segment's address, which hold its size class. Sizes of segments are 4, 8, 16 and so
/// on; the largest is the number that fits into a unit.
const CLASS_MASK: usize = 15;
/// Fill level above which a segment is copied, in percent.
const FILL_MAX: u64 = 78;
/// Maximum fill level of a new segment, in percent; above it there are two.
const FILL_NEW: u64 = 60;

/// Sizes of segments in slots, by class.
struct Sizes<S>(PhantomData<S>);

impl<S> Sizes<S> {
    const LARGEST: u32 = Segment::<S>::fit(UNIT_BYTES) as u32;
    const LAST: usize = (Self::LARGEST.ilog2() as usize) - 1;
    const TABLE: [u32; CLASS_MASK + 1] = {
        let mut table = [Self::LARGEST; CLASS_MASK + 1];
        let mut class = 0;
        while class < Self::LAST {
            table[class] = 4 << class;
            class += 1;
        }
        assert!(Self::LAST <= CLASS_MASK && align_of::<S>() > CLASS_MASK);
        table
    };

    #[inline(always)]
    fn of(class: usize) -> u32 {
        Self::TABLE[class & CLASS_MASK]
    }

    /// Returns the smallest class for this number of live entries; `None` when they need two segments.
    fn class_for(live: u32) -> Option<usize> {
        (0..=Self::LAST).find(|class| u64::from(live) * 100 <= u64::from(Self::of(*class)) * FILL_NEW)
    }
}

fn is_full(used: u32, size: u32) -> bool {
    u64::from(used) * 100 > u64::from(size) * FILL_MAX
}

#[inline(always)]
fn directory_index(hash: u64, bits: u32) -> usize {
    // Two shifts, because a shift by 64 is not defined.
    ((hash >> 1) >> (63 - bits)) as usize
}

#[inline(always)]
fn home(hash: u64, size: u32) -> usize {
    ((u64::from(hash as u32) * u64::from(size)) >> 32) as usize
}

fn allocate<S: Slot>(class: usize, bits: u32, units: Option<&mut Units>) -> Segment<S> {
    let size = Sizes::<S>::of(class) as usize;
    let counts = |unit| Counts { bits, unit, used: AtomicU32::new(0), live: AtomicU32::new(0) };
    let segment: Segment<S> = match units {
        Some(units) if class == Sizes::<S>::LAST => {
            let (number, memory) = units.take();
            // SAFETY: units are aligned to pages, the size is the number that fits, and this unit is the segment's
            // alone.
            unsafe { Strip::place(memory, counts(number), size) }
        }
        _ => Strip::allocate(counts(NO_UNIT), size),
    };
    for i in 0..size {
        // SAFETY: within the capacity just allocated.
        unsafe { segment.entries().add(i).write(S::empty()) };
    }
    segment
}

fn tagged<S>(segment: Segment<S>, class: usize) -> *mut u8 {
    segment.as_ptr().map_addr(|address| address | class)
}

/// Removes the tag from a pointer.
///
/// # Safety
/// `pointer` is an entry of a directory of a table of `S`.
#[inline(always)]
unsafe fn untagged<S>(pointer: *mut u8) -> (Segment<S>, usize) {
    let class = pointer.addr() & CLASS_MASK;
    // SAFETY: promised by the caller; without the tag it is the pointer of `as_ptr`.
    (unsafe { Segment::from_ptr(pointer.map_addr(|address| address & !CLASS_MASK)) }, class)
}

/// A table as one reader sees it while its guard exists.
pub struct View<'g, S> {
    segments: &'g [AtomicPtr<u8>],
    bits: u32,
    slots: PhantomData<&'g S>,
}

impl<S> Clone for View<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for View<'_, S> {}

impl<'g, S: Slot> View<'g, S> {
    #[inline(always)]
    fn segment(&self, hash: u64) -> (Segment<S>, usize) {
        let at = directory_index(hash, self.bits);
        // SAFETY: a directory has `1 << bits` entries, and each is a segment of this table.
        unsafe { untagged(self.segments.get_unchecked(at).load(Ordering::Acquire)) }
    }

    /// Prefetches the cache lines in which the search for `hash` begins.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        let (segment, class) = self.segment(hash);
        let at = segment.entries().wrapping_add(home(hash, Sizes::<S>::of(class)));
        crate::prefetch::read(at);
        // A failing search goes on into the next line more often than not.
        crate::prefetch::read(at.wrapping_byte_add(64));
    }

    /// Returns the first entry with this hash that `predicate` accepts.
    #[inline(always)]
    pub fn find(&self, hash: u64, mut predicate: impl FnMut(&S) -> bool) -> Option<&'g S> {
        if hash == 0 {
            return None;
        }
        let (segment, class) = self.segment(hash);
        let size = Sizes::<S>::of(class);
        let mut at = home(hash, size);
        loop {
            // SAFETY: `at` is below the segment's capacity. All slots are initialised, and the guard keeps the segment.
            let slot = unsafe { &*segment.entries().add(at) };
            let found = slot.hash();
            if found == hash && predicate(slot) {
                return Some(slot);
            }
            // A segment is never completely full, so that every search ends.
            if found == 0 {
                return None;
            }
            at += 1;
            if at == size as usize {
                at = 0;
            }
        }
    }

    /// Calls `f` once with each entry, dead ones included. Entries that are added or removed during the call may be
    /// missed.
    pub fn for_each(&self, mut f: impl FnMut(&'g S)) {
        let mut at = 0;
        while at < self.segments.len() {
            // SAFETY: entries of a directory are segments of this table, which the guard keeps.
            let (segment, class) = unsafe { untagged::<S>(self.segments[at].load(Ordering::Acquire)) };
            // SAFETY: all of a segment is initialised.
            let slots = unsafe { segment.slice(Sizes::<S>::of(class) as usize) };
            slots.iter().filter(|slot| slot.hash() != 0).for_each(&mut f);
            // SAFETY: the guard keeps the segment.
            let bits = unsafe { segment.header() }.bits;
            // A segment has all entries that begin with its bits; one that is split later is skipped as a whole.
            at += 1 << (self.bits - bits);
        }
    }
}

impl<S: Slot> Table<S> {
    /// Creates a table of one small segment.
    pub fn new() -> Table<S> {
        let segment = allocate::<S>(0, 0, None);
        let directory = Directory::allocate(Bits { bits: 0 }, 1);
        // SAFETY: within the capacity just allocated.
        unsafe { directory.entries().write(AtomicPtr::new(tagged(segment, 0))) };
        let bytes = Directory::bytes(1) + Segment::<S>::bytes(Sizes::<S>::of(0) as usize);
        Table {
            directory: AtomicPtr::new(directory.as_ptr()),
            bytes: AtomicUsize::new(bytes),
            slots: PhantomData,
        }
    }

    /// Bytes of memory, without units and without the retired list.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Number of entries that writers have counted as live. For writers only, or while there are none.
    pub fn live(&self) -> usize {
        // SAFETY: no directory or segment is retired during the call.
        unsafe {
            let directory = Directory::from_ptr(self.directory.load(Ordering::Acquire));
            let bits = directory.header().bits;
            let (mut live, mut at) = (0, 0);
            while at < 1 << bits {
                let counts = untagged::<S>((*directory.entries().add(at)).load(Ordering::Acquire)).0.header();
                live += counts.live.load(Ordering::Relaxed) as usize;
                at += 1 << (bits - counts.bits);
            }
            live
        }
    }

    #[inline(always)]
    pub fn view<'g>(&self, _: &'g Guard<'_>) -> View<'g, S> {
        // SAFETY: the pointer is always that of a directory, completely initialised, and the guard keeps it.
        let (directory, bits) = unsafe {
            let directory = Directory::from_ptr(self.directory.load(Ordering::Acquire));
            (directory, directory.header().bits)
        };
        // SAFETY: as above.
        View { segments: unsafe { directory.slice(1 << bits) }, bits, slots: PhantomData }
    }

    /// Adds an entry, which `publish` has to give this hash; it counts as dead. Calls `dropped` for each dead entry
    /// that a new segment leaves out.
    pub fn insert(
        &self,
        hash: u64,
        bin: &mut Bin<'_>,
        dropped: impl FnMut(&S, &mut Bin<'_>),
        publish: impl FnOnce(&S),
    ) {
        assert!(hash != 0);
        let (mut segment, mut class) = self.segment(hash);
        // SAFETY: the `Bin` shows that this is the writer, and only a writer retires segments.
        let counts = unsafe { segment.header() };
        if is_full(counts.used.load(Ordering::Relaxed) + 1, Sizes::<S>::of(class)) {
            self.replace(hash, bin, dropped);
            (segment, class) = self.segment(hash);
        }
        // SAFETY: as above.
        unsafe {
            publish(&*free_slot(segment, class, hash));
            segment.header().used.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts the entry with this hash as live: it is in use now.
    pub fn count_live(&self, hash: u64) {
        let (segment, _) = self.segment(hash);
        // SAFETY: the writer calls this, and only a writer retires segments.
        unsafe { segment.header() }.live.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the entry with this hash as dead. Its segment is replaced by a smaller one when few live entries are
    /// left.
    pub fn count_dead(&self, hash: u64, bin: &mut Bin<'_>, dropped: impl FnMut(&S, &mut Bin<'_>)) {
        let (segment, class) = self.segment(hash);
        // SAFETY: as above.
        let counts = unsafe { segment.header() };
        let live = counts.live.fetch_sub(1, Ordering::Relaxed) - 1;
        if class > 0 && live * 8 < Sizes::<S>::of(class) {
            self.replace(hash, bin, dropped);
        }
    }

    fn segment(&self, hash: u64) -> (Segment<S>, usize) {
        // SAFETY: only writers call this, and only writers retire directories.
        let directory = unsafe { Directory::from_ptr(self.directory.load(Ordering::Relaxed)) };
        // SAFETY: as above.
        let at = directory_index(hash, unsafe { directory.header() }.bits);
        // SAFETY: a directory has `1 << bits` entries.
        unsafe { untagged((*directory.entries().add(at)).load(Ordering::Relaxed)) }
    }

    /// Replaces the segment of `hash` by one or two new ones.
    fn replace(&self, hash: u64, bin: &mut Bin<'_>, mut dropped: impl FnMut(&S, &mut Bin<'_>)) {
        let (old, class) = self.segment(hash);
        // SAFETY: not retired yet, and all of it is initialised.
        let (counts, slots) = unsafe { (old.header(), old.slice(Sizes::<S>::of(class) as usize)) };
        let live = counts.live.load(Ordering::Relaxed);
        let bits = counts.bits;
        if let Some(class) = Sizes::<S>::class_for(live + 1) {
            let new = allocate::<S>(class, bits, Some(bin.units));
            copy_live(slots, |_| (new, class));
            self.put(hash, bits, new, class);
        } else {
            let half = |slot: &&S| directory_index(slot.hash(), bits + 1) & 1 == 1;
            let upper = slots.iter().filter(|slot| slot.is_live()).filter(half).count() as u32;
            let pick = |live| Sizes::<S>::class_for(live + 1).expect("hashes are spread over both halves");
            let classes = [pick(live - upper), pick(upper)];
            let new = classes.map(|class| allocate::<S>(class, bits + 1, Some(bin.units)));
            copy_live(slots, |slot| {
                let half = usize::from(half(&slot));
                (new[half], classes[half])
            });
            self.deepen(bits + 1, bin);
            let below = 63 - bits;
            for half in [0, 1] {
                let hash = hash & !(1 << below) | (half as u64) << below;
                self.put(hash, bits + 1, new[half], classes[half]);
            }
        }
        slots.iter().filter(|slot| slot.hash() != 0 && !slot.is_live()).for_each(|slot| dropped(slot, bin));
        if counts.unit == NO_UNIT {
            self.bytes.fetch_sub(Segment::<S>::bytes(slots.len()), Ordering::Relaxed);
            // SAFETY: `put` replaced all pointers to it, and it is retired only here.
            bin.retire_memory(unsafe { old.into_memory() });
        } else {
            bin.retire(Garbage::Unit(counts.unit));
        }
    }

    /// Makes every directory entry that begins with the top `bits` of `hash` point to `segment`.
    fn put(&self, hash: u64, bits: u32, segment: Segment<S>, class: usize) {
        // SAFETY: only writers call this.
        let directory = unsafe { Directory::from_ptr(self.directory.load(Ordering::Relaxed)) };
        // SAFETY: as above.
        let spare = unsafe { directory.header() }.bits - bits;
        let first = directory_index(hash, bits) << spare;
        for at in first..first + (1 << spare) {
            // SAFETY: below `1 << bits` of the directory.
            unsafe { &*directory.entries().add(at) }.store(tagged(segment, class), Ordering::Release);
        }
        // SAFETY: new, and in the directory.
        if unsafe { segment.header() }.unit == NO_UNIT {
            self.bytes.fetch_add(Segment::<S>::bytes(Sizes::<S>::of(class) as usize), Ordering::Relaxed);
        }
    }

    /// Makes the directory distinguish at least `bits` bits.
    fn deepen(&self, bits: u32, bin: &mut Bin<'_>) {
        // SAFETY: only writers call this.
        let old = unsafe { Directory::from_ptr(self.directory.load(Ordering::Relaxed)) };
        // SAFETY: as above.
        let old_bits = unsafe { old.header() }.bits;
        if old_bits >= bits {
            return;
        }
        assert!(bits <= 30, "hashes are spread evenly");
        let new = Directory::allocate(Bits { bits }, 1 << bits);
        for at in 0..1usize << bits {
            // SAFETY: both indices are below the capacity of their directory.
            unsafe {
                let segment = (*old.entries().add(at >> (bits - old_bits))).load(Ordering::Relaxed);
                new.entries().add(at).write(AtomicPtr::new(segment));
            }
        }
        self.directory.store(new.as_ptr(), Ordering::Release);
        self.bytes.fetch_add(Directory::bytes(1 << bits), Ordering::Relaxed);
        self.bytes.fetch_sub(Directory::bytes(1 << old_bits), Ordering::Relaxed);
        // SAFETY: the store above replaced the only pointer to it.
        bin.retire_memory(unsafe { old.into_memory() });
    }
}

/// Copies live entries into new segments that no other thread sees yet.
fn copy_live<S: Slot>(slots: &[S], target: impl Fn(&S) -> (Segment<S>, usize)) {
    for slot in slots.iter().filter(|slot| slot.is_live()) {
        let (segment, class) = target(slot);
        // SAFETY: the segment is new, not shared, and was made large enough.
        unsafe {
            free_slot(segment, class, slot.hash()).write(slot.copy());
            let counts = segment.header();
            counts.used.fetch_add(1, Ordering::Relaxed);
            counts.live.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Returns the free slot for an entry with this hash.
///
/// # Safety
/// The segment is not freed and has an empty slot.
unsafe fn free_slot<S: Slot>(segment: Segment<S>, class: usize, hash: u64) -> *mut S {
    let size = Sizes::<S>::of(class) as usize;
    let mut at = home(hash, Sizes::<S>::of(class));
    // SAFETY: `at` stays below the capacity, and all slots are initialised.
    unsafe {
        while (*segment.entries().add(at)).hash() != 0 {
            at = if at + 1 == size { 0 } else { at + 1 };
        }
        segment.entries().add(at)
    }
}

impl<S> Drop for Table<S> {
    fn drop(&mut self) {
        // SAFETY: there is no other user left; each segment is freed once, at the first entry that has it. Units
        // are freed by the index, which drops them after its tables.
        unsafe {
            let directory = Directory::from_ptr(self.directory.load(Ordering::Relaxed));
            let bits = directory.header().bits;
            let mut at = 0;
            while at < 1 << bits {
                let (segment, _) = untagged::<S>((*directory.entries().add(at)).load(Ordering::Relaxed));
                at += 1 << (bits - segment.header().bits);
                if segment.header().unit == NO_UNIT {
                    segment.into_memory().free();
                }
            }
            directory.into_memory().free();
        }
    }
}
