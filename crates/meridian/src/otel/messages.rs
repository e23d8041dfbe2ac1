//! The exporter of spans of messages: a thread that takes them from the workers and sends them.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use broker::spans::{Receivers, Span, SpanLimits, SpanQueues, SpanTexts, Stage};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};

use super::OtelSettings;
use super::export::TARGET;

/// Time between two looks at the queues of the workers.
const INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of spans in a request.
const BATCH_MAX: usize = 512;

/// The thread, and the queues that it empties.
pub struct MessageSpans {
    queues: Arc<SpanQueues>,
    stop: mpsc::SyncSender<Instant>,
    /// Closed by the end of the thread.
    ended: mpsc::Receiver<()>,
}

impl MessageSpans {
    pub fn start(
        mut exporter: SpanExporter,
        resource: &Resource,
        settings: &OtelSettings,
    ) -> Result<Self, String> {
        exporter.set_resource(resource);
        let limits = SpanLimits {
            messages_per_second: settings.messages_per_second,
            queue_max: usize::try_from(settings.queue_max).unwrap_or(usize::MAX),
        };
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(|error| format!("the system has no random bytes: {error}"))?;
        let queues = SpanQueues::new(limits, key, now_ns);
        let (stop, stopped) = mpsc::sync_channel(1);
        let (ends, ended) = mpsc::sync_channel(1);
        let taken = queues.clone();
        // tidy: allow(thread): spans are lost without it, and nothing else.
        let spawned = thread::Builder::new().name("message-spans".to_owned()).spawn(move || {
            run(&taken, &exporter, &stopped);
            drop::<mpsc::SyncSender<()>>(ends);
        });
        spawned.map_err(|error| format!("no thread for the spans of messages: {error}"))?;
        Ok(Self { queues, stop, ended })
    }

    pub fn queues(&self) -> Arc<SpanQueues> {
        self.queues.clone()
    }

    /// Sends the last spans, for up to `patience`.
    pub fn stop(self, patience: Duration) {
        // Errors mean that the thread has ended, which it also does after a panic. That is in the log.
        let _ = self.stop.send(Instant::now() + patience);
        if self.ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(target: TARGET, "spans of messages that waited for the collector are lost");
        }
    }
}

fn run(queues: &SpanQueues, exporter: &SpanExporter, stop: &mpsc::Receiver<Instant>) {
    let mut spare = queues.buffer();
    let scope = InstrumentationScope::builder("meridian").with_version(env!("CARGO_PKG_VERSION")).build();
    loop {
        let until = match stop.recv_timeout(INTERVAL) {
            Err(RecvTimeoutError::Timeout) => None,
            Ok(until) => Some(until),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let mut spans = Vec::new();
        queues.take(&mut spare, |span, texts| spans.push(span_data(span, texts, &scope)));
        let mut spans = spans.into_iter().peekable();
        while spans.peek().is_some() {
            let batch: Vec<_> = spans.by_ref().take(BATCH_MAX).collect();
            let count = batch.len() as u64;
            let add = |counter: &AtomicU64| counter.fetch_add(count, Relaxed);
            let is_late = until.is_some_and(|until| until <= Instant::now());
            // The HTTP client logs the loss of the collector.
            match is_late || finish(exporter.export(batch)).is_err() {
                true => add(&queues.counters.lost),
                false => add(&queues.counters.exported),
            };
        }
        if until.is_some() {
            return;
        }
    }
}

/// Runs a future that never waits: the HTTP client blocks its thread.
fn finish(export: impl Future<Output = OTelSdkResult>) -> OTelSdkResult {
    match pin!(export).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => Err(OTelSdkError::InternalFailure("the exporter waits".to_owned())),
    }
}

fn now_ns() -> u64 {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX)
}

