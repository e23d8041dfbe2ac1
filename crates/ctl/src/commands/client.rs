//! `meridian ctl client` and `kick`: one client.

use std::time::SystemTime;

use base64ct::{Base64, Encoding as _};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use ureq::http::Method;

use super::Command;
use super::subscriptions::{COLUMNS, row};
use crate::confirm::confirm;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::pages::{List, PageArgs};
use crate::query::{Query, encode};
use crate::table::{Table, left, right};
use crate::{escape, human};

/// Show one client, or change it
#[derive(Args, Debug)]
#[command(
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  meridian ctl client sensor-17                        the same as `client show sensor-17`
  meridian ctl client subscriptions sensor-17
  meridian ctl client subscribe sensor-17 'alarms/#' --qos 1
  meridian ctl client queue sensor-17 --payload        its queued messages
  meridian ctl client kick sensor-17                   (or: meridian ctl kick sensor-17)"
)]
pub struct ClientArgs {
    /// Client Identifier
    #[arg(value_name = "CLIENT", required = true)]
    id: Option<String>,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show connection and session
    Show {
        /// Client Identifier
        #[arg(value_name = "CLIENT")]
        id: String,
    },
    Kick(KickArgs),
    /// List its subscriptions
    Subscriptions {
        /// Client Identifier
        #[arg(value_name = "CLIENT")]
        id: String,
        #[command(flatten)]
        page: PageArgs,
    },
    Subscribe(SubscribeArgs),
    /// Remove one of its subscriptions, as if it had sent UNSUBSCRIBE
    Unsubscribe {
        /// Client Identifier
        #[arg(value_name = "CLIENT")]
        id: String,
        /// Topic Filter, as it was subscribed
        filter: String,
    },
    Queue(QueueArgs),
}

/// Close a client's connection
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl kick sensor-17              it may connect again at once; `meridian ctl ban add` prevents that
  meridian ctl kick sensor-17 --session    with its session: subscriptions and queued messages are deleted")]
pub struct KickArgs {
    /// Client Identifier
    #[arg(value_name = "CLIENT")]
    id: String,
    /// End its session too, with its subscriptions and queued messages
    #[arg(long)]
    session: bool,
}

/// Subscribe on the client's behalf; it must be connected
#[derive(Args, Debug)]
struct SubscribeArgs {
    /// Client Identifier
    #[arg(value_name = "CLIENT")]
    id: String,
    /// Topic Filter
    filter: String,
    /// Maximum QoS of deliveries
    #[arg(long, short, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    qos: u8,
    /// Do not deliver messages that the client publishes itself
    #[arg(long)]
    no_local: bool,
    /// Keep the retain flag as the publisher set it
    #[arg(long)]
    retain_as_published: bool,
    /// Retained messages: 0 send them, 1 only for a new subscription, 2 do not send them
    #[arg(long, value_name = "0|1|2", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    retain_handling: u8,
    /// Subscription Identifier
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=268_435_455))]
    subscription_id: Option<u32>,
}

/// Show messages in flight to the client and waiting messages
#[derive(Args, Debug)]
struct QueueArgs {
    /// Client Identifier
    #[arg(value_name = "CLIENT")]
    id: String,
    /// Show at most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    /// Show the beginning of each payload too
    #[arg(long)]
    payload: bool,
}

fn path(id: &str) -> String {
    format!("/api/v1/clients/{}", encode(id))
}

impl Command for ClientArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        match (self.id, self.verb) {
            (Some(id), None) => show(console, &id),
            (None, Some(verb)) => verb.run(console),
            (id, _) => Err(Failure::Usage(format!(
                "`client {0} ..`: the verb comes first, as in `meridian ctl client show {0}`",
                id.unwrap_or_default()
            ))),
        }
    }
}

impl Command for Verb {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        match self {
            Self::Show { id } => show(console, &id),
            Self::Kick(args) => args.run(console),
            Self::Subscriptions { id, page } => {
                let path = format!("{}/subscriptions", path(&id));
                let (columns, row) = (&COLUMNS[2..], |item: &Value| row(item)[2..].to_vec());
                let noun = "subscriptions";
                List { path: &path, query: Query::new(), noun, columns, row: &row, keep: None }
                    .show(console, &page)
            }
            Self::Subscribe(args) => args.run(console),
            Self::Unsubscribe { id, filter } => {
                let path = format!("{}/subscriptions", path(&id));
                let query = Query::new().with("filter", &filter);
                let answer = console.client.send(Method::DELETE, &path, &query, None)?;
                granted(console, &answer, &format!("{id} unsubscribed from {filter}"))
            }
            Self::Queue(args) => args.run(console),
        }
    }
}

