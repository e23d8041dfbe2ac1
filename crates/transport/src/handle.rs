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

/// A carrier that runs. It ends when this is dropped.
pub struct Handle<L> {
    sender: Sender<L>,
    addresses: Vec<SocketAddr>,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
    /// Nothing comes; its other end goes with the thread.
    ended: Receiver<()>,
}

/// Binds the addresses and starts the thread.
///
/// # Errors
/// An address that cannot be had, or no thread.
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
    /// For threads that have letters for the core.
    pub fn sender(&self) -> Sender<L> {
        self.sender.clone()
    }

    /// Where other nodes connect to, in the order of the configuration.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub fn figures(&self) -> Figures {
        self.counts.figures()
    }

    /// Other certificates, for connections from now on. Nothing happens without TLS.
    pub fn renew(&self, tls: Tls) {
        // A carrier that has ended has no connections.
        let _ = self.sender.post(MailboxItem::Renewed(tls));
    }

    /// Closes all connections and waits for the end of the thread.
    pub fn stop(mut self) {
        self.end();
    }

    /// The same, but waits so long at most. False when the thread has not ended by then: it is stuck, and left to itself.
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
            // One that panics ends the process.
            let _ = thread.join();
        }
    }

    fn request_stop(&self) {
        // It may have ended already.
        let _ = self.sender.post(MailboxItem::Stop);
    }
}

impl<L> Drop for Handle<L> {
    fn drop(&mut self) {
        self.end();
    }
}
