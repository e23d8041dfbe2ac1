//! Several nodes act as one broker: what each tells the others of its clients' subscriptions, and the messages that cross from one to
//! another. No I/O, clocks or threads.
//!
//! Read [`Fabric`] first: one for a node, between its workers ([`broker::peers`]) and its links ([`link::Mesh`]).
//!
//! **Invariant:** a node writes its own routes only, so no two nodes' changes conflict. **Invariant:** nothing of one peer waits for another
//! peer, and what waits for a peer has a bound.

#![forbid(unsafe_code)]

mod asks;
mod behind;
mod clocks;
mod config;
mod confirms;
mod fabric;
mod features;
mod freshness;
mod interest;
pub mod meta;
mod mutation;
mod packing;
mod peer;
mod subacks;
mod view;
mod wire;
mod withdrawals;

pub use asks::{ANSWER_MAX, Asked, Asker, QUESTION_MAX, Question, Unanswered};
pub use config::{Config, ForwardAck, NodeInfo, Role, WithoutQuorum};
pub use fabric::{Counters, Fabric, Letter};
pub use features::{CLOCKS, COPIES, FEATURES, LIVES, LOG, PACKS, RECORDS, RELAYS};
pub use mutation::Mutation;
#[cfg(feature = "trial")]
pub use mutation::{mutate, reached};
pub use view::{ClassView, Link, MemberView, Membership, NotJoined, Replica, Routes, SubacksWaiting, View};
