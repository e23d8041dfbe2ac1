//! The log: events with fields on standard error, in the ring that the API shows, and at a collector.

use std::io::IsTerminal as _;
use std::sync::{Mutex, MutexGuard};

use api::{LogRing, Timestamp};
use tracing_subscriber::layer::{Layered, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use crate::config::{ClientLog, LogFormat, LogLevel, LogSettings};
use crate::otel::{BoxedLayer, Otel};

/// Subscriber that the other layers are added to.
type Base = Layered<Option<BoxedLayer>, Registry>;

/// Controls the level of the log while the node runs.
pub struct Log {
    filter: reload::Handle<EnvFilter, Base>,
    ring: LogRing,
    level: Mutex<Level>,
}

/// Levels of the log, and their duration.
#[derive(Clone, Debug)]
struct Level {
    configured: LogLevel,
    /// True when clients that connect and disconnect are logged.
    clients: bool,
    /// Level set by an operator, and the time at which it ends.
    instead: Option<(LogLevel, Option<Timestamp>)>,
    /// Number of the last change.
    number: u64,
}

impl Log {
    /// Starts the log. Call once per process.
    pub fn start(settings: &LogSettings, otel: &Otel) -> Self {
        let (filter, handle) = reload::Layer::new(settings.level.filter(logs_clients(settings)));
        let ring = LogRing::default();
        let registry = tracing_subscriber::registry().with(otel.layer()).with(filter).with(ring.clone());
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
        let clients = logs_clients(settings);
        let level = Level { configured: settings.level.clone(), clients, instead: None, number: 0 };
        Self { filter: handle, ring, level: Mutex::new(level) }
    }

    /// The most recent events.
    pub fn ring(&self) -> &LogRing {
        &self.ring
    }

    /// Applies the configured level. A changed level replaces one that an operator has set temporarily.
    pub fn configure(&self, settings: &LogSettings) {
        let (level, clients) = (&settings.level, logs_clients(settings));
        let mut now = self.lock();
        if now.configured != *level {
            *now = Level { configured: level.clone(), clients, instead: None, number: now.number + 1 };
            self.apply(&now);
        } else if now.clients != clients {
            now.clients = clients;
            self.apply(&now);
        }
    }

    /// Sets a temporary level. Returns the number to pass to [`Log::revert`].
    pub fn set_instead(&self, level: LogLevel, until: Option<Timestamp>) -> u64 {
        let mut now = self.lock();
        now.instead = Some((level, until));
        now.number += 1;
        self.apply(&now);
        now.number
    }

    /// Restores the configured level, unless there was a change after the one with this number.
    pub fn revert(&self, number: u64) {
        let mut now = self.lock();
        if now.number == number && now.instead.take().is_some() {
            self.apply(&now);
        }
    }

    /// The current level, and the time at which it ends if it is temporary.
    pub fn level(&self) -> (LogLevel, Option<Timestamp>) {
        let now = self.lock();
        now.instead.clone().unwrap_or_else(|| (now.configured.clone(), None))
    }

    fn lock(&self) -> MutexGuard<'_, Level> {
        sync::lock(&self.level)
    }

    fn apply(&self, level: &Level) {
        let clients = level.clients;
        let level = level.instead.as_ref().map_or(&level.configured, |(level, _)| level);
        // The only error is that the log is gone, and then nothing can be reported.
        let _ = self.filter.reload(level.filter(clients));
    }
}

fn logs_clients(settings: &LogSettings) -> bool {
    match settings.clients {
        ClientLog::Auto => std::io::stderr().is_terminal(),
        ClientLog::On => true,
        ClientLog::Off => false,
    }
}
