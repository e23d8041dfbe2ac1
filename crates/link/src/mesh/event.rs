use std::net::IpAddr;

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
    /// Without a `peer` for a sought address, of whose name every address is to be tried in turn.
    Dial { connection: ConnectionId, peer: Option<NodeId>, address: Box<str> },
    /// A connection is to be closed once `last` was written, or cannot be. The mesh has forgotten it.
    Close { connection: ConnectionId, last: Bytes, reason: Box<str> },
}

/// What happened to a mesh, in order.
#[derive(Debug, PartialEq, Eq)]
pub enum MeshEvent {
    /// Something happened to the link to a peer. [`Event::Silent`] does not come: its connection is closed instead.
    Link { peer: NodeId, event: Event },
    /// A node that knows the secret says who it is, be it a peer, unknown, or this one. `descriptor` is its
    /// [`Identity::descriptor`](crate::Identity::descriptor); `address` the sought one at which it was found, `None` when it has found this node.
    /// At most 256 wait: then the oldest gives way.
    Introduced { name: Box<str>, descriptor: Bytes, address: Option<Box<str>> },
    /// Somebody was refused or cannot be joined. `address` is where it is dialed, or the host that it comes from; `name` that of a peer, or
    /// what somebody says, proved or not; `reason` says what to do. `suppressed` is `None` when the same was said a while ago, and else how often it was
    /// not said since then: the log has it then. `is_transient`: nobody has to do anything.
    Refused {
        address: Box<str>,
        name: Option<Box<str>>,
        reason: Box<str>,
        suppressed: Option<u64>,
        is_transient: bool,
    },
    /// For the log: all places for handshakes of others, or all of one address, are taken, most of them by `address` or its network. It
    /// comes again after a while only; `closed` is how many connections were closed for it since the last time, this one included.
    UnauthenticatedLimit { address: IpAddr, closed: u64 },
}
