//! Records of a cluster: the state machine of the cores, and the copies on all nodes. Little endian:
//!
//! ```text
//! snapshot  version u8 = 1, count u32, (id u128, answer u32 + bytes)*, whole
//! whole     version u8 = 1, revision u64, count u64, record*
//! record    table u8 + bytes, key u16 + bytes, revision u64, value u32 + bytes
//! ```

mod pieces;

use std::collections::VecDeque;
use std::hash::Hasher as _;
use std::sync::Arc;

use fnv::FnvHasher;
use pieces::Writing;

pub use self::pieces::SnapshotReader;
use crate::batch::{self, Batch, Reader, put_name, put_value};
use crate::change::{Applied, Revision, Stored, Table};
use crate::state::{AppliedChange, State};

/// Limits of the records. They are the same on all cores: a batch that one accepts, all have to accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordsLimits {
    /// Maximum number of records of all tables together.
    pub records_max: usize,
    /// Maximum number of batches, and of their bytes, that are kept for nodes that lag.
    pub tail_max: usize,
    pub tail_bytes_max: usize,
    /// Maximum number of proposals that are recognized when they are repeated.
    pub recent_max: usize,
}

impl Default for RecordsLimits {
    fn default() -> Self {
        Self { records_max: 4_000_000, tail_max: 4_096, tail_bytes_max: 16 << 20, recent_max: 4_096 }
    }
}

/// Cluster and last change of a copy. `founded` is the number of the cluster; 0: the copy is of no cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub founded: u128,
    pub revision: u64,
}

impl Position {
    /// Position of an unusable copy: it needs all records.
    pub const LOST: Self = Self { founded: u128::MAX, revision: 0 };
}

/// Update of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordUpdate {
    /// The batches from this revision on.
    Tail { founded: u128, first: u64, batches: Vec<Arc<[u8]>> },
    /// All records.
    Whole { founded: u128, bytes: Arc<[u8]> },
}

/// Records of a cluster on a core. They follow from the batches and their order alone.
#[derive(Clone, Default)]
pub struct Records {
    state: State,
    limits: RecordsLimits,
    /// Answers to the most recent proposals.
    recent: VecDeque<(u128, Arc<[u8]>)>,
    /// The most recent accepted batches. The last of them made the current revision.
    tail: VecDeque<Arc<[u8]>>,
    tail_bytes: usize,
    /// Snapshot that is being written.
    writing: Option<Writing>,
}

impl Records {
    pub fn new(limits: RecordsLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    pub fn limits(&self) -> RecordsLimits {
        self.limits
    }

    pub fn revision(&self) -> u64 {
        self.state.revision
    }

    /// Number of records of all tables.
    pub fn len(&self) -> usize {
        self.state.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Value of a record, as JSON.
    pub fn get(&self, table: &str, key: &str) -> Option<&str> {
        self.state.get(table, key).map(|stored| &*stored.value)
    }

    /// Applies the next batch. Returns the [`Answer`](crate::Answer) for its proposer. A batch without changes makes no
    /// revision. Never panics.
    pub fn apply(&mut self, bytes: &[u8]) -> Vec<u8> {
        let Some(batch) = Batch::decode(bytes) else { return batch::encode_no_batch(self.state.revision) };
        if let Some((_, answer)) = self.recent.iter().rev().find(|(id, _)| *id == batch.id) {
            return answer.to_vec();
        }
        if let Some(writing) = &mut self.writing {
            batch.changes.iter().for_each(|change| writing.keep(&self.state, change.table, change.key));
        }
        let outcome = match batch.changes.is_empty() {
            true => Ok(()),
            false => self.state.apply(&batch, self.limits.records_max).map(drop),
        };
        let answer = batch::encode_answer(self.state.revision, &outcome, self.limits.records_max);
        if batch.changes.is_empty() {
            return answer;
        }
        self.remember(batch.id, answer.as_slice().into());
        if outcome.is_ok() {
            self.tail_bytes += bytes.len();
            self.tail.push_back(bytes.into());
            while self.tail.len() > self.limits.tail_max || self.tail_bytes > self.limits.tail_bytes_max {
                let Some(gone) = self.tail.pop_front() else { break };
                self.tail_bytes -= gone.len();
            }
        }
        answer
    }

    fn remember(&mut self, id: u128, answer: Arc<[u8]>) {
        if self.recent.len() >= self.limits.recent_max {
            self.recent.pop_front();
        }
        self.recent.push_back((id, answer));
    }

    /// Batches after a revision: at least one, and more up to `bytes_max` bytes together. Returns `None` when some of
    /// them are no longer kept, or the revision does not exist yet.
    pub fn since(&self, revision: u64, bytes_max: usize) -> Option<Vec<Arc<[u8]>>> {
        let missing = usize::try_from(self.state.revision.checked_sub(revision)?).ok()?;
        let skipped = self.tail.len().checked_sub(missing)?;
        let mut bytes = 0;
        let fits = |batch: &&Arc<[u8]>| {
            let is_first = bytes == 0;
            bytes += batch.len();
            is_first || bytes <= bytes_max
        };
        Some(self.tail.range(skipped..).take_while(fits).cloned().collect())
    }

    /// Encodes all records for copies: [`RecordUpdate::Whole`].
    pub fn whole(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.state.live_bytes() as usize);
        put_whole(&self.state, &mut out);
        out
    }

    /// Returns the records as those of a node alone, without some tables and without the marker of an import.
    pub(crate) fn own_without(&self, tables: &[Table]) -> State {
        let mut own = self.state.clone();
        own.founded = 0;
        let is_left_out = |table: &str| {
            table == crate::replicated::IMPORT_TABLE.name() || tables.iter().any(|it| it.name() == table)
        };
        for (table, records) in self.state.tables().filter(|(table, _)| is_left_out(table)) {
            for (key, stored) in records {
                own.set(table, key, None, stored.revision);
            }
        }
        own
    }

    /// Encodes the complete state, including the recent answers. [`Self::begin_snapshot`] does it in pieces.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put_recent(&mut out);
        put_whole(&self.state, &mut out);
        out
    }

