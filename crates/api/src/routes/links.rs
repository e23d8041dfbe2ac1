//! `/links/external`: links to other clusters.

use auth::Authorship;
use axum::Json;
use axum::http::StatusCode;
use serde_json::{Map, Value};

use super::entries::{Entries, ListQuery, RemoveQuery, page, remove_entry};
use crate::extract::{Body, Path, Query};
use crate::links::{ClusterLink, LinkStatus, Links};
use crate::paging::Page;
use crate::problem::Problem;
use crate::role::Caller;
use crate::state::State;

api_routes! {
    "/api/v1/links/external": get list;
    "/api/v1/links/external/{name}": get get, put put, delete remove;
}

const LINKS: Entries = Entries { noun: "link", path: "/api/v1/links/external" };

/// Lists the links to other clusters by name.
///
/// In a cluster, each part of the state comes from the node that has it. `missing` names nodes that did not answer.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/links/external", tag = "links", operation_id = "cluster_links",
    security(("token" = ["viewer"])), params(ListQuery),
    responses((status = 200, body = Page<ClusterLink>)),
))]
async fn list(state: State, Query(query): Query<ListQuery>) -> Result<Json<Page<ClusterLink>>, Problem> {
    let listed = move |after: Option<&str>, limit| {
        let mut statuses = state.links.views();
        let mut links = state.links.links(after, limit);
        for link in &mut links {
            let at = statuses.iter().position(|status| status.name == link.name);
            link.take(at.map(|at| statuses.swap_remove(at)));
        }
        links
    };
    page(query, listed, |link| &link.name).await
}

/// Returns one link to another cluster.
///
/// In a cluster, each part of the state comes from the node that has it.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/links/external/{name}", tag = "links", operation_id = "cluster_link",
    security(("token" = ["viewer"])), params(("name" = String, Path)),
    responses((status = 200, body = ClusterLink)),
))]
async fn get(state: State, Path(name): Path<String>) -> Result<Json<ClusterLink>, Problem> {
    Ok(Json(LINKS.get(name, move |name| with_status(&*state.links, name)).await?))
}

fn with_status(links: &dyn Links, name: &str) -> Option<ClusterLink> {
    let mut link = links.link(name)?;
    link.take(links.views().into_iter().find(|status| status.name == name));
    Some(link)
}

impl ClusterLink {
    /// Adds what this node knows about the work of the link.
    fn take(&mut self, status: Option<LinkStatus>) {
        let LinkStatus { name: _, taking, giving, refusal } = status.unwrap_or_default();
        (self.taking, self.giving, self.refusal) = (taking, giving, refusal);
    }
}

/// Adds or replaces a link to another cluster. The body has its settings with the keys of `[[cluster_link]]`, without
/// `name`; the others get their defaults. The other cluster needs an entry with the same secret, too. Messages that
/// wait for a replaced link stay.
#[cfg_attr(feature = "document", utoipa::path(
    put, path = "/api/v1/links/external/{name}", tag = "links", operation_id = "cluster_link_put",
    security(("token" = ["admin"])), params(("name" = String, Path)), request_body(content = Object),
    responses((status = 200, body = ClusterLink), (status = 201, body = ClusterLink)),
))]
async fn put(
    state: State,
    caller: Caller,
    Path(name): Path<String>,
    Body(settings): Body<Map<String, Value>>,
) -> Result<(StatusCode, Json<ClusterLink>), Problem> {
    let put = |state: &State, name: &str, settings: &Map<String, Value>, by: &Authorship| {
        state.links.put_link(name, settings, by)
    };
    LINKS.put((&state, &caller), (name, settings), put, |state, name| with_status(&*state.links, name)).await
}

/// Removes a link to another cluster, and disconnects that cluster. By default its sessions stay with the messages that
/// wait in them, for a link with the same name. With `messages=delete` they end.
#[cfg_attr(feature = "document", utoipa::path(
    delete, path = "/api/v1/links/external/{name}", tag = "links", operation_id = "cluster_link_remove",
    security(("token" = ["admin"])), params(("name" = String, Path), RemoveQuery),
    responses((status = 204)),
))]
async fn remove(
    state: State,
    caller: Caller,
    Path(name): Path<String>,
    Query(query): Query<RemoveQuery>,
) -> Result<StatusCode, Problem> {
    remove_entry(&state, &caller, query, move |state, waiting| state.links.remove_link(&name, waiting)).await
}
