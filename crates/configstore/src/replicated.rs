//! Store of a node in a cluster: changes are proposed to the cores, and a copy of the result is kept here.

use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use crate::batch::{Answer, BATCH_MAX, Batch, CHANGES_MAX, KEY_MAX, Mode, VALUE_MAX};
use crate::change::{Change, Expected, Revision, Stored, Table};
use crate::error::{OpenError, ProposeError};
use crate::local::{Core, Limits, QueuedProposal, check};
use crate::records::{Position, RecordUpdate, UpdateOutcome, follow};
use crate::state::{Proposed, State};
use crate::store::{ConfigStore, Figures, View};

/// Callback that runs once, with the [`Answer`]'s bytes.
pub type ProposalCallback = Box<dyn FnOnce(Result<Vec<u8>, ProposalFailed>) + Send>;

/// Connection of a store to the cores.
pub trait Proposer: Send + Sync {
    /// Proposes an encoded batch. Never waits.
    fn propose(&self, batch: Vec<u8>, callback: ProposalCallback);

    /// State of the cluster as this node knows it.
    fn cluster_state(&self) -> ClusterState;
}

/// State of a cluster as one of its nodes knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterState {
    /// Number of the cluster; 0: this node belongs to none yet.
    pub founded: u128,
    /// Revision of the records; `None` while this node does not know it.
    pub revision: Option<u64>,
    /// True while this node leads the meta group.
    pub leads: bool,
}

/// Reason why a proposal has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProposalFailed {
    pub why: String,
    /// True when the proposal may have been accepted, or may still be.
    pub outcome_unknown: bool,
}

/// Records of a cluster.
///
/// The node's own records are in force until there is a cluster with records. They are imported into a cluster that has
/// none, and archived otherwise.
pub struct ReplicatedStore {
    core: Mutex<Core>,
    /// Signals a change of the copy.
    changed: Condvar,
    proposer: OnceLock<Arc<dyn Proposer>>,
    /// Held while the node's own records are imported or archived.
    import_lock: Mutex<()>,
    /// Name of this node in the import marker.
    name: Box<str>,
    ids: ProposalIds,
    timeout: Duration,
}

/// Numbers of proposals, unique among all nodes and their incarnations.
struct ProposalIds {
    incarnation: u64,
    last: Mutex<u64>,
}

impl ProposalIds {
    fn next(&self) -> u128 {
        let mut last = sync::lock(&self.last);
        *last += 1;
        u128::from(self.incarnation) << 64 | u128::from(*last)
    }
}

/// Node that imports its records, and whether it has finished. Stored in the table [`IMPORT_TABLE`].
#[derive(serde::Serialize, serde::Deserialize, PartialEq, Eq)]
struct ImportMarker {
    by: Box<str>,
    done: bool,
}

pub(crate) const IMPORT_TABLE: Table = Table::named("registry");
const IMPORT_KEY: &str = "brought_in";
/// Maximum number of changes, and of bytes, of one batch of an import.
const IMPORT_CHANGES_MAX: usize = 1_000;
const IMPORT_BYTES_MAX: usize = 1 << 20;
/// Maximum time to wait for an answer, and then for the change itself.
const TIMEOUT: Duration = Duration::from_secs(8);

impl ReplicatedStore {
    /// Opens the copy in this directory, or the node's own records. `incarnation` is random; `name` is the node's.
    ///
    /// # Errors
    /// Those of [`LocalStore::open`](crate::LocalStore::open).
    pub fn open(data_dir: &Path, name: &str, incarnation: u64) -> Result<Self, OpenError> {
        let mut core = Core::in_directory(data_dir);
        core.load(false)?;
        Ok(Self {
            core: Mutex::new(core),
            changed: Condvar::new(),
            proposer: OnceLock::new(),
            import_lock: Mutex::default(),
            name: name.into(),
            ids: ProposalIds { incarnation, last: Mutex::default() },
            timeout: TIMEOUT,
        })
    }

    /// Connects the store to the cores, which decide from now on. Before that, proposals change the node's own records.
    pub fn attach(&self, proposer: Arc<dyn Proposer>) {
        // A second call would mean a second cluster, which does not happen.
        let _ = self.proposer.set(proposer);
    }

    /// Cluster and revision of the copy.
    pub fn position(&self) -> Position {
        let core = self.core();
        match core.state.founded {
            0 => Position::default(),
            founded => Position { founded, revision: core.state.revision },
        }
    }

