//! Commands that a leader proposes without an event for each.
//!
//! One task at a time passes them to `openraft`, and has one batch on its way there. `openraft` appends all commands of
//! a batch or refuses them from one on. What it refuses is proposed again while the replica leads in the same term. So
//! the commands of a term that are in the log are the first ones of those that were taken, in the same order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use openraft::raft::responder::Responder;
use openraft::vote::leader_id_std::CommittedLeaderId;
use openraft::{AsyncRuntime, OptionalSend};

use crate::group::Raft;
use crate::raft_types::{Command, LogId, ReplicaId, Types};
use crate::runtime::Runtime;

/// Maximum number of commands of a batch. `openraft` joins up to 4,096 writes that are in its queue.
const BATCH_MAX: usize = 256;
/// Time after which refused commands are proposed again.
const RETRY: Duration = Duration::from_millis(50);

/// Commands that wait to be applied.
#[derive(Clone, Default)]
pub(crate) struct Writes(Arc<Mutex<Queue>>);

#[derive(Default)]
struct Queue {
    /// Term in which the commands were taken. `None` if the replica does not lead.
    term: Option<u64>,
    /// Commands that `openraft` does not have.
    commands: VecDeque<Arc<Vec<u8>>>,
    /// Number of commands that `openraft` has.
    sent: usize,
    /// Number of the current batch.
    batch: u64,
    /// Number of refused commands of the current batch, and the position of the first of them.
    refused: usize,
    first_refused: Option<usize>,
    /// True if a task passes commands on.
    is_running: bool,
}

/// A command that `openraft` has. It is dropped when the command is applied, refused or lost.
pub(crate) struct WriteTicket {
    writes: Writes,
    batch: u64,
    position: usize,
    is_committed: bool,
}

impl<T: OptionalSend + 'static> Responder<Types, T> for WriteTicket {
    fn on_commit(&mut self, _: LogId) {
        self.is_committed = true;
    }

    fn on_complete(self, _: T) {}
}

impl Drop for WriteTicket {
    fn drop(&mut self) {
        let mut queue = self.writes.lock();
        queue.sent -= 1;
        if !self.is_committed && queue.batch == self.batch {
            queue.refused += 1;
            let first = queue.first_refused.map_or(self.position, |first| first.min(self.position));
            queue.first_refused = Some(first);
        }
    }
}

impl Writes {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        sync::lock(&self.0)
    }

    /// Number of commands that are neither applied nor known to be lost.
    pub fn waiting(&self) -> usize {
        let queue = self.lock();
        queue.commands.len() + queue.sent
    }

    /// Takes a command of a leader in this term. Returns whether [`Self::pass_on`] has to be started.
    pub fn push(&self, term: u64, command: Arc<Vec<u8>>) -> bool {
        let mut queue = self.lock();
        if queue.term != Some(term) {
            queue.commands.clear();
            queue.term = Some(term);
        }
        queue.commands.push_back(command);
        !std::mem::replace(&mut queue.is_running, true)
    }

    /// Drops the commands that are not in the log: the replica leads no more.
    pub fn end_term(&self) {
        let mut queue = self.lock();
        queue.term = None;
        queue.commands.clear();
    }

    /// Passes commands to `openraft`, until none is left.
    pub async fn pass_on(self, raft: Raft, own: ReplicaId) {
        while let Some(term) = self.begin_batch() {
            let mut batch = Vec::new();
            while let Some((command, ticket)) = self.next(term, batch.len()) {
                batch.push(command.clone());
                let write = raft.write(Command(command)).responder(ticket);
                if write.with_leader(CommittedLeaderId::new(term)).await.is_err() {
                    break;
                }
            }
            // `openraft` handles this after the batch.
            let leads = raft.with_raft_state(move |state| {
                let vote = state.vote_ref();
                vote.committed && (vote.leader_id.term, vote.leader_id.voted_for) == (term, own)
            });
            let leads = leads.await.unwrap_or(false);
            let is_refused = self.end_batch(term, batch, leads);
            if is_refused && leads {
                // The lease of the leader has expired, or it transfers its leadership.
                Runtime::sleep(RETRY).await;
            }
        }
    }

    /// Begins the next batch, and returns its term. Returns `None` when no command is left: the task ends.
    fn begin_batch(&self) -> Option<u64> {
        let mut queue = self.lock();
        queue.batch += 1;
        (queue.refused, queue.first_refused) = (0, None);
        queue.is_running = !queue.commands.is_empty();
        queue.term.filter(|_| queue.is_running)
    }

    /// Takes the next command of the batch, if no earlier one was refused.
    fn next(&self, term: u64, position: usize) -> Option<(Arc<Vec<u8>>, WriteTicket)> {
        let mut queue = self.lock();
        if position >= BATCH_MAX || queue.refused > 0 || queue.term != Some(term) {
            return None;
        }
        let command = queue.commands.pop_front()?;
        queue.sent += 1;
        let ticket = WriteTicket { writes: self.clone(), batch: queue.batch, position, is_committed: false };
        Some((command, ticket))
    }

    /// Ends a batch: refused commands are first again, if the replica still leads. Returns whether there are any.
    fn end_batch(&self, term: u64, batch: Vec<Arc<Vec<u8>>>, leads: bool) -> bool {
        let mut queue = self.lock();
        let Some(first) = queue.first_refused else { return false };
        assert_eq!(batch.len() - first, queue.refused, "a command was appended after one that was refused");
        if queue.term != Some(term) {
            return true;
        }
        if leads {
            batch.into_iter().skip(first).rev().for_each(|command| queue.commands.push_front(command));
        } else {
            queue.term = None;
            queue.commands.clear();
        }
        true
    }
}
