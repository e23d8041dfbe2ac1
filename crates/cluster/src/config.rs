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
    pub leaders: LeaderPolicy,
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
    /// Like [`Self::Hold`], and clients are neither read nor written to.
    Freeze,
    /// Continue to acknowledge.
    Serve,
}

/// Cores that should lead shards. All cores have the same policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LeaderPolicy {
    /// Each core leads as many shards as the others.
    #[default]
    Spread,
    /// Cores of this region lead, as many shards each, while the shard has a replica there.
    Region(Box<str>),
    /// Each shard is led in the region from which most of its clients connect, if it has a replica there.
    Follow,
}

/// Number of replicas of each shard. A shard serves while a majority of its replicas is there. So an even number bears
/// no more losses than the odd number below it: choose an odd one. A cluster with fewer cores has a replica on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Replicas(u8);

impl Replicas {
    pub const MIN: u8 = 1;
    pub const MAX: u8 = 7;

    /// Returns `None` for a number outside of `MIN..=MAX`.
    pub fn new(replicas: u8) -> Option<Self> {
        (Self::MIN..=Self::MAX).contains(&replicas).then_some(Self(replicas))
    }

    pub fn get(self) -> u8 {
        self.0
    }
}

impl Default for Replicas {
    fn default() -> Self {
        Self(3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_has_one_to_seven_replicas() {
        let numbers: Vec<u8> = (0..=255).filter(|number| Replicas::new(*number).is_some()).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(Replicas::new(3), Some(Replicas::default()));
    }
}
