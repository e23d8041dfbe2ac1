//! Replicas of one group that agree on a log ([`consensus::Group`]): each on a disk that fails, with a network between them that fails in its
//! own ways, members that come and go, and an oracle that knows what was agreed upon.
//!
//! [`Quorum`] is one simulation of it.

mod faults;
mod neighbour;
mod oracle;
mod proposal_log;
mod replica;
mod settle;
mod world;

pub use world::{Quorum, Step};
