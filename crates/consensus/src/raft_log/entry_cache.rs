//! Newest entries of a replica, in memory.

use std::collections::VecDeque;
use std::ops::Range;

use crate::raft_types::Entry;
use crate::wire::command_bytes;

/// Consecutive entries at the end of a log. The owner removes the oldest ones when they are too large together.
pub(super) struct EntryCache {
    entries: VecDeque<Entry>,
    /// Index after the last entry.
    next: u64,
    bytes: usize,
    bytes_max: usize,
}

/// Size of an entry in memory. Members of a group are not counted: they are few.
pub(super) fn entry_bytes(entry: &Entry) -> usize {
    size_of::<Entry>() + command_bytes(&entry.payload)
}

impl EntryCache {
    /// Makes an empty cache, whose next entry has this index.
    pub fn new(next: u64, bytes_max: usize) -> Self {
        Self { entries: VecDeque::new(), next, bytes: 0, bytes_max }
    }

    /// Index of the first entry here. Equal to the index of the next entry when there is none.
    pub fn first(&self) -> u64 {
        self.next - self.entries.len() as u64
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn push(&mut self, entry: Entry) {
        debug_assert_eq!(entry.log_id.index, self.next);
        self.bytes += entry_bytes(&entry);
        self.next = entry.log_id.index + 1;
        self.entries.push_back(entry);
    }

    /// Entries of a range, up to `payload_max` bytes of payloads, but at least one.
    pub fn range(&self, range: Range<u64>, payload_max: usize) -> impl Iterator<Item = &Entry> {
        let at = |index: u64| index.clamp(self.first(), self.next) - self.first();
        let begin = at(range.start) as usize;
        let end = (at(range.end) as usize).max(begin);
        let mut bytes = 0;
        self.entries.range(begin..end).take_while(move |entry| {
            let before = bytes;
            bytes += command_bytes(&entry.payload);
            before < payload_max
        })
    }

    /// Removes the entries from `next` on.
    pub fn truncate(&mut self, next: u64) {
        while self.next > next {
            if let Some(entry) = self.entries.pop_back() {
                self.bytes -= entry_bytes(&entry);
                self.next -= 1;
            } else {
                self.next = next;
            }
        }
    }

    /// Removes the entries before `first`.
    pub fn purge(&mut self, first: u64) {
        while self.first() < first && self.pop_front() {}
        self.next = self.next.max(first);
    }

    /// Removes the oldest entries until the rest is small enough. Keeps entries from `end` on.
    pub fn evict(&mut self, end: u64) {
        while self.bytes > self.bytes_max && self.first() < end && self.pop_front() {}
    }

    fn pop_front(&mut self) -> bool {
        let Some(entry) = self.entries.pop_front() else { return false };
        self.bytes -= entry_bytes(&entry);
        true
    }
}
