//! A limit on log lines about a repeated fault.

use std::time::{Duration, Instant};

/// Minimum time between two lines in the log.
const EVERY: Duration = Duration::from_secs(60);

/// Limiter of the lines about one fault.
#[derive(Debug, Default)]
pub struct LogLimiter {
    last: Option<Instant>,
    suppressed: u64,
}

impl LogLimiter {
    /// Counts a fault. Returns the number of suppressed lines when a line is due, and `None` otherwise.
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
    fn one_line_a_minute_has_the_number_of_suppressed_lines() {
        let (mut log_limiter, begun) = (LogLimiter::default(), Instant::now());
        let lines =
            (0..1800).filter_map(|tenth| log_limiter.allow(begun + Duration::from_millis(100) * tenth));
        assert_eq!(lines.collect::<Vec<_>>(), [0, 599, 599]);
    }
}
