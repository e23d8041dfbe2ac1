//! `/audit`: changes and their authors.

use axum::Json;
use serde::Deserialize;
#[cfg(feature = "document")]
use utoipa::IntoParams;

use crate::audit::{AuditKind, Entry};
use crate::extract::Query;
use crate::paging::{self, Page};
use crate::problem::Problem;
use crate::state::State;

api_routes! {
    "/api/v1/audit": get list;
}

#[derive(Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct AuditQuery {
    /// Number of entries: 1 to 1000; default 100.
    limit: Option<usize>,
    /// `true`: only attempts that were refused before anything was begun; `false`: only the others.
    refused: Option<bool>,
}

/// Lists the last requests that were meant to change something, newest first.
///
/// Changes that were begun are in `DATA_DIR/audit.log`, refused attempts in `DATA_DIR/refused.log`. When there are more
/// of both than the limit, refused attempts are at most half.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/audit", tag = "access", operation_id = "audit", security(("token" = ["admin"])),
    params(AuditQuery), responses((status = 200, body = Page<Entry>))))]
async fn list(state: State, Query(query): Query<AuditQuery>) -> Result<Json<Page<Entry>>, Problem> {
    let limit = paging::limit(query.limit)?;
    let entries = match query.refused {
        None => state.audit.recent_of_both(limit),
        Some(true) => state.audit.recent(AuditKind::Refused, limit),
        Some(false) => state.audit.recent(AuditKind::Change, limit),
    };
    Ok(Json(Page::whole(entries)))
}
