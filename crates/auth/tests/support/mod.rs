//! Helpers of tests with real servers.

pub mod authority;
pub mod server;

use std::time::{Duration, Instant};

/// Waits until `so` is true, for half a minute at most.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::yield_now();
    }
}
