//! What the server needs of whoever joins the node to a cluster.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

/// The node's part in its cluster.
pub trait Cluster: Send + Sync {
    /// How things were when the thread that carries the links was last heard of; `None` until the node takes its part.
    fn view(&self) -> Option<ClusterView>;

    /// How long ago that was: less than a second, unless the thread is stuck. Zero where there is no such thread, or not any more.
    fn silence(&self) -> Duration;

    /// Asks another node. `callback` is called once, from any thread, with its answer or with why there is none.
    fn ask(&self, node: &str, question: Vec<u8>, callback: AnswerCallback);

    /// Who answers other nodes from now on; before, nobody does.
    fn set_request_handler(&self, request_handler: Arc<dyn RequestHandler>);

    /// Has something done that concerns the whole cluster. `callback` is called once, from any thread, when it is done, or with why it is not;
    /// what the cores have to agree on may be done still then.
    fn order(&self, order: Order, callback: OrderCallback);

    /// Whether this node was told to leave, and stops for that.
    fn is_leaving(&self) -> bool;
}

/// What an operator wants of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// The node of this name is no member any more, whatever its state, if it has not joined again in another life.
    Remove { node: String, incarnation: u64 },
    /// The core of this name leads.
    Lead(String),
    /// Replicants are spread evenly over the cores. Done when those that are there were told.
    Balance,
    /// Other nodes are to be met at these addresses, too, until the process ends.
    JoinAt(Vec<String>),
    /// This node stops, and is no member any more. Done when it has begun to, and refused when it stops already for another reason.
    Leave,
}

/// Hears what another node answers, or why it does not.
pub type AnswerCallback = Box<dyn FnOnce(Result<Vec<u8>, String>) + Send>;

/// Hears that an order was carried out, or why it was not.
pub type OrderCallback = Box<dyn FnOnce(Result<(), OrderError>) + Send>;

/// Why an order was not carried out, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderError {
    /// It does not fit what is so, and nothing comes of it.
    Refused(String),
    /// Nobody has said yes or no in time: what the cores have to agree on may be done still.
    Unknown(String),
}

impl fmt::Display for OrderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) | Self::Unknown(why) => f.write_str(why),
        }
    }
}

/// Takes the answer for another node. Dropped without one, it tells that node that there is none.
pub type Reply = Box<dyn FnOnce(Vec<u8>) + Send>;

/// Answers what other nodes ask.
pub trait RequestHandler: Send + Sync {
    /// `from` is the name of the node that asks. Does not wait.
    fn answer(&self, from: &str, question: &[u8], reply: Reply);
}

