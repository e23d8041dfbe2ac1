use std::collections::VecDeque;

use crate::error::PeerError;
use crate::frame::Frame;
use crate::lane::Lane;
use crate::mutation::{Mutation, mutated};
use crate::time::Time;
use crate::wire::ResumePoint;

/// Sending side of one lane: frames that wait to be written, and on resumed lanes those that were written and not
/// acknowledged.
#[derive(Debug)]
pub struct Sending {
    lane: Lane,
    frames: VecDeque<Waiting>,
    /// Bytes of all held frames.
    held: u64,
    /// Number of the first frame that is held.
    first: u64,
    /// Bytes of all frames before it.
    first_offset: u64,
    /// Number of the frame that is written next: `first..=end`.
    next: u64,
    next_offset: u64,
    /// Frames below this number were written to some channel.
    written: u64,
    /// Offset limit that the peer has granted.
    limit: u64,
    /// True while a frame waits for credit.
    is_stalled: bool,
    /// Number from which frames are for the peer's next incarnation: none of them is written before it runs.
    next_incarnation: Option<u64>,
}

#[derive(Debug)]
struct Waiting {
    frame: Frame,
    since: Time,
}

/// A frame that is to be written now.
pub struct Written {
    pub number: u64,
    pub frame: Frame,
    /// True when it was written before, to a channel that was lost.
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

    /// Marks frames accepted from now on as frames for the peer's next incarnation.
    pub fn expect_restart(&mut self) {
        let end = self.end();
        self.next_incarnation.get_or_insert(end);
    }

    /// Notes that the peer continues: frames for its next incarnation go to this one.
    pub fn expect_no_restart(&mut self) {
        self.next_incarnation = None;
    }

    /// Returns the sending side for the peer's next incarnation, with the frames that wait for it.
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

    /// Returns the bytes that wait to be written or acknowledged.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Returns the number of frames that wait to be written or acknowledged.
    pub fn frames(&self) -> u64 {
        self.frames.len() as u64
    }

    /// Returns the time at which the oldest of them was accepted.
    pub fn oldest(&self) -> Option<Time> {
        self.frames.front().map(|waiting| waiting.since)
    }

    /// Accepts a frame, and returns its number.
    pub fn push(&mut self, now: Time, frame: Frame) -> u64 {
        self.held += frame.len() as u64;
        self.frames.push_back(Waiting { frame, since: now });
        self.end() - 1
    }

    /// Returns whether [`Self::write`] has something.
    pub fn is_ready(&self) -> bool {
        self.next < self.end_of_incarnation() && self.next_offset < self.limit
    }

    /// Returns the number after the last frame that the peer's present incarnation may receive.
    fn end_of_incarnation(&self) -> u64 {
        self.next_incarnation.map_or(self.end(), |first| first.min(self.end()))
    }

    /// Returns whether frames wait for nothing but credit. True once for each time that they begin to.
    pub fn stalls(&mut self) -> bool {
        let is_stalled = self.next < self.end_of_incarnation() && self.next_offset >= self.limit;
        is_stalled && !std::mem::replace(&mut self.is_stalled, is_stalled)
    }

    /// Returns the next frame, if there is one and the peer has granted its beginning.
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

    /// Handles an acknowledgement: the peer has all frames before `next`, and grants up to `limit`. Returns true when
    /// it acknowledged new frames.
    pub fn acknowledged(&mut self, next: u64, limit: u64) -> Result<bool, PeerError> {
        if next > self.next {
            return Err(PeerError::AcknowledgedUnsent {
                lane: self.lane.byte(),
                sent: self.next,
                found: next,
            });
        }
        self.grant(limit);
        // The lane is not resumed, or the acknowledgement is older than the last one.
        if next <= self.first || !self.lane.class().is_resumed() {
            return Ok(false);
        }
        self.forget_to(next);
        Ok(true)
    }

    /// Moves the lane to a new channel, with the peer at `resume_point`. Returns the number of frames that were lost
    /// for good with the earlier channel.
    pub fn resume(&mut self, resume_point: &ResumePoint) -> Result<u64, PeerError> {
        let cannot = PeerError::CannotResume {
            lane: self.lane.byte(),
            from: self.first,
            to: self.written,
            found: resume_point.next,
        };
        if !self.lane.class().is_resumed() {
            // Frames in transit are lost; the numbers continue where the peer is. The peer may be further: a connection
            // that it has given up already may report its earlier position.
            let lost = self.first.saturating_sub(resume_point.next);
            (self.first, self.first_offset) = (resume_point.next, resume_point.offset);
            (self.next, self.next_offset, self.written) =
                (resume_point.next, resume_point.offset, resume_point.next);
            // Another channel may have granted more than when this one began.
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

    /// Drops the unwritten frames of a lane that is not resumed, after its channel is gone. Returns their number.
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
            "no incarnation has frames for the next one"
        );
        assert_eq!(self.frames.iter().map(|waiting| waiting.frame.len() as u64).sum::<u64>(), self.held);
        let before = self.frames.iter().take((self.next - self.first) as usize);
        let offset = self.first_offset + before.map(|waiting| waiting.frame.len() as u64).sum::<u64>();
        assert_eq!(offset, self.next_offset);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// Two connections with one number are made at once, and the ends attach them in different orders. The peer has
    /// given one up; its resume point arrives late and is old. The next one has the right position.
    #[test]
    fn a_late_resume_point_is_not_final() {
        let mut sending = Sending::new(Lane::CONTROL);
        let resume_point = |next| ResumePoint { lane: Lane::CONTROL, next, offset: next, limit: 100 };
        sending.resume(&resume_point(0)).expect("it begins");
        for _ in 0..3 {
            sending.push(Time::default(), Bytes::from_static(b"x").into());
            assert!(sending.write().is_some());
        }
        assert_eq!(sending.resume(&resume_point(1)), Ok(2), "as lost as it seems");
        assert_eq!(sending.resume(&resume_point(3)), Ok(0));
        assert_eq!(sending.push(Time::default(), Bytes::from_static(b"x").into()), 3);
        assert_eq!(sending.write().map(|written| written.number), Some(3));
        sending.check_invariants();
    }
}
