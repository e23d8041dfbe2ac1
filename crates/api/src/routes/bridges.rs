//! `/bridges`: bridges to other brokers.

use auth::Authorship;
use axum::Json;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value};
#[cfg(feature = "document")]
use utoipa::IntoParams;

use super::entries::{Entries, RemoveQuery, remove_entry};
use crate::bridges::{BridgeEntry, BridgeView};
use crate::extract::{Body, Path, Query};
use crate::paging::{self, Page};
use crate::problem::Problem;
use crate::role::Caller;
use crate::state::State;

api_routes! {
    "/api/v1/bridges": get bridges;
    "/api/v1/bridges/{name}": get get, put put, delete remove;
}

const BRIDGES: Entries = Entries { noun: "bridge", path: "/api/v1/bridges" };

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

/// Returns one bridge as it is configured. `GET /api/v1/bridges` has the state of all bridges.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/bridges/{name}", tag = "node", operation_id = "bridge",
    security(("token" = ["viewer"])), params(("name" = String, Path)),
    responses((status = 200, body = BridgeEntry)),
))]
async fn get(state: State, Path(name): Path<String>) -> Result<Json<BridgeEntry>, Problem> {
    Ok(Json(BRIDGES.get(name, move |name| state.bridges.bridge(name)).await?))
}

/// Adds or replaces a bridge to another broker. The body has its settings with the keys of `[[bridge]]`, without
/// `name`; the others get their defaults. Messages that wait for a replaced bridge stay.
#[cfg_attr(feature = "document", utoipa::path(
    put, path = "/api/v1/bridges/{name}", tag = "node", operation_id = "bridge_put",
    security(("token" = ["admin"])), params(("name" = String, Path)), request_body(content = Object),
    responses((status = 200, body = BridgeEntry), (status = 201, body = BridgeEntry)),
))]
async fn put(
    state: State,
    caller: Caller,
    Path(name): Path<String>,
    Body(settings): Body<Map<String, Value>>,
) -> Result<(StatusCode, Json<BridgeEntry>), Problem> {
    let put = |state: &State, name: &str, settings: &Map<String, Value>, by: &Authorship| {
        state.bridges.put_bridge(name, settings, by)
    };
    BRIDGES.put((&state, &caller), (name, settings), put, |state, name| state.bridges.bridge(name)).await
}

/// Removes a bridge to another broker. By default its session stays with the messages that wait in it, for a bridge
/// with the same name. With `messages=delete` it ends. A session of the bridge at the other broker stays.
#[cfg_attr(feature = "document", utoipa::path(
    delete, path = "/api/v1/bridges/{name}", tag = "node", operation_id = "bridge_remove",
    security(("token" = ["admin"])), params(("name" = String, Path), RemoveQuery),
    responses((status = 204)),
))]
async fn remove(
    state: State,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<RemoveQuery>,
) -> Result<StatusCode, Problem> {
    remove_entry(&state, &caller, query, move |state, waiting| state.bridges.remove_bridge(&name, waiting))
        .await
}
