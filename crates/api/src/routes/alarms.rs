//! `/alarms`: present faults and their remedies.

use axum::Json;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::alarms::{self, Alarm};
use crate::paging::Page;
use crate::state::State;

pub(super) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Lists present faults and their remedies, errors first.
///
/// In a cluster, a request without `node` returns all that this node knows, and the faults that each other node reports
/// of itself.
#[utoipa::path(get, path = "/api/v1/alarms", tag = "node", operation_id = "list_alarms", security(("token" = ["viewer"])),
    responses((status = 200, body = Page<Alarm>)))]
async fn list(state: State) -> Json<Page<Alarm>> {
    let stuck = super::health::stuck(&state);
    Json(Page::whole(alarms::all(&state, stuck)))
}
