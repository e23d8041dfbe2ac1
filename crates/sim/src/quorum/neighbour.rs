//! Other user of a replica's log, in a group of its own, like the clients' queues of a node. It writes while the disk
//! is full, and waits for room. The replica's records must not wait behind it.

use std::sync::Arc;

use storage::fault::FaultDisk;
use storage::{GroupId, Log, Record, RecoveredGroup, SegmentId, Vacate};

use super::replica::{LogEventQueue, ReplicaParameters};
use crate::schedule::Micros;

pub const GROUP: GroupId = GroupId(3);

/// Fraction of a segment that an entry takes.
const ENTRIES_OF_A_SEGMENT: u64 = 16;

pub struct Neighbour {
    log: Log,
    entry_bytes: usize,
    /// Index of the last entry, and of the last durable one.
    last: u64,
    durable: u64,
    /// True if the last entry found no room.
    is_stalled: bool,
    /// Time until which it needs all its segments and frees none.
    holds_until: Micros,
    /// Segments to be freed, each with the last index of the entries in it.
    vacates: Vec<(SegmentId, u64)>,
    /// Last checkpoint that was requested, and the last durable one.
    requested_checkpoint: u64,
    checkpoint: u64,
}

/// Appends two commits of one entry each to a closed log. Only the last one may be cut as torn.
pub fn write_log_end(disk: &FaultDisk, parameters: &ReplicaParameters) {
    disk.set_capacity(None);
    let options = parameters.options([1; 48]);
    let opened =
        storage::open(Arc::new(disk.clone()), options, LogEventQueue::default().listener(), &mut |_| {});
    let storage::Opened { log, mut writer, mut keeper, recovery } = opened.expect("it was opened before");
    let mut neighbour = Neighbour::new(log, parameters.segment_bytes, &recovery.groups);
    for _ in 0..2 {
        neighbour.writes();
        while !matches!(writer.commit_once(), Ok(storage::Commit::Idle)) {
            keeper.keep();
        }
        neighbour.durable(neighbour.last);
    }
}

impl Neighbour {
    /// Continues from the end of the log.
    pub fn new(log: Log, segment_bytes: u64, recovered: &[RecoveredGroup]) -> Self {
        let found = recovered.iter().find(|group| group.group == GROUP);
        if found.is_some() {
            log.report_live(GROUP, 0);
        }
        let last = found.map_or(0, |group| group.last);
        let checkpoint = found.and_then(|group| group.checkpoint).unwrap_or(0);
        Self {
            log,
            entry_bytes: (segment_bytes / ENTRIES_OF_A_SEGMENT) as usize,
            last,
            durable: last,
            is_stalled: false,
            holds_until: 0,
            vacates: Vec::new(),
            requested_checkpoint: checkpoint,
            checkpoint,
        }
    }

    /// Frees no segment until a time.
    pub fn holds(&mut self, until: Micros) {
        self.holds_until = until;
    }

    /// Returns whether its last entry waits for room.
    pub fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    /// Records that the first queued record found no room.
    pub fn finds_no_room(&mut self) {
        self.is_stalled = self.waits();
    }

    fn waits(&self) -> bool {
        self.durable < self.last
    }

    /// Writes an entry, if the one before is durable.
    pub fn writes(&mut self) {
        if self.waits() {
            return;
        }
        self.last += 1;
        let payload = Arc::new(vec![self.last as u8; self.entry_bytes]);
        self.log.append([Record::Entry { group: GROUP, term: 1, index: self.last, payload }]);
    }

    pub fn durable(&mut self, index: u64) {
        (self.durable, self.is_stalled) = (index, false);
    }

    pub fn vacate(&mut self, vacate: Vacate) {
        let last = vacate.entries.map_or(0, |(_, last)| last);
        self.vacates.push((vacate.segment, last));
    }

    pub fn checkpoint_durable(&mut self, index: u64) {
        self.checkpoint = index;
    }

    /// Frees the requested segments that it no longer needs and that a checkpoint covers.
    pub fn tidy(&mut self, now: Micros) {
        if now < self.holds_until {
            return;
        }
        for (segment, _) in self.vacates.extract_if(.., |(_, last)| *last <= self.checkpoint) {
            self.log.vacated(GROUP, segment).expect("the checkpoint covers the segment");
        }
        let wanted_voters = self.vacates.iter().map(|(_, last)| *last).max().unwrap_or(0);
        if wanted_voters > self.requested_checkpoint && wanted_voters <= self.durable {
            self.requested_checkpoint = self.durable;
            self.log.append([Record::Done { group: GROUP, checkpoint: self.requested_checkpoint }]);
        }
    }
}
