//! `/stats`: figures of the node at one moment.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use axum::Json;
use broker::Figure;
use broker::admin::Figures;
use serde::{Deserialize, Serialize};
#[cfg(feature = "document")]
use utoipa::{IntoParams, ToSchema};

use crate::extract::Query;
use crate::history::{HistoryView, SAMPLES_MAX, STEP_S, dropped_by_reason};
use crate::problem::Problem;
use crate::process::ProcessFigures;
use crate::state::State;
use crate::timestamp::Timestamp;
use crate::turns::quantile;

api_routes! {
    "/api/v1/stats": get stats;
    "/api/v1/stats/history": get history;
}

/// Figures of the node. Reactors publish theirs about once a second; rates are differences of two answers.
#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Stats {
    at: Timestamp,
    uptime_s: u64,
    /// Connected clients.
    connections: u64,
    /// Durable sessions.
    sessions: u64,
    subscriptions: u64,
    /// Pairs of Topic Filter and destination in the routing index.
    routes: u64,
    retained: Retained,
    queued: Queued,
    received: Traffic,
    sent: Traffic,
    /// Packets by type.
    packets_received: BTreeMap<&'static str, u64>,
    packets_sent: BTreeMap<&'static str, u64>,
    dropped: Dropped,
    /// Every counter of the broker.
    counters: BTreeMap<&'static str, u64>,
    auth: Auth,
    /// Connections that could not be accepted.
    accept_errors: u64,
    workers: Vec<Worker>,
    process: ProcessFigures,
}

#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[cfg_attr(feature = "document", schema(as = RetainedFigures))]
struct Retained {
    messages: u64,
    bytes: u64,
}

#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Queued {
    messages: u64,
    /// Bytes of waiting messages, including those in flight to durable sessions.
    bytes: u64,
    /// Part of `bytes` for clients that are not connected.
    offline_bytes: u64,
    /// Age of the oldest waiting message, in seconds.
    oldest_age_s: f64,
}

#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[cfg_attr(feature = "document", schema(as = TrafficFigures))]
struct Traffic {
    messages: u64,
    messages_by_qos: [u64; 3],
    /// Bytes of all packets.
    bytes: u64,
}

#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct Dropped {
    total: u64,
    by_reason: BTreeMap<&'static str, u64>,
}

/// Authentications by result.
#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[cfg_attr(feature = "document", schema(as = AuthFigures))]
struct Auth {
    accepted: u64,
    cached: u64,
    refused: u64,
    busy: u64,
    anonymous_refused: u64,
    banned: u64,
}

/// One reactor.
#[derive(Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[cfg_attr(feature = "document", schema(as = WorkerFigures))]
struct Worker {
    worker: usize,
    connections: u64,
    turns: u64,
    /// Time that was not spent waiting, in microseconds.
    busy_us: u64,
    /// Percentile of the last ten seconds when a request came ten seconds ago; otherwise since the start.
    turn_us_p50: u64,
    turn_us_p99: u64,
    queued_bytes: u64,
    mailbox_bytes: u64,
}

/// Returns figures of the node.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/stats", tag = "node", operation_id = "stats", security(("token" = ["viewer"])),
    responses((status = 200, body = Stats))))]
