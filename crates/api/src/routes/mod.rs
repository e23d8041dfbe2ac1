//! What can be asked: one file for each noun. A route is an annotated function, and a line here.
//!
//! The annotation is all there is to say about a route: the gate takes the role that it needs, and the parameters that it knows, from
//! the OpenAPI document.

mod health;
mod node;

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
        .split_for_parts();
    (router, crate::openapi::complete(document))
}