/// Converts a span, with the attribute names of the semantic conventions for messaging.
fn span_data(span: &Span, texts: SpanTexts<'_>, scope: &InstrumentationScope) -> SpanData {
    let (name, kind, operation_type) = match span.stage {
        Stage::Publish { .. } => ("publish", SpanKind::Consumer, Some("receive")),
        Stage::Route(_) => ("route", SpanKind::Internal, None),
        Stage::Forward => ("forward", SpanKind::Producer, Some("send")),
        Stage::Arrive => ("forward", SpanKind::Consumer, Some("receive")),
        Stage::Deliver => ("deliver", SpanKind::Producer, Some("send")),
        Stage::Acknowledge { .. } => ("acknowledge", SpanKind::Internal, Some("settle")),
    };
    let number = |key: &'static str, value: u32| KeyValue::new(key, i64::from(value));
    let mut attributes = vec![
        KeyValue::new("messaging.system", "mqtt"),
        KeyValue::new("messaging.operation.name", name),
        KeyValue::new("messaging.destination.name", texts.topic.to_owned()),
        number("messaging.message.body.size", span.payload_len),
        number("meridian.qos", span.qos as u32),
    ];
    attributes.extend(operation_type.map(|it| KeyValue::new("messaging.operation.type", it)));
    if !texts.client_id.is_empty() {
        attributes.push(KeyValue::new("messaging.client.id", texts.client_id.to_owned()));
    }
    let mut status = Status::Unset;
    match span.stage {
        Stage::Publish { retain, dup } => {
            attributes.extend([KeyValue::new("meridian.retain", retain), KeyValue::new("meridian.dup", dup)]);
        }
        Stage::Route(Receivers { clients, nodes, shards }) => attributes.extend([
            number("meridian.receivers.clients", clients),
            number("meridian.receivers.nodes", nodes),
            number("meridian.receivers.shards", shards),
        ]),
        Stage::Acknowledge { reason } => {
            attributes.push(number("meridian.reason_code", u32::from(reason.as_u8())));
            if reason.is_error() {
                attributes.push(KeyValue::new("error.type", format!("0x{:02x}", reason.as_u8())));
                status = Status::error(reason.to_string());
            }
        }
        Stage::Forward | Stage::Arrive | Stage::Deliver => {}
    }
    let time = |ns: u64| SystemTime::UNIX_EPOCH + Duration::from_nanos(ns);
    // The publisher may have sent what is no list of states.
    let state: TraceState = texts.state.parse().unwrap_or_default();
    let (trace_id, span_id) = (TraceId::from_bytes(span.trace_id), SpanId::from_bytes(span.span_id));
    SpanData {
        span_context: SpanContext::new(trace_id, span_id, TraceFlags::SAMPLED, false, state),
        parent_span_id: SpanId::from_bytes(span.parent_id),
        parent_span_is_remote: span.is_parent_remote,
        span_kind: kind,
        name: name.into(),
        start_time: time(span.start_ns),
        end_time: time(span.end_ns),
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status,
        instrumentation_scope: scope.clone(),
    }
}

#[cfg(test)]
mod tests {
    use mqtt::{QoS, ReasonCode};

    use super::*;

    fn data(stage: Stage, texts: SpanTexts<'_>) -> SpanData {
        let span = Span {
            stage,
            trace_id: [0xab; 16],
            span_id: [0xcd; 8],
            parent_id: [0xef; 8],
            is_parent_remote: true,
            start_ns: 1_000_000_001,
            end_ns: 2_000_000_002,
            qos: QoS::AtLeastOnce,
            payload_len: 7,
        };
        span_data(&span, texts, &InstrumentationScope::default())
    }

    fn attribute(data: &SpanData, key: &str) -> Option<String> {
        let found = data.attributes.iter().find(|attribute| attribute.key.as_str() == key);
        found.map(|attribute| attribute.value.to_string())
    }

    #[test]
    fn a_span_has_the_names_of_the_conventions() {
        let texts = SpanTexts { topic: "a/b", client_id: "c", state: "congo=t61,rojo=1" };
        let publish = data(Stage::Publish { retain: false, dup: true }, texts);
        assert_eq!((&*publish.name, &publish.span_kind), ("publish", &SpanKind::Consumer));
        for (key, value) in [
            ("messaging.system", "mqtt"),
            ("messaging.destination.name", "a/b"),
            ("messaging.operation.type", "receive"),
            ("messaging.operation.name", "publish"),
            ("messaging.client.id", "c"),
            ("messaging.message.body.size", "7"),
            ("meridian.qos", "1"),
            ("meridian.dup", "true"),
        ] {
            assert_eq!(attribute(&publish, key).as_deref(), Some(value), "{key}");
        }
        assert_eq!(publish.span_context.trace_id().to_string(), "ab".repeat(16));
        assert_eq!(publish.span_context.trace_state().header(), texts.state);
        assert_eq!(publish.parent_span_id.to_string(), "ef".repeat(8));
        let took = publish.end_time.duration_since(publish.start_time).unwrap();
        assert_eq!((publish.parent_span_is_remote, took.as_nanos()), (true, 1_000_000_001));
    }

    #[test]
    fn a_refusal_is_an_error() {
        let nothing = SpanTexts::default();
        let ok = data(Stage::Acknowledge { reason: ReasonCode::NoMatchingSubscribers }, nothing);
        assert_eq!((&ok.status, attribute(&ok, "meridian.reason_code")), (&Status::Unset, Some("16".into())));
        assert_eq!(attribute(&ok, "messaging.client.id"), None);
        let refused = data(Stage::Acknowledge { reason: ReasonCode::QuotaExceeded }, nothing);
        assert_eq!(attribute(&refused, "error.type").as_deref(), Some("0x97"));
        assert!(matches!(refused.status, Status::Error { .. }));
    }

    #[test]
    fn what_is_no_trace_state_is_left_out() {
        for state in ["", "no", "a", "a=1,no"] {
            let forward = data(Stage::Forward, SpanTexts { state, ..SpanTexts::default() });
            assert_eq!(forward.span_context.trace_state().header(), "", "{state}");
        }
    }
}
