//! Systems outside the broker that actions write to.
//!
//! A [`Target`] is made once from the settings of a connector and an action. It renders outputs of a rule as
//! [`Record`]s, and opens [`Sink`]s, which write records. A sink blocks its thread, with a time limit for each call.
//!
//! **Invariant:** no answer of another system panics, or takes more memory than a constant. **Invariant:** a sink
//! reports success only after the other system has confirmed all records of the call.

#![forbid(unsafe_code)]

mod action;
mod connector;
#[cfg(feature = "file")]
mod file;
mod guard;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "http")]
mod http_client;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "line_protocol")]
mod line_protocol;
#[cfg(any(feature = "http", feature = "kafka", feature = "postgresql"))]
mod names;
#[cfg(feature = "postgresql")]
mod postgresql;
mod record;

pub use action::{ActionSettings, Body, Method, Order, WhenFull};
pub use connector::{ConnectorKind, ConnectorSettings, Sasl};
pub use guard::{Guard, Refused};
pub use record::{Record, Sink, Target, WriteError};

use std::fmt;
use std::sync::Arc;

/// Creates the target of an action from the settings of its connector and its own.
///
/// # Errors
/// The first setting that is wrong.
pub fn target(
    connector: &ConnectorSettings,
    action: &ActionSettings,
    guard: Guard,
) -> Result<Arc<dyn Target>, SinkProblem> {
    // Without features no kind needs them.
    let _ = (action, guard);
    match connector.kind {
        #[cfg(feature = "file")]
        ConnectorKind::File => Ok(Arc::new(file::FileTarget::new(connector, action)?)),
        #[cfg(feature = "kafka")]
        ConnectorKind::Kafka => Ok(Arc::new(kafka::KafkaTarget::new(connector, action, guard)?)),
        #[cfg(feature = "http")]
        ConnectorKind::Http => http::target(connector, action, guard),
        #[cfg(feature = "line_protocol")]
        ConnectorKind::LineProtocol => line_protocol::target(connector, action, guard),
        #[cfg(feature = "postgresql")]
        ConnectorKind::PostgreSql => postgresql::target(connector, action, guard),
        #[allow(unreachable_patterns, reason = "some kinds may not be built in")]
        _ => Err(SinkProblem::new("kind", "it is not built in")),
    }
}

/// Setting that is wrong, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkProblem {
    /// Name of the setting, without its section.
    pub setting: &'static str,
    pub why: String,
}

impl SinkProblem {
    pub fn new(setting: &'static str, why: impl fmt::Display) -> Self {
        Self { setting, why: why.to_string() }
    }
}

impl fmt::Display for SinkProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.why)
    }
}

impl std::error::Error for SinkProblem {}
