//! `/drains`: nodes from which clients are taken away gently.

use axum::Json;
use axum::http::StatusCode;
use serde::Deserialize;
#[cfg(feature = "document")]
use utoipa::IntoParams;

use crate::ask::propose;
use crate::cluster::ClusterView;
use crate::drains::{DrainOrder, DrainView};
use crate::extract::{Body, Path, Query};
use crate::paging::{self, Page};
use crate::problem::Problem;
use crate::role::Caller;
use crate::state::State;

api_routes! {
    "/api/v1/drains": get drains;
    "/api/v1/drains/{name}": put drain, delete cancel_drain;
    "/api/v1/rebalance": post rebalance;
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct DrainsQuery {
    /// Number of items of a page: 1 to 1000; default 100.
    limit: Option<usize>,
    /// `next` of the previous page.
    #[serde(rename = "cursor")]
    _cursor: Option<String>,
}

/// Lists the nodes that are drained, each with its own progress.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/drains", tag = "node", operation_id = "drains", security(("token" = ["viewer"])),
    params(DrainsQuery), responses((status = 200, body = Page<DrainView>))))]
async fn drains(state: State, Query(query): Query<DrainsQuery>) -> Result<Json<Page<DrainView>>, Problem> {
    paging::limit(query.limit)?;
    Ok(Json(Page::whole(state.drains.view().into_iter().collect())))
}

/// Drains a node, or changes the pace of its drain.
///
/// The node refuses new clients, and `/health/ready` answers 503. Other cores take over the shards that it leads. After
/// `wait_s` it disconnects its clients at the given pace: idle ones first, members of shared groups last. MQTT 5.0
/// clients get 0x9C (Use another server). The drain pauses while another node is overloaded, or the others have no
/// room. It goes on after a restart of the node, and ends only when it is cancelled.
#[cfg_attr(feature = "document", utoipa::path(
    put, path = "/api/v1/drains/{name}", tag = "node", operation_id = "drain_node",
    security(("token" = ["operator"])), params(("name" = String, Path)), request_body = DrainOrder,
    responses((status = 204)),
))]
async fn drain(
    state: State,
    caller: Caller,
    Path(name): Path<String>,
    Body(order): Body<DrainOrder>,
) -> Result<StatusCode, Problem> {
    caller.note(|| name.clone());
    order.check()?;
    may_drain(&state, &name)?;
    let by = caller.authorship();
    propose(&state, &caller, move |state| state.drains.order(&name, &order, &by)).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Cancels the drain of a node, which accepts clients again.
#[cfg_attr(feature = "document", utoipa::path(
    delete, path = "/api/v1/drains/{name}", tag = "node", operation_id = "cancel_drain",
    security(("token" = ["operator"])), params(("name" = String, Path)),
    responses((status = 204)),
))]
async fn cancel_drain(state: State, caller: Caller, Path(name): Path<String>) -> Result<StatusCode, Problem> {
    let node = name.clone();
    match propose(&state, &caller, move |state| state.drains.cancel(&node)).await?? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::not_found(format!("node `{name}` is not drained"))),
    }
}

#[derive(Deserialize)]
#[cfg_attr(feature = "document", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct Rebalance {
    /// Number of clients that each of these nodes keeps, by name. Other nodes keep all of theirs.
    keep: std::collections::BTreeMap<String, u64>,
    #[serde(default)]
    pace: DrainOrder,
}

/// Lets nodes with too many clients disconnect some of them, so that they connect to other nodes.
///
/// Each named node disconnects clients at the given pace until it has `keep` clients. It accepts new ones meanwhile,
/// and keeps its shards. `wait_s` has no effect.
#[cfg_attr(feature = "document", utoipa::path(
    post, path = "/api/v1/rebalance", tag = "node", operation_id = "rebalance_clients",
    security(("token" = ["operator"])), request_body = Rebalance,
    responses((status = 204)),
))]
async fn rebalance(state: State, caller: Caller, Body(body): Body<Rebalance>) -> Result<StatusCode, Problem> {
    caller.note(|| body.keep.keys().cloned().collect::<Vec<_>>().join(", "));
    body.pace.check()?;
    let view = cluster_view(&state)?;
    for name in body.keep.keys() {
        member(&state, view.as_ref(), name)?;
    }
    if body.keep.is_empty() {
        return Err(Problem::invalid(
            "keep",
            "name the nodes that have too many clients, each with the number to keep",
        ));
    }
    let (nodes, by): (Vec<_>, _) = (body.keep.into_iter().collect(), caller.authorship());
    propose(&state, &caller, move |state| state.drains.rebalance(&nodes, &body.pace, &by)).await??;
    Ok(StatusCode::NO_CONTENT)
}

fn cluster_view(state: &State) -> Result<Option<ClusterView>, Problem> {
    let Some(cluster) = &state.cluster else { return Ok(None) };
    let unknown = || Problem::unavailable("the node has not started its part in the cluster yet");
    cluster.view().map(Some).ok_or_else(unknown)
}

/// Refuses a name that no node has.
fn member(state: &State, view: Option<&ClusterView>, name: &str) -> Result<(), Problem> {
    let own = &state.node.name;
    let known: Vec<&str> = match view {
        Some(view) => view.membership.members.iter().map(|member| &*member.node).collect(),
        None => vec![own],
    };
    match known.contains(&name) {
        true => Ok(()),
        false => {
            Err(Problem::not_found(format!("there is no node `{name}`; there are {}", known.join(", "))))
        }
    }
}

/// Refuses to drain a node when no other one can serve its clients.
fn may_drain(state: &State, name: &str) -> Result<(), Problem> {
    let view = cluster_view(state)?;
    member(state, view.as_ref(), name)?;
    let Some(view) = view else { return Ok(()) };
    let others =
        view.membership.members.iter().filter(|member| member.node != name && member.state == "alive");
    if others.count() == 0 {
        return Err(Problem::conflict(format!(
            "no other node of the cluster is alive: the clients of `{name}` could go nowhere"
        )));
    }
    Ok(())
}
