//! Repeated ends of the sessions of links that were removed.
//!
//! A node that has not learned of a removal still admits the other cluster, which gets a new session there. So the
//! sessions are ended again later.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Times after a removal at which the sessions are ended again.
const AGAIN: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(60)];
/// Maximum number of removals that are repeated. Beyond it the oldest ones are not.
const REMOVALS_MAX: usize = 1_000;

/// Removals whose sessions are to be ended again.
#[derive(Debug, Default)]
pub struct Removals(Mutex<Vec<Removal>>);

/// A link that was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    pub link: String,
    /// Clusters for whose messages it may have sessions.
    pub origins: BTreeSet<String>,
    began: Instant,
    /// Number of repetitions that were taken.
    repeated: usize,
}

impl Removals {
    pub fn add(&self, now: Instant, link: &str, origins: &BTreeSet<String>) {
        let mut removals = sync::lock(&self.0);
        removals.retain(|removal| removal.link != link);
        if removals.len() >= REMOVALS_MAX {
            removals.remove(0);
        }
        removals.push(Removal { link: link.to_owned(), origins: origins.clone(), began: now, repeated: 0 });
    }

    /// Takes those that are due. A link that exists again keeps its sessions.
    pub fn take_due(&self, now: Instant, exists: impl Fn(&str) -> bool) -> Vec<Removal> {
        let mut removals = sync::lock(&self.0);
        removals.retain(|removal| !exists(&removal.link));
        let is_due = |removal: &Removal| {
            AGAIN.get(removal.repeated).is_some_and(|after| now.duration_since(removal.began) >= *after)
        };
        let due = removals.iter_mut().filter(|removal| is_due(removal));
        let due = due.map(|removal| {
            removal.repeated += 1;
            removal.clone()
        });
        let due = due.collect();
        removals.retain(|removal| removal.repeated < AGAIN.len());
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sessions_of_a_removed_link_are_ended_twice_more() {
        let (removals, start) = (Removals::default(), Instant::now());
        let origins = BTreeSet::from(["far".to_owned()]);
        let due = |second: u64, exists: bool| -> Vec<String> {
            let due = removals.take_due(start + Duration::from_secs(second), |_| exists);
            assert!(due.iter().all(|removal| removal.origins == origins));
            due.into_iter().map(|removal| removal.link).collect()
        };
        removals.add(start, "a", &origins);
        removals.add(start, "a", &origins);
        let seconds: Vec<u64> = (0..200).filter(|second| due(*second, false) == ["a"]).collect();
        assert_eq!(seconds, [10, 60]);
        removals.add(start, "a", &origins);
        assert_eq!(due(5, true), [""; 0], "the link exists again");
        assert_eq!(due(10, false), [""; 0]);
        for number in 0..=REMOVALS_MAX {
            removals.add(start, &number.to_string(), &origins);
        }
        let bounded = due(10, false);
        assert_eq!((bounded.len(), bounded[0].as_str()), (REMOVALS_MAX, "1"));
    }
}
