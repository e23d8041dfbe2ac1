//! Faults put into the product on purpose: the simulator must notice each of them (`cargo xtask sim --mutations`).

#[cfg(feature = "trial")]
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mutation {
    /// Frames that were lost with a connection are not sent again.
    SkipLost = 1,
    /// Frames that wait for a peer have no bound.
    NoBound,
    /// A peer's claim to know the secret is believed without proof.
    SkipProof,
    /// A pong to a ping from before a restart was expected counts as an answer of the running incarnation.
    BelieveOldPongs,
    /// Credit for a frame of the peer's previous incarnation is given to the present one.
    CountOldCredit,
}

impl Mutation {
    /// All faults.
    pub const ALL: [Self; 5] =
        [Self::SkipLost, Self::NoBound, Self::SkipProof, Self::BelieveOldPongs, Self::CountOldCredit];
}

/// Fault that is active, or 0.
#[cfg(feature = "trial")]
static CURRENT: AtomicU8 = AtomicU8::new(0);

/// Number of times that the code of each fault was reached, by its number.
#[cfg(feature = "trial")]
static REACHED: [AtomicU64; Mutation::ALL.len() + 1] = [const { AtomicU64::new(0) }; _];

/// Activates a fault for the whole process.
#[cfg(feature = "trial")]
pub fn mutate(mutation: Option<Mutation>) {
    CURRENT.store(mutation.map_or(0, |mutation| mutation as u8), Ordering::SeqCst);
}

/// Returns how often the process has reached the code of this fault.
#[cfg(feature = "trial")]
pub fn reached(mutation: Mutation) -> u64 {
    REACHED[mutation as usize].load(Ordering::Relaxed)
}

/// Returns whether this fault is active.
#[cfg(feature = "trial")]
pub(crate) fn mutated(mutation: Mutation) -> bool {
    REACHED[mutation as usize].fetch_add(1, Ordering::Relaxed);
    CURRENT.load(Ordering::Relaxed) == mutation as u8
}

/// Returns false: product builds have no faults.
#[cfg(not(feature = "trial"))]
#[inline(always)]
pub(crate) const fn mutated(_: Mutation) -> bool {
    false
}
