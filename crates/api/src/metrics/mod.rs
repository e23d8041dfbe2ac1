//! Metrics: what the server counts of itself, and how figures become Prometheus' text format.

mod http;
mod text;

pub use http::{BOUNDS, HttpMetrics, Rejected};
pub use text::{Kind, Text};
