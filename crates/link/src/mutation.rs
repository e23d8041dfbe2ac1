//! Faults put into the product on purpose: the simulator must notice each of them (`cargo xtask sim --mutations`).

#[cfg(feature = "trial")]
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// One way of doing it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mutation {
    /// Frames that were lost with a connection do not go again.
    SkipLost = 1,
    /// What waits for a peer has no bound.
    NoBound,
    /// Whoever says that it knows the secret is believed.
    SkipProof,
    /// A peer that was expected to restart is believed to go on, though it answers a ping from before that.
    BelieveOldPongs,
    /// Credit for a frame of the peer's previous incarnation is given to the present one.
    CountOldCredit,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::SkipLost, Self::NoBound, Self::SkipProof, Self::BelieveOldPongs, Self::CountOldCredit];
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
