use std::time::Duration;

use link::Time;

/// What may go wrong at any rate, and is logged once in a while.
#[derive(Debug, Default)]
pub struct LogLimiter {
    quiet_until: Time,
    suppressed: u64,
}

/// From one line to the next.
const PAUSE: Duration = Duration::from_secs(60);

impl LogLimiter {
    /// It went wrong: whether that is to be said now, and if so how often it was not since the last time.
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
    fn what_goes_wrong_all_the_time_is_said_once_a_minute_with_how_often_it_was_not() {
        let mut log_limiter = LogLimiter::default();
        let said = (0..1_300_u64).filter_map(|turn| log_limiter.should_log(Time(turn * 100_000)));
        assert_eq!(said.collect::<Vec<_>>(), [0, 599, 599]);
    }
}
