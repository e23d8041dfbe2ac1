//! Writing the worker's bytes to the sockets, and closing connections.

use std::io::{self, IoSlice};

use broker::OUT_SLICES_MAX;
use mio::{Registry, Token};

use super::{Peer, Reactor};

impl Peer {
    /// Stops writing until the socket is writable. Most sockets always are, so the poll reports it from the first time
    /// on.
    pub(super) fn block_writes(&mut self, registry: &Registry, slot: u32) -> io::Result<()> {
        self.marks.write_blocked = true;
        if std::mem::replace(&mut self.marks.polls_writable, true) {
            return Ok(());
        }
        self.stream.poll_writable(registry, Token(slot as usize))
    }
}

impl Reactor {
    /// Writes the pending output of connections, and closes those that are done. Returns true when some output waits
    /// for another round.
    pub(super) fn flush(&mut self) -> bool {
        if self.is_frozen_before_write() {
            return false;
        }
        let mut unblocked = std::mem::take(&mut self.dirty);
        for slot in unblocked.drain(..) {
            self.flush_one(slot);
        }
        self.worker.take_dirty(&mut unblocked);
        let any = !unblocked.is_empty();
        for slot in &unblocked {
            self.flush_one(*slot);
        }
        unblocked.clear();
        self.dirty = unblocked;
        any
    }

    fn flush_one(&mut self, slot: u32) {
        self.look_at_half_open(slot);
        let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        if self.worker.is_overdue(slot) {
            return self.cut_off(slot);
        }
        if peer.marks.write_failed && self.worker.is_closing(slot) {
            return self.drop_connection(slot);
        }
        if peer.marks.draining || peer.marks.write_failed {
            return;
        }
        if peer.layers.is_some() {
            return self.flush_layered(slot);
        }
        let mut failed = false;
        if !peer.marks.write_blocked
            && let Some(out) = self.worker.output(slot)
        {
            let before = out.len();
            while !out.is_empty() {
                let mut slices = [IoSlice::new(&[]); OUT_SLICES_MAX];
                let (offered, result) = match out.pending_slices(&mut slices) {
                    0 => (out.len(), peer.stream.write(out.pending())),
                    count => {
                        let slices = &slices[..count];
                        (slices.iter().map(|slice| slice.len()).sum(), peer.stream.write_vectored(slices))
                    }
                };
                match result {
                    Ok(count) => {
                        out.advance(count);
                        if count < offered {
                            failed = peer.block_writes(self.poll.registry(), slot).is_err();
                            break;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        failed = peer.block_writes(self.poll.registry(), slot).is_err();
                        break;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => {
                        failed = true;
                        break;
                    }
                }
            }
            let written = out.len() < before;
            if written {
                self.worker.written(self.now, slot);
            }
        }
        if failed {
            self.write_failed(slot);
        } else if self.worker.is_closing(slot) && self.worker.output(slot).is_none_or(|out| out.is_empty()) {
            self.close(slot);
        }
    }

    /// Handles a failed write. The peer is gone, but its earlier bytes are still read: a DISCONNECT makes a difference
    /// [MQTT-3.14.4-3].
    pub(super) fn write_failed(&mut self, slot: u32) {
        let Some(peer) = self.peers[slot as usize].as_mut() else { return };
        if peer.marks.held && !self.worker.defers_end(slot) || self.worker.is_closing(slot) {
            return self.drop_connection(slot);
        }
        peer.marks.write_failed = true;
        self.mark_ready(slot);
    }

    /// Closes a connection whose output was written. It signals the end and reads until the peer closes too, so that a
    /// reset does not destroy sent data.
    pub(super) fn close(&mut self, slot: u32) {
        let Some(peer) = self.peers[slot as usize].as_mut() else { return };
        if peer.stream.shut_down_writing().is_err() {
            return self.remove(slot);
        }
        peer.marks.draining = true;
        peer.marks.held = false;
        peer.unprocessed = Vec::new();
        self.drain(slot);
    }

    /// Reads once and discards the bytes.
    pub(super) fn drain(&mut self, slot: u32) {
        let Some(peer) = self.peers[slot as usize].as_mut() else { return };
        match peer.stream.read(&mut self.scratch) {
            Ok(0) => self.remove(slot),
            // A short read has emptied the socket, unless the peer has closed it, as in `read`.
            Ok(count) if count < self.scratch.len() && !peer.marks.read_closed => {}
            Ok(_) => self.mark_ready(slot),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.mark_ready(slot),
            Err(_) => self.remove(slot),
        }
    }

    /// Drops a connection that is being closed, without waiting any longer.
    fn cut_off(&mut self, slot: u32) {
        let draining = self.peers[slot as usize].as_ref().is_some_and(|peer| peer.marks.draining);
        if self.stopping.is_some() && !draining {
            self.stopped.forced += 1;
        }
        // With nothing left unread, the system closes the connection in order and still sends the accepted bytes.
        self.drain(slot);
        if self.peers[slot as usize].is_some() {
            self.remove(slot);
        }
    }

    /// Drops all connections whose output was written, without waiting any longer.
    pub(super) fn end_draining(&mut self) {
        for slot in 0..self.peers.len() as u32 {
            if self.peers[slot as usize].as_ref().is_some_and(|peer| peer.marks.draining) {
                self.cut_off(slot);
            }
        }
    }

    /// Drops all connections of a stopping reactor without waiting any longer.
    pub(super) fn cut_off_all(&mut self) {
        self.stopped.forced += self.worker.connections();
        for slot in 0..self.peers.len() as u32 {
            if self.peers[slot as usize].is_some() {
                self.remove(slot);
            }
        }
    }

    /// Removes a connection whose peer is gone.
    pub(super) fn drop_connection(&mut self, slot: u32) {
        self.worker.lost(self.now, slot);
        self.remove(slot);
    }

    fn remove(&mut self, slot: u32) {
        // Closing the descriptor removes it from the poll.
        if self.peers[slot as usize].take().is_some_and(|peer| peer.marks.half_open) {
            self.half_open_connections.leave(slot);
        }
        self.worker.vacate(slot);
    }
}
