//! Whole nodes in virtual time, on disks and a network that fail, with clients that speak MQTT and an oracle that knows what they were
//! promised. One thread, no clock, no socket, no file: a seed says everything.
//!
//! **Invariant:** the same seed does the same. **Invariant:** what decides is the product's code; what is here has no part in it.

#![forbid(unsafe_code)]

mod endpoint;
pub mod packets;
mod random;

pub use endpoint::Endpoint;
pub use random::Random;
