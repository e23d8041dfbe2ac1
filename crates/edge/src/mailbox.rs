//! Mailboxes of reactors: a queue of commands from other threads, and a wake-up for a reactor that sleeps.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use broker::{Batch, WorkerCommand};
use mio::Waker;

use crate::connection_counts::HalfOpen;
use crate::listener::ConnectionPermit;
use crate::stream::Stream;

/// Command in a reactor's mailbox.
pub(crate) enum ReactorCommand {
    Batch {
        batch: Batch,
        weight: usize,
    },
    WorkerCommand(WorkerCommand),
    /// Adopt a connection that another reactor has accepted.
    Adopt {
        stream: Stream,
        peer: Option<SocketAddr>,
        permit: ConnectionPermit,
        half_open: HalfOpen,
    },
    /// Close all connections, for up to `within`, and accept no others.
    Close {
        within: Duration,
    },
    /// Do the same and end.
    Stop {
        within: Duration,
    },
}

impl ReactorCommand {
    /// Size of a batch in bytes; 0 for all other commands.
    pub fn weight(&self) -> usize {
        match self {
            ReactorCommand::Batch { weight, .. } => *weight,
            ReactorCommand::WorkerCommand(_)
            | ReactorCommand::Adopt { .. }
            | ReactorCommand::Close { .. }
            | ReactorCommand::Stop { .. } => 0,
        }
    }
}

/// Sending side. The queue itself is unbounded. Batches are bounded by `weight`, at which senders stop reading from
/// their sockets; everything else is bounded by the number of connections.
#[derive(Clone)]
pub(crate) struct Mailbox {
    sender: Sender<ReactorCommand>,
    shared: Arc<Shared>,
}

struct Shared {
    waker: Waker,
    sleeping: AtomicBool,
    /// Weight of the batches that are sent and not yet handled.
    weight: AtomicUsize,
}

/// Receiving side, owned by the reactor.
pub(crate) struct Inbox {
    receiver: Receiver<ReactorCommand>,
    /// First command, if it has been looked at.
    first: Option<ReactorCommand>,
    shared: Arc<Shared>,
}

pub(crate) fn mailbox(waker: Waker) -> (Mailbox, Inbox) {
    // tidy: allow(unbounded-channel): batches are bounded by weight, the rest by the number of connections.
    let (sender, receiver) = channel();
    let shared = Arc::new(Shared { waker, sleeping: AtomicBool::new(false), weight: AtomicUsize::new(0) });
    (Mailbox { sender, shared: shared.clone() }, Inbox { receiver, first: None, shared })
}

impl Mailbox {
    pub fn send(&self, command: ReactorCommand) {
        let weight = command.weight();
        self.shared.weight.fetch_add(weight, Ordering::Relaxed);
        // A reactor that has ended reads no more commands. Then no sender waits for an answer, and the reactor delays
        // none.
        if self.sender.send(command).is_err() {
            self.shared.weight.fetch_sub(weight, Ordering::Relaxed);
            return;
        }
        // Paired with the fence before a reactor sleeps: either the sleeper sees the command, or this thread sees it
        // sleeping.
        fence(Ordering::SeqCst);
        if self.shared.sleeping.load(Ordering::Relaxed) && self.shared.sleeping.swap(false, Ordering::AcqRel)
        {
            self.wake();
        }
    }

    /// Wakes the thread that runs the reactor.
    pub fn wake(&self) {
        if let Err(error) = self.shared.waker.wake() {
            tracing::error!(%error, "cannot wake a reactor");
        }
    }

    /// Weight of the queued batches.
    pub fn weight(&self) -> usize {
        self.shared.weight.load(Ordering::Relaxed)
    }
}

impl Inbox {
    pub fn next(&mut self) -> Option<ReactorCommand> {
        let command = self.first.take().or_else(|| self.receiver.try_recv().ok())?;
        self.shared.weight.fetch_sub(command.weight(), Ordering::Relaxed);
        Some(command)
    }

    /// Returns whether a command is queued.
    pub fn has_next(&mut self) -> bool {
        if self.first.is_none() {
            self.first = self.receiver.try_recv().ok();
        }
        self.first.is_some()
    }

    /// Marks the reactor as asleep: from now on a sender wakes it. Before its thread sleeps, [`Self::has_next`] must
    /// say that no command is queued. A fence must come between the two; it is paired with the one in
    /// [`Mailbox::send`], so that either the sleeper sees the command, or the sender sees it sleeping.
    pub fn mark_asleep(&self) {
        self.shared.sleeping.store(true, Ordering::Relaxed);
    }

    pub fn mark_awake(&self) {
        self.shared.sleeping.store(false, Ordering::Relaxed);
    }

    /// Runs `poll` with the reactor marked as asleep. When a command is queued, `poll` must not wait.
    pub fn sleep(&mut self, poll: impl FnOnce(bool) -> io::Result<()>) -> io::Result<()> {
        self.mark_asleep();
        fence(Ordering::SeqCst);
        // Sockets are polled even while commands keep arriving, because other reactors may send without end.
        let is_empty = !self.has_next();
        let result = poll(is_empty);
        self.mark_awake();
        result
    }
}
