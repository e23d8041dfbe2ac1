//! Figures of a running log.

use std::time::Duration;

use crate::error::Shortage;
use crate::histogram::Histogram;
use crate::id::GroupId;

/// Figures that [`Log::stats`](crate::Log::stats) returns. Counters begin at 0 when the log is opened.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Number of segments that hold records, the open one included.
    pub segments: usize,
    /// Bytes of their files.
    pub bytes: u64,
    /// Live bytes that groups reported, and bytes of the parts of their checkpoints.
    pub live_bytes: u64,
    /// Number of empty segments that are ready.
    pub spares: usize,
    /// Number of segments that are being freed.
    pub vacating: usize,
    /// Number of segments that were freed.
    pub freed: u64,
    /// Records that are appended and not yet durable.
    pub queue_records: u64,
    pub queue_bytes: u64,
    pub commits: u64,
    /// Number of records made durable.
    pub records: u64,
    /// Bytes written into segments: records, headers and indexes.
    pub bytes_written: u64,
    /// Bytes of records that were parts of checkpoints, moved ones included.
    pub checkpoint_bytes: u64,
    /// Number of parts that were moved out of segments to be freed.
    pub parts_moved: u64,
    /// Bytes of the records of moved parts and bodies.
    pub moved_bytes: u64,
    /// Durations of the sync of each commit.
    pub sync: Histogram,
    /// Durations of each commit: encoding, writing, syncing.
    pub commit: Histogram,
    /// Shortage that prevents another spare segment.
    pub full: Option<Shortage>,
    /// Number of times that such a shortage began.
    pub full_count: u64,
    /// Reason why the log stopped, if it did.
    pub failed: Option<String>,
    /// Damage that was found since the start. The log continues; damaged records cannot be read.
    pub damage: Option<String>,
    pub groups: Vec<GroupStats>,
}

/// Figures of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStats {
    pub group: GroupId,
    /// Number of entries whose bodies are in the log.
    pub entries: u64,
    /// Number of entries whose needed bodies are kept.
    pub bodies: u64,
    /// Index of the last entry.
    pub last: u64,
    pub checkpoint: Option<u64>,
    /// Number of parts of its checkpoint.
    pub parts: u32,
    pub part_bytes: u64,
    /// Live bytes that the group reported.
    pub live_bytes: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub commits: u64,
    pub records: u64,
    pub bytes_written: u64,
    pub checkpoint_bytes: u64,
    pub parts_moved: u64,
    pub moved_bytes: u64,
    pub freed: u64,
    pub full_count: u64,
    pub sync: Histogram,
    pub commit: Histogram,
    pub failed: Option<String>,
}

impl Counters {
    pub fn synced(&mut self, took: Duration) {
        self.sync.record(took);
    }
}

/// Figures of [`Stats`] that are cheap enough to be read often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub checkpoint_bytes: u64,
    pub freed: u64,
}
