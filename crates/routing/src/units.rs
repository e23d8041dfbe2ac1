//! Memory for the segments of large tables: units of one size.
//!
//! A leaf of unsafe code. An allocator that serves segments of many sizes as they grow loses up to half of its memory
//! between them; of one size, each fits where another was.

use crate::pool::{FreeList, Pool, Tail};

/// Bytes of a unit.
pub const UNIT_BYTES: usize = 1 << 16;

/// A unit's memory; nobody looks at it by this type.
#[repr(align(4096))]
pub struct Unit {
    _bytes: [u8; UNIT_BYTES],
}

/// All units of an index. Writers' alone: readers follow pointers into them.
pub struct Units {
    pool: Pool<Unit>,
    tail: Tail,
    free: FreeList,
}

impl Units {
    pub fn new() -> Units {
        Units { pool: Pool::new(), tail: Tail::default(), free: FreeList::default() }
    }

    /// A unit that nobody uses, and its number. It is uninitialised.
    pub fn take(&mut self) -> (u32, *mut u8) {
        let number = self.free.pop().unwrap_or_else(|| {
            // Two thousand million units are more than there is memory.
            self.pool.allocate(&mut self.tail, 1).expect("there are more numbers than memory")
        });
        // SAFETY: allocated above or before.
        (number, unsafe { self.pool.entry(number) }.cast())
    }

    /// A unit comes back: nobody looks at it any more.
    pub fn give(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Bytes of all units, in use or not.
    pub fn bytes(&self) -> usize {
        self.tail.used() as usize * UNIT_BYTES
    }
}
