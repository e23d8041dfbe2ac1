//! Faults put into the product on purpose: the simulator must notice each of them (`cargo xtask sim --mutations`).

#[cfg(feature = "trial")]
use std::sync::atomic::{AtomicU8, Ordering};

/// One way of doing it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mutation {
    /// A publisher is answered before the other node has its message.
    ConfirmEarly = 1,
    /// SUBACK leaves before cores have said that others know.
    SubackEarly,
    /// A node acknowledges without a lease.
    AlwaysFresh,
    /// A peer that has begun anew is not asked for its routes again.
    ForgetHello,
    /// A message of another node goes on to further ones.
    Relay,
    /// What is for one member of a group goes to its node twice.
    GiveTwice,
    /// Nodes that meet do not tell each other what they have retained.
    ForgetCopies,
    /// A peer is told briefly, whether it can read that or not.
    AlwaysBrief,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::ConfirmEarly,
        Self::SubackEarly,
        Self::AlwaysFresh,
        Self::ForgetHello,
        Self::Relay,
        Self::GiveTwice,
        Self::ForgetCopies,
        Self::AlwaysBrief,
    ];
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
