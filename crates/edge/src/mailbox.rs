//! How threads hand work to a reactor: a queue, and a wake-up only for one that sleeps.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use broker::{Batch, Letter};
use mio::Waker;

use crate::doors::HalfOpen;
use crate::listener::Place;
use crate::stream::Stream;

/// What a reactor finds in its mailbox.
pub(crate) enum Mail {
    Batch {
        batch: Batch,
        weight: usize,
    },
    Letter(Letter),
    /// A connection that another reactor has accepted.
    Adopt {
        stream: Stream,
        peer: Option<SocketAddr>,
        place: Box<Place>,
        half_open: HalfOpen,
    },
    /// Close everything, for up to `within`, and end.
    Stop {
        within: Duration,
    },
}

impl Mail {
    /// Bytes of a batch; 0 for everything else.
    pub fn weight(&self) -> usize {
        match self {
            Mail::Batch { weight, .. } => *weight,
            Mail::Letter(_) | Mail::Adopt { .. } | Mail::Stop { .. } => 0,
        }
    }
}

/// The sending side. Its queue has no bound of its own: batches are bounded by `weight`, at which senders stop reading from
/// their sockets; everything else is bounded by the number of connections.
#[derive(Clone)]
pub(crate) struct Mailbox {
    sender: Sender<Mail>,
    shared: Arc<Shared>,
}

struct Shared {
    waker: Waker,
    sleeping: AtomicBool,
    /// Weight of batches sent and not worked through.
    weight: AtomicUsize,
}

/// The receiving side, the reactor's own.
pub(crate) struct Inbox {
    receiver: Receiver<Mail>,
    shared: Arc<Shared>,
}

pub(crate) fn mailbox(waker: Waker) -> (Mailbox, Inbox) {
    // tidy: allow(unbounded-channel): batches are bounded by weight, the rest by the number of connections.
    let (sender, receiver) = channel();
    let shared = Arc::new(Shared { waker, sleeping: AtomicBool::new(false), weight: AtomicUsize::new(0) });
    (Mailbox { sender, shared: shared.clone() }, Inbox { receiver, shared })
}

impl Mailbox {
    pub fn send(&self, mail: Mail) {
        let weight = mail.weight();
        self.shared.weight.fetch_add(weight, Ordering::Relaxed);
        // A reactor that has ended reads no more mail; nobody waits for an answer then, and it holds nobody up.
        if self.sender.send(mail).is_err() {
            self.shared.weight.fetch_sub(weight, Ordering::Relaxed);
            return;
        }
        // Paired with the fence in `Inbox::sleep`: either the sleeper sees the mail or we see it sleeping.
        fence(Ordering::SeqCst);
        if self.shared.sleeping.load(Ordering::Relaxed)
            && self.shared.sleeping.swap(false, Ordering::AcqRel)
            && let Err(error) = self.shared.waker.wake()
        {
            tracing::error!(%error, "a reactor could not be woken");
        }
    }

    /// Weight of what waits in the queue.
    pub fn weight(&self) -> usize {
        self.shared.weight.load(Ordering::Relaxed)
    }
}

impl Inbox {
    pub fn next(&self) -> Option<Mail> {
        let mail = self.receiver.try_recv().ok()?;
        self.shared.weight.fetch_sub(mail.weight(), Ordering::Relaxed);
        Some(mail)
    }

    /// Runs `poll` with the reactor marked as asleep. When there is mail, `poll` is told not to wait, and the mail is returned.
    pub fn sleep(&self, poll: impl FnOnce(bool) -> io::Result<()>) -> io::Result<Option<Mail>> {
        self.shared.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mail = self.next();
        // Sockets are looked at even while one letter follows another: others may send without end.
        let result = poll(mail.is_none());
        self.shared.sleeping.store(false, Ordering::Relaxed);
        result.map(|()| mail)
    }
}
