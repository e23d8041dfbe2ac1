//! Errors of changes of entries.

use std::fmt;

use configstore::ProposeError;

use crate::problem::Problem;

/// Reason why an entry is not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryError {
    Unknown {
        noun: &'static str,
        name: String,
    },
    /// A setting is wrong. The name of the entry is the setting `name`.
    Setting {
        setting: String,
        why: String,
    },
    /// The entry belongs to the configuration file.
    OfFile {
        noun: &'static str,
        name: String,
    },
    TooMany {
        noun: &'static str,
        maximum: usize,
    },
    ConfigStore(ProposeError),
}

impl From<Problem> for EntryError {
    fn from(problem: Problem) -> Self {
        Self::Setting { setting: problem.setting, why: problem.why }
    }
}

impl fmt::Display for EntryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { noun, name } => write!(f, "there is no {noun} `{name}`"),
            Self::Setting { setting, why } => write!(f, "{setting}: {why}"),
            Self::OfFile { noun, name } => write!(
                f,
                "the {noun} `{name}` is in the configuration file of the node; change it there and restart the node"
            ),
            Self::TooMany { noun, maximum } => {
                write!(f, "there are {maximum} {noun}s already, which is the maximum; remove some")
            }
            Self::ConfigStore(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for EntryError {}
