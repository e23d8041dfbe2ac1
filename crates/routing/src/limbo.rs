//! What writers put away for readers to let go of.

use crate::epoch::{Domain, Limbo};
use crate::strip::Memory;

/// Something readers may still look at.
pub enum Garbage {
    Memory(Memory),
    /// The number of a destination.
    Single(u32),
    /// The number of a set of destinations.
    Set(u32),
    /// Place and length of a name.
    Name(u32, usize),
}

/// Where a writer puts it. Whoever has one holds the writers' lock.
pub struct Bin<'a> {
    pub domain: &'a Domain,
    pub limbo: &'a mut Limbo<Garbage>,
}

impl Bin<'_> {
    pub fn retire(&mut self, garbage: Garbage) {
        self.domain.retire(self.limbo, garbage);
    }

    /// Memory to which nothing in the index leads any more.
    pub fn retire_memory(&mut self, memory: Memory) {
        self.retire(Garbage::Memory(memory));
    }
}
