use std::time::Duration;

use replog::{Batching, Incarnation};

/// Identity of a node of the cluster, and its behaviour towards the others.
#[derive(Clone, Debug)]
pub struct Config {
    /// Descriptor of this node.
    pub own: NodeInfo,
    /// Incarnation of the node: greater than that of every earlier one.
    pub incarnation: Incarnation,
    /// Wall-clock time at the start of the node's own time, in milliseconds.
    /// [`ClusterRouter::set_wall_clock`](crate::ClusterRouter::set_wall_clock) updates it.
    pub wall_ms: u64,
    /// Parameters for gathering changes of routes.
    pub batching: Batching,
    /// Maximum deletions of routes that are remembered for each node, for readers that are behind.
    pub tombstones_max: usize,
    pub forward_ack: ForwardAck,
    /// Maximum time that a SUBACK waits for other nodes.
    pub suback_timeout: Duration,
    /// Time for which other nodes continue to send messages of QoS 0 for a durable session without a connection.
    pub qos0_linger: Duration,
    /// Time for which a node may acknowledge after a majority of cores has last confirmed that it knows all routes.
    pub lease: Duration,
    pub without_quorum: WithoutQuorum,
    /// True to compress frames to nodes of other regions that can decompress them.
    pub packs: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    pub name: Box<str>,
    pub role: Role,
    /// Region: nodes in the same one are near each other.
    pub region: Box<str>,
    /// Address of its cluster port, `HOST:PORT`.
    pub address: Box<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A core exchanges routes with all cores, and passes them to replicants.
    Core,
    /// A replicant exchanges routes with one core.
    Replicant,
}

/// Time at which a message forwarded to another node counts as delivered there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardAck {
    /// Once it is stored there: in the queues of connected clients, and on disk for durable sessions.
    Received,
    /// Once it is in transit.
    Sent,
}

/// Behaviour of a node that reaches no majority of cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutQuorum {
    /// Acknowledge no message of QoS 1 or 2: a client elsewhere may have subscribed.
    Hold,
    /// Continue to acknowledge.
    Serve,
}
