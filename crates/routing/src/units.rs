//! Memory for the segments of large tables: units of one size.
//!
//! A leaf of unsafe code. An allocator that serves growing segments of many sizes loses up to half of its memory to
//! fragmentation. With a single size, each segment fits where another was.

use crate::pool::{FreeList, Pool, Tail};

/// Bytes of a unit.
pub const UNIT_BYTES: usize = 1 << 16;

/// Memory of a unit. It is never accessed by this type.
#[repr(align(4096))]
pub struct Unit {
    _bytes: [u8; UNIT_BYTES],
}

/// All units of an index. For writers only: readers follow pointers into them.
pub struct Units {
    pool: Pool<Unit>,
    tail: Tail,
    free: FreeList,
}

impl Units {
    pub fn new() -> Units {
        Units { pool: Pool::new(), tail: Tail::default(), free: FreeList::default() }
    }

    /// Takes an unused unit; returns its number and its address. It is uninitialised.
    pub fn take(&mut self) -> (u32, *mut u8) {
        let number = self.free.pop().unwrap_or_else(|| {
            // Two billion units exceed any machine's memory.
            self.pool.allocate(&mut self.tail, 1).expect("there are more numbers than memory")
        });
        // SAFETY: allocated above or before.
        (number, unsafe { self.pool.entry(number) }.cast())
    }

    /// Frees a unit that no thread looks at any more.
    pub fn give(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Bytes of all units, in use or not.
    pub fn bytes(&self) -> usize {
        self.tail.used() as usize * UNIT_BYTES
    }
}
