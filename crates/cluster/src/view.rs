//! View of a node's part in the cluster, for operators.

use link::{Class, ClassCounters};

use crate::config::{NodeInfo, Role};
use crate::meta::State;
use crate::router::Counters;

/// View at one moment. Times are in microseconds.
#[derive(Clone, Debug)]
pub struct View {
    pub own: NodeInfo,
    pub incarnation: u64,
    /// Core that this replicant is attached to.
    pub attached: Option<Box<str>>,
    /// True while a majority of cores lets this node acknowledge messages of QoS 1 and 2, or none has to.
    pub is_fresh: bool,
    /// Remaining time of that permission without a renewal; `None` if this node needs none.
    pub fresh_for: Option<u64>,
    /// Cores that let this node acknowledge, without itself, and the remaining times; below, nodes that this core lets
    /// acknowledge.
    pub granted_by: Vec<(Box<str>, u64)>,
    pub grants: Vec<(Box<str>, u64)>,
    /// Time by which this node's clock is ahead of those of most nodes, in milliseconds; `None` while it agrees with
    /// them.
    pub clock_off: Option<i64>,
    pub subacks_waiting: SubacksWaiting,
    pub counters: Counters,
    /// Number of filters and shared groups of other nodes that this node's index has no room for. It acknowledges
    /// nothing while there are any.
    pub unrouted: u64,
    /// Number of incoming connections that were closed because too many handshakes were open.
    pub unauthenticated_closed: u64,
    /// Routes of this node first, then of the others by name.
    pub routes: Vec<Routes>,
    /// Links, by name.
    pub links: Vec<Link>,
    /// Nodes that were met or looked for and are not joined, by address.
    pub not_joined: Vec<NotJoined>,
    pub membership: Membership,
}

/// Number of SUBACKs that wait until others know of the subscription, by level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubacksWaiting {
    pub core: u64,
    pub region: u64,
    pub cluster: u64,
}

/// A node that was met or looked for and is not joined.
#[derive(Clone, Debug)]
pub struct NotJoined {
    /// Address that is dialed, or host that it comes from.
    pub address: Box<str>,
    /// Announced name, proved or not.
    pub name: Option<Box<str>>,
    /// Last problem, with a remedy.
    pub reason: Box<str>,
    /// Time since the last problem, and the number of problems.
    pub since: u64,
    pub count: u64,
}

/// Agreed state of the cluster, as far as this node knows.
#[derive(Clone, Debug)]
pub struct Membership {
    /// True when no majority of cores was reached recently: all fields are as last known.
    pub is_stale: bool,
    /// Id of the cluster; 0 if there is none yet.
    pub founded: u128,
    /// Index of the last change that this node knows.
    pub index: u64,
    /// True if this incarnation of the node is a member.
    pub is_member: bool,
    /// Reason why this node is no member yet, or serves no client as a member.
    pub waits_for: Option<String>,
    /// Members by name, including this node if it belongs to the cluster.
    pub members: Vec<MemberView>,
    /// Replica of the meta group, on a core.
    pub replica: Option<Replica>,
    /// Placement of shards, once there is one.
    pub placement: Option<PlacementView>,
}

/// Placement of shards that the cores have agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementView {
    /// Index of the last change that this node knows.
    pub version: u64,
    /// Number of replicas that each shard should have.
    pub replicas: u64,
    /// Shards by number.
    pub shards: Vec<ShardView>,
    /// Number of replicas that this node has.
    pub own: u64,
}

/// Replicas of one shard: names of nodes, or the number of a node that is no member any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardView {
    pub shard: u16,
    /// Index of the command that began its last change.
    pub epoch: u64,
    /// Node that leads it, as far as this one knows.
    pub leader: Option<Box<str>>,
    pub voters: Vec<Box<str>>,
    /// Node that becomes a voter, and below a node whose replica goes, while the shard is changing.
    pub learner: Option<Box<str>>,
    pub leaving: Option<Box<str>>,
}

#[derive(Clone, Debug)]
pub struct MemberView {
    pub info: NodeInfo,
    pub incarnation: u64,
    pub state: State,
    /// True when it is leaving the cluster.
    pub leaves: bool,
    /// Vote of its replica, and below its leadership, as far as this core knows.
    pub votes: bool,
    pub leads: bool,
}

/// This core's replica of the meta group.
#[derive(Clone, Debug)]
pub struct Replica {
    pub part: consensus::Role,
    pub term: u64,
    /// Node that leads.
    pub leader: Option<Box<str>>,
    /// Core that relays between this node and the leader, if they are not linked.
    pub leader_via: Option<Box<str>>,
    /// Entries in its log, and entries applied to its state.
    pub last: u64,
    pub applied: u64,
    /// True while a majority of the voters was reached recently: a leader gets their answers, any other replica
    /// messages of its leader.
    pub has_quorum: bool,
    pub voters: u64,
    pub learners: u64,
    /// Reason why it has stopped.
    pub failure: Option<String>,
}

/// Routes of one node, as far as this one knows them.
#[derive(Clone, Debug)]
pub struct Routes {
    pub node: Box<str>,
    pub role: Role,
    pub incarnation: u64,
    /// Number of received changes of that incarnation.
    pub position: u64,
    pub filters: u64,
    /// Number of remembered deletions.
    pub tombstones: u64,
    pub bytes: u64,
    /// Hash of all filters and the interest in them: two nodes with the same routes have the same hash.
    pub digest: u64,
    /// True while the node is unreachable.
    pub is_suspect: bool,
}

/// Link to one other node.
#[derive(Clone, Debug)]
pub struct Link {
    pub peer: NodeInfo,
    pub is_up: bool,
    /// True when the cores agree that the unreachable peer is dead.
    pub is_dead: bool,
    /// Time in the present state.
    pub since: u64,
    pub is_dialed: bool,
    /// Connections that carry frames, and the configured number.
    pub connections: (u64, u64),
    pub version: u16,
    pub features: u64,
    /// Round trip in microseconds; `None` while the link is not up.
    pub round_trip: Option<u64>,
    /// Time by which the peer's clock is ahead of this node's, in milliseconds, by its last report.
    pub clock_ahead: Option<i64>,
    /// True when that is too much, and not because this node's clock is wrong.
    pub clock_differs: bool,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Connections that were made; below, those that ended after silence, and times that the peer had forgotten the
    /// link.
    pub attached: u64,
    pub silent: u64,
    pub restarts: u64,
    /// Bytes that were received and are not consumed.
    pub unconsumed: u64,
    /// Number of messages whose publishers wait for the peer.
    pub unconfirmed: u64,
    pub classes: Vec<ClassView>,
    /// Last error, and the time since.
    pub last_error: Option<(u64, Box<str>)>,
}

/// One class of lanes of a link.
#[derive(Clone, Debug)]
pub struct ClassView {
    pub class: Class,
    pub counters: ClassCounters,
    pub waiting_bytes: u64,
    pub waiting_frames: u64,
    pub oldest: u64,
}
