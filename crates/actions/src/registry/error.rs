//! Errors of changes of connectors and actions.

use std::fmt;

use definitions::{EntryError, Problem};

/// Reason why a connector or an action is not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistryError {
    Entry(EntryError),
    /// An action could not run with the changed connector.
    Breaks {
        action: String,
        setting: String,
        why: String,
    },
    /// Actions use the entry.
    Used {
        noun: &'static str,
        name: String,
        by: Vec<String>,
    },
}

impl From<EntryError> for RegistryError {
    fn from(error: EntryError) -> Self {
        Self::Entry(error)
    }
}

impl From<Problem> for RegistryError {
    fn from(problem: Problem) -> Self {
        Self::Entry(problem.into())
    }
}

/// Maximum number of names in an error.
const NAMES_MAX: usize = 5;

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entry(error) => error.fmt(f),
            Self::Breaks { action, setting, why } => write!(
                f,
                "the action `{action}` uses this connector, and could not run any more: {setting}: {why}; change the \
                 action first, or use another connector for it"
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
        }
    }
}

impl std::error::Error for RegistryError {}
