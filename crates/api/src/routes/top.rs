//! `/top`: the busiest clients and topics.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use broker::admin::Busy;
use serde::{Deserialize, Serialize};
#[cfg(feature = "document")]
use utoipa::{IntoParams, ToSchema};

use crate::ask::ask;
use crate::extract::Query;
use crate::paging;
use crate::problem::Problem;
use crate::state::State;

api_routes! {
    "/api/v1/top": get top;
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct TopQuery {
    /// Number of names of each kind: 1 to 50; default 10.
    limit: Option<usize>,
}

/// The busiest clients and topics over the last whole window, busiest first. Figures are estimates.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Top {
    /// Length of the window in seconds; 0 when no window is complete yet.
    window_s: f64,
    /// Sampling interval: one message in this number was examined.
    sample: u64,
    publishers: Vec<BusyClient>,
    subscribers: Vec<BusyClient>,
    topics: Vec<BusyTopic>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct BusyClient {
    client_id: String,
    messages_per_s: f64,
    bytes_per_s: f64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct BusyTopic {
    topic: String,
    messages_per_s: f64,
    bytes_per_s: f64,
}

/// Lists the busiest publishers, subscribers and topics, by sampling.
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/top", tag = "node", operation_id = "get_top",
    security(("token" = ["viewer"])),
    params(TopQuery),
    responses((status = 200, body = Top)),
))]
async fn top(state: State, Query(query): Query<TopQuery>) -> Result<Json<Top>, Problem> {
    let limit = paging::limit_within(query.limit, 10, 1..=50)?;
    let admin = &state.admin;
    let mut all = Vec::new();
    for worker in admin.workers() {
        all.push(ask(|reply| admin.top(worker, reply)).await?);
    }
    // Each worker has its own windows, which begin within about a second of each other.
    let window = all.iter().map(|top| top.window).max().unwrap_or_default();
    let sample = all.iter().map(|top| top.sample).max().unwrap_or_default();
    let merge = |of: fn(&broker::admin::Top) -> &Vec<Busy>| {
        let rates = all.iter().flat_map(|top| of(top).iter().map(|busy| (busy, top.window.as_secs_f64())));
        busiest(rates, limit)
    };
    let client = |(name, rate): (Arc<str>, Rate)| BusyClient {
        client_id: name.to_string(),
        messages_per_s: rate.messages,
        bytes_per_s: rate.bytes,
    };
    let topic = |(name, rate): (Arc<str>, Rate)| BusyTopic {
        topic: name.to_string(),
        messages_per_s: rate.messages,
        bytes_per_s: rate.bytes,
    };
    Ok(Json(Top {
        window_s: rounded(window.as_secs_f64()),
        sample,
        publishers: merge(|top| &top.publishers).into_iter().map(client).collect(),
        subscribers: merge(|top| &top.subscribers).into_iter().map(client).collect(),
        topics: merge(|top| &top.topics).into_iter().map(topic).collect(),
    }))
}

/// Rate per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rate {
    messages: f64,
    bytes: f64,
}

/// Adds up the samples of each worker by name. A sample has the length of its window in seconds.
fn busiest<'a>(seen: impl Iterator<Item = (&'a Busy, f64)>, limit: usize) -> Vec<(Arc<str>, Rate)> {
    let mut by_name: HashMap<Arc<str>, Rate> = HashMap::new();
    for (busy, seconds) in seen.filter(|(_, seconds)| *seconds > 0.0) {
        let rate = by_name.entry(busy.name.clone()).or_default();
        rate.messages += busy.messages as f64 / seconds;
        rate.bytes += busy.bytes as f64 / seconds;
    }
    let mut all: Vec<_> = by_name.into_iter().collect();
    all.sort_by(|a, b| b.1.messages.total_cmp(&a.1.messages).then_with(|| a.0.cmp(&b.0)));
    all.truncate(limit);
    for (_, rate) in &mut all {
        *rate = Rate { messages: rounded(rate.messages), bytes: rounded(rate.bytes) };
    }
    all
}

/// Rounds to the precision of an estimate.
fn rounded(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_one_name_are_added_up() {
        let busy = |name: &str, messages, bytes| Busy { name: name.into(), messages, bytes };
        let (a, b, c) = (busy("a", 160, 1600), busy("b", 320, 10), busy("a", 320, 3200));
        let seen = [(&a, 10.0), (&b, 10.0), (&c, 10.0), (&b, 0.0)];
        let top = busiest(seen.into_iter(), 5);
        let names: Vec<_> = top.iter().map(|(name, rate)| (&**name, rate.messages, rate.bytes)).collect();
        assert_eq!(names, [("a", 48.0, 480.0), ("b", 32.0, 1.0)]);
        assert_eq!(busiest(seen.into_iter(), 1).len(), 1);
    }
}