impl Command for KickArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        if self.session {
            let what = format!("End the session of {} with its subscriptions and queued messages?", self.id);
            confirm(console, &what)?;
        }
        let query = if self.session { Query::new().with("session", true) } else { Query::new() };
        let answer = console.client.send(Method::DELETE, &path(&self.id), &query, None)?;
        let sentence = match (answer.truth("connection_closed"), answer.truth("session_ended")) {
            (true, true) => "connection closed, session ended",
            (true, false) => "connection closed",
            (false, true) => "session ended; it was not connected",
            (false, false) => "it was not connected; --session ends its session",
        };
        let nodes: Vec<&str> = answer.list("nodes").iter().filter_map(Value::as_str).collect();
        let place = if nodes.is_empty() { String::new() } else { format!(" (node {})", nodes.join(", ")) };
        console.done(&answer, &format!("{}: {sentence}{place}", self.id))
    }
}

impl Command for SubscribeArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let body = json!({
            "filter": self.filter,
            "qos": self.qos,
            "no_local": self.no_local,
            "retain_as_published": self.retain_as_published,
            "retain_handling": self.retain_handling,
            "subscription_id": self.subscription_id,
        });
        let path = format!("{}/subscriptions", path(&self.id));
        let answer = console.client.send(Method::POST, &path, &Query::new(), Some(&body))?;
        granted(console, &answer, &format!("{} subscribed to {}", self.id, self.filter))
    }
}

/// A Reason Code of 0x80 and above is a refusal.
fn granted(console: &mut Console, answer: &Value, what: &str) -> Result<(), Failure> {
    let reason = answer.cell("reason");
    if answer.whole("reason_code").is_some_and(|code| code >= 0x80) {
        if console.json {
            console.document(answer)?;
        }
        return Err(Failure::Failed(format!("not {what}: {reason}")));
    }
    console.done(answer, &format!("{what}: {reason}"))
}

impl Command for QueueArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let query = Query::new().with("limit", self.limit).maybe("payload", self.payload.then_some(true));
        let answer = console.client.get(&format!("{}/queue", path(&self.id)), &query)?;
        if console.json {
            return console.document(&answer);
        }
        let mut columns = vec![
            left("STATE"),
            right("ID"),
            left("TOPIC"),
            right("QOS"),
            left("RETAIN"),
            right("SIZE"),
            right("AGE"),
            right("EXPIRES IN"),
        ];
        columns.extend(self.payload.then_some(left("PAYLOAD")));
        let mut table = Table::new(&columns);
        for message in answer.list("items") {
            let payload = Base64::decode_vec(&message.text("payload")).unwrap_or_default();
            table.row(vec![
                message.cell("state"),
                message.cell("packet_id"),
                message.cell("topic"),
                message.cell("qos"),
                if message.truth("retain") { "yes" } else { "" }.to_owned(),
                message.bytes_cell("payload_bytes"),
                message.ms_cell("age_ms"),
                message.seconds_cell("expires_in_s"),
                escape::bytes(&payload),
            ]);
        }
        console.table(&mut table)?;
        console.flush()?;
        if answer.list("items").is_empty() {
            console.note("nothing is queued");
        } else if answer.truth("truncated") {
            console.note("there are more; --limit N shows up to 1,000");
        }
        Ok(())
    }
}

fn show(console: &mut Console, id: &str) -> Result<(), Failure> {
    let client = console.client.get(&path(id), &Query::new())?;
    if console.json {
        return console.document(&client);
    }
    let now = SystemTime::now();
    let or_none = |path: &str, with: &dyn Fn(&str) -> String| match client.field(path) {
        Value::Null => String::new(),
        _ => with(path),
    };
    let count = |path: &str| or_none(path, &|path| client.count_cell(path));
    let connected = client.truth("connected");
    console.pairs(&[
        ("client", client.cell("client_id")),
        ("state", if connected { "connected" } else { "absent" }.to_owned()),
        ("node", client.text("node")),
        ("address", client.text("address")),
        ("username", client.text("username")),
        ("MQTT", client.text("version")),
        (
            "connected",
            or_none("connected_at", &|path| {
                format!("{} ago, at {}", client.age_cell(path, now), client.time_cell(path))
            }),
        ),
        ("keep alive", or_none("keep_alive_s", &|path| keep_alive(client.number(path)))),
        ("subscriptions", count("subscriptions")),
        ("messages in", count("messages_received")),
        ("messages out", count("messages_sent")),
        ("in flight", count("inflight")),
        (
            "queued",
            format!("{}, {}", client.count_cell("queued_messages"), client.bytes_cell("queued_bytes")),
        ),
    ])?;
    if client.field("connection").is_object() {
        console.line("")?;
        console.line("CONNECTION")?;
        console.pairs(&connection(client.field("connection")))?;
    }
    if client.field("session").is_object() {
        console.line("")?;
        console.line("SESSION")?;
        console.pairs(&session(client.field("session")))?;
    }
    Ok(())
}

/// Show the durable session of one client: where it is kept, who is connected to it, what waits in it
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl session sensor-17
  meridian ctl session sensor-17 --json | jq -r .session.leader

With cluster.replicas each session is in a shard, which has replicas on several cores. One of them leads. Any node answers:
it asks the leader. `owner` is the node that the client is connected to. `epoch` grows with each connection.

Exit code 4: there is no such client.")]
pub struct SessionArgs {
    /// Client Identifier
    #[arg(value_name = "CLIENT")]
    id: String,
}

