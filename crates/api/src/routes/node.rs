//! The node itself.

use std::time::SystemTime;

use axum::Json;
use broker::ReplicaProgress;
use broker::admin::ShardFigures;
use serde::{Deserialize, Serialize};
#[cfg(feature = "document")]
use utoipa::{IntoParams, ToSchema};

use super::health::DRAINING;
use crate::cluster::{Cluster, ClusterView};
use crate::drains::NodeLoad;
use crate::extract::Query;
use crate::paging::{self, Page};
use crate::problem::Problem;
use crate::state::{Phase, State};
use crate::storage::StorageCondition;
use crate::timestamp::Timestamp;

api_routes! {
    "/api/v1/node": get node;
    "/api/v1/node/load": get node_load;
    "/api/v1/nodes": get nodes;
}

/// Description of a node.
#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Node {
    name: String,
    version: &'static str,
    commit: &'static str,
    pid: u32,
    started_at: Timestamp,
    uptime_s: u64,
    /// Threads that serve connections.
    workers: usize,
    /// `starting`, `ready`, `draining` or `stopping`.
    state: &'static str,
    /// True while the node accepts new clients.
    accepts_clients: bool,
    /// Overload level of its busiest reactor, 0 to 3. A node refuses new connections from level 1 on.
    overload: u8,
    /// Condition of the disk: `good`, `full`, `failed`; `memory` where nothing is kept on disk.
    storage: &'static str,
    data_dir: String,
    listeners: Vec<Listener>,
    /// Maximum number of simultaneous connections.
    connections_max: usize,
    /// Address of this API.
    http: String,
    os: &'static str,
    cpus: usize,
    /// True while clients may connect without a user name and password only because there is no user yet. The first
    /// user ends that, unless `auth.allow_anonymous` is set to `true`.
    open_until_first_user: bool,
    /// True while clients may publish and subscribe to everything only because there is no access rule yet and
    /// `auth.no_match` is not set. The first rule ends that: actions that no rule allows are then refused.
    open_until_first_rule: bool,
    /// Connected clients.
    connections: u64,
    /// Durable sessions.
    sessions: u64,
    subscriptions: u64,
    /// Messages received from clients since the start; rates are differences of two answers.
    messages_received: u64,
    /// Messages sent to clients since the start.
    messages_sent: u64,
    /// Null where it belongs to no cluster, and until it takes its part.
    cluster: Option<ClusterSummary>,
}

/// A node's part in its cluster, in short; `/cluster` has more.
#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[cfg_attr(feature = "document", schema(as = NodeClusterView))]
struct ClusterSummary {
    /// `core` or `replicant`.
    role: &'static str,
    region: String,
    /// True while it acknowledges messages of QoS 1 and 2.
    acknowledging: bool,
    /// Core that this replicant is attached to.
    attached_to: Option<String>,
    /// Offset of its clock from those of most nodes, in seconds; less than 0 when its clock is behind; null while they
    /// agree to two seconds.
    clock_offset_s: Option<f64>,
    links: Vec<LinkSummary>,
    /// Shards of the session store that this node leads, with their sizes (`cluster.replicas`).
    shards: Vec<LedShard>,
}

/// A shard as its leader knows it. The figures are up to a second old.
#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct LedShard {
    shard: u16,
    /// Term in which the node leads it.
    term: u64,
    /// Index of the last record that is applied.
    applied_index: u64,
    sessions: u64,
    /// Sessions whose clients are connected.
    connected: u64,
    subscriptions: u64,
    queued_messages: u64,
    queued_bytes: u64,
    retained_messages: u64,
    retained_bytes: u64,
    /// Other replicas.
    replicas: Vec<ShardReplica>,
}

/// Another replica of a shard, as the leader knows it.
#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct ShardReplica {
    node: String,
    /// Records that it lacks; null while that is not known.
    behind: Option<u64>,
    /// Seconds since its last answer; null if there was none since this node leads.
    silent_s: Option<f64>,
}

