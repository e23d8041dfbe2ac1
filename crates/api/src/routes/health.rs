//! Health: whether the node runs, and whether it accepts work.

use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use serde::Serialize;
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::cluster::ClusterView;
use crate::state::{Phase, State};
use crate::storage::StorageCondition;

api_routes! {
    "/health/live": get live;
    "/health/ready": get ready;
    "/health/storage": get storage;
    "/health/quorum": get quorum;
}

const WAITS: &str =
    "the node accepts clients once it has a copy of the users, rules, bans and keys that the cores agree on";

/// Silence of the thread that carries the links, from which it counts as stuck. It reports twice a second, also when it
/// has nothing to do. A thread that is busy for this long, or gets no CPU, is of no use to clients either.
const STUCK_AFTER: Duration = Duration::from_secs(5);
const STUCK: &str = "stuck";
/// State of a node that is drained, or stops and is drained first.
pub(super) const DRAINING: &str = "draining";

#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Health {
    /// `live`, `ready`, `draining`, `starting` or `stopping`; of the storage `good`, `full`, `failed` or `memory`; of
    /// the cluster `quorum`, `no_quorum`, `joining`, `waiting`, `starting` or `alone`; `stuck` when the thread that
    /// carries the links is silent.
    status: &'static str,
    /// Functions that fail, and functions that still work.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "document", schema(required = false, nullable = false))]
    detail: Option<String>,
}

/// Reports that the process answers.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/health/live", tag = "health", operation_id = "health_live", security(()),
    responses((status = 200, body = Health))))]
async fn live() -> Json<Health> {
    Json(Health { status: "live", detail: None })
}

/// Reports whether the node accepts clients; 503 otherwise.
///
/// A node accepts no clients before it has started, while it is drained, and after its stop has begun. In a cluster, it
/// first needs a copy of the users, rules, bans and keys. It also accepts none while the thread that carries its links
/// has been silent for 5 seconds.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/health/ready", tag = "health", operation_id = "health_ready", security(()),
    responses((status = 200, body = Health), (status = 503, body = Health))))]
async fn ready(state: State) -> (StatusCode, Json<Health>) {
    let phase = state.phase();
    if phase == Phase::Ready
        && let Some(why) = stuck(&state)
    {
        let health = Health { status: STUCK, detail: Some(why) };
        return (StatusCode::SERVICE_UNAVAILABLE, Json(health));
    }
    if phase == Phase::Ready && state.drains.refuses() {
        let detail = Some("the node is drained and accepts no new clients".to_owned());
        return (StatusCode::SERVICE_UNAVAILABLE, Json(Health { status: DRAINING, detail }));
    }
    let status = if phase == Phase::Ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let detail = match phase {
        Phase::Ready => state.storage_condition().and_then(detail).map(str::to_owned),
        Phase::Starting => state.cluster.as_ref().map(|cluster| waits(cluster.view().as_ref())),
        Phase::Stopping => None,
    };
    (status, Json(Health { status: phase.name(), detail }))
}

/// Returns the condition that a starting node waits for, and the reason why it may not come.
fn waits(view: Option<&ClusterView>) -> String {
    let why = view.map(|view| waiting(view).unwrap_or_else(|| unreached(view))).unwrap_or_default();
    format!("{WAITS}{}{why}", if why.is_empty() { "" } else { "; " })
}

/// Reports whether durable data can be stored: 503 while the disk is full, and after it has failed. The node still
/// serves everything that need not be stored.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/health/storage", tag = "health", operation_id = "health_storage", security(()),
    responses((status = 200, body = Health), (status = 503, body = Health))))]
async fn storage(state: State) -> (StatusCode, Json<Health>) {
    let condition = state.storage_condition();
    let detail = condition.and_then(detail).map(str::to_owned);
    let status = if detail.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Health { status: condition.map_or("memory", StorageCondition::name), detail }))
}

