use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::{Poll, Waker};

use crate::Handler;
use crate::config::TransportConfig;
use crate::figures::{Counts, Figures};
use crate::listener::Listener;
use crate::mailbox::{MailboxItem, Sender, mailbox};
use crate::net;
use crate::resolver::Resolver;
use crate::secure::Tls;
use crate::transport::{Transport, WAKER};

/// Handle of a running transport. Dropping it stops the transport.
pub struct Handle<L> {
    sender: Sender<L>,
    addresses: Vec<SocketAddr>,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
    /// Channel without messages. It disconnects when the thread ends.
    ended: Receiver<()>,
}

/// Binds the addresses and starts the thread.
///
/// # Errors
/// An address cannot be bound, or the thread cannot be started.
pub fn spawn<C: Handler + 'static>(handler: C, config: TransportConfig) -> io::Result<Handle<C::Command>> {
    let poll = Poll::new()?;
    let (sender, inbox) = mailbox(Waker::new(poll.registry(), WAKER)?);
    let counts = Arc::<Counts>::default();
    let mut listeners = Vec::new();
    let mut addresses = Vec::new();
    for address in &config.listen {
        let socket = net::listen(*address, &config, &counts).map_err(|error| {
            let text = format!("cannot listen for other nodes at {address}: {error}");
            io::Error::new(error.kind(), text)
        })?;
        addresses.push(socket.local_addr()?);
        listeners.push(Listener::new(socket));
    }
    let resolver = Resolver::start(&config, sender.clone())?;
    let (name, (until, ended)) = (config.thread.to_string(), sync_channel(0));
    let transport = Transport::new(handler, config, poll, inbox, listeners, resolver, counts.clone())?;
    let thread = critical::spawn(name, move || {
        transport.run();
        drop(until);
    })?;
    Ok(Handle { sender, addresses, counts, thread: Some(thread), ended })
}

impl<L> Handle<L> {
    /// Returns a sender for threads that have commands for the handler.
    pub fn sender(&self) -> Sender<L> {
        self.sender.clone()
    }

    /// Returns the addresses that other nodes connect to, in the order of the configuration.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub fn figures(&self) -> Figures {
        self.counts.figures()
    }

    /// Sets other certificates for connections from now on. Without TLS it does nothing.
    pub fn renew(&self, tls: Tls) {
        // A transport that has ended has no connections.
        let _ = self.sender.post(MailboxItem::Renewed(tls));
    }

    /// Closes all connections and waits for the end of the thread.
    pub fn stop(mut self) {
        self.end();
    }

    /// Stops like [`Self::stop`], but waits for at most `within`. Returns false when the thread has not ended by then:
    /// it hangs and is abandoned.
    pub fn stop_within(mut self, within: Duration) -> bool {
        self.request_stop();
        let is_stuck = self.ended.recv_timeout(within) == Err(RecvTimeoutError::Timeout);
        if is_stuck {
            self.thread = None;
        }
        !is_stuck
    }

    fn end(&mut self) {
        self.request_stop();
        if let Some(thread) = self.thread.take() {
            // A thread that panics ends the process.
            let _ = thread.join();
        }
    }

    fn request_stop(&self) {
        // The thread may have ended already.
        let _ = self.sender.post(MailboxItem::Stop);
    }
}

impl<L> Drop for Handle<L> {
    fn drop(&mut self) {
        self.end();
    }
}
