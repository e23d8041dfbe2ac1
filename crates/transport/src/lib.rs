//! Transport of a node's links over TCP and TLS: one thread that owns the sockets, and a [`Handler`] that owns a
//! [`link::Mesh`].
//!
//! [`spawn`] starts it; `Transport` in `transport.rs` is the loop to read. Other threads send it commands through a
//! [`Sender`].
//!
//! **Invariant:** the thread blocks only in its poll, and no frame passes a lock. A connection that would block keeps
//! no more than one call of [`link::Mesh::output`] returned.

#![forbid(unsafe_code)]

mod address_rotation;
mod config;
mod figures;
mod handle;
mod listener;
mod log_limiter;
mod mailbox;
mod net;
mod resolver;
mod secure;
mod socket;
mod transport;

use link::{Mesh, Time};

pub use config::TransportConfig;
pub use figures::Figures;
pub use handle::{Handle, spawn};
pub use mailbox::Sender;
pub use secure::{Names, Tls, TlsFiles};

/// Owner of the links whose bytes are carried. All calls come from one thread.
pub trait Handler: Send {
    /// Command that other threads send it.
    type Command: Send;

    fn handle_command(&mut self, now: Time, command: Self::Command);

    fn mesh(&mut self) -> &mut Mesh;

    /// Handles the mesh's events and due work. Called once in every turn, after its commands, bytes and the mesh's
    /// time-outs. Its output leaves in this turn.
    fn turn(&mut self, now: Time);

    /// Returns the time at which [`Self::turn`] is due, apart from the mesh's own time-outs. [`Time::NEVER`] when
    /// nothing is.
    fn timeout(&self) -> Time;
}
