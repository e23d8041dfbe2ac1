//! Work of a state machine that its owner does.
//!
//! The tasks of `openraft` have no access to the state machine. They queue [`Job`]s, and each waits for its answer. So
//! the state machine has no lock. The owner takes the jobs with [`Replica::poll_job`](crate::Replica::poll_job). A
//! [`Group`](crate::Group) does them at once. Another owner may answer several turns later.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use openraft::AsyncRuntime;
use openraft::rt::Select2;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, oneshot};

use crate::machine::{Committed, SnapshotError, StateMachine, UnsupportedVersion};
use crate::raft_log::CheckpointWriter;
use crate::raft_types::LogId;
use crate::runtime::Runtime;
use crate::wire::term_of;

/// Work of a state machine. The replica goes on when the owner has answered. All indexes are those of Raft, see
/// [`log_index`](crate::log_index).
///
/// `Apply`, `BeginCheckpoint` and `Restored` come one at a time. So do `BeginRestore`, `RestorePart` and `Prepare`, and
/// the jobs to write parts. But a job of one kind may come before one of another kind is answered.
pub enum Job {
    /// Applies these commands in their order. Entries that are no commands have none here, so there may be gaps between
    /// the indexes, and no command at all.
    Apply {
        commands: Vec<Committed>,
        /// Index of the last entry of the job. The state includes everything up to here when the job is answered.
        last: u64,
        /// The commands are applied. With an error, the replica stops before them.
        answer: Answer<Result<(), UnsupportedVersion>>,
    },
    /// Begins a snapshot of the present state, with the parts that have changed since the last one began. Abandons a
    /// snapshot that is not complete: its parts are due again.
    BeginCheckpoint {
        /// Index of the last entry that the state includes.
        last: u64,
        answer: Answer<()>,
    },
    /// Writes parts of the snapshot.
    WriteParts(WriteParts),
    /// Begins to read a snapshot of another replica. The state does not change before [`Self::Restored`]: commands may
    /// be applied to it meanwhile.
    BeginRestore { answer: Answer<()> },
    /// Reads a part of the snapshot. After an error the replica stops.
    RestorePart { part: u32, bytes: Arc<[u8]>, answer: Answer<Result<(), SnapshotError>> },
    /// Fetches what the new state refers to and the snapshot does not contain. All parts are read. The answer may take
    /// minutes. What was fetched is durable before it, because the replica then confirms the snapshot. If another
    /// snapshot replaces this one, or its entries arrive, the answer is [closed](Answer::is_closed). The replica sets
    /// no limit: an owner that gets no further gives up.
    Prepare {
        /// Index of the last entry that the snapshot includes.
        last: u64,
        /// Term of that entry, for [`Replica::entries_as_of`](crate::Replica::entries_as_of).
        term: u64,
        /// An error means that nothing is installed, and that the leader tries again later.
        answer: Answer<Result<(), GivenUp>>,
    },
    /// Replaces the state with the snapshot. It includes the commands up to `last`. After an error the replica stops.
    Restored { last: u64, answer: Answer<Result<(), SnapshotError>> },
    /// Drops the snapshot of the last `BeginRestore`: it is not installed. Also comes after the owner has given up.
    AbandonRestore,
}

/// Error: the owner does not install a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp;

/// A snapshot that the owner reads. When this is dropped, it is abandoned.
pub(crate) struct Restore {
    jobs: Jobs,
    is_over: bool,
    /// The next snapshot waits: otherwise it would be abandoned with this one.
    _turn: OwnedMutexGuard<()>,
}

/// Reason why a snapshot of another replica was not restored.
pub(crate) enum NotRestored {
    /// The owner, or the replica, has given it up.
    GivenUp,
    /// The owner cannot read it.
    Unreadable(SnapshotError),
}

impl From<io::Error> for NotRestored {
    /// The log has failed, the checkpoint was given up, or a job was dropped.
    fn from(_: io::Error) -> Self {
        Self::GivenUp
    }
}

impl Restore {
    /// Passes a snapshot to the owner, a part at a time. Returns when the owner is ready to replace its state.
    ///
    /// # Errors
    /// [`NotRestored`].
    pub async fn run(jobs: &Jobs, last: &LogId, writer: &CheckpointWriter) -> Result<Self, NotRestored> {
        let turn = jobs.restoring.clone().lock_owned().await;
        writer.all_durable().await?;
        let parts = writer.parts()?;
        let restore = Self { jobs: jobs.clone(), is_over: false, _turn: turn };
        jobs.run(|answer| Job::BeginRestore { answer }).await?;
        for part in parts.0.into_keys() {
            let bytes = writer.read(part).await?;
            let restored = jobs.run(|answer| Job::RestorePart { part, bytes, answer }).await?;
            restored.map_err(NotRestored::Unreadable)?;
        }
        if !writer.is_current() {
            return Err(NotRestored::GivenUp);
        }
        let (last, term) = (last.index, term_of(last));
        let prepared = jobs.run(|answer| Job::Prepare { last, term, answer });
        match Runtime::select2(writer.given_up(), prepared).await {
            Select2::First(_) => Err(NotRestored::GivenUp),
            Select2::Second(prepared) => match prepared? {
                Ok(()) => Ok(restore),
                Err(GivenUp) => Err(NotRestored::GivenUp),
            },
        }
    }

