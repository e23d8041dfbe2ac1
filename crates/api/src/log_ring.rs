//! The log ring: the last events of the log in memory, and the followers that stream them.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde::Serialize;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::sse::Sink;
use crate::timestamp::Timestamp;

/// Number of events kept.
pub const EVENTS: usize = 2000;
/// Approximate maximum number of bytes of their texts.
const BYTES: usize = 2 * 1024 * 1024;
/// Maximum number of bytes kept of one text.
const TEXT_MAX: usize = 4096;
/// Maximum number of fields kept of one event.
const FIELDS_MAX: usize = 32;

/// One event of the log.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct LogEvent {
    pub at: Timestamp,
    /// `ERROR`, `WARN`, `INFO`, `DEBUG` or `TRACE`.
    #[cfg_attr(feature = "document", schema(value_type = String))]
    #[serde(serialize_with = "level_name")]
    pub level: Level,
    /// Part of the program that logs the event.
    pub target: String,
    pub message: String,
    #[cfg_attr(feature = "document", schema(value_type = Object))]
    pub fields: Map<String, Value>,
}

fn level_name<S: serde::Serializer>(level: &Level, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(level.as_str())
}

impl LogEvent {
    fn weight(&self) -> usize {
        let fields = self.fields.iter().map(|(name, value)| name.len() + value.as_str().map_or(8, str::len));
        size_of::<Self>() + self.target.len() + self.message.len() + fields.sum::<usize>()
    }
}

/// The ring. It is also a layer of the log: pass a clone to the subscriber. A thread that logs waits only for another
/// one that logs, or for a copy of references. Slow followers lose events and are notified of it.
#[derive(Clone, Debug, Default)]
pub struct LogRing(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    buffer: Mutex<Buffer>,
    followers: Mutex<Vec<(Level, Sink<Arc<LogEvent>>)>>,
    /// Length of `followers`, so that its lock is not taken while there are none.
    following: AtomicUsize,
}

#[derive(Debug, Default)]
struct Buffer {
    events: VecDeque<Arc<LogEvent>>,
    bytes: usize,
}

impl LogRing {
    /// Returns the newest events at least as severe as `level`, newest last.
    pub fn last(&self, limit: usize, level: Level) -> Vec<Arc<LogEvent>> {
        let buffer = sync::lock(&self.0.buffer);
        let severe = buffer.events.iter().rev().filter(|event| event.level <= level);
        let mut events: Vec<_> = severe.take(limit).cloned().collect();
        drop(buffer);
        events.reverse();
        events
    }

    /// Sends events at least as severe as `level` from now on, until the stream of the sink is gone.
    pub(crate) fn follow(&self, level: Level, sink: Sink<Arc<LogEvent>>) {
        let mut followers = sync::lock(&self.0.followers);
        followers.retain(|(_, sink)| !sink.is_closed());
        followers.push((level, sink));
        self.0.following.store(followers.len(), Ordering::Release);
    }

    fn push(&self, event: LogEvent) {
        let event = Arc::new(event);
        if self.0.following.load(Ordering::Acquire) > 0 {
            let mut followers = sync::lock(&self.0.followers);
            followers.retain(|(_, sink)| !sink.is_closed());
            for (level, sink) in followers.iter() {
                if event.level <= *level {
                    sink.send(event.clone());
                }
            }
            self.0.following.store(followers.len(), Ordering::Release);
        }
        let mut buffer = sync::lock(&self.0.buffer);
        buffer.bytes += event.weight();
        buffer.events.push_back(event);
        while buffer.events.len() > EVENTS || buffer.bytes > BYTES {
            let Some(oldest) = buffer.events.pop_front() else { break };
            buffer.bytes -= oldest.weight();
        }
    }
}

impl<S: Subscriber> Layer<S> for LogRing {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut texts = Texts::default();
        event.record(&mut texts);
        let metadata = event.metadata();
        self.push(LogEvent {
            at: Timestamp::now(),
            level: *metadata.level(),
            target: metadata.target().to_owned(),
            message: texts.message,
            fields: texts.fields,
        });
    }
}

#[derive(Default)]
struct Texts {
    message: String,
    fields: Map<String, Value>,
}

impl Texts {
    fn put(&mut self, field: &Field, value: Value) {
        if self.fields.len() < FIELDS_MAX {
            self.fields.insert(field.name().to_owned(), value);
        }
    }
}

impl Visit for Texts {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = format!("{value:?}");
        text.truncate(text.floor_char_boundary(TEXT_MAX));
        match field.name() {
            "message" => self.message = text,
            _ => self.put(field, text.into()),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let text = value[..value.floor_char_boundary(TEXT_MAX)].to_owned();
        match field.name() {
            "message" => self.message = text,
            _ => self.put(field, text.into()),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    fn ring(log: impl FnOnce()) -> LogRing {
        let ring = LogRing::default();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(ring.clone()), log);
        ring
    }

    #[test]
    fn an_event_keeps_its_fields() {
        let ring = ring(|| tracing::warn!(limit = 5, name = "a", ok = true, list = ?[1], "too {}", "many"));
        let event = serde_json::to_value(&*ring.last(1, Level::TRACE)[0]).unwrap();
        assert_eq!((&event["level"], &event["message"]), (&"WARN".into(), &"too many".into()));
        let fields = serde_json::json!({ "limit": 5, "name": "a", "ok": true, "list": "[1]" });
        assert_eq!(event["fields"], fields);
    }

    #[test]
    fn the_newest_events_are_last_and_can_be_filtered_by_severity() {
        let ring = ring(|| {
            tracing::error!("one");
            tracing::info!("two");
            tracing::error!("three");
        });
        let messages = |limit, level| {
            ring.last(limit, level).iter().map(|event| event.message.clone()).collect::<Vec<_>>()
        };
        assert_eq!(messages(9, Level::INFO), ["one", "two", "three"]);
        assert_eq!(messages(9, Level::ERROR), ["one", "three"]);
        assert_eq!(messages(1, Level::INFO), ["three"]);
    }

    #[test]
    fn events_and_bytes_are_bounded() {
        let long = "x".repeat(1 << 20);
        let ring = ring(|| (0..EVENTS + 10).for_each(|number| tracing::info!(number, long, "{long}")));
        let buffer = sync::lock(&ring.0.buffer);
        assert!(
            buffer.bytes <= BYTES && buffer.events.len() < EVENTS,
            "{} {}",
            buffer.bytes,
            buffer.events.len()
        );
        assert_eq!(buffer.events.back().unwrap().fields["number"], EVENTS + 9);
        assert_eq!(buffer.events.iter().map(|event| event.weight()).sum::<usize>(), buffer.bytes);
    }
}
