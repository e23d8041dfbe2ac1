//! Number of syncs of a broker: the calls that strace recorded, each with its time.

use anyhow::{Context, Result};
use std::path::Path;
use std::process::{Command, Stdio};

/// Names of the calls that strace records.
const CALLS: [&str; 6] = ["fsync(", "fdatasync(", "sync_file_range(", "msync(", "sync(", "syncfs("];

/// Reason why syncs cannot be counted here, if any.
pub fn impossible() -> Option<&'static str> {
    let version = Command::new("strace").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match version {
        Ok(status) if status.success() => None,
        _ => Some("strace is not installed, so syncs are not counted (apt-get install strace)"),
    }
}

/// Number of calls that began between these times, in seconds since 1970.
pub fn between(log: &Path, from: f64, to: f64) -> Result<u64> {
    Ok(count(&std::fs::read_to_string(log).context("the log of strace")?, from, to))
}

fn count(text: &str, from: f64, to: f64) -> u64 {
    // Format: `4711  1700000000.123456 fdatasync(5) = 0`; the end of a call that another one interrupted begins with
    // `<...`.
    let calls = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let at: f64 = words.next()?.parse().ok()?;
        let call = words.next()?;
        CALLS.iter().any(|name| call.starts_with(name)).then_some(at)
    });
    calls.filter(|at| (from..=to).contains(at)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_once_and_only_within_the_time() {
        let log = "10 100.5 fdatasync(5) = 0\n\
                   11 101.0 fsync(7 <unfinished ...>\n\
                   10 101.2 fdatasync(5) = 0\n\
                   11 101.3 <... fsync resumed>) = 0\n\
                   10 102.5 fdatasync(5) = 0\n\
                   10 102.6 +++ exited with 0 +++\n\
                   torn";
        assert_eq!(count(log, 101.0, 102.0), 2);
        assert_eq!(count(log, 0.0, 1000.0), 4);
        assert_eq!(count("", 0.0, 1000.0), 0);
    }
}
