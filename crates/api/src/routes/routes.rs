//! `/routes`: contents of the routing index, and receivers of a message.

use axum::Json;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
#[cfg(feature = "document")]
use utoipa::{IntoParams, ToSchema};

use crate::ask::{ask, run_blocking};
use crate::extract::Query;
use crate::paging;
use crate::problem::Problem;
use crate::state::State;

api_routes! {
    "/api/v1/routes": get list;
    "/api/v1/routes/match": get find_receivers;
}

/// Permit for one listing at a time: each goes through the whole index.
static LISTING: Semaphore = Semaphore::const_new(1);

/// Maximum number of routes that are searched for one exact filter: many longer ones may precede it.
const EXACT_SEARCH_MAX: usize = 100_000;

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct RoutesQuery {
    /// Exactly this Topic Filter, without `$share/`.
    filter: Option<String>,
    /// Beginning of the Topic Filter.
    prefix: Option<String>,
    /// Number of filters: 1 to 1000; default 100.
    limit: Option<usize>,
}

/// A part of the index, in no particular order.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Routes {
    items: Vec<Route>,
    next: Option<String>,
    /// True when more routes match.
    truncated: bool,
    /// Pairs of filter and destination in the whole index.
    total: u64,
}

/// A Topic Filter and the destination of its messages.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Route {
    filter: String,
    destinations: Vec<Destination>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Destination {
    /// `client`: a connection; `session_qos0`: a durable session's connection, for messages at QoS 0; `shard`: durable
    /// sessions of a shard; `shard_groups`: shared subscriptions of a shard.
    kind: &'static str,
    worker: Option<u16>,
    shard: Option<u16>,
    client_id: Option<String>,
}

/// Lists filters of the routing index with their destinations.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/routes", tag = "routes", operation_id = "list_routes",
    security(("token" = ["viewer"])),
    params(RoutesQuery),
    responses((status = 200, body = Routes)),
))]
async fn list(state: State, Query(query): Query<RoutesQuery>) -> Result<Json<Routes>, Problem> {
    let limit = paging::limit(query.limit)?;
    let Ok(turn) = LISTING.try_acquire() else {
        return Err(Problem::too_many(
            "the routing index is being listed already; try again when that is done",
        ));
    };
    let admin = state.admin.clone();
    let listed = run_blocking(move || {
        // Held to the end, also when the request is dropped earlier.
        let _turn = turn;
        let prefix = query.prefix.unwrap_or_default();
        let Some(filter) = query.filter else { return admin.routes(&prefix, limit) };
        if !filter.starts_with(&prefix) {
            return (Vec::new(), false);
        }
        let (mut found, more) = admin.routes(&filter, EXACT_SEARCH_MAX);
        found.retain(|route| *route.filter == *filter);
        let more = more && found.is_empty();
        (found, more)
    });
    let (found, truncated) = listed.await?;
    let total = state.admin.figures().routes;
    let items = found.into_iter().map(|found| Route {
        filter: found.filter.into(),
        destinations: found
            .destinations
            .into_iter()
            .map(|to| Destination { kind: to.kind, worker: to.worker, shard: to.shard, client_id: None })
            .collect(),
    });
    Ok(Json(Routes { items: items.collect(), next: None, truncated, total }))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct MatchQuery {
    /// A Topic Name.
    topic: String,
    /// Number of receivers: 1 to 1000; default 100.
    limit: Option<usize>,
}

/// Receivers of a message on a topic.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Receivers {
    topic: String,
    receivers: Vec<Receiver>,
    /// True when there are more.
    truncated: bool,
    /// Total number of receivers; each member of a shared subscription counts.
    total: usize,
    /// Nodes of the cluster that did not answer: their receivers are not listed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "document", schema(required = false))]
    missing: Vec<String>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Receiver {
    client_id: String,
    /// Node that it is connected to, or that keeps its session.
    node: String,
    connected: bool,
    /// True when its session outlives its connection.
    durable: bool,
    /// Filters of the receiver that match.
    filters: Vec<String>,
    /// The highest QoS that one of them grants.
    qos: u8,
    /// Shared subscription that delivers the message to one of its members.
    share: Option<String>,
}

/// Lists the clients that would receive a message on this topic now.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/routes/match", tag = "routes", operation_id = "match_routes",
    security(("token" = ["viewer"])),
    params(MatchQuery),
    responses((status = 200, body = Receivers)),
))]
async fn find_receivers(state: State, Query(query): Query<MatchQuery>) -> Result<Json<Receivers>, Problem> {
    let limit = paging::limit(query.limit)?;
    let _turn = super::listing::turn().await?;
    let matches = ask(|reply| state.admin.find_receivers(&query.topic, limit, reply)).await?;
    let receivers: Vec<_> = matches
        .receivers
        .into_iter()
        .map(|receiver| Receiver {
            client_id: receiver.client_id.to_string(),
            node: state.node.name.clone(),
            connected: receiver.connected,
            durable: receiver.durable,
            filters: receiver.filters.into_iter().map(Into::into).collect(),
            qos: receiver.qos as u8,
            share: receiver.share.map(Into::into),
        })
        .collect();
    let truncated = matches.total > receivers.len();
    let (total, missing) = (matches.total, Vec::new());
    Ok(Json(Receivers { topic: query.topic, receivers, truncated, total, missing }))
}
