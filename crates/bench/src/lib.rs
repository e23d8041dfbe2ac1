//! MQTT load generator and delivery checker.
//!
//! It has its own codec and epoll loop, so that it shares no errors with the measured broker and so that the broker
//! is the bottleneck. Read [`Command`] first: [`run`] takes one and returns the report. The threads behind it are
//! `worker`; `run/verdict.rs` judges their results.
//!
//! **Invariant:** every message carries its publisher and sequence number, so loss, duplicates and order are exact
//! counts and not estimates.

// The report is one large `json!` object.
#![recursion_limit = "512"]

mod agent;
mod args;
mod codec;
pub mod command_line;
mod config;
mod counters;
mod ha;
mod latency;
mod layer;
mod live;
mod login;
mod net;
mod outcome;
mod pace;
mod plain;
mod plan;
mod process;
mod progress;
mod properties;
mod pulse;
mod random;
mod report;
mod run;
mod scenario;
mod secret;
mod size;
mod tag;
mod target;
mod template;
mod topology;
mod track;
mod tx_rx;
mod worker;

pub use args::Command;
pub use config::SetupError;
pub use process::on_signals;
pub use run::{Report, interrupt, interrupted, run};
