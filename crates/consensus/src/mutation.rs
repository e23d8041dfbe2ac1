//! Faults that tests build into the product. The simulator must notice each of them (`cargo xtask sim --mutations`).

mutation::mutations! {
    pub(crate) fn mutated;

    /// Reports an entry as written while it is on its way to the disk.
    FlushedBeforeDurable,
    /// Skips the write of a vote.
    ForgetVote,
    /// Skips the write of the index of the last committed entry.
    ForgetCommitted,
    /// Starts an election without a pre-vote.
    SkipPreVote,
    /// Lets a leader lead on after a restart, without an election.
    LeadOn,
    /// Assumes that a replica still has all that it has confirmed.
    KeepToPromises,
    /// Counts a learner that has confirmed an entry for a voter that does not answer.
    CountLearner,
    /// Leaves parts of a checkpoint out of the log.
    DropPart,
    /// Keeps the parts that only the checkpoint before a received one has.
    KeepOldParts,
    /// Takes a piece of another snapshot.
    MixSnapshots,
    /// Installs a snapshot before its last part has arrived.
    InstallEarly,
    /// Completes a received snapshot without passing it to the state machine.
    SkipInstall,
}