    /// Replaces the state with the snapshot.
    ///
    /// # Errors
    /// The owner has dropped the job.
    pub async fn finish(mut self, last: u64) -> io::Result<Result<(), SnapshotError>> {
        self.is_over = true;
        self.jobs.run(|answer| Job::Restored { last, answer }).await
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        if !self.is_over {
            self.jobs.push(Job::AbandonRestore);
        }
    }
}

/// Answer that a replica waits for. If it is dropped without a call of [`Self::send`], the replica stops.
pub struct Answer<T> {
    sender: Option<oneshot::Sender<T>>,
    jobs: Jobs,
}

impl<T> Answer<T> {
    pub fn send(mut self, answer: T) {
        if let Some(sender) = self.sender.take() {
            // The replica may have ended, or have given the snapshot up.
            let _ = sender.send(answer);
        }
    }

    /// Returns whether nobody waits for the answer any more: the replica has ended, or has given the snapshot up.
    pub fn is_closed(&self) -> bool {
        self.sender.as_ref().is_none_or(oneshot::Sender::is_closed)
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if !self.is_closed() {
            self.jobs.is_dropped.store(true, Ordering::Relaxed);
        }
    }
}

/// Job to write parts of a snapshot.
pub struct WriteParts {
    writer: Arc<CheckpointWriter>,
    failed: Option<io::Error>,
    answer: Answer<io::Result<Written>>,
}

/// Parts of a snapshot that a job has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Not all of those that are left. Another job follows when the log has taken these.
    Some,
    /// All that were left.
    All,
}

impl WriteParts {
    /// Number of bytes after which a job leaves the rest to the next one.
    pub const BUDGET: usize = 1 << 20;

    /// Writes a part. Without bytes, it removes the part.
    ///
    /// # Panics
    /// Panics on more than 1 MiB and 64 KiB, and if the snapshot has more than 2^18 parts: errors of the caller.
    pub fn put(&mut self, part: u32, bytes: &[u8]) {
        if self.failed.is_none() {
            self.failed = self.writer.put(part, bytes).err();
        }
    }

    pub fn answer(self, written: Written) {
        let Self { failed, answer, .. } = self;
        answer.send(failed.map_or(Ok(written), Err));
    }
}

/// Jobs that wait for the owner. Few: the tasks of `openraft` wait for each.
#[derive(Clone, Default)]
pub(crate) struct Jobs {
    queue: Arc<Mutex<VecDeque<Job>>>,
    /// True if an answer was dropped.
    is_dropped: Arc<AtomicBool>,
    /// Held while a snapshot of another replica is restored.
    restoring: Arc<AsyncMutex<()>>,
}

impl Jobs {
    /// Maximum number of times that a turn of a group runs jobs. It limits the time of a turn.
    pub const ROUNDS_MAX: usize = 16;

    /// Queues a job, and waits for its answer.
    ///
    /// # Errors
    /// The owner has dropped the job.
    pub async fn run<T>(&self, job: impl FnOnce(Answer<T>) -> Job) -> io::Result<T> {
        let (sender, receiver) = oneshot::channel();
        self.push(job(Answer { sender: Some(sender), jobs: self.clone() }));
        receiver.await.map_err(|_| io::Error::other(DROPPED))
    }

    pub fn push(&self, job: Job) {
        sync::lock(&self.queue).push_back(job);
    }

    /// Writes parts of a snapshot.
    ///
    /// # Errors
    /// The writer was given up, or the log has failed.
    pub async fn write_parts(&self, writer: &Arc<CheckpointWriter>) -> io::Result<Written> {
        let job = |answer| Job::WriteParts(WriteParts { writer: writer.clone(), failed: None, answer });
        self.run(job).await?
    }

    pub fn poll(&self) -> Option<Job> {
        sync::lock(&self.queue).pop_front()
    }

    pub fn is_empty(&self) -> bool {
        sync::lock(&self.queue).is_empty()
    }

    /// Returns whether an answer was dropped since the last call.
    pub fn take_dropped(&self) -> bool {
        self.is_dropped.swap(false, Ordering::Relaxed)
    }
}

/// Reason why a replica stops whose owner drops an answer.
pub(crate) const DROPPED: &str = "the owner of the state machine has dropped a job without an answer";

impl Job {
    /// Runs the job on a state machine that answers at once.
    pub(crate) fn run<S: StateMachine>(self, machine: &mut S, effects: &mut Vec<S::Effect>) {
        match self {
            Self::Apply { commands, answer, .. } => {
                let mut commands = commands.iter();
                answer.send(commands.try_for_each(|command| machine.apply(command, effects)));
            }
            Self::BeginCheckpoint { answer, .. } => {
                machine.begin_checkpoint();
                answer.send(());
            }
            Self::WriteParts(mut parts) => {
                let put = &mut |part: u32, bytes: &[u8]| parts.put(part, bytes);
                let is_last = machine.write_parts(WriteParts::BUDGET, put);
                parts.answer(if is_last { Written::All } else { Written::Some });
            }
            Self::BeginRestore { answer } => {
                machine.begin_restore();
                answer.send(());
            }
            Self::RestorePart { part, bytes, answer } => answer.send(machine.restore_part(part, &bytes)),
            Self::Prepare { answer, .. } => answer.send(Ok(())),
            Self::Restored { last, answer } => answer.send(machine.restored(last)),
            // The next snapshot that is restored replaces the parts.
            Self::AbandonRestore => {}
        }
    }
}
