//! A clock that goes on while the machine is suspended.
//!
//! Leases are counted by it. [`std::time::Instant`] stands still on Linux while the machine sleeps, so a node would
//! have its lease for as long after that as before. Other nodes have declared it dead, and serve its clients.
//!
//! A virtual machine that its host has paused may not notice the pause by any clock.

use std::ops::Add;
use std::time::Duration;

/// Moment of this clock. It never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    /// Returns the current moment.
    #[inline]
    pub fn now() -> Self {
        Self(since_boot())
    }

    /// Time since this moment.
    #[inline]
    pub fn elapsed(self) -> Duration {
        Self::now().saturating_duration_since(self)
    }

    /// Time between two moments; zero if the other one is later.
    #[inline]
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}

#[cfg(target_os = "linux")]
#[inline]
fn since_boot() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `timespec`, and nothing keeps the pointer.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    debug_assert_eq!(result, 0, "Linux has this clock since version 2.6.39");
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), time.tv_nsec as u32)
}

#[cfg(not(target_os = "linux"))]
fn since_boot() -> Duration {
    static BEGAN: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    BEGAN.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_goes_back() {
        let mut last = Instant::now();
        for _ in 0..10_000 {
            let now = Instant::now();
            assert!(now >= last);
            last = now;
        }
        assert_eq!(last.saturating_duration_since(last + Duration::from_secs(1)), Duration::ZERO);
        assert_eq!((last + Duration::from_secs(1)).saturating_duration_since(last), Duration::from_secs(1));
    }

    /// The uptime of the system includes the time for which the machine was suspended.
    #[cfg(target_os = "linux")]
    #[test]
    fn it_is_the_uptime_of_the_system() {
        let uptime = || {
            let text = std::fs::read_to_string("/proc/uptime").expect("a file of Linux");
            let seconds = text.split(' ').next().and_then(|seconds| seconds.parse().ok());
            Duration::from_secs_f64(seconds.expect("a number"))
        };
        let before = uptime();
        let now = Instant::now().0;
        // The file has two decimal places.
        let after = uptime() + Duration::from_millis(10);
        assert!(before <= now && now <= after, "{before:?} {now:?} {after:?}");
    }
}
