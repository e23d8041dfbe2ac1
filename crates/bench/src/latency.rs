//! Latency histograms: 100 ns to one hour, three significant digits.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest measured latency: an hour in nanoseconds.
const LONGEST: u64 = 3_600_000_000_000;

/// An empty histogram. It grows with the latencies that it records, so that a large number of histograms needs little
/// memory.
pub fn hist() -> Histogram<u64> {
    let mut h = Histogram::new_with_bounds(100, 1_000_000, 3).expect("bounds that fit three digits");
    h.auto(true);
    h
}

#[inline]
pub fn record(h: &mut Histogram<u64>, ns: u64) {
    add(h, ns, 1);
}

#[inline]
fn add(h: &mut Histogram<u64>, ns: u64, count: u64) {
    h.record_n(ns.min(LONGEST), count).expect("it grows");
}

#[derive(Serialize, Deserialize)]
pub struct Hists {
    #[serde(with = "sparse")]
    pub tcp: Histogram<u64>,
    #[serde(with = "sparse")]
    pub connack: Histogram<u64>,
    #[serde(with = "sparse")]
    pub suback: Histogram<u64>,
    #[serde(with = "sparse")]
    pub ready: Histogram<u64>,
    #[serde(with = "sparse")]
    pub reconnect: Histogram<u64>,
    #[serde(with = "sparse")]
    pub ack: Histogram<u64>,
    #[serde(with = "sparse")]
    pub e2e: Histogram<u64>,
    #[serde(with = "sparse")]
    pub lag: Histogram<u64>,
}

impl Hists {
    pub fn new() -> Hists {
        Hists {
            tcp: hist(),
            connack: hist(),
            suback: hist(),
            ready: hist(),
            reconnect: hist(),
            ack: hist(),
            e2e: hist(),
            lag: hist(),
        }
    }
    pub fn add(&mut self, o: &Hists) {
        for (a, b) in [
            (&mut self.tcp, &o.tcp),
            (&mut self.connack, &o.connack),
            (&mut self.suback, &o.suback),
            (&mut self.ready, &o.ready),
            (&mut self.reconnect, &o.reconnect),
            (&mut self.ack, &o.ack),
            (&mut self.e2e, &o.e2e),
            (&mut self.lag, &o.lag),
        ] {
            pour(b, a);
        }
    }
}

/// Adds the values of `from` to `to`. Only existing values are touched: an empty histogram costs nothing, and its
/// memory does not become resident.
pub fn pour(from: &Histogram<u64>, to: &mut Histogram<u64>) {
    for value in from.iter_recorded() {
        add(to, value.value_iterated_to(), value.count_at_value());
    }
}

/// A histogram between processes: its values with their counts. All have the bounds of [`hist`], so nothing is lost.
pub mod sparse {
    use super::*;
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(h: &Histogram<u64>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(h.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value())))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Histogram<u64>, D::Error> {
        let mut h = hist();
        for (value, count) in Vec::<(u64, u64)>::deserialize(from)? {
            add(&mut h, value, count);
        }
        Ok(h)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merged measurements of several processes equal those of one.
    #[test]
    fn histograms_are_merged_exactly() {
        let (mut whole, mut merged) = (Hists::new(), Hists::new());
        let mut x = 1u64;
        for _ in 0..3 {
            let mut part = Hists::new();
            for _ in 0..2000 {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let ns = (x >> 20) % 10u64.pow((x % 12) as u32 + 1);
                record(&mut part.e2e, ns);
                record(&mut whole.e2e, ns);
            }
            let sent = serde_json::to_string(&part).unwrap();
            merged.add(&serde_json::from_str(&sent).unwrap());
        }
        let buckets = |h: &Histogram<u64>| {
            h.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value())).collect::<Vec<_>>()
        };
        assert_eq!(buckets(&merged.e2e), buckets(&whole.e2e));
        assert_eq!(merged.e2e.value_at_quantile(0.999), whole.e2e.value_at_quantile(0.999));
        assert_eq!((merged.e2e.min(), merged.e2e.max()), (whole.e2e.min(), whole.e2e.max()));
        assert!(merged.ack.is_empty());
    }
}
