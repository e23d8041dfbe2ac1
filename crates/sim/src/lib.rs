//! Simulator: whole nodes in virtual time, on disks and a network with faults. Clients speak MQTT, and an oracle knows
//! their guarantees. One thread, no clock, no socket, no file: everything depends on the seed.
//!
//! [`Simulation`] is one run, [`Report`] its counters. `docs/simulator.md` explains how to use it.
//!
//! **Invariant:** the same seed has the same result. **Invariant:** all decisions are those of the product's code, and
//! none of the simulator's.

#![forbid(unsafe_code)]

mod agreed;
mod client;
mod cluster;
mod context;
mod disk;
mod hostile;
mod linearizability;
mod linked;
#[cfg(feature = "trial")]
mod mutation;
mod net;
mod node;
mod oracle;
mod plan;
mod quorum;
mod report;
mod rules;
mod scene;
mod schedule;
mod simulation;
mod trace;
mod world;

#[cfg(feature = "trial")]
pub use mutation::{Mutation, Trial};
pub use report::{Report, SEEDS_FOR_ALL};
pub use simulation::{Failure, Shape, Simulation};
