//! OpenTelemetry: the log, spans around long operations, and spans of messages, sent to a collector. Exists in binaries
//! built with the feature `otel`, which is a default; other binaries know the settings, so that they can name the
//! missing feature. Owns `[otel]` and the exporters; `log` decides which events are logged, and the broker which spans
//! of messages are recorded.

#[cfg(feature = "otel")]
mod client;
#[cfg(feature = "otel")]
mod export;
#[cfg(feature = "otel")]
mod messages;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use broker::spans::SpanQueues;
use settings::{Invalid, Raw, Value, section};
use tracing_subscriber::{Layer, Registry};

section! {
    /// OpenTelemetry export (OTLP over HTTP). Binaries that were built without the feature `otel` do not start with an
    /// endpoint.
    [otel]
    pub struct OtelSettings {
        /// Collector that receives log events and spans, such as `http://127.0.0.1:4318`. Nothing is sent when unset.
        pub endpoint: Option<Endpoint> = "", at start;
        /// Value of `service.name` in everything that is sent. `service.instance.id` is the node's name.
        pub service_name: String = "meridian", at start;
        /// Maximum number of log events that wait for the collector, likewise of spans of the node, and of spans of
        /// messages of each reactor. Further ones are dropped.
        pub queue_max: u32 = "2048" in "64..=1000000", at start;
        /// Sends spans of messages that have a sampled `traceparent` (W3C Trace Context) as User Property: where a
        /// message arrives, is routed, forwarded, delivered and acknowledged. Needs `endpoint`.
        pub messages: bool = "false", at start;
        /// Maximum number of messages a second that one reactor traces. Others have no spans, and are counted.
        pub messages_per_second: u32 = "100" in "1..=100000", at start;
        /// Maximum time of a request to the collector, and of all last requests at a stop together.
        pub timeout: Duration = "5s" in "100ms..=1m", at start;
    }
}

/// Address of a collector, without a path. Plain HTTP only: TLS needs a local collector, which also buffers what the
/// remote one does not accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(String);

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Value for Endpoint {
    const TYPE: &'static str = "string";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        let text = String::from_raw(raw)?;
        let host = text.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
        let plain =
            |host: &str| !host.is_empty() && !host.contains(|c: char| "/?#@ ".contains(c) || c.is_control());
        match host {
            Some(host) if plain(host) => Ok(Self(format!("http://{host}"))),
            _ => Err(raw.expected(
                "http:// with host and port of a collector, as in http://127.0.0.1:4318 (for \
                 https run a collector on this machine that forwards everything)",
            )),
        }
    }

    fn to_toml(&self) -> Option<String> {
        self.0.to_toml()
    }
}

/// A layer that sends events or spans to the collector.
pub type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Exporters of a running node. Dropping it sends the queued events and spans, for up to `otel.timeout`.
#[derive(Default)]
pub struct Otel {
    #[cfg(feature = "otel")]
    export: Option<export::Export>,
}

impl Otel {
    /// Checks the settings.
    ///
    /// # Errors
    /// An endpoint in a binary that was built without the feature, or spans of messages without an endpoint. The text
    /// contains advice.
    pub fn check(settings: &OtelSettings) -> Result<(), String> {
        match &settings.endpoint {
            None if settings.messages => Err(
                "otel.messages is true, and there is no collector for the spans: set otel.endpoint, such as \
                 http://127.0.0.1:4318, or set otel.messages = false"
                    .to_owned(),
            ),
            Some(endpoint) if cfg!(not(feature = "otel")) => Err(format!(
                "otel.endpoint is {endpoint}, and this binary was built without OpenTelemetry: unset it, or build with \
                 `cargo build --release` with its default features"
            )),
            _ => Ok(()),
        }
    }

    /// Starts the sending threads when an endpoint is set. `node` is the node's name.
    ///
    /// # Errors
    /// Errors of [`Otel::check`], and a thread that does not start.
    #[cfg(not(feature = "otel"))]
    pub fn start(settings: &OtelSettings, _node: &str) -> Result<Self, String> {
        Self::check(settings).map(|()| Self::default())
    }

    /// Starts the sending threads when an endpoint is set. `node` is the node's name.
    #[cfg(feature = "otel")]
    pub fn start(settings: &OtelSettings, node: &str) -> Result<Self, String> {
        Self::check(settings)?;
        let export =
            settings.endpoint.as_ref().map(|endpoint| export::Export::start(endpoint, settings, node));
        Ok(Self { export: export.transpose()? })
    }

    /// Layer to add to the log, once; `None` when nothing is sent.
    #[cfg(not(feature = "otel"))]
    pub fn layer(&self) -> Option<BoxedLayer> {
        None
    }

    /// Layer to add to the log, once; `None` when nothing is sent.
    #[cfg(feature = "otel")]
    pub fn layer(&self) -> Option<BoxedLayer> {
        self.export.as_ref().map(export::Export::layer)
    }

    /// Queues for the spans of messages; `None` when none are sent.
    #[cfg(not(feature = "otel"))]
    pub fn spans(&self) -> Option<Arc<SpanQueues>> {
        None
    }

    /// Queues for the spans of messages; `None` when none are sent.
    #[cfg(feature = "otel")]
    pub fn spans(&self) -> Option<Arc<SpanQueues>> {
        self.export.as_ref().and_then(export::Export::message_spans)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Result<Endpoint, Invalid> {
        Endpoint::from_raw(&Raw::Text(text.to_owned()))
    }

    #[test]
    fn an_endpoint_is_plain_http_without_a_path() {
        for good in ["http://127.0.0.1:4318", "http://collector", "http://[::1]:4318/"] {
            assert_eq!(endpoint(good).unwrap().to_string(), good.trim_end_matches('/'));
        }
        for bad in [
            "",
            "127.0.0.1:4318",
            "https://collector:4318",
            "http://",
            "http://a/v1/logs",
            "http://a b",
            "http://u@h",
        ] {
            assert!(endpoint(bad).is_err(), "{bad}");
        }
    }

    #[cfg(not(feature = "otel"))]
    #[test]
    fn an_endpoint_in_a_binary_without_the_feature_is_refused_with_advice() {
        let settings =
            OtelSettings { endpoint: Some(endpoint("http://h:1").unwrap()), ..OtelSettings::default() };
        let error = Otel::start(&settings, "n").err().unwrap();
        assert!(error.contains("default features") && error.contains("http://h:1"), "{error}");
        assert!(Otel::start(&OtelSettings::default(), "n").unwrap().layer().is_none());
    }

    #[test]
    fn nothing_is_recorded_without_a_collector() {
        let off = Otel::start(&OtelSettings::default(), "n").unwrap();
        assert!(off.layer().is_none() && off.spans().is_none());
        let settings = OtelSettings { messages: true, ..OtelSettings::default() };
        let error = Otel::start(&settings, "n").err().unwrap();
        assert!(error.contains("otel.endpoint"), "{error}");
    }
}
