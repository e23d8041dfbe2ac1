//! Errors of changes of connectors and actions.

use std::fmt;

use configstore::ProposeError;

use super::check::Problem;
use super::definitions::Noun;

/// Reason why a connector or an action is not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistryError {
    Unknown {
        noun: Noun,
        name: String,
    },
    /// A setting is wrong. The name of the entry is the setting `name`.
    Setting {
        setting: String,
        why: String,
    },
    /// An action could not run with the changed connector.
    Breaks {
        action: String,
        setting: String,
        why: String,
    },
    /// The entry belongs to the configuration file.
    OfFile {
        noun: Noun,
        name: String,
    },
    /// Actions use the entry.
    Used {
        noun: Noun,
        name: String,
        by: Vec<String>,
    },
    TooMany {
        noun: Noun,
        maximum: usize,
    },
    ConfigStore(ProposeError),
}

impl From<Problem> for RegistryError {
    fn from(problem: Problem) -> Self {
        Self::Setting { setting: problem.setting, why: problem.why }
    }
}

/// Maximum number of names in an error.
const NAMES_MAX: usize = 5;

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { noun, name } => write!(f, "there is no {noun} `{name}`"),
            Self::Setting { setting, why } => write!(f, "{setting}: {why}"),
            Self::Breaks { action, setting, why } => write!(
                f,
                "the action `{action}` uses this connector, and could not run any more: {setting}: {why}; change the \
                 action first, or use another connector for it"
            ),
            Self::OfFile { noun, name } => write!(
                f,
                "the {noun} `{name}` is in the configuration file of the node; change it there and restart the node"
            ),
            Self::Used { noun, name, by } => {
                let shown = by.iter().take(NAMES_MAX).map(|name| format!("`{name}`")).collect::<Vec<_>>();
                let more = if by.len() > NAMES_MAX { " and others" } else { "" };
                write!(
                    f,
                    "the {noun} `{name}` is used by the actions {}{more}; change or remove them first",
                    shown.join(", ")
                )
            }
            Self::TooMany { noun, maximum } => {
                write!(f, "there are {maximum} {noun}s already, which is the maximum; remove some")
            }
            Self::ConfigStore(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RegistryError {}
