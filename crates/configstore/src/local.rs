//! Store of one node: a write-ahead log in its data directory. Other processes may change it between two changes of
//! this one.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

mod wal;
mod wal_reader;

use wal::{FileState, WriteAheadLog};

use crate::change::{Applied, Change, Revision, Stored, Table};
use crate::error::{OpenError, OpenFault, ProposeError};
use crate::line::{Entry, Group};
use crate::records::Records;
use crate::state::{AppliedChange, Pending, State};
use crate::store::{ConfigStore, Figures, View};

/// Name of the write-ahead log in a data directory.
pub const FILE: &str = "registry.log";

/// Limits of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of records of all tables together.
    pub records_max: usize,
    /// Maximum number of bytes of a key.
    pub key_max: usize,
    /// Maximum number of bytes of a value, as JSON.
    pub value_max: usize,
    /// Maximum number of changes of a batch.
    pub changes_max: usize,
    /// Maximum number of bytes of a batch.
    pub batch_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            records_max: 4_000_000,
            key_max: 4_096,
            value_max: 64 << 10,
            changes_max: 10_000,
            batch_max: 16 << 20,
        }
    }
}

/// Records in `registry.log`.
///
/// A change takes a lock that processes share, and reads the lines that others have appended. Then it checks the
/// proposal, appends and syncs. Changes that wait at the same time share one sync. Without a directory the records are
/// in memory only.
pub struct LocalStore {
    waiting: Mutex<Vec<Arc<QueuedProposal>>>,
    core: Mutex<Core>,
    last_check: Mutex<Option<Instant>>,
    limits: Limits,
}

/// A batch that waits for its result.
pub(crate) struct QueuedProposal {
    batch: Vec<Change>,
    done: Mutex<Option<Result<Revision, ProposeError>>>,
}

/// Records, their write-ahead log, and the views that are notified of changes.
pub(crate) struct Core {
    pub state: State,
    wal: Option<WriteAheadLog>,
    pub views: Vec<(Table, Arc<dyn View>)>,
    pub figures: Figures,
    read_only: bool,
    /// Reason why nothing is accepted any more.
    broken: Option<String>,
    /// True when the log of a copy lacks changes and has to be rewritten.
    needs_rewrite: bool,
    /// True when the failed write has been logged.
    reported_write_failure: bool,
}

impl QueuedProposal {
    pub fn new(batch: Vec<Change>) -> Arc<Self> {
        Arc::new(Self { batch, done: Mutex::default() })
    }

    pub fn take_result(&self) -> Option<Result<Revision, ProposeError>> {
        sync::lock(&self.done).take()
    }
}

impl LocalStore {
    /// Makes a store in memory, whose records end with the process.
    pub fn in_memory() -> Self {
        Self::of(Core::new(None), Limits::default())
    }

    /// Opens the write-ahead log in this directory. Without one, the store is empty, and the first change creates the
    /// file. A half-written last line, which never took effect, is cut off.
    ///
    /// # Errors
    /// The log cannot be used. A start without its bans would admit banned clients.
    pub fn open(data_dir: &Path) -> Result<Self, OpenError> {
        Self::open_with(data_dir, Limits::default())
    }

    /// Opens the log with other limits.
    ///
    /// # Errors
    /// Those of [`LocalStore::open`].
    pub fn open_with(data_dir: &Path, limits: Limits) -> Result<Self, OpenError> {
        let mut core = Core::new(Some(WriteAheadLog::new(data_dir)));
        core.load(false)?;
        Ok(Self::of(core, limits))
    }

    /// Opens the log like [`LocalStore::open`], for a node without a cluster that shares records. A copy of a cluster's
    /// records becomes the node's own.
    ///
    /// # Errors
    /// Those of [`LocalStore::open`], and a log that cannot be written.
    pub fn open_standalone(data_dir: &Path) -> Result<Self, OpenError> {
        let store = Self::open(data_dir)?;
        store.core().adopt_copy()?;
        Ok(store)
    }

