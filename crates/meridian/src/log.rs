//! The log: events with fields on standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use crate::config::{LogFormat, LogLevel, LogSettings};

/// Changes what is logged while the node runs.
#[derive(Debug)]
pub struct Log {
    filter: reload::Handle<EnvFilter, Registry>,
}

impl Log {
    /// Call once in a process.
    pub fn start(settings: &LogSettings) -> Self {
        let (filter, handle) = reload::Layer::new(settings.level.filter());
        let registry = tracing_subscriber::registry().with(filter);
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
