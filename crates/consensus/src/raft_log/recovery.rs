//! Recovery of a replica from the groups of the log.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use storage::{Log, RecoveredGroup};

use super::checkpoint::Checkpoint;
use super::entry_cache::EntryCache;
use super::held_writes::HeldWrites;
use super::log_read::LogReads;
use super::snapshot_data::StoredSnapshot;
use super::terms::Terms;
use super::transfers::Transfers;
use super::{RaftLog, ReadCounters, StorageGroups, Store, Unreadable, Votes, in_log};
use crate::machine::{Restore, SnapshotError};
use crate::manifest::{Manifest, PartInfo};
use crate::raft_types::Payload;
use crate::wire::{HardState, decode_entry, decode_meta, log_id};

/// Reason why a replica cannot be recovered.
#[derive(Debug)]
pub(crate) enum NotRecovered {
    Unreadable(Unreadable),
    UnsupportedVersion,
}

impl<E: Into<Unreadable>> From<E> for NotRecovered {
    fn from(error: E) -> Self {
        Self::Unreadable(error.into())
    }
}

impl Store {
    /// Reads the data of a replica, and passes the parts of its snapshot on. Without the groups, the replica is empty.
    ///
    /// # Errors
    /// The data is damaged, or of a later version. The replica must not vote.
    pub fn recover(
        log: Log,
        storage_groups: StorageGroups,
        recovered: &[RecoveredGroup],
        cache_bytes: usize,
        machine: &mut dyn Restore,
    ) -> Result<Self, NotRecovered> {
        let find = |group| recovered.iter().find(|found| found.group == group);
        let mut raft_log = RaftLog {
            log,
            storage_groups,
            cache: EntryCache::new(0, cache_bytes),
            terms: Terms::default(),
            purged: None,
            reads: LogReads::default(),
            is_starting: true,
            truncations: 0,
            counters: ReadCounters::default(),
            hard: HardState::default(),
            votes: Votes::default(),
            written: 0,
            durable: 0,
            flushes: VecDeque::new(),
            flush_waiters: Vec::new(),
            deferred: VecDeque::new(),
            checkpoint: Checkpoint::new(),
            snapshot: None,
            transfers: Transfers::default(),
            vacates: Vec::new(),
            keeps_bodies: false,
            save_committed_after: 0,
            saved_committed: None,
            held: HeldWrites::default(),
            unasked: VecDeque::new(),
            failed: None,
        };
        if let Some(found) = find(storage_groups.votes) {
            raft_log.recover_votes(found)?;
        }
        if let Some(found) = find(storage_groups.entries) {
            raft_log.recover_entries(found, machine)?;
        }
        // The committed entry may be one that did not become durable here: other replicas have it.
        raft_log.hard.committed = raft_log.hard.committed.min(raft_log.last());
        for group in [storage_groups.entries, storage_groups.votes] {
            // A checkpoint covers all entries, so none has to be rewritten.
            raft_log.log.report_live(group, 0);
        }
        Ok(Self(Arc::new(Mutex::new(raft_log))))
    }
}

impl RaftLog {
    fn recover_votes(&mut self, found: &RecoveredGroup) -> Result<(), Unreadable> {
        let unreadable = || Unreadable("the vote of a replica cannot be read".into());
        for part in found.parts() {
            self.hard = HardState::decode(&part?.1).ok_or_else(unreadable)?;
        }
        for entry in found.entries() {
            self.hard = HardState::decode(&entry?.payload).ok_or_else(unreadable)?;
        }
        if !found.lost.is_empty() {
            return Err(Unreadable(
                "votes of a replica are lost: it must come back as another replica".into(),
            ));
        }
        self.saved_committed = self.hard.committed.map(|last| last.index);
        self.votes.written = found.last;
        self.votes.durable = found.last;
        Ok(())
    }

    fn recover_entries(
        &mut self,
        found: &RecoveredGroup,
        machine: &mut dyn Restore,
    ) -> Result<(), NotRecovered> {
        if !found.lost.is_empty() {
            return Err(NotRecovered::Unreadable(Unreadable(
                "entries of a replica are lost: it must come back as another replica".into(),
            )));
        }
        // A checkpoint at 0 ends parts of a snapshot that was never complete.
        if let Some(checkpoint) = found.checkpoint.filter(|checkpoint| *checkpoint > 0) {
            self.recover_snapshot(found, checkpoint, machine)?;
        }
        self.written = found.last;
        let mut last_membership = None;
        for entry in found.entries() {
            let entry = entry?;
            let log_id = log_id(entry.term, entry.index - 1);
            let (previous, entry) = decode_entry(log_id, &entry.payload)
                .ok_or_else(|| Unreadable(format!("entry {} of a replica cannot be read", entry.index)))?;
            if previous != self.last() {
                // These entries are older than the snapshot, whose leader had other entries before it.
                break;
            }
            if matches!(entry.payload, Payload::Membership(_)) {
                // A leader proposes a membership when the one before is committed.
                self.hard.committed = self.hard.committed.max(last_membership);
                last_membership = Some(entry.log_id);
            }
            self.durable = in_log(&entry.log_id);
            self.add(entry);
            self.evict();
        }
        Ok(())
    }

    /// Passes the parts of the snapshot to the state machine, one at a time.
    fn recover_snapshot(
        &mut self,
        found: &RecoveredGroup,
        checkpoint: u64,
        machine: &mut dyn Restore,
    ) -> Result<(), NotRecovered> {
        let unreadable = || Unreadable("the snapshot of a replica cannot be read".into());
        let of_machine = |error: SnapshotError| match error {
            SnapshotError::Invalid => NotRecovered::Unreadable(unreadable()),
            SnapshotError::UnsupportedVersion => NotRecovered::UnsupportedVersion,
        };
        let (mut meta, mut parts) = (None, Manifest::default());
        machine.begin_restore();
        let (mut ordered, mut any) = match machine.needs_order() {
            true => (Some(found.parts_in_order()), None),
            false => (None, Some(found.parts())),
        };
        for part in ordered.iter_mut().flatten().chain(any.iter_mut().flatten()) {
            let (part, bytes) = part?;
            let Some(number) = part.checked_sub(1) else {
                meta = decode_meta(&bytes);
                continue;
            };
            parts.0.insert(number, PartInfo::of(&bytes));
            machine.restore_part(number, &bytes).map_err(of_machine)?;
        }
        let meta = meta.ok_or_else(unreadable)?;
        let last = meta.last_log_id.filter(|last| in_log(last) == checkpoint).ok_or_else(unreadable)?;
        machine.restored(last.index).map_err(of_machine)?;
        self.purged = meta.last_log_id;
        self.cache.purge(self.first());
        self.checkpoint = Checkpoint::recovered(checkpoint, parts);
        let parts = self.checkpoint.parts.clone();
        self.snapshot = Some((meta, StoredSnapshot { checkpoint, parts }));
        Ok(())
    }
}
