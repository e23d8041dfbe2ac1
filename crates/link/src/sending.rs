use std::collections::VecDeque;

use bytes::Bytes;

use crate::error::PeerError;
use crate::lane::Lane;
use crate::mutation::{Mutation, mutated};
use crate::time::Time;
use crate::wire::ResumePoint;

/// One lane's way out: what waits to be written, and on resumed lanes what was written and not acknowledged.
#[derive(Debug)]
pub struct Sending {
    lane: Lane,
    frames: VecDeque<Waiting>,
    /// Bytes of all of them.
    held: u64,
    /// Number of the first frame that is held.
    first: u64,
    /// Bytes of all frames before it.
    first_offset: u64,
    /// The frame that is written next: `first..=end`.
    next: u64,
    next_offset: u64,
    /// Frames below were written to some channel.
    written: u64,
    /// Granted by the peer.
    limit: u64,
    /// A frame waits for credit.
    is_stalled: bool,
    /// Frames from this number on are for the peer's next life: none of them is written before that is there.
    next_incarnation: Option<u64>,
}

#[derive(Debug)]
struct Waiting {
    frame: Bytes,
    since: Time,
}

/// A frame that is to be written now.
pub struct Written {
    pub number: u64,
    pub frame: Bytes,
    /// It had been written before, to a channel that was lost.
    pub is_again: bool,
}

impl Sending {
    pub fn new(lane: Lane) -> Self {
        Self {
            lane,
            frames: VecDeque::new(),
            held: 0,
            first: 0,
            first_offset: 0,
            next: 0,
            next_offset: 0,
            written: 0,
            limit: 0,
            is_stalled: false,
            next_incarnation: None,
        }
    }

    /// What is taken from now on is for the peer's next life.
    pub fn expect_restart(&mut self) {
        let end = self.end();
        self.next_incarnation.get_or_insert(end);
    }

    /// The peer goes on as it is: what waits for its next life is for this one.
    pub fn expect_no_restart(&mut self) {
        self.next_incarnation = None;
    }

    /// The way out to the peer's next life, with what waits for that.
    pub fn restarted(mut self) -> Self {
        let mut next = Self::new(self.lane);
        if let Some(first) = self.next_incarnation {
            next.frames = self.frames.split_off(first.saturating_sub(self.first) as usize);
            next.held = next.frames.iter().map(|waiting| waiting.frame.len() as u64).sum();
        }
        next
    }

    pub fn lane(&self) -> Lane {
        self.lane
    }

    fn end(&self) -> u64 {
        self.first + self.frames.len() as u64
    }

    /// Bytes that wait to be written or acknowledged.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Frames that wait to be written or acknowledged.
    pub fn frames(&self) -> u64 {
        self.frames.len() as u64
    }

    /// When the oldest of them came.
    pub fn oldest(&self) -> Option<Time> {
        self.frames.front().map(|waiting| waiting.since)
    }

    /// Takes a frame, and returns its number.
    pub fn push(&mut self, now: Time, frame: Bytes) -> u64 {
        self.held += frame.len() as u64;
        self.frames.push_back(Waiting { frame, since: now });
        self.end() - 1
    }

    /// Whether [`Self::write`] has something.
    pub fn is_ready(&self) -> bool {
        self.next < self.end_of_incarnation() && self.next_offset < self.limit
    }

    /// The frame before which those end that the peer may have in its present life.
    fn end_of_incarnation(&self) -> u64 {
        self.next_incarnation.map_or(self.end(), |first| first.min(self.end()))
    }

    /// Whether frames wait for credit only; true once for each time that they begin to.
    pub fn stalls(&mut self) -> bool {
        let is_stalled = self.next < self.end_of_incarnation() && self.next_offset >= self.limit;
        is_stalled && !std::mem::replace(&mut self.is_stalled, is_stalled)
    }

    /// The next frame, if there is one and the peer granted its beginning.
    pub fn write(&mut self) -> Option<Written> {
        if !self.is_ready() {
            return None;
        }
        let number = self.next;
        let frame = self.frames.get((number - self.first) as usize)?.frame.clone();
        self.next += 1;
        self.next_offset += frame.len() as u64;
        let is_again = number < self.written;
        self.written = self.written.max(self.next);
        if !self.lane.class().is_resumed() {
            self.forget_to(self.next);
        }
        Some(Written { number, frame, is_again })
    }

