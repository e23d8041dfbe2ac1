//! Until when everything that clients had sent was read. A client is judged by its silence until then, and by no later time: after a
//! pause of the process or the machine, what the client sent meanwhile lies in its socket.

use std::time::Duration;

use broker::Time;

/// Follows the sockets from a poll until what the poll found was read.
#[derive(Default)]
pub(super) struct ReadUntil {
    /// When the poll began that the present round follows.
    round_begun: Option<Time>,
    /// Turns of the loop that the round has taken.
    turns: usize,
    /// No round begins before: what was under way during a pause is still to arrive.
    not_before: Time,
}

/// Time without a look at the clock that is a pause, and not a long turn.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// How long after a pause sockets are read before anybody is judged.
const GRACE: Duration = Duration::from_secs(1);
/// A connection that always has more to read holds a round up for so many turns at most.
const TURNS_MAX: usize = 32;

impl ReadUntil {
    /// The thread could do nothing for so long, and `expected` of it was intended.
    pub fn waited(&mut self, now: Time, waited: Duration, expected: Duration) {
        if waited >= expected.saturating_add(PAUSE_MIN) {
            self.round_begun = None;
            self.not_before = now.after(GRACE);
        }
    }

    /// A poll begins.
    pub fn polls(&mut self, now: Time) {
        if self.round_begun.is_none() && now >= self.not_before {
            (self.round_begun, self.turns) = (Some(now), 0);
        }
    }

    /// Every connection that the poll named was read once, and `is_all` when nothing more was found. With `polls_needed` polls every
    /// connection has been named that had something. Returns until when all was read, at the end of a round.
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
    fn what_a_poll_found_is_read_before_its_time_counts() {
        let mut reads = ReadUntil::default();
        reads.polls(Time(10));
        assert_eq!(reads.has_read(false, 1), None);
        reads.polls(Time(20));
        assert_eq!(reads.has_read(true, 1), Some(Time(10)));
        assert_eq!(reads.has_read(true, 1), None, "not without another poll");
    }

    #[test]
    fn a_connection_that_always_has_more_keeps_nobody_from_being_judged() {
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
    fn after_a_pause_nobody_is_judged_before_sockets_were_read_for_a_while() {
        let mut reads = ReadUntil::default();
        reads.polls(Time(0));
        reads.waited(Time(500), Duration::from_millis(500), Duration::from_millis(400));
        assert_eq!(reads.has_read(true, 1), Some(Time(0)), "a little late is no pause");

        reads.polls(Time(1_000));
        reads.waited(Time(61_000), Duration::from_secs(60), NOTHING);
        assert_eq!(reads.has_read(true, 1), None);
        reads.polls(Time(61_999));
        assert_eq!(reads.has_read(true, 1), None);
        reads.polls(Time(62_000));
        assert_eq!(reads.has_read(true, 1), Some(Time(62_000)));
    }
}
