//! What goes wrong again and again, and is logged now and then.

use std::time::{Duration, Instant};

/// From one line in the log to the next, at least.
const EVERY: Duration = Duration::from_secs(60);

/// Complaints about one thing.
#[derive(Debug, Default)]
pub struct LogLimiter {
    last: Option<Instant>,
    suppressed: u64,
}

impl LogLimiter {
    /// Something went wrong. How many complaints were left out since the last line when another one is due, and `None` when it is not.
    pub fn allow(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            self.suppressed += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_line_a_minute_that_says_how_many_there_are_not() {
        let (mut log_limiter, begun) = (LogLimiter::default(), Instant::now());
        let lines =
            (0..1800).filter_map(|tenth| log_limiter.allow(begun + Duration::from_millis(100) * tenth));
        assert_eq!(lines.collect::<Vec<_>>(), [0, 599, 599]);
    }
}
