use bytes::Bytes;

use crate::link::Event;
use crate::node::NodeId;

/// One of a mesh's connections, of all that there were so far: never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(super) u64);

impl ConnectionId {
    /// For those who keep connections under a number.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// What a mesh wants of whoever carries its bytes, in order.
#[derive(Debug, PartialEq, Eq)]
pub enum Demand {
    /// A connection is to be made: [`Mesh::dialed`](crate::Mesh::dialed) or [`Mesh::closed`](crate::Mesh::closed) answers.
    Dial { connection: ConnectionId, peer: NodeId, address: Box<str> },
    /// A connection is to be closed once `last` was written, or cannot be. The mesh has forgotten it.
    Close { connection: ConnectionId, last: Bytes, reason: Box<str> },
}

/// What happened to a mesh, in order.
#[derive(Debug, PartialEq, Eq)]
pub enum MeshEvent {
    /// Something happened to the link to a peer. [`Event::Silent`] does not come: its connection is closed instead.
    Link { peer: NodeId, event: Event },
    /// For the log: somebody was refused or cannot be joined. `who` is the name of a peer, or the address of somebody who is none;
    /// `reason` says what to do. The same comes again after a while only; `unsaid` is how often it happened in between.
    Refused { who: Box<str>, reason: Box<str>, unsaid: u64 },
}
