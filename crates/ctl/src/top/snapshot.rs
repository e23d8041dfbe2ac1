//! Figures of the node at one moment, as far as `top` shows them.

use std::time::SystemTime;

use serde_json::Value;

use crate::alarms;
use crate::client::Client;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::query::Query;
use crate::wall_clock;

/// The answers as received.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    pub node: Value,
    pub stats: Value,
    pub top: Value,
    pub slow: Value,
    pub alarms: Value,
}

impl Answers {
    /// # Errors
    /// Those of the client.
    pub fn ask(client: &Client) -> Result<Self, Failure> {
        let busiest = Query::new().with("limit", 50);
        Ok(Self {
            node: client.get("/api/v1/node", &Query::new())?,
            stats: client.get("/api/v1/stats", &Query::new())?,
            top: client.get("/api/v1/top", &busiest)?,
            slow: client.get("/api/v1/slow-subscribers", &busiest)?,
            alarms: alarms::ask(client)?,
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    pub at: Option<SystemTime>,
    pub name: String,
    pub version: String,
    pub state: String,
    pub started_at: String,
    pub uptime_s: f64,
    pub connections: u64,
    pub connections_max: u64,
    pub sessions: u64,
    pub subscriptions: u64,
    pub routes: u64,
    pub retained: (u64, u64),
    pub queued: Queued,
    pub received: Counted,
    pub sent: Counted,
    pub dropped: u64,
    /// Reason and count, in the node's order.
    pub drops: Vec<(String, u64)>,
    pub workers: Vec<Worker>,
    pub accept_errors: u64,
    pub cpu_s: f64,
    pub resident_bytes: u64,
    pub open_fds: u64,
    pub max_fds: u64,
    pub publishers: Vec<Talker>,
    pub subscribers: Vec<Talker>,
    pub topics: Vec<Talker>,
    pub window_s: f64,
    pub slow: Vec<Slow>,
    pub threshold_ms: f64,
    /// Alarms, errors first, without notices.
    pub alarms: Vec<Alarm>,
}

/// A present fault.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Alarm {
    pub is_error: bool,
    pub text: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Queued {
    pub messages: u64,
    pub bytes: u64,
    pub offline_bytes: u64,
    pub oldest_age_s: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    pub messages: u64,
    pub bytes: u64,
}

/// One reactor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Worker {
    pub name: String,
    pub connections: u64,
    /// Busy time since the start.
    pub busy_us: u64,
    pub turn_us_p50: f64,
    pub turn_us_p99: f64,
    pub queued_bytes: u64,
    pub mailbox_bytes: u64,
}

/// A busy client or topic.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Talker {
    pub name: String,
    pub messages_per_s: f64,
    pub bytes_per_s: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slow {
    pub client_id: String,
    pub latency_ms: f64,
    pub topic: String,
    pub at: String,
}

/// Maximum number of rows of a list that are kept, regardless of the answer.
const ROWS_MAX: usize = 256;

impl Snapshot {
    pub fn read(answers: &Answers) -> Self {
        let Answers { node, stats, top, slow, alarms } = answers;
        let whole = |path: &str| stats.whole(path).unwrap_or(0);
        let counted = |way: &str| Counted {
            messages: whole(&format!("{way}.messages")),
            bytes: whole(&format!("{way}.bytes")),
        };
        Self {
            at: wall_clock::parse(&stats.text("at")),
            name: node.text("name"),
            version: node.text("version"),
            state: node.text("state"),
            started_at: node.text("started_at"),
            uptime_s: stats.number("uptime_s").unwrap_or(0.0),
            connections: whole("connections"),
            connections_max: node.whole("connections_max").unwrap_or(0),
            sessions: whole("sessions"),
            subscriptions: whole("subscriptions"),
            routes: whole("routes"),
            retained: (whole("retained.messages"), whole("retained.bytes")),
            queued: Queued {
                messages: whole("queued.messages"),
                bytes: whole("queued.bytes"),
                offline_bytes: whole("queued.offline_bytes"),
                oldest_age_s: stats.number("queued.oldest_age_s").unwrap_or(0.0),
            },
            received: counted("received"),
            sent: counted("sent"),
            dropped: whole("dropped.total"),
            drops: drops(stats),
            workers: stats.list("workers").iter().take(ROWS_MAX).map(worker).collect(),
            accept_errors: whole("accept_errors"),
            cpu_s: stats.number("process.cpu_s").unwrap_or(0.0),
            resident_bytes: whole("process.resident_bytes"),
            open_fds: whole("process.open_fds"),
            max_fds: whole("process.max_fds"),
            publishers: talkers(top.list("publishers"), "client_id"),
            subscribers: talkers(top.list("subscribers"), "client_id"),
            topics: talkers(top.list("topics"), "topic"),
            window_s: top.number("window_s").unwrap_or(0.0),
            slow: slow.list("items").iter().take(ROWS_MAX).map(slow_subscriber).collect(),
            threshold_ms: slow.number("threshold_ms").unwrap_or(0.0),
            alarms: alarms
                .list("items")
                .iter()
                .filter(|alarm| alarms::is_trouble(alarm))
                .take(ROWS_MAX)
                .map(alarm)
                .collect(),
        }
    }
}

fn drops(stats: &Value) -> Vec<(String, u64)> {
    let reasons = stats.field("dropped.by_reason").as_object().into_iter().flatten();
    reasons.take(ROWS_MAX).map(|(reason, count)| (reason.clone(), count.as_u64().unwrap_or(0))).collect()
}

fn worker(worker: &Value) -> Worker {
    let whole = |path: &str| worker.whole(path).unwrap_or(0);
    Worker {
        name: worker.cell("worker"),
        connections: whole("connections"),
        busy_us: whole("busy_us"),
        turn_us_p50: worker.number("turn_us_p50").unwrap_or(0.0),
        turn_us_p99: worker.number("turn_us_p99").unwrap_or(0.0),
        queued_bytes: whole("queued_bytes"),
        mailbox_bytes: whole("mailbox_bytes"),
    }
}

fn talkers(list: &[Value], name: &str) -> Vec<Talker> {
    list.iter()
        .take(ROWS_MAX)
        .map(|item| Talker {
            name: item.cell(name),
            messages_per_s: item.number("messages_per_s").unwrap_or(0.0),
            bytes_per_s: item.number("bytes_per_s").unwrap_or(0.0),
        })
        .collect()
}

fn alarm(item: &Value) -> Alarm {
    Alarm { is_error: item.text("severity") == "error", text: item.text("text") }
}

fn slow_subscriber(item: &Value) -> Slow {
    Slow {
        client_id: item.cell("client_id"),
        latency_ms: item.number("latency_ms").unwrap_or(0.0),
        topic: item.cell("topic"),
        at: item.text("at"),
    }
}
