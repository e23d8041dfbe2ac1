//! `/topic-metrics`: message counts on the topics of chosen filters.

use axum::Json;
use axum::http::StatusCode;
use broker::admin::{Invalid, Traffic, Watched};
use serde::{Deserialize, Serialize};
#[cfg(feature = "document")]
use utoipa::{IntoParams, ToSchema};

use crate::extract::{Body, Query};
use crate::paging::Page;
use crate::problem::Problem;
use crate::role::Caller;
use crate::state::State;
use crate::timestamp::Timestamp;

api_routes! {
    "/api/v1/topic-metrics": get list, post add, delete remove;
}

/// Counts of one filter.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct TopicMetrics {
    filter: String,
    since_at: Timestamp,
    /// Messages from clients and operators.
    received: MessageCount,
    /// Messages to clients.
    sent: MessageCount,
    /// Deliveries that were dropped.
    dropped: u64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct MessageCount {
    messages: u64,
    by_qos: [u64; 3],
    /// Bytes of payloads.
    bytes: u64,
}

impl From<Traffic> for MessageCount {
    fn from(traffic: Traffic) -> Self {
        Self { messages: traffic.messages(), by_qos: traffic.by_qos, bytes: traffic.bytes }
    }
}

impl TopicMetrics {
    fn new(state: &State, watched: Watched) -> Self {
        Self {
            filter: watched.filter.into(),
            since_at: state.admin.wall(watched.since).into(),
            received: watched.received.into(),
            sent: watched.sent.into(),
            dropped: watched.dropped,
        }
    }
}

/// Lists the filters that are counted, with their figures.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/topic-metrics", tag = "metrics", operation_id = "list_topic_metrics",
    security(("token" = ["viewer"])),
    responses((status = 200, body = Page<TopicMetrics>)),
))]
async fn list(state: State) -> Json<Page<TopicMetrics>> {
    let items = state.admin.watched().into_iter().map(|watched| TopicMetrics::new(&state, watched));
    Json(Page::whole(items.collect()))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct FilterBody {
    /// A Topic Filter, without `$share/`.
    #[cfg_attr(feature = "document", schema(examples("sensors/#")))]
    filter: String,
}

/// Counts messages on topics that match this filter from now on. The limit is 64 filters.
#[cfg_attr(feature = "document", utoipa::path(
    post, path = "/api/v1/topic-metrics", tag = "metrics", operation_id = "add_topic_metrics",
    security(("token" = ["operator"])),
    request_body = FilterBody,
    responses((status = 201, body = TopicMetrics)),
))]
async fn add(
    state: State,
    caller: Caller,
    Body(body): Body<FilterBody>,
) -> Result<(StatusCode, Json<TopicMetrics>), Problem> {
    let filter = body.filter;
    caller.note(|| format!("filter {filter}"));
    if filter.starts_with("$share/") {
        let detail = "topics are counted, not shared subscriptions; leave out $share/ and the name after it";
        return Err(Problem::invalid("filter", detail));
    }
    let watched = state.admin.watch(&filter).map_err(|invalid| match invalid {
        Invalid::Exists => Problem::conflict(format!("`{filter}` is counted already")),
        Invalid::TooMany => {
            Problem::invalid("filter", "64 filters are counted, which is the limit; delete one first")
        }
        other => other.into(),
    })?;
    Ok((StatusCode::CREATED, Json(TopicMetrics::new(&state, watched))))
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct FilterQuery {
    /// The Topic Filter as it was added.
    filter: String,
}

/// Stops counting for a filter and forgets its figures.
#[cfg_attr(feature = "document", utoipa::path(
    delete, path = "/api/v1/topic-metrics", tag = "metrics", operation_id = "remove_topic_metrics",
    security(("token" = ["operator"])),
    params(FilterQuery),
    responses((status = 204)),
))]
async fn remove(
    state: State,
    caller: Caller,
    Query(query): Query<FilterQuery>,
) -> Result<StatusCode, Problem> {
    caller.note(|| format!("filter {}", query.filter));
    if state.admin.unwatch(&query.filter) {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(Problem::not_found(format!("`{}` is not counted", query.filter)))
}
