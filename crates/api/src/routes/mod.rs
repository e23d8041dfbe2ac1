//! What can be asked: one file for each noun. A route is an annotated function, and a line here.
//!
//! The annotation is all there is to say about a route: the gate takes the role that it needs, and the parameters that it knows, from
//! the OpenAPI document.

mod bans;
mod clients;
mod health;
mod listing;
mod node;
mod publish;
mod retained;
// Its noun is that of the broker: where messages go.
#[allow(clippy::module_inception)]
mod routes;
mod slow;
mod subscriptions;
mod top;
mod topic_metrics;
mod trace;

use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::state::State;

/// All routes, and the document that describes them.
pub(crate) fn router() -> (axum::Router<State>, OpenApi) {
    let (router, document) = OpenApiRouter::new()
        .routes(routes!(health::live))
        .routes(routes!(health::ready))
        .routes(routes!(node::node))
        .routes(routes!(node::nodes))
        .merge(bans::routes())
        .merge(clients::routes())
        .merge(publish::routes())
        .merge(retained::routes())
        .merge(routes::routes())
        .merge(slow::routes())
        .merge(subscriptions::routes())
        .merge(top::routes())
        .merge(topic_metrics::routes())
        .merge(trace::routes())
        .split_for_parts();
    (router, crate::openapi::complete(document))
}
