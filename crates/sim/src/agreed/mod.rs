//! Simulations of shards with replicas on several nodes: `consensus` decides about their batches, and the program's
//! workers host them. Clients connect to any node, also to one without replicas.

mod claims;
mod client;
mod clocks;
mod connections;
mod contenders;
mod ephemeral;
mod faults;
mod leases;
mod links;
mod members;
mod messages;
mod network;
mod placement;
mod retained;
mod settle;
mod world;

pub use network::Step;
pub use world::{AgreedShards, Moves};