async fn stats(state: State) -> Json<Stats> {
    let figures = state.admin.figures();
    let (counters, store, packets) = figures.counters();
    let each: Vec<Figure> = counters.each().chain(store.each()).collect();
    let packets_by = |count: fn((u64, u64)) -> u64| {
        packets
            .each()
            .map(|(packet, received, sent)| (packet_name(packet), count((received, sent))))
            .collect()
    };
    let auth = state.guard.figures();
    let now = SystemTime::now();
    Json(Stats {
        at: now.into(),
        uptime_s: now.duration_since(state.admin.started()).map_or(0, |uptime| uptime.as_secs()),
        connections: figures.total(|worker| worker.connections),
        sessions: figures.total(|worker| worker.sessions),
        subscriptions: figures.subscriptions(),
        routes: figures.routes,
        retained: Retained {
            messages: figures.total(|worker| worker.retained_messages),
            bytes: figures.total(|worker| worker.retained_bytes),
        },
        queued: Queued {
            messages: figures.total(|worker| worker.waiting_messages),
            bytes: figures.total(|worker| worker.queued_bytes),
            offline_bytes: figures.total(|worker| worker.offline_bytes),
            oldest_age_s: oldest_s(&figures),
        },
        received: traffic(
            [counters.received_qos0, counters.received_qos1, counters.received_qos2],
            counters.bytes_received,
        ),
        sent: traffic([counters.sent_qos0, counters.sent_qos1, counters.sent_qos2], counters.bytes_sent),
        packets_received: packets_by(|(received, _)| received),
        packets_sent: packets_by(|(_, sent)| sent),
        dropped: dropped(&each),
        counters: summed(&each),
        auth: Auth {
            accepted: auth.accepted,
            cached: auth.remembered,
            refused: auth.refused,
            busy: auth.busy,
            anonymous_refused: auth.anonymous_refused,
            banned: auth.banned,
        },
        accept_errors: figures.total(|worker| {
            let errors = worker.reactor.accept_errors;
            errors.descriptors + errors.limit + errors.other
        }),
        workers: workers(&state, &figures),
        process: ProcessFigures::read(),
    })
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct HistoryQuery {
    /// Length of the history in seconds: 5 to 3600; default 3600.
    seconds: Option<u64>,
}

/// Returns main figures of the last hour, every five seconds.
///
/// In a cluster, a request without `node` returns the sum over all nodes. Each node keeps its own hour in memory. Nodes
/// have two seconds to answer.
#[cfg_attr(feature = "document", utoipa::path(get, path = "/api/v1/stats/history", tag = "node", operation_id = "stats_history", security(("token" = ["viewer"])),
    params(HistoryQuery), responses((status = 200, body = HistoryView))))]
async fn history(state: State, Query(query): Query<HistoryQuery>) -> Result<Json<HistoryView>, Problem> {
    const SECONDS_MAX: u64 = SAMPLES_MAX as u64 * STEP_S;
    let seconds = query.seconds.unwrap_or(SECONDS_MAX);
    if !(STEP_S..=SECONDS_MAX).contains(&seconds) {
        return Err(Problem::bad_request(format!(
            "seconds: expected {STEP_S} to {SECONDS_MAX}, found {seconds}"
        )));
    }
    let steps = usize::try_from(seconds.div_ceil(STEP_S)).unwrap_or(SAMPLES_MAX);
    Ok(Json(state.history.view(&state.node.name, steps)))
}

fn traffic(messages_by_qos: [u64; 3], bytes: u64) -> Traffic {
    Traffic { messages: messages_by_qos.iter().sum(), messages_by_qos, bytes }
}

fn dropped(each: &[Figure]) -> Dropped {
    let by_reason = dropped_by_reason(each.iter().copied());
    Dropped { total: by_reason.values().sum(), by_reason }
}

/// Adds up counters of one name: some exist for connections and for sessions.
fn summed(each: &[Figure]) -> BTreeMap<&'static str, u64> {
    let mut counters = BTreeMap::new();
    each.iter().for_each(|figure| *counters.entry(figure.name).or_default() += figure.value);
    counters
}

fn workers(state: &State, figures: &Figures) -> Vec<Worker> {
    let reactors: Vec<_> = figures.workers.iter().map(|worker| &worker.reactor).collect();
    let recent = state.turns.recent(Instant::now(), &reactors);
    let rows = figures.workers.iter().zip(recent).enumerate();
    rows.map(|(index, (worker, turns))| Worker {
        worker: index,
        connections: worker.connections,
        turns: worker.reactor.turns,
        busy_us: u64::try_from(worker.reactor.busy.as_micros()).unwrap_or(u64::MAX),
        turn_us_p50: quantile(&turns, 0.5),
        turn_us_p99: quantile(&turns, 0.99),
        queued_bytes: worker.queued_bytes,
        mailbox_bytes: worker.reactor.mailbox_bytes,
    })
    .collect()
}

/// Age of the oldest waiting message, in seconds.
pub(super) fn oldest_s(figures: &Figures) -> f64 {
    figures.workers.iter().map(|worker| worker.oldest).max().unwrap_or_default().as_secs_f64()
}

/// Returns the packet's name in lower case, without a space.
pub(super) fn packet_name(packet: mqtt::PacketType) -> &'static str {
    use mqtt::PacketType as P;
    match packet {
        P::Connect => "connect",
        P::ConnAck => "connack",
        P::Publish => "publish",
        P::PubAck => "puback",
        P::PubRec => "pubrec",
        P::PubRel => "pubrel",
        P::PubComp => "pubcomp",
        P::Subscribe => "subscribe",
        P::SubAck => "suback",
        P::Unsubscribe => "unsubscribe",
        P::UnsubAck => "unsuback",
        P::PingReq => "pingreq",
        P::PingResp => "pingresp",
        P::Disconnect => "disconnect",
        P::Auth => "auth",
    }
}
