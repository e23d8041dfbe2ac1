//! Routes of the API: one file for each noun. A route is an annotated function, and a line in its file's `routes`.
//!
//! The annotation is the only description of a route: the gate reads the required role and the known parameters from
//! the OpenAPI document.

/// Declares the routes of a file: a path, and a handler for each of its methods.
///
/// With the feature `document`, annotations describe the same handlers. A test compares them with the paths and methods
/// here.
macro_rules! api_routes {
    ($($path:literal: $($method:ident $handler:ident),+;)+) => {
        pub(super) fn routes() -> axum::Router<$crate::state::State> {
            axum::Router::new()$(.route($path, axum::routing::MethodRouter::new()$(.$method($handler))+))+
        }

        #[cfg(feature = "document")]
        pub(super) fn documented() -> utoipa_axum::router::OpenApiRouter<$crate::state::State> {
            utoipa_axum::router::OpenApiRouter::new()$(.routes(utoipa_axum::routes!($($handler),+)))+
        }
    };
}

/// Merges the routes of all files into a router. The document keeps this order.
macro_rules! merged {
    ($router:expr, $routes:ident) => {
        $router
            .merge(health::$routes())
            .merge(node::$routes())
            .merge(alarms::$routes())
            .merge(stats::$routes())
            .merge(storage::$routes())
            .merge(cluster::$routes())
            .merge(drains::$routes())
            .merge(bridges::$routes())
            .merge(actions::$routes())
            .merge(connectors::$routes())
            .merge(links::$routes())
            .merge(metrics::$routes())
            .merge(top::$routes())
            .merge(clients::$routes())
            .merge(subscriptions::$routes())
            .merge(routes::$routes())
            .merge(publish::$routes())
            .merge(retained::$routes())
            .merge(topic_metrics::$routes())
            .merge(slow::$routes())
            .merge(bans::$routes())
            .merge(users::$routes())
            .merge(rules::$routes())
            .merge(decisions::$routes())
            .merge(trace::$routes())
            .merge(log::$routes())
            .merge(config::$routes())
            .merge(whoami::$routes())
            .merge(keys::$routes())
            .merge(accounts::$routes())
            .merge(login::$routes())
            .merge(audit::$routes())
            .merge(document::$routes())
    };
}

mod accounts;
mod actions;
mod alarms;
mod audit;
mod bans;
mod bridges;
pub(crate) mod clients;
mod cluster;
mod config;
mod connectors;
mod decisions;
mod document;
mod drains;
mod entries;
pub(crate) mod health;
mod keys;
mod links;
mod listing;
mod log;
mod login;
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

use crate::state::State;

pub(crate) use actions::TESTS_MAX;
pub(crate) use login::{LOGIN_HASHES_MAX, LOGINS_MAX};

/// Returns all routes.
pub(crate) fn router() -> axum::Router<State> {
    merged!(axum::Router::new(), routes)
}

/// Returns the description of all routes.
#[cfg(feature = "document")]
pub(crate) fn document() -> utoipa::openapi::OpenApi {
    crate::openapi::complete(merged!(utoipa_axum::router::OpenApiRouter::new(), documented).into_openapi())
}
