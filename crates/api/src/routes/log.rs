//! `/log`: the event log of the node.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::response::Response;
use serde::Deserialize;
use tracing::Level;
#[cfg(feature = "document")]
use utoipa::{IntoParams, ToSchema};

use crate::configuration::LogLevelView;
use crate::extract::{Body, Query};
use crate::log_ring::LogEvent;
use crate::paging::{self, Page};
use crate::problem::Problem;
use crate::role::Caller;
use crate::state::State;

api_routes! {
    "/api/v1/log": get last;
    "/api/v1/log/stream": get stream;
    "/api/v1/log/level": get level, put set_level;
}

#[derive(Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct LogQuery {
    /// Number of events: 1 to 1000; default 100.
    limit: Option<usize>,
    /// Least severe level: `error`, `warn`, `info`, `debug` or `trace`; without it all.
    level: Option<String>,
}

#[derive(Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct StreamQuery {
    /// Least severe level: `error`, `warn`, `info`, `debug` or `trace`; without it all.
    level: Option<String>,
}

fn severity(level: Option<String>) -> Result<Level, Problem> {
    let Some(level) = level else { return Ok(Level::TRACE) };
    let known = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
    let found = known.into_iter().find(|known| known.as_str().eq_ignore_ascii_case(&level));
    found.ok_or_else(|| {
        Problem::bad_request(format!("level: expected error, warn, info, debug or trace, found `{level}`"))
    })
}

/// Lists the last events of the log, newest last. The node keeps 2,000 events of the level in force.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/log", tag = "log", operation_id = "log", security(("token" = ["viewer"])),
    params(LogQuery), responses((status = 200, body = Page<LogEvent>))))]
async fn last(state: State, Query(query): Query<LogQuery>) -> Result<Json<Page<Arc<LogEvent>>>, Problem> {
    let (limit, level) = (paging::limit(query.limit)?, severity(query.level)?);
    Ok(Json(Page::whole(state.log.last(limit, level))))
}

/// Streams events of the log: `log`, `lost` (number of events that the reader was too slow for), `end` (reason).
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/log/stream", tag = "log", operation_id = "log_stream",
    security(("token" = ["viewer"])), params(StreamQuery),
    responses((status = 200, body = LogEvent, content_type = "text/event-stream"))))]
async fn stream(state: State, caller: Caller, Query(query): Query<StreamQuery>) -> Result<Response, Problem> {
    let level = severity(query.level)?;
    let (sink, stream) = state.streams.open()?;
    state.log.follow(level, sink);
    Ok(stream.while_valid(caller.validity(&state)).respond("log", Some, ()))
}

/// Returns the log level in force.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/log/level", tag = "log", operation_id = "log_level",
    security(("token" = ["viewer"])), responses((status = 200, body = LogLevelView))))]
async fn level(state: State) -> Json<LogLevelView> {
    Json(state.configuration.log_level())
}

#[derive(Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct SetLevel {
    /// Level as in `log.level`: `debug`, or `info,edge=debug`.
    level: String,
    /// Seconds until the configured level returns, up to a day; without it, until the next start.
    for_s: Option<u64>,
}

const FOR_MAX: u64 = 24 * 3600;

/// Changes the log level for a time or until the next start. To change it permanently, use the setting `log.level`.
#[cfg_attr(feature = "document", utoipa::path(put, path = "/api/v1/log/level", tag = "log", operation_id = "log_level_set",
    security(("token" = ["operator"])), request_body = SetLevel, responses((status = 200, body = LogLevelView))))]
async fn set_level(
    state: State,
    caller: Caller,
    Body(body): Body<SetLevel>,
) -> Result<Json<LogLevelView>, Problem> {
    if body.for_s.is_some_and(|seconds| !(1..=FOR_MAX).contains(&seconds)) {
        return Err(Problem::invalid("for_s", format!("expected 1 to {FOR_MAX}")));
    }
    let for_time = body.for_s.map(Duration::from_secs);
    let number = state
        .configuration
        .set_log_level(&body.level, for_time)
        .map_err(|error| Problem::invalid("level", error))?;
    caller.note(|| match for_time {
        Some(time) => format!("{} for {} s", body.level, time.as_secs()),
        None => body.level.clone(),
    });
    if let Some(time) = for_time {
        let configuration = state.configuration.clone();
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            configuration.revert_log_level(number);
        });
    }
    Ok(Json(state.configuration.log_level()))
}
