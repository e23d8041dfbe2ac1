//! Output of a connection, and the pool that lends buffers for it.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use crate::message::Message;

/// Bytes to be written. An idle connection has none, and no buffers for them.
#[derive(Debug, Default)]
pub struct Out(Option<Box<Buffers>>);

/// Bytes to be written. Small packets are in a vector. Payloads of large messages that several connections receive are
/// inserted between them by reference. All of it is lent from the worker's pool.
#[derive(Debug, Default)]
struct Buffers {
    bytes: Vec<u8>,
    written: usize,
    /// Payloads between parts of `bytes`, in order; `None` while there is none.
    shared: Option<Box<SharedPayloads>>,
}

#[derive(Debug, Default)]
struct SharedPayloads {
    payloads: VecDeque<SharedPayload>,
    /// Bytes of all payloads that are still to be written.
    len: usize,
}

#[derive(Debug)]
struct SharedPayload {
    /// Index in `Buffers::bytes` before which the payload is inserted.
    at: usize,
    message: Message,
    /// Part of the message that is still to be written.
    rest: Range<usize>,
}

impl Out {
    /// First bytes to be written, up to the end or to the boundary of a shared payload.
    #[inline]
    pub fn pending(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |buffers| buffers.pending())
    }

    /// Appends the bytes to `slices`, beginning with those of [`Self::pending`], as far as there is room. Appends
    /// nothing when all bytes are in one slice.
    pub fn pending_slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.0.as_ref().map_or(0, |buffers| buffers.pending_slices(slices))
    }

    /// Moves up to `max` of the first bytes to the end of `to`, for layers that transform them.
    pub fn take(&mut self, max: usize, to: &mut Vec<u8>) {
        let mut left = max;
        while left > 0 && !self.is_empty() {
            let pending = self.pending();
            let count = pending.len().min(left);
            to.extend_from_slice(&pending[..count]);
            self.advance(count);
            left -= count;
        }
    }

    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |buffers| buffers.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes the first `count` bytes, which were written.
    pub fn advance(&mut self, count: usize) {
        debug_assert!(count <= self.len());
        if let Some(buffers) = &mut self.0 {
            buffers.advance(count);
        }
    }

    /// Buffer to which packets are appended.
    #[inline]
    pub(crate) fn buffer(&mut self, pool: &mut Pool) -> &mut Vec<u8> {
        &mut self.0.get_or_insert_with(|| pool.take()).bytes
    }

    /// Appends the last `len` bytes of a message by reference.
    pub(crate) fn append_shared(&mut self, message: Message, len: usize) {
        self.0.get_or_insert_default().append_shared(message, len);
    }

    pub(crate) fn return_buffer(&mut self, pool: &mut Pool) {
        if let Some(buffers) = self.0.take_if(|buffers| buffers.len() == 0) {
            pool.put(buffers);
        }
    }

    pub(crate) fn discard(&mut self) {
        *self = Self::default();
    }
}

impl Buffers {
    #[inline]
    fn pending(&self) -> &[u8] {
        match self.shared.as_ref().and_then(|shared| shared.payloads.front()) {
            None => &self.bytes[self.written..],
            Some(payload) if payload.at > self.written => &self.bytes[self.written..payload.at],
            Some(payload) => &payload.message.as_bytes()[payload.rest.clone()],
        }
    }

    fn pending_slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let Some(shared) = &self.shared else { return 0 };
        let (mut count, mut from) = (0, self.written);
        let mut add = |bytes: &'a [u8]| {
            if !bytes.is_empty()
                && let Some(slice) = slices.get_mut(count)
            {
                *slice = IoSlice::new(bytes);
                count += 1;
            }
        };
        for payload in shared.payloads.iter().take(PAYLOADS_AT_ONCE) {
            add(&self.bytes[from..payload.at]);
            add(&payload.message.as_bytes()[payload.rest.clone()]);
            from = payload.at;
        }
        if shared.payloads.len() <= PAYLOADS_AT_ONCE {
            add(&self.bytes[from..]);
        }
        count
    }

    fn len(&self) -> usize {
        self.bytes.len() - self.written + self.shared.as_ref().map_or(0, |shared| shared.len)
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(shared) = self.shared.as_mut()
            && let Some(payload) = shared.payloads.front_mut()
        {
            let before = count.min(payload.at - self.written);
            self.written += before;
            count -= before;
            let part = count.min(payload.rest.len());
            payload.rest.start += part;
            shared.len -= part;
            count -= part;
            if !payload.rest.is_empty() {
                return;
            }
            shared.payloads.pop_front();
            if shared.payloads.is_empty() {
                self.shared = None;
            }
        }
        self.written += count;
        debug_assert!(self.written <= self.bytes.len());
        if self.len() == 0 {
            self.bytes.clear();
            self.written = 0;
        } else if self.written >= COMPACT_AT && self.written * 2 >= self.bytes.len() {
            // No byte is moved more than once on average, however small the steps.
            self.bytes.drain(..self.written);
            for payload in self.shared.iter_mut().flat_map(|shared| &mut shared.payloads) {
                payload.at -= self.written;
            }
            self.written = 0;
        }
    }

    fn append_shared(&mut self, message: Message, len: usize) {
        let shared = self.shared.get_or_insert_default();
        let end = message.size();
        shared.len += len;
        shared.payloads.push_back(SharedPayload { at: self.bytes.len(), message, rest: end - len..end });
    }
}

