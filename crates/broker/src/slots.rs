//! A slab with generations, in chunks: growth never moves its values.

/// Values by (slot, generation). A slot's generation grows when its value is removed, so a previous id finds nothing.
#[derive(Debug)]
pub struct Slots<T> {
    chunks: Vec<Box<[Slot<T>]>>,
    free: Vec<u32>,
    len: usize,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

const CHUNK: usize = 256;

const _: () =
    assert!(size_of::<Slot<crate::connection::Connection>>() <= 184, "there is one for each connection");

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), free: Vec::new(), len: 0 }
    }
}

impl<T> Slots<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    /// One more than the highest slot that may be in use.
    pub fn slots(&self) -> u32 {
        (self.chunks.len() * CHUNK) as u32
    }

    /// The slot and generation that the next [`Self::insert`] will return.
    pub fn vacant(&mut self) -> (u32, u32) {
        if self.free.is_empty() {
            let first = self.chunks.len() * CHUNK;
            self.chunks.push((0..CHUNK).map(|_| Slot { generation: 0, value: None }).collect());
            self.free.extend((first..first + CHUNK).rev().map(|slot| slot as u32));
        }
        let slot = self.free.last().copied().unwrap_or_default();
        (slot, self.slot(slot).map_or(0, |found| found.generation))
    }

    pub fn insert(&mut self, value: T) -> (u32, u32) {
        let (slot, generation) = self.vacant();
        self.free.pop();
        self.len += 1;
        self.chunks[slot as usize / CHUNK][slot as usize % CHUNK].value = Some(value);
        (slot, generation)
    }

    pub fn get(&self, slot: u32, generation: u32) -> Option<&T> {
        self.slot(slot).filter(|found| found.generation == generation)?.value.as_ref()
    }

    pub fn get_mut(&mut self, slot: u32, generation: u32) -> Option<&mut T> {
        let found = self.chunks.get_mut(slot as usize / CHUNK)?.get_mut(slot as usize % CHUNK)?;
        if found.generation == generation { found.value.as_mut() } else { None }
    }

    /// Current occupant of the slot.
    pub fn occupant(&mut self, slot: u32) -> Option<&mut T> {
        self.chunks.get_mut(slot as usize / CHUNK)?.get_mut(slot as usize % CHUNK)?.value.as_mut()
    }

    pub fn occupant_ref(&self, slot: u32) -> Option<&T> {
        self.slot(slot)?.value.as_ref()
    }

    pub fn remove(&mut self, slot: u32, generation: u32) -> Option<T> {
        let found = self.chunks.get_mut(slot as usize / CHUNK)?.get_mut(slot as usize % CHUNK)?;
        if found.generation != generation {
            return None;
        }
        let value = found.value.take()?;
        found.generation = found.generation.wrapping_add(1);
        self.free.push(slot);
        self.len -= 1;
        Some(value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, u32, &T)> {
        let slots = self.chunks.iter().flat_map(|chunk| chunk.iter());
        slots.zip(0..).filter_map(|(slot, at)| Some((at, slot.generation, slot.value.as_ref()?)))
    }

    fn slot(&self, slot: u32) -> Option<&Slot<T>> {
        self.chunks.get(slot as usize / CHUNK)?.get(slot as usize % CHUNK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_a_previous_occupant_finds_nothing() {
        let mut slots = Slots::default();
        let (slot, first) = slots.insert("a");
        assert_eq!(slots.remove(slot, first), Some("a"));
        let (again, second) = slots.insert("b");
        assert_eq!(slot, again);
        assert_ne!(first, second);
        assert_eq!(slots.get(slot, first), None);
        assert_eq!(slots.remove(slot, first), None);
        assert_eq!(slots.get(slot, second), Some(&"b"));
        assert_eq!(slots.len(), 1);
    }

    #[test]
    fn it_grows_past_a_chunk() {
        let mut slots = Slots::default();
        let names: Vec<_> = (0..3 * CHUNK).map(|value| slots.insert(value)).collect();
        for (value, (slot, generation)) in names.into_iter().enumerate() {
            assert_eq!(slots.get(slot, generation), Some(&value));
        }
        assert_eq!(slots.iter().count(), 3 * CHUNK);
    }
}
