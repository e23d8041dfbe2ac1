//! New connections, accepted by this reactor or by another one for it.

use std::io;
use std::net::{IpAddr, SocketAddr};

use broker::Time;
use mio::Token;

use super::{Peer, PeerMarks, Reactor};
use crate::connection_counts::HalfOpen;
use crate::layer::Layers;
use crate::listener::{ConnectionPermit, ListenerSocket};
use crate::mailbox::ReactorCommand;
use crate::node::canonical;
use crate::stream::Stream;

/// Maximum number of connections that are accepted from one listener in one turn.
const ACCEPT_BATCH: usize = 128;
/// Pause in milliseconds after the system refused to accept: it is out of descriptors or memory.
const ACCEPT_PAUSE_MS: u64 = 100;
/// Pause in milliseconds before the number of half-open connections is checked again.
const HALF_OPEN_PAUSE_MS: u64 = 20;
/// Pause in milliseconds before the overload level of the node is checked again.
const OVERLOAD_PAUSE_MS: u64 = 100;

impl Reactor {
    pub(super) fn accept_all(&mut self) {
        if self.is_frozen() {
            return;
        }
        for at in 0..self.listeners.len() {
            if self.accepting[at].pending && self.accepting[at].not_before <= self.now {
                self.accept_from(at);
            }
        }
    }

    fn accept_from(&mut self, at: usize) {
        let settings = self.worker.settings().clone();
        let limits = &settings.limits;
        for _ in 0..ACCEPT_BATCH {
            if self.worker.refuses_clients() {
                self.figures.door.waits_overload += 1;
                self.accepting[at].not_before = Time(self.now.0 + OVERLOAD_PAUSE_MS);
                return;
            }
            if self.connection_counts.half_open() >= limits.unauthenticated_max as usize {
                // Further connections wait in the backlog until some of the half-open ones have logged in or timed out.
                self.figures.door.waits_half_open += 1;
                self.accepting[at].not_before = Time(self.now.0 + HALF_OPEN_PAUSE_MS);
                return;
            }
            let listener = &self.listeners[at];
            let taken = self.connection_counts.pace.take(self.now, limits.connect_rate).and_then(|()| {
                listener
                    .shared
                    .pace
                    .take(self.now, listener.shared.connect_rate)
                    .inspect_err(|_| self.connection_counts.pace.refund(limits.connect_rate))
            });
            if let Err(from) = taken {
                self.figures.door.waits_rate += 1;
                self.accepting[at].not_before = from;
                return;
            }
            let accepted = match &listener.socket {
                ListenerSocket::Tcp(socket) => {
                    socket.accept().map(|(stream, peer)| (Stream::Tcp(stream), Some(canonical(peer))))
                }
                ListenerSocket::Unix(socket, _) => {
                    socket.accept().map(|(stream, _)| (Stream::Unix(stream), None))
                }
            };
            if accepted.is_err() {
                self.connection_counts.pace.refund(limits.connect_rate);
                listener.shared.pace.refund(listener.shared.connect_rate);
            }
            match accepted {
                Ok((stream, peer)) => self.accepted(at, stream, peer, limits.unauthenticated_per_address),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.accepting[at].pending = false;
                    return;
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    // The system is out of descriptors or memory. Existing connections continue, and new ones wait in
                    // the backlog.
                    self.accepting[at].not_before = Time(self.now.0 + ACCEPT_PAUSE_MS);
                    let errors = &mut self.figures.accept_errors;
                    match error.raw_os_error() {
                        Some(libc::EMFILE | libc::ENFILE) => errors.descriptors += 1,
                        _ => errors.other += 1,
                    }
                    self.complain(&format!("cannot accept connections: {error}; trying again"));
                    return;
                }
            }
        }
    }

    fn accepted(&mut self, at: usize, stream: Stream, peer: Option<SocketAddr>, per_address: u32) {
        let listener = &self.listeners[at];
        let Some(permit) = ConnectionPermit::take(&listener.shared, self.connections_max) else {
            let name = listener.shared.name.clone();
            self.figures.accept_errors.limit += 1;
            return self
                .complain(&format!("connection refused: listener {name} or the node is at connections_max"));
        };
        let mut half_open = self.connection_counts.enter();
        // A load balancer carries many clients. They are counted by address once its header names the client.
        if let Some(peer) = peer
            && !listener.shared.listener_layers.load().expects_proxy(Some(peer))
            && !half_open.count_from(peer.ip(), per_address)
        {
            self.figures.door.closed_address += 1;
            return;
        }
        if listener.deals_out {
            self.deal_to = (self.deal_to + 1) % self.mailboxes.len();
            if self.deal_to != usize::from(self.index) {
                let adopted = ReactorCommand::Adopt { stream, peer, permit, half_open };
                return self.mailboxes[self.deal_to].send(adopted);
            }
        }
        self.adopt(stream, peer, permit, half_open);
    }

    /// Counts a half-open connection by its `address`. Returns false when that address has reached its limit.
    pub(super) fn count_half_open(&mut self, slot: u32, address: IpAddr) -> bool {
        let max = self.worker.settings().limits.unauthenticated_per_address;
        let Some(half_open) = self.half_open_connections.half_open(slot) else { return true };
        let room = half_open.count_from(address, max);
        self.figures.door.closed_address += u64::from(!room);
        room
    }

    pub(super) fn adopt(
        &mut self,
        mut stream: Stream,
        peer: Option<SocketAddr>,
        permit: ConnectionPermit,
        half_open: HalfOpen,
    ) {
        if self.stopping.is_some() {
            return;
        }
        let listener = permit.listener();
        let is_open = || self.worker.access().allows_anonymous(&listener.name);
        let layers = match listener.listener_layers.load().layers(peer, is_open) {
            Ok(layers) => layers,
            Err(error) => {
                self.figures.accept_errors.other += 1;
                return self.complain(&format!("cannot start TLS on a connection: {error}"));
            }
        };
        let id = self.worker.open(self.now, peer);
        if let Err(error) = stream.register(self.poll.registry(), Token(id.slot as usize)) {
            self.worker.vacate(id.slot);
            self.figures.accept_errors.other += 1;
            return self.complain(&format!("cannot poll a connection: {error}"));
        }
        self.worker.set_listener(id.slot, listener.index);
        let through_by = layers.is_some().then(|| self.now.after(listener.handshake_timeout));
        self.half_open_connections.enter(id.slot, half_open, through_by);
        let marks = PeerMarks { half_open: true, ..PeerMarks::default() };
        self.add_peer(id.slot, stream, layers, Some(permit), marks);
        // The system passes on connections whose first bytes are there.
        self.mark_ready(id.slot);
    }

    pub(super) fn add_peer(
        &mut self,
        slot: u32,
        stream: Stream,
        layers: Option<Box<Layers>>,
        permit: Option<ConnectionPermit>,
        marks: PeerMarks,
    ) {
        let at = slot as usize;
        if self.peers.len() <= at {
            self.peers.resize_with(at + 1, || None);
        }
        self.peers[at] =
            Some(Peer { stream, layers, unprocessed: Vec::new(), packet_len: 0, marks, _permit: permit });
    }

    /// Logs a warning, at most once a second.
    fn complain(&mut self, what: &str) {
        if self.complained <= self.now {
            self.complained = Time(self.now.0 + 1000);
            tracing::warn!(reactor = self.index, "{what}");
        }
    }
}
