use crate::error::PeerError;
use crate::lane::Lane;
use crate::wire::ResumePoint;

/// One lane's way in: how far it is, and what the peer was told of that.
#[derive(Debug)]
pub struct Receiving {
    lane: Lane,
    window: u64,
    /// The frame that comes next.
    next: u64,
    /// Bytes of all frames before it.
    offset: u64,
    /// Of those, bytes of frames that were consumed.
    consumed: u64,
    next_sent: u64,
    limit_sent: u64,
    /// What was told may have been lost with the channel that carried it.
    may_be_lost: bool,
}

impl Receiving {
    pub fn new(lane: Lane, window: u64) -> Self {
        Self {
            lane,
            window,
            next: 0,
            offset: 0,
            consumed: 0,
            next_sent: 0,
            limit_sent: 0,
            may_be_lost: false,
        }
    }

    /// A frame has come. Returns its number.
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

    /// Frames of so many bytes are in nobody's way any more. No more than were admitted.
    pub fn consume(&mut self, bytes: u64) {
        debug_assert!(self.consumed + bytes <= self.offset, "consumed before it came");
        self.consumed = (self.consumed + bytes).min(self.offset);
    }

    /// Bytes that were admitted and not consumed.
    pub fn held(&self) -> u64 {
        self.offset - self.consumed
    }

    /// Whether [`Self::take_acknowledgement`] has something.
    pub fn has_pending(&self) -> bool {
        let acknowledges = self.lane.class().is_resumed() && self.next != self.next_sent;
        // A little more credit is not worth a record.
        let grants = self.consumed + self.window - self.limit_sent >= self.window / 4;
        acknowledges || grants || self.may_be_lost
    }

    /// What the peer should hear: `(next, limit)`.
    pub fn take_acknowledgement(&mut self) -> Option<(u64, u64)> {
        if !self.has_pending() {
            return None;
        }
        self.may_be_lost = false;
        (self.next_sent, self.limit_sent) = (self.next, self.consumed + self.window);
        Some((self.next, self.limit_sent))
    }

    /// A channel was lost, with what it carried.
    pub fn resend(&mut self) {
        self.may_be_lost = self.offset > 0;
    }

    /// For a channel that begins.
    pub fn resume_point(&mut self) -> ResumePoint {
        (self.next_sent, self.limit_sent) = (self.next, self.consumed + self.window);
        ResumePoint { lane: self.lane, next: self.next, offset: self.offset, limit: self.limit_sent }
    }

    pub fn check_invariants(&self, frame_max: u64) {
        assert!(self.consumed <= self.offset && self.next_sent <= self.next);
        assert!(self.held() <= self.window + frame_max, "no more than was granted");
        assert!(self.limit_sent <= self.consumed + self.window);
    }
}