impl Command for SessionArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let client = console.client.get(&path(&self.id), &Query::new())?;
        let kept = client.field("session");
        if console.json {
            return console.document(&client);
        }
        if kept.is_null() {
            return console.line(&format!(
                "{} has no durable session: its subscriptions end with its connection to {}",
                client.cell("client_id"),
                client.cell("node")
            ));
        }
        let connected = client.truth("connected");
        let owner = match (client.text("owner.connection"), client.text("connection.worker")) {
            _ if !connected => "nobody: the client is not connected".to_owned(),
            (connection, _) if !connection.is_empty() => {
                format!("{}, connection {connection}", client.cell("owner.node"))
            }
            (_, worker) => format!("{}, reactor {worker}", client.cell("node")),
        };
        let replicas: Vec<String> =
            kept.list("replicas").iter().filter_map(Value::as_str).map(Into::into).collect();
        let place = [
            ("client", client.cell("client_id")),
            ("shard", kept.cell("shard")),
            ("leader", kept.cell("leader")),
            ("replicas", replicas.join(", ")),
            ("owner", owner),
            ("epoch", kept.count_cell("epoch")),
            ("subscriptions", client.count_cell("subscriptions")),
            ("inbound QoS 2", kept.count_cell("inbound")),
        ];
        console.pairs(&place.into_iter().chain(session(kept)).collect::<Vec<_>>())
    }
}

fn keep_alive(seconds: Option<f64>) -> String {
    match seconds {
        Some(seconds) if seconds > 0.0 => human::seconds(seconds),
        _ => "none".to_owned(),
    }
}

/// Formats the usage of a user or a mountpoint.
fn holdings(connection: &Value, whose: &str) -> String {
    let count = |name: &str| connection.count_cell(&format!("{whose}.{name}"));
    let bytes = |name: &str| connection.bytes_cell(&format!("{whose}.{name}"));
    format!(
        "{} connections, {} sessions ({}), {} queued, {} retained messages ({})",
        count("connections"),
        count("sessions"),
        bytes("session_bytes"),
        bytes("queued_bytes"),
        count("retained_messages"),
        bytes("retained_bytes"),
    )
}

fn connection(connection: &Value) -> Vec<(&'static str, String)> {
    let yes = |path: &str, what: &str| if connection.truth(path) { what.to_owned() } else { String::new() };
    let there =
        |path: &str, cell: String| if connection.field(path).is_null() { String::new() } else { cell };
    vec![
        ("reactor", connection.text("worker")),
        ("listener", connection.text("listener")),
        ("last packet", there("last_packet_ms", format!("{} ago", connection.ms_cell("last_packet_ms")))),
        ("receive maximum", connection.text("receive_maximum")),
        ("packet size max", there("packet_size_max", connection.bytes_cell("packet_size_max"))),
        ("topic alias max", connection.text("topic_alias_max")),
        ("unsent", there("unsent_bytes", connection.bytes_cell("unsent_bytes"))),
        ("held for session", there("session_bytes", connection.bytes_cell("session_bytes"))),
        ("its user has", there("user_usage", holdings(connection, "user_usage"))),
        ("its mountpoint has", there("mountpoint_usage", holdings(connection, "mountpoint_usage"))),
        (
            "unacknowledged",
            there(
                "oldest_unacknowledged_ms",
                format!("oldest {}", connection.ms_cell("oldest_unacknowledged_ms")),
            ),
        ),
        ("publisher", yes("publisher_blocked", "blocked: waits for a slot in a subscriber's queue")),
        ("will", yes("has_will", "yes")),
        ("attributes", attributes(connection.field("client_attrs"))),
    ]
}

/// Attributes in words, such as `class=gold, team=a, team=b`.
fn attributes(attributes: &Value) -> String {
    let all = attributes.as_object().into_iter().flatten().flat_map(|(name, values)| {
        let values = values.as_array().into_iter().flatten();
        values.map(move |value| format!("{name}={}", value.as_str().unwrap_or_default()))
    });
    all.collect::<Vec<_>>().join(", ")
}

fn session(session: &Value) -> Vec<(&'static str, String)> {
    let there = |path: &str, cell: String| if session.field(path).is_null() { String::new() } else { cell };
    let expiry = match session.field("expiry_s") {
        Value::Null => "never".to_owned(),
        _ => format!("{} after it disconnects", session.seconds_cell("expiry_s")),
    };
    vec![
        ("expires", expiry),
        ("expires at", there("expires_at", session.time_cell("expires_at"))),
        ("in flight", there("inflight", session.count_cell("inflight"))),
        (
            "queued",
            format!("{}, {}", session.count_cell("queued_messages"), session.bytes_cell("queued_bytes")),
        ),
        ("oldest queued", there("oldest_queued_age_s", session.seconds_cell("oldest_queued_age_s"))),
        (
            "waiting publishers",
            session.whole("waiting_publishers").filter(|&n| n > 0).map(human::count).unwrap_or_default(),
        ),
        ("will due at", there("will_due_at", session.time_cell("will_due_at"))),
    ]
}
