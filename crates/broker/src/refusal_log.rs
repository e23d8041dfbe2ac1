//! Limit for the number of refusals that are logged as warnings, so that clients cannot fill the log.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::ids::Time;

/// Counts the warnings of the current minute, for all workers of a node.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog {
    /// Current minute times [`MINUTE`], plus the number of warnings in it.
    taken: AtomicU64,
    /// Number of refusals that were not logged since the last warning.
    unlogged: AtomicU64,
}

const MINUTE: u64 = 1 << 32;

impl RefusalLog {
    /// Takes one warning of this minute. Returns how many refusals were not logged before it, or `None` when no warning
    /// is left.
    pub fn take(&self, now: Time, per_minute: u32) -> Option<u64> {
        let minute = now.0 / 60_000 * MINUTE;
        let next = |taken: u64| {
            let count = taken.saturating_sub(minute);
            (count < u64::from(per_minute)).then(|| minute + count + 1)
        };
        if self.taken.fetch_update(Relaxed, Relaxed, next).is_ok() {
            Some(self.unlogged.swap(0, Relaxed))
        } else {
            self.unlogged.fetch_add(1, Relaxed);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_minute_has_its_warnings_and_the_next_one_counts_unlogged_refusals() {
        let log = RefusalLog::default();
        let take = |seconds: u64| log.take(Time(seconds * 1000), 2);
        assert_eq!([take(60), take(61), take(62), take(119)], [Some(0), Some(0), None, None]);
        assert_eq!([take(120), take(121), take(122)], [Some(2), Some(0), None]);
        assert_eq!(take(600), Some(1));
    }

    #[test]
    fn no_warnings_are_logged_with_a_limit_of_0() {
        assert_eq!(RefusalLog::default().take(Time(0), 0), None);
    }
}
