//! Sources of values, and the problems they can have.

use std::fmt;
use std::path::PathBuf;

use crate::value::Invalid;

/// Source of a value. Later variants override earlier ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Default,
    /// A line of the file, counted from 1.
    File {
        path: PathBuf,
        line: usize,
    },
    /// The configuration store, which all nodes of the cluster share.
    Cluster,
    /// A change made while the program ran. Holds the path of the file that keeps it.
    Runtime(PathBuf),
    /// A variable of the environment. Holds its name.
    Environment(String),
    /// A `--set` argument. Holds its text.
    Set(String),
    /// A command line flag. Holds its name.
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

/// A problem and its source.
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

/// Kind of a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The file is not valid TOML. Holds the parser's message.
    Syntax(String),
    /// No setting has this name; `nearest` is the most similar known one.
    Unknown {
        name: String,
        nearest: String,
    },
    /// No section has this name; `nearest` is the most similar known one.
    UnknownSection {
        name: String,
        nearest: String,
    },
    /// A value where a section is expected.
    NotASection {
        name: String,
    },
    /// `[name]` where `[[name]]` is expected.
    List {
        name: String,
    },
    /// `[[name]]` where `[name]` is expected.
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
    /// The setting or section that the problem concerns; `None` when it concerns the text.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Syntax(_) | Self::NoValue => None,
            Self::Unknown { name, .. }
            | Self::UnknownSection { name, .. }
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
            Self::UnknownSection { name, nearest } => {
                write!(f, "unknown section `{name}`; the nearest known one is `{nearest}`")
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
