use std::net::IpAddr;

use bytes::Bytes;

use crate::link::Event;
use crate::node::NodeId;

/// Id of one of a mesh's connections, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(super) u64);

impl ConnectionId {
    /// Returns the id as a number, as a key for connections.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Request of a mesh to the transport, in order.
#[derive(Debug, PartialEq, Eq)]
pub enum Demand {
    /// Make a connection: [`Mesh::dialed`](crate::Mesh::dialed) or [`Mesh::closed`](crate::Mesh::closed) answers. A
    /// discovery address has no `peer`, and all addresses of its host name are tried in turn.
    Dial { connection: ConnectionId, peer: Option<NodeId>, address: Box<str> },
    /// Close a connection once `last` was written, or cannot be. The mesh has forgotten it.
    Close { connection: ConnectionId, last: Bytes, reason: Box<str> },
}

/// Event of a mesh, in order.
#[derive(Debug, PartialEq, Eq)]
pub enum MeshEvent {
    /// Event of the link to a peer. [`Event::Silent`] is not reported: its connection is closed instead.
    Link { peer: NodeId, event: Event },
    /// A node that knows the secret announces who it is. It may be a peer, unknown, or this node. `descriptor` is its
    /// [`Identity::descriptor`](crate::Identity::descriptor). `address` is the discovery address at which it was found,
    /// `None` when it has dialed this node. At most 256 wait; then the oldest is dropped.
    Introduced { name: Box<str>, descriptor: Bytes, address: Option<Box<str>> },
    /// A node was refused or cannot be joined. `address` is the dialed address, or the host that the node comes from.
    /// `name` is that of a peer, or the announced one, proved or not. `reason` says what to do. `suppressed` is `None`
    /// when the same was reported recently and the event is not to be logged. Otherwise it is the number of reports
    /// that were suppressed since the last one. `is_transient`: no action is needed.
    Refused {
        address: Box<str>,
        name: Option<Box<str>>,
        reason: Box<str>,
        suppressed: Option<u64>,
        is_transient: bool,
    },
    /// All slots for incoming handshakes, or all of one address, are taken, most of them by `address` or its network.
    /// For the log; it is repeated at intervals only. `closed` is the number of connections closed for it since the
    /// last report, this one included.
    UnauthenticatedLimit { address: IpAddr, closed: u64 },
}
