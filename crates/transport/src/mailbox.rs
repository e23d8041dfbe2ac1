//! Mailbox for commands from other threads to the transport: a queue, and a wake-up only for a thread that sleeps.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::mpsc;

use mio::Waker;

use crate::secure::Tls;

/// Item in the mailbox of the transport.
pub enum MailboxItem<L> {
    Command(L),
    /// Answer of the resolver.
    Resolved {
        address: Box<str>,
        found: io::Result<Vec<SocketAddr>>,
    },
    /// Certificates for connections from now on.
    Renewed(Tls),
    Stop,
}

/// Sends commands to the handler of a transport, in order.
///
/// The queue has no bound of its own: a sender without a limit must check [`Self::waiting`].
pub struct Sender<L> {
    sender: mpsc::Sender<MailboxItem<L>>,
    shared: Arc<Shared>,
}

struct Shared {
    waker: Waker,
    is_sleeping: AtomicBool,
    /// Commands that were sent and not received yet.
    waiting: AtomicUsize,
}

/// Receiving side of the mailbox.
pub struct Inbox<L> {
    receiver: mpsc::Receiver<MailboxItem<L>>,
    shared: Arc<Shared>,
}

pub fn mailbox<L>(waker: Waker) -> (Sender<L>, Inbox<L>) {
    // tidy: allow(unbounded-channel): senders look at how much waits; the rest is bounded by the number of peers.
    let (sender, receiver) = mpsc::channel();
    let shared =
        Arc::new(Shared { waker, is_sleeping: AtomicBool::new(false), waiting: AtomicUsize::new(0) });
    (Sender { sender, shared: shared.clone() }, Inbox { receiver, shared })
}

impl<L> Clone for Sender<L> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), shared: self.shared.clone() }
    }
}

impl<L> Sender<L> {
    /// Sends a command.
    ///
    /// # Errors
    /// The command itself, when the transport has ended.
    pub fn send(&self, command: L) -> Result<(), L> {
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        self.post(MailboxItem::Command(command)).map_err(|unsent| {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            match unsent {
                MailboxItem::Command(command) => command,
                _ => unreachable!("it was a command"),
            }
        })
    }

    /// Returns the number of commands that wait for the thread.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn post(&self, item: MailboxItem<L>) -> Result<(), MailboxItem<L>> {
        self.sender.send(item).map_err(|unsent| unsent.0)?;
        // Paired with the fence in `Inbox::sleep`: either the sleeper sees the command, or this thread sees it
        // sleeping.
        fence(Ordering::SeqCst);
        if self.shared.is_sleeping.load(Ordering::Relaxed)
            && self.shared.is_sleeping.swap(false, Ordering::AcqRel)
            && let Err(error) = self.shared.waker.wake()
        {
            tracing::error!(%error, "the thread of the cluster's links could not be woken");
        }
        Ok(())
    }
}

impl<L> Inbox<L> {
    pub fn next(&self) -> Option<MailboxItem<L>> {
        let item = self.receiver.try_recv().ok()?;
        if let MailboxItem::Command(_) = item {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        Some(item)
    }

    /// Runs `poll` with the thread marked as asleep. When an item waits, the argument of `poll` says not to wait, and
    /// the item is returned.
    pub fn sleep(&self, poll: impl FnOnce(bool) -> io::Result<()>) -> io::Result<Option<MailboxItem<L>>> {
        self.shared.is_sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let item = self.next();
        let result = poll(item.is_none());
        self.shared.is_sleeping.store(false, Ordering::Relaxed);
        result.map(|()| item)
    }
}
