//! Mutations of the log: faults that are built in on purpose. The crash tests must notice each of them.

/// One fault that is built into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A commit is reported durable without a sync.
    SkipSync,
    /// A commit is reported durable before it is synced.
    ReportBeforeSync,
    /// A new segment's name is not made durable.
    SkipDirectorySync,
    /// A new segment's header is not synced before it gets its name.
    SkipHeaderSync,
    /// Records do not hold the checksum of the previous record, and the checks ignore it.
    NoChain,
    /// Checksums are not verified.
    NoChecksum,
    /// Checksums do not cover the segment's number, so records of an earlier use of the file look valid.
    ReuseRecycledBytes,
    /// A tail is cut at the first bad record, even when valid commits follow.
    CutTooMuch,
    /// Valid records of a torn commit are kept.
    KeepTornCommit,
    /// A failed sync is tried again, and its success is trusted.
    RetryFailedSync,
    /// Data that a killed process left in the system's cache is taken for durable.
    TrustCache,
    /// A part counts although its checkpoint was never finished.
    UnfinishedPartCounts,
    /// A segment is freed although a group did not answer.
    FreeTooEarly,
    /// Parts are not moved out of a segment that is freed.
    ForgetParts,
    /// Records that do not fit on a full disk are dropped and reported durable.
    DropWhenFull,
    /// A record that is queued later is written first.
    Reorder,
    /// A freed segment is reused before the removal of its old name is durable.
    SkipFreedSync,
    /// Bodies are reported durable and not written.
    DropBodies,
    /// Bodies are not found again when a log is opened.
    ForgetBodies,
    /// A part is moved although the log has a newer version of it.
    MoveReplaced,
    /// Dropped groups are there again when a log is opened.
    ForgetDrops,
    /// Records that are queued before a drop of their group are written after it.
    WriteDropped,
    /// A record that is queued after a drop of its group is written before it.
    OvertakeDrop,
}

impl Mutation {
    /// All mutations.
    pub const ALL: [Self; 23] = [
        Self::SkipSync,
        Self::ReportBeforeSync,
        Self::SkipDirectorySync,
        Self::SkipHeaderSync,
        Self::NoChain,
        Self::NoChecksum,
        Self::ReuseRecycledBytes,
        Self::CutTooMuch,
        Self::KeepTornCommit,
        Self::RetryFailedSync,
        Self::TrustCache,
        Self::UnfinishedPartCounts,
        Self::FreeTooEarly,
        Self::ForgetParts,
        Self::DropWhenFull,
        Self::Reorder,
        Self::SkipFreedSync,
        Self::DropBodies,
        Self::ForgetBodies,
        Self::MoveReplaced,
        Self::ForgetDrops,
        Self::WriteDropped,
        Self::OvertakeDrop,
    ];
}
