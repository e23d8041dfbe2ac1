//! `/trace`: live events of a client, on a topic or from a network.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::response::Response;
use base64ct::{Base64, Encoding as _};
use broker::admin::{Direction, Invalid, Trace, TraceEvent, TraceKind, TraceSubject};
use serde::{Deserialize, Serialize};
#[cfg(feature = "document")]
use utoipa::{IntoParams, ToSchema};

use super::clients::network;
use crate::extract::Query;
use crate::problem::Problem;
use crate::role::Caller;
use crate::sse::Sink;
use crate::state::State;
use crate::timestamp::Timestamp;

api_routes! {
    "/api/v1/trace": get trace;
}

const PAYLOAD_MAX: usize = 4096;
const SECONDS_MAX: u64 = 3600;
const SECONDS_DEFAULT: u64 = 60;
const EVENTS_MAX: u64 = 100_000;
const EVENTS_DEFAULT: u64 = 10_000;

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "document", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "document", into_params(parameter_in = Query))]
struct TraceQuery {
    /// Events of this client. One of `client_id`, `topic` and `address` is required.
    client_id: Option<String>,
    /// Each PUBLISH on a topic that matches this Topic Filter, as it arrives and as it is delivered.
    topic: Option<String>,
    /// Events of clients of this address or network, such as `10.0.0.0/8`.
    address: Option<String>,
    /// Number of bytes shown of each payload: 0 to 4096; default 0.
    payload: Option<usize>,
    /// Duration: 1 to 3600 seconds; default 60.
    seconds: Option<u64>,
    /// Maximum number of events: 1 to 100000; default 10000.
    events: Option<u64>,
    /// Kinds of events to include; may be repeated.
    #[serde(default)]
    kind: Vec<String>,
}

/// Subject and limits of a trace.
#[derive(Debug)]
struct Plan {
    subject: TraceSubject,
    payload: usize,
    time: Duration,
    events: u64,
    /// Kinds of events; empty: all.
    kinds: Vec<&'static str>,
}

impl TraceQuery {
    fn plan(self) -> Result<Plan, Problem> {
        let subject = match (self.client_id, self.topic, self.address) {
            (Some(client_id), None, None) => TraceSubject::Client(client_id),
            (None, Some(filter), None) => TraceSubject::Topic(filter),
            (None, None, Some(address)) => {
                let (address, bits) = network("address", &address)?;
                TraceSubject::Network(address, bits)
            }
            _ => {
                return Err(Problem::bad_request(
                    "name what to trace: one of `client_id`, `topic` and `address`",
                ));
            }
        };
        let mut kinds = Vec::new();
        for asked in &self.kind {
            let known = KINDS.iter().find(|(_, name)| name == asked).ok_or_else(|| {
                let names: Vec<_> = KINDS.iter().map(|(_, name)| *name).collect();
                Problem::bad_request(format!("kind: unknown kind `{asked}`; known are {}", names.join(", ")))
            })?;
            kinds.push(known.1);
        }
        let (payload, time) = (self.payload.unwrap_or(0), self.seconds.unwrap_or(SECONDS_DEFAULT));
        let events = self.events.unwrap_or(EVENTS_DEFAULT);
        let within = |name: &str, value: u64, least: u64, most: u64| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(Problem::bad_request(format!("{name}: expected {least} to {most}, found {value}"))),
        };
        within("payload", payload as u64, 0, PAYLOAD_MAX as u64)?;
        within("seconds", time, 1, SECONDS_MAX)?;
        within("events", events, 1, EVENTS_MAX)?;
        Ok(Plan { subject, payload, time: Duration::from_secs(time), events, kinds })
    }
}

const KINDS: [(TraceKind, &str); 10] = [
    (TraceKind::Connect, "connect"),
    (TraceKind::ConnAck, "connack"),
    (TraceKind::Publish(Direction::In), "publish_in"),
    (TraceKind::Publish(Direction::Out), "publish_out"),
    (TraceKind::Packet(Direction::In), "packet_in"),
    (TraceKind::Packet(Direction::Out), "packet_out"),
    (TraceKind::Subscribe, "subscribe"),
    (TraceKind::Unsubscribe, "unsubscribe"),
    (TraceKind::Disconnect, "disconnect"),
    (TraceKind::Dropped, "dropped"),
];

