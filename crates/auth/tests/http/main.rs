//! The HTTP services against a real server on loopback.

mod acl;
mod link;
mod server;
mod tls;

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A file of this test process.
pub fn file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("meridian-http-{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

/// Until it is so, for half a minute at most.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::yield_now();
    }
}
