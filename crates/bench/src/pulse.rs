//! Measurements of a worker since the last request, once a second.

use crate::latency::{hist, pour, sparse};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Latencies since the last beat, and the CPU demand of the thread.
#[derive(Clone, Serialize, Deserialize)]
pub struct Pulse {
    /// Number of the beat that this answers.
    pub beat: u64,
    #[serde(with = "sparse")]
    pub e2e: Histogram<u64>,
    #[serde(with = "sparse")]
    pub ack: Histogram<u64>,
    #[serde(with = "sparse")]
    pub ready: Histogram<u64>,
    /// Share of the time in which the thread ran or waited for a processor, at most 1.
    pub demand: f64,
}

impl Default for Pulse {
    fn default() -> Pulse {
        Pulse { beat: 0, e2e: hist(), ack: hist(), ready: hist(), demand: 0.0 }
    }
}

impl Pulse {
    /// Adds the measurements of `other`.
    pub fn add(&mut self, other: &Pulse) {
        pour(&other.e2e, &mut self.e2e);
        pour(&other.ack, &mut self.ack);
        pour(&other.ready, &mut self.ready);
        self.demand = self.demand.max(other.demand);
    }

    /// Clears the measurements and keeps the memory.
    pub fn clear(&mut self) {
        for h in [&mut self.e2e, &mut self.ack, &mut self.ready] {
            if !h.is_empty() {
                h.reset();
            }
        }
        self.demand = 0.0;
    }
}

/// CPU demand of a thread, from the kernel's statistics.
#[derive(Default)]
pub struct Demand {
    wanted: u64,
    at: u64,
}

impl Demand {
    /// Demand since the last call; 0 the first time and where the kernel has no such statistics.
    pub fn since(&mut self, now: u64) -> f64 {
        // Nanoseconds on a processor, nanoseconds of waiting for one, slices.
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let wanted: u64 = text.split_whitespace().take(2).filter_map(|word| word.parse::<u64>().ok()).sum();
        let share = match self.at {
            0 => 0.0,
            at => wanted.saturating_sub(self.wanted) as f64 / now.saturating_sub(at).max(1) as f64,
        };
        (self.wanted, self.at) = (wanted, now);
        share
    }
}