fn kind_name(kind: TraceKind) -> &'static str {
    KINDS.iter().find(|(known, _)| *known == kind).map_or("", |(_, name)| name)
}

/// One event of a trace.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
struct TraceItem {
    at: Timestamp,
    /// `connect`, `connack`, `publish_in`, `publish_out`, `packet_in`, `packet_out`, `subscribe`, `unsubscribe`,
    /// `disconnect` or `dropped`.
    kind: &'static str,
    /// Empty for an operator.
    client_id: String,
    address: Option<String>,
    /// Reactor of the connection.
    worker: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    qos: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retain: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    packet_id: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_bytes: Option<usize>,
    /// Beginning of the payload in Base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason_code: Option<u8>,
    /// One line for people.
    detail: String,
}

impl TraceItem {
    fn new(state: &State, event: TraceEvent, payload: usize) -> Self {
        let is_message = event.payload_bytes.is_some();
        Self {
            at: state.admin.wall(event.at).into(),
            kind: kind_name(event.kind),
            client_id: event.client_id.to_string(),
            address: event.address.map(|address| address.to_string()),
            worker: event.worker.0,
            topic: event.topic.map(Into::into),
            qos: event.qos.map(|qos| qos as u8),
            retain: is_message.then_some(event.retain),
            packet_id: event.packet_id,
            payload_bytes: event.payload_bytes,
            payload: (is_message && payload > 0).then(|| Base64::encode_string(&event.payload)),
            reason_code: event.reason_code,
            detail: event.detail,
        }
    }
}

/// Streams events as they happen, until a limit is reached or the reader disconnects: `trace`, `lost` (number of events
/// that the reader missed), `end` (reason).
#[cfg_attr(feature = "document", utoipa::path(
    get, path = "/api/v1/trace", tag = "trace", operation_id = "trace",
    security(("token" = ["operator"])),
    params(TraceQuery),
    responses(
        (status = 200, body = TraceItem, content_type = "text/event-stream"),
    ),
))]
async fn trace(state: State, caller: Caller, Query(query): Query<TraceQuery>) -> Result<Response, Problem> {
    let Plan { subject, payload, time, events, kinds } = query.plan()?;
    let (sink, stream) = state.streams.open::<TraceEvent>()?;
    let losses = Arc::new(Losses { sink, of_sink: AtomicU64::new(0), reported: AtomicU64::new(0) });
    let at_source = losses.clone();
    let on_event = move |event: TraceEvent| {
        // An event that was not requested does not count as lost.
        if !kinds.is_empty() && !kinds.contains(&kind_name(event.kind)) {
            return true;
        }
        let sent = at_source.sink.send(event);
        if !sent {
            at_source.of_sink.fetch_add(1, Ordering::Relaxed);
        }
        sent
    };
    let running = state.admin.trace(subject, payload, on_event).map_err(|invalid| match invalid {
        Invalid::Filter => Problem::invalid("topic", "expected a Topic Filter, such as sensors/#"),
        other => other.into(),
    })?;
    let running = Arc::new(running);
    let stream = stream.while_valid(caller.validity(&state));
    let of_running = Arc::downgrade(&running);
    let render = move |event| {
        losses.tell(&of_running);
        Some(TraceItem::new(&state, event, payload))
    };
    Ok(stream.for_at_most(time).events_max(events).respond("trace", render, running))
}

/// Number of lost events. The stream counts and reports those that it had no room for. This adds those beyond the rate
/// of a reactor, which never reached the stream.
struct Losses {
    sink: Sink<TraceEvent>,
    of_sink: AtomicU64,
    /// Number of those beyond the rate that are already reported to the reader.
    reported: AtomicU64,
}

impl Losses {
    fn tell(&self, trace: &Weak<Trace>) {
        let Some(trace) = trace.upgrade() else { return };
        let known = self.of_sink.load(Ordering::Relaxed) + self.reported.load(Ordering::Relaxed);
        let more = trace.lost().saturating_sub(known);
        if more > 0 {
            self.sink.lose(more);
            self.reported.fetch_add(more, Ordering::Relaxed);
        }
    }
}
