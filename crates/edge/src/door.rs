//! Connections that the process makes to its own node: for bridges and actions.
//!
//! They are socket pairs. One end belongs to a reactor, like any other connection, and the other end to the caller. So
//! limits, back-pressure and order are those of other clients.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::listener::{ConnectionPermit, Shared};
use crate::mailbox::{Mailbox, ReactorCommand};
use crate::stream::Stream;

/// Opens connections to the node.
#[derive(Clone)]
pub struct Door {
    mailboxes: Arc<[Mailbox]>,
    next: Arc<AtomicUsize>,
    listener: Arc<Shared>,
}

impl Door {
    pub(crate) fn new(mailboxes: &[Mailbox], listener: Arc<Shared>) -> Self {
        Self { mailboxes: mailboxes.into(), next: Arc::default(), listener }
    }

    /// Opens a connection, and returns the client's end. It blocks unless the caller changes that. CONNECT is the first
    /// packet, as for any client; access control admits it whatever it says.
    ///
    /// # Errors
    /// The system has no descriptors for it.
    pub fn open(&self) -> io::Result<UnixStream> {
        let (own, theirs) = UnixStream::pair()?;
        theirs.set_nonblocking(true)?;
        let permit = ConnectionPermit::of(&self.listener);
        let half_open = self.listener.connection_counts.enter();
        let stream = Stream::Unix(mio::net::UnixStream::from_std(theirs));
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.mailboxes.len();
        self.mailboxes[at].send(ReactorCommand::Adopt { stream, peer: None, permit, half_open });
        Ok(own)
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.listener.connections.load(Ordering::Relaxed)
    }
}
