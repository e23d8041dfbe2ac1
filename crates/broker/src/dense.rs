//! A dense vector in chunks: growth never moves its values.

use std::ops::{Index, IndexMut};

/// Values at indexes `0..len`. The last one moves to the index of one that is removed.
#[derive(Debug)]
pub(crate) struct Dense<T> {
    /// All chunks but the last ones are full. One unused chunk is kept, so that clients that connect and disconnect one
    /// at a time cause no allocation.
    chunks: Vec<Vec<T>>,
    len: usize,
}

/// Values per chunk. It is small because every shard has a partly unused chunk.
const CHUNK: usize = 64;

impl<T> Default for Dense<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<T> Dense<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Appends a value and returns its index.
    pub fn push(&mut self, value: T) -> u32 {
        let index = self.len;
        if index == self.chunks.len() * CHUNK {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        self.chunks[index / CHUNK].push(value);
        self.len += 1;
        index as u32
    }

    /// Removes the value at `index`, to which the last one moves.
    ///
    /// # Panics
    /// If there is no value at `index`.
    pub fn swap_remove(&mut self, index: u32) -> T {
        self.len = self.len.checked_sub(1).expect("there is a value at the index");
        let last = self.chunks[self.len / CHUNK].pop().expect("all chunks are full but the last ones");
        if self.chunks.len() * CHUNK > self.len + 2 * CHUNK {
            self.chunks.pop();
        }
        if index as usize == self.len { last } else { std::mem::replace(&mut self[index], last) }
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.chunks.iter_mut().flatten()
    }
}

impl<T> Index<u32> for Dense<T> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        &self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }
}

impl<T> IndexMut<u32> for Dense<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_moves_to_the_index_of_a_removed_one() {
        let mut dense = Dense::default();
        for value in 0..2 * CHUNK + 1 {
            assert_eq!(dense.push(value), value as u32);
        }
        assert_eq!(dense.swap_remove(3), 3);
        assert_eq!((dense[3], dense.len()), (2 * CHUNK, 2 * CHUNK));
        assert_eq!(dense.swap_remove(2 * CHUNK as u32 - 1), 2 * CHUNK - 1);
        while dense.len() > 0 {
            dense.swap_remove(0);
        }
        assert_eq!(dense.chunks.len(), 2, "the memory of the others is freed");
        assert_eq!(dense.push(7), 0);
        assert_eq!(dense.chunks.len(), 2);
        assert_eq!(dense.iter().copied().collect::<Vec<_>>(), [7]);
    }
}
