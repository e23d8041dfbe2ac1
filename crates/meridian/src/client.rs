//! `meridian pub` and `meridian sub`: a client on one blocking connection. `connection` is the one to read.
//!
//! **Invariant:** nothing is written to standard output but messages.

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
mod websocket;

/// Why a client did not do what it was asked for. Decides the exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The network, the system, or a broker that talks nonsense: 1.
    Trouble(String),
    /// The command line asks for what cannot be: 2.
    Usage(String),
    /// The broker said no: 3.
    Refused(String),
    /// The time given with `-W` is over: 27, as scripts for mosquitto's clients expect.
    TimedOut,
    /// Nobody reads standard output any more, as after `| head`: 1, and nothing to say about it.
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

/// Says what went wrong and makes the exit code of it.
fn report(command: &str, result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if failure != Failure::Unread {
                // It may hold a Reason String of the broker.
                eprintln!("meridian {command}: {}", ctl::escape::lines(&failure.to_string()));
            }
            ExitCode::from(failure.exit_code())
        }
    }
}