/// A node's link to another one, in short.
#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[cfg_attr(feature = "document", schema(as = NodeLink))]
struct LinkSummary {
    node: String,
    role: &'static str,
    region: String,
    /// `up`, `suspect` (the other node is silent), or `dead` (it is silent, and the cores declared it dead).
    state: &'static str,
    /// Seconds since the state changed.
    state_s: f64,
    /// Round-trip time in milliseconds; null while the link is not up.
    round_trip_ms: Option<f64>,
    /// Offset of the other node's clock from this node's, in seconds; less than 0 when the other clock is behind; null
    /// while unknown.
    clock_ahead_s: Option<f64>,
    /// True when the offset is more than two seconds and this node's clock is not the wrong one.
    clock_differs: bool,
    retransmitted_percent: f64,
    /// Bytes that wait for the other node or its acknowledgement.
    waiting_bytes: u64,
    waiting_frames: u64,
    /// Age of the oldest waiting frame, in seconds.
    oldest_s: f64,
    bytes_sent: u64,
    bytes_received: u64,
    last_error: Option<String>,
}

impl ClusterSummary {
    fn of(view: ClusterView, shards: Vec<LedShard>) -> Self {
        let links = view.links.into_iter().map(|link| LinkSummary {
            waiting_bytes: link.lanes.iter().map(|lane| lane.waiting_bytes).sum(),
            waiting_frames: link.lanes.iter().map(|lane| lane.waiting_frames).sum(),
            oldest_s: link.lanes.iter().map(|lane| lane.oldest_s).fold(0.0, f64::max),
            node: link.node,
            role: link.role,
            region: link.region,
            state: link.state,
            state_s: link.state_s,
            round_trip_ms: link.round_trip_ms,
            clock_ahead_s: link.clock_ahead_s,
            clock_differs: link.clock_differs,
            retransmitted_percent: link.retransmitted_percent,
            bytes_sent: link.bytes_sent,
            bytes_received: link.bytes_received,
            last_error: link.last_error,
        });
        Self {
            role: view.role,
            region: view.region,
            acknowledging: view.acknowledging,
            attached_to: view.attached_to,
            clock_offset_s: view.clock_offset_s,
            links: links.collect(),
            shards,
        }
    }
}

impl LedShard {
    fn of(cluster: &dyn Cluster, figures: &ShardFigures) -> Self {
        let name = |node: u64| cluster.node_name(node).unwrap_or_else(|| format!("{node:016x}"));
        let replica = |progress: &ReplicaProgress| ShardReplica {
            node: name(progress.node),
            behind: progress.behind,
            silent_s: progress.silence.map(|silence| silence.as_secs_f64()),
        };
        Self {
            shard: figures.shard.0,
            term: figures.term,
            applied_index: figures.applied,
            sessions: figures.sessions,
            connected: figures.connected,
            subscriptions: figures.subscriptions,
            queued_messages: figures.queued_messages,
            queued_bytes: figures.queued_bytes,
            retained_messages: figures.retained_messages,
            retained_bytes: figures.retained_bytes,
            replicas: figures.replicas.iter().map(replica).collect(),
        }
    }
}

/// A listener that clients connect to.
#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Listener {
    name: String,
    address: String,
    connections: usize,
    /// Maximum number of connections; 0 is no limit of its own.
    connections_max: usize,
}

