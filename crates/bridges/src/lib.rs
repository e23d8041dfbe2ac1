//! The bridges of a node: their settings, threads and sockets. The crate `bridge` makes all decisions of a bridge.
//!
//! Read [`Bridges`] first. [`Registry`] knows all bridges: those of the configuration file, and those of the
//! configuration store, which it changes. In a cluster all nodes have the same, and a bridge runs on the node that
//! leads the shard of its session. A [`Runner`] is the thread of one relay, for bridges and for others that relay two
//! sessions.

#![forbid(unsafe_code)]

mod bridges;
mod driver;
mod end_session;
mod health;
mod held;
mod leftover;
mod opening;
mod queue;
mod registry;
mod remote;
mod runner;
mod settings;
mod topics;

pub use bridges::{BridgeView, Bridges};
pub use end_session::end_session;
pub use held::Until;
pub use queue::{Queue, QueueWatch};
pub use registry::{BRIDGES_MAX, BridgeKind, Registry};
pub use runner::{Credentials, Run, Runner, RunnerSettings, RunnerView, Ticket};
pub use settings::{BridgeProblem, BridgeSettings, Own, check, leads_here};
