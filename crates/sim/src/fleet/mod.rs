//! Several nodes: cores and replicants with a [`cluster::Fabric`] each, a network between them that fails in its own ways, clients that
//! connect anywhere, and an oracle that knows what crosses from node to node.
//!
//! [`Fleet`] is one simulation of it. Nodes, clients' connections, time and chance are those of single nodes.

mod client;
mod faults;
mod hostile;
mod member;
mod operators;
mod oracle;
mod outgoing;
mod plan;
#[cfg(any(test, feature = "trial"))]
mod scenarios;
mod settle;
mod step;
mod stranger;
mod wan;
mod world;

#[cfg(feature = "trial")]
pub use scenarios::TRIALS;
pub use step::Step;
pub use world::Fleet;
