//! The bytes of a node's links, over TCP and TLS: one thread that owns the sockets, and a [`Core`] that owns a [`link::Mesh`].
//!
//! [`spawn`] starts it; `Carrier` in `carrier.rs` is the loop to read. Other threads hand it letters through a [`Sender`].
//!
//! **Invariant:** the thread never blocks but in its poll, and no frame passes a lock. A connection that would block keeps no more than what
//! one call of [`link::Mesh::output`] gave it.

#![forbid(unsafe_code)]

mod carrier;
mod complaint;
mod config;
mod figures;
mod handle;
mod listener;
mod mailbox;
mod net;
mod resolver;
mod secure;
mod socket;
mod turns;

use link::{Mesh, Time};

pub use config::CarrierConfig;
pub use figures::Figures;
pub use handle::{Handle, spawn};
pub use mailbox::Sender;
pub use secure::{Names, Tls, TlsFiles};

/// What owns the links whose bytes are carried. All calls come from one thread.
pub trait Core: Send {
    /// What other threads hand it.
    type Letter: Send;

    fn letter(&mut self, now: Time, letter: Self::Letter);

    fn mesh(&mut self) -> &mut Mesh;

    /// Called once in every turn, after its letters, bytes and the time-outs of the mesh: for the mesh's events and what is due. What it
    /// sends leaves in this turn.
    fn turn(&mut self, now: Time);

    /// When [`Self::turn`] is due, besides the mesh's own time-outs. [`Time::NEVER`] when nothing is.
    fn timeout(&self) -> Time;
}
