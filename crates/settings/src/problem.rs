//! Where a value came from, and what can be wrong with it.

use std::fmt;
use std::path::PathBuf;

use crate::value::Invalid;

/// Where a value came from. Later variants go over earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Default,
    /// Lines count from 1.
    File {
        path: PathBuf,
        line: usize,
    },
    /// What all nodes of the cluster agree on.
    Cluster,
    /// A change made while the program ran; the file that keeps it.
    Runtime(PathBuf),
    /// The name of the variable.
    Environment(String),
    /// The text after `--set`.
    Set(String),
    /// The name of the flag.
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Cluster => f.write_str("the cluster"),
            Self::Runtime(path) => write!(f, "{}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Set(text) => write!(f, "--set {text}"),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// One thing that is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub source: Source,
    pub fault: Fault,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.source, self.fault)
    }
}

impl std::error::Error for Problem {}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The file is no TOML. Holds the parser's words.
    Syntax(String),
    /// Nothing is called like this; `nearest` is what is.
    Unknown {
        name: String,
        nearest: String,
    },
    /// A value where a section belongs.
    NotASection {
        name: String,
    },
    /// `[name]` for what is written `[[name]]`.
    List {
        name: String,
    },
    /// `[[name]]` for what is written `[name]`.
    NotAList {
        name: String,
    },
    /// An entry of a list that leaves a gap before it.
    Gap {
        name: String,
        index: usize,
        len: usize,
    },
    /// `--set` without a `=`.
    NoValue,
    Invalid {
        name: String,
        why: Invalid,
    },
}

impl Fault {
    /// The setting or section that it is about; `None` when it is about the text.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Syntax(_) | Self::NoValue => None,
            Self::Unknown { name, .. }
            | Self::NotASection { name }
            | Self::List { name }
            | Self::NotAList { name }
            | Self::Gap { name, .. }
            | Self::Invalid { name, .. } => Some(name),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(message) => f.write_str(message),
            Self::Unknown { name, nearest } => {
                write!(f, "unknown setting `{name}`; the nearest known one is `{nearest}`")
            }
            Self::NotASection { name } => write!(f, "`{name}` is a section, written [{name}]"),
            Self::List { name } => write!(f, "`{name}` can be repeated, it is written [[{name}]]"),
            Self::NotAList { name } => write!(f, "`{name}` cannot be repeated, it is written [{name}]"),
            Self::Gap { name, index, len } => {
                write!(f, "`{name}.{index}` leaves a gap: the next new entry is `{name}.{len}`")
            }
            Self::NoValue => f.write_str("expected section.key=value"),
            Self::Invalid { name, why } => write!(f, "{name}: {why}"),
        }
    }
}
