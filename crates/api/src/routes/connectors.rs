//! `/connectors`: systems outside the broker that actions write to.

use auth::Authorship;
use axum::Json;
use axum::http::StatusCode;
use serde_json::{Map, Value};

use super::actions::run_test;
use super::entries::{Entries, EntriesQuery, NOTE_MAX, page};
use crate::actions::{Connector, ConnectorTest, ConnectorTested};
use crate::ask::propose;
use crate::configuration::without_secrets;
use crate::extract::{Body, Path, Query};
use crate::paging::Page;
use crate::problem::Problem;
use crate::role::{Caller, Role};
use crate::state::State;

api_routes! {
    "/api/v1/connectors": get list;
    "/api/v1/connectors/{name}": get get, put put, delete remove;
    "/api/v1/connectors/test": post test;
}

const CONNECTORS: Entries = Entries { noun: "connector", path: "/api/v1/connectors" };

/// Lists connectors by name.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/connectors", tag = "actions", operation_id = "connectors",
    security(("token" = ["viewer"])), params(EntriesQuery),
    responses((status = 200, body = Page<Connector>)),
))]
async fn list(
    state: State,
    caller: Caller,
    Query(query): Query<EntriesQuery>,
) -> Result<Json<Page<Connector>>, Problem> {
    let page_query = query.page();
    let listed = move |after: Option<&str>, limit| {
        let connectors = state.actions.connectors(query.tenant.as_deref(), after, limit).into_iter();
        connectors.map(|connector| shown(connector, &caller)).collect()
    };
    page(page_query, listed, |connector| &connector.name).await
}

/// Returns one connector.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/connectors/{name}", tag = "actions", operation_id = "connector",
    security(("token" = ["viewer"])), params(("name" = String, Path)),
    responses((status = 200, body = Connector)),
))]
async fn get(state: State, caller: Caller, Path(name): Path<String>) -> Result<Json<Connector>, Problem> {
    let found = CONNECTORS.get(name, move |name| state.actions.connector(name)).await?;
    Ok(Json(shown(found, &caller)))
}

/// Hides secrets of the URL from readers who may not change it.
fn shown(connector: Connector, caller: &Caller) -> Connector {
    if caller.role >= Role::Admin { connector } else { connector.without_secrets() }
}

/// Adds or replaces a connector. The body has its settings with the keys of `[[connector]]`, without `name`; the others
/// get their defaults. Actions that use the connector continue with the new settings.
#[cfg_attr(feature = "document", utoipa::path(
    put, path = "/api/v1/connectors/{name}", tag = "actions", operation_id = "connector_put",
    security(("token" = ["admin"])), params(("name" = String, Path)), request_body(content = Object),
    responses((status = 200, body = Connector), (status = 201, body = Connector)),
))]
async fn put(
    state: State,
    caller: Caller,
    Path(name): Path<String>,
    Body(settings): Body<Map<String, Value>>,
) -> Result<(StatusCode, Json<Connector>), Problem> {
    let put = |state: &State, name: &str, settings: &Map<String, Value>, by: &Authorship| {
        state.actions.put_connector(name, settings, by)
    };
    CONNECTORS
        .put((&state, &caller), (name, settings), put, |state, name| state.actions.connector(name))
        .await
}

/// Removes a connector that no action uses.
#[cfg_attr(feature = "document", utoipa::path(
    delete, path = "/api/v1/connectors/{name}", tag = "actions", operation_id = "connector_remove",
    security(("token" = ["admin"])), params(("name" = String, Path)),
    responses((status = 204)),
))]
async fn remove(state: State, caller: Caller, Path(name): Path<String>) -> Result<StatusCode, Problem> {
    propose(&state, &caller, move |state| state.actions.remove_connector(&name)).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Tests a connector: this node connects to the system and logs in, and writes nothing. At most four tests run at a
/// time; a further one is refused (429).
#[cfg_attr(feature = "document", utoipa::path(
    post, path = "/api/v1/connectors/test", tag = "actions", operation_id = "connector_test",
    security(("token" = ["admin"])), request_body = ConnectorTest,
    responses((status = 200, body = ConnectorTested)),
))]
async fn test(
    state: State,
    caller: Caller,
    Body(test): Body<ConnectorTest>,
) -> Result<Json<ConnectorTested>, Problem> {
    if test.name.is_none() && test.settings.is_none() {
        return Err(Problem::invalid("settings", "name a connector that exists, or send settings"));
    }
    caller.note(|| {
        let stored = test.name.as_deref().and_then(|name| state.actions.connector(name));
        tested(&test, stored.as_ref())
    });
    Ok(Json(run_test(&state, move |actions| actions.test_connector(&test)).await?))
}

/// Text of the audit log about a test: the name of the connector, and where it leads.
fn tested(test: &ConnectorTest, stored: Option<&Connector>) -> String {
    let of = |settings: Option<&Map<String, Value>>, key: &str| {
        settings?.get(key)?.as_str().map(|text| without_secrets(text).into_owned())
    };
    let setting =
        |key| of(test.settings.as_ref(), key).or_else(|| of(stored.map(|stored| &stored.settings), key));
    let parts = [test.name.clone(), setting("url"), setting("address"), setting("directory")];
    let mut text = parts.into_iter().flatten().collect::<Vec<_>>().join(" ");
    text.truncate(text.floor_char_boundary(NOTE_MAX));
    text
}
