//! Whether the node lives, and whether it takes work.

use axum::Json;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::state::{Phase, State};

pub(super) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(live)).routes(routes!(ready))
}

#[derive(Serialize, ToSchema)]
struct Health {
    /// `live`, `ready`, `starting` or `stopping`.
    status: &'static str,
}

/// Whether the process answers.
#[utoipa::path(get, path = "/health/live", tag = "health", operation_id = "health_live", security(()),
    responses((status = 200, body = Health)))]
async fn live() -> Json<Health> {
    Json(Health { status: "live" })
}

/// Whether the node takes clients: not before it has started, nor once it stops.
#[utoipa::path(get, path = "/health/ready", tag = "health", operation_id = "health_ready", security(()),
    responses((status = 200, body = Health), (status = 503, body = Health)))]
async fn ready(state: State) -> (StatusCode, Json<Health>) {
    let phase = state.phase();
    let status = if phase == Phase::Ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Health { status: phase.name() }))
}
