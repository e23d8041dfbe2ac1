//! Emulated network of many sites on one machine.
//!
//! Each host of a `Topology` is a separate network namespace with one TUN device. A thread of this process carries
//! its packets to the others with the delay, loss, rate and state of the line between them. No route leads out.
//! Nothing stays behind: the namespaces have no names, so the kernel removes them with the last process in them.
//! `Lab` is the type to read first; it needs root.

mod error;
mod forwarder;
mod lab;
mod line;
mod namespace;
mod network;
mod quantity;
mod topology;

pub use error::LabError;
pub use lab::Lab;
pub use line::{Line, Outcome, Parameters, State};
pub use network::{Counters, Network};
pub use topology::{Host, Topology};
