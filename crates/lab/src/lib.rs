//! A network of many places on one machine. Each host of a `Topology` is a network namespace of its own with one TUN
//! device, and a thread of this process carries its packets to the others with the delay, loss, rate and state of
//! the line between them. Nothing leads out, and nothing stays behind: the namespaces have no names, so the kernel
//! removes them with the last process that is in them. `Lab` is the type to read first; it needs root.

mod chance;
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
