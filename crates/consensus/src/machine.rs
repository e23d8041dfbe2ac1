//! State machine of a log, as its owner writes it and as `openraft` drives it: by [`Job`]s.

use std::io;
use std::sync::{Arc, Mutex};

use futures_util::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};

use crate::jobs::{Job, Jobs, Written};
use crate::mutation::{Mutation, mutated};
use crate::raft_log::{CheckpointWriter, NotBegun, Restored, SnapshotData, Store, StoredSnapshot};
use crate::raft_types::{Applied, LogId, Snapshot, SnapshotMeta, StoredMembership, Types};
use crate::wire::term_of;

/// State machine that replicas feed with the same commands. It depends on nothing but the commands.
///
/// A snapshot of its state is a set of numbered parts. Each part has at most 1 MiB and 64 KiB, and a number below
/// `u32::MAX`. The log keeps the newest version of each part, so a snapshot contains only parts that have changed since
/// the one before.
pub trait StateMachine: 'static {
    /// Result of a command, for the owner of the group. See [`Group::drain_effects`](crate::Group::drain_effects).
    type Effect;

    /// True if the parts, in the order of their numbers, are the pieces of [`STREAM_PART_BYTES`] of one sequence of
    /// bytes. Versions of the program that know no parts read and send that sequence.
    const IS_STREAM: bool = false;

    /// Applies one command, and adds its results.
    ///
    /// # Errors
    /// The command is of a later version of the program. The replica stops before it, because its state would differ
    /// from the others'.
    fn apply(
        &mut self,
        committed: &Committed,
        effects: &mut Vec<Self::Effect>,
    ) -> Result<(), UnsupportedVersion>;

    /// Begins a snapshot of the present state, with the parts that have changed since the last one began. Abandons a
    /// snapshot that is not complete: its parts are due again.
    fn begin_checkpoint(&mut self);

    /// Writes parts of the snapshot, until `budget` bytes are exceeded. A part without bytes removes the part. Commands
    /// may be applied between two calls. Returns true when all parts are written.
    fn write_parts(&mut self, budget: usize, out: &mut dyn FnMut(u32, &[u8])) -> bool;

    /// Begins to read a snapshot. The state does not change before [`Self::restored`]: commands may be applied to it
    /// meanwhile. Replaces a snapshot that was begun before: it was given up.
    fn begin_restore(&mut self);

    /// Reads a part of the snapshot. Parts come in any order, those of a [stream](Self::IS_STREAM) in the order of
    /// their numbers.
    ///
    /// # Errors
    /// The bytes are not such a part, or are one of a later version. The replica stops.
    fn restore_part(&mut self, part: u32, bytes: &[u8]) -> Result<(), SnapshotError>;

    /// Replaces the state with the snapshot, whose parts are all read. It includes the commands up to this index.
    ///
    /// # Errors
    /// Parts are missing or contradict each other. The replica stops.
    fn restored(&mut self, index: u64) -> Result<(), SnapshotError>;
}

/// Size of the parts of a [stream](StateMachine::IS_STREAM), apart from the last one.
pub const STREAM_PART_BYTES: usize = 1 << 20;

/// A command that is committed. Its memory is shared with the log's cache of entries.
#[derive(Clone, Debug)]
pub struct Committed {
    /// Index of Raft, see [`log_index`](crate::log_index). It grows with each command. Entries that are no commands
    /// leave gaps.
    pub index: u64,
    pub term: u64,
    pub command: Arc<Vec<u8>>,
}

/// Error: a committed command needs a later version of the program.
#[derive(Debug)]
pub struct UnsupportedVersion;

/// Reason why a snapshot cannot be read.
#[derive(Debug)]
pub enum SnapshotError {
    /// The bytes are not a snapshot of this state machine.
    Invalid,
    UnsupportedVersion,
}

/// Text of the error for operators.
pub(crate) const UNSUPPORTED_VERSION: &str =
    "the cores have committed a command that this version of the program cannot read: update this node";

/// Text of the error about a snapshot that the state machine refuses.
pub(crate) const INVALID_SNAPSHOT: &str = "not a snapshot of this state machine";

/// Maximum number of entries, and of the bytes of their commands, of one [`Job`].
const ENTRIES_MAX: usize = 256;
const COMMAND_BYTES: usize = 1 << 20;

fn unsupported_version() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, UNSUPPORTED_VERSION)
}

/// Reading end of a snapshot.
pub(crate) trait Restore {
    /// Returns whether the parts have to be in the order of their numbers.
    fn needs_order(&self) -> bool;
    fn begin_restore(&mut self);
    fn restore_part(&mut self, part: u32, bytes: &[u8]) -> Result<(), SnapshotError>;
    fn restored(&mut self, index: u64) -> Result<(), SnapshotError>;
}

impl<S: StateMachine> Restore for S {
    fn needs_order(&self) -> bool {
        S::IS_STREAM
    }

    fn begin_restore(&mut self) {
        StateMachine::begin_restore(self);
    }

    fn restore_part(&mut self, part: u32, bytes: &[u8]) -> Result<(), SnapshotError> {
        StateMachine::restore_part(self, part, bytes)
    }

    fn restored(&mut self, index: u64) -> Result<(), SnapshotError> {
        StateMachine::restored(self, index)
    }
}

/// Last entry that is applied, and the members at that entry.
pub(crate) struct State {
    pub applied: Option<LogId>,
    membership: StoredMembership,
    /// True when the replica stopped before a command of a later version.
    pub is_outdated: bool,
}

pub(crate) struct Machine {
    state: Arc<Mutex<State>>,
    jobs: Jobs,
    store: Store,
}

