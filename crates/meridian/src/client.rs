//! `meridian pub` and `meridian sub`: a client on one blocking connection. Read `connection` first.
//!
//! **Invariant:** standard output carries messages only.

use std::fmt;
use std::process::ExitCode;

pub mod args;
pub mod connection;
pub mod format;
pub mod property;
pub mod pub_command;
mod socket;
pub mod sub_command;
mod target;
mod time;
mod tls_args;
mod wait;

/// Reason why a client failed. Decides the exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A failure of the network or the system, or a protocol error of the broker: 1.
    Trouble(String),
    /// An impossible command line: 2.
    Usage(String),
    /// A refusal by the broker: 3.
    Refused(String),
    /// The time given with `-W` is over: 27, as scripts for mosquitto's clients expect.
    TimedOut,
    /// Standard output was closed, as by `| head`: 1, without a message.
    Unread,
}

impl Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Trouble(_) | Self::Unread => 1,
            Self::Usage(_) => 2,
            Self::Refused(_) => 3,
            Self::TimedOut => 27,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trouble(text) | Self::Usage(text) | Self::Refused(text) => f.write_str(text),
            Self::TimedOut => f.write_str("timed out"),
            Self::Unread => Ok(()),
        }
    }
}

/// Prints the failure and returns its exit code.
fn report(command: &str, result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if failure != Failure::Unread {
                // The text can contain a Reason String of the broker.
                eprintln!("meridian {command}: {}", ctl::escape::lines(&failure.to_string()));
            }
            ExitCode::from(failure.exit_code())
        }
    }
}
