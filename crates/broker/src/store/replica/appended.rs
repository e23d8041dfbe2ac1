//! Batches of a node alone that its log has, until they are applied.

use std::collections::VecDeque;

use super::Batch;

/// Batches in the order of their indexes.
#[derive(Default)]
pub(super) struct Appended {
    batches: VecDeque<Batch>,
    /// Index of the last batch that the log got.
    last_index: u64,
    /// Index up to which batches may be applied.
    pub durable: u64,
}

impl Appended {
    /// Begins after a state that has applied `index`.
    pub fn starting_after(index: u64) -> Self {
        Self { batches: VecDeque::new(), last_index: index, durable: index }
    }

    /// Index of the next batch.
    pub fn next_index(&self) -> u64 {
        self.last_index + 1
    }

    pub fn push(&mut self, batch: Batch) {
        self.last_index = batch.index;
        self.batches.push_back(batch);
    }

    /// The oldest batch, if it is durable.
    #[inline]
    pub fn durable(&self) -> Option<&Batch> {
        self.batches.front().filter(|batch| batch.index <= self.durable)
    }

    #[inline]
    pub fn has_durable(&self) -> bool {
        self.durable().is_some()
    }

    #[inline]
    pub fn pop(&mut self) -> Option<Batch> {
        self.batches.pop_front()
    }

    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }
}
