//! `/alarms`: what is wrong now, and what to do about it.

use axum::Json;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::alarms::{self, Alarm};
use crate::paging::Page;
use crate::state::State;

pub(super) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(list))
}

/// What is wrong now, and what to do about it: errors first.
///
/// In a cluster without `node`: all that the node that is asked knows, and what each other node says of itself.
#[utoipa::path(get, path = "/api/v1/alarms", tag = "node", operation_id = "list_alarms", security(("token" = ["viewer"])),
    responses((status = 200, body = Page<Alarm>)))]
async fn list(state: State) -> Json<Page<Alarm>> {
    let stuck = super::health::stuck(&state);
    Json(Page::whole(alarms::all(&state, stuck)))
}
