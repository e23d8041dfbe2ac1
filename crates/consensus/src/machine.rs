//! State machine of a log, as `openraft` drives it.

use std::io;
use std::sync::{Arc, Mutex};

use futures_util::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};

use crate::raft_log::{SnapshotData, Store};
use crate::raft_types::{Answer, LogId, Snapshot, SnapshotMeta, StoredMembership, Types};

/// State machine that replicas feed with the same commands. It depends on nothing but the commands.
pub trait StateMachine: Send + 'static {
    /// Applies one command, and returns the answer for its proposer. `index` grows with each command.
    ///
    /// # Errors
    /// The command is of a later version of the program. The replica stops before it, because its state would differ
    /// from the others'.
    fn apply(&mut self, index: u64, command: &[u8]) -> Result<Vec<u8>, UnsupportedVersion>;

    /// Encodes the whole state.
    fn snapshot(&self) -> Vec<u8>;

    /// Replaces the state with a snapshot.
    ///
    /// # Errors
    /// The bytes are not a snapshot, or are one of a later version. The replica stops.
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), SnapshotError>;
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

fn unsupported_version() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, UNSUPPORTED_VERSION)
}

/// State machine that its owner can read while a replica drives it. Hides its type from large generic code.
pub(crate) struct Shared<S>(pub Arc<Mutex<S>>);

impl<S: StateMachine> StateMachine for Shared<S> {
    fn apply(&mut self, index: u64, command: &[u8]) -> Result<Vec<u8>, UnsupportedVersion> {
        sync::lock(&self.0).apply(index, command)
    }

    fn snapshot(&self) -> Vec<u8> {
        sync::lock(&self.0).snapshot()
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), SnapshotError> {
        sync::lock(&self.0).restore(snapshot)
    }
}

/// State of one replica, and the last entry that it includes.
pub(crate) struct State {
    machine: Box<dyn StateMachine>,
    pub applied: Option<LogId>,
    membership: StoredMembership,
    /// True when the replica stopped before a command of a later version.
    pub is_outdated: bool,
}

pub(crate) struct Machine {
    state: Arc<Mutex<State>>,
    store: Store,
}

pub(crate) struct Builder {
    meta: SnapshotMeta,
    bytes: Arc<[u8]>,
    store: Store,
}

impl Machine {
    pub fn new(machine: Box<dyn StateMachine>, store: Store) -> (Self, Arc<Mutex<State>>) {
        let membership = StoredMembership::default();
        let state = State { machine, applied: None, membership, is_outdated: false };
        let state = Arc::new(Mutex::new(state));
        (Self { state: state.clone(), store }, state)
    }
}

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let (meta, bytes) = (self.meta.clone(), self.bytes.clone());
        self.store.save_snapshot(meta.clone(), bytes.clone()).await?;
        Ok(Snapshot { meta, snapshot: SnapshotData::Bytes(bytes) })
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
        while let Some(next) = entries.next().await {
            let (entry, responder) = next?;
            let mut state = sync::lock(&self.state);
            let answer = match entry.payload {
                EntryPayload::Blank => Vec::new(),
                EntryPayload::Normal(command) => {
                    let answer = state.machine.apply(entry.log_id.index, &command.0);
                    answer.map_err(|UnsupportedVersion| {
                        state.is_outdated = true;
                        unsupported_version()
                    })?
                }
                EntryPayload::Membership(membership) => {
                    state.membership = StoredMembership::new(Some(entry.log_id), membership);
                    Vec::new()
                }
            };
            state.applied = Some(entry.log_id);
            drop(state);
            if let Some(responder) = responder {
                responder.send(Answer(answer));
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let state = sync::lock(&self.state);
        let meta = SnapshotMeta { last_log_id: state.applied, last_membership: state.membership.clone() };
        Builder { meta, bytes: state.machine.snapshot().into(), store: self.store.clone() }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: SnapshotData) -> io::Result<()> {
        // A snapshot that is only in the log is this replica's own.
        let SnapshotData::Bytes(snapshot) = snapshot else {
            return Err(io::Error::other("the snapshot is installed already"));
        };
        {
            let mut state = sync::lock(&self.state);
            state.machine.restore(&snapshot).map_err(|error| match error {
                SnapshotError::Invalid => {
                    io::Error::new(io::ErrorKind::InvalidData, "not a snapshot of this state machine")
                }
                SnapshotError::UnsupportedVersion => {
                    state.is_outdated = true;
                    unsupported_version()
                }
            })?;
            state.applied = meta.last_log_id;
            state.membership = meta.last_membership.clone();
        }
        self.store.save_snapshot(meta.clone(), snapshot).await
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        Ok(self.store.lock().snapshot())
    }
}
