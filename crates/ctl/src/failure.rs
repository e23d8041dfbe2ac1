//! Reasons why a command failed, and their exit codes.

use std::fmt;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;

use crate::problem::Problem;
use crate::{escape, human};

/// Reason of a failure. There is one variant for each action that a failure requires of the person at the terminal.
#[derive(Debug)]
pub enum Failure {
    /// No answer from the URL.
    Unreachable { url: String, cause: String },
    /// The connection was made, but the answer was not in time.
    TimedOut { url: String, after: Duration },
    /// The server is no Meridian node, or its answer ended early.
    NotMeridian { url: String, cause: String },
    /// The TLS handshake failed.
    Insecure { url: String, cause: String },
    /// The node refused the request.
    Refused(Box<Problem>),
    /// The node executed the request or a part of it, and the result is a failure.
    Failed(String),
    /// The command line is wrong.
    Usage(String),
    /// The person declined.
    Declined,
    /// A file or standard input failed.
    Local(String),
    /// Standard output failed.
    Output(io::Error),
}

impl Failure {
    /// Exit code: 0 done, 1 refused or failed, 2 usage, 3 not reachable or not available now, 4 not found, 5 not
    /// permitted.
    pub fn code(&self) -> u8 {
        match self {
            Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::NotMeridian { .. }
            | Self::Insecure { .. } => 3,
            Self::Refused(problem) => match problem.status {
                401 | 403 => 5,
                404 => 4,
                503 => 3,
                _ => 1,
            },
            Self::Usage(_) => 2,
            // `ctl clients | head` ends early on purpose.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Self::Failed(_) | Self::Declined | Self::Local(_) | Self::Output(_) => 1,
        }
    }

    /// Returns the failure as a problem document, for scripts.
    pub fn document(&self) -> Value {
        match self {
            Self::Refused(problem) => problem.document.clone(),
            Self::Unreachable { .. } | Self::TimedOut { .. } | Self::Insecure { .. } => {
                Problem::local("unreachable", "Node not reachable", &self.to_string())
            }
            Self::NotMeridian { .. } => {
                Problem::local("not-meridian", "Not a Meridian node", &self.to_string())
            }
            Self::Usage(_) => Problem::local("usage", "Wrong command line", &self.to_string()),
            Self::Declined | Self::Failed(_) | Self::Local(_) | Self::Output(_) => {
                Problem::local("failed", "Failed", &self.to_string())
            }
        }
    }

    /// Writes the failure to `to`, in the form for a person or a script, and returns the exit code.
    pub fn report(&self, command: &str, json: bool, to: &mut dyn io::Write) -> ExitCode {
        let code = self.code();
        if code != 0 {
            let said = if json {
                writeln!(to, "{}", escape::json(&self.document().to_string()))
            } else {
                writeln!(to, "meridian {command}: {}", escape::lines(&self.to_string()))
            };
            // When standard error is closed, the exit code still reports the failure.
            drop(said);
        }
        ExitCode::from(code)
    }
}

impl From<io::Error> for Failure {
    /// Converts an error of standard output. `?` is used on no other I/O errors.
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { url, cause } => write!(
                f,
                "no node answers at {url}: {cause}\n  Start one here with `meridian start`, or name another \
                 one with --url or MERIDIAN_URL.\n  A node with --http off has no API."
            ),
            Self::TimedOut { url, after } => write!(
                f,
                "{url} did not answer within {}\n  It may be overloaded or stopped; --timeout waits longer.",
                human::duration(*after)
            ),
            Self::NotMeridian { url, cause } => write!(
                f,
                "the server at {url} does not speak Meridian's HTTP API: {cause}\n  The port of the API is \
                 that of --http (default 18083), not that of MQTT."
            ),
            Self::Insecure { url, cause } => write!(f, "no secure connection to {url}: {cause}"),
            Self::Refused(problem) => {
                f.write_str(&problem.summary())?;
                for (name, detail) in &problem.errors {
                    write!(f, "\n  {name}: {detail}")?;
                }
                match problem.status {
                    401 => f.write_str(
                        "\n  Make a key on the node's machine with `meridian key add NAME --role operator`, and give it by \
                         --token-file FILE or MERIDIAN_TOKEN.",
                    ),
                    403 => f.write_str("\n  `meridian ctl whoami` shows the role of this key."),
                    _ => match problem.retry_after_s {
                        // When the change may be in effect already, the detail has the advice.
                        Some(seconds) if problem.slug != "undecided" => {
                            write!(f, "\n  Try again in {seconds} s.")
                        }
                        _ => Ok(()),
                    },
                }
            }
            Self::Declined => f.write_str("nothing was changed"),
            Self::Failed(what) | Self::Usage(what) | Self::Local(what) => f.write_str(what),
            Self::Output(error) => write!(f, "standard output: {error}"),
        }
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16) -> Failure {
        let body = br#"{"type":"urn:meridian:problem:x","title":"T","status":1,"detail":"D","errors":[{"name":"qos","detail":"0 to 2"}]}"#;
        Failure::Refused(Box::new(Problem::read(status, None, body).unwrap()))
    }

    #[test]
    fn every_kind_has_its_exit_code() {
        let url = || "http://x".to_owned();
        for (failure, code) in [
            (Failure::Unreachable { url: url(), cause: String::new() }, 3),
            (Failure::NotMeridian { url: url(), cause: String::new() }, 3),
            (Failure::Insecure { url: url(), cause: String::new() }, 3),
            (Failure::TimedOut { url: url(), after: Duration::from_secs(1) }, 3),
            (refused(401), 5),
            (refused(403), 5),
            (refused(404), 4),
            (refused(422), 1),
            (refused(503), 3),
            (Failure::Usage(String::new()), 2),
            (Failure::Declined, 1),
            (Failure::Output(io::ErrorKind::BrokenPipe.into()), 0),
            (Failure::Output(io::ErrorKind::StorageFull.into()), 1),
        ] {
            assert_eq!(failure.code(), code, "{failure:?}");
        }
    }

    #[test]
    fn a_refusal_names_the_fields_and_says_how_to_get_a_key() {
        assert_eq!(refused(422).to_string(), "D\n  qos: 0 to 2");
        assert!(refused(401).to_string().contains("meridian key add"));
    }

    #[test]
    fn scripts_get_a_problem_document_on_one_line() {
        let mut said = Vec::new();
        refused(422).report("ctl", true, &mut said);
        let said = String::from_utf8(said).unwrap();
        assert_eq!(said.lines().count(), 1);
        assert_eq!(serde_json::from_str::<Value>(&said).unwrap()["detail"], "D");
    }

    #[test]
    fn a_closed_pipe_is_not_reported() {
        let mut said = Vec::new();
        Failure::Output(io::ErrorKind::BrokenPipe.into()).report("ctl", false, &mut said);
        assert!(said.is_empty());
    }
}
