//! What writers put away for readers to let go of.

use crate::epoch::{Domain, RetiredList};
use crate::strip::Memory;
use crate::units::{UNIT_BYTES, Units};

/// Something readers may still look at.
pub enum Garbage {
    Memory(Memory),
    /// The number of a unit of memory.
    Unit(u32),
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
    pub retired: &'a mut RetiredList<Garbage>,
    pub units: &'a mut Units,
    /// Sum of the weights of what is in the limbo.
    pub waiting: &'a mut usize,
}

impl Garbage {
    /// Bytes of memory that wait with it, apart from what is counted where it was allocated.
    pub fn bytes(&self) -> usize {
        match self {
            Garbage::Memory(memory) => memory.bytes(),
            Garbage::Unit(_) | Garbage::Single(_) | Garbage::Set(_) | Garbage::Name(..) => 0,
        }
    }

    /// How much it is worth to free this soon, in bytes.
    pub fn weight(&self) -> usize {
        match self {
            Garbage::Memory(memory) => memory.bytes(),
            Garbage::Unit(_) => UNIT_BYTES,
            Garbage::Single(_) | Garbage::Set(_) | Garbage::Name(..) => 64,
        }
    }
}

impl Bin<'_> {
    pub fn retire(&mut self, garbage: Garbage) {
        *self.waiting += garbage.weight();
        self.domain.retire(self.retired, garbage);
    }

    /// Memory to which nothing in the index leads any more.
    pub fn retire_memory(&mut self, memory: Memory) {
        self.retire(Garbage::Memory(memory));
    }
}
