//! Errors of a lab, by the action that they require.

use std::fmt;
use std::io;

#[derive(Debug)]
pub enum LabError {
    /// The topology or a request is invalid: a sentence with the valid values.
    Topology(String),
    /// This process may not create network namespaces.
    NotRoot,
    /// The system refused an operation: the operation, and the reason.
    System(String, io::Error),
    /// The thread that carries packets has ended.
    Stopped,
}

impl LabError {
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| Self::System(what, error)
    }
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Topology(what) => f.write_str(what),
            Self::NotRoot => f.write_str(
                "network namespaces need root: run this as root, or with `sudo --preserve-env=PATH`",
            ),
            Self::System(what, error) => write!(f, "{what}: {error}"),
            Self::Stopped => f.write_str("the thread that carries packets has ended"),
        }
    }
}

impl std::error::Error for LabError {}
