//! Faults put into the log on purpose: the crash tests must notice each of them.

/// One way of doing it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A commit is told durable without a sync.
    SkipSync,
    /// A commit is told durable, and then synced.
    ReportBeforeSync,
    /// A new segment's name is not made durable.
    SkipDirectorySync,
    /// A new segment's header is not synced before it gets its name.
    SkipHeaderSync,
    /// Records do not hold the checksum of the record before, and nobody looks.
    NoChain,
    /// Checksums are not looked at.
    NoChecksum,
    /// Checksums do not cover the segment's number, so that an earlier use of the file speaks.
    ReuseRecycledBytes,
    /// A tail is cut at the first bad record, whatever follows.
    CutTooMuch,
    /// What is valid of a torn commit is kept.
    KeepTornCommit,
    /// A failed sync is tried again, and believed.
    RetryFailedSync,
    /// What a killed process left in the system's memory is taken for durable.
    TrustCache,
    /// A part of a checkpoint that was never done counts.
    UnfinishedPartCounts,
    /// A segment is freed although a group did not answer.
    FreeTooEarly,
    /// Parts are not moved out of a segment that is freed.
    ForgetParts,
    /// What did not fit on a full disk is dropped, and told durable.
    DropWhenFull,
    /// A record that is queued later is written first.
    Reorder,
    /// A freed segment is used again before it is durable that its old name is gone.
    SkipFreedSync,
    /// A part is moved although the log has a newer version of it.
    MoveReplaced,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 18] = [
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
        Self::MoveReplaced,
    ];
}
