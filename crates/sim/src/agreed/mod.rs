//! Simulations of shards with replicas on several nodes: `consensus` decides about their batches, and the program's
//! workers host them. Each client connects to the node that leads its shard.

mod client;
mod network;
mod retained;
mod world;

pub use network::Step;
pub use world::AgreedShards;
