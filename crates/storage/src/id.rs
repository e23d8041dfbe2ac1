//! Ids of groups and segments.

use std::fmt;

/// One of the groups that share the log. 0 is the meta group; shard s is group 1 + s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u16);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "group {}", self.0)
    }
}

/// Where a segment stands in the log: 1 is the first of a log's life, and a number is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u64);

impl SegmentId {
    /// The one after it.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The name of its file: 20 digits, so that names sort as numbers.
    #[must_use]
    pub fn file(self) -> String {
        format!("{:020}.seg", self.0)
    }

    /// The segment of that file name.
    #[must_use]
    pub fn of_file(name: &str) -> Option<Self> {
        let digits = name.strip_suffix(".seg")?;
        (digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit()))
            .then(|| digits.parse().ok().map(Self))
            .flatten()
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "segment {}", self.0)
    }
}
