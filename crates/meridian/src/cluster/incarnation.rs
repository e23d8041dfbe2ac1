//! Incarnation numbers of a node: each is greater than all previous ones.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use replog::Incarnation;

const FILE: &str = "incarnation";
/// Minimum distance from one start to the next. A node that finds itself declared dead takes the next number without
/// writing it down. After a restart with a clock that was set back, others must not mistake the new incarnation for
/// that one.
const INCARNATION_STEP: u64 = 1_000;

/// Starts an incarnation. Its number is greater than all that previous incarnations of this data directory may have
/// used. It is not less than the clock in milliseconds, so it grows when the directory was lost, too.
///
/// # Errors
/// The file cannot be read or written. A number that is used twice would make others take old routes for new ones.
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
    fn the_number_grows_whatever_the_clock_says() {
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
