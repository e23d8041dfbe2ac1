//! Sockets and threads of a node: one reactor for each CPU, with its own connections, listeners and worker of the
//! broker.
//!
//! [`start`] makes a [`Node`]; [`Reactor`] is the loop to read first. **Invariant:** a connection never leaves its
//! reactor, one thread at a time runs a reactor, and it blocks only in its poll.

mod connection_counts;
mod door;
mod layer;
mod listener;
mod listener_layers;
mod mailbox;
mod node;
mod reactor;
mod reactor_threads;
pub mod settings;
mod stream;

pub use door::Door;
pub use listener_layers::{ListenerLayersError, check};
pub use node::{Bound, Certificates, Node, Options, Renewed, StartError, Stopped, start};
pub use reactor::Reactor;
