//! Bytes from and to one server.

use mqtt::{DecodeError, frame};

/// Bytes to be sent. The caller writes [`Self::bytes`] and notes with [`Self::consume`] what was written.
#[derive(Debug, Default)]
pub struct Unsent {
    bytes: Vec<u8>,
    at: usize,
}

impl Unsent {
    /// Bytes that were not written yet.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// Number of bytes that were not written yet.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes bytes from the beginning: they were written.
    pub fn consume(&mut self, count: usize) {
        self.at += count.min(self.len());
        compact(&mut self.bytes, &mut self.at);
    }

    /// Returns the buffer to append packets to.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Removes and returns all bytes that were not written.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let rest = self.bytes.split_off(self.at);
        *self = Self::default();
        rest
    }
}

/// Bytes from a server, as packets.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    bytes: Vec<u8>,
    at: usize,
    /// Length of the packet that is being handled; 0 when there is none.
    current: usize,
}

impl Incoming {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Moves to the next packet. Returns false while it is incomplete.
    pub(crate) fn next(&mut self, packet_size_max: u32) -> Result<bool, DecodeError> {
        self.at += std::mem::take(&mut self.current);
        compact(&mut self.bytes, &mut self.at);
        let unread = &self.bytes[self.at..];
        match frame(unread, packet_size_max)? {
            Some(size) if size <= unread.len() => {
                self.current = size;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Returns the packet that the last call of [`Self::next`] found.
    pub(crate) fn current(&self) -> &[u8] {
        &self.bytes[self.at..self.at + self.current]
    }

    /// Number of bytes after the packet that is being handled.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.at - self.current
    }
}

/// Removes the bytes before `at` when they are many or all. A large buffer that became empty is freed.
fn compact(bytes: &mut Vec<u8>, at: &mut usize) {
    if *at == bytes.len() {
        bytes.clear();
        *at = 0;
        if bytes.capacity() > KEPT_MAX {
            *bytes = Vec::new();
        }
    } else if *at >= KEPT_MAX && *at >= bytes.len() / 2 {
        bytes.drain(..*at);
        *at = 0;
    }
}

/// Maximum number of bytes that an empty buffer keeps.
const KEPT_MAX: usize = 64 * 1024;
