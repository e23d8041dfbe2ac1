//! `/slow-subscribers`: clients whose deliveries take longest.

use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use settings::{Raw, Value as _};
#[cfg(feature = "document")]
use utoipa::{IntoParams, ToSchema};

use crate::ask::{ask, run_blocking};
use crate::extract::Query;
use crate::paging;
use crate::problem::Problem;
use crate::state::State;
use crate::timestamp::Timestamp;

api_routes! {
    "/api/v1/slow-subscribers": get list, delete forget;
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct SlowQuery {
    /// Number of clients: 1 to 100; default 10.
    limit: Option<usize>,
}

/// The slowest subscribers of the last minutes.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct SlowSubscribers {
    items: Vec<SlowSubscriber>,
    next: Option<String>,
    /// Shorter deliveries are not considered.
    threshold_ms: u64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct SlowSubscriber {
    client_id: String,
    /// Time from the arrival of the message at the node, or of the client if that was later, to its acknowledgement.
    latency_ms: u64,
    topic: String,
    at: Timestamp,
    /// False while the acknowledgement is pending.
    acknowledged: bool,
}

/// Lists the subscribers whose recent deliveries took longest, slowest first, each with its slowest delivery.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/slow-subscribers", tag = "metrics", operation_id = "list_slow_subscribers",
    security(("token" = ["viewer"])),
    params(SlowQuery),
    responses((status = 200, body = SlowSubscribers)),
))]
async fn list(state: State, Query(query): Query<SlowQuery>) -> Result<Json<SlowSubscribers>, Problem> {
    let limit = paging::limit_within(query.limit, 10, 1..=100)?;
    let admin = &state.admin;
    let mut slowest = Vec::new();
    for worker in admin.workers() {
        slowest.extend(ask(|reply| admin.slow(worker, reply)).await?);
    }
    // A client that reconnected on another worker is listed once.
    slowest.sort_by(|a, b| b.latency.cmp(&a.latency).then_with(|| a.client_id.cmp(&b.client_id)));
    let mut listed = std::collections::HashSet::new();
    let items = slowest.into_iter().filter(|slow| listed.insert(slow.client_id.clone())).take(limit);
    let items = items.map(|slow| SlowSubscriber {
        client_id: slow.client_id.to_string(),
        latency_ms: slow.latency.as_millis() as u64,
        topic: slow.topic.into(),
        at: admin.wall(slow.at).into(),
        acknowledged: slow.acknowledged,
    });
    Ok(Json(SlowSubscribers { items: items.collect(), next: None, threshold_ms: threshold(&state).await? }))
}

/// Forgets all slow subscribers.
#[cfg_attr(feature = "document", utoipa::path(
    delete, path = "/api/v1/slow-subscribers", tag = "metrics", operation_id = "forget_slow_subscribers",
    security(("token" = ["operator"])),
    responses((status = 204)),
))]
async fn forget(state: State) -> StatusCode {
    state.admin.forget_slow();
    StatusCode::NO_CONTENT
}

/// Returns `monitor.slow_threshold` in force.
async fn threshold(state: &State) -> Result<u64, Problem> {
    let configuration = state.configuration.clone();
    let view = run_blocking(move || configuration.view()).await?;
    let setting = view.settings.into_iter().find(|setting| setting.name == "monitor.slow_threshold");
    let value = setting.and_then(|setting| Duration::from_raw(&Raw::Text(setting.value?)).ok());
    Ok(value.unwrap_or_else(|| broker::settings::Monitor::default().slow_threshold).as_millis() as u64)
}
