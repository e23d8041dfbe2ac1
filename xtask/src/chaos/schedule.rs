//! Moments of the kills, determined by a seed.

use super::Args;
use random::Random;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub struct Schedule {
    random: Random,
    /// Length in milliseconds of a slot, which has one kill.
    slot: u64,
    slots: u64,
    away: u64,
    early: u64,
}

/// Maximum time of a kill before the first answer, in milliseconds.
const EARLY_MS: u64 = 60;

pub fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    (now ^ u64::from(std::process::id()) << 40) % 1_000_000_000
}

impl Schedule {
    pub fn new(seed: u64, args: &Args, seconds: u32) -> Schedule {
        Schedule {
            random: Random::new(seed),
            slot: (u64::from(seconds) * 1000 / u64::from(args.kills)).max(1),
            slots: 0,
            away: args.away,
            early: u64::from(args.early),
        }
    }

    /// Time from the start of publishing to the next kill.
    pub fn next_moment(&mut self) -> Duration {
        let at = self.slots * self.slot + self.random.below_u64(self.slot);
        self.slots += 1;
        Duration::from_millis(at)
    }

    /// Time for which the broker stays down.
    pub fn away(&mut self) -> Duration {
        Duration::from_millis(self.random.below_u64(self.away + 1))
    }

    /// Returns whether a restart is killed before it has answered.
    pub fn early(&mut self) -> bool {
        self.random.below_u64(100) < self.early
    }

    pub fn early_after(&mut self) -> Duration {
        let ms = self.random.below_u64(EARLY_MS);
        // This uses a slot of the schedule, too.
        self.slots += 1;
        Duration::from_millis(ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(seed: u64) -> Schedule {
        Schedule { random: Random::new(seed), slot: 1000, slots: 0, away: 500, early: 10 }
    }

    #[test]
    fn a_seed_determines_the_moments() {
        let moments = |seed| {
            let mut schedule = schedule(seed);
            (0..30).map(|_| (schedule.next_moment(), schedule.away(), schedule.early())).collect::<Vec<_>>()
        };
        assert_eq!(moments(7), moments(7));
        assert_ne!(moments(7), moments(8));
    }

    #[test]
    fn every_slot_has_one_kill() {
        let mut schedule = schedule(3);
        let moments: Vec<u128> = (0..1000).map(|_| schedule.next_moment().as_millis()).collect();
        assert!(moments.iter().enumerate().all(|(slot, ms)| ms / 1000 == slot as u128));
        let low = moments.iter().filter(|ms| *ms % 1000 < 500).count();
        assert!((400..600).contains(&low), "{low} of 1000 in the first half of their slot");
        let early = (0..1000).filter(|_| schedule.early()).count();
        assert!((50..150).contains(&early), "{early} of 1000, 10 of 100 were requested");
    }
}
