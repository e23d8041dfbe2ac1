//! Why a registry cannot be opened or changed.

use std::io;
use std::path::PathBuf;

use crate::change::Revision;

/// Why a batch is not in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProposeError {
    /// A record is not what the proposal expects: ask again and decide again.
    Conflict {
        table: Box<str>,
        key: Box<str>,
        found: Option<Revision>,
    },
    KeyLong {
        maximum: usize,
    },
    ValueLong {
        bytes: usize,
        maximum: usize,
    },
    /// JSON's `null` is no value.
    ValueNull,
    BatchLong {
        changes: usize,
        maximum: usize,
    },
    TooManyRecords {
        maximum: usize,
    },
    /// The disk did not take it.
    Write {
        path: PathBuf,
        why: String,
    },
    /// It was not opened for changes.
    ReadOnly,
    /// The records are those of a cluster, and only its nodes change them while they run.
    OfCluster,
    /// The cluster has not agreed to it, and why. With `outcome_unknown`, it may do so yet, or have done so.
    NotCommitted {
        why: String,
        outcome_unknown: bool,
    },
    /// A disk did something that leaves unknown what is on it; nothing is accepted until the node starts again.
    Broken {
        why: String,
    },
}

impl std::fmt::Display for ProposeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Conflict { table, key, .. } => {
                write!(f, "`{key}` of {table} was changed by somebody else meanwhile; try again")
            }
            Self::KeyLong { maximum } => write!(f, "a name may have 1 to {maximum} bytes; shorten it"),
            Self::ValueLong { bytes, maximum } => {
                write!(f, "the record would have {bytes} bytes, and {maximum} are the limit; shorten it")
            }
            Self::ValueNull => f.write_str("`null` is no record"),
            Self::BatchLong { changes, maximum } => {
                write!(f, "{changes} changes at once, and {maximum} are the limit; send fewer at once")
            }
            Self::TooManyRecords { maximum } => {
                write!(f, "there are {maximum} records, which is the limit; remove some")
            }
            Self::Write { path, why } => write!(f, "{} cannot be written: {why}", path.display()),
            Self::ReadOnly => f.write_str("the registry was opened for reading only"),
            Self::OfCluster => f.write_str(
                "this data directory has a copy of what the cores of a cluster agree on, and a change of the copy would be lost: start the \
                 node, and change it there (meridian ctl)",
            ),
            Self::NotCommitted { why, outcome_unknown: false } => write!(f, "nothing has changed: {why}"),
            Self::NotCommitted { why, outcome_unknown: true } => {
                write!(f, "it may be in force or not, so look before you try again: {why}")
            }
            Self::Broken { why } => {
                write!(f, "the registry takes no changes until the node is started again: {why}")
            }
        }
    }
}

impl std::error::Error for ProposeError {}

/// A journal that cannot be used.
#[derive(Debug)]
pub struct OpenError {
    pub path: PathBuf,
    pub fault: OpenFault,
}

#[derive(Debug)]
pub enum OpenFault {
    Io(io::Error),
    /// Not the beginning of a journal.
    BadHeader,
    /// Written by a later version of this program.
    Version(u64),
    /// A line does not say what was written. Counts from 1.
    Damaged {
        line: u64,
        why: &'static str,
    },
    /// A line is longer than any that is written.
    Long {
        line: u64,
    },
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the registry {} cannot be used: ", self.path.display())?;
        match &self.fault {
            OpenFault::Io(error) => return write!(f, "{error}"),
            OpenFault::BadHeader => f.write_str("it does not begin as one")?,
            OpenFault::Version(version) => {
                return write!(
                    f,
                    "its format is version {version}; use the program that wrote it, or a later one"
                );
            }
            OpenFault::Damaged { line, why } => write!(f, "line {line} is damaged ({why})")?,
            OpenFault::Long { line } => write!(f, "line {line} is longer than any line of a registry")?,
        }
        f.write_str(
            "; put back a copy of it. Without one: `head` of the lines before is what can be saved, and moving the file away \
             starts without users, rules, bans and keys",
        )
    }
}

impl std::error::Error for OpenError {}
