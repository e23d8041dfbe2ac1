//! Errors of the token configuration.

use std::fmt;
use std::path::{Path, PathBuf};

/// Fault that an operator has to correct.
#[derive(Debug)]
pub enum JwtError {
    /// Settings contradict each other: a sentence with the names of the settings.
    Settings(String),
    /// A key file cannot be used. The message never contains its contents.
    File { path: PathBuf, why: String },
    /// The thread that fetches keys cannot be started.
    System(std::io::Error),
}

impl JwtError {
    pub(super) fn file(path: &Path, why: impl fmt::Display) -> Self {
        Self::File { path: path.to_owned(), why: why.to_string() }
    }
}

impl fmt::Display for JwtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settings(why) => f.write_str(why),
            Self::File { path, why } => write!(f, "{}: {why}", path.display()),
            Self::System(error) => write!(f, "the thread that fetches keys cannot start: {error}"),
        }
    }
}

impl std::error::Error for JwtError {}
