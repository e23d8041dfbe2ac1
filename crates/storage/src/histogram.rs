//! Histogram of durations with buckets of powers of two.

use std::time::Duration;

/// Durations counted in buckets. Bucket n holds those below 2^n microseconds that are not in an earlier bucket; the
/// last one holds the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; Self::BUCKETS],
    sum_us: u64,
    max_us: u64,
}

impl Histogram {
    /// Number of buckets. The last bucket but one ends at about 4 s.
    pub const BUCKETS: usize = 24;

    pub(crate) fn record(&mut self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = (64 - us.leading_zeros() as usize).min(Self::BUCKETS - 1);
        self.buckets[bucket] += 1;
        self.sum_us = self.sum_us.saturating_add(us);
        self.max_us = self.max_us.max(us);
    }

    /// Returns the upper bound and the count of each bucket. The last one has no bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        self.buckets
            .iter()
            .enumerate()
            .map(|(n, count)| ((n + 1 < Self::BUCKETS).then(|| Duration::from_micros(1 << n)), *count))
    }

    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the sum of all durations.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_us)
    }

    /// Returns the longest duration; zero when there are none.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_micros(self.max_us)
    }

    /// Returns the upper bound of the bucket in which the given share (0.0 to 1.0) of durations is reached; zero
    /// when there are none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = (self.count() as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (n, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return Duration::from_micros(1 << n);
            }
        }
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_below_the_bound_of_its_bucket() {
        let mut histogram = Histogram::default();
        for us in [0, 1, 3, 1000] {
            histogram.record(Duration::from_micros(us));
        }
        assert_eq!(histogram.max(), Duration::from_millis(1));
        histogram.record(Duration::from_secs(3600));
        assert_eq!(histogram.max(), Duration::from_secs(3600));
        assert_eq!(histogram.count(), 5);
        assert_eq!(histogram.quantile(0.4), Duration::from_micros(2));
        assert_eq!(histogram.quantile(0.8), Duration::from_micros(1024));
        assert_eq!(histogram.buckets().last(), Some((None, 1)));
    }
}
