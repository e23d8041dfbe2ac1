use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::Time;

/// What was said of whom, so that it is not said too often.
#[derive(Debug)]
pub struct WarningLimiter {
    pause: Duration,
    /// By the place that it is about, and whom and what there.
    last: BTreeMap<(Box<str>, Box<str>), LastWarning>,
}

#[derive(Debug)]
struct LastWarning {
    at: Time,
    suppressed: u64,
}

/// Complaints that are remembered; beyond so many all share one place, and the same of each address: strangers may make up names and reasons,
/// and there may be any number of them.
const KNOWN_MAX: usize = 64;
const KNOWN_PER_ADDRESS: usize = 8;

impl WarningLimiter {
    pub fn new(pause: Duration) -> Self {
        Self { pause, last: BTreeMap::new() }
    }

    /// Whether `reason` is to be said of whoever is at `address`, which is `name` if it has said one, and if so how often it was not since the last time.
    pub fn report(&mut self, now: Time, address: &str, name: Option<&str>, reason: &str) -> Option<u64> {
        let mut whom = (address.into(), format!("{} {reason}", name.unwrap_or_default()).into());
        if !self.last.contains_key(&whom) {
            let pause = self.pause;
            let is_recent = |last: &LastWarning| last.at.after(pause) > now;
            if self.last.len() >= KNOWN_MAX {
                self.last.retain(|_, last| is_recent(last));
            }
            let there = self.last.iter().filter(|((at, _), last)| **at == *address && is_recent(last));
            if there.count() >= KNOWN_PER_ADDRESS {
                whom = (address.into(), "".into());
            }
            if !self.last.contains_key(&whom) && self.last.len() >= KNOWN_MAX {
                whom = Default::default();
            }
        }
        let Some(last) = self.last.get_mut(&whom) else {
            self.last.insert(whom, LastWarning { at: now, suppressed: 0 });
            return Some(0);
        };
        if last.at.after(self.pause) > now {
            last.suppressed += 1;
            return None;
        }
        last.at = now;
        Some(std::mem::take(&mut last.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_in_a_while_and_counted_in_between_and_what_is_new_at_once() {
        let mut warning_limiter = WarningLimiter::new(Duration::from_micros(10));
        let mut last = |at, name, reason| warning_limiter.report(Time(at), "h:1", Some(name), reason);
        assert_eq!(last(0, "a", "wrong"), Some(0));
        assert_eq!(last(1, "a", "wrong"), None);
        assert_eq!(last(2, "a", "wrong"), None);
        assert_eq!(last(2, "b", "wrong"), Some(0), "another node there");
        assert_eq!(last(3, "a", "worse"), Some(0), "another reason");
        assert_eq!(last(4, "a", "wrong"), None, "which is no reason to say the first one again");
        assert_eq!(last(9, "a", "worse"), None);
        assert_eq!(last(10, "a", "wrong"), Some(3));
        assert_eq!(last(13, "a", "worse"), Some(1));
        assert_eq!(warning_limiter.report(Time(13), "h:2", Some("a"), "worse"), Some(0), "elsewhere");
    }

    #[test]
    fn whoever_makes_up_names_and_reasons_is_told_of_a_few_times() {
        let mut warning_limiter = WarningLimiter::new(Duration::from_secs(1));
        let last = (0..1_000).filter(|name| {
            warning_limiter.report(Time(*name), "10.0.0.1", Some(&name.to_string()), "no").is_some()
        });
        assert_eq!(last.count(), KNOWN_PER_ADDRESS + 1);
        assert_eq!(
            warning_limiter.report(Time(1_000), "10.0.0.2", None, "no"),
            Some(0),
            "which hides nobody else"
        );
    }

    #[test]
    fn a_crowd_of_strangers_takes_bounded_memory_and_few_lines() {
        let mut warning_limiter = WarningLimiter::new(Duration::from_secs(1));
        let last = (0..10_000_u64).filter(|address| {
            warning_limiter.report(Time(*address), &address.to_string(), None, "no").is_some()
        });
        assert_eq!(last.count(), KNOWN_MAX + 1);
        assert_eq!(warning_limiter.last.len(), KNOWN_MAX + 1);
    }
}
