//! Reading from the sockets, and passing bytes to the worker.

use std::io;

use broker::Then;

use super::Reactor;

/// Maximum number of kept bytes that are copied in front of the next read. With more, the read appends to them.
const UNPROCESSED_COPY_MAX: usize = 4 * 1024;
/// Bytes that wait in another reactor's mailbox, or on the way to other nodes, at which this reactor stops reading from
/// its sockets.
const MAILBOX_FULL: usize = 16 * 1024 * 1024;

impl Reactor {
    pub(super) fn event(&mut self, slot: u32, event: &mio::event::Event) {
        let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        if event.is_writable() && std::mem::take(&mut peer.marks.write_blocked) {
            self.dirty.push(slot);
        }
        let peer_closed = event.is_read_closed() || event.is_error();
        let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        peer.marks.read_closed |= peer_closed;
        if event.is_readable() || peer_closed {
            self.mark_ready(slot);
        }
    }

    pub(super) fn mark_ready(&mut self, slot: u32) {
        if let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut)
            && !peer.marks.ready
        {
            peer.marks.ready = true;
            self.ready.push(slot);
        }
    }

    pub(super) fn is_overloaded(&self) -> bool {
        let own = usize::from(self.index);
        self.mailboxes.iter().enumerate().any(|(at, mailbox)| at != own && mailbox.weight() > MAILBOX_FULL)
            || self.worker.peers_backlog() > MAILBOX_FULL
    }

    /// Returns whether the node has no lease, and does not touch its clients' sockets until it has. A node that stops
    /// tells its clients nevertheless.
    pub(super) fn is_frozen(&self) -> bool {
        self.stopping.is_none() && self.worker.is_frozen(self.now)
    }

    /// Reads the clock after bytes of a client were read, and returns whether the client is frozen. They are judged by
    /// this time: if the process was stopped since the turn began, the lease may be over, and another node may serve
    /// the client. A node without a cluster does not need the time.
    pub(super) fn is_frozen_after_read(&mut self) -> bool {
        if !self.worker.needs_time_of_read() {
            return false;
        }
        self.now = self.time();
        self.is_frozen()
    }

    /// Reads the clock before clients are written to, and returns whether they are frozen: the process may have been
    /// stopped since their output was made.
    pub(super) fn is_frozen_before_write(&mut self) -> bool {
        if self.worker.needs_time_of_write() {
            self.now = self.time();
        }
        self.is_frozen()
    }

    /// Leaves the bytes of a frozen connection alone until the node has a lease. `more`: the socket may have more.
    pub(super) fn hold_frozen(&mut self, slot: u32, more: bool) {
        let Some(peer) = self.peers[slot as usize].as_mut() else { return };
        peer.marks.held = true;
        peer.marks.read_skipped |= more;
        self.woken.push(slot);
    }

    pub(super) fn reads_nothing(&self) -> bool {
        self.is_frozen() || self.is_overloaded()
    }

    /// Reads once from every connection that may have more.
    pub(super) fn read_ready(&mut self) {
        if self.ready.is_empty() || self.reads_nothing() {
            return;
        }
        let mut handshakes = 0;
        for slot in std::mem::take(&mut self.ready) {
            let Some(peer) = self.peers[slot as usize].as_mut() else { continue };
            if peer.layers.as_ref().is_some_and(|layers| layers.is_shaking_hands()) {
                handshakes += 1;
                if handshakes > self.handshakes_per_turn {
                    // The connection is read in a later turn, so that established traffic does not starve.
                    self.ready.push(slot);
                    continue;
                }
            }
            peer.marks.ready = false;
            // The end of the pause marks the connection as ready again.
            if !self.heavy_senders.is_paused(slot) {
                self.read(slot);
            }
        }
    }

    /// Reads once from a connection that is about to be closed by a takeover.
    pub(super) fn read_last(&mut self, slot: u32) {
        if !self.is_frozen() && self.peers.get(slot as usize).is_some_and(Option::is_some) {
            self.read(slot);
        }
    }

    fn read(&mut self, slot: u32) {
        let Some(peer) = self.peers[slot as usize].as_mut() else { return };
        if peer.marks.held {
            peer.marks.read_skipped = true;
            return;
        }
        if peer.marks.draining {
            return self.drain(slot);
        }
        if peer.layers.is_some() {
            return self.read_layered(slot);
        }
        // The rest of a small packet is read behind a copy of its beginning; the rest of a large one is appended.
        let large = peer.unprocessed.len() > UNPROCESSED_COPY_MAX;
        let unprocessed = if large { 0 } else { peer.unprocessed.len() };
        self.scratch[..unprocessed].copy_from_slice(&peer.unprocessed[..unprocessed]);
        let room = self.scratch.len() - unprocessed;
        let read = match peer.stream.read(&mut self.scratch[unprocessed..]) {
            Ok(read) => read,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock if !peer.marks.write_failed => return,
                io::ErrorKind::Interrupted => return self.mark_ready(slot),
                _ => 0,
            },
        };
        let is_frozen = self.is_frozen_after_read();
        self.heavy_senders.count(slot, read);
        if read == 0 {
            // A half-closed connection is closed: a peer that shut down its sending side can no longer acknowledge or
            // ping. A frozen one is read again.
            return if is_frozen { self.mark_ready(slot) } else { self.end_of_stream(slot) };
        }
        let Some(peer) = self.peers[slot as usize].as_mut() else { return };
        // A short read has emptied the socket, and more bytes raise an edge. After the peer's end, only an empty read
        // is the end.
        let more = read == room || peer.marks.read_closed || peer.marks.write_failed;
        if large {
            let packet_len = peer.packet_len as usize;
            append(&mut peer.unprocessed, &self.scratch[..read], packet_len);
        } else if is_frozen {
            peer.unprocessed.clear();
            peer.unprocessed.extend_from_slice(&self.scratch[..unprocessed + read]);
        }
        if is_frozen {
            return self.hold_frozen(slot, more);
        }
        if large {
            // The worker cannot use an incomplete packet, however small the pieces are.
            if peer.unprocessed.len() >= peer.packet_len as usize {
                let bytes = std::mem::take(&mut peer.unprocessed);
                let consumed = self.offer(slot, &bytes);
                self.keep(slot, bytes, consumed);
            } else {
                let len = peer.unprocessed.len();
                self.worker.receives(self.now, slot, len);
            }
        } else {
            let scratch = std::mem::take(&mut self.scratch);
            let consumed = self.offer(slot, &scratch[..unprocessed + read]);
            if let Some(peer) = self.peers[slot as usize].as_mut() {
                peer.unprocessed.clear();
                peer.unprocessed.extend_from_slice(&scratch[consumed..unprocessed + read]);
                if peer.unprocessed.is_empty() {
                    peer.unprocessed = Vec::new();
                }
            }
            self.scratch = scratch;
        }
        if more {
            self.mark_ready(slot);
        }
    }

    /// Drops a connection whose peer has ended it, or lets it wait for the worker. Then the end is read once more.
    pub(super) fn end_of_stream(&mut self, slot: u32) {
        if !self.worker.defers_end(slot) {
            return self.drop_connection(slot);
        }
        if let Some(peer) = self.peers[slot as usize].as_mut() {
            (peer.marks.held, peer.marks.read_skipped) = (true, true);
        }
    }

    pub(super) fn keep(&mut self, slot: u32, mut bytes: Vec<u8>, consumed: usize) {
        if let Some(peer) = self.peers[slot as usize].as_mut() {
            bytes.drain(..consumed);
            peer.unprocessed = if bytes.is_empty() { Vec::new() } else { bytes };
        }
    }

    /// Passes bytes to the worker, and returns how many it consumed.
    pub(super) fn offer(&mut self, slot: u32, bytes: &[u8]) -> usize {
        let received = self.worker.receive(self.now, slot, bytes);
        if let Some(peer) = self.peers[slot as usize].as_mut() {
            match received.then {
                Then::Read { packet_len } => peer.packet_len = packet_len as u32,
                Then::Hold => peer.marks.held = true,
                Then::Close => return bytes.len(),
            }
        }
        received.consumed
    }

    /// Offers the kept bytes of woken connections to the worker again. While the reactor is overloaded they wait, like
    /// unread sockets.
    pub(super) fn offer_woken(&mut self) {
        self.worker.take_woken(&mut self.woken);
        if self.woken.is_empty() || self.reads_nothing() {
            return;
        }
        let mut woken = std::mem::take(&mut self.woken);
        for slot in woken.drain(..) {
            let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) else { continue };
            if !std::mem::take(&mut peer.marks.held) {
                continue;
            }
            let was_skipped = std::mem::take(&mut peer.marks.read_skipped);
            let bytes = std::mem::take(&mut peer.unprocessed);
            if !bytes.is_empty() {
                let consumed = self.offer(slot, &bytes);
                self.keep(slot, bytes, consumed);
            }
            if was_skipped {
                self.mark_ready(slot);
            }
        }
        self.woken = woken;
    }
}

/// Appends to the beginning of a packet of `packet_len` bytes. Memory grows with the received bytes, not with the
/// announced length.
fn append(unprocessed: &mut Vec<u8>, bytes: &[u8], packet_len: usize) {
    let len = unprocessed.len() + bytes.len();
    if unprocessed.capacity() < len {
        let wanted = (2 * unprocessed.len()).min(packet_len).max(len);
        unprocessed.reserve_exact(wanted - unprocessed.len());
    }
    unprocessed.extend_from_slice(bytes);
}
