//! Metrics of the HTTP server.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// All metrics of the HTTP server.
#[derive(Debug)]
pub struct HttpMetrics {
    pub rejected: Rejected,
    pub refusals: Refusals,
    pub logins: Logins,
    pub connections: AtomicUsize,
    /// Counts by status, from 100 to 599.
    codes: Vec<AtomicU64>,
    seconds: Histogram,
}

impl HttpMetrics {
    pub fn new(refusals_per_second: u32) -> Self {
        Self {
            rejected: Rejected::default(),
            refusals: Refusals::new(refusals_per_second),
            logins: Logins::default(),
            connections: AtomicUsize::new(0),
            codes: (0..500).map(|_| AtomicU64::new(0)).collect(),
            seconds: Histogram::default(),
        }
    }

    /// Counts a request that was answered with `status` after `took`. A stream counts at its beginning.
    pub fn answered(&self, status: u16, took: Duration) {
        if let Some(code) = usize::from(status).checked_sub(100).and_then(|index| self.codes.get(index)) {
            code.fetch_add(1, Ordering::Relaxed);
        }
        self.seconds.observe(took);
    }

    /// Returns the statuses that were sent, with their counts.
    pub fn codes(&self) -> impl Iterator<Item = (usize, u64)> {
        let counted = self.codes.iter().map(|code| code.load(Ordering::Relaxed)).enumerate();
        counted.filter(|(_, count)| *count > 0).map(|(index, count)| (index + 100, count))
    }

    pub fn seconds(&self) -> &Histogram {
        &self.seconds
    }
}

macro_rules! counted {
    ($(#[$doc:meta])* $name:ident: $($reason:ident),+) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name { $($reason: AtomicU64,)+ }

        impl $name {
            $(pub fn $reason(&self) { self.$reason.fetch_add(1, Ordering::Relaxed); })+

            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($reason), self.$reason.load(Ordering::Relaxed)),)+].into_iter()
            }
        }
    };
}
counted! {
    /// Requests that were refused before their handler ran.
    Rejected: connections, address, tls, host, proxy, origin, media_type, token, session, role, body, rate
}
counted! {
    /// Logins with a name and a password, by result.
    Logins: accepted, wrong, limited, busy
}

/// Upper bounds of the buckets of request times, in seconds.
pub const BOUNDS: [f64; 9] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0];

#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

impl Histogram {
    fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the count of each single bucket, and the sum of all seconds.
    pub fn read(&self) -> (Vec<u64>, f64) {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        (counts, self.micros.load(Ordering::Relaxed) as f64 / 1e6)
    }
}

/// Limiter of the refusals of unauthenticated requests that get an answer of their own each second.
#[derive(Debug)]
pub struct Refusals {
    per_second: f64,
    left: Mutex<(f64, Instant)>,
}

impl Refusals {
    fn new(per_second: u32) -> Self {
        let per_second = f64::from(per_second);
        Self { per_second, left: Mutex::new((per_second, Instant::now())) }
    }

    /// Takes one; false when there were too many.
    pub fn take(&self) -> bool {
        self.take_at(Instant::now())
    }

    fn take_at(&self, now: Instant) -> bool {
        let mut left = sync::lock(&self.left);
        let grown = left.0 + now.saturating_duration_since(left.1).as_secs_f64() * self.per_second;
        *left = (grown.min(self.per_second), now);
        let one = left.0 >= 1.0;
        if one {
            left.0 -= 1.0;
        }
        one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_per_second_are_limited() {
        let refusals = Refusals::new(10);
        let now = Instant::now();
        assert_eq!((0..100).filter(|_| refusals.take_at(now)).count(), 10);
        let later = now + Duration::from_millis(500);
        assert_eq!((0..100).filter(|_| refusals.take_at(later)).count(), 5);
    }

    #[test]
    fn a_request_falls_into_one_bucket() {
        let metrics = HttpMetrics::new(1);
        for (status, micros) in [(200, 0), (200, 1000), (404, 1001), (503, 20_000_000), (0, 1), (700, 1)] {
            metrics.answered(status, Duration::from_micros(micros));
        }
        assert_eq!(metrics.codes().collect::<Vec<_>>(), [(200, 2), (404, 1), (503, 1)]);
        let (counts, sum) = metrics.seconds().read();
        assert_eq!((counts[0], counts[1], counts[BOUNDS.len()]), (4, 1, 1));
        assert!((sum - 20.002_003).abs() < 1e-9, "{sum}");
    }
}
