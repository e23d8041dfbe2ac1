//! A timer wheel, for many timers that need little precision and rarely fire.

use crate::ids::Time;

/// Timers by slot and generation. A timer cannot be cancelled: when it fires, its receiver checks whether it still has
/// a meaning. So a timer costs nothing per packet.
#[derive(Debug)]
pub struct Wheel {
    spokes: Vec<Vec<Timer>>,
    /// The tick up to which everything has fired.
    fired: u64,
    armed: usize,
    /// Memory of the next result of [`Wheel::fire`].
    due: Vec<Timer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    pub slot: u32,
    pub generation: u32,
    /// Tick at which the timer fires; a spoke holds timers of several turns of the wheel.
    tick: u32,
    pub kind: TimerKind,
}

const _: () = assert!(size_of::<Timer>() <= 16, "there are two for each connection");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerKind {
    /// CONNECT is due.
    Connect,
    KeepAlive,
    /// The rest of a packet is due, or more of it.
    Packet,
    /// More retained messages may be looked at.
    Retained,
    /// A publisher waits for a slot in this connection's queue.
    QueueWait,
    /// A publisher that was blocked may be able to continue.
    Unblock,
    /// The admission has expired.
    Expiry,
    /// The last bytes of a closed connection should have been written.
    Linger,
}

const TICK_MS: u64 = 100;
const SPOKES: usize = 1024;

impl Default for Wheel {
    fn default() -> Self {
        Self { spokes: (0..SPOKES).map(|_| Vec::new()).collect(), fired: 0, armed: 0, due: Vec::new() }
    }
}

impl Wheel {
    /// Starts a timer that fires at `at` or up to 100 ms later.
    pub fn arm(&mut self, at: Time, slot: u32, generation: u32, kind: TimerKind) {
        let tick = (at.0.div_ceil(TICK_MS)).max(self.fired + 1);
        let timer = Timer { slot, generation, tick: tick as u32, kind };
        self.spokes[tick as usize % SPOKES].push(timer);
        self.armed += 1;
    }

    /// Latest time for the next call of [`Self::fire`].
    pub fn next(&self) -> Time {
        if self.armed == 0 {
            return Time::NEVER;
        }
        Time((self.fired + 1) * TICK_MS)
    }

    /// Takes the timers that are due. [`Self::recycle`] gets the memory back.
    pub fn fire(&mut self, now: Time) -> Vec<Timer> {
        let mut due = std::mem::take(&mut self.due);
        let until = now.0 / TICK_MS;
        if self.armed == 0 {
            self.fired = self.fired.max(until);
            return due;
        }
        // After a long pause one turn around the wheel visits every timer.
        let spokes = (until.saturating_sub(self.fired)).min(SPOKES as u64);
        for tick in until + 1 - spokes..=until {
            let spoke = &mut self.spokes[tick as usize % SPOKES];
            let mut at = 0;
            while at < spoke.len() {
                if spoke[at].tick as u64 <= until {
                    due.push(spoke.swap_remove(at));
                } else {
                    at += 1;
                }
            }
            if spoke.is_empty() && spoke.capacity() > 64 {
                *spoke = Vec::new();
            }
        }
        self.armed -= due.len();
        self.fired = self.fired.max(until);
        due
    }

    /// Keeps the memory of timers that were handled.
    pub fn recycle(&mut self, mut due: Vec<Timer>) {
        due.clear();
        self.due = due;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fired(wheel: &mut Wheel, now: u64) -> Vec<u32> {
        let due = wheel.fire(Time(now));
        let mut slots: Vec<_> = due.iter().map(|timer| timer.slot).collect();
        slots.sort_unstable();
        slots
    }

    #[test]
    fn timers_fire_once_at_their_time_and_not_before() {
        let mut wheel = Wheel::default();
        assert_eq!(wheel.next(), Time::NEVER);
        wheel.arm(Time(250), 1, 0, TimerKind::KeepAlive);
        wheel.arm(Time(250 + 100 * SPOKES as u64), 2, 0, TimerKind::KeepAlive);
        assert_eq!(fired(&mut wheel, 250), []);
        assert_eq!(fired(&mut wheel, 300), [1]);
        assert_eq!(fired(&mut wheel, 100 * SPOKES as u64), []);
        assert_eq!(fired(&mut wheel, 300 + 100 * SPOKES as u64), [2]);
        assert_eq!(wheel.next(), Time::NEVER);
    }

    #[test]
    fn a_long_pause_loses_no_timers() {
        let mut wheel = Wheel::default();
        for slot in 0..50 {
            wheel.arm(Time(u64::from(slot) * 7_919), slot, 0, TimerKind::Connect);
        }
        assert_eq!(fired(&mut wheel, 10_000_000).len(), 50);
    }

    #[test]
    fn a_timer_that_is_already_due_fires_at_the_next_tick() {
        let mut wheel = Wheel::default();
        fired(&mut wheel, 5_000);
        wheel.arm(Time(1_000), 9, 0, TimerKind::Linger);
        assert_eq!(fired(&mut wheel, 5_100), [9]);
    }
}
