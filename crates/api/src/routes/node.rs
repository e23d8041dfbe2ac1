//! The node itself.

use std::time::SystemTime;

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::paging::Page;
use crate::state::State;
use crate::storage::StorageCondition;
use crate::timestamp::Timestamp;

pub(super) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(node)).routes(routes!(nodes))
}

/// What a node is.
#[derive(Serialize, ToSchema)]
struct Node {
    name: String,
    version: &'static str,
    commit: &'static str,
    pid: u32,
    started_at: Timestamp,
    uptime_s: u64,
    /// Threads that serve connections.
    workers: usize,
    /// `starting`, `ready` or `stopping`.
    state: &'static str,
    /// How the disk is: `good`, `full`, `failed`; `memory` where nothing is kept on it.
    storage: &'static str,
    data_dir: String,
    listeners: Vec<Listener>,
    /// Connections at one time, at most.
    connections_max: usize,
    /// Where this API is served.
    http: String,
    os: &'static str,
    cpus: usize,
}

/// Where clients connect.
#[derive(Serialize, ToSchema)]
struct Listener {
    name: String,
    address: String,
    connections: usize,
    /// 0 is no limit of its own.
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
        Self {
            name: facts.name.clone(),
            version: facts.version,
            commit: facts.commit,
            pid: std::process::id(),
            started_at: started.into(),
            uptime_s: SystemTime::now().duration_since(started).map_or(0, |uptime| uptime.as_secs()),
            workers: state.admin.workers().count(),
            state: state.phase().name(),
            storage: state.storage_condition().map_or("memory", StorageCondition::name),
            data_dir: facts.data_dir.display().to_string(),
            listeners: listeners.collect(),
            connections_max: facts.connections_max,
            http: state.address.to_string(),
            os: std::env::consts::OS,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// What this node is.
#[utoipa::path(get, path = "/api/v1/node", tag = "node", operation_id = "node", security(("token" = ["viewer"])),
    responses((status = 200, body = Node)))]
async fn node(state: State) -> Json<Node> {
    Json(Node::of(&state))
}

/// All nodes of the cluster: this one.
#[utoipa::path(get, path = "/api/v1/nodes", tag = "node", operation_id = "nodes", security(("token" = ["viewer"])),
    responses((status = 200, body = Page<Node>)))]
async fn nodes(state: State) -> Json<Page<Node>> {
    Json(Page::whole(vec![Node::of(&state)]))
}
