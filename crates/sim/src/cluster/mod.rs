//! Several simulated nodes: cores and replicants with a [`cluster::ClusterRouter`] each. A network with faults joins
//! them, clients connect anywhere, and an oracle knows which messages cross from node to node.
//!
//! [`SimCluster`] is one simulation. Nodes, connections of clients, time and randomness are those of single nodes.

mod client;
mod faults;
mod hostile;
mod member;
mod operators;
mod oracle;
mod plan;
mod removal;
#[cfg(any(test, feature = "trial"))]
mod scenarios;
mod settle;
mod shard_groups;
mod shard_routes;
mod step;
mod unauthenticated;
mod wan;
mod world;

#[cfg(feature = "trial")]
pub use scenarios::TRIALS;
pub use step::Step;
pub use world::SimCluster;
