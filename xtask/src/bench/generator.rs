//! Runs of mqload, the load generator, which prints a report.

use super::child::{Guarded, interrupted};
use anyhow::{Context, Result, bail};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Runs mqload. Returns its report, or `None` when it does not end in time.
///
/// # Errors
/// It cannot be started, or was interrupted.
pub fn report(command: &mut Command, longest: Duration) -> Result<Option<String>> {
    let mut generator = Guarded::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    let stdout = generator.child().stdout.take().context("a pipe")?;
    // The report is larger than a pipe, so it must be read while the generator runs.
    let reader = std::thread::spawn(move || std::io::read_to_string(stdout));
    let ended = generator.wait(longest);
    drop(generator);
    let text = reader.join().expect("the reader does not panic").context("the generator's report")?;
    if interrupted() {
        bail!("interrupted");
    }
    Ok(ended.map(|_| text))
}
