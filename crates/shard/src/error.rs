//! Errors in the bytes of a log or a checkpoint.

use std::fmt;

/// Bytes that this crate never writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Name of the malformed field.
    pub what: &'static str,
}

pub(crate) fn malformed<T>(what: &'static str) -> Result<T, Malformed> {
    Err(Malformed { what })
}

/// Reason why a batch was not applied. The state is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyError {
    /// A record is not the next one. Records are applied once each, in their order.
    OutOfOrder { expected: u64, index: u64 },
    /// The batch was not written by a [`BatchBuilder`](crate::BatchBuilder) of this version. `command` counts from
    /// 0.
    Malformed { index: u64, command: u32, what: &'static str },
}

/// Reason why a state cannot begin with a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreError {
    /// The part was not written by [`Shard::write_parts`](crate::Shard::write_parts) of this version.
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
                write!(f, "record {index} is out of order: expected {expected}")
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
            RestoreError::Inconsistent { what } => write!(f, "checkpoint parts do not fit together: {what}"),
        }
    }
}

impl std::error::Error for Malformed {}
impl std::error::Error for ApplyError {}
impl std::error::Error for RestoreError {}
