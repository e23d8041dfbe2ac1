//! Questions before an action that cannot be undone.

use std::io::{self, BufRead as _};

use crate::console::Console;
use crate::failure::Failure;

/// Continues when `--yes` was given or a person confirms. `what` is the question, such as "delete all of it?".
///
/// # Errors
/// [`Failure::Declined`], and [`Failure::Usage`] when there is no person to ask.
pub fn confirm(console: &mut Console, what: &str) -> Result<(), Failure> {
    if console.yes {
        return Ok(());
    }
    if !console.person {
        return Err(Failure::Usage(format!(
            "{what}\n  There is no terminal to ask at: add --yes to confirm."
        )));
    }
    console.note(&format!("{what} [y/N]"));
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    match (read, answer.trim()) {
        (Ok(_), "y" | "Y" | "yes" | "Yes" | "YES") => Ok(()),
        _ => Err(Failure::Declined),
    }
}
