//! What a node can do beyond the first version, as bits of the handshake: two nodes do with each other what both can.

/// The node reads [`Word::Brief`](crate::wire::Word::Brief).
pub const BRIEF: u64 = 1;

/// The node answers questions ([`Question`](crate::Question)).
pub const ANSWERS: u64 = 2;

/// The node reads packed frames (`packing.rs`).
pub const PACKS: u64 = 4;

/// All that this version can.
pub const FEATURES: u64 = BRIEF | ANSWERS | PACKS;
