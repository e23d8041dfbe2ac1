//! Messages between the workers of this node and the other nodes of a cluster.
//!
//! A worker finds other nodes in the index, like connections and shards, and queues messages for them ([`Outbound`]).
//! The cluster's implementation of [`Peers`] sends these, and passes what other nodes send to workers ([`Inbound`]).
//!
//! **Invariant:** a message of another node is for this node's clients only: it is forwarded to no third node.

mod batch;
mod frame;
mod incarnations;
mod share;
mod wants;

use std::sync::Arc;
use std::time::Duration;

use boottime::Instant;

pub use batch::{
    Announce, Copies, Forward, Forwarded, Inbound, Leader, Outbound, PeerTicket, Port, PropagatedCopy,
    ShardFrame, SubackLevel,
};
pub use frame::{FrameError, Framed, as_copy, decode};
pub(crate) use frame::{FrameExtras, encode};
pub use incarnations::{IncarnationState, LastIncarnation, MemberIncarnations};
pub use shard::NodeIncarnation;
pub use share::Members;
pub use wants::Wants;

use crate::node::Node;

/// Another node of the cluster, by the number that this node has given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub u16);

/// Interface to the part that connects this node with the others.
pub trait Peers: Send + Sync {
    /// Starts the connection with the cluster. The node exists, and its workers start after this call. `clock` stands
    /// at the node's [`began`](Node::began).
    ///
    /// # Errors
    /// The reason why the node cannot join, for the operator that starts it.
    fn connect(&self, node: &Arc<Node>, clock: Instant) -> Result<(), String>;

    /// Accepts the output of a worker for other nodes, from any thread. Never waits.
    fn submit(&self, outbound: Outbound);

    /// Number of submitted bytes that were not handled yet. They are bounded because workers whose clients publish
    /// wait.
    fn backlog(&self) -> usize;

    /// Notifies that there are [`changes`](crate::Routes::take_changes) where there were none.
    fn routes_changed(&self);

    /// Maximum time for which a CONNACK or SUBACK waits until nodes know the subscriptions.
    fn suback_timeout(&self) -> Duration;
}
