//! Bytes from and to one server.

use mqtt::{DecodeError, PacketId, PacketType, QoS, frame};

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
    /// Number of bytes of a packet that are still to come and are discarded.
    discarded: usize,
}

/// Result of [`Incoming::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Incomplete,
    /// A whole packet: [`Incoming::current`].
    Packet,
    /// A PUBLISH that is too large. Its bytes are discarded as they arrive.
    TooLarge(QoS, Option<PacketId>),
}

/// Treatment of a PUBLISH that is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooLarge {
    /// The server knows the limit, so it is an error.
    Fails,
    /// The server cannot know the limit. It would send the message again on each connection.
    IsDiscarded,
}

impl Incoming {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let discarded = self.discarded.min(bytes.len());
        self.discarded -= discarded;
        self.bytes.extend_from_slice(&bytes[discarded..]);
    }

    /// Moves to the next packet.
    pub(crate) fn next(&mut self, packet_size_max: u32, too_large: TooLarge) -> Result<Next, DecodeError> {
        self.at += std::mem::take(&mut self.current);
        compact(&mut self.bytes, &mut self.at);
        let unread = &self.bytes[self.at..];
        match frame(unread, packet_size_max) {
            Ok(Some(size)) if size <= unread.len() => {
                self.current = size;
                Ok(Next::Packet)
            }
            Ok(_) => Ok(Next::Incomplete),
            Err(DecodeError::PacketTooLarge { size, .. })
                if too_large == TooLarge::IsDiscarded && is_publish(unread) =>
            {
                let Some((qos, packet_id)) = publish_head(unread)? else { return Ok(Next::Incomplete) };
                let size = size as usize;
                self.current = size.min(unread.len());
                self.discarded = size - self.current;
                Ok(Next::TooLarge(qos, packet_id))
            }
            Err(error) => Err(error),
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

fn is_publish(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|first| PacketType::of(*first) == Some(PacketType::Publish))
}

/// Returns QoS and Packet Identifier of a PUBLISH, which come before properties and payload; `None` when more bytes are
/// needed. The head has at most 65,544 bytes.
fn publish_head(bytes: &[u8]) -> Result<Option<(QoS, Option<PacketId>)>, DecodeError> {
    let Some(first) = bytes.first() else { return Ok(None) };
    let qos = QoS::from_bits(first >> 1 & 0b11).ok_or(DecodeError::QoSReserved)?;
    let Some(end) = bytes.iter().skip(1).position(|byte| byte & 0x80 == 0) else { return Ok(None) };
    let two = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    let topic = end + 2;
    let Some(length) = two(topic) else { return Ok(None) };
    if qos == QoS::AtMostOnce {
        return Ok(Some((qos, None)));
    }
    match two(topic + 2 + usize::from(length)) {
        None => Ok(None),
        Some(id) => {
            PacketId::new(id).map(|id| Some((qos, Some(id)))).ok_or(DecodeError::PacketIdentifierZero)
        }
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
