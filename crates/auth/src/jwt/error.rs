//! Why tokens cannot be verified with this configuration.

use std::fmt;
use std::path::{Path, PathBuf};

/// What an operator has to put right.
#[derive(Debug)]
pub enum JwtError {
    /// Settings that do not fit each other: a sentence with the names of the settings.
    Settings(String),
    /// A file of keys that cannot be used. Never says what is in it.
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
