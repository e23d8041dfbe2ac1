//! Metrics: the counters of the server, and the conversion of figures into Prometheus' text format.

mod http;
mod text;

pub use http::{BOUNDS, HttpMetrics, Rejected};
pub use text::{Kind, Text};
