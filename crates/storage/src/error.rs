//! Errors of the log: each names the location and the remedy.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::id::{GroupId, SegmentId};

/// Error of a call on the log or on its files. Cheap to clone, because one failure is reported to many groups.
#[derive(Clone, Debug)]
pub enum Error {
    /// The operating system reported an error. `operation` is the operation that failed on `file`.
    Io { file: String, operation: &'static str, error: Arc<io::Error> },
    /// Another process uses the directory.
    InUse { directory: PathBuf, pid: Option<u32> },
    /// A file was not written by this crate, or belongs to another log.
    Foreign { file: String, detail: String },
    /// A file has a later format than this program knows.
    Newer { file: String, found: u16, supported: u16 },
    /// A required file is missing.
    Missing { file: String, detail: String },
    /// Bytes on the disk differ from those that were written.
    Corrupt(Box<Corrupt>),
    /// The log has no such entry: it was never appended, its segment was freed, or its group was dropped.
    NotFound { group: GroupId, index: u64 },
    /// The log stopped for good: an earlier write or sync failed with this error.
    Failed(Arc<str>),
    /// The disk has no room, and the operation cannot wait for it.
    Full { file: String, bytes: u64 },
    /// An argument is out of its bounds, which the text names.
    Invalid(String),
}

/// Location of a damaged record.
#[derive(Clone, Debug)]
pub struct Corrupt {
    /// File of the segment.
    pub file: String,
    pub segment: SegmentId,
    /// Offset of the first bad byte in the file.
    pub offset: u64,
    /// Description of the damage.
    pub detail: String,
    /// Entries that are known to be affected; empty when they are unknown.
    pub lost: Vec<Lost>,
}

/// Entries of a group that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    pub group: GroupId,
    /// First index.
    pub first: u64,
    /// Last index, if known.
    pub last: Option<u64>,
}

impl Error {
    pub(crate) fn io(file: &str, operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        let file = file.to_owned();
        move |error| Self::Io { file, operation, error: Arc::new(error) }
    }

    /// Returns whether the disk has no room. The caller may wait for room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            Self::Full { .. } => true,
            Self::Io { error, .. } => is_full(error),
            _ => false,
        }
    }

    /// Returns whether data is damaged, foreign or missing. Waiting or trying again does not help then.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Corrupt(_) | Self::Missing { .. } | Self::Foreign { .. })
    }
}

/// Resource that is exhausted, so that the log cannot create another segment. The caller can wait for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shortage {
    /// The disk or the quota is used up.
    #[default]
    Room,
    /// The process or the machine has no free file descriptor.
    Descriptors,
    /// The disk fails to create a segment for another reason.
    Segment,
}

impl Shortage {
    pub(crate) fn of(error: &io::Error) -> Option<Self> {
        match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => Some(Self::Descriptors),
            _ => is_full(error).then_some(Self::Room),
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Room => "the disk is full",
            Self::Descriptors => {
                "no file descriptor is left for the log (raise the limit, LimitNOFILE= or ulimit -n, or lower limits.connections_max)"
            }
            Self::Segment => "the disk fails to create another file of the log (the log line \"log housekeeping failed\" has the cause)",
        })
    }
}

/// Returns whether the error means that the disk or the quota is used up.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.last {
            Some(last) if last == self.first => write!(f, "entry {last} of {}", self.group),
            Some(last) => write!(f, "entries {} to {last} of {}", self.first, self.group),
            None => write!(f, "entries from {} on of {}", self.first, self.group),
        }
    }
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} is damaged at offset {}: {}", self.file, self.offset, self.detail)?;
        for (n, lost) in self.lost.iter().enumerate() {
            f.write_str(if n == 0 { "; affected: " } else { ", " })?;
            lost.fmt(f)?;
        }
        Ok(())
    }
}

/// Advice that follows an error that needs an operator.
const DAMAGE_ADVICE: &str = "restore a backup, or keep what is intact with `meridian storage repair DIR`, which says what is lost; see docs/storage.md";

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Io { file, operation, error } => {
                write!(f, "cannot {operation} {file}: {error}")?;
                if error.kind() == io::ErrorKind::ReadOnlyFilesystem {
                    f.write_str("; mount it writable, or set another data directory")?;
                }
                Ok(())
            }
            Self::InUse { directory, pid: Some(pid) } => write!(
                f,
                "{} is in use by process {pid}: stop it, or use another data directory",
                directory.display()
            ),
            Self::InUse { directory, pid: None } => write!(
                f,
                "{} is in use by another process: stop it, or use another data directory",
                directory.display()
            ),
            Self::Foreign { file, detail } => {
                write!(
                    f,
                    "{file} does not belong here: {detail}; move it away, or use another data directory"
                )
            }
            Self::Newer { file, found, supported } => write!(
                f,
                "{file} has format {found}, and this program knows formats up to {supported}: it was written by a newer \
                 Meridian; start that one, or restore a backup that an older one made"
            ),
            Self::Missing { file, detail } => write!(f, "{file} is missing: {detail}; {DAMAGE_ADVICE}"),
            Self::Corrupt(corrupt) => write!(f, "{corrupt}; {DAMAGE_ADVICE}"),
            Self::NotFound { group, index } => write!(f, "entry {index} of {group} is not in the log"),
            Self::Failed(why) => {
                write!(f, "the log stopped: {why}; nothing is durable any more until the node is restarted")
            }
            Self::Full { file, bytes } => {
                write!(f, "no room for {file} ({bytes} bytes): free space on the disk of the data directory")
            }
            Self::Invalid(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}
