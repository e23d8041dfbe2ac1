//! Client side of a connection, for the simulator and the tests of the broker: owned packets, and an [`Endpoint`] that
//! sends and checks them.
//!
//! It is a crate below the broker's tests, so that they need neither the simulator nor the crates of a cluster.

#![forbid(unsafe_code)]

mod endpoint;
pub mod packets;

pub use endpoint::Endpoint;
