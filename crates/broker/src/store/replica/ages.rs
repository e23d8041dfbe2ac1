//! Approximate creation times of records. They give the age of a message that is not in memory but only on disk.

use std::collections::VecDeque;
use std::time::Duration;

use crate::ids::Time;

/// Samples at even intervals over the node's incarnation, at most `SAMPLES_MAX`.
#[derive(Debug)]
pub(in crate::store) struct Ages {
    /// A record's index and the time of its creation, oldest first.
    samples: VecDeque<(u64, Time)>,
    /// Minimum time between two samples.
    step: Duration,
}

const SAMPLES_MAX: usize = 1024;
const STEP: Duration = Duration::from_secs(1);

impl Default for Ages {
    fn default() -> Self {
        Self { samples: VecDeque::new(), step: STEP }
    }
}

impl Ages {
    /// Takes a sample when a record is created, unless the last sample is too recent.
    pub fn note(&mut self, index: u64, now: Time) {
        if self.samples.back().is_some_and(|(_, last)| now < last.after(self.step)) {
            return;
        }
        self.samples.push_back((index, now));
        if self.samples.len() > SAMPLES_MAX {
            self.step *= 2;
            let mut at = 0;
            self.samples.retain(|_| {
                at += 1;
                at % 2 == 1
            });
        }
    }

    /// Age of the record. It is too great by at most the time between two samples. For a record of a previous
    /// incarnation it is the time since this one started.
    pub fn of(&self, index: u64, now: Time) -> Duration {
        let after = self.samples.partition_point(|(sampled, _)| *sampled <= index);
        let sample = self.samples.get(after.saturating_sub(1));
        sample.map_or(Duration::ZERO, |(_, made)| now.since(*made))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_known_to_a_thousandth_of_the_uptime_and_take_little_memory() {
        let mut ages = Ages::default();
        assert_eq!(ages.of(7, Time(5)), Duration::ZERO);
        for index in 0..100_000 {
            ages.note(100 + index, Time(index * 500));
        }
        assert!(ages.samples.len() <= SAMPLES_MAX);
        let now = Time(50_000_000);
        for index in [0, 1, 777, 50_000, 99_999] {
            let (found, made) = (ages.of(100 + index, now), Time(index * 500));
            let off = found.checked_sub(now.since(made)).expect("not too young");
            assert!(off <= ages.step, "{index}: {off:?}");
        }
        assert_eq!(ages.of(3, now), now.since(Time(0)), "of a previous incarnation");
    }
}
