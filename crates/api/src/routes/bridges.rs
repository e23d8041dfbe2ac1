//! `/bridges`: bridges to other brokers.

use axum::Json;
use serde::Deserialize;
#[cfg(feature = "document")]
use utoipa::IntoParams;

use crate::bridges::BridgeView;
use crate::extract::Query;
use crate::paging::{self, Page};
use crate::problem::Problem;
use crate::state::State;

api_routes! {
    "/api/v1/bridges": get bridges;
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct BridgesQuery {
    /// Number of items of a page: 1 to 1000; default 100.
    limit: Option<usize>,
    /// `next` of the previous page.
    #[serde(rename = "cursor")]
    _cursor: Option<String>,
}

/// Lists the bridges to other brokers, each from the node that runs it.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/bridges", tag = "node", operation_id = "bridges", security(("token" = ["viewer"])),
    params(BridgesQuery), responses((status = 200, body = Page<BridgeView>))))]
async fn bridges(state: State, Query(query): Query<BridgesQuery>) -> Result<Json<Page<BridgeView>>, Problem> {
    // A node has few bridges: they are its first page, whatever the size.
    paging::limit(query.limit)?;
    Ok(Json(Page::whole(state.bridges.views())))
}
