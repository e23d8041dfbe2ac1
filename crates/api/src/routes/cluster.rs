//! `/cluster`: the node's part in its cluster.

use axum::Json;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::cluster::ClusterView;
use crate::problem::Problem;
use crate::state::State;

pub(super) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(cluster))
}

/// The node's part in its cluster: its links to other nodes, and what it knows of the routes of each.
#[utoipa::path(get, path = "/api/v1/cluster", tag = "node", operation_id = "cluster", security(("token" = ["viewer"])),
    responses((status = 200, body = ClusterView)))]
async fn cluster(state: State) -> Result<Json<ClusterView>, Problem> {
    let Some(cluster) = &state.cluster else {
        return Err(Problem::not_found(
            "this node belongs to no cluster: there is no [[cluster_node]] in its configuration",
        ));
    };
    match cluster.view() {
        Some(view) => Ok(Json(view)),
        None => Err(Problem::unavailable("the node does not take its part in the cluster yet")),
    }
}
