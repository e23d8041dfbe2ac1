use std::time::Duration;

use link::Time;

/// Limiter of log lines about a failure that may occur at any rate.
#[derive(Debug, Default)]
pub struct LogLimiter {
    quiet_until: Time,
    suppressed: u64,
}

/// Minimum time from one line to the next.
const PAUSE: Duration = Duration::from_secs(60);

impl LogLimiter {
    /// Counts a failure. Returns `None` when it must not be logged now, else the number of failures that were
    /// suppressed since the last line.
    pub fn should_log(&mut self, now: Time) -> Option<u64> {
        if now < self.quiet_until {
            self.suppressed += 1;
            return None;
        }
        self.quiet_until = now.after(PAUSE);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_failure_is_logged_once_a_minute_with_the_number_suppressed() {
        let mut log_limiter = LogLimiter::default();
        let said = (0..1_300_u64).filter_map(|turn| log_limiter.should_log(Time(turn * 100_000)));
        assert_eq!(said.collect::<Vec<_>>(), [0, 599, 599]);
    }
}
