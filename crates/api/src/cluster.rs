//! Interface between the server and the node's part in a cluster.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
#[cfg(feature = "document")]
use utoipa::ToSchema;

/// The node's part in its cluster.
pub trait Cluster: Send + Sync {
    /// State at the last report of the thread that carries the links; `None` until the node takes its part.
    fn view(&self) -> Option<ClusterView>;

    /// Name of the node with this number, if this node knows it.
    fn node_name(&self, node: u64) -> Option<String>;

    /// Time since that report: less than a second, unless the thread is stuck. Zero where that thread does not run.
    fn silence(&self) -> Duration;

    /// Asks another node. `callback` is called once, from any thread, with the answer or the reason why there is none.
    fn ask(&self, node: &str, question: Vec<u8>, callback: AnswerCallback);

    /// Sets the handler that answers other nodes. Until then, nothing answers them.
    fn set_request_handler(&self, request_handler: Arc<dyn RequestHandler>);

    /// Executes an order that concerns the whole cluster. `callback` is called once, from any thread, with the result.
    /// After an error, the cores may still agree to the order.
    fn order(&self, order: Order, callback: OrderCallback);

    /// Returns whether this node was ordered to leave, and stops for that reason.
    fn is_leaving(&self) -> bool;
}

/// An order of an operator to the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Removes the member of this name, whatever its state, unless it has joined again in another incarnation.
    Remove { node: String, incarnation: u64 },
    /// Makes the core of this name the leader.
    Lead(String),
    /// Spreads the replicants evenly over the cores. It is done when the present replicants are notified.
    Balance,
    /// Connects to other nodes at these addresses, too, until the process ends.
    JoinAt(Vec<String>),
    /// Stops this node and removes it from the members. It is done when the stop has begun. It is refused when the node
    /// already stops for another reason.
    Leave,
}

/// Receives the answer of another node, or the reason why there is none.
pub type AnswerCallback = Box<dyn FnOnce(Result<Vec<u8>, String>) + Send>;

/// Receives the result of an order.
pub type OrderCallback = Box<dyn FnOnce(Result<(), OrderError>) + Send>;

/// Reason why an order was not carried out, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderError {
    /// The order does not fit the present state, and has no effect.
    Refused(String),
    /// No decision came in time: the cores may still agree.
    Unknown(String),
}

impl fmt::Display for OrderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) | Self::Unknown(why) => f.write_str(why),
        }
    }
}

/// Receives the answer for another node. When it is dropped without one, that node learns that there is none.
pub type Reply = Box<dyn FnOnce(Vec<u8>) + Send>;

/// Handler of requests from other nodes.
pub trait RequestHandler: Send + Sync {
    /// Answers the question of the node `from`. Does not wait.
    fn answer(&self, from: &str, question: &[u8], reply: Reply);
}

/// The node's part in its cluster. Counters begin with the process. Nodes, filters and links are shown as this node
/// knows them.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct ClusterView {
    /// Name of this node.
    pub node: String,
    /// `core` or `replicant`.
    pub role: &'static str,
    pub region: String,
    /// Incarnation of this node; greater than that of every earlier run.
    pub incarnation: u64,
    /// Core that this replicant is attached to; null for cores, and while it is attached to none.
    pub attached_to: Option<String>,
    /// True while this node acknowledges messages of QoS 1 and 2: a majority of cores confirms that it knows all
    /// routes, or the node does not ask (`cluster.without_quorum`).
    pub acknowledging: bool,
    /// Remaining time of the lease, in seconds. A majority of cores renews it four times in `cluster.lease`. It is 0
    /// without a lease, and null for a core that needs no other core.
    pub lease_s: Option<f64>,
    /// Cores that grant this node its lease, by name; a core also counts itself.
    pub lease_granted_by: Vec<GrantView>,
    /// Nodes to which this core grants a lease, by name; none on replicants.
    pub leases_granted: Vec<GrantView>,
    /// Offset of this node's clock from those of most nodes, in seconds; less than 0 when this clock is behind. It is
    /// null while they agree to two seconds. Otherwise set the clock of this machine.
    pub clock_offset_s: Option<f64>,
    /// SUBACKs that wait until the core knows of the subscription.
    pub subacks_waiting_core: u64,
    /// SUBACKs that wait until all nodes of the region know of the subscription.
    pub subacks_waiting_region: u64,
    /// SUBACKs that wait until the cluster knows of the subscription.
    pub subacks_waiting_cluster: u64,
    /// SUBACKs for which other nodes did not receive the subscription in time.
    pub subacks_overdue: u64,
    /// Changes of routes applied from other nodes.
    pub routes_applied: u64,
    /// Routes of other nodes that were refused because the tables are full.
    pub routes_refused: u64,
    /// Filters and shared groups of other nodes that this node's index has no room for. While there are any, this node
    /// acknowledges no message of QoS 1 or 2.
    pub routes_unindexed: u64,
    /// Messages of QoS 0 to other nodes that were dropped because a buffer was full.
    pub dropped_qos0: u64,
    /// Messages of QoS 1 and 2 to suspect nodes that were dropped because a buffer was full.
    pub dropped_suspect: u64,
    /// Messages of QoS 1 and 2 that were refused because a buffer was full.
    pub refused: u64,
    /// Frames between workers and shards of other nodes that were dropped because a link was down or a buffer was full.
    /// Their senders repeat them.
    pub shard_frames_refused: u64,
    /// Invalid messages received from peers.
    pub malformed: u64,
    /// Connections to the cluster port that were closed because too many were unauthenticated.
    pub unauthenticated_closed: u64,
    /// Requests of operators sent to other nodes.
    pub requests_sent: u64,
    /// Requests to other nodes that got no answer.
    pub requests_unanswered: u64,
    /// Requests received from other nodes.
    pub requests_received: u64,
    /// Requests of other nodes that were refused because too many waited, or because their answers had no room.
    pub requests_refused: u64,
    /// Bytes of frames to nodes of other regions, before compression.
    pub compressed_before_bytes: u64,
    /// Bytes of frames to nodes of other regions, after compression.
    pub compressed_after_bytes: u64,
    /// Routes of each node: this node first, then the others by name.
    pub routes: Vec<NodeRoutes>,
    /// Links to other nodes, by name.
    pub links: Vec<LinkView>,
    /// Unjoined peers by address: the 32 most recent ones of the last three minutes.
    pub unjoined_peers: Vec<UnjoinedPeerView>,
    pub transport: TransportView,
    pub membership: MembershipView,
    /// Shards of the session store; null when each node has its own (`cluster.replicas` is 0), and until the cores have
    /// placed them.
    pub shards: Option<ShardsView>,
}

