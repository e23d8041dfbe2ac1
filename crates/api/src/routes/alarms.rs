//! `/alarms`: present faults and their remedies.

use axum::Json;

use crate::alarms::{self, Alarm};
use crate::paging::Page;
use crate::state::State;

api_routes! {
    "/api/v1/alarms": get list;
}

/// Lists present faults and their remedies, errors first.
///
/// In a cluster, a request without `node` returns all that this node knows, and the faults that each other node reports
/// of itself.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/alarms", tag = "node", operation_id = "list_alarms", security(("token" = ["viewer"])),
    responses((status = 200, body = Page<Alarm>))))]
async fn list(state: State) -> Json<Page<Alarm>> {
    let stuck = super::health::stuck(&state);
    Json(Page::whole(alarms::all(&state, stuck)))
}
