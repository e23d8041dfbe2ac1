//! Time up to which everything that clients had sent was read. Keep Alive and other timeouts of clients run by this
//! time and by no later one. After a pause of the process or the machine, the bytes that a client sent meanwhile are
//! still in its socket.

use std::time::Duration;

use broker::Time;

/// Tracks reads from a poll until everything that the poll reported was read: one round.
#[derive(Default)]
pub(super) struct ReadUntil {
    /// Start of the poll that the current round follows.
    round_begun: Option<Time>,
    /// Turns of the loop in the current round.
    turns: usize,
    /// Earliest start of the next round. After a pause, bytes in flight still have to arrive.
    not_before: Time,
}

/// Minimum time without a look at the clock that counts as a pause. Less is a long turn.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Time after a pause for which sockets are read before timeouts of clients are checked.
const GRACE: Duration = Duration::from_secs(1);
/// Maximum number of turns for which a connection that always has more to read delays the end of a round.
const TURNS_MAX: usize = 32;

impl ReadUntil {
    /// Reports that the thread did nothing for `waited`. Only `expected` was intended.
    pub fn waited(&mut self, now: Time, waited: Duration, expected: Duration) {
        if waited >= expected.saturating_add(PAUSE_MIN) {
            self.pauses(now);
        }
    }

    /// Reports that nothing is read now. What was read before does not count any more.
    pub fn pauses(&mut self, now: Time) {
        self.round_begun = None;
        self.not_before = now.after(GRACE);
    }

    /// Reports the start of a poll.
    pub fn polls(&mut self, now: Time) {
        if self.round_begun.is_none() && now >= self.not_before {
            (self.round_begun, self.turns) = (Some(now), 0);
        }
    }

    /// Reports that every connection of the last poll was read once. `is_all` says that none of them has more. After
    /// `polls_needed` polls, every connection with unread bytes has been reported. Returns the time up to which
    /// everything was read, at the end of a round.
    pub fn has_read(&mut self, is_all: bool, polls_needed: usize) -> Option<Time> {
        self.turns += 1;
        let is_over = is_all || self.turns >= TURNS_MAX.saturating_add(polls_needed);
        self.round_begun.take_if(|_| is_over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Duration = Duration::ZERO;

    #[test]
    fn the_time_of_a_poll_counts_once_its_connections_are_read() {
        let mut reads = ReadUntil::default();
        reads.polls(Time(10));
        assert_eq!(reads.has_read(false, 1), None);
        reads.polls(Time(20));
        assert_eq!(reads.has_read(true, 1), Some(Time(10)));
        assert_eq!(reads.has_read(true, 1), None, "not without another poll");
    }

    #[test]
    fn a_connection_that_always_has_more_does_not_delay_timeouts_of_others() {
        let mut reads = ReadUntil::default();
        let mut turn = |time| {
            reads.polls(Time(time));
            reads.has_read(false, 3)
        };
        assert_eq!((1..TURNS_MAX as u64 + 3).find_map(&mut turn), None);
        assert_eq!(turn(1_000), Some(Time(1)));
        assert_eq!(turn(1_001), None);
    }

    #[test]
    fn timeouts_wait_for_a_while_after_nothing_was_read() {
        let mut reads = ReadUntil::default();
        reads.polls(Time(0));
        reads.pauses(Time(60_000));
        reads.polls(Time(60_500));
        assert_eq!(reads.has_read(true, 1), None);
        reads.polls(Time(61_000));
        assert_eq!(reads.has_read(true, 1), Some(Time(61_000)));
    }

    #[test]
    fn timeouts_wait_after_a_pause_until_sockets_were_read_for_a_while() {
        let mut reads = ReadUntil::default();
        reads.polls(Time(0));
        reads.waited(Time(500), Duration::from_millis(500), Duration::from_millis(400));
        assert_eq!(reads.has_read(true, 1), Some(Time(0)), "a short delay is not a pause");

        reads.polls(Time(1_000));
        reads.waited(Time(61_000), Duration::from_secs(60), NOTHING);
        assert_eq!(reads.has_read(true, 1), None);
        reads.polls(Time(61_999));
        assert_eq!(reads.has_read(true, 1), None);
        reads.polls(Time(62_000));
        assert_eq!(reads.has_read(true, 1), Some(Time(62_000)));
    }
}