    fn put_recent(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        out.extend((self.recent.len() as u32).to_le_bytes());
        for (id, answer) in &self.recent {
            out.extend(id.to_le_bytes());
            out.extend((answer.len() as u32).to_le_bytes());
            out.extend(&**answer);
        }
    }

    /// Replaces the state with a snapshot. Returns false for bytes that are not a snapshot of this version, and changes
    /// nothing. Never panics.
    pub fn restore(&mut self, snapshot: &[u8]) -> bool {
        let mut reader = SnapshotReader::default();
        let Some(records) = reader.feed(snapshot).then(|| reader.finish(self.limits)).flatten() else {
            return false;
        };
        *self = records;
        true
    }
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records")
            .field("revision", &self.revision())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

type RecentAnswers = VecDeque<(u128, Arc<[u8]>)>;

/// Puts the fields of all records before the first one.
fn put_head(state: &State, out: &mut Vec<u8>) {
    out.push(VERSION);
    out.extend(state.revision.to_le_bytes());
    out.extend((state.len() as u64).to_le_bytes());
}

fn put_whole(state: &State, out: &mut Vec<u8>) {
    put_head(state, out);
    for (table, records) in state.tables() {
        for (key, stored) in records {
            put_name(table, key, out);
            out.extend(stored.revision.0.to_le_bytes());
            put_value(&stored.value, out);
        }
    }
}

fn read_whole(bytes: &[u8]) -> Option<State> {
    let mut reader = Reader(bytes);
    if reader.u8()? != VERSION {
        return None;
    }
    let mut state = State::default();
    state.revision = reader.u64()?;
    for _ in 0..reader.u64()? {
        let (table, key) = reader.name()?;
        let revision = reader.u64()?;
        let value = reader.value()?;
        if revision > state.revision || state.get(table, key).is_some() {
            return None;
        }
        state.set(table, key, Some(value), Revision(revision));
    }
    reader.0.is_empty().then_some(state)
}

/// Result of an update of a copy.
pub(crate) enum UpdateOutcome {
    /// Changes, by batch.
    Changes(Vec<Vec<AppliedChange>>),
    /// A new state replaces the copy.
    Replaced(State),
    /// The update does not fit this copy.
    Rejected,
}

/// Applies an update to a copy. For any input, the copy stays a state that some core had.
pub(crate) fn follow(state: &mut State, update: &RecordUpdate) -> UpdateOutcome {
    match update {
        RecordUpdate::Whole { founded, bytes } => match read_whole(bytes) {
            Some(mut whole) => {
                whole.founded = *founded;
                UpdateOutcome::Replaced(whole)
            }
            None => UpdateOutcome::Rejected,
        },
        RecordUpdate::Tail { founded, first, batches } => {
            if *founded == state.founded {
                return follow_tail(state, *first, batches);
            }
            // The very first batches are a beginning for a copy that has nothing of this cluster.
            let mut fresh = State::default();
            fresh.founded = *founded;
            match follow_tail(&mut fresh, *first, batches) {
                UpdateOutcome::Changes(changes) if !changes.is_empty() => UpdateOutcome::Replaced(fresh),
                _ => UpdateOutcome::Rejected,
            }
        }
    }
}

fn follow_tail(state: &mut State, first: u64, batches: &[Arc<[u8]>]) -> UpdateOutcome {
    let Some(skipped) = state.revision.checked_add(1).and_then(|next| next.checked_sub(first)) else {
        return UpdateOutcome::Rejected;
    };
    let mut done = Vec::new();
    for bytes in batches.iter().skip(usize::try_from(skipped).unwrap_or(usize::MAX)) {
        let applied = Batch::decode(bytes).and_then(|batch| state.apply(&batch, usize::MAX).ok());
        match applied {
            Some(changes) => done.push(changes),
            // The core accepted the batch, so the copy differs from its records.
            None if done.is_empty() => return UpdateOutcome::Rejected,
            None => break,
        }
    }
    UpdateOutcome::Changes(done)
}

/// Copy of a cluster's records in memory.
#[derive(Clone, Default)]
pub struct Copy {
    state: State,
}

impl Copy {
    pub fn position(&self) -> Position {
        Position { founded: self.state.founded, revision: self.state.revision }
    }

    /// Record of this table and key.
    pub fn get(&self, table: &str, key: &str) -> Option<&Stored> {
        self.state.get(table, key)
    }

    /// Applies an update. Returns false when it does not fit this copy. Never panics.
    pub fn take(&mut self, update: &RecordUpdate) -> bool {
        match follow(&mut self.state, update) {
            UpdateOutcome::Changes(_) => true,
            UpdateOutcome::Replaced(state) => {
                self.state = state;
                true
            }
            UpdateOutcome::Rejected => false,
        }
    }

    /// Records of a table, in the order of keys.
    pub fn table(&self, table: &str) -> impl Iterator<Item = Applied<'_>> {
        self.state.table(table)
    }

    /// Hash over all records and their revisions: FNV-1a.
    pub fn digest(&self) -> u64 {
        let mut out = Vec::new();
        put_whole(&self.state, &mut out);
        let mut hasher = FnvHasher::default();
        hasher.write(&out);
        hasher.finish()
    }
}

const VERSION: u8 = 1;

#[cfg(test)]
mod tests;