/// The node's part in its cluster. Counters begin with the process; of nodes, filters and links, as this node knows them.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ClusterView {
    /// This node's name.
    pub node: String,
    /// `core` or `replicant`.
    pub role: &'static str,
    pub region: String,
    /// Of this life of the node; greater than that of every earlier one.
    pub incarnation: u64,
    /// The core that this replicant hears from; null for cores, and while none is there.
    pub attached_to: Option<String>,
    /// Whether this node acknowledges messages of QoS 1 and 2: a majority of cores says that it knows all routes, or it does not ask
    /// (`cluster.without_quorum`).
    pub acknowledging: bool,
    /// For how long a majority of cores lets it, if none says it again, which they do four times in `cluster.lease`; 0 while none does, null for a
    /// core that needs nobody's word.
    pub lease_s: Option<f64>,
    /// Cores by whose word this node acknowledges, by name; a core counts itself besides.
    pub lease_granted_by: Vec<GrantView>,
    /// Nodes that acknowledge by the word of this core, by name; none on replicants.
    pub leases_granted: Vec<GrantView>,
    /// By how much this node's clock is ahead of those of most nodes, or behind when it is less than 0; null while it agrees with them to
    /// two seconds. Then it is this machine's clock that has to be set.
    pub clock_offset_s: Option<f64>,
    /// SUBACKs that wait until the core knows of the subscription.
    pub subacks_waiting_core: u64,
    /// SUBACKs that wait until all nodes of the region know of the subscription.
    pub subacks_waiting_region: u64,
    /// SUBACKs that wait until the cluster knows of the subscription.
    pub subacks_waiting_cluster: u64,
    /// SUBACKs for which others did not hear of the subscription in time.
    pub subacks_overdue: u64,
    /// Changes of routes taken in from other nodes.
    pub routes_applied: u64,
    /// Routes of other nodes that found no place.
    pub routes_refused: u64,
    /// Filters and shared groups of other nodes that this node's index has no room for: while there are any, this node acknowledges no
    /// message of QoS 1 or 2.
    pub routes_unindexed: u64,
    /// Messages of QoS 0 that found no place on the way to another node.
    pub dropped_qos0: u64,
    /// Messages of QoS 1 and 2 for nodes that are cut off that found no place.
    pub dropped_suspect: u64,
    /// Messages of QoS 1 and 2 that found no place and were refused.
    pub refused: u64,
    /// What peers sent and was no word of a node.
    pub malformed: u64,
    /// Connections to the port for other nodes that were closed because too many did not say who they are.
    pub unauthenticated_closed: u64,
    /// Questions of operators to other nodes.
    pub requests_sent: u64,
    /// Those that got no answer.
    pub requests_unanswered: u64,
    /// Questions of other nodes.
    pub requests_received: u64,
    /// Those that found too many before them, or no place for their answers.
    pub requests_refused: u64,
    /// Bytes of frames to nodes of other regions, before they were compressed.
    pub compressed_before_bytes: u64,
    /// The same after it.
    pub compressed_after_bytes: u64,
    /// This node first, then the others by name.
    pub routes: Vec<NodeRoutes>,
    /// By name.
    pub links: Vec<LinkView>,
    /// Who was met or sought and is not joined, by address: the 32 that were heard of last, within three minutes.
    pub unjoined_peers: Vec<UnjoinedPeerView>,
    pub transport: TransportView,
    /// What the cores agree on; null where the members are those of a list in the configuration.
    pub membership: Option<MembershipView>,
}

/// A node that acknowledges messages by the word of a core.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct GrantView {
    /// The other one of the two.
    pub node: String,
    /// For how long, if it is not said again.
    pub left_s: f64,
}

/// Somebody who was met or sought, and is not joined.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct UnjoinedPeerView {
    /// Where this node connects to, HOST:PORT, or the host that it comes from.
    pub address: String,
    /// As it says, proved or not; null when it has said none.
    pub name: Option<String>,
    /// What was wrong last, with what to do about it.
    pub reason: String,
    /// How long ago that was.
    pub last_s: f64,
    /// How often something was wrong.
    pub count: u64,
}

/// What the cores of a cluster agree on, as far as this node knows.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MembershipView {
    /// No majority of cores was heard lately: who is alive and who leads is as it was last known.
    pub stale: bool,
    /// The number of the cluster, in hexadecimal; null while there is none yet.
    pub cluster_uid: Option<String>,
    /// Of the last change that this node knows of: with the same, two nodes know the same members.
    pub index: u64,
    /// Why this node is no member yet; null once it is.
    pub waits_for: Option<String>,
    /// By name, this node among them once it is a member.
    pub members: Vec<MemberView>,
    /// Of a core: its part in the agreement; null on replicants.
    pub replica: Option<ReplicaView>,
}

/// One node of the cluster.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MemberView {
    pub node: String,
    /// `core` or `replicant`.
    pub role: &'static str,
    pub region: String,
    /// Where other nodes reach it.
    pub address: String,
    /// Of the life that has joined.
    pub incarnation: u64,
    /// `alive`, `leaving` (it has stopped, and gives up its vote), `suspect` (no core hears of it) or `dead` (the cores agree that this
    /// life is over).
    pub state: &'static str,
    /// Whether it has a vote in what the cores agree on. Known to cores; false on replicants.
    pub votes: bool,
    /// Whether it leads the cores, as far as this one knows. Known to cores; false on replicants.
    pub leads: bool,
}

