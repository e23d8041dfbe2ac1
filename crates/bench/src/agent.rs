//! `meridian bench agent`: a process, on this machine or another, that runs a share of another process's run.
//! `sealed` is the connection, `server` waits for controllers, `client` is the controller's end.
//!
//! **Invariant:** beyond loopback, an agent only works for controllers that know its secret.

mod client;
mod sealed;
mod secret;
mod server;

pub use client::{Agents, connect};
pub use server::{Options, run as serve};
