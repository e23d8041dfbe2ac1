//! The ledger of a node whose cluster agrees on the records: changes are proposed to all, and a copy of what came of them is kept here.

use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::batch::{Answer, BATCH_MAX, Batch, CHANGES_MAX, KEY_MAX, Mode, VALUE_MAX};
use crate::change::{Change, Expected, Revision, Stored, Table};
use crate::error::{OpenError, ProposeError};
use crate::local::{Core, Limits, QueuedProposal, check};
use crate::records::{Position, RecordUpdate, UpdateOutcome, follow};
use crate::state::{Proposed, State};
use crate::store::{ConfigStore, Figures, View};

/// Called once, with the [`Answer`]'s bytes.
pub type ProposalCallback = Box<dyn FnOnce(Result<Vec<u8>, ProposalFailed>) + Send>;

/// How a ledger reaches those that decide.
pub trait Proposer: Send + Sync {
    /// Has an encoded batch decided upon. Never waits.
    fn propose(&self, batch: Vec<u8>, callback: ProposalCallback);

    /// What this node knows of those that decide.
    fn cluster_state(&self) -> ClusterState;
}

/// What a node knows of the cluster that it belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterState {
    /// The number of the cluster; 0: this node belongs to none yet.
    pub founded: u128,
    /// Changes that were agreed upon; `None` while this node has not heard.
    pub revision: Option<u64>,
    /// Decisions are made here at present.
    pub leads: bool,
}

/// Why nothing is known to be decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProposalFailed {
    pub why: String,
    /// It may be decided yet, or have been.
    pub outcome_unknown: bool,
}

/// Records of a cluster. Until there is one, or it has records, the node's own are in force; they are brought in where the cluster has none,
/// and put aside otherwise.
pub struct ReplicatedStore {
    core: Mutex<Core>,
    /// The copy has changed.
    changed: Condvar,
    proposer: OnceLock<Arc<dyn Proposer>>,
    /// Held while the node's own records are brought in, or put aside.
    import_lock: Mutex<()>,
    /// Who this node is among those that bring records in.
    name: Box<str>,
    ids: ProposalIds,
    timeout: Duration,
}

/// Numbers of proposals: no other node, and no other life of this one, has the same.
struct ProposalIds {
    incarnation: u64,
    last: Mutex<u64>,
}

impl ProposalIds {
    fn next(&self) -> u128 {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last += 1;
        u128::from(self.incarnation) << 64 | u128::from(*last)
    }
}

/// Who brings his records in, and whether he has. In the table [`IMPORT_TABLE`].
#[derive(serde::Serialize, serde::Deserialize, PartialEq, Eq)]
struct ImportMarker {
    by: Box<str>,
    done: bool,
}

const IMPORT_TABLE: Table = Table::named("registry");
const IMPORT_KEY: &str = "brought_in";
/// Changes, and bytes, of one batch that brings records in.
const IMPORT_CHANGES_MAX: usize = 1_000;
const IMPORT_BYTES_MAX: usize = 1 << 20;
/// How long an answer, and then the change itself, is waited for, at most.
const TIMEOUT: Duration = Duration::from_secs(8);

impl ReplicatedStore {
    /// Opens the copy in this directory, or the node's own records. `incarnation` is random; `name` is the node's.
    ///
    /// # Errors
    /// As [`LocalStore::open`](crate::LocalStore::open).
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

    /// From now on the cluster decides. Before that, what is proposed is of the node's own records.
    pub fn attach(&self, proposer: Arc<dyn Proposer>) {
        // Who attaches twice has two clusters, which nobody has.
        let _ = self.proposer.set(proposer);
    }

    /// How far the copy is.
    pub fn position(&self) -> Position {
        let core = self.core();
        match core.state.founded {
            0 => Position::default(),
            founded => Position { founded, revision: core.state.revision },
        }
    }

