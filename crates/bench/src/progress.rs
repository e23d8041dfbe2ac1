//! Progress lines on stderr, which keep stdout free for the report.

use std::io::Write;

/// Prints a line unless the run is quiet. A closed stderr is no reason to end a measurement.
pub fn print_status(quiet: bool, line: std::fmt::Arguments) {
    if !quiet {
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}
