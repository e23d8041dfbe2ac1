//! Several nodes: cores and replicants with a [`cluster::ClusterRouter`] each, a network between them that fails in its own ways, clients that
//! connect anywhere, and an oracle that knows what crosses from node to node.
//!
//! [`SimCluster`] is one simulation of it. Nodes, clients' connections, time and chance are those of single nodes.

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
mod step;
mod unauthenticated;
mod wan;
mod world;

#[cfg(feature = "trial")]
pub use scenarios::TRIALS;
pub use step::Step;
pub use world::SimCluster;