    /// The peer has all before `next`, and grants up to `limit`. True when frames were acknowledged by that.
    pub fn acknowledged(&mut self, next: u64, limit: u64) -> Result<bool, PeerError> {
        if next > self.next {
            return Err(PeerError::AcknowledgedUnsent {
                lane: self.lane.byte(),
                sent: self.next,
                found: next,
            });
        }
        self.grant(limit);
        // Of a lane that is not resumed, or said before what is known already.
        if next <= self.first || !self.lane.class().is_resumed() {
            return Ok(false);
        }
        self.forget_to(next);
        Ok(true)
    }

    /// A new channel carries the lane; the peer is at `resume_point`. Returns how many frames were lost with the earlier one, for good.
    pub fn resume(&mut self, resume_point: &ResumePoint) -> Result<u64, PeerError> {
        let cannot = PeerError::CannotResume {
            lane: self.lane.byte(),
            from: self.first,
            to: self.written,
            found: resume_point.next,
        };
        if !self.lane.class().is_resumed() {
            // What was on its way is gone; the numbers go on where the peer is. It may be further: a connection that it has given up
            // already may say where it was before.
            let lost = self.first.saturating_sub(resume_point.next);
            (self.first, self.first_offset) = (resume_point.next, resume_point.offset);
            (self.next, self.next_offset, self.written) =
                (resume_point.next, resume_point.offset, resume_point.next);
            // Another channel may have said more by now than was true when this one began.
            self.grant(resume_point.limit);
            return Ok(lost);
        }
        if resume_point.next < self.first || resume_point.next > self.written {
            return Err(cannot);
        }
        self.forget_to(resume_point.next);
        if resume_point.offset != self.first_offset {
            return Err(cannot);
        }
        (self.next, self.next_offset) = (resume_point.next, resume_point.offset);
        if mutated(Mutation::SkipLost) {
            self.forget_to(self.written);
        }
        self.grant(resume_point.limit);
        Ok(0)
    }

    /// The channel is gone: what a lane that takes nothing over had not written is dropped. Returns how many frames that were.
    pub fn drop_unwritten(&mut self) -> u64 {
        let dropped = self.frames.len() as u64;
        self.frames.clear();
        self.held = 0;
        dropped
    }

    fn grant(&mut self, limit: u64) {
        if limit > self.limit {
            self.limit = limit;
            self.is_stalled = false;
        }
    }

    fn forget_to(&mut self, next: u64) {
        while self.first < next
            && let Some(waiting) = self.frames.pop_front()
        {
            let length = waiting.frame.len() as u64;
            self.first += 1;
            self.first_offset += length;
            self.held -= length;
        }
        if self.frames.is_empty() {
            self.frames.shrink_to(64);
        }
        if self.next < self.first {
            (self.next, self.next_offset) = (self.first, self.first_offset);
        }
    }

    pub fn check_invariants(&self) {
        assert!(self.first <= self.next && self.next <= self.end().max(self.next));
        assert!(self.next <= self.end() && self.written >= self.next);
        assert!(
            self.next_incarnation.is_none_or(|first| self.written <= first),
            "nobody has what is for the next life"
        );
        assert_eq!(self.frames.iter().map(|waiting| waiting.frame.len() as u64).sum::<u64>(), self.held);
        let before = self.frames.iter().take((self.next - self.first) as usize);
        let offset = self.first_offset + before.map(|waiting| waiting.frame.len() as u64).sum::<u64>();
        assert_eq!(offset, self.next_offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two connections of one number were made at once, and the ends took them in different orders: the peer has given one up, which says late
    /// where the peer was before. The next one says where it is.
    #[test]
    fn a_place_that_comes_too_late_is_not_the_last_one() {
        let mut sending = Sending::new(Lane::CONTROL);
        let resume_point = |next| ResumePoint { lane: Lane::CONTROL, next, offset: next, limit: 100 };
        sending.resume(&resume_point(0)).expect("it begins");
        for _ in 0..3 {
            sending.push(Time::default(), Bytes::from_static(b"x"));
            assert!(sending.write().is_some());
        }
        assert_eq!(sending.resume(&resume_point(1)), Ok(2), "as lost as it seems");
        assert_eq!(sending.resume(&resume_point(3)), Ok(0));
        assert_eq!(sending.push(Time::default(), Bytes::from_static(b"x")), 3);
        assert_eq!(sending.write().map(|written| written.number), Some(3));
        sending.check_invariants();
    }
}
