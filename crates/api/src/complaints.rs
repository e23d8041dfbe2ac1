//! What goes wrong again and again, and is logged now and then.

use std::time::{Duration, Instant};

/// From one line in the log to the next, at least.
const EVERY: Duration = Duration::from_secs(60);

/// Complaints about one thing.
#[derive(Debug, Default)]
pub struct Complaints {
    last: Option<Instant>,
    unsaid: u64,
}

impl Complaints {
    /// Something went wrong. How many complaints were left out since the last line when another one is due, and `None` when it is not.
    pub fn another(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            self.unsaid += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_line_a_minute_that_says_how_many_there_are_not() {
        let (mut complaints, begun) = (Complaints::default(), Instant::now());
        let lines =
            (0..1800).filter_map(|tenth| complaints.another(begun + Duration::from_millis(100) * tenth));
        assert_eq!(lines.collect::<Vec<_>>(), [0, 599, 599]);
    }
}