/// Makes one snapshot.
pub(crate) struct Builder {
    meta: SnapshotMeta,
    /// `None` if there is such a snapshot already, or no entry.
    writer: Option<Arc<CheckpointWriter>>,
    jobs: Jobs,
    store: Store,
}

impl Machine {
    /// Makes the state machine after its snapshot was recovered.
    pub fn new(jobs: Jobs, store: Store) -> (Self, Arc<Mutex<State>>) {
        let recovered = store.lock().snapshot_meta().cloned().unwrap_or_default();
        let SnapshotMeta { last_log_id: applied, last_membership: membership } = recovered;
        let state = Arc::new(Mutex::new(State { applied, membership, is_outdated: false }));
        (Self { state: state.clone(), jobs, store }, state)
    }

    /// Stops the replica before data of a later version.
    fn outdated(&self) -> io::Error {
        sync::lock(&self.state).is_outdated = true;
        unsupported_version()
    }

    fn restore_error(&self, error: SnapshotError) -> io::Error {
        match error {
            SnapshotError::Invalid => io::Error::new(io::ErrorKind::InvalidData, INVALID_SNAPSHOT),
            SnapshotError::UnsupportedVersion => self.outdated(),
        }
    }

    /// Applies entries. Those that are no commands change the members only.
    async fn apply_some(&mut self, entries: Vec<EntryResponder<Types>>) -> io::Result<()> {
        let Some((last, _)) = entries.last() else { return Ok(()) };
        let last = last.log_id;
        let (mut commands, mut membership, mut responders) = (Vec::new(), None, Vec::new());
        for (entry, responder) in entries {
            let (index, term) = (entry.log_id.index, term_of(&entry.log_id));
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(command) => commands.push(Committed { index, term, command: command.0 }),
                EntryPayload::Membership(members) => {
                    membership = Some(StoredMembership::new(Some(entry.log_id), members));
                }
            }
            responders.extend(responder);
        }
        // The state of the owner also includes entries without a command.
        let applied = self.jobs.run(|answer| Job::Apply { commands, last: last.index, answer }).await?;
        applied.map_err(|UnsupportedVersion| self.outdated())?;
        {
            let mut state = sync::lock(&self.state);
            state.applied = Some(last);
            if let Some(membership) = membership {
                state.membership = membership;
            }
        }
        for responder in responders {
            responder.send(Applied);
        }
        Ok(())
    }

    /// Makes a received snapshot the state, and completes its checkpoint.
    async fn install(&self, meta: &SnapshotMeta, received: Restored) -> io::Result<()> {
        let Restored { writer, restore } = received;
        let last = meta.last_log_id.ok_or_else(|| io::Error::other("a snapshot without entries"))?;
        let restored = restore.finish(last.index).await?;
        restored.map_err(|error| self.restore_error(error))?;
        {
            let mut state = sync::lock(&self.state);
            state.applied = meta.last_log_id;
            state.membership = meta.last_membership.clone();
        }
        writer.finish(meta.clone()).await
    }
}

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        if let Some(writer) = &self.writer {
            while self.jobs.write_parts(writer).await? == Written::Some {
                writer.room().await?;
            }
            writer.finish(self.meta.clone()).await?;
        }
        let snapshot = self.store.lock().snapshot();
        let none = || {
            let stored = StoredSnapshot::default();
            Snapshot { meta: SnapshotMeta::default(), snapshot: SnapshotData::Stored(stored) }
        };
        Ok(snapshot.unwrap_or_else(none))
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let state = sync::lock(&self.state);
        Ok((state.applied, state.membership.clone()))
    }

    async fn apply<Entries>(&mut self, mut entries: Entries) -> io::Result<()>
    where
        Entries: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        let (mut some, mut bytes) = (Vec::new(), 0);
        while let Some(next) = entries.next().await {
            let next = next?;
            if let EntryPayload::Normal(command) = &next.0.payload {
                bytes += command.0.len();
            }
            some.push(next);
            if some.len() >= ENTRIES_MAX || bytes >= COMMAND_BYTES {
                self.apply_some(std::mem::take(&mut some)).await?;
                bytes = 0;
            }
        }
        self.apply_some(some).await
    }

    /// Puts the snapshot off while another one is written or sent. The replica asks again.
    async fn try_create_snapshot_builder(&mut self, _: bool) -> Option<Builder> {
        let meta = {
            let state = sync::lock(&self.state);
            SnapshotMeta { last_log_id: state.applied, last_membership: state.membership.clone() }
        };
        let index = meta.last_log_id.map_or(0, |last| last.index + 1);
        let writer = match self.store.begin_checkpoint(index) {
            Ok(writer) => Some(Arc::new(writer)),
            Err(NotBegun::Old) => None,
            Err(NotBegun::Busy | NotBegun::Full) => return None,
        };
        if writer.is_some() {
            let last = index - 1;
            // It fails if the owner drops the job. Then the replica stops.
            self.jobs.run(|answer| Job::BeginCheckpoint { last, answer }).await.ok()?;
        }
        Some(Builder { meta, writer, jobs: self.jobs.clone(), store: self.store.clone() })
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let (jobs, store) = (self.jobs.clone(), self.store.clone());
        let made = self.try_create_snapshot_builder(true).await;
        made.unwrap_or_else(|| Builder { meta: SnapshotMeta::default(), writer: None, jobs, store })
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: SnapshotData) -> io::Result<()> {
        // A snapshot that is in the log is this replica's own. It was passed on when the replica was recovered.
        let SnapshotData::Received(received) = snapshot else {
            return Err(io::Error::other("the snapshot is installed already"));
        };
        if mutated(Mutation::SkipInstall) {
            return received.writer.finish(meta.clone()).await;
        }
        self.install(meta, *received).await
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        Ok(self.store.lock().snapshot())
    }
}
