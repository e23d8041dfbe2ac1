//! The log: events with fields on standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::layer::{Layered, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use crate::config::{LogFormat, LogLevel, LogSettings};
use crate::otel::{BoxedLayer, Otel};

/// What everything else is laid upon.
type Base = Layered<Option<BoxedLayer>, Registry>;

/// Changes what is logged while the node runs.
pub struct Log {
    filter: reload::Handle<EnvFilter, Base>,
}

impl Log {
    /// Call once in a process.
    pub fn start(settings: &LogSettings, otel: &Otel) -> Self {
        let (filter, handle) = reload::Layer::new(settings.level.filter());
        let registry = tracing_subscriber::registry().with(otel.layer()).with(filter);
        match settings.format {
            LogFormat::Text => {
                let layer =
                    fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
                registry.with(layer).init();
            }
            LogFormat::Json => {
                registry.with(fmt::layer().json().flatten_event(true).with_writer(std::io::stderr)).init();
            }
        }
        Self { filter: handle }
    }

    pub fn set_level(&self, level: &LogLevel) {
        // The only error is that there is no log any more, and then nobody could be told.
        let _ = self.filter.reload(level.filter());
    }
}
