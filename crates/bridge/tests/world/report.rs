//! Counts of what happened in simulated runs.

use std::collections::BTreeMap;

/// Number of times that each event happened.
#[derive(Debug, Default)]
pub struct Report {
    events: BTreeMap<&'static str, u64>,
}

impl Report {
    pub fn add(&mut self, event: &'static str) {
        self.add_many(event, 1);
    }

    pub fn add_many(&mut self, event: &'static str, count: u64) {
        *self.events.entry(event).or_default() += count;
    }

    pub fn count(&self, event: &str) -> u64 {
        self.events.get(event).copied().unwrap_or(0)
    }
}
