use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::Time;

/// What was said of whom, so that it is not said too often.
#[derive(Debug)]
pub struct Complaints {
    pause: Duration,
    /// By the place that it is about, and whom and what there.
    said: BTreeMap<(Box<str>, Box<str>), Said>,
}

#[derive(Debug)]
struct Said {
    at: Time,
    unsaid: u64,
}

/// Complaints that are remembered; beyond so many all share one place, and the same of each address: strangers may make up names and reasons,
/// and there may be any number of them.
const KNOWN_MAX: usize = 64;
const KNOWN_PER_ADDRESS: usize = 8;

impl Complaints {
    pub fn new(pause: Duration) -> Self {
        Self { pause, said: BTreeMap::new() }
    }

    /// Whether `reason` is to be said of whoever is at `address`, which is `name` if it has said one, and if so how often it was not since the last time.
    pub fn complain(&mut self, now: Time, address: &str, name: Option<&str>, reason: &str) -> Option<u64> {
        let mut whom = (address.into(), format!("{} {reason}", name.unwrap_or_default()).into());
        if !self.said.contains_key(&whom) {
            let pause = self.pause;
            let is_recent = |said: &Said| said.at.after(pause) > now;
            if self.said.len() >= KNOWN_MAX {
                self.said.retain(|_, said| is_recent(said));
            }
            let there = self.said.iter().filter(|((at, _), said)| **at == *address && is_recent(said));
            if there.count() >= KNOWN_PER_ADDRESS {
                whom = (address.into(), "".into());
            }
            if !self.said.contains_key(&whom) && self.said.len() >= KNOWN_MAX {
                whom = Default::default();
            }
        }
        let Some(said) = self.said.get_mut(&whom) else {
            self.said.insert(whom, Said { at: now, unsaid: 0 });
            return Some(0);
        };
        if said.at.after(self.pause) > now {
            said.unsaid += 1;
            return None;
        }
        said.at = now;
        Some(std::mem::take(&mut said.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_in_a_while_and_counted_in_between_and_what_is_new_at_once() {
        let mut complaints = Complaints::new(Duration::from_micros(10));
        let mut said = |at, name, reason| complaints.complain(Time(at), "h:1", Some(name), reason);
        assert_eq!(said(0, "a", "wrong"), Some(0));
        assert_eq!(said(1, "a", "wrong"), None);
        assert_eq!(said(2, "a", "wrong"), None);
        assert_eq!(said(2, "b", "wrong"), Some(0), "another node there");
        assert_eq!(said(3, "a", "worse"), Some(0), "another reason");
        assert_eq!(said(4, "a", "wrong"), None, "which is no reason to say the first one again");
        assert_eq!(said(9, "a", "worse"), None);
        assert_eq!(said(10, "a", "wrong"), Some(3));
        assert_eq!(said(13, "a", "worse"), Some(1));
        assert_eq!(complaints.complain(Time(13), "h:2", Some("a"), "worse"), Some(0), "elsewhere");
    }

    #[test]
    fn whoever_makes_up_names_and_reasons_is_told_of_a_few_times() {
        let mut complaints = Complaints::new(Duration::from_secs(1));
        let said = (0..1_000).filter(|name| {
            complaints.complain(Time(*name), "10.0.0.1", Some(&name.to_string()), "no").is_some()
        });
        assert_eq!(said.count(), KNOWN_PER_ADDRESS + 1);
        assert_eq!(
            complaints.complain(Time(1_000), "10.0.0.2", None, "no"),
            Some(0),
            "which hides nobody else"
        );
    }

    #[test]
    fn a_crowd_of_strangers_takes_bounded_memory_and_few_lines() {
        let mut complaints = Complaints::new(Duration::from_secs(1));
        let said = (0..10_000_u64).filter(|stranger| {
            complaints.complain(Time(*stranger), &stranger.to_string(), None, "no").is_some()
        });
        assert_eq!(said.count(), KNOWN_MAX + 1);
        assert_eq!(complaints.said.len(), KNOWN_MAX + 1);
    }
}
