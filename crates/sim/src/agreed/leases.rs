//! Leases of the nodes, and the SUBACKs that wait until the nodes know the routes of shards.
//!
//! A simple and strict cluster router: a SUBACK waits until each node whose lease runs has reached its route position.
//! A node gets a lease when it has reached the positions of all SUBACKs that were sent.

use std::collections::BTreeMap;
use std::time::Duration;

use broker::peers::Announce;
use broker::{ConnectionId, ShardId, Ticket, WorkerId};

use crate::schedule::{Micros, SECOND};

/// Duration of a lease.
pub const LEASE: Duration = Duration::from_secs(2);
/// Maximum time for which a SUBACK waits.
const WAIT_MAX: Micros = 20 * SECOND;

pub struct Leases {
    nodes: Vec<Knowledge>,
    /// Greatest position of a SUBACK that was sent, by shard.
    sent: BTreeMap<ShardId, u64>,
    waiting: Vec<Waiting>,
}

/// State of a node in its present run.
#[derive(Default)]
struct Knowledge {
    positions: BTreeMap<ShardId, u64>,
    lease_until: Micros,
    /// The incarnation is about to be declared dead: it gets no lease any more.
    is_condemned: bool,
}

struct Waiting {
    since: Micros,
    node: usize,
    worker: WorkerId,
    announce: Announce,
}

/// A SUBACK or CONNACK that does not wait any more.
pub struct Released {
    pub node: usize,
    pub worker: WorkerId,
    pub connection: ConnectionId,
    pub ticket: Ticket,
    /// False if the time is over.
    pub is_known: bool,
}

impl Leases {
    pub fn new(nodes: usize) -> Self {
        let nodes = (0..nodes).map(|_| Knowledge::default()).collect();
        Self { nodes, sent: BTreeMap::new(), waiting: Vec::new() }
    }

    /// Begins a run of a node, which knows nothing and has no lease.
    pub fn start(&mut self, node: usize) {
        self.nodes[node] = Knowledge::default();
    }

    /// Ends a run of a node.
    pub fn end(&mut self, node: usize) {
        self.nodes[node] = Knowledge::default();
        self.waiting.retain(|waiting| waiting.node != node);
    }

    /// Notes route positions that a node has reached.
    pub fn reached(&mut self, node: usize, positions: &[(ShardId, u64)]) {
        for (shard, position) in positions {
            let known = self.nodes[node].positions.entry(*shard).or_default();
            assert!(position > known, "{shard:?}: {position} of node {node} is not greater than {known}");
            *known = *position;
        }
    }

    pub fn announce(&mut self, now: Micros, node: usize, worker: WorkerId, announce: Announce) {
        if let Some((shard, position)) = announce.shard {
            let has_reached = self.nodes[node].knows(shard, position);
            assert!(has_reached, "node {node} has not reached {position} of {shard:?}");
        }
        self.waiting.push(Waiting { since: now, node, worker, announce });
    }

    /// Grants a node no more leases, until [`Self::pardon`]. Returns the time when its last one is over: only then may
    /// the others declare it dead.
    pub fn condemn(&mut self, node: usize) -> Micros {
        self.nodes[node].is_condemned = true;
        self.nodes[node].lease_until
    }

    /// Notes that a node goes on in another incarnation.
    pub fn pardon(&mut self, node: usize) {
        self.nodes[node].is_condemned = false;
    }

    /// Returns whether the incarnation of a node is about to be declared dead, or goes on in another one soon.
    pub fn is_condemned(&self, node: usize) -> bool {
        self.nodes[node].is_condemned
    }

    /// Returns whether the lease of a node runs.
    pub fn is_held(&self, now: Micros, node: usize) -> bool {
        now < self.nodes[node].lease_until
    }

    /// Returns whether a node may have a lease.
    pub fn may_grant(&self, node: usize) -> bool {
        !self.nodes[node].is_condemned && self.lacking(node).next().is_none()
    }

    /// Positions of SUBACKs that were sent, which a node has not reached.
    pub fn lacking(&self, node: usize) -> impl Iterator<Item = (ShardId, u64)> {
        let sent = self.sent.iter().map(|(shard, position)| (*shard, *position));
        sent.filter(move |(shard, position)| !self.nodes[node].knows(*shard, *position))
    }

    pub fn grant(&mut self, node: usize, until: Micros) {
        self.nodes[node].lease_until = until;
    }

    /// Takes the SUBACKs that need not wait any more.
    pub fn release(&mut self, now: Micros) -> Vec<Released> {
        let Self { nodes, sent, waiting } = self;
        let mut released = Vec::new();
        waiting.retain(|Waiting { since, node, worker, announce }| {
            let Announce { connection, ticket, shard, .. } = *announce;
            let Some((shard, position)) = shard else {
                // Other nodes have no publishers for the subscriptions of ephemeral sessions.
                released.push(Released { node: *node, worker: *worker, connection, ticket, is_known: true });
                return false;
            };
            let is_known = nodes.iter().all(|node| node.lease_until <= now || node.knows(shard, position));
            let is_over = since + WAIT_MAX <= now;
            if is_known {
                let sent = sent.entry(shard).or_default();
                *sent = position.max(*sent);
            }
            if is_known || is_over {
                released.push(Released { node: *node, worker: *worker, connection, ticket, is_known });
            }
            !is_known && !is_over
        });
        released
    }
}

impl Knowledge {
    fn knows(&self, shard: ShardId, position: u64) -> bool {
        self.positions.get(&shard).copied().unwrap_or(0) >= position
    }
}
