//! Whole nodes in virtual time, on disks and a network that fail, with clients that speak MQTT and an oracle that knows what they were
//! promised. One thread, no clock, no socket, no file: a seed says everything.
//!
//! [`Simulation`] is one of them, [`Report`] what it did and compared. `docs/simulator.md` says how to use it.
//!
//! **Invariant:** the same seed does the same. **Invariant:** what decides is the product's code; what is here has no part in it.

#![forbid(unsafe_code)]

mod client;
mod cluster;
mod context;
mod disk;
mod endpoint;
mod hostile;
#[cfg(feature = "trial")]
mod mutation;
mod net;
mod node;
mod oracle;
pub mod packets;
mod plan;
mod quorum;
mod random;
mod report;
mod rules;
mod scene;
mod schedule;
mod simulation;
mod trace;
mod world;

pub use endpoint::Endpoint;
#[cfg(feature = "trial")]
pub use mutation::{Mutation, Trial};
pub use random::Random;
pub use report::{Report, SEEDS_FOR_ALL};
pub use simulation::{Failure, Shape, Simulation};
