//! The exporters: one thread for events, one for spans of the node, one for spans of messages. Their queues have
//! bounds.

use std::sync::Arc;
use std::time::Duration;

use broker::spans::SpanQueues;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_otlp::{LogExporter, Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::logs::{BatchConfigBuilder as LogBatch, BatchLogProcessor, SdkLoggerProvider};
use opentelemetry_sdk::trace::{BatchConfigBuilder as SpanBatch, BatchSpanProcessor, SdkTracerProvider};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::filter_fn;

use super::client::Client;
use super::messages::MessageSpans;
use super::{BoxedLayer, Endpoint, OtelSettings};

/// Log target of the exporters. Its events are not sent, or a failing collector would cause ever more requests.
pub const TARGET: &str = "meridian::otel";

pub struct Export {
    logs: SdkLoggerProvider,
    spans: SdkTracerProvider,
    messages: Option<MessageSpans>,
    /// Time for the last batch of each of these exporters.
    patience: Duration,
}

impl Export {
    pub fn start(endpoint: &Endpoint, settings: &OtelSettings, node: &str) -> Result<Self, String> {
        let resource = Resource::builder_empty()
            .with_service_name(settings.service_name.clone())
            .with_attributes([
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
                KeyValue::new("service.instance.id", node.to_owned()),
            ])
            .build();
        let client = Client::new(settings.timeout);
        let queue = usize::try_from(settings.queue_max).unwrap_or(usize::MAX);
        let build_error =
            |error: opentelemetry_otlp::ExporterBuildError| format!("otel.endpoint {endpoint}: {error}");

        let exporter = LogExporter::builder()
            .with_http()
            .with_http_client(client.clone())
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(settings.timeout)
            .with_endpoint(format!("{endpoint}/v1/logs"))
            .build()
            .map_err(build_error)?;
        let batch = LogBatch::default().with_max_queue_size(queue).build();
        let processor = BatchLogProcessor::builder(exporter).with_batch_config(batch).build();
        let logs = SdkLoggerProvider::builder()
            .with_resource(resource.clone())
            .with_log_processor(processor)
            .build();

        let span_exporter = || {
            SpanExporter::builder()
                .with_http()
                .with_http_client(client.clone())
                .with_protocol(Protocol::HttpBinary)
                .with_timeout(settings.timeout)
                .with_endpoint(format!("{endpoint}/v1/traces"))
                .build()
                .map_err(build_error)
        };
        let messages = match settings.messages {
            true => Some(MessageSpans::start(span_exporter()?, &resource, settings)?),
            false => None,
        };
        let exporter = span_exporter()?;
        let batch = SpanBatch::default().with_max_queue_size(queue).build();
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batch).build();
        let spans =
            SdkTracerProvider::builder().with_resource(resource).with_span_processor(processor).build();
        Ok(Self { logs, spans, messages, patience: settings.timeout / 3 })
    }

    pub fn message_spans(&self) -> Option<Arc<SpanQueues>> {
        self.messages.as_ref().map(MessageSpans::queues)
    }

    pub fn layer(&self) -> BoxedLayer {
        let spans = tracing_opentelemetry::layer().with_tracer(self.spans.tracer("meridian"));
        let logs = OpenTelemetryTracingBridge::new(&self.logs);
        spans.and_then(logs).with_filter(filter_fn(|metadata| metadata.target() != TARGET)).boxed()
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if let Some(messages) = self.messages.take() {
            messages.stop(self.patience);
        }
        for result in
            [self.spans.shutdown_with_timeout(self.patience), self.logs.shutdown_with_timeout(self.patience)]
        {
            if let Err(error) = result {
                tracing::warn!(target: TARGET, %error, "events and spans that waited for the collector are lost");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::TcpListener;
    use std::sync::Mutex;
    use std::thread;

    use settings::{Raw, Value as _};
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    type Requests = Vec<(String, Vec<u8>)>;

    /// A collector that answers `count` requests with `status`, and returns path and body of each.
    fn collector(count: usize, status: &'static str) -> (Endpoint, thread::JoinHandle<Requests>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint =
            Endpoint::from_raw(&Raw::Text(format!("http://{}", listener.local_addr().unwrap()))).unwrap();
        let thread = thread::spawn(move || {
            let mut requests = vec![];
            while requests.len() < count {
                let mut stream = BufReader::new(listener.accept().unwrap().0);
                let (mut path, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    stream.read_line(&mut line).unwrap();
                    match line.trim_end().split_once(' ') {
                        None => break,
                        Some(("POST", rest)) => path = rest.split(' ').next().unwrap().to_owned(),
                        Some((name, value)) if name.eq_ignore_ascii_case("content-length:") => {
                            length = value.parse().unwrap();
                        }
                        Some(_) => {}
                    }
                }
                let mut body = vec![0; length];
                stream.read_exact(&mut body).unwrap();
                write!(
                    stream.get_mut(),
                    "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                )
                .unwrap();
                requests.push((path, body));
            }
            requests
        });
        (endpoint, thread)
    }

    fn holds(body: &[u8], text: &str) -> bool {
        body.windows(text.len()).any(|window| window == text.as_bytes())
    }

    #[test]
    fn events_and_spans_reach_the_collector_before_the_node_has_stopped() {
        let (endpoint, collector) = collector(2, "200 OK");
        let export = Export::start(&endpoint, &OtelSettings::default(), "node-7").unwrap();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(export.layer()), || {
            let _span = tracing::info_span!("reload").entered();
            tracing::info!(setting = "mqtt.qos_max", "changed");
            tracing::warn!(target: TARGET, "about itself");
        });
        drop(export);
        let mut requests = collector.join().unwrap();
        requests.sort();
        let [(logs, events), (traces, spans)] = &requests[..] else { panic!("two requests") };
        assert_eq!((logs.as_str(), traces.as_str()), ("/v1/logs", "/v1/traces"));
        for text in ["node-7", "changed", "mqtt.qos_max"] {
            assert!(holds(events, text), "{text}");
        }
        assert!(holds(spans, "reload") && holds(spans, "node-7"));
        assert!(!holds(events, "about itself"), "events about sending are not sent");
    }

    /// A log destination that a test can read.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_lost_collector_is_logged_once_although_exporters_are_not_observed() {
        let (endpoint, collector) = collector(1, "200 OK");
        let export = Export::start(&endpoint, &OtelSettings::default(), "n").unwrap();
        let written = Written::default();
        let writer = {
            let written = written.clone();
            move || written.clone()
        };
        let log = tracing_subscriber::registry()
            .with(export.layer())
            .with(tracing_subscriber::fmt::layer().with_writer(writer));
        tracing::subscriber::with_default(log, || {
            let _exporter = opentelemetry::Context::enter_telemetry_suppressed_scope();
            let client = Client::new(Duration::from_secs(1));
            let error = "nobody there".into();
            client.note(Err(&error));
            client.note(Err(&error));
        });
        // The collector ends when it has received the end of the span.
        tracing::subscriber::with_default(tracing_subscriber::registry().with(export.layer()), || {
            tracing::info_span!("last").in_scope(|| ());
        });
        drop(export);
        collector.join().unwrap();
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.matches("nobody there").count(), 1, "{text}");
    }

    /// Cases: a refusal, and a collector that does not exist.
    #[test]
    fn a_failing_collector_is_counted_and_has_no_other_effect() {
        let client = Client::new(Duration::from_secs(5));
        let (endpoint, refusing) = collector(1, "503 Service Unavailable");
        let request = |endpoint: &Endpoint| {
            opentelemetry_http::Request::post(format!("{endpoint}/v1/logs"))
                .body(opentelemetry_http::Bytes::new())
                .unwrap()
        };
        assert!(client.send(request(&endpoint)).unwrap_err().to_string().contains("503"));
        refusing.join().unwrap();
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let endpoint = Endpoint::from_raw(&Raw::Text(format!("http://{nobody}"))).unwrap();
        let error = client.send(request(&endpoint)).unwrap_err();
        client.note(Err(&error));
        client.note(Err(&error));
        assert_eq!(client.lost(), 2);
        client.note(Ok(()));
        assert_eq!(client.lost(), 0);
    }
}
