//! Counters of each link.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::link::Outcome;

/// Counters of one link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkFigures {
    pub name: &'static str,
    pub accepted: u64,
    pub refused: u64,
    pub not_mine: u64,
    pub failed: u64,
    /// Clients that were refused because their time was over while this link worked for them.
    pub timed_out: u64,
    /// Clients that were refused because too many waited for the link's threads.
    pub busy: u64,
    /// Clients that currently wait for the link or its threads.
    pub waiting: u64,
    /// Number of times that the link worked, and the total and maximum time.
    pub works: u64,
    pub duration_sum: Duration,
    pub duration_max: Duration,
}

#[derive(Debug, Default)]
pub struct LinkCounters {
    pub accepted: AtomicU64,
    pub refused: AtomicU64,
    pub not_mine: AtomicU64,
    pub failed: AtomicU64,
    pub timed_out: AtomicU64,
    pub busy: AtomicU64,
    pub waiting: AtomicU64,
    works: AtomicU64,
    micros: AtomicU64,
    micros_max: AtomicU64,
    /// Time of the last logged failure.
    failure_logged_at: Mutex<Option<Instant>>,
}

impl LinkCounters {
    pub fn note(&self, outcome: &Outcome) {
        let counter = match outcome {
            Outcome::Admit(_) => &self.accepted,
            Outcome::Refuse(_) => &self.refused,
            Outcome::NotMine => &self.not_mine,
            Outcome::Failed(_) => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub fn record_duration(&self, time: Duration) {
        let micros = time.as_micros().try_into().unwrap_or(u64::MAX);
        self.works.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
        self.micros_max.fetch_max(micros, Ordering::Relaxed);
    }

    /// Returns whether a failure is logged: one in [`FAILURE_LOG_INTERVAL`] is, because a service that is down fails
    /// for every client.
    pub fn may_log_failure(&self, now: Instant) -> bool {
        let mut last = sync::lock(&self.failure_logged_at);
        let may = last.is_none_or(|last| now.saturating_duration_since(last) >= FAILURE_LOG_INTERVAL);
        if may {
            *last = Some(now);
        }
        may
    }

    fn figures(&self, name: &'static str) -> LinkFigures {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LinkFigures {
            name,
            accepted: value(&self.accepted),
            refused: value(&self.refused),
            not_mine: value(&self.not_mine),
            failed: value(&self.failed),
            timed_out: value(&self.timed_out),
            busy: value(&self.busy),
            waiting: value(&self.waiting),
            works: value(&self.works),
            duration_sum: Duration::from_micros(value(&self.micros)),
            duration_max: Duration::from_micros(value(&self.micros_max)),
        }
    }
}

/// Counters of all links that ever existed. A reload creates new links, and the counters continue.
#[derive(Debug, Default)]
pub struct LinkCounterTable(Mutex<BTreeMap<&'static str, Arc<LinkCounters>>>);

impl LinkCounterTable {
    pub fn of(&self, name: &'static str) -> Arc<LinkCounters> {
        sync::lock(&self.0).entry(name).or_default().clone()
    }

    pub fn figures(&self) -> Vec<LinkFigures> {
        let all = sync::lock(&self.0);
        all.iter().map(|(name, counters)| counters.figures(name)).collect()
    }
}

const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(10);