/// Maximum number of shared payloads in one gathering write.
const PAYLOADS_AT_ONCE: usize = 16;
/// Maximum number of slices that [`Out::pending_slices`] appends.
pub const OUT_SLICES_MAX: usize = 2 * PAYLOADS_AT_ONCE + 1;
const COMPACT_AT: usize = 64 * 1024;

/// Empty output buffers of one worker, lent to connections while they have something to send.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    #[expect(clippy::vec_box, reason = "a connection has one of these boxes")]
    buffers: Vec<Box<Buffers>>,
    bytes: usize,
}

/// Maximum number of bytes of all buffers in one pool.
const POOL_BYTES: usize = 8 * 1024 * 1024;
/// Maximum number of buffers in one pool.
const POOL_BUFFERS: usize = 4096;
/// Maximum size of a buffer that is kept.
const POOLED_BYTES: usize = 256 * 1024;

impl Pool {
    fn take(&mut self) -> Box<Buffers> {
        let buffers = self.buffers.pop().unwrap_or_default();
        self.bytes -= buffers.bytes.capacity();
        buffers
    }

    fn put(&mut self, buffers: Box<Buffers>) {
        let bytes = buffers.bytes.capacity();
        if bytes <= POOLED_BYTES && self.bytes + bytes <= POOL_BYTES && self.buffers.len() < POOL_BUFFERS {
            self.bytes += bytes;
            self.buffers.push(buffers);
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.buffers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Time;

    /// Takes all output in pieces of `piece` bytes.
    fn left(out: &mut Out, piece: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while !out.is_empty() {
            let mut slices = [IoSlice::new(&[]); OUT_SLICES_MAX];
            let count = out.pending_slices(&mut slices);
            let gathered: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
            let first = out.pending();
            assert!(!first.is_empty() && (count == 0 || gathered.starts_with(first)));
            let bytes = if count == 0 { first.to_vec() } else { gathered };
            let piece = piece.min(bytes.len());
            all.extend_from_slice(&bytes[..piece]);
            out.advance(piece);
        }
        all
    }

    #[test]
    fn shared_payloads_are_written_in_their_order() {
        let view = crate::message::MessageView {
            topic: "t",
            properties: &[],
            payload: b"PAYLOAD",
            qos: mqtt::QoS::AtMostOnce,
            retain: false,
            expires: Time::NEVER,
            received: Time::default(),
            publisher: None,
            publisher_key: 0,
            durability: crate::durability::Durability::LocalDisk,
            span: 0,
        };
        let message = view.to_message();
        for piece in [1, 2, 3, 5, 8, 13, 100] {
            let (mut pool, mut out, mut expected) = (Pool::default(), Out::default(), Vec::new());
            for round in 0..40_u8 {
                out.buffer(&mut pool).extend_from_slice(&[round; 3]);
                out.append_shared(message.clone(), 7);
                if round % 3 == 0 {
                    out.append_shared(message.clone(), 2);
                }
                expected.extend_from_slice(&[round; 3]);
                expected.extend_from_slice(b"PAYLOAD");
                if round % 3 == 0 {
                    expected.extend_from_slice(b"AD");
                }
            }
            out.buffer(&mut pool).push(b'.');
            expected.push(b'.');
            assert_eq!(out.len(), expected.len());
            assert_eq!(left(&mut out, piece), expected, "pieces of {piece}");
        }
    }

    #[test]
    fn written_bytes_are_removed_and_the_buffer_is_returned() {
        let mut pool = Pool::default();
        let mut out = Out::default();
        out.buffer(&mut pool).extend_from_slice(b"hello");
        out.advance(2);
        assert_eq!(out.pending(), b"llo");
        out.return_buffer(&mut pool);
        assert_eq!(pool.len(), 0, "not while bytes are pending");
        out.advance(3);
        out.return_buffer(&mut pool);
        assert_eq!(pool.len(), 1);
        out.buffer(&mut pool).push(1);
        assert_eq!((pool.len(), out.pending()), (0, &[1_u8][..]));
    }
}
