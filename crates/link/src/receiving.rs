use crate::error::PeerError;
use crate::lane::Lane;
use crate::wire::ResumePoint;

/// Receiving side of one lane: its progress, and the last acknowledgement sent to the peer.
#[derive(Debug)]
pub struct Receiving {
    lane: Lane,
    window: u64,
    /// Number of the next frame.
    next: u64,
    /// Bytes of all frames before it.
    offset: u64,
    /// Bytes of frames that were consumed.
    consumed: u64,
    next_sent: u64,
    /// [`Self::offset`] at the last acknowledgement.
    offset_sent: u64,
    limit_sent: u64,
    /// True when the last acknowledgement may have been lost with its channel.
    may_be_lost: bool,
}

/// Number of bytes of one lane that are acknowledged at once. The peer keeps them meanwhile, and the smallest
/// `cluster.buffer_max` has room for those of all lanes of messages.
const UNACKNOWLEDGED_MAX: u64 = 64 << 10;

impl Receiving {
    pub fn new(lane: Lane, window: u64) -> Self {
        Self {
            lane,
            window,
            next: 0,
            offset: 0,
            consumed: 0,
            next_sent: 0,
            offset_sent: 0,
            limit_sent: 0,
            may_be_lost: false,
        }
    }

    /// Admits a received frame. Returns its number.
    pub fn admit(&mut self, number: u32, length: u64) -> Result<u64, PeerError> {
        let lane = self.lane.byte();
        if number != self.next as u32 {
            return Err(PeerError::OutOfSequence { lane, expected: self.next as u32, found: number });
        }
        if self.offset >= self.limit_sent {
            return Err(PeerError::CreditExceeded { lane, limit: self.limit_sent });
        }
        self.next += 1;
        self.offset += length;
        Ok(self.next - 1)
    }

    /// Returns the credit of consumed frames. `bytes` is at most the number of admitted bytes.
    pub fn consume(&mut self, bytes: u64) {
        debug_assert!(self.consumed + bytes <= self.offset, "consumed before it came");
        self.consumed = (self.consumed + bytes).min(self.offset);
    }

    /// Returns the bytes that were admitted and not consumed.
    pub fn held(&self) -> u64 {
        self.offset - self.consumed
    }

    /// Returns whether [`Self::take_acknowledgement`] has something.
    fn has_pending(&self) -> bool {
        let acknowledges = self.lane.class().is_resumed() && self.next != self.next_sent;
        acknowledges || self.is_urgent()
    }

    /// Returns whether so many bytes are not acknowledged that they wait no longer.
    pub fn has_many(&self) -> bool {
        self.offset - self.offset_sent >= UNACKNOWLEDGED_MAX
    }

    /// Returns whether the peer may wait for an acknowledgement: it has used up much of its credit. A small increase of
    /// the credit is not worth a record.
    pub fn is_urgent(&self) -> bool {
        let grants = self.consumed + self.window - self.limit_sent >= self.window / 4;
        grants || self.may_be_lost
    }

    /// Returns the acknowledgement to send: `(next, limit)`.
    pub fn take_acknowledgement(&mut self) -> Option<(u64, u64)> {
        if !self.has_pending() {
            return None;
        }
        self.may_be_lost = false;
        (self.next_sent, self.offset_sent) = (self.next, self.offset);
        self.limit_sent = self.consumed + self.window;
        Some((self.next, self.limit_sent))
    }

    /// Notes that a channel was lost with the acknowledgements that it carried.
    pub fn resend(&mut self) {
        self.may_be_lost = self.offset > 0;
    }

    /// Returns the resume point for a new channel.
    pub fn resume_point(&mut self) -> ResumePoint {
        (self.next_sent, self.offset_sent) = (self.next, self.offset);
        self.limit_sent = self.consumed + self.window;
        ResumePoint { lane: self.lane, next: self.next, offset: self.offset, limit: self.limit_sent }
    }

    pub fn check_invariants(&self, frame_max: u64) {
        assert!(self.consumed <= self.offset && self.next_sent <= self.next);
        assert!(self.held() <= self.window + frame_max, "no more than was granted");
        assert!(self.limit_sent <= self.consumed + self.window);
    }
}