/// Shards of the session store, which the cores agree on.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct ShardsView {
    /// Number of replicas that each shard should have.
    pub replicas: u64,
    /// Index of the last change of the placement that this node knows.
    pub index: u64,
    /// Times that this node has transferred the leadership of a shard to the core that should lead it.
    pub transfers: u64,
    /// Transfers that were given up.
    pub transfers_failed: u64,
    /// Shards by number.
    pub items: Vec<ShardView>,
}

/// Replicas of one shard.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct ShardView {
    pub shard: u16,
    /// Core that leads it; null while there is none that this node reaches.
    pub leader: Option<String>,
    /// Cores that have a replica.
    pub replicas: Vec<String>,
    /// Core that gets a replica now.
    pub joining: Option<String>,
    /// Core that loses its replica now.
    pub leaving: Option<String>,
}

/// A node that acknowledges messages by a lease from a core.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct GrantView {
    /// Name of the other node of the lease.
    pub node: String,
    /// Remaining time of the lease in seconds, if it is not renewed.
    pub left_s: f64,
}

/// A peer that was met or searched for, and has not joined.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct UnjoinedPeerView {
    /// Address that this node connects to, HOST:PORT, or the host that the peer connects from.
    pub address: String,
    /// Name that the peer claims, proved or not; null when it has sent none.
    pub name: Option<String>,
    /// The last fault, and the action that ends it.
    pub reason: String,
    /// Time since the last fault, in seconds.
    pub last_s: f64,
    /// Number of faults.
    pub count: u64,
}

/// State that the cores of a cluster agree on, as far as this node knows.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct MembershipView {
    /// True while this node has received nothing from a majority of cores recently: members and leader are as it knew
    /// them last.
    pub stale: bool,
    /// Identifier of the cluster, in hexadecimal; null while there is none yet.
    pub cluster_uid: Option<String>,
    /// Index of the last change that this node knows. Two nodes with the same index know the same members.
    pub index: u64,
    /// True if this node is a member since its last start.
    pub joined: bool,
    /// Reason why this node is no member yet, or serves no client as a member. Otherwise null.
    pub waits_for: Option<String>,
    /// Members by name, including this node once it is a member.
    pub members: Vec<MemberView>,
    /// Raft state of this core; null on replicants.
    pub replica: Option<ReplicaView>,
}

impl MembershipView {
    /// Describes a node that [waits](Self::waits_for) for something.
    pub(crate) fn describe_waiting(&self) -> &'static str {
        if self.joined { "a member that serves no client" } else { "no member yet" }
    }
}

/// One node of the cluster.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct MemberView {
    pub node: String,
    /// `core` or `replicant`.
    pub role: &'static str,
    pub region: String,
    /// Address at which other nodes reach it.
    pub address: String,
    /// Incarnation that has joined.
    pub incarnation: u64,
    /// `alive`, `leaving` (it has stopped, and gives up its vote), `suspect` (no core reaches it) or `dead` (the cores
    /// agree that this incarnation has ended).
    pub state: &'static str,
    /// True when the node has a vote in the meta group. Known to cores; false on replicants.
    pub votes: bool,
    /// True when the node is the leader of the cores, as far as this node knows. Known to cores; false on replicants.
    pub leads: bool,
}

