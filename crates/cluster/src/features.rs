//! What a node can do beyond the first version, as bits of the handshake: two nodes do with each other what both can.

/// The node reads [`PeerMessage::Brief`](crate::wire::PeerMessage::Brief).
pub const BRIEF: u64 = 1;

/// The node answers questions ([`Question`](crate::Question)).
pub const ANSWERS: u64 = 2;

/// The node reads packed frames (`packing.rs`).
pub const PACKS: u64 = 4;

/// A core reads batches of records in the log of the meta group ([`Command::Records`](crate::meta::Command)).
pub const RECORDS: u64 = 8;

/// A core reads in that log which life of a node is removed ([`Command::Remove`](crate::meta::Command)).
pub const INCARNATIONS: u64 = 16;

/// The node says what its clock of the world says ([`PeerMessage::AskClock`](crate::wire::PeerMessage::AskClock)).
pub const CLOCKS: u64 = 32;

/// The node hands on what nodes that are not linked say to agree ([`MetaMessage::Relay`](crate::meta::MetaMessage::Relay)).
pub const RELAYS: u64 = 64;

/// The node copies what is retained again ([`PeerMessage::RequestCopies`](crate::wire::PeerMessage::RequestCopies)).
pub const COPIES: u64 = 128;

/// The node hears that another process goes by its name ([`PeerMessage::Namesake`](crate::wire::PeerMessage::Namesake)).
pub const NAMESAKES: u64 = 256;

/// What a core has to understand of that log.
pub const LOG: u64 = RECORDS | INCARNATIONS;

/// All that this version can.
pub const FEATURES: u64 = BRIEF | ANSWERS | PACKS | LOG | CLOCKS | RELAYS | COPIES | NAMESAKES;