/// Reports whether this node is a working member of its cluster; 503 otherwise, with the reason and the cores that it
/// does not reach.
///
/// The node must be a member and acknowledge messages of QoS 1 and 2 (`acknowledging` of `GET /cluster`). A core must
/// also be in contact with a majority of the voters. The answer is 503, too, while the thread that carries the links
/// has been silent for 5 seconds. A node without a cluster always answers 200.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/health/quorum", tag = "health", operation_id = "health_quorum", security(()),
    responses((status = 200, body = Health), (status = 503, body = Health))))]
async fn quorum(state: State) -> (StatusCode, Json<Health>) {
    if let Some(why) = stuck(&state) {
        return (StatusCode::SERVICE_UNAVAILABLE, Json(Health { status: STUCK, detail: Some(why) }));
    }
    let (status, detail) = match state.cluster.as_ref().map(|cluster| cluster.view()) {
        None => ("alone", None),
        Some(None) => ("starting", Some("the node has not started its part in the cluster yet".to_owned())),
        Some(Some(view)) => match lacks_quorum(&view) {
            None => ("quorum", None),
            Some((status, why)) => (status, Some(why)),
        },
    };
    let code = if detail.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(Health { status, detail }))
}

/// Returns the fault when the thread that carries the links is silent: its last report is no longer valid.
pub(crate) fn stuck(state: &State) -> Option<String> {
    let silence = state.cluster.as_ref()?.silence();
    (silence >= STUCK_AFTER).then(|| {
        format!(
            "the thread that carries this node's links has been silent for {} s: nothing is exchanged with \
             other nodes; restart the node",
            silence.as_secs()
        )
    })
}

/// Returns the name of the state and the reason when the node lacks the confirmation of a majority of cores.
fn lacks_quorum(view: &ClusterView) -> Option<(&'static str, String)> {
    if let Some(why) = waiting(view) {
        return Some((if view.membership.joined { "waiting" } else { "joining" }, why));
    }
    let mut why = match &view.membership.replica {
        Some(replica) => match &replica.failure {
            Some(failure) => format!("this core no longer takes part in the meta group: {failure}"),
            None if !replica.quorum => format!(
                "this core reaches no majority of the {} voters, or not the leader: as far as it knows, no \
                 node can join or be declared dead{}",
                replica.voters,
                if view.acknowledging { "" } else { ", and publishers of QoS 1 and 2 wait" }
            ),
            None if view.acknowledging => return None,
            None => "no majority of all cores, including those without a vote, lets this core acknowledge: \
                publishers of QoS 1 and 2 wait. Start the missing cores, or remove them when they are dead \
                (meridian ctl cluster remove NAME)"
                .to_owned(),
        },
        None if view.acknowledging => return None,
        None => "no majority of cores lets this node acknowledge: publishers of QoS 1 and 2 wait".to_owned(),
    };
    let unreached = unreached(view);
    if !unreached.is_empty() {
        why = format!("{why}; {unreached}");
    }
    Some(("no_quorum", why))
}

/// Returns the reason why the node is no member of its cluster, or serves no client as a member.
fn waiting(view: &ClusterView) -> Option<String> {
    let why = view.membership.waits_for.as_ref()?;
    Some(format!("this node is {}: {why}", view.membership.describe_waiting()))
}

/// Names the cores that this node is not linked to, for people; empty when there are none.
fn unreached(view: &ClusterView) -> String {
    let cores = view.links.iter().filter(|link| link.role == "core" && link.state != "up");
    let cores: Vec<&str> = cores.map(|core| &*core.node).collect();
    if cores.is_empty() {
        return String::new();
    }
    format!("it does not reach {} (meridian ctl cluster shows why)", cores.join(", "))
}

fn detail(condition: StorageCondition) -> Option<&'static str> {
    match condition {
        StorageCondition::Good => None,
        StorageCondition::Full => Some(
            "the disk is full, or no file descriptor is left for the log: messages for durable sessions and \
             retained messages are refused until there is room; QoS 0, sessions without expiry and \
             acknowledgements still work",
        ),
        StorageCondition::Failed => Some(
            "the disk has failed: durable sessions are refused until the node is restarted; QoS 0 and \
             sessions without expiry still work",
        ),
    }
}
