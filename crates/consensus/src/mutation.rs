//! Faults put into the product on purpose: the simulator must notice each of them (`cargo xtask sim --mutations`).

#[cfg(feature = "trial")]
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// One way of doing it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mutation {
    /// An entry counts as written when it is on its way to the disk.
    FlushedBeforeDurable = 1,
    /// A vote is not written.
    ForgetVote,
    /// How far entries are committed is not written.
    ForgetCommitted,
    /// A replica asks nobody before it stands for election.
    SkipPreVote,
    /// A leader that starts again leads on, without an election.
    LeadOn,
    /// A replica is taken to have what it once said to have.
    KeepToPromises,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::FlushedBeforeDurable,
        Self::ForgetVote,
        Self::ForgetCommitted,
        Self::SkipPreVote,
        Self::LeadOn,
        Self::KeepToPromises,
    ];
}

/// The one that is put in, or 0.
#[cfg(feature = "trial")]
static CURRENT: AtomicU8 = AtomicU8::new(0);

/// How often the place of each was reached, by its number.
#[cfg(feature = "trial")]
static REACHED: [AtomicU64; Mutation::ALL.len() + 1] = [const { AtomicU64::new(0) }; _];

/// Puts one in, for the whole process.
#[cfg(feature = "trial")]
pub fn mutate(mutation: Option<Mutation>) {
    CURRENT.store(mutation.map_or(0, |mutation| mutation as u8), Ordering::SeqCst);
}

/// How often the process has reached the place where this one can be put in.
#[cfg(feature = "trial")]
pub fn reached(mutation: Mutation) -> u64 {
    REACHED[mutation as usize].load(Ordering::Relaxed)
}

/// Whether this one is put in.
#[cfg(feature = "trial")]
pub(crate) fn mutated(mutation: Mutation) -> bool {
    REACHED[mutation as usize].fetch_add(1, Ordering::Relaxed);
    CURRENT.load(Ordering::Relaxed) == mutation as u8
}

/// Never in a product build.
#[cfg(not(feature = "trial"))]
#[inline(always)]
pub(crate) const fn mutated(_: Mutation) -> bool {
    false
}
