//! Metrics: what the server counts of itself, and how all figures become Prometheus' text format.

mod http;
mod text;

pub use http::{HttpMetrics, Rejected};
pub use text::{Family, Kind, Text};
