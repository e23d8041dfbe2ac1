//! Whether the node lives, and whether it takes work.

use axum::Json;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::state::{Phase, State};
use crate::storage::StorageCondition;

pub(super) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(live)).routes(routes!(ready)).routes(routes!(storage))
}

#[derive(Serialize, ToSchema)]
struct Health {
    /// `live`, `ready`, `starting` or `stopping`; of the storage `good`, `full`, `failed` or `memory`.
    status: &'static str,
    /// What does not work, and what does.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false)]
    detail: Option<&'static str>,
}

/// Whether the process answers.
#[utoipa::path(get, path = "/health/live", tag = "health", operation_id = "health_live", security(()),
    responses((status = 200, body = Health)))]
async fn live() -> Json<Health> {
    Json(Health { status: "live", detail: None })
}

/// Whether the node takes clients: not before it has started, nor once it stops.
#[utoipa::path(get, path = "/health/ready", tag = "health", operation_id = "health_ready", security(()),
    responses((status = 200, body = Health), (status = 503, body = Health)))]
async fn ready(state: State) -> (StatusCode, Json<Health>) {
    let phase = state.phase();
    let status = if phase == Phase::Ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let detail = state.storage_condition().and_then(detail).filter(|_| phase == Phase::Ready);
    (status, Json(Health { status: phase.name(), detail }))
}

/// Whether what has to be kept can be: 503 while the disk is full, and once it has failed. The node serves whatever need not be kept all the
/// same.
#[utoipa::path(get, path = "/health/storage", tag = "health", operation_id = "health_storage", security(()),
    responses((status = 200, body = Health), (status = 503, body = Health)))]
async fn storage(state: State) -> (StatusCode, Json<Health>) {
    let condition = state.storage_condition();
    let detail = condition.and_then(detail);
    let status = if detail.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Health { status: condition.map_or("memory", StorageCondition::name), detail }))
}

fn detail(condition: StorageCondition) -> Option<&'static str> {
    match condition {
        StorageCondition::Good => None,
        StorageCondition::Full => Some(
            "the disk is full: messages for durable sessions and retained messages are refused until there is room; QoS 0, \
             sessions without expiry and acknowledgements go on",
        ),
        StorageCondition::Failed => Some(
            "the disk has failed: durable sessions are refused until the node is restarted; QoS 0 and sessions without \
             expiry go on",
        ),
    }
}
