//! What workers and the other nodes of a cluster say to each other.
//!
//! A worker finds other nodes in the index, like connections and shards, and leaves behind what they are to get ([`Outbound`]);
//! whoever joins nodes ([`Peers`]) takes it, and tells workers what comes from there ([`Inbound`]).
//!
//! **Invariant:** a message that comes from another node is for this node's clients only: it goes to no third node.

mod batch;
mod frame;
mod share;
mod wants;

use std::sync::Arc;
use std::time::Instant;

pub use batch::{
    Announce, Copies, Forward, Forwarded, Inbound, Outbound, PeerTicket, PropagatedCopy, SubackLevel,
};
pub use frame::{FrameError, Framed, as_copy, decode};
pub(crate) use frame::{FrameExtras, encode};
pub use share::Members;
pub use wants::Wants;

use crate::node::Node;

/// Another node of the cluster, by the number that this one has given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub u16);

/// Whoever joins this node to the others.
pub trait Peers: Send + Sync {
    /// The node is there, and its workers begin after this. `clock` stands at the node's [`began`](Node::began).
    ///
    /// # Errors
    /// Why the node cannot take its part, for whoever starts it.
    fn connect(&self, node: &Arc<Node>, clock: Instant) -> Result<(), String>;

    /// What a worker has for other nodes, from any thread. Never waits.
    fn submit(&self, outbound: Outbound);

    /// Bytes that were submitted and that nobody has looked at yet: what bounds them is that workers whose clients publish wait.
    fn backlog(&self) -> usize;

    /// There are [`changes`](crate::Routes::take_changes) where there were none.
    fn routes_changed(&self);
}
