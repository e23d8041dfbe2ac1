//! `meridian bench agent`: a process, on this machine or another, that takes its share of somebody else's run. `sealed` is
//! the connection, `server` waits for controllers, `client` is the controller's end.
//!
//! **Invariant:** beyond loopback, nobody without the secret makes an agent do anything.

mod client;
mod sealed;
mod secret;
mod server;

pub use client::{Agents, connect};
pub use server::{Options, run as serve};
