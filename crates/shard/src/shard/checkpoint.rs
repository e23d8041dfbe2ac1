//! Checkpoints: the state at one index, written part by part while batches are applied.

use crate::ids::{PartId, REST, fnv64};
use crate::shard::Shard;

impl Shard {
    /// Begins a checkpoint of the present state, with the parts that have changed since the last one began. Returns
    /// its index. Abandons an unfinished checkpoint.
    ///
    /// # Panics
    /// Panics while a record [is applied in part](Self::is_midway).
    pub fn begin_checkpoint(&mut self) -> u64 {
        assert!(!self.is_midway(), "a checkpoint is taken between records");
        self.parts.begin(self.applied);
        self.applied
    }

    /// Writes parts of the checkpoint in pages of at most 1 MiB, until `budget` bytes are exceeded. Returns true
    /// when all parts are written. A page without bytes deletes the page that the log holds.
    pub fn write_parts(&mut self, budget: usize, out: &mut dyn FnMut(PartId, &[u8])) -> bool {
        let mut written = 0;
        while written <= budget {
            let Some((bucket, saved)) = self.parts.next() else { return true };
            let bytes = saved.unwrap_or_else(|| self.encode_part(bucket));
            written += self.parts.write(bucket, &bytes, out);
        }
        false
    }

    /// Notes that the last checkpoint that began will never be complete: all its parts are written again with the
    /// next one.
    pub fn abandon_checkpoint(&mut self) {
        self.parts.abandon();
    }

    /// Marks the part's bucket for the next checkpoint although it has not changed, because its segment is to be
    /// freed.
    pub fn renew_part(&mut self, part: PartId) {
        self.parts.renew(part.bucket());
    }

    /// Number of different messages in the log that are needed, and their bytes.
    pub fn needed(&self) -> (u64, u64) {
        (self.bodies.count(), self.bodies.live())
    }

    /// Bytes that are needed: messages in the log, and the parts as they were last written.
    pub fn live_bytes(&self) -> u64 {
        self.bodies.live() + self.parts.stored_bytes()
    }

    /// Parts that are not empty.
    pub(super) fn buckets(&self) -> Vec<u16> {
        let mut buckets: Vec<u16> = self.sessions.buckets().chain(self.retained.buckets()).collect();
        let has_sessions = |bucket: &u16| self.sessions.has_bucket(*bucket);
        buckets.extend(self.ephemerals.buckets().filter(|bucket| !has_sessions(bucket)));
        buckets.push(REST);
        buckets
    }

    /// Returns a digest that is equal on replicas as long as their states are the same.
    pub fn digest(&self) -> u64 {
        let buckets = self.buckets();
        let mut sums = Vec::with_capacity(buckets.len() * 8);
        for bucket in buckets {
            sums.extend_from_slice(&bucket.to_le_bytes());
            sums.extend_from_slice(&fnv64(&self.encode_part(bucket)).to_le_bytes());
        }
        fnv64(&sums)
    }
}
