//! `/stats`: the node in numbers, taken at one moment.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use axum::Json;
use broker::Figure;
use broker::admin::Figures;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::process::ProcessFigures;
use crate::state::State;
use crate::timestamp::Timestamp;
use crate::turns::quantile;

pub(super) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(stats))
}

/// Numbers of the node. Reactors tell theirs about once a second; rates are differences of two answers.
#[derive(Serialize, ToSchema)]
struct Stats {
    at: Timestamp,
    uptime_s: u64,
    /// Clients that are connected.
    connections: u64,
    /// Sessions that outlive their connection.
    sessions: u64,
    subscriptions: u64,
    /// Pairs of Topic Filter and destination in the routing index.
    routes: u64,
    retained: Retained,
    queued: Queued,
    received: Traffic,
    sent: Traffic,
    /// By packet type.
    packets_received: BTreeMap<&'static str, u64>,
    packets_sent: BTreeMap<&'static str, u64>,
    dropped: Dropped,
    /// Every counter of the broker.
    counters: BTreeMap<&'static str, u64>,
    auth: Auth,
    /// Connections that were not taken.
    accept_errors: u64,
    workers: Vec<Worker>,
    process: ProcessFigures,
}

#[derive(Serialize, ToSchema)]
#[schema(as = RetainedFigures)]
struct Retained {
    messages: u64,
    bytes: u64,
}

#[derive(Serialize, ToSchema)]
struct Queued {
    messages: u64,
    /// In flight to durable sessions included.
    bytes: u64,
    /// Of these, for clients that are away.
    absent_bytes: u64,
    /// For how long the oldest message has waited.
    oldest_age_s: f64,
}

#[derive(Serialize, ToSchema)]
#[schema(as = TrafficFigures)]
struct Traffic {
    messages: u64,
    messages_by_qos: [u64; 3],
    /// Of all packets.
    bytes: u64,
}

#[derive(Serialize, ToSchema)]
struct Dropped {
    total: u64,
    by_reason: BTreeMap<&'static str, u64>,
}

/// Questions of who may connect, by answer.
#[derive(Serialize, ToSchema)]
#[schema(as = AuthFigures)]
struct Auth {
    accepted: u64,
    remembered: u64,
    refused: u64,
    busy: u64,
    anonymous_refused: u64,
    banned: u64,
}

/// One reactor.
#[derive(Serialize, ToSchema)]
#[schema(as = WorkerFigures)]
struct Worker {
    worker: usize,
    connections: u64,
    turns: u64,
    /// All time that was not spent waiting.
    busy_us: u64,
    /// Of the last ten seconds, when somebody asked ten seconds ago; else since the start.
    turn_us_p50: u64,
    turn_us_p99: u64,
    queued_bytes: u64,
    mailbox_bytes: u64,
}

/// The node in numbers.
#[utoipa::path(get, path = "/api/v1/stats", tag = "node", operation_id = "stats", security(("token" = ["viewer"])),
    responses((status = 200, body = Stats)))]
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
            absent_bytes: figures.total(|worker| worker.absent_bytes),
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
            remembered: auth.remembered,
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

fn traffic(messages_by_qos: [u64; 3], bytes: u64) -> Traffic {
    Traffic { messages: messages_by_qos.iter().sum(), messages_by_qos, bytes }
}

fn dropped(each: &[Figure]) -> Dropped {
    let mut by_reason = BTreeMap::new();
    for figure in each.iter().filter(|figure| figure.family == "messages_dropped") {
        if let Some((_, reason)) = figure.label {
            *by_reason.entry(reason).or_default() += figure.value;
        }
    }
    Dropped { total: by_reason.values().sum(), by_reason }
}

/// Some counters exist for connections and for sessions: together they are what one name stands for.
fn summed(each: &[Figure]) -> BTreeMap<&'static str, u64> {
    let mut counters = BTreeMap::new();
    each.iter().for_each(|figure| *counters.entry(figure.name).or_default() += figure.value);
    counters
}

fn workers(state: &State, figures: &Figures) -> Vec<Worker> {
    let reactors: Vec<_> = figures.workers.iter().map(|worker| &worker.reactor).collect();
    let lately = state.turns.lately(Instant::now(), &reactors);
    let rows = figures.workers.iter().zip(lately).enumerate();
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

/// For how long the oldest message has waited, in seconds.
pub(super) fn oldest_s(figures: &Figures) -> f64 {
    figures.workers.iter().map(|worker| worker.oldest).max().unwrap_or_default().as_secs_f64()
}

/// The packet's name in lower case, without a space.
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
