//! Topic metrics: counts of the messages on topics that match chosen filters.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use mqtt::{QoS, TopicFilter, TopicName};

use super::Invalid;
use crate::ids::Time;

/// Maximum number of watched filters. A worker remembers one bit of each for a topic.
const WATCHES_MAX: usize = 64;

/// Messages in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub by_qos: [u64; 3],
    /// Bytes of the payloads.
    pub bytes: u64,
}

impl Traffic {
    pub fn messages(&self) -> u64 {
        self.by_qos.iter().sum()
    }
}

/// Counts for one watched filter.
#[derive(Clone, Debug)]
pub struct Watched {
    pub filter: Box<str>,
    pub since: Time,
    /// Messages from clients and operators.
    pub received: Traffic,
    /// Messages to clients.
    pub sent: Traffic,
    /// Number of deliveries that were dropped.
    pub dropped: u64,
}

/// The watched filters. Operators change this list; each worker keeps the version that it got last.
#[derive(Debug, Default)]
pub(crate) struct Watches(Mutex<Arc<[Arc<Watch>]>>);

/// A watched filter with a row of counters for each worker. Only that worker writes its row.
#[derive(Debug)]
pub(crate) struct Watch {
    filter: Box<str>,
    since: Time,
    rows: Box<[Row]>,
}

/// Counters of one worker. The alignment keeps workers from sharing cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Row {
    received: [AtomicU64; 3],
    received_bytes: AtomicU64,
    sent: [AtomicU64; 3],
    sent_bytes: AtomicU64,
    dropped: AtomicU64,
}

/// Adds to a counter that has a single writer.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(more), Relaxed);
}

impl Watch {
    pub fn matches(&self, topic: TopicName<'_>) -> bool {
        TopicFilter::parse(&self.filter).is_ok_and(|filter| filter.matches(topic))
    }

    pub fn received(&self, worker: usize, qos: QoS, bytes: usize) {
        add(&self.rows[worker].received[qos as usize], 1);
        add(&self.rows[worker].received_bytes, bytes as u64);
    }

    pub fn sent(&self, worker: usize, qos: QoS, bytes: usize) {
        add(&self.rows[worker].sent[qos as usize], 1);
        add(&self.rows[worker].sent_bytes, bytes as u64);
    }

    pub fn dropped(&self, worker: usize) {
        add(&self.rows[worker].dropped, 1);
    }

    fn watched(&self) -> Watched {
        let sum = |counter: &dyn Fn(&Row) -> &AtomicU64| -> u64 {
            self.rows.iter().map(|row| counter(row).load(Relaxed)).sum()
        };
        let received = [0, 1, 2].map(|qos| sum(&|row| &row.received[qos]));
        let sent = [0, 1, 2].map(|qos| sum(&|row| &row.sent[qos]));
        Watched {
            filter: self.filter.clone(),
            since: self.since,
            received: Traffic { by_qos: received, bytes: sum(&|row| &row.received_bytes) },
            sent: Traffic { by_qos: sent, bytes: sum(&|row| &row.sent_bytes) },
            dropped: sum(&|row| &row.dropped),
        }
    }
}

impl Watches {
    pub fn add(&self, filter: &str, now: Time, workers: u16) -> Result<(), Invalid> {
        TopicFilter::parse(filter).map_err(|_| Invalid::Filter)?;
        let mut list = sync::lock(&self.0);
        if list.iter().any(|watch| *watch.filter == *filter) {
            return Err(Invalid::Exists);
        }
        if list.len() >= WATCHES_MAX {
            return Err(Invalid::TooMany);
        }
        let rows = (0..workers).map(|_| Row::default()).collect();
        let watch = Arc::new(Watch { filter: filter.into(), since: now, rows });
        *list = list.iter().cloned().chain([watch]).collect();
        Ok(())
    }

    pub fn remove(&self, filter: &str) -> bool {
        let mut list = sync::lock(&self.0);
        let before = list.len();
        *list = list.iter().filter(|watch| *watch.filter != *filter).cloned().collect();
        list.len() < before
    }

    pub fn current(&self) -> Arc<[Arc<Watch>]> {
        sync::lock(&self.0).clone()
    }

    pub fn list(&self) -> Vec<Watched> {
        self.current().iter().map(|watch| watch.watched()).collect()
    }
}
