//! What a run found.

use super::checker::{Checker, Loss};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// What is counted besides messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub disconnects: u64,
    pub failed_attempts: u64,
    pub reconnects: u64,
    pub resumed: u64,
    /// Sessions that the broker no longer had, of publishers and of subscribers.
    pub lost_publishers: u64,
    pub lost_subscribers: u64,
    pub foreign: u64,
    pub corrupt: u64,
    /// Deliveries with another QoS, another topic, or RETAIN, than they were sent with.
    pub changed: u64,
    /// Deliveries to clients that did not subscribe.
    pub unexpected: u64,
    pub protocol_errors: u64,
    pub pings: u64,
}

/// What happened to one client, for the report.
pub struct Event {
    /// Nanoseconds since publishing began; 0 before.
    pub at: u64,
    pub client: String,
    pub what: String,
}

/// What a run found.
pub struct RunResult {
    /// Why nothing could begin.
    pub never_began: Option<String>,
    /// Why publishing ended before its time.
    pub ended_early: Option<&'static str>,
    pub checker: Checker,
    pub losses: Vec<Loss>,
    pub lost: u64,
    pub counts: Counts,
    pub reasons: BTreeMap<String, u64>,
    pub events: Vec<Event>,
    /// Messages that were not acknowledged, and those that were due and never sent.
    pub unacknowledged: u64,
    pub unsent: u64,
    pub resent: u64,
    pub releases_resent: u64,
    pub unexpected_acks: u64,
    pub hidden: u64,
    pub up: usize,
    pub clients: usize,
    /// The shortest Session Expiry Interval that the broker gave, if it was not the one asked for.
    pub expiry: Option<u32>,
    /// Length and begin, from the begin of publishing, in nanoseconds: when nobody got anything, and the worst subscriber's.
    pub silence: (u64, u64),
    pub silence_of_one: (u64, u64, usize),
    pub latency: Histogram<u64>,
    pub reconnect: Histogram<u64>,
    /// Nanoseconds of publishing and of waiting for the rest.
    pub published_for: u64,
    pub drained_for: u64,
    /// Nobody was connected for the last part of the run.
    pub away_since: Option<u64>,
}