    /// Applies an update to the copy, and returns its position. Waits for the disk, and for an import of the node's own
    /// records.
    pub fn take(&self, update: &RecordUpdate) -> Position {
        let _import_guard = sync::lock(&self.import_lock);
        let mut core = self.core();
        let before = core.state.revision;
        let is_own = core.state.founded == 0;
        match follow(&mut core.state, update) {
            UpdateOutcome::Changes(batches) => core.follow(&batches, before + 1),
            UpdateOutcome::Replaced(state) => {
                let is_unfinished = is_own && self.is_unfinished(&state) && !core.state.is_empty();
                if is_unfinished {
                    let own = core.state.clone();
                    drop(core);
                    if let Err(error) = self.import(&own, true) {
                        tracing::warn!(
                            "configuration store: import of the node's own records failed, {error}; retrying later"
                        );
                        return Position::default();
                    }
                    core = self.core();
                }
                // Imported records are in the cluster, even if they have not reached this copy yet.
                if is_own && !is_unfinished && !Self::archive(&mut core, &state) {
                    return Position::default();
                }
                core.replace(state);
            }
            UpdateOutcome::Rejected => {
                tracing::warn!(
                    "configuration store: the copy differs from the cluster's records; requesting all records"
                );
                return Position::LOST;
            }
        }
        drop(core);
        self.changed.notify_all();
        self.position()
    }

    /// Writes an empty copy if neither the cluster nor this node has records. After a restart, the node then knows
    /// which records count, even if it reaches no other node. Returns the position of the copy.
    pub fn init_empty(&self, founded: u128) -> Position {
        let _import_guard = sync::lock(&self.import_lock);
        let mut core = self.core();
        if core.state.founded == 0 && core.state.is_empty() {
            let mut nothing = State::default();
            nothing.founded = founded;
            core.replace(nothing);
        }
        drop(core);
        self.position()
    }

    /// Retries a failed write of the copy. To be called from time to time.
    pub fn tidy(&self) {
        self.core().catch_up_copy();
    }

    /// Returns whether this node has begun an import and has not finished it.
    fn is_unfinished(&self, theirs: &State) -> bool {
        let marker = theirs.get(IMPORT_TABLE.name(), IMPORT_KEY);
        let marker = marker.and_then(|stored| serde_json::from_str::<ImportMarker>(&stored.value).ok());
        marker == Some(ImportMarker { by: self.name.clone(), done: false })
    }

    /// Archives the node's own records if the cluster lacks any of them or has another value. Returns false when that
    /// fails.
    fn archive(core: &mut Core, theirs: &State) -> bool {
        let all =
            core.state.tables().flat_map(|(table, of)| of.iter().map(move |(key, own)| (table, key, own)));
        let dropped =
            all.filter(|(table, key, own)| theirs.get(table, key).is_none_or(|it| it.value != own.value));
        let dropped = dropped.count();
        if dropped == 0 {
            return true;
        }
        match core.archive() {
            Ok(Some(path)) => {
                tracing::warn!(
                    dropped, theirs = theirs.len(), kept = %path.display(),
                    "configuration store: node joined a cluster with records; its users, rules, bans, keys and settings \
                     are replaced, and its own are archived"
                );
                true
            }
            Ok(None) => true,
            Err(error) => {
                tracing::error!(
                    "configuration store: the node's own records cannot be archived, {error}; they stay in force"
                );
                false
            }
        }
    }

    /// Imports the node's own records, if it has any and the cluster has none. To be called from time to time on the
    /// leader.
    ///
    /// # Errors
    /// The cluster has not accepted them; the caller retries.
    pub fn import_own_records(&self) -> Result<(), ProposeError> {
        let _import_guard = sync::lock(&self.import_lock);
        let own = {
            let core = self.core();
            if core.state.founded != 0 || core.state.is_empty() {
                return Ok(());
            }
            core.state.clone()
        };
        let cluster_state = self.proposer.get().map(|proposer| proposer.cluster_state()).unwrap_or_default();
        match cluster_state.revision {
            _ if cluster_state.founded == 0 => Ok(()),
            Some(0) => self.import(&own, false),
            Some(_) => Ok(()),
            // The node's records would be lost if the cluster has none yet and this proposal is its first.
            None => Err(ProposeError::NotCommitted {
                why: "this node does not know the cluster's records yet: try again in a moment".to_owned(),
                outcome_unknown: false,
            }),
        }
    }

