//! Errors of opening and changing the configuration store.

use std::io;
use std::path::PathBuf;

use crate::change::Revision;

/// Reason why a batch was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProposeError {
    /// A record is not as the proposal expects. The caller has to read it and decide again.
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
    /// JSON's `null` is not a value.
    ValueNull,
    BatchLong {
        changes: usize,
        maximum: usize,
    },
    TooManyRecords {
        maximum: usize,
    },
    /// The write to the disk failed.
    Write {
        path: PathBuf,
        why: String,
    },
    /// The store was opened for reading only.
    ReadOnly,
    /// The records belong to a cluster: only its running nodes change them.
    OfCluster,
    /// The cluster did not accept the batch. With `outcome_unknown`, it may have accepted it, or may still do so.
    NotCommitted {
        why: String,
        outcome_unknown: bool,
    },
    /// The contents of the disk are unknown after a failure. Nothing is accepted until the node is restarted.
    Broken {
        why: String,
    },
}

impl std::fmt::Display for ProposeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Conflict { table, key, .. } => {
                write!(f, "`{key}` of {table} was changed by another request; read it and try again")
            }
            Self::KeyLong { maximum } => write!(f, "a name may have 1 to {maximum} bytes; shorten it"),
            Self::ValueLong { bytes, maximum } => {
                write!(f, "the record has {bytes} bytes, more than the maximum of {maximum}; shorten it")
            }
            Self::ValueNull => f.write_str("`null` is not a record; write a value, or remove the record"),
            Self::BatchLong { changes, maximum } => {
                write!(f, "{changes} changes in one batch, more than the maximum of {maximum}; send fewer at once")
            }
            Self::TooManyRecords { maximum } => {
                write!(f, "the maximum of {maximum} records is reached; remove some")
            }
            Self::Write { path, why } => write!(f, "{} cannot be written: {why}", path.display()),
            Self::ReadOnly => f.write_str("the configuration store was opened for reading only"),
            Self::OfCluster => f.write_str(
                "this data directory holds a copy of a cluster's records, and a change of the copy would be lost: start the \
                 node, and change the records there (meridian ctl)",
            ),
            Self::NotCommitted { why, outcome_unknown: false } => write!(f, "nothing has changed: {why}"),
            Self::NotCommitted { why, outcome_unknown: true } => {
                write!(f, "the change may be in force or not, look before you try again: {why}")
            }
            Self::Broken { why } => {
                write!(f, "the configuration store accepts no changes until the node is restarted: {why}")
            }
        }
    }
}

impl std::error::Error for ProposeError {}

/// Error about a write-ahead log that cannot be used.
#[derive(Debug)]
pub struct OpenError {
    pub path: PathBuf,
    pub fault: OpenFault,
}

#[derive(Debug)]
pub enum OpenFault {
    Io(io::Error),
    /// The file does not begin like a write-ahead log.
    BadHeader,
    /// A later version of this program wrote the file.
    Version(u64),
    /// The contents of a line are not what was written. `line` counts from 1.
    Damaged {
        line: u64,
        why: &'static str,
    },
    /// A line is longer than any that this program writes.
    Long {
        line: u64,
    },
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the configuration store {} cannot be used: ", self.path.display())?;
        match &self.fault {
            OpenFault::Io(error) => return write!(f, "{error}"),
            OpenFault::BadHeader => f.write_str("it does not begin like one")?,
            OpenFault::Version(version) => {
                return write!(
                    f,
                    "its format is version {version}; use the program that wrote it, or a later one"
                );
            }
            OpenFault::Damaged { line, why } => write!(f, "line {line} is damaged ({why})")?,
            OpenFault::Long { line } => write!(f, "line {line} is longer than any valid line")?,
        }
        f.write_str(
            "; put back a copy of it. Without a copy: `head` can save the lines before the damage, and a start without the file \
             has no users, rules, bans and keys",
        )
    }
}

impl std::error::Error for OpenError {}
