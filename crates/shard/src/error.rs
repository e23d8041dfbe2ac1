//! What is wrong with bytes that are not ours to doubt: a log or a checkpoint.

use std::fmt;

/// Bytes that nothing here writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Which field.
    pub what: &'static str,
}

pub(crate) fn malformed<T>(what: &'static str) -> Result<T, Malformed> {
    Err(Malformed { what })
}

/// Why a batch was not applied. The state is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyError {
    /// Records are applied once each, in their order.
    OutOfOrder { expected: u64, index: u64 },
    /// The batch is not one that a [`BatchBuilder`](crate::BatchBuilder) of this version wrote. `command` counts from 0.
    Malformed { index: u64, command: u32, what: &'static str },
}

/// Why a checkpoint cannot be what a state begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreError {
    /// The part is not one that [`Shard::write_parts`](crate::Shard::write_parts) of this version wrote.
    Malformed { part: u32, what: &'static str },
    /// Pages of a part are missing.
    Incomplete { part: u32 },
    /// Parts contradict each other.
    Inconsistent { what: &'static str },
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed: {}", self.what)
    }
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApplyError::OutOfOrder { expected, index } => {
                write!(f, "record {index} where {expected} comes next")
            }
            ApplyError::Malformed { index, command, what } => {
                write!(f, "record {index} is damaged or of a newer version: command {command}, {what}")
            }
        }
    }
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreError::Malformed { part, what } => {
                write!(f, "part {part} of the checkpoint is damaged or of a newer version: {what}")
            }
            RestoreError::Incomplete { part } => {
                write!(f, "pages of part {part} of the checkpoint are missing")
            }
            RestoreError::Inconsistent { what } => write!(f, "parts of the checkpoint do not fit: {what}"),
        }
    }
}

impl std::error::Error for Malformed {}
impl std::error::Error for ApplyError {}
impl std::error::Error for RestoreError {}