    /// Takes what is told to the copy; gives how far it is then. Waits for the disk, and while own records are brought in.
    pub fn take(&self, update: &RecordUpdate) -> Position {
        let _import_guard = self.import_lock.lock().unwrap_or_else(PoisonError::into_inner);
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
                            "what this node had before there was a cluster is brought in later: {error}"
                        );
                        return Position::default();
                    }
                    core = self.core();
                }
                // What was brought in is theirs, whether it has been told yet or not.
                if is_own && !is_unfinished && !Self::archive(&mut core, &state) {
                    return Position::default();
                }
                core.replace(state);
            }
            UpdateOutcome::Rejected => {
                tracing::warn!("the copy of what the cores agree on is not theirs: it is made anew");
                return Position::LOST;
            }
        }
        drop(core);
        self.changed.notify_all();
        self.position()
    }

    /// The cluster has no records yet, nor has this node: an empty copy is written, so that the node knows in its next life whose records hold, whoever is
    /// there then. Gives how far the copy is.
    pub fn init_empty(&self, founded: u128) -> Position {
        let _import_guard = self.import_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut core = self.core();
        if core.state.founded == 0 && core.state.is_empty() {
            let mut nothing = State::default();
            nothing.founded = founded;
            core.replace(nothing);
        }
        drop(core);
        self.position()
    }

    /// What the disk did not take of the copy is written, if it takes it now. To be called from time to time.
    pub fn tidy(&self) {
        self.core().catch_up_copy();
    }

    /// This node has begun to bring its records in, and has not ended.
    fn is_unfinished(&self, theirs: &State) -> bool {
        let marker = theirs.get(IMPORT_TABLE.name(), IMPORT_KEY);
        let marker = marker.and_then(|stored| serde_json::from_str::<ImportMarker>(&stored.value).ok());
        marker == Some(ImportMarker { by: self.name.clone(), done: false })
    }

    /// What the node had by itself goes where the cluster has none of it, or another of the same name, and is kept beside.
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
                    "this node's users, rules, bans, keys and settings are those of the cluster from now on; what it had before is kept aside"
                );
                true
            }
            Ok(None) => true,
            Err(error) => {
                tracing::error!(
                    "what this node had before the cluster cannot be put aside, and stays in force: {error}"
                );
                false
            }
        }
    }

    /// Brings the node's own records in, if it has any and the cluster has none. To be called from time to time where decisions are made.
    ///
    /// # Errors
    /// The cluster has not agreed; to be tried again.
    pub fn import_own_records(&self) -> Result<(), ProposeError> {
        let _import_guard = self.import_lock.lock().unwrap_or_else(PoisonError::into_inner);
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
            // It would be lost if the cluster has nothing yet, and somebody adds to that.
            None => Err(ProposeError::NotCommitted {
                why: "this node has not heard yet what the cores agree on: try again in a moment".to_owned(),
                outcome_unknown: false,
            }),
        }
    }

    fn import(&self, own: &State, is_resumed: bool) -> Result<(), ProposeError> {
        let records = own.len();
        tracing::info!(records, "bringing what this node has into the cluster, which has nothing yet");
        let mark =
            |done: bool| Change::put(IMPORT_TABLE, IMPORT_KEY, &ImportMarker { by: self.name.clone(), done });
        let mark = |done: bool| mark(done).map_err(|error| ProposeError::Broken { why: error.to_string() });
        if !is_resumed {
            let began = mark(false)?.expecting(Expected::Absent);
            match self.propose_and_wait(&Batch::of(self.ids.next(), &[began]))?.outcome {
                Ok(()) => {}
                // Of two who begin at once one does, and what that one brings holds.
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
        tracing::info!(records, "what this node had is the cluster's");
        Ok(())
    }

    fn import_batch(&self, changes: Vec<Proposed<'_>>) -> Result<(), ProposeError> {
        let batch = Batch { id: self.ids.next(), mode: Mode::Missing, changes };
        self.propose_and_wait(&batch)?.outcome
    }

    /// Has a batch decided upon, and waits for that.
    fn propose_and_wait(&self, batch: &Batch<'_>) -> Result<Answer, ProposeError> {
        let not =
            |why: &str, outcome_unknown| ProposeError::NotCommitted { why: why.to_owned(), outcome_unknown };
        let Some(proposer) = self.proposer.get() else {
            return Err(not("this node has not joined its cluster yet: try again in a moment", false));
        };
        if proposer.cluster_state().founded == 0 {
            return Err(not(
                "this node belongs to no cluster yet (meridian ctl cluster status says what it waits for)",
                false,
            ));
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let callback = move |outcome| {
            // Who waited may have given up.
            let _ = sender.send(outcome);
        };
        proposer.propose(batch.encode(), Box::new(callback));
        match receiver.recv_timeout(self.timeout) {
            Ok(Ok(answer)) => {
                Answer::decode(&answer).ok_or_else(|| not("the answer of the cores makes no sense", true))
            }
            Ok(Err(ProposalFailed { why, outcome_unknown })) => {
                Err(ProposeError::NotCommitted { why, outcome_unknown })
            }
            Err(_) => Err(not(
                "no majority of the cores has answered in time: is one there? (meridian ctl cluster status)",
                true,
            )),
        }
    }

    /// Until the copy here is so far. What is late here holds nevertheless.
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
                    "this node has not heard yet of a change that was agreed upon"
                );
            };
            core = self.changed.wait_timeout(core, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A proposal before there is anybody to agree: of the node's own records.
    fn propose_locally(&self, batch: Vec<Change>) -> Result<Revision, ProposeError> {
        let queued = QueuedProposal::new(batch);
        self.core().commit(std::slice::from_ref(&queued), &Limits::default());
        queued.take_result().unwrap_or(Err(ProposeError::ReadOnly))
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn limits() -> Limits {
    // What a batch takes as a line of a journal is more than what it takes here.
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
        // Who adds to what the node has must not lose that.
        self.import_own_records()?;
        let answer = self.propose_and_wait(&Batch::of(self.ids.next(), &batch))?;
        // Whoever was refused decides again by what he reads here.
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

    /// It is told of changes.
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
