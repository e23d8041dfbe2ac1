//! Detection of the connections that send most while the node is overloaded, and pauses in reading from them.

use std::collections::HashMap;

use broker::{Level, Time};

use super::Reactor;

/// Counts received bytes by connection while the node is close to pausing heavy senders.
#[derive(Default)]
pub(super) struct HeavySenders {
    counting: bool,
    bytes: HashMap<u32, u64>,
    /// Connections that are not read until the next choice.
    paused: Vec<u32>,
    choice_due: Time,
}

/// Pause in reading from the chosen connections. They send nothing during it, so the next choice falls on others.
const PAUSE_MS: u64 = 1000;
/// Maximum number of connections that are chosen at one time.
const CHOSEN_MAX: usize = 64;

impl HeavySenders {
    /// Adds `bytes` to the count of a connection.
    pub fn count(&mut self, slot: u32, bytes: usize) {
        if self.counting {
            *self.bytes.entry(slot).or_default() += bytes as u64;
        }
    }

    pub fn is_paused(&self, slot: u32) -> bool {
        self.paused.contains(&slot)
    }

    pub fn next_choice(&self) -> Time {
        if self.paused.is_empty() { Time::NEVER } else { self.choice_due }
    }

    /// Updates the overload level. Returns the connections to read again, and the number of connections that are paused
    /// from now on. At the highest level it pauses those that together sent half of the bytes of the last second.
    fn choose(&mut self, now: Time, level: Level) -> (Vec<u32>, usize) {
        self.counting = level >= Level::High;
        if self.choice_due > now {
            return (Vec::new(), 0);
        }
        self.choice_due = Time(now.0 + PAUSE_MS);
        let resumed = std::mem::take(&mut self.paused);
        let bytes = std::mem::take(&mut self.bytes);
        if level == Level::Severe {
            let half = bytes.values().sum::<u64>() / 2;
            let mut all: Vec<_> = bytes.into_iter().collect();
            all.sort_unstable_by_key(|(slot, bytes)| (std::cmp::Reverse(*bytes), *slot));
            let mut sum = 0;
            for (slot, bytes) in all.into_iter().take(CHOSEN_MAX) {
                if sum > half {
                    break;
                }
                sum += bytes;
                self.paused.push(slot);
            }
        }
        (resumed, self.paused.len())
    }
}

impl Reactor {
    /// Updates the overload level, a few times a second.
    pub(super) fn assess_load(&mut self) {
        if self.load_due > self.now {
            return;
        }
        self.load_due = Time(self.now.0 + ASSESS_MS);
        let mailbox_bytes = self.mailboxes[usize::from(self.index)].weight() as u64;
        let level = self.worker.assess_load(self.now, mailbox_bytes);
        if level != self.level {
            tracing::warn!(
                reactor = self.index,
                from = self.level.number(),
                to = level.number(),
                "overload level"
            );
            self.level = level;
        }
        let (resumed, chosen) = self.heavy_senders.choose(self.now, level);
        self.figures.door.noisy_paused += chosen as u64;
        for slot in resumed {
            self.mark_ready(slot);
        }
    }
}

/// Milliseconds between two updates of the overload level.
const ASSESS_MS: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_sent_half_of_the_bytes_pause_and_resume() {
        let mut heavy_senders = HeavySenders::default();
        heavy_senders.count(1, 1_000);
        assert_eq!(heavy_senders.choose(Time(0), Level::High), (vec![], 0));
        for (slot, bytes) in [(1, 10), (2, 500), (3, 100), (4, 400), (2, 100)] {
            heavy_senders.count(slot, bytes);
        }
        assert_eq!(heavy_senders.choose(Time(PAUSE_MS - 1), Level::Severe), (vec![], 0));
        assert!(!heavy_senders.is_paused(2), "not before the second is over");
        assert_eq!(heavy_senders.choose(Time(PAUSE_MS), Level::Severe), (vec![], 1));
        assert_eq!(heavy_senders.paused, [2], "600 of 1110");
        heavy_senders.count(4, 10);
        heavy_senders.count(3, 10);
        assert_eq!(heavy_senders.choose(Time(2 * PAUSE_MS), Level::Severe), (vec![2], 2));
        assert_eq!(heavy_senders.paused, [3, 4], "more than half of 20");
        assert_eq!(heavy_senders.choose(Time(3 * PAUSE_MS), Level::Busy), (vec![3, 4], 0));
        assert!(heavy_senders.paused.is_empty() && heavy_senders.next_choice() == Time::NEVER);
        heavy_senders.count(5, 10);
        assert!(heavy_senders.bytes.is_empty(), "nothing is counted below the overload level");
    }

    #[test]
    fn the_number_of_paused_connections_is_bounded() {
        let mut heavy_senders = HeavySenders::default();
        heavy_senders.choose(Time(0), Level::Severe);
        (0..1_000).for_each(|slot| heavy_senders.count(slot, 1));
        heavy_senders.choose(Time(PAUSE_MS), Level::Severe);
        assert_eq!(heavy_senders.paused.len(), CHOSEN_MAX);
    }
}
