//! Reads of entries that are no longer in memory.

use std::collections::{BTreeMap, VecDeque};

use storage::{GroupId, Log};
use tokio::sync::oneshot;

use crate::raft_types::{Entry, LogId};
use crate::wire::{decode_entry, log_id};

/// Request to read entries of a replica from the node's log. [`Self::run`] waits for the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRead {
    number: u64,
    group: GroupId,
    /// Indexes of the first and the last entry in the log.
    first: u64,
    last: u64,
    bytes_max: usize,
}

/// Result of an [`EntryRead`], for [`Replica::entries_read`](crate::Replica::entries_read).
#[derive(Debug)]
pub struct EntryReadResult {
    pub(super) number: u64,
    /// Entries, each with the id of the entry before it.
    pub(super) entries: Result<Vec<(Option<LogId>, Entry)>, String>,
}

impl EntryRead {
    /// Reads the entries. Blocks for the disk.
    #[must_use]
    pub fn run(self, log: &Log) -> EntryReadResult {
        let Self { number, group, first, last, bytes_max } = self;
        let read = log.read_range(group, first, last, bytes_max).map_err(|error| error.to_string());
        let entries = read.and_then(|entries| {
            let decode = |entry: storage::RecoveredEntry| {
                let decoded = decode_entry(log_id(entry.term, entry.index - 1), &entry.payload);
                decoded.ok_or_else(|| format!("entry {} of a replica cannot be read", entry.index))
            };
            entries.into_iter().map(decode).collect()
        });
        EntryReadResult { number, entries }
    }

    /// Ends the request like [`Self::run`] on a disk that fails to read: for the simulator.
    #[must_use]
    pub fn fail(self, why: &str) -> EntryReadResult {
        EntryReadResult { number: self.number, entries: Err(why.to_owned()) }
    }
}

/// Sends the entries to the task that waits for them, or `None` if they have to be read again.
pub(super) type Reader = oneshot::Sender<Option<Vec<Entry>>>;

/// Reads that nobody has taken yet, and those in progress.
#[derive(Default)]
pub(super) struct EntryReads {
    count: u64,
    queue: VecDeque<EntryRead>,
    waiting: BTreeMap<u64, Waiting>,
}

pub(super) struct Waiting {
    pub reader: Reader,
    /// Index of the first entry.
    pub first: u64,
    /// Number of truncations of the log before the read.
    pub truncations: u64,
}

impl EntryReads {
    /// Adds a read of entries with these indexes in the log.
    pub fn add(&mut self, group: GroupId, (first, last): (u64, u64), bytes_max: usize, waiting: Waiting) {
        self.count += 1;
        self.queue.push_back(EntryRead { number: self.count, group, first, last, bytes_max });
        self.waiting.insert(self.count, waiting);
    }

    /// Takes the next read that still has a reader.
    pub fn poll(&mut self) -> Option<EntryRead> {
        loop {
            let read = self.queue.pop_front()?;
            if self.waiting.get(&read.number).is_some_and(|waiting| !waiting.reader.is_closed()) {
                return Some(read);
            }
            self.waiting.remove(&read.number);
        }
    }

    pub fn finish(&mut self, number: u64) -> Option<Waiting> {
        self.waiting.remove(&number)
    }

    /// Drops all reads: their readers see an error.
    pub fn clear(&mut self) {
        self.queue.clear();
        self.waiting.clear();
    }
}
