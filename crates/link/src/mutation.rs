//! Faults put into the product on purpose: the simulator must notice each of them (`cargo xtask sim --mutations`).

#[cfg(feature = "trial")]
use std::sync::atomic::{AtomicU8, Ordering};

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

/// Puts one in, for the whole process.
#[cfg(feature = "trial")]
pub fn mutate(mutation: Option<Mutation>) {
    CURRENT.store(mutation.map_or(0, |mutation| mutation as u8), Ordering::SeqCst);
}

/// Whether this one is put in.
#[cfg(feature = "trial")]
pub(crate) fn mutated(mutation: Mutation) -> bool {
    CURRENT.load(Ordering::Relaxed) == mutation as u8
}

/// Never in a product build.
#[cfg(not(feature = "trial"))]
#[inline(always)]
pub(crate) const fn mutated(_: Mutation) -> bool {
    false
}
