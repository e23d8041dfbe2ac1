//! Ids of groups and segments.

use std::fmt;

/// Id of a group. Groups share the log: 0 is the meta group; shard s is group 1 + s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u16);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "group {}", self.0)
    }
}

/// Number of a segment in the log. The first segment of a log is 1, and no number is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u64);

impl SegmentId {
    /// Returns the next segment's id.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Returns the name of the segment's file: 20 digits, so that names sort as numbers.
    #[must_use]
    pub fn file(self) -> String {
        format!("{:020}.seg", self.0)
    }

    /// Returns the segment that a file name belongs to.
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
