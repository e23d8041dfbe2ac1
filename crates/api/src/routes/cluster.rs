//! `/cluster`: the node's part in its cluster, and who belongs to it.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use tokio::sync::oneshot;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::cluster::{Cluster, ClusterView};
use crate::extract::Path;
use crate::problem::Problem;
use crate::role::Caller;
use crate::state::State;

pub(super) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(cluster)).routes(routes!(remove))
}

/// The cores give up before; this is for a node that ends meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);

/// The node's part in its cluster: its links to other nodes, and what it knows of the routes of each, and the
/// members that the cores agree on.
#[utoipa::path(get, path = "/api/v1/cluster", tag = "node", operation_id = "cluster", security(("token" = ["viewer"])),
    responses((status = 200, body = ClusterView)))]
async fn cluster(state: State) -> Result<Json<ClusterView>, Problem> {
    part(&state).map(|(_, view)| Json(view))
}

fn part(state: &State) -> Result<(Arc<dyn Cluster>, ClusterView), Problem> {
    let Some(cluster) = &state.cluster else {
        return Err(Problem::not_found(
            "this node belongs to no cluster: its configuration has neither cluster.listen nor a [[cluster_node]]",
        ));
    };
    match cluster.view() {
        Some(view) => Ok((cluster.clone(), view)),
        None => Err(Problem::unavailable("the node does not take its part in the cluster yet")),
    }
}

/// Removes a dead node from the cluster: nothing is kept for it any more. When it starts again it joins as any other node does.
#[utoipa::path(
    delete, path = "/api/v1/cluster/nodes/{name}", tag = "node", operation_id = "remove_node",
    security(("token" = ["admin"])),
    params(("name" = String, Path)),
    responses((status = 204)),
)]
async fn remove(state: State, caller: Caller, Path(name): Path<String>) -> Result<StatusCode, Problem> {
    caller.note(|| name.clone());
    let (cluster, view) = part(&state)?;
    may_go(&view, &name)?;
    let (sender, receiver) = oneshot::channel();
    // Nobody waits any more when the request was given up meanwhile.
    cluster.remove(&name, Box::new(move |removed| drop(sender.send(removed))));
    let why = match tokio::time::timeout(PATIENCE, receiver).await {
        Ok(Ok(Ok(()))) => return Ok(StatusCode::NO_CONTENT),
        Ok(Ok(Err(why))) => why,
        Ok(Err(_)) | Err(_) => "this node is stopping".to_owned(),
    };
    Err(Problem::unavailable(format!(
        "the cores did not agree to remove `{name}`: {why}. They may do so still: `meridian ctl cluster` says who is a member"
    )))
}

/// Only what is dead is removed: a node that runs would join again, and what it has acknowledged could be lost meanwhile.
fn may_go(view: &ClusterView, name: &str) -> Result<(), Problem> {
    let Some(membership) = &view.membership else {
        return Err(Problem::conflict(
            "the members of this cluster are those of the [[cluster_node]] lists: take the node out of the list on every node, and \
             restart them one after the other",
        ));
    };
    let Some(member) = membership.members.iter().find(|member| member.node == name) else {
        let known: Vec<&str> = membership.members.iter().map(|member| member.node.as_str()).collect();
        return Err(Problem::not_found(format!(
            "there is no node `{name}` in this cluster; there are {}",
            if known.is_empty() { "none yet".to_owned() } else { known.join(", ") }
        )));
    };
    match member.state {
        "dead" => Ok(()),
        "alive" => Err(Problem::conflict(format!(
            "node `{name}` is alive: stop it first, a node that runs would join again"
        ))),
        _ => Err(Problem::conflict(format!(
            "the cores do not agree yet that node `{name}` is dead: stop it, and wait until `meridian ctl cluster` says so. That takes a \
             majority of them"
        ))),
    }
}
