//! A number for each life of a node that is greater than those of all its earlier lives.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use replog::Incarnation;

const FILE: &str = "incarnation";
/// From one start to the next at least. A node that finds itself declared dead takes the next number without writing it down: after a start that
/// comes by a clock that was set back, others must not take the new life for that one.
const INCARNATION_STEP: u64 = 1_000;

/// Begins a life: greater than all that a life may have had that the data directory knows of, and not less than the milliseconds of the clock, so that it grows
/// when the directory was lost, too.
///
/// # Errors
/// When it cannot be read or written: a number that is used twice would make others take old routes for new ones.
pub fn next(data_dir: &Path) -> Result<Incarnation, String> {
    let path = data_dir.join(FILE);
    let failed = |what: &str, error: &dyn std::fmt::Display| format!("{}: {what}: {error}", path.display());
    let last = match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse::<u64>().map_err(|error| failed("no number", &error))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(failed("cannot be read", &error)),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let next = now.max(last.saturating_add(INCARNATION_STEP));
    api::durable::replace(&path, format!("{next}\n").as_bytes())
        .map_err(|error| failed("cannot be written", &error))?;
    Ok(Incarnation(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_whatever_the_clock_says() {
        let directory = std::env::temp_dir().join(format!("meridian-incarnation-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let first = next(&directory).expect("a number");
        assert!(next(&directory).expect("a number") > first);
        let far = u64::MAX / 2;
        fs::write(directory.join(FILE), far.to_string()).expect("written");
        assert_eq!(next(&directory), Ok(Incarnation(far + INCARNATION_STEP)), "a clock that was set back");
        fs::write(directory.join(FILE), "x").expect("written");
        assert!(next(&directory).expect_err("is damaged").contains("incarnation"));
        fs::remove_dir_all(&directory).expect("removed");
    }
}
