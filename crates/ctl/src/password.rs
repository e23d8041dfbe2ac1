//! A password from a file, from standard input, or from a person who types it unseen. It is never read from the command
//! line, where other users can see it.

use std::io::{self, BufRead as _, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::console::Console;
use crate::failure::Failure;

/// Source of a password.
#[derive(Args, Clone, Debug)]
pub struct PasswordArgs {
    /// File whose first line is the password; without it, ask for the password, or read it from standard input
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
}

/// Maximum size of a file; a password in CONNECT has at most 64 KiB.
const FILE_MAX: u64 = 128 << 10;

impl PasswordArgs {
    /// # Errors
    /// [`Failure::Local`] for a source that cannot be read, and for an empty password.
    pub fn read(&self, console: &mut Console) -> Result<String, Failure> {
        let password = match &self.password_file {
            Some(path) => of_file(path)?,
            None if console.person => {
                console.flush()?;
                typed_password().map_err(|error| unreadable(&error))?
            }
            None => line().map_err(|error| unreadable(&error))?,
        };
        if password.is_empty() {
            return Err(Failure::Local("the password is empty".to_owned()));
        }
        Ok(password)
    }
}

fn unreadable(error: &io::Error) -> Failure {
    Failure::Local(format!("the password cannot be read: {error}"))
}

fn of_file(path: &Path) -> Result<String, Failure> {
    let trouble = |why: String| Failure::Local(format!("--password-file {}: {why}", path.display()));
    let metadata = std::fs::metadata(path).map_err(|error| trouble(error.to_string()))?;
    if metadata.is_file() && metadata.len() > FILE_MAX {
        return Err(trouble("this is not a password: the file is longer than 128 KiB".to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(|error| trouble(error.to_string()))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Reads a password that a person types twice at the terminal, unseen. The questions go to standard error.
///
/// # Errors
/// A terminal that cannot be read, and two different passwords.
pub fn typed_password() -> io::Result<String> {
    let _unseen = EchoOff::start()?;
    let ask = |prompt: &str| {
        write!(io::stderr(), "{prompt}")?;
        let line = line();
        // The terminal did not show the typed line break either.
        writeln!(io::stderr())?;
        line
    };
    let (first, second) = (ask("Password: ")?, ask("Again: ")?);
    if first == second { Ok(first) } else { Err(io::Error::other("the two passwords differ")) }
}

/// Reads one line of standard input, without its end.
///
/// # Errors
/// The input cannot be read, or is not UTF-8.
pub fn line() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}

/// Guard that hides typed characters until it is dropped.
struct EchoOff(libc::termios);

impl EchoOff {
    fn start() -> io::Result<Self> {
        // SAFETY: a zeroed `termios` is a valid one, and the pointers outlive the calls.
        unsafe {
            let mut shown: libc::termios = std::mem::zeroed();
            if libc::tcgetattr(libc::STDIN_FILENO, &mut shown) != 0 {
                return Err(io::Error::last_os_error());
            }
            let mut hidden = shown;
            hidden.c_lflag &= !libc::ECHO;
            if libc::tcsetattr(libc::STDIN_FILENO, libc::TCSAFLUSH, &hidden) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self(shown))
        }
    }
}

impl Drop for EchoOff {
    fn drop(&mut self) {
        // SAFETY: the pointer outlives the call. A terminal that is gone cannot be restored and need not be.
        unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSAFLUSH, &self.0) };
    }
}
