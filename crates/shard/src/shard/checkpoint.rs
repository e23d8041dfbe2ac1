//! Checkpoints: the state as it is at one index, written part by part while batches go on.

use crate::ids::{PartId, REST, fnv64};
use crate::shard::Shard;

impl Shard {
    /// Begins a checkpoint of the present state, of the parts that have changed since the last one began. Returns the index
    /// that it stands for. One that is under way is abandoned.
    ///
    /// # Panics
    /// While a record [is applied in part](Self::is_midway).
    pub fn begin_checkpoint(&mut self) -> u64 {
        assert!(!self.is_midway(), "a checkpoint stands for whole records");
        self.parts.begin(self.applied);
        self.applied
    }

    /// Hands out parts of the checkpoint, pages of at most 1 MiB, until they are all out, which is then said by `true`, or
    /// `budget` bytes are exceeded. A page without bytes deletes what the log holds of it.
    pub fn write_parts(&mut self, budget: usize, out: &mut dyn FnMut(PartId, &[u8])) -> bool {
        let mut written = 0;
        while written <= budget {
            let Some((bucket, saved)) = self.parts.next() else { return true };
            let bytes = saved.unwrap_or_else(|| self.encode_part(bucket));
            written += self.parts.write(bucket, &bytes, out);
        }
        false
    }

    /// The last checkpoint that began will never be complete: all its parts are written again with the next one.
    pub fn abandon_checkpoint(&mut self) {
        self.parts.abandon();
    }

    /// The part's bucket is written with the next checkpoint although it has not changed: where it stands is to be freed.
    pub fn renew_part(&mut self, part: PartId) {
        self.parts.renew(part.bucket());
    }

    /// Bytes that are needed: messages in the log, and the parts as they were last written.
    pub fn live_bytes(&self) -> u64 {
        self.bodies.live() + self.parts.stored_bytes()
    }

    /// A number that replicas have in common as long as their states are the same.
    pub fn digest(&self) -> u64 {
        let mut buckets: Vec<u16> = self.sessions.buckets().chain(self.retained.buckets()).collect();
        buckets.push(REST);
        let mut sums = Vec::with_capacity(buckets.len() * 8);
        for bucket in buckets {
            sums.extend_from_slice(&bucket.to_le_bytes());
            sums.extend_from_slice(&fnv64(&self.encode_part(bucket)).to_le_bytes());
        }
        fnv64(&sums)
    }
}
