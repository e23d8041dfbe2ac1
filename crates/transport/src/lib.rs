//! The bytes of a node's links, over TCP and TLS: one thread that owns the sockets, and a [`Handler`] that owns a [`link::Mesh`].
//!
//! [`spawn`] starts it; `Transport` in `transport.rs` is the loop to read. Other threads hand it letters through a [`Sender`].
//!
//! **Invariant:** the thread never blocks but in its poll, and no frame passes a lock. A connection that would block keeps no more than what
//! one call of [`link::Mesh::output`] gave it.

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

/// What owns the links whose bytes are carried. All calls come from one thread.
pub trait Handler: Send {
    /// What other threads hand it.
    type Command: Send;

    fn handle_command(&mut self, now: Time, command: Self::Command);

    fn mesh(&mut self) -> &mut Mesh;

    /// Called once in every turn, after its letters, bytes and the time-outs of the mesh: for the mesh's events and what is due. What it
    /// sends leaves in this turn.
    fn turn(&mut self, now: Time);

    /// When [`Self::turn`] is due, besides the mesh's own time-outs. [`Time::NEVER`] when nothing is.
    fn timeout(&self) -> Time;
}
