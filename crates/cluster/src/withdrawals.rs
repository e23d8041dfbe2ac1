use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use link::Time;

/// Filters whose QoS 0 interest is withdrawn later. Their durable sessions have no connection, and miss nothing on
/// other nodes if they return soon.
#[derive(Debug, Default)]
pub struct Withdrawals {
    /// Time at which each filter is due.
    due: HashMap<Arc<str>, Time>,
    /// Filters in the order of the times, which may be earlier than those in `due`.
    queue: VecDeque<(Time, Arc<str>)>,
}

/// Maximum number of filters that wait. Interest beyond is withdrawn at once.
const WAITING_MAX: usize = 100_000;

impl Withdrawals {
    /// Delays the withdrawal of a filter. Returns false when there is no room, or no time to wait.
    pub fn put_off(&mut self, now: Time, wait: Duration, filter: &str) -> bool {
        if wait.is_zero() {
            return false;
        }
        let at = now.after(wait);
        if let Some(due) = self.due.get_mut(filter) {
            *due = at;
            return true;
        }
        if self.due.len() >= WAITING_MAX {
            return false;
        }
        let filter: Arc<str> = filter.into();
        self.due.insert(filter.clone(), at);
        self.queue.push_back((at, filter));
        true
    }

    /// Returns whether the withdrawal of a filter waits.
    pub fn contains(&self, filter: &str) -> bool {
        self.due.contains_key(filter)
    }

    /// Takes the next filter whose time is over.
    pub fn pop_due(&mut self, now: Time) -> Option<Arc<str>> {
        loop {
            let (_, filter) = self.queue.pop_front_if(|(at, _)| *at <= now)?;
            match self.due.get(&filter) {
                // It was delayed again meanwhile.
                Some(due) if *due > now => self.queue.push_back((*due, filter)),
                _ => {
                    self.due.remove(&filter);
                    return Some(filter);
                }
            }
        }
    }

    /// Returns the time by which [`Self::pop_due`] must be called.
    pub fn deadline(&self) -> Time {
        self.queue.front().map_or(Time::NEVER, |(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000)
    }

    #[test]
    fn a_filter_is_due_at_the_time_of_its_last_withdrawal() {
        let mut withdrawals = Withdrawals::default();
        assert!(withdrawals.put_off(at(0), WAIT, "a"));
        assert!(withdrawals.put_off(at(10), WAIT, "b"));
        assert!(withdrawals.put_off(at(30), WAIT, "a"));
        assert_eq!(withdrawals.deadline(), at(60));
        assert_eq!(withdrawals.pop_due(at(60)), None, "the withdrawal of a was delayed again");
        assert_eq!(withdrawals.pop_due(at(70)).as_deref(), Some("b"));
        assert_eq!(withdrawals.pop_due(at(89)), None);
        assert_eq!(withdrawals.pop_due(at(90)).as_deref(), Some("a"));
        assert_eq!((withdrawals.pop_due(at(900)), withdrawals.deadline()), (None, Time::NEVER));
        assert!(withdrawals.due.is_empty());
    }

    #[test]
    fn a_filter_without_room_is_withdrawn_at_once() {
        let mut withdrawals = Withdrawals::default();
        assert!(!withdrawals.put_off(at(0), Duration::ZERO, "a"));
        for number in 0..WAITING_MAX {
            assert!(withdrawals.put_off(at(0), WAIT, &number.to_string()));
        }
        assert!(!withdrawals.put_off(at(0), WAIT, "a"));
        assert!(withdrawals.put_off(at(0), WAIT, "0"), "it waits already");
    }
}