    fn import(&self, own: &State, is_resumed: bool) -> Result<(), ProposeError> {
        let records = own.len();
        tracing::info!(
            records,
            "configuration store: the cluster has no records; importing those of this node"
        );
        let mark =
            |done: bool| Change::put(IMPORT_TABLE, IMPORT_KEY, &ImportMarker { by: self.name.clone(), done });
        let mark = |done: bool| mark(done).map_err(|error| ProposeError::Broken { why: error.to_string() });
        if !is_resumed {
            let began = mark(false)?.expecting(Expected::Absent);
            match self.propose_and_wait(&Batch::of(self.ids.next(), &[began]))?.outcome {
                Ok(()) => {}
                // Another node has begun an import first: its records count.
                Err(ProposeError::Conflict { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        let mut changes: Vec<Proposed<'_>> = Vec::new();
        let mut bytes = 0;
        for (table, records) in own.tables() {
            for (key, stored) in records {
                if changes.len() >= IMPORT_CHANGES_MAX || bytes >= IMPORT_BYTES_MAX {
                    self.import_batch(std::mem::take(&mut changes))?;
                    bytes = 0;
                }
                bytes += key.len() + stored.value.len();
                changes.push(Proposed {
                    table,
                    key,
                    value: Some(&stored.value),
                    expected: Expected::Anything,
                });
            }
        }
        self.import_batch(changes)?;
        self.propose_and_wait(&Batch::of(self.ids.next(), &[mark(true)?]))?.outcome?;
        tracing::info!(records, "configuration store: the node's own records are imported into the cluster");
        Ok(())
    }

    fn import_batch(&self, changes: Vec<Proposed<'_>>) -> Result<(), ProposeError> {
        let batch = Batch { id: self.ids.next(), mode: Mode::Missing, changes };
        self.propose_and_wait(&batch)?.outcome
    }

    /// Proposes a batch, and waits for the answer.
    fn propose_and_wait(&self, batch: &Batch<'_>) -> Result<Answer, ProposeError> {
        let not =
            |why: &str, outcome_unknown| ProposeError::NotCommitted { why: why.to_owned(), outcome_unknown };
        let Some(proposer) = self.proposer.get() else {
            return Err(not("this node has not joined its cluster yet: try again in a moment", false));
        };
        if proposer.cluster_state().founded == 0 {
            return Err(not(
                "this node belongs to no cluster yet (meridian ctl cluster status shows what it waits for)",
                false,
            ));
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let callback = move |outcome| {
            // The waiting side may have timed out.
            let _ = sender.send(outcome);
        };
        proposer.propose(batch.encode(), Box::new(callback));
        match receiver.recv_timeout(self.timeout) {
            Ok(Ok(answer)) => {
                Answer::decode(&answer).ok_or_else(|| not("the answer of the cores cannot be read", true))
            }
            Ok(Err(ProposalFailed { why, outcome_unknown })) => {
                Err(ProposeError::NotCommitted { why, outcome_unknown })
            }
            Err(_) => Err(not(
                "no majority of the cores has answered in time: check that one is reachable (meridian ctl cluster status)",
                true,
            )),
        }
    }

    /// Waits until the copy has this revision. A late copy is logged only: the change is in force.
    fn await_copy(&self, revision: Revision) {
        if revision == Revision(0) {
            return;
        }
        let until = Instant::now() + self.timeout;
        let mut core = self.core();
        while core.state.founded == 0 || core.state.revision < revision.0 {
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                let here = core.state.revision;
                return tracing::warn!(
                    revision = revision.0,
                    here,
                    "configuration store: the copy lacks a committed change; it is in force and arrives later"
                );
            };
            core = sync::ignore_poison(self.changed.wait_timeout(core, left)).0;
        }
    }

    /// Applies a proposal to the node's own records, before there is a cluster.
    fn propose_locally(&self, batch: Vec<Change>) -> Result<Revision, ProposeError> {
        let queued = QueuedProposal::new(batch);
        self.core().commit(std::slice::from_ref(&queued), &Limits::default());
        queued.take_result().unwrap_or(Err(ProposeError::ReadOnly))
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        sync::lock(&self.core)
    }
}

fn limits() -> Limits {
    // A batch takes more bytes as a line of the log than in this encoding.
    Limits {
        key_max: KEY_MAX,
        value_max: VALUE_MAX,
        changes_max: CHANGES_MAX,
        batch_max: BATCH_MAX,
        ..Limits::default()
    }
}

impl ConfigStore for ReplicatedStore {
    fn propose(&self, batch: Vec<Change>) -> Result<Revision, ProposeError> {
        if let Err(refusal) = check(&batch, &limits()) {
            self.core().figures.refused += 1;
            return Err(refusal);
        }
        if self.proposer.get().is_none() && self.core().state.founded == 0 {
            return self.propose_locally(batch);
        }
        // Imported first, so that this proposal does not replace the node's own records.
        self.import_own_records()?;
        let answer = self.propose_and_wait(&Batch::of(self.ids.next(), &batch))?;
        // A caller that was refused reads the new state here before it decides again.
        self.await_copy(answer.revision);
        match answer.outcome {
            Ok(()) => Ok(answer.revision),
            Err(refusal) => {
                self.core().figures.refused += 1;
                Err(refusal)
            }
        }
    }

    fn read(&self, table: Table, key: &str) -> Option<Stored> {
        self.core().read(table, key)
    }

    fn page(&self, table: Table, after: Option<&str>, limit: usize) -> Vec<(Box<str>, Stored)> {
        self.core().page(table, after, limit)
    }

    fn subscribe(&self, table: Table, view: Arc<dyn View>) -> Result<(), String> {
        self.core().subscribe(table, view)
    }

    /// No operation: the cores send all changes.
    fn catch_up(&self) {}

    fn catch_up_now(&self) -> Result<(), ProposeError> {
        if self.proposer.get().is_none() && self.core().state.founded == 0 {
            return Ok(());
        }
        self.import_own_records()?;
        let answer = self.propose_and_wait(&Batch::of(self.ids.next(), &[]))?;
        self.await_copy(answer.revision);
        Ok(())
    }

    fn figures(&self) -> Figures {
        self.core().figures()
    }
}

#[cfg(test)]
mod tests;