impl Node {
    fn of(state: &State) -> Self {
        let facts = &state.node;
        let listeners = facts.listeners.iter().map(|listener| Listener {
            name: listener.name.clone(),
            address: listener.address.clone(),
            connections: (listener.connections)(),
            connections_max: listener.connections_max,
        });
        let started = state.admin.started();
        let figures = state.admin.figures();
        let (counters, _, _) = figures.counters();
        let refuses = state.drains.refuses();
        Self {
            name: facts.name.clone(),
            version: facts.version,
            commit: facts.commit,
            pid: std::process::id(),
            started_at: started.into(),
            uptime_s: SystemTime::now().duration_since(started).map_or(0, |uptime| uptime.as_secs()),
            workers: state.admin.workers().count(),
            state: if refuses && state.phase() == Phase::Ready { DRAINING } else { state.phase().name() },
            accepts_clients: state.phase() == Phase::Ready && !refuses,
            overload: figures.workers.iter().map(|worker| worker.overload).max().unwrap_or(0),
            storage: state.storage_condition().map_or("memory", StorageCondition::name),
            data_dir: facts.data_dir.display().to_string(),
            listeners: listeners.collect(),
            connections_max: facts.connections_max,
            http: state.address.to_string(),
            os: std::env::consts::OS,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            open_until_first_user: state.guard.is_open_until_first_user(),
            open_until_first_rule: state.guard.is_open_until_first_rule(),
            connections: figures.total(|worker| worker.connections),
            sessions: figures.total(|worker| worker.sessions),
            subscriptions: figures.subscriptions(),
            messages_received: counters.received_qos0 + counters.received_qos1 + counters.received_qos2,
            messages_sent: counters.sent_qos0 + counters.sent_qos1 + counters.sent_qos2,
            cluster: state.cluster.as_ref().and_then(|cluster| {
                let shards = figures.workers.iter().flat_map(|worker| &worker.shards);
                let mut shards: Vec<_> = shards.map(|shard| LedShard::of(&**cluster, shard)).collect();
                shards.sort_by_key(|shard| shard.shard);
                Some(ClusterSummary::of(cluster.view()?, shards))
            }),
        }
    }
}

/// Returns a description of this node.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/node", tag = "node", operation_id = "node", security(("token" = ["viewer"])),
    responses((status = 200, body = Node))))]
async fn node(state: State) -> Json<Node> {
    Json(Node::of(&state))
}

/// Load of a node.
#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[cfg_attr(feature = "document", schema(as = NodeLoad))]
struct Load {
    /// Connected clients.
    connections: u64,
    /// Maximum number of simultaneous connections.
    connections_max: u64,
    /// Overload level of its busiest reactor, 0 to 3.
    overload: u8,
    /// True while the node accepts new clients.
    accepts_clients: bool,
    /// Address for clients that a drain of another node sends here; null if none is configured.
    client_address: Option<String>,
}

/// Returns the load of this node.
pub(super) fn load(state: &State) -> NodeLoad {
    let figures = state.admin.figures();
    NodeLoad {
        connections: figures.total(|worker| worker.connections),
        connections_max: state.node.connections_max as u64,
        overload: figures.workers.iter().map(|worker| worker.overload).max().unwrap_or(0),
        accepts_clients: state.phase() == Phase::Ready && !state.drains.refuses(),
        client_address: state.node.client_address.clone(),
    }
}

/// Returns the load of this node, without its description. Other nodes ask for it during a drain.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/node/load", tag = "node", operation_id = "node_load", security(("token" = ["viewer"])),
    responses((status = 200, body = Load))))]
async fn node_load(state: State) -> Json<Load> {
    let NodeLoad { connections, connections_max, overload, accepts_clients, client_address } = load(&state);
    Json(Load { connections, connections_max, overload, accepts_clients, client_address })
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct NodesQuery {
    /// Number of items of a page: 1 to 1000; default 100.
    limit: Option<usize>,
    /// `next` of the previous page.
    #[serde(rename = "cursor")]
    _cursor: Option<String>,
}

/// Lists all nodes of the cluster; a node without a cluster is the only one.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/nodes", tag = "node", operation_id = "nodes", security(("token" = ["viewer"])),
    params(NodesQuery), responses((status = 200, body = Page<Node>))))]
async fn nodes(state: State, Query(query): Query<NodesQuery>) -> Result<Json<Page<Node>>, Problem> {
    // A single node lists only itself, which is the first page of any size.
    paging::limit(query.limit)?;
    Ok(Json(Page::whole(vec![Node::of(&state)])))
}
