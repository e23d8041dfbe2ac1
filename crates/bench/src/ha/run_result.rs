//! The result of a run.

use super::checker::{Checker, Loss};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// Counts other than messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub disconnects: u64,
    pub failed_attempts: u64,
    pub reconnects: u64,
    pub resumed: u64,
    /// Number of sessions that the broker had lost, of publishers and of subscribers.
    pub lost_publishers: u64,
    pub lost_subscribers: u64,
    pub foreign: u64,
    pub corrupt: u64,
    /// Number of deliveries with another QoS, another topic, or RETAIN, than they were sent with.
    pub changed: u64,
    /// Number of deliveries to clients that did not subscribe.
    pub unexpected: u64,
    pub protocol_errors: u64,
    pub pings: u64,
}

/// An event of one client, for the report.
pub struct Event {
    /// Nanoseconds since publishing began; 0 before.
    pub at: u64,
    pub client: String,
    pub what: String,
}

/// The result of a run.
pub struct RunResult {
    /// Reason why the run could not start.
    pub never_began: Option<String>,
    /// Reason why publishing ended early.
    pub ended_early: Option<&'static str>,
    pub checker: Checker,
    pub losses: Vec<Loss>,
    pub lost: u64,
    pub counts: Counts,
    pub reasons: BTreeMap<String, u64>,
    pub events: Vec<Event>,
    /// Number of unacknowledged messages, and of due messages that were never sent.
    pub unacknowledged: u64,
    pub unsent: u64,
    pub resent: u64,
    pub releases_resent: u64,
    pub unexpected_acks: u64,
    pub hidden: u64,
    pub up: usize,
    pub clients: usize,
    /// The shortest Session Expiry Interval that the broker set, if it differs from the requested one.
    pub expiry: Option<u32>,
    /// Length and start of silence in nanoseconds since publishing began: of all subscribers, and of the worst one.
    pub silence: (u64, u64),
    pub silence_of_one: (u64, u64, usize),
    pub latency: Histogram<u64>,
    pub reconnect: Histogram<u64>,
    /// Nanoseconds of publishing and of waiting for missing messages.
    pub published_for: u64,
    pub drained_for: u64,
    /// Time since which no client was connected, at the end of the run.
    pub away_since: Option<u64>,
}
