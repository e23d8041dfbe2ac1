//! New connections: accepted here, or by another reactor for this one.

use std::io;
use std::net::SocketAddr;

use broker::Time;
use mio::Token;

use super::{Peer, PeerMarks, Reactor};
use crate::layer::Layers;
use crate::listener::{ListenerSocket, Place};
use crate::mailbox::Mail;
use crate::node::canonical;
use crate::stream::Stream;

/// Connections accepted from one listener in one turn.
const ACCEPT_BATCH: usize = 128;
/// Pause after the system refused to accept: out of descriptors or memory.
const ACCEPT_PAUSE_MS: u64 = 100;

impl Reactor {
    pub(super) fn accept_all(&mut self) {
        for at in 0..self.listeners.len() {
            if self.accepting[at].pending && self.accepting[at].not_before <= self.now {
                self.accept_from(at);
            }
        }
    }

    fn accept_from(&mut self, at: usize) {
        for _ in 0..ACCEPT_BATCH {
            let listener = &self.listeners[at];
            if let Err(from) = listener.shared.pace.take(self.now) {
                // The others wait in the backlog.
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
                listener.shared.pace.give_back();
            }
            match accepted {
                Ok((stream, peer)) => self.accepted(at, stream, peer),
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
                    // Out of descriptors or memory: what is there goes on, and the backlog waits for better times.
                    self.accepting[at].not_before = Time(self.now.0 + ACCEPT_PAUSE_MS);
                    let errors = &mut self.figures.accept_errors;
                    match error.raw_os_error() {
                        Some(libc::EMFILE | libc::ENFILE) => errors.descriptors += 1,
                        _ => errors.other += 1,
                    }
                    self.complain(&format!("cannot accept connections: {error}"));
                    return;
                }
            }
        }
    }

    fn accepted(&mut self, at: usize, stream: Stream, peer: Option<SocketAddr>) {
        let listener = &self.listeners[at];
        let Some(place) = Place::take(&listener.shared, &self.connections, self.connections_max) else {
            let name = listener.shared.name.clone();
            self.figures.accept_errors.limit += 1;
            return self
                .complain(&format!("connection refused: listener {name} or the node has as many as it may"));
        };
        let place = Box::new(place);
        if listener.deals_out {
            self.deal_to = (self.deal_to + 1) % self.mailboxes.len();
            if self.deal_to != usize::from(self.index) {
                return self.mailboxes[self.deal_to].send(Mail::Adopt { stream, peer, place });
            }
        }
        self.adopt(stream, peer, Some(place));
    }

    pub(super) fn adopt(&mut self, mut stream: Stream, peer: Option<SocketAddr>, place: Option<Box<Place>>) {
        if self.stopping.is_some() {
            return;
        }
        let entrance = place.as_ref().map(|place| place.listener().entrance.load());
        let layers = match entrance.map(|entrance| entrance.layers(peer)).transpose() {
            Ok(layers) => layers.flatten(),
            Err(error) => {
                self.figures.accept_errors.other += 1;
                return self.complain(&format!("TLS cannot be served: {error}"));
            }
        };
        let id = self.worker.open(self.now, peer);
        if let Err(error) = stream.register(self.poll.registry(), Token(id.slot as usize)) {
            self.worker.vacate(id.slot);
            self.figures.accept_errors.other += 1;
            return self.complain(&format!("cannot poll a connection: {error}"));
        }
        if let Some(place) = &place {
            self.worker.set_listener(id.slot, place.listener().index);
        }
        self.add_peer(id.slot, stream, layers, place);
    }

    pub(super) fn add_peer(
        &mut self,
        slot: u32,
        stream: Stream,
        layers: Option<Box<Layers>>,
        place: Option<Box<Place>>,
    ) {
        let at = slot as usize;
        if self.peers.len() <= at {
            self.peers.resize_with(at + 1, || None);
        }
        let marks = PeerMarks::default();
        self.peers[at] = Some(Peer { stream, layers, kept: Vec::new(), packet_len: 0, marks, _place: place });
    }

    /// Logs at most once a second.
    fn complain(&mut self, what: &str) {
        if self.complained <= self.now {
            self.complained = Time(self.now.0 + 1000);
            tracing::warn!(reactor = self.index, "{what}");
        }
    }
}
