use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::Time;

/// Limiter that keeps the same report from appearing too often.
#[derive(Debug)]
pub struct WarningLimiter {
    pause: Duration,
    /// Last reports, by address, then name and reason.
    last: BTreeMap<(Box<str>, Box<str>), LastWarning>,
}

#[derive(Debug)]
struct LastWarning {
    at: Time,
    suppressed: u64,
}

/// Maximum number of remembered reports. Beyond it all share one entry, and so do all with the same address. Unknown
/// nodes may make up any number of names and reasons.
const KNOWN_MAX: usize = 64;
const KNOWN_PER_ADDRESS: usize = 8;

impl WarningLimiter {
    pub fn new(pause: Duration) -> Self {
        Self { pause, last: BTreeMap::new() }
    }

    /// Returns whether to report `reason` for the node at `address`, which has announced `name` if any. The value is
    /// the number of reports that were suppressed.
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
    fn the_same_report_is_repeated_at_intervals_with_a_count_and_a_new_one_appears_at_once() {
        let mut warning_limiter = WarningLimiter::new(Duration::from_micros(10));
        let mut last = |at, name, reason| warning_limiter.report(Time(at), "h:1", Some(name), reason);
        assert_eq!(last(0, "a", "wrong"), Some(0));
        assert_eq!(last(1, "a", "wrong"), None);
        assert_eq!(last(2, "a", "wrong"), None);
        assert_eq!(last(2, "b", "wrong"), Some(0), "another node there");
        assert_eq!(last(3, "a", "worse"), Some(0), "another reason");
        assert_eq!(last(4, "a", "wrong"), None, "another reason does not repeat the first one");
        assert_eq!(last(9, "a", "worse"), None);
        assert_eq!(last(10, "a", "wrong"), Some(3));
        assert_eq!(last(13, "a", "worse"), Some(1));
        assert_eq!(warning_limiter.report(Time(13), "h:2", Some("a"), "worse"), Some(0), "elsewhere");
    }

    #[test]
    fn a_node_that_makes_up_names_and_reasons_is_reported_a_few_times() {
        let mut warning_limiter = WarningLimiter::new(Duration::from_secs(1));
        let last = (0..1_000).filter(|name| {
            warning_limiter.report(Time(*name), "10.0.0.1", Some(&name.to_string()), "no").is_some()
        });
        assert_eq!(last.count(), KNOWN_PER_ADDRESS + 1);
        assert_eq!(
            warning_limiter.report(Time(1_000), "10.0.0.2", None, "no"),
            Some(0),
            "which hides no other node"
        );
    }

    #[test]
    fn many_unknown_nodes_take_bounded_memory_and_few_lines() {
        let mut warning_limiter = WarningLimiter::new(Duration::from_secs(1));
        let last = (0..10_000_u64).filter(|address| {
            warning_limiter.report(Time(*address), &address.to_string(), None, "no").is_some()
        });
        assert_eq!(last.count(), KNOWN_MAX + 1);
        assert_eq!(warning_limiter.last.len(), KNOWN_MAX + 1);
    }
}
