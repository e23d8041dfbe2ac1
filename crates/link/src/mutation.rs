//! Faults put into the product on purpose: the simulator must notice each of them (`cargo xtask sim --mutations`).

mutation::mutations! {
    pub(crate) fn mutated;

    /// Frames that were lost with a connection are not sent again.
    SkipLost,
    /// Frames that wait for a peer have no bound.
    NoBound,
    /// A peer's claim to know the secret is believed without proof.
    SkipProof,
    /// A pong to a ping from before a restart was expected counts as an answer of the running incarnation.
    BelieveOldPongs,
    /// Credit for a frame of the peer's previous incarnation is given to the present one.
    CountOldCredit,
}
