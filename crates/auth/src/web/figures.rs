//! Counters of a service.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::web::breaker::Circuit;
use crate::web::service::Fault;

/// Counters of one service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceFigures {
    /// Requests to the service. Repeated ones count once.
    pub requests: u64,
    /// Answers of the service, by result.
    pub allowed: u64,
    pub denied: u64,
    pub ignored: u64,
    pub failed: ServiceFailures,
    /// Questions that were answered from the cache.
    pub cached: u64,
    /// Questions that waited for the answer to an equal one.
    pub joined: u64,
    /// Questions that were refused without asking, because the template cannot express them.
    pub unaskable: u64,
    /// Current requests.
    pub in_flight: u64,
    /// Cached answers.
    pub remembered: u64,
    pub circuit: Circuit,
    /// Number of times that the circuit opened.
    pub opened: u64,
    /// Total time of all requests.
    pub took: Duration,
    /// Time of the longest request.
    pub took_max: Duration,
}

/// Questions without an answer, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceFailures {
    /// No answer in time.
    pub timeout: u64,
    /// No connection, no TLS, or a lost connection.
    pub connect: u64,
    /// Answer with an unexpected status.
    pub status: u64,
    /// Invalid or too large answer.
    pub body: u64,
    /// Not asked, because the circuit was open.
    pub circuit_open: u64,
    /// Too many questions waited.
    pub busy: u64,
}

impl ServiceFailures {
    /// Returns the counters with their names in metrics.
    pub fn by_kind(&self) -> [(&'static str, u64); 6] {
        let Self { timeout, connect, status, body, circuit_open, busy } = *self;
        [
            ("timeout", timeout),
            ("connect", connect),
            ("status", status),
            ("body", body),
            ("circuit_open", circuit_open),
            ("busy", busy),
        ]
    }
}

/// Counters that survive a change of the settings.
#[derive(Debug, Default)]
pub struct Counters {
    pub requests: AtomicU64,
    pub allowed: AtomicU64,
    pub denied: AtomicU64,
    pub ignored: AtomicU64,
    pub cached: AtomicU64,
    pub joined: AtomicU64,
    pub unaskable: AtomicU64,
    pub in_flight: AtomicU64,
    pub opened: AtomicU64,
    failed: [AtomicU64; 6],
    took_micros: AtomicU64,
    took_micros_max: AtomicU64,
}

impl Counters {
    pub fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub fn failed(&self, fault: &Fault) {
        let index = match fault {
            Fault::Timeout => 0,
            Fault::Connect(_) => 1,
            Fault::Status(_) => 2,
            Fault::Body(_) | Fault::Rules(_) => 3,
            Fault::CircuitOpen => 4,
            Fault::Busy => 5,
        };
        Self::add(&self.failed[index]);
    }

    pub fn took(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.took_micros.fetch_add(micros, Ordering::Relaxed);
        self.took_micros_max.fetch_max(micros, Ordering::Relaxed);
    }

    pub fn figures(&self, circuit: Circuit, remembered: usize) -> ServiceFigures {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [timeout, connect, status, body, circuit_open, busy] = self.failed.each_ref().map(value);
        ServiceFigures {
            requests: value(&self.requests),
            allowed: value(&self.allowed),
            denied: value(&self.denied),
            ignored: value(&self.ignored),
            failed: ServiceFailures { timeout, connect, status, body, circuit_open, busy },
            cached: value(&self.cached),
            joined: value(&self.joined),
            unaskable: value(&self.unaskable),
            in_flight: value(&self.in_flight),
            remembered: remembered as u64,
            circuit,
            opened: value(&self.opened),
            took: Duration::from_micros(value(&self.took_micros)),
            took_max: Duration::from_micros(value(&self.took_micros_max)),
        }
    }
}
