//! The first snapshot of a group that does not begin with an empty state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use storage::{GroupId, Log, Record, RecoveredGroup};

use crate::manifest::PART_BYTES_MAX;
use crate::raft_log::{StorageGroups, log_index, part_in_log};
use crate::raft_types::{Member, Membership, ReplicaId, SnapshotMeta, StoredMembership};
use crate::wire::{encode_meta, log_id};

/// Writer of a snapshot for a group that has no replica yet. The group then begins with this state, with the writer's
/// replica as its only member and with the entry after the snapshot.
///
/// The log may have records of the group from before, in another form: entries up to the snapshot, and the parts of a
/// checkpoint. The mark of this snapshot replaces that checkpoint at once: after a crash, the log has the parts of
/// either one.
pub struct FirstSnapshot {
    log: Log,
    group: GroupId,
    /// Index of Raft of the last entry that the state includes.
    last: u64,
    /// Parts of the previous checkpoint that this one does not have, by their numbers in the log.
    stale: BTreeSet<u32>,
}

impl FirstSnapshot {
    /// Begins a snapshot of the state up to an index of Raft. `previous` is what the log has of the group.
    ///
    /// # Panics
    /// Panics if the log has a checkpoint at that index or later.
    pub fn begin(log: Log, groups: StorageGroups, last: u64, previous: Option<&RecoveredGroup>) -> Self {
        let checkpoint = previous.and_then(|group| group.checkpoint);
        assert!(checkpoint < Some(log_index(last)), "the log has a checkpoint at {checkpoint:?}");
        let stale = previous.into_iter().flat_map(RecoveredGroup::part_numbers).collect();
        Self { log, group: groups.entries, last, stale }
    }

    /// Writes a part.
    ///
    /// # Panics
    /// Panics if the part is larger than a part may be.
    pub fn put(&mut self, part: u32, bytes: &[u8]) {
        assert!(bytes.len() <= PART_BYTES_MAX, "part {part} of a snapshot has {} bytes", bytes.len());
        // A state machine has fewer parts than 2^32.
        let Ok(part) = part_in_log(part) else { return };
        self.stale.remove(&part);
        self.append(part, bytes.into());
    }

    /// Completes the snapshot. It counts when its mark is durable ([`LogListener::checkpoint_durable`] at
    /// [`log_index`] of the last entry). Until then, the group must write nothing else.
    ///
    /// [`LogListener::checkpoint_durable`]: storage::LogListener::checkpoint_durable
    pub fn finish(mut self, founder: ReplicaId, member: Member) {
        for part in std::mem::take(&mut self.stale) {
            self.append(part, Arc::from([]));
        }
        // No leader has this term, so the entries of any leader follow.
        let last = Some(log_id(0, self.last));
        let members = Membership::new(vec![BTreeSet::from([founder])], BTreeMap::from([(founder, member)]));
        let members = members.unwrap_or_default();
        let meta = SnapshotMeta { last_log_id: last, last_membership: StoredMembership::new(last, members) };
        self.append(0, encode_meta(&meta).into());
        self.log.append([Record::Done { group: self.group, checkpoint: log_index(self.last) }]);
    }

    fn append(&self, part: u32, payload: Arc<[u8]>) {
        let checkpoint = log_index(self.last);
        self.log.append([Record::Part { group: self.group, part, checkpoint, payload }]);
    }
}
