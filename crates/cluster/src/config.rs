use std::time::Duration;

use replog::{Batching, Incarnation};

/// What a node of the cluster is, and how it behaves towards the others.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node.
    pub own: NodeInfo,
    /// The others.
    pub others: Vec<NodeInfo>,
    /// Of this life of the node: greater than that of every earlier one.
    pub incarnation: Incarnation,
    /// Milliseconds of the world's clock when the node's own began; [`ClusterRouter::set_wall_clock`](crate::ClusterRouter::set_wall_clock) tells when that was set.
    pub wall_ms: u64,
    /// How changes of routes are gathered.
    pub batching: Batching,
    /// Deletions of routes that are remembered for each node, for readers that are behind.
    pub tombstones_max: usize,
    pub forward_ack: ForwardAck,
    /// How long a SUBACK waits for other nodes, at most.
    pub suback_timeout: Duration,
    /// How long other nodes go on sending messages of QoS 0 for a durable session that is away.
    pub qos0_linger: Duration,
    /// How long a node goes on acknowledging after a majority of cores has last said that it knows all routes.
    pub lease: Duration,
    pub without_quorum: WithoutQuorum,
    /// Frames to nodes of other regions that read packed ones are packed.
    pub packs: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    pub name: Box<str>,
    pub role: Role,
    /// Nodes of one are near each other.
    pub region: Box<str>,
    /// Where its cluster port is, `HOST:PORT`.
    pub address: Box<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Hears from all cores, and tells replicants.
    Core,
    /// Hears from one core.
    Replicant,
}

/// When a publisher's message has crossed to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardAck {
    /// When it has its places there: in the queues of connected clients, and on the disk for durable sessions.
    Received,
    /// When it is on its way there.
    Sent,
}

/// What a node does that reaches no majority of cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutQuorum {
    /// It acknowledges no message of QoS 1 or 2: somebody elsewhere may have subscribed.
    Hold,
    /// It goes on.
    Serve,
}
