//! Simulation of one consensus group ([`consensus::Group`]). Its replicas have disks with faults and a network with
//! faults. Members change, and an oracle knows the committed log.
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
