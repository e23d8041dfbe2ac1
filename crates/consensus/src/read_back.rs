//! Reads what a log has of a replica that does not run: for a restore from the logs of several replicas.

use openraft::EntryPayload;
use storage::{Log, RecoveredGroup};

use crate::machine::{Committed, Restore, SnapshotError, StateMachine};
use crate::raft_log::{NotRecovered, StorageGroups, Store, Unreadable, log_index};
use crate::raft_types::LogId;
use crate::wire::{decode_entry, log_id, term_of};

/// Last entry of a replica. Of the replicas of a group, one with the greatest last entry can be elected. If a majority
/// of the replicas is compared, it has all entries that were committed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LastEntry {
    pub term: u64,
    /// Index of Raft, see [`log_index`].
    pub index: u64,
}

impl LastEntry {
    fn of(last: LogId) -> Self {
        Self { term: term_of(&last), index: last.index }
    }
}

/// Finds the last entry of a replica; `None` if it has none. Reads all its entries and its snapshot.
///
/// # Errors
/// The data is damaged.
pub fn last_entry(
    log: &Log,
    storage_groups: StorageGroups,
    recovered: &[RecoveredGroup],
) -> Result<Option<LastEntry>, Unreadable> {
    Ok(recover(log, storage_groups, recovered, &mut Ignored)?.map(LastEntry::of))
}

/// Applies everything that a replica has to an empty state machine: its snapshot, and all entries, whether it knows
/// them to be committed or not. That is what the group would do if this replica was elected. Returns the last entry.
///
/// # Errors
/// The data is damaged, or of a later version.
pub fn read_back<S: StateMachine>(
    log: &Log,
    storage_groups: StorageGroups,
    recovered: &[RecoveredGroup],
    machine: &mut S,
) -> Result<Option<LastEntry>, Unreadable> {
    let Some(last) = recover(log, storage_groups, recovered, machine)? else { return Ok(None) };
    let found = recovered.iter().find(|found| found.group == storage_groups.entries);
    let mut effects = Vec::new();
    // Entries after the last one are older than the snapshot.
    let is_needed = |index| index <= log_index(last.index);
    for entry in found.into_iter().flat_map(RecoveredGroup::entries) {
        let entry = entry?;
        if !is_needed(entry.index) {
            break;
        }
        let of_raft = decode_entry(log_id(entry.term, entry.index - 1), &entry.payload);
        let (_, of_raft) = of_raft
            .ok_or_else(|| Unreadable(format!("entry {} of a replica cannot be read", entry.index)))?;
        if let EntryPayload::Normal(command) = of_raft.payload {
            let committed = Committed { index: entry.index - 1, term: entry.term, command: command.0 };
            machine.apply(&committed, &mut effects).map_err(|_| later_version())?;
            effects.clear();
        }
    }
    Ok(Some(LastEntry::of(last)))
}

/// Reads a replica, and passes the parts of its snapshot on.
fn recover(
    log: &Log,
    storage_groups: StorageGroups,
    recovered: &[RecoveredGroup],
    machine: &mut dyn Restore,
) -> Result<Option<LogId>, Unreadable> {
    let store = Store::recover(log.clone(), storage_groups, recovered, 0, machine);
    let store = store.map_err(|error| match error {
        NotRecovered::Unreadable(error) => error,
        NotRecovered::UnsupportedVersion => later_version(),
    })?;
    Ok(store.lock().last())
}

fn later_version() -> Unreadable {
    Unreadable("a later version of the program wrote it: use that version".to_owned())
}

/// Takes any snapshot.
struct Ignored;

impl Restore for Ignored {
    fn needs_order(&self) -> bool {
        false
    }

    fn begin_restore(&mut self) {}

    fn restore_part(&mut self, _: u32, _: &[u8]) -> Result<(), SnapshotError> {
        Ok(())
    }

    fn restored(&mut self, _: u64) -> Result<(), SnapshotError> {
        Ok(())
    }
}
