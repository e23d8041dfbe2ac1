//! `/audit`: what was changed, and by whom.

use axum::Json;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::audit::Entry;
use crate::extract::Query;
use crate::paging::{self, Page};
use crate::problem::Problem;
use crate::state::State;

pub(super) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(list))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AuditQuery {
    /// Entries shown: 1 to 1000, 100 when not given.
    limit: Option<usize>,
}

/// The last requests that were meant to change something, done and refused, newest first. All of them stand in `DATA_DIR/audit.log`.
#[utoipa::path(get, path = "/api/v1/audit", tag = "access", operation_id = "audit", security(("token" = ["admin"])),
    params(AuditQuery), responses((status = 200, body = Page<Entry>)))]
async fn list(state: State, Query(query): Query<AuditQuery>) -> Result<Json<Page<Entry>>, Problem> {
    Ok(Json(Page::whole(state.audit.recent(paging::limit(query.limit)?))))
}
