//! Routes of the API: one file for each noun. A route is an annotated function, and a line in its file's `routes`.
//!
//! The annotation is the only description of a route: the gate reads the required role and the known parameters from
//! the OpenAPI document.

mod alarms;
mod audit;
mod bans;
mod clients;
mod cluster;
mod config;
mod decisions;
mod document;
mod health;
mod keys;
mod listing;
mod log;
mod metrics;
mod node;
mod publish;
mod retained;
// Routes of the broker: destinations of messages.
#[allow(clippy::module_inception)]
mod routes;
mod rules;
mod slow;
mod stats;
mod storage;
mod subscriptions;
mod top;
mod topic_metrics;
mod trace;
mod users;
mod whoami;

use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use crate::state::State;

/// Returns all routes, and the document that describes them. The document keeps this order.
pub(crate) fn router() -> (axum::Router<State>, OpenApi) {
    let (router, document) = OpenApiRouter::new()
        .merge(health::routes())
        .merge(node::routes())
        .merge(alarms::routes())
        .merge(stats::routes())
        .merge(storage::routes())
        .merge(cluster::routes())
        .merge(metrics::routes())
        .merge(top::routes())
        .merge(clients::routes())
        .merge(subscriptions::routes())
        .merge(routes::routes())
        .merge(publish::routes())
        .merge(retained::routes())
        .merge(topic_metrics::routes())
        .merge(slow::routes())
        .merge(bans::routes())
        .merge(users::routes())
        .merge(rules::routes())
        .merge(decisions::routes())
        .merge(trace::routes())
        .merge(log::routes())
        .merge(config::routes())
        .merge(whoami::routes())
        .merge(keys::routes())
        .merge(audit::routes())
        .merge(document::routes())
        .split_for_parts();
    (router, crate::openapi::complete(document))
}
