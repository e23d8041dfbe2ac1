//! Faults that tests build into the product. The simulator must notice each of them (`cargo xtask sim --mutations`).

#[cfg(feature = "trial")]
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mutation {
    /// Reports an entry as written while it is on its way to the disk.
    FlushedBeforeDurable = 1,
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
}

impl Mutation {
    /// All mutations.
    pub const ALL: [Self; 6] = [
        Self::FlushedBeforeDurable,
        Self::ForgetVote,
        Self::ForgetCommitted,
        Self::SkipPreVote,
        Self::LeadOn,
        Self::KeepToPromises,
    ];
}

/// Number of the active mutation, or 0.
#[cfg(feature = "trial")]
static CURRENT: AtomicU8 = AtomicU8::new(0);

/// Number of times that each mutation's place in the code was reached, by its number.
#[cfg(feature = "trial")]
static REACHED: [AtomicU64; Mutation::ALL.len() + 1] = [const { AtomicU64::new(0) }; _];

/// Activates a mutation for the whole process, or none.
#[cfg(feature = "trial")]
pub fn mutate(mutation: Option<Mutation>) {
    CURRENT.store(mutation.map_or(0, |mutation| mutation as u8), Ordering::SeqCst);
}

/// Number of times that the process has reached the place of this mutation.
#[cfg(feature = "trial")]
pub fn reached(mutation: Mutation) -> u64 {
    REACHED[mutation as usize].load(Ordering::Relaxed)
}

/// Returns whether this mutation is active.
#[cfg(feature = "trial")]
pub(crate) fn mutated(mutation: Mutation) -> bool {
    REACHED[mutation as usize].fetch_add(1, Ordering::Relaxed);
    CURRENT.load(Ordering::Relaxed) == mutation as u8
}

/// Returns false: a product build has no mutations.
#[cfg(not(feature = "trial"))]
#[inline(always)]
pub(crate) const fn mutated(_: Mutation) -> bool {
    false
}
