//! Figures of a running log.

use std::time::Duration;

use crate::error::Shortage;
use crate::histogram::Histogram;
use crate::id::GroupId;

/// What [`Log::stats`](crate::Log::stats) tells. Counters begin at 0 when the log is opened.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Segments that hold records, the open one among them.
    pub segments: usize,
    /// Size of their files.
    pub bytes: u64,
    /// What groups reported as live, and the parts of their checkpoints.
    pub live_bytes: u64,
    /// Empty segments kept ready.
    pub spares: usize,
    /// Segments that are being freed.
    pub vacating: usize,
    /// Segments that were freed.
    pub freed: u64,
    /// Appended and not yet durable.
    pub queue_records: u64,
    pub queue_bytes: u64,
    pub commits: u64,
    /// Records made durable.
    pub records: u64,
    /// Bytes written into segments: records, headers and indexes.
    pub bytes_written: u64,
    /// Bytes of records that were parts of checkpoints, moved ones among them.
    pub checkpoint_bytes: u64,
    /// Parts that were moved out of segments to be freed.
    pub parts_moved: u64,
    /// Bytes of their records.
    pub moved_bytes: u64,
    /// How long each sync of a commit took.
    pub sync: Histogram,
    /// How long each commit took: encoding, writing, syncing.
    pub commit: Histogram,
    /// What there is none of, so that there cannot be another spare.
    pub full: Option<Shortage>,
    /// Times that it became so.
    pub full_count: u64,
    /// Why the log stopped, if it did.
    pub failed: Option<String>,
    /// Damage that was found while running; the log goes on, what is damaged cannot be read.
    pub damage: Option<String>,
    pub groups: Vec<GroupStats>,
}

/// Figures of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStats {
    pub group: GroupId,
    /// Entries whose bodies are in the log.
    pub entries: u64,
    /// The last one.
    pub last: u64,
    pub checkpoint: Option<u64>,
    /// Parts of its checkpoint.
    pub parts: u32,
    pub part_bytes: u64,
    /// As the group reported.
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

/// What somebody may ask for often: the same as in [`Stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub checkpoint_bytes: u64,
    pub freed: u64,
}
