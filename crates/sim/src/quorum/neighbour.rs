//! What else a node keeps in the log of its replica: what its clients wait for, in a group of its own. It writes while the disk is full, and waits
//! there for room; what replicas agree on must not wait behind it.

use std::sync::Arc;

use storage::fault::FaultDisk;
use storage::{GroupId, Log, Record, RecoveredGroup, Vacate};

use super::replica::{LogEventQueue, ReplicaParameters};
use crate::schedule::Micros;

pub const GROUP: GroupId = GroupId(3);

/// Of so many parts of a segment, an entry is one.
const ENTRIES_OF_A_SEGMENT: u64 = 16;

pub struct Neighbour {
    log: Log,
    entry_bytes: usize,
    /// Index of the last entry, and of the last that is durable.
    last: u64,
    durable: u64,
    /// There was no room for it.
    is_stalled: bool,
    /// All that it has is needed until then: no segment of it is given back.
    holds_until: Micros,
    vacates: Vec<Vacate>,
    /// The last checkpoint that it has asked for, and the last that is durable.
    requested_checkpoint: u64,
    checkpoint: u64,
}

/// Writes the end of a log that nobody has open: two commits of one entry each, of which the last may be cut as torn.
pub fn write_log_end(disk: &FaultDisk, parameters: &ReplicaParameters) {
    disk.set_capacity(None);
    let options = parameters.options([1; 48]);
    let opened =
        storage::open(Arc::new(disk.clone()), options, Box::new(LogEventQueue::default()), &mut |_| {});
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
    /// Goes on where the log ends.
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

    /// Gives nothing back until then.
    pub fn holds(&mut self, until: Micros) {
        self.holds_until = until;
    }

    /// Its last entry waits for room.
    pub fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    /// The log has found no room for what comes first.
    pub fn finds_no_room(&mut self) {
        self.is_stalled = self.waits();
    }

    fn waits(&self) -> bool {
        self.durable < self.last
    }

    /// One more entry, if the one before is durable.
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
        self.vacates.push(vacate);
    }

    pub fn checkpoint_durable(&mut self, index: u64) {
        self.checkpoint = index;
    }

    /// Gives back the segments that it is asked for, when it needs nothing of them any more and a checkpoint says so.
    pub fn tidy(&mut self, now: Micros) {
        if now < self.holds_until {
            return;
        }
        for vacate in self.vacates.extract_if(.., |vacate| vacate.last <= self.checkpoint) {
            self.log.vacated(GROUP, vacate.segment).expect("the checkpoint stands for all of it");
        }
        let wanted_voters = self.vacates.iter().map(|vacate| vacate.last).max().unwrap_or(0);
        if wanted_voters > self.requested_checkpoint && wanted_voters <= self.durable {
            self.requested_checkpoint = self.durable;
            self.log.append([Record::Done { group: GROUP, checkpoint: self.requested_checkpoint }]);
        }
    }
}
