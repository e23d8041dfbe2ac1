//! Objects that writers have removed and that readers may still hold.

use crate::epoch::{Domain, RetiredList};
use crate::strip::Memory;
use crate::units::{UNIT_BYTES, Units};

/// A removed object that readers may still look at.
pub enum Garbage {
    Memory(Memory),
    /// Number of a unit of memory.
    Unit(u32),
    /// Number of a destination.
    Single(u32),
    /// Number of a set of destinations.
    Set(u32),
    /// Offset and length of a name.
    Name(u32, usize),
}

/// Access of a writer to the retired list. Its holder holds the writers' lock.
pub struct Bin<'a> {
    pub domain: &'a Domain,
    pub retired: &'a mut RetiredList<Garbage>,
    pub units: &'a mut Units,
    /// Sum of the weights of the objects in the retired list.
    pub waiting: &'a mut usize,
}

impl Garbage {
    /// Bytes of memory that wait with the object, apart from those that are counted where they were allocated.
    pub fn bytes(&self) -> usize {
        match self {
            Garbage::Memory(memory) => memory.bytes(),
            Garbage::Unit(_) | Garbage::Single(_) | Garbage::Set(_) | Garbage::Name(..) => 0,
        }
    }

    /// Weight of the object in bytes: the higher, the sooner it should be freed.
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

    /// Retires memory that nothing in the index refers to any more.
    pub fn retire_memory(&mut self, memory: Memory) {
        self.retire(Garbage::Memory(memory));
    }
}
