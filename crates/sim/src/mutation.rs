//! Faults that can be put into the product, all in one list.

use std::fmt;

/// One way of doing it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// In the log.
    Log(storage::Mutation),
    /// In a shard, its host, or between them and the log.
    Shard(shard::Mutation),
}

/// Those of the log that a node's clients can feel; the others are for the log's own trials.
const OF_LOG: [storage::Mutation; 4] = [
    storage::Mutation::SkipSync,
    storage::Mutation::ReportBeforeSync,
    storage::Mutation::SkipDirectorySync,
    storage::Mutation::UnfinishedPartCounts,
];

impl Mutation {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let of_log = OF_LOG.into_iter().map(Self::Log);
        shard::Mutation::ALL.into_iter().map(Self::Shard).chain(of_log)
    }
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(mutation) => write!(f, "{mutation:?}"),
            Self::Shard(mutation) => write!(f, "{mutation:?}"),
        }
    }
}
