//! Pool of entries with 32-bit numbers, in chunks that never move and double in size.
//!
//! A leaf of unsafe code. Readers follow a number to its entry without a lock, because chunks are only added. The
//! memory of a new chunk is not touched before its entries are, so a half-used chunk costs only address space.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};

use crate::sync::{AtomicPtr, Ordering};

/// Chunks of entries: chunk `k` holds `64 << k` entries.
pub struct Pool<T> {
    chunks: [AtomicPtr<T>; CHUNKS],
}

/// Writer's half of a pool: the numbers that are taken.
#[derive(Default)]
pub struct Tail {
    next: u32,
}

const FIRST_BITS: u32 = 6;
const CHUNKS: usize = 25;
/// Upper bound of numbers.
pub const ENTRIES_MAX: u32 = ((1 << CHUNKS) - 1) << FIRST_BITS;

impl Tail {
    /// Number of numbers allocated so far. Includes those never used because a run did not fit before the end of a
    /// chunk.
    pub fn used(&self) -> u32 {
        self.next
    }

    /// Returns whether a run of `count` can certainly be allocated.
    pub fn has_room(&self, count: u32) -> bool {
        // A run that does not fit into the rest of its chunk skips that rest, which is shorter than the run.
        u64::from(self.next) + 2 * u64::from(count) + (1 << FIRST_BITS) < u64::from(ENTRIES_MAX)
    }
}

/// Returns chunk and offset of entry `index`.
#[inline(always)]
fn locate(index: u32) -> (usize, usize) {
    let n = index + (1 << FIRST_BITS);
    let chunk = n.ilog2() - FIRST_BITS;
    (chunk as usize, (n - (1 << (chunk + FIRST_BITS))) as usize)
}

fn layout<T>(chunk: usize) -> Layout {
    let entries = 1 << (chunk + FIRST_BITS as usize);
    Layout::array::<T>(entries).expect("a chunk is smaller than the address space")
}

impl<T> Pool<T> {
    pub fn new() -> Pool<T> {
        const { assert!(size_of::<T>() > 0) };
        Pool { chunks: std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut())) }
    }

    /// Allocates the numbers of `count` consecutive new entries within one chunk, uninitialised. Returns `None`
    /// when there are no more.
    pub fn allocate(&self, tail: &mut Tail, count: u32) -> Option<u32> {
        if !tail.has_room(count) {
            return None;
        }
        loop {
            let first = tail.next;
            let (chunk, offset) = locate(first);
            let rest = (1u32 << (chunk as u32 + FIRST_BITS)) - offset as u32;
            if count > rest {
                tail.next += rest;
                continue;
            }
            tail.next += count;
            if self.chunks[chunk].load(Ordering::Relaxed).is_null() {
                let layout = layout::<T>(chunk);
                // SAFETY: entries have a size, so the layout has one.
                let memory = unsafe { alloc(layout) }.cast::<T>();
                if memory.is_null() {
                    handle_alloc_error(layout);
                }
                self.chunks[chunk].store(memory, Ordering::Release);
            }
            return Some(first);
        }
    }

    /// Returns the address of an entry.
    ///
    /// # Safety
    /// `index` is part of a run that `allocate` of this pool returned, and the caller has learnt it from that.
    #[inline(always)]
    pub unsafe fn entry(&self, index: u32) -> *mut T {
        let (chunk, offset) = locate(index);
        // SAFETY: `locate` stays below CHUNKS for numbers of `allocate`, which made the chunk. The caller learnt
        // the number by an acquiring load after that store, so Relaxed sees it.
        unsafe { self.chunks.get_unchecked(chunk).load(Ordering::Relaxed).add(offset) }
    }
}

impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        for (chunk, memory) in self.chunks.iter().enumerate() {
            let memory = memory.load(Ordering::Relaxed);
            if !memory.is_null() {
                // SAFETY: allocated with this layout by `allocate`; `self` is dropped, so there is no other user.
                unsafe { dealloc(memory.cast(), layout::<T>(chunk)) };
            }
        }
    }
}

/// Free numbers, last in first out. Blocks avoid the copy of a long list.
#[derive(Default)]
pub struct FreeList {
    blocks: Vec<Vec<u32>>,
    len: usize,
}

const BLOCK: usize = 1024;

impl FreeList {
    pub fn push(&mut self, number: u32) {
        match self.blocks.last_mut() {
            Some(block) if block.len() < BLOCK => block.push(number),
            _ => self.blocks.push(vec![number]),
        }
        self.len += 1;
    }

    pub fn pop(&mut self) -> Option<u32> {
        // An empty block stays until the one before it is needed, so that a changing number of entries does not
        // allocate.
        if self.blocks.len() > 1 {
            self.blocks.pop_if(|block| block.is_empty());
        }
        let number = self.blocks.last_mut()?.pop()?;
        self.len -= 1;
        Some(number)
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_address_while_the_pool_grows() {
        let (pool, mut tail) = (Pool::<u64>::new(), Tail::default());
        let numbers: Vec<u32> = (0..10_000).map(|_| pool.allocate(&mut tail, 1).unwrap()).collect();
        assert_eq!(numbers, (0..10_000).collect::<Vec<u32>>());
        for &number in &numbers {
            // SAFETY: allocated above.
            unsafe { pool.entry(number).write(u64::from(number) * 3) };
        }
        for &number in &numbers {
            // SAFETY: allocated and written above.
            assert_eq!(unsafe { pool.entry(number).read() }, u64::from(number) * 3);
        }
    }

    #[test]
    fn a_run_never_crosses_a_chunk() {
        let (pool, mut tail) = (Pool::<u32>::new(), Tail::default());
        for count in [1, 60, 7, 128, 1, 16_385, 300] {
            let first = pool.allocate(&mut tail, count).unwrap();
            assert_eq!(locate(first).0, locate(first + count - 1).0, "{count} from {first}");
        }
    }

    #[test]
    fn the_last_number_is_known() {
        assert_eq!(locate(ENTRIES_MAX - 1).0, CHUNKS - 1);
        assert_eq!(locate(ENTRIES_MAX).0, CHUNKS);
        let (pool, mut tail) = (Pool::<u8>::new(), Tail { next: ENTRIES_MAX - 10 });
        assert_eq!(pool.allocate(&mut tail, 1), None);
    }

    #[test]
    fn freed_numbers_are_reused_last_first() {
        let mut free = FreeList::default();
        (0..3000).for_each(|n| free.push(n));
        assert_eq!(free.len(), 3000);
        assert!((0..3000).rev().all(|n| free.pop() == Some(n)));
        assert_eq!((free.pop(), free.len()), (None, 0));
    }
}
