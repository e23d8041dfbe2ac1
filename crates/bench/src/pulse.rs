//! What a worker measured since it was last asked, once a second.

use crate::latency::{hist, pour, sparse};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Latencies since the last beat, and what the thread wanted of the processor.
#[derive(Clone, Serialize, Deserialize)]
pub struct Pulse {
    /// The beat that this answers.
    pub beat: u64,
    #[serde(with = "sparse")]
    pub e2e: Histogram<u64>,
    #[serde(with = "sparse")]
    pub ack: Histogram<u64>,
    #[serde(with = "sparse")]
    pub ready: Histogram<u64>,
    /// Share of the time that the thread ran or waited for a processor; 1 is all of it.
    pub demand: f64,
}

impl Default for Pulse {
    fn default() -> Pulse {
        Pulse { beat: 0, e2e: hist(), ack: hist(), ready: hist(), demand: 0.0 }
    }
}

impl Pulse {
    /// Takes over what `other` has.
    pub fn add(&mut self, other: &Pulse) {
        pour(&other.e2e, &mut self.e2e);
        pour(&other.ack, &mut self.ack);
        pour(&other.ready, &mut self.ready);
        self.demand = self.demand.max(other.demand);
    }

    /// Forgets everything but its memory.
    pub fn clear(&mut self) {
        for h in [&mut self.e2e, &mut self.ack, &mut self.ready] {
            if !h.is_empty() {
                h.reset();
            }
        }
        self.demand = 0.0;
    }
}

/// How much of a processor a thread wanted, from the kernel's account of it.
#[derive(Default)]
pub struct Demand {
    wanted: u64,
    at: u64,
}

impl Demand {
    /// The share since the last call; 0 the first time and where the kernel keeps no such account.
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
