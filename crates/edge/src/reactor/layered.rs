//! Connections with layers between the socket and MQTT.

use std::io;

use super::Reactor;
use crate::layer::{CHUNK, Decoded, LayerError};
use crate::node::canonical;

impl Reactor {
    /// Reads once, and passes the decoded MQTT bytes to the worker.
    pub(super) fn read_layered(&mut self, slot: u32) {
        let Some(peer) = self.peers[slot as usize].as_mut() else { return };
        if peer.marks.layers_closed {
            return self.end_layered(slot, &LayerError::Closed);
        }
        let count = match peer.stream.read(&mut self.scratch) {
            Ok(count) => count,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock if !peer.marks.write_failed => return,
                io::ErrorKind::Interrupted => return self.mark_ready(slot),
                _ => 0,
            },
        };
        let is_frozen = self.is_frozen_after_read();
        self.heavy_senders.count(slot, count);
        if count == 0 {
            return if is_frozen { self.mark_ready(slot) } else { self.end_of_stream(slot) };
        }
        let Some(peer) = self.peers[slot as usize].as_mut() else { return };
        let Some(layers) = peer.layers.as_mut() else { return };
        let more = count == self.scratch.len() || peer.marks.read_closed || peer.marks.write_failed;
        let mut plain = std::mem::take(&mut self.plain);
        plain.clear();
        let mut decoded = Decoded { plain, ..Decoded::default() };
        let shaking = layers.is_shaking_hands();
        let received = layers.receive(&self.scratch[..count], &mut decoded);
        if shaking && let Some(resumed) = layers.is_resumed() {
            let door = &mut self.figures.door;
            *(if resumed { &mut door.handshakes_resumed } else { &mut door.handshakes_full }) += 1;
        }
        if !layers.wire().is_empty() {
            self.dirty.push(slot);
        }
        let Decoded { mut plain, source, certificate } = decoded;
        if let Some(source) = source {
            let source = canonical(source);
            self.worker.set_peer(slot, source);
            if !self.count_half_open(slot, source.ip()) {
                self.plain = plain;
                return self.drop_connection(slot);
            }
        }
        if let Some(certificate) = certificate {
            self.worker.set_certificate(slot, certificate);
        }
        if let Some(peer) = self.peers[slot as usize].as_mut().filter(|_| is_frozen) {
            let is_closed = received == Err(LayerError::Closed);
            peer.marks.layers_closed |= is_closed;
            peer.unprocessed.extend_from_slice(&plain);
            self.plain = plain;
            if is_closed || received.is_ok() {
                return self.hold_frozen(slot, more || is_closed);
            }
        } else {
            if !plain.is_empty() {
                self.push(slot, &plain);
            }
            plain.shrink_to(CHUNK);
            self.plain = plain;
        }
        if let Err(error) = received {
            return self.end_layered(slot, &error);
        }
        if more {
            self.mark_ready(slot);
        }
    }

    /// Ends a connection because of an error in its layers. The worker drops it, and the peer gets what the layers
    /// still have to send.
    fn end_layered(&mut self, slot: u32, error: &LayerError) {
        if *error == LayerError::Closed {
            if self.worker.defers_end(slot) {
                let Some(peer) = self.peers[slot as usize].as_mut() else { return };
                (peer.marks.held, peer.marks.read_skipped, peer.marks.layers_closed) = (true, true, true);
                return;
            }
            self.worker.lost(self.now, slot);
        } else {
            tracing::debug!(reactor = self.index, %error, "connection closed below MQTT");
            self.worker.refused_below(self.now, slot, error.foreign());
        }
        self.dirty.push(slot);
    }

    /// Writes the pending bytes of the layers, wraps those of MQTT, and closes the connection when both are done.
    pub(super) fn flush_layered(&mut self, slot: u32) {
        let mut written = false;
        let failed = loop {
            let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) else { return };
            let Some(layers) = peer.layers.as_mut() else { return };
            if !layers.wire().is_empty() {
                if peer.marks.write_blocked {
                    break false;
                }
                match peer.stream.write(layers.wire()) {
                    Ok(count) => {
                        let is_partial = count < layers.wire().len();
                        layers.advance(count);
                        if is_partial && peer.block_writes(self.poll.registry(), slot).is_err() {
                            break true;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if peer.block_writes(self.poll.registry(), slot).is_err() {
                            break true;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break true,
                }
                continue;
            }
            let out = self.worker.output(slot).filter(|out| !out.is_empty());
            if let Some(out) = out {
                let mut plain = std::mem::take(&mut self.plain);
                plain.clear();
                out.take(CHUNK, &mut plain);
                let sent = layers.send(&plain);
                self.plain = plain;
                written = true;
                if sent.is_err() {
                    break true;
                }
                continue;
            }
            if self.worker.is_closing(slot) && layers.close() {
                continue;
            }
            layers.rest();
            break false;
        };
        if written {
            self.worker.written(self.now, slot);
        }
        if failed {
            return self.write_failed(slot);
        }
        let Some(peer) = self.peers[slot as usize].as_ref() else { return };
        let drained = peer.layers.as_ref().is_some_and(|layers| layers.wire().is_empty());
        if drained
            && self.worker.is_closing(slot)
            && self.worker.output(slot).is_none_or(|out| out.is_empty())
        {
            self.close(slot);
        }
    }
}
