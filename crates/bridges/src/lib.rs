//! The bridges of a node: their settings, threads and sockets. The crate `bridge` makes all decisions of a bridge.
//!
//! Read [`Bridges`] first. In a cluster all nodes have the same settings, and a bridge runs on the node that leads the
//! shard of its session.

#![forbid(unsafe_code)]

mod bridges;
mod driver;
mod remote;
mod settings;
mod topics;

pub use bridges::{BridgeView, Bridges};
pub use settings::{BridgeProblem, BridgeSettings, check};
