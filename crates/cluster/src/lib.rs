//! Several nodes that act as one broker: exchange of the subscriptions of their clients, and of messages between nodes.
//! No I/O, clocks or threads.
//!
//! Read [`ClusterRouter`] first: each node has one, between its workers ([`broker::peers`]) and its links
//! ([`link::Mesh`]).
//!
//! **Invariant:** a node writes its own routes only, so no two nodes' changes conflict. **Invariant:** nothing of one
//! peer waits for another peer, and everything that waits for a peer has a bound.

#![forbid(unsafe_code)]

mod backlog;
mod clocks;
mod config;
mod confirmations;
mod features;
mod freshness;
mod inbound;
mod interest;
pub mod meta;
mod mutation;
mod packing;
mod peer;
mod peers;
mod questions;
mod router;
mod shard_positions;
mod subacks;
mod view;
mod wire;
mod withdrawals;

pub use config::{Config, ForwardAck, LeaderPolicy, NodeInfo, Replicas, Role, WithoutQuorum};
pub use features::{
    CLOCKS, COPIES, EMPTY_SHARDS, EPHEMERAL_SESSIONS, FEATURES, INCARNATIONS, LINKED_GROUPS, LINKS, LOG,
    ORIGINS, OWN_STATE, PACKS, QUEUE_LIMITS, QUEUE_REFUSALS, RECORDS, RELAYS, SHARDS,
};
pub use mutation::Mutation;
#[cfg(feature = "trial")]
pub use mutation::{mutate, reached};
pub use questions::{ANSWER_MAX, Asker, QUESTION_MAX, Question, ReceivedQuestion, Unanswered};
pub use router::{ClusterRouter, Counters, RouterCommand};
pub use view::{
    ClassView, Link, MemberView, Membership, NotJoined, PlacementView, Replica, Routes, ShardView,
    SubacksWaiting, View,
};