/// Raft state of a core in the meta group.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct ReplicaView {
    /// `leader`, `follower`, `candidate`, `learner` (without a vote) or `stopped`.
    pub raft_state: &'static str,
    /// Term of the election: greater than that of every earlier leader.
    pub term: u64,
    /// Leader; null while none is known.
    pub leader: Option<String>,
    /// Core that relays between this core and the leader while the two do not reach each other; null otherwise.
    pub leader_via: Option<String>,
    /// Index of the last entry of the Raft log.
    pub last_index: u64,
    /// Index of the last entry that is applied to the state.
    pub applied_index: u64,
    /// True while the core has recent contact with a majority of the voters: a leader receives their answers, the
    /// others receive the leader.
    pub quorum: bool,
    pub voters: u64,
    pub learners: u64,
    /// Reason why the replica has stopped.
    pub failure: Option<String>,
}

/// Routes of the clients of one node.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct NodeRoutes {
    pub node: String,
    pub role: &'static str,
    pub incarnation: u64,
    /// Number of changes received in this incarnation.
    pub position: u64,
    pub filters: u64,
    /// Deletions that are remembered for nodes that lack them.
    pub tombstones: u64,
    /// Bytes of all filters.
    pub bytes: u64,
    /// Hash of all filters and their destinations, in hexadecimal: two nodes that know the same routes have the same
    /// hash.
    pub digest: String,
    /// True while the node is silent. Its routes are kept.
    pub suspect: bool,
}

/// Link to one other node.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct LinkView {
    pub node: String,
    pub address: String,
    pub role: &'static str,
    pub region: String,
    /// `up`, `suspect` (the other node is silent), or `dead` (it is silent, and the cores declared it dead).
    pub state: &'static str,
    /// Seconds since the state changed.
    pub state_s: f64,
    /// True when this node opens the connections to the other one.
    pub dials: bool,
    /// Connections that carry frames.
    pub connections: u64,
    pub connections_wanted: u64,
    /// Version of the protocol between nodes; 0 before the first connection.
    pub version: u16,
    /// Features that both nodes have, as bits.
    pub features: u64,
    /// Round-trip time in milliseconds; null while the link is not up.
    pub round_trip_ms: Option<f64>,
    /// Offset of the other node's clock from this node's in seconds, as reported within about the last minute; less
    /// than 0 when the other clock is behind; null while unknown.
    pub clock_ahead_s: Option<f64>,
    /// True when the offset is more than two seconds and this node's clock is not the wrong one (`clock_offset_s`).
    pub clock_differs: bool,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Connections that were made.
    pub connected: u64,
    /// Connections that were silent for too long.
    pub timeouts: u64,
    /// Times that the other node restarted.
    pub restarts: u64,
    /// Bytes received and not yet processed.
    pub unconsumed_bytes: u64,
    /// Messages whose publishers wait for the other node.
    pub unconfirmed: u64,
    /// Share of frames that were retransmitted, in percent. Only frames of a lost connection are.
    pub retransmitted_percent: f64,
    pub lanes: Vec<LaneView>,
    pub last_error: Option<String>,
    pub last_error_s: Option<f64>,
}

/// One class of frames of a link.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct LaneView {
    /// `control`, `claims`, `agreement`, `requests`, `routes`, `assured` (messages of QoS 1 and 2) or `best_effort`
    /// (QoS 0).
    pub class: &'static str,
    pub frames_sent: u64,
    pub frame_bytes_sent: u64,
    pub frames_received: u64,
    pub frame_bytes_received: u64,
    /// Frames sent again because their connection was lost.
    pub retransmitted: u64,
    /// Frames refused because the buffer was full.
    pub refused: u64,
    /// Frames lost with a connection, or forgotten by the other node.
    pub lost: u64,
    /// Times that frames waited for credit.
    pub stalled: u64,
    pub waiting_bytes: u64,
    pub waiting_frames: u64,
    /// Age of the oldest waiting frame, in seconds.
    pub oldest_s: f64,
}

/// The thread that carries links.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct TransportView {
    pub connections: u64,
    pub accepted: u64,
    pub accept_errors: u64,
    pub dialed: u64,
    pub tls_errors: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub reads: u64,
    pub writes: u64,
    /// Writes that the socket accepted only in part.
    pub blocked: u64,
    pub turns: u64,
    pub wakeups: u64,
    pub commands: u64,
    /// True when links use BBR. Without it, bulk transfers over long distances are slow.
    pub bbr: bool,
}