    /// Reads the log and changes nothing, not even a torn last line.
    ///
    /// # Errors
    /// Those of [`LocalStore::open`].
    pub fn read_only(data_dir: &Path) -> Result<Self, OpenError> {
        let mut core = Core::new(Some(WriteAheadLog::new(data_dir)));
        core.read_only = true;
        core.load(true)?;
        Ok(Self::of(core, Limits::default()))
    }

    /// Writes the records of a cluster as a node's own into a directory without any. Leaves out `without`, and what the
    /// cluster has stored about the beginning of its records. Returns the number of records.
    ///
    /// # Errors
    /// There are records in the directory, or the log cannot be written.
    pub fn create(data_dir: &Path, records: &Records, without: &[Table]) -> Result<usize, OpenError> {
        let mut wal = WriteAheadLog::new(data_dir);
        let path = wal.path().to_owned();
        let failed = |error| OpenError { path: path.clone(), fault: OpenFault::Io(error) };
        let _guard = wal.lock_file()?;
        if wal.exists() {
            return Err(failed(io::ErrorKind::AlreadyExists.into()));
        }
        let state = records.own_without(without);
        wal.rewrite(&state).map_err(failed)?;
        Ok(state.len())
    }

    fn of(core: Core, limits: Limits) -> Self {
        Self { waiting: Mutex::default(), core: Mutex::new(core), last_check: Mutex::default(), limits }
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        sync::lock(&self.core)
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Arc<QueuedProposal>>> {
        sync::lock(&self.waiting)
    }

    /// Takes the proposals that have waited longest, as many as fit into one line.
    fn next_group(&self) -> Vec<Arc<QueuedProposal>> {
        let mut waiting = self.waiting();
        let mut total = 0;
        let fits = waiting.iter().take_while(|one| {
            total += bytes(&one.batch);
            total <= GROUP_MAX
        });
        // One batch is always taken: its limit is lower, except in tests that set a greater one.
        let count = fits.count().max(1).min(waiting.len());
        waiting.drain(..count).collect()
    }
}

impl ConfigStore for LocalStore {
    fn propose(&self, batch: Vec<Change>) -> Result<Revision, ProposeError> {
        if let Err(refusal) = check(&batch, &self.limits) {
            self.core().figures.refused += 1;
            return Err(refusal);
        }
        let queued = QueuedProposal::new(batch);
        self.waiting().push(queued.clone());
        loop {
            let mut core = self.core();
            // The previous holder of the core may have committed this batch, too.
            if let Some(done) = queued.take_result() {
                return done;
            }
            core.commit(&self.next_group(), &self.limits);
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

    /// Looks once a second at most, and not while another thread does.
    fn catch_up(&self) {
        let Ok(mut last_check) = self.last_check.try_lock() else { return };
        if last_check.is_some_and(|at| at.elapsed() < CHECK_INTERVAL) {
            return;
        }
        *last_check = Some(Instant::now());
        let Ok(mut core) = self.core.try_lock() else { return };
        if let Err(error) = core.lock_and_catch_up() {
            tracing::error!(
                "configuration store: changes of other processes cannot be read, {error}; users, rules, bans and keys stay as before"
            );
        }
    }

    fn catch_up_now(&self) -> Result<(), ProposeError> {
        self.core().begin().map(drop)
    }

    fn figures(&self) -> Figures {
        self.core().figures()
    }
}

impl Core {
    pub fn in_directory(data_dir: &Path) -> Self {
        Self::new(Some(WriteAheadLog::new(data_dir)))
    }

    fn new(wal: Option<WriteAheadLog>) -> Self {
        Self {
            state: State::default(),
            wal,
            views: Vec::new(),
            figures: Figures::default(),
            read_only: false,
            broken: None,
            needs_rewrite: false,
            reported_write_failure: false,
        }
    }

    pub fn read(&self, table: Table, key: &str) -> Option<Stored> {
        self.state.get(table.name(), key).cloned()
    }

    pub fn page(&self, table: Table, after: Option<&str>, limit: usize) -> Vec<(Box<str>, Stored)> {
        let records_after = self.state.records_after(table.name(), after);
        records_after.take(limit).map(|(key, stored)| (key.clone(), stored.clone())).collect()
    }

    pub fn subscribe(&mut self, table: Table, view: Arc<dyn View>) -> Result<(), String> {
        view.reset(&mut self.state.table(table.name()))?;
        self.views.push((table, view));
        Ok(())
    }

    pub fn figures(&self) -> Figures {
        let mut figures = self.figures.clone();
        figures.revision = self.state.revision;
        // A table with a view is counted even while it is empty.
        let viewed = self.views.iter().map(|(table, _)| (table.name(), 0));
        let stored = self.state.tables().map(|(name, records)| (name, records.len()));
        let records: BTreeMap<&str, usize> = viewed.chain(stored).collect();
        figures.records = records.into_iter().map(|(name, count)| (name.into(), count)).collect();
        figures.wal_bytes = self.wal.as_ref().map_or(0, WriteAheadLog::len);
        figures
    }

    pub fn load(&mut self, read_only: bool) -> Result<(), OpenError> {
        let Some(wal) = &mut self.wal else { return Ok(()) };
        let _guard = match read_only || !wal.exists() {
            true => None,
            false => Some(wal.lock_file()?),
        };
        let (state, torn) = wal.load(read_only)?;
        self.state = state;
        self.figures.torn_bytes += torn;
        Ok(())
    }

    /// Takes the lock and catches up like [`Core::catch_up`], if the log has changed.
    fn lock_and_catch_up(&mut self) -> Result<(), OpenError> {
        let Some(wal) = &mut self.wal else { return Ok(()) };
        if matches!(wal.file_state()?, FileState::Unchanged | FileState::Missing) {
            return Ok(());
        }
        let _guard = if self.read_only { None } else { Some(wal.lock_file()?) };
        self.catch_up()
    }

    /// Applies the changes of other processes, and notifies the views.
    fn catch_up(&mut self) -> Result<(), OpenError> {
        let Some(wal) = &mut self.wal else { return Ok(()) };
        match wal.file_state()? {
            FileState::Unchanged | FileState::Missing => {}
            FileState::Grown => {
                let mut changes = Vec::new();
                let mut on_change = |table: &str, key: &str, value: Option<&str>, revision| {
                    changes.push(AppliedChange::new(table, key, value, revision));
                };
                let read = wal.read_on(&mut self.state, self.read_only, &mut on_change);
                notify(&self.views, &changes);
                self.figures.torn_bytes += read?;
            }
            FileState::Replaced => {
                let (state, torn) = wal.load(self.read_only)?;
                self.state = state;
                self.figures.torn_bytes += torn;
                self.reset_views();
            }
        }
        Ok(())
    }

    fn reset_views(&self) {
        for (table, view) in &self.views {
            if let Err(why) = view.reset(&mut self.state.table(table.name())) {
                tracing::error!(
                    table = table.name(),
                    "configuration store: table is invalid, {why}; the previous state stays in force"
                );
            }
        }
    }

    /// Makes a copy of a cluster's records the node's own.
    fn adopt_copy(&mut self) -> Result<(), OpenError> {
        let Some(wal) = self.wal.as_mut().filter(|_| self.state.founded != 0) else { return Ok(()) };
        let _guard = wal.lock_file()?;
        self.state.founded = 0;
        let written = wal.rewrite(&self.state);
        let path = wal.path().to_owned();
        tracing::info!(path = %path.display(), "configuration store: node runs without a cluster; the copy of the cluster's records becomes its own");
        written.map_err(|error| OpenError { path, fault: OpenFault::Io(error) })
    }

    /// Keeps the log of the node's own records under another name. Returns that name, if there was a log.
    ///
    /// # Errors
    /// Those of the system.
    pub fn archive(&mut self) -> io::Result<Option<PathBuf>> {
        match &mut self.wal {
            Some(wal) if wal.exists() => wal.archive().map(Some),
            _ => Ok(None),
        }
    }

    /// Replaces the copy. The records of the cluster take effect even when this disk cannot store them.
    pub fn replace(&mut self, state: State) {
        self.state = state;
        self.reset_views();
        self.needs_rewrite = true;
        self.write_copy(&[], 0);
    }

    /// Passes batches that the state already has to the views and the log. The first has the revision `first`.
    pub fn follow(&mut self, batches: &[Vec<AppliedChange>], first: u64) {
        for changes in batches {
            notify(&self.views, changes);
        }
        self.figures.accepted += batches.len() as u64;
        self.write_copy(batches, first);
    }

    fn write_copy(&mut self, batches: &[Vec<AppliedChange>], first: u64) {
        let Some(wal) = &mut self.wal else { return };
        let mut write = || -> Result<(), String> {
            let _guard = wal.lock_file().map_err(|error| error.to_string())?;
            if self.needs_rewrite || !wal.is_there() {
                return wal.rewrite(&self.state).map_err(|error| error.to_string());
            }
            if batches.is_empty() {
                return Ok(());
            }
            let batches: Result<Vec<_>, _> = batches.iter().map(|changes| entries(changes)).collect();
            let batches = batches.map_err(|error| error.to_string())?;
            let group = Group { revision: first, batches };
            wal.append(&group).map_err(|failure| failure.error.to_string())
        };
        let written = write();
        let path = wal.path().display();
        match written {
            Ok(()) => {
                if std::mem::take(&mut self.reported_write_failure) {
                    tracing::info!(%path, "configuration store: the copy of the cluster's records is written again");
                }
                self.needs_rewrite = false;
                self.figures.syncs += 1;
                self.compact_when_due();
            }
            Err(error) => {
                self.needs_rewrite = true;
                self.figures.failed += 1;
                // A full disk fails at every change and at each retry: it is logged once.
                if !std::mem::replace(&mut self.reported_write_failure, true) {
                    tracing::error!(%path, "configuration store: the copy of the cluster's records cannot be written, {error}; the records are in force, retrying");
                }
            }
        }
    }

    /// Retries a write of the copy that failed.
    pub fn catch_up_copy(&mut self) {
        if self.needs_rewrite {
            self.write_copy(&[], 0);
        }
    }

    /// Decides on a group of batches, writes the accepted ones, and applies them.
    pub fn commit(&mut self, group: &[Arc<QueuedProposal>], limits: &Limits) {
        let mut accepted: Vec<(&Arc<QueuedProposal>, Revision)> = Vec::new();
        let answer = |one: &QueuedProposal, result| {
            *sync::lock(&one.done) = Some(result);
        };
        let guard = match self.begin() {
            Ok(guard) => guard,
            Err(error) => {
                self.figures.failed += group.len() as u64;
                group.iter().for_each(|one| answer(one, Err(error.clone())));
                return;
            }
        };
        let mut pending = Pending::default();
        for one in group {
            match self.state.accept(&one.batch, &mut pending, limits.records_max) {
                Ok(revision) => accepted.push((one, revision)),
                Err(refusal) => {
                    self.figures.refused += 1;
                    answer(one, Err(refusal));
                }
            }
        }
        if accepted.is_empty() {
            return;
        }
        if let Err(error) = self.write(&accepted) {
            self.figures.failed += accepted.len() as u64;
            accepted.iter().for_each(|(one, _)| answer(one, Err(error.clone())));
            return;
        }
        let mut changes = Vec::new();
        for (one, revision) in &accepted {
            self.state.revision = revision.0;
            for change in &one.batch {
                let (table, key, value) = (change.table.name(), &*change.key, change.value.as_deref());
                self.state.set(table, key, value, *revision);
                changes.push(AppliedChange::new(table, key, value, *revision));
            }
        }
        notify(&self.views, &changes);
        self.figures.accepted += accepted.len() as u64;
        for (one, revision) in accepted {
            answer(one, Ok(revision));
        }
        self.compact_when_due();
        drop(guard);
    }

    /// Prepares a change: takes the lock among processes, and catches up with their changes.
    fn begin(&mut self) -> Result<Option<wal::LockGuard>, ProposeError> {
        if self.read_only {
            return Err(ProposeError::ReadOnly);
        }
        if let Some(why) = &self.broken {
            return Err(ProposeError::Broken { why: why.clone() });
        }
        let Some(wal) = &mut self.wal else { return Ok(None) };
        let unusable = |error: OpenError| ProposeError::Write { why: error.to_string(), path: error.path };
        let guard = wal.lock_file().map_err(unusable)?;
        self.catch_up().map_err(unusable)?;
        if self.state.founded != 0 {
            return Err(ProposeError::OfCluster);
        }
        Ok(Some(guard))
    }

    fn write(&mut self, accepted: &[(&Arc<QueuedProposal>, Revision)]) -> Result<(), ProposeError> {
        let Some(wal) = &mut self.wal else { return Ok(()) };
        let unwritten = |path: &Path, error: io::Error| ProposeError::Write {
            path: path.to_owned(),
            why: error.to_string(),
        };
        if !wal.is_there() {
            wal.rewrite(&self.state).map_err(|error| unwritten(wal.path(), error))?;
        }
        let batches: Result<Vec<_>, _> = accepted.iter().map(|(one, _)| entries_of(&one.batch)).collect();
        let group = batches.map(|batches| Group { revision: self.state.revision + 1, batches });
        let group = group.map_err(|error| unwritten(wal.path(), error.into()))?;
        match wal.append(&group) {
            Ok(()) => self.figures.syncs += 1,
            Err(failure) => {
                if failure.unknown {
                    self.broken = Some(failure.error.to_string());
                }
                return Err(unwritten(wal.path(), failure.error));
            }
        }
        Ok(())
    }

    fn compact_when_due(&mut self) {
        let Some(wal) = &mut self.wal else { return };
        let live = self.state.live_bytes().max(wal.snapshot_len());
        if wal.len() < COMPACT_FROM.max(live.saturating_mul(2)) {
            return;
        }
        let before = wal.len();
        match wal.rewrite(&self.state) {
            Ok(()) => {
                self.figures.compactions += 1;
                tracing::debug!(before, after = wal.len(), "configuration store: log compacted");
            }
            // The existing log still holds everything.
            Err(error) => {
                tracing::warn!(%error, path = %wal.path().display(), "configuration store: log cannot be compacted; the existing log is kept")
            }
        }
    }
}

/// Checks a batch without looking at records.
///
/// # Errors
/// The limit that the batch exceeds.
pub(crate) fn check(batch: &[Change], limits: &Limits) -> Result<(), ProposeError> {
    if batch.len() > limits.changes_max {
        return Err(ProposeError::BatchLong { changes: batch.len(), maximum: limits.changes_max });
    }
    for change in batch {
        if change.key.is_empty() || change.key.len() > limits.key_max {
            return Err(ProposeError::KeyLong { maximum: limits.key_max });
        }
        let value = change.value.as_deref().unwrap_or_default();
        if value == "null" {
            return Err(ProposeError::ValueNull);
        }
        if value.len() > limits.value_max {
            return Err(ProposeError::ValueLong { bytes: value.len(), maximum: limits.value_max });
        }
    }
    let bytes = bytes(batch);
    if bytes > limits.batch_max {
        return Err(ProposeError::ValueLong { bytes, maximum: limits.batch_max });
    }
    Ok(())
}

fn entries_of(batch: &[Change]) -> serde_json::Result<Vec<Entry<'_>>> {
    batch.iter().map(|change| Entry::of(change.proposed())).collect()
}

fn entries(changes: &[AppliedChange]) -> serde_json::Result<Vec<Entry<'_>>> {
    changes.iter().map(|change| Entry::of(change.proposed())).collect()
}

fn notify(views: &[(Table, Arc<dyn View>)], changes: &[AppliedChange]) {
    for (table, view) in views {
        let theirs: Vec<Applied<'_>> = changes
            .iter()
            .filter(|change| *change.table == *table.name())
            .map(|change| Applied {
                key: &change.key,
                value: change.value.as_deref(),
                revision: change.revision,
            })
            .collect();
        if !theirs.is_empty() {
            view.apply(&theirs);
        }
    }
}

/// Upper bound of the bytes of a batch in a line.
fn bytes(batch: &[Change]) -> usize {
    let of = |change: &Change| change.key.len() * 6 + change.value.as_deref().map_or(0, str::len) + 64;
    batch.iter().map(of).sum()
}

/// Maximum number of bytes of batches that share a line.
const GROUP_MAX: usize = 32 << 20;
/// Bytes from which on a log is compacted.
const COMPACT_FROM: u64 = 1 << 20;
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
