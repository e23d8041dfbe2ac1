//! Features of a node beyond the first version, as bits of the handshake. Two nodes use the features that both have.

/// The node reads [`PeerMessage::Brief`](crate::wire::PeerMessage::Brief).
pub const BRIEF: u64 = 1;

/// The node answers questions ([`Question`](crate::Question)).
pub const ANSWERS: u64 = 2;

/// The node reads packed frames (`packing.rs`).
pub const PACKS: u64 = 4;

/// A core reads batches of records in the log of the meta group ([`Command::Records`](crate::meta::Command)).
pub const RECORDS: u64 = 8;

/// A core reads in that log which incarnation of a node is removed ([`Command::Remove`](crate::meta::Command)).
pub const INCARNATIONS: u64 = 16;

/// The node reports the time of its wall clock ([`PeerMessage::AskClock`](crate::wire::PeerMessage::AskClock)).
pub const CLOCKS: u64 = 32;

/// The node relays messages of the meta group between nodes that are not linked
/// ([`MetaMessage::Relay`](crate::meta::MetaMessage::Relay)).
pub const RELAYS: u64 = 64;

/// The node copies its retained messages again on request
/// ([`PeerMessage::RequestCopies`](crate::wire::PeerMessage::RequestCopies)).
pub const COPIES: u64 = 128;

/// The node accepts notices that another process has its name
/// ([`PeerMessage::Namesake`](crate::wire::PeerMessage::Namesake)).
pub const NAMESAKES: u64 = 256;

/// A core reads snapshots of the meta group in parts. Others get them as one sequence of bytes.
pub const SNAPSHOT_PARTS: u64 = 512;

/// The node takes part in the shards of the cluster ([`PeerMessage::Shard`](crate::wire::PeerMessage::Shard) and the
/// kinds after it). A core offers this when its shards have agreements. It also reads their placement in the log of the
/// meta group ([`Command::Placement`](crate::meta::Command)). A replicant offers it when it sends requests to shards.
pub const SHARDS: u64 = 1024;

/// The node has no durable sessions or retained messages of its own with which the shards of a new cluster should
/// begin. A core that offers [`SHARDS`] offers either this or [`OWN_STATE`]. Two nodes know the features that both
/// have. So a core knows what another core offers: the one that it offers itself, or otherwise the other one.
pub const EMPTY_SHARDS: u64 = 2048;

/// The node has such sessions or messages. A core that offers [`SHARDS`] offers either this or [`EMPTY_SHARDS`].
pub const OWN_STATE: u64 = 4096;

/// A core reads Claims that keep ephemeral sessions, in the logs of shards. It offers this with [`SHARDS`].
pub const EPHEMERAL_SESSIONS: u64 = 8192;

/// A core reads Claims with limits for the queue of their session, in the logs of shards. It offers this with
/// [`SHARDS`].
pub const QUEUE_LIMITS: u64 = 16384;

/// The node understands origins of messages: it keeps them from clients. A core that does not may not join once the
/// cores have adopted this, because the logs of shards have origins then.
pub const ORIGINS: u64 = 32768;

/// The node knows routes of linked clusters in the routes of shards, and a core reads subscriptions of linked clusters
/// in the logs of shards. It offers this with [`SHARDS`].
pub const LINKS: u64 = 65536;
/// The node understands queues that refuse messages: a core reads Claims with this rule in the logs of shards, and each
/// node knows the result for the publisher. It offers this with [`SHARDS`].
pub const QUEUE_REFUSALS: u64 = 131_072;

/// The node knows that sessions of linked clusters are members of shared groups. A core reads messages of groups for
/// them in the logs of shards. It offers this with [`SHARDS`].
pub const LINKED_GROUPS: u64 = 524_288;

/// The node takes heartbeats of shards and their answers ([`PeerMessage::Shard`](crate::wire::PeerMessage::Shard)) in
/// the control lane, too. There all groups of a node share one connection, and leave no more frames than needed.
pub const HEARTBEATS: u64 = 1_048_576;

/// Features that a core must have to read that log.
pub const LOG: u64 = RECORDS | INCARNATIONS;

/// Features of that log that this version can read. A core reads those that it offers.
pub const LOG_READABLE: u64 =
    LOG | SHARDS | EPHEMERAL_SESSIONS | QUEUE_LIMITS | ORIGINS | LINKS | QUEUE_REFUSALS | LINKED_GROUPS;

/// Features of this version that a node has with any settings, except [`ORIGINS`].
pub const FEATURES: u64 =
    BRIEF | ANSWERS | PACKS | LOG | CLOCKS | RELAYS | COPIES | NAMESAKES | SNAPSHOT_PARTS | HEARTBEATS;
