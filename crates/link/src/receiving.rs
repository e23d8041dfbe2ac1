use crate::error::PeerError;
use crate::lane::Lane;
use crate::wire::Place;

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
    next_told: u64,
    limit_told: u64,
    /// What was told may have been lost with the channel that carried it.
    is_unsure: bool,
}

impl Receiving {
    pub fn new(lane: Lane, window: u64) -> Self {
        Self { lane, window, next: 0, offset: 0, consumed: 0, next_told: 0, limit_told: 0, is_unsure: false }
    }

    /// A frame has come. Returns its number.
    pub fn admit(&mut self, number: u32, length: u64) -> Result<u64, PeerError> {
        let lane = self.lane.byte();
        if number != self.next as u32 {
            return Err(PeerError::OutOfSequence { lane, expected: self.next as u32, found: number });
        }
        if self.offset >= self.limit_told {
            return Err(PeerError::CreditExceeded { lane, limit: self.limit_told });
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

    /// Whether [`Self::tell`] has something.
    pub fn has_news(&self) -> bool {
        let acknowledges = self.lane.class().is_resumed() && self.next != self.next_told;
        // A little more credit is not worth a record.
        let grants = self.consumed + self.window - self.limit_told >= self.window / 4;
        acknowledges || grants || self.is_unsure
    }

    /// What the peer should hear: `(next, limit)`.
    pub fn tell(&mut self) -> Option<(u64, u64)> {
        if !self.has_news() {
            return None;
        }
        self.is_unsure = false;
        (self.next_told, self.limit_told) = (self.next, self.consumed + self.window);
        Some((self.next, self.limit_told))
    }

    /// A channel was lost, with what it carried.
    pub fn tell_again(&mut self) {
        self.is_unsure = self.offset > 0;
    }

    /// For a channel that begins.
    pub fn place(&mut self) -> Place {
        (self.next_told, self.limit_told) = (self.next, self.consumed + self.window);
        Place { lane: self.lane, next: self.next, offset: self.offset, limit: self.limit_told }
    }

    pub fn check_invariants(&self, frame_max: u64) {
        assert!(self.consumed <= self.offset && self.next_told <= self.next);
        assert!(self.held() <= self.window + frame_max, "no more than was granted");
        assert!(self.limit_told <= self.consumed + self.window);
    }
}
