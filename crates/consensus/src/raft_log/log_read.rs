//! Reads of entries and of parts of a snapshot that are not in memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use storage::{GroupId, Log};
use tokio::sync::oneshot;

use crate::raft_types::{Entry, LogId};
use crate::wire::{decode_entry, log_id};

/// Request to read data of a replica from the node's log. [`Self::run`] waits for the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRead {
    number: u64,
    group: GroupId,
    wanted: Wanted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Wanted {
    /// Entries with these indexes in the log.
    Entries {
        first: u64,
        last: u64,
        bytes_max: usize,
    },
    Part {
        part: u32,
        of: PartOf,
    },
}

/// Checkpoint of a part, by its index in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartOf {
    /// The last checkpoint that is complete.
    Checkpoint(u64),
    /// A checkpoint that is being written.
    Pending(u64),
}

/// Result of an [`LogRead`], for [`Replica::handle_read`](crate::Replica::handle_read).
#[derive(Debug)]
pub struct LogReadResult {
    pub(super) number: u64,
    pub(super) found: Result<Found, String>,
}

#[derive(Debug)]
pub(super) enum Found {
    /// Entries, each with the id of the entry before it.
    Entries(Vec<(Option<LogId>, Entry)>),
    /// A part; `None` if the log does not have it, or not yet at its new location.
    Part(Option<Arc<[u8]>>),
}

impl LogRead {
    /// Reads the data. Blocks for the disk.
    #[must_use]
    pub fn run(self, log: &Log) -> LogReadResult {
        let Self { number, group, wanted } = self;
        let found = match wanted {
            Wanted::Entries { first, last, bytes_max } => read_entries(log, group, (first, last), bytes_max),
            Wanted::Part { part, of } => match read_part(log, group, part, of) {
                Ok(part) => Ok(Found::Part(Some(part))),
                Err(storage::Error::NotFound { .. }) => Ok(Found::Part(None)),
                Err(error) => Err(error.to_string()),
            },
        };
        LogReadResult { number, found }
    }

    /// Ends the request like [`Self::run`] on a disk that fails to read: for the simulator.
    #[must_use]
    pub fn fail(self, why: &str) -> LogReadResult {
        LogReadResult { number: self.number, found: Err(why.to_owned()) }
    }
}

fn read_part(log: &Log, group: GroupId, part: u32, of: PartOf) -> Result<Arc<[u8]>, storage::Error> {
    match of {
        PartOf::Checkpoint(checkpoint) => log.read_part(group, part, checkpoint),
        PartOf::Pending(checkpoint) => log.read_pending_part(group, part, checkpoint),
    }
}

fn read_entries(
    log: &Log,
    group: GroupId,
    (first, last): (u64, u64),
    bytes_max: usize,
) -> Result<Found, String> {
    let entries = log.read_range(group, first, last, bytes_max).map_err(|error| error.to_string())?;
    let decode = |entry: storage::RecoveredEntry| {
        let decoded = decode_entry(log_id(entry.term, entry.index - 1), &entry.payload);
        decoded.ok_or_else(|| format!("entry {} of a replica cannot be read", entry.index))
    };
    entries.into_iter().map(decode).collect::<Result<_, _>>().map(Found::Entries)
}

/// Reads that nobody has taken yet, and those in progress.
#[derive(Default)]
pub(super) struct LogReads {
    count: u64,
    queue: VecDeque<LogRead>,
    waiting: BTreeMap<u64, Waiting>,
}

/// Task that waits for a read.
pub(super) enum Waiting {
    Entries {
        /// Receives the entries, or `None` if they have to be read again.
        reader: oneshot::Sender<Option<Vec<Entry>>>,
        /// Index of the first entry.
        first: u64,
        /// Number of truncations of the log before the read.
        truncations: u64,
    },
    Part(oneshot::Sender<Option<Arc<[u8]>>>),
}

impl Waiting {
    fn is_closed(&self) -> bool {
        match self {
            Self::Entries { reader, .. } => reader.is_closed(),
            Self::Part(reader) => reader.is_closed(),
        }
    }
}

impl LogReads {
    /// Adds a read of entries with these indexes in the log.
    pub fn add_entries(
        &mut self,
        group: GroupId,
        (first, last): (u64, u64),
        bytes_max: usize,
        waiting: Waiting,
    ) {
        self.add(group, Wanted::Entries { first, last, bytes_max }, waiting);
    }

    /// Adds a read of a part of a checkpoint.
    pub fn add_part(&mut self, group: GroupId, part: u32, of: PartOf, waiting: Waiting) {
        self.add(group, Wanted::Part { part, of }, waiting);
    }

    fn add(&mut self, group: GroupId, wanted: Wanted, waiting: Waiting) {
        self.count += 1;
        self.queue.push_back(LogRead { number: self.count, group, wanted });
        self.waiting.insert(self.count, waiting);
    }

    /// Takes the next read that still has a reader.
    pub fn poll(&mut self) -> Option<LogRead> {
        loop {
            let read = self.queue.pop_front()?;
            if self.waiting.get(&read.number).is_some_and(|waiting| !waiting.is_closed()) {
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