/// A core's part in what the cores agree on.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ReplicaView {
    /// `leader`, `follower`, `candidate`, `learner` (without a vote) or `stopped`.
    pub raft_state: &'static str,
    /// Of the election: greater than that of every earlier leader.
    pub term: u64,
    /// The node that leads; null while none is known.
    pub leader: Option<String>,
    /// The core that hands on what this one and the node that leads say to each other, where the two do not reach each other; null otherwise.
    pub leader_via: Option<String>,
    /// Of the last entry of its log.
    pub last_index: u64,
    /// Of the last entry that its state has.
    pub applied_index: u64,
    /// Whether a majority of the voters was heard lately: of the leader that they answer it, of others that they hear it.
    pub quorum: bool,
    pub voters: u64,
    pub learners: u64,
    /// Why it has stopped.
    pub failure: Option<String>,
}

/// What the clients of one node want.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct NodeRoutes {
    pub node: String,
    pub role: &'static str,
    pub incarnation: u64,
    /// Changes that were heard of in this life.
    pub position: u64,
    pub filters: u64,
    /// Deletions that are remembered for nodes that are behind.
    pub tombstones: u64,
    /// Of all filters.
    pub bytes: u64,
    /// A hash of all filters and what is wanted of them, in hexadecimal: two nodes that know the same have the same.
    pub digest: String,
    /// Nothing is heard of the node at present; what is known of it stays.
    pub suspect: bool,
}

/// The link to one other node.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LinkView {
    pub node: String,
    pub address: String,
    pub role: &'static str,
    pub region: String,
    /// `up`, `suspect` (nothing is heard of it), or `dead` (neither, and the cores agree on it).
    pub state: &'static str,
    /// For how long it has been so.
    pub state_s: f64,
    /// Whether this node connects to the other.
    pub dials: bool,
    /// That carry frames.
    pub connections: u64,
    pub connections_wanted: u64,
    /// Of the protocol between nodes; 0 before the first connection.
    pub version: u16,
    /// Features that both have, as bits.
    pub features: u64,
    /// Null while the link is not up.
    pub round_trip_ms: Option<f64>,
    /// By how much the other node's clock is ahead of this node's, or behind when it is less than 0, as it said within the last minute or
    /// so; null while that is not known.
    pub clock_ahead_s: Option<f64>,
    /// Whether that is more than two seconds, and not because it is this node's clock that is wrong (`clock_offset_s`).
    pub clock_differs: bool,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Connections that were made.
    pub connected: u64,
    /// Connections that were silent for too long.
    pub timeouts: u64,
    /// Times that the other node had begun anew.
    pub restarts: u64,
    /// Bytes that came and are not dealt with.
    pub unconsumed_bytes: u64,
    /// Messages whose publishers wait for the other node.
    pub unconfirmed: u64,
    /// Frames sent again of all frames sent, in percent: only those of a connection that was lost are.
    pub retransmitted_percent: f64,
    pub lanes: Vec<LaneView>,
    pub last_error: Option<String>,
    pub last_error_s: Option<f64>,
}

/// One class of frames of a link.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LaneView {
    /// `control`, `claims`, `routes`, `assured` (messages of QoS 1 and 2) or `best_effort` (QoS 0).
    pub class: &'static str,
    pub frames_sent: u64,
    pub frame_bytes_sent: u64,
    pub frames_received: u64,
    pub frame_bytes_received: u64,
    /// Sent again, because the connection that had carried them was lost.
    pub retransmitted: u64,
    /// That found no place.
    pub refused: u64,
    /// That were lost with a connection, or forgotten by the other node.
    pub lost: u64,
    /// Times that frames waited for credit.
    pub stalled: u64,
    pub waiting_bytes: u64,
    pub waiting_frames: u64,
    /// How long the oldest of them has waited.
    pub oldest_s: f64,
}

/// The thread that carries links.
#[derive(Clone, Debug, Serialize, ToSchema)]
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
    /// Writes that did not take everything.
    pub blocked: u64,
    pub turns: u64,
    pub wakeups: u64,
    pub commands: u64,
    /// Whether links use BBR; without it, bulk transfers over long distances are slow.
    pub bbr: bool,
}
