//! `meridian ctl status`: one screen about one node.

use std::time::SystemTime;

use clap::Args;
use serde_json::{Value, json};

use super::{Command, cluster};
use crate::alarms;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::human;
use crate::query::Query;
use crate::table::{Table, left, right};

/// Show state, load and resource usage of the node
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl status
  meridian ctl status --json | jq .stats.connections
  meridian ctl status --url http://10.0.0.7:18083 --token-file ops.token

With --json: {\"node\":.., \"stats\":.., \"whoami\":.., \"cluster\":.., \"nodes\":.., \"alarms\":..}, as the API gives them; cluster and nodes are null
where there is no cluster.")]
pub struct StatusArgs {}

impl Command for StatusArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let query = Query::new();
        let node = console.client.get("/api/v1/node", &query)?;
        let stats = console.client.get("/api/v1/stats", &query)?;
        let whoami = console.client.get("/api/v1/whoami", &query)?;
        let cluster = cluster::view(&console.client)?;
        let nodes = match &cluster {
            Some(_) => console.client.get("/api/v1/nodes", &query.clone().with("limit", 1_000))?,
            None => Value::Null,
        };
        if console.json {
            let all = json!({
                "node": node, "stats": stats, "whoami": whoami, "cluster": cluster, "nodes": nodes["items"],
                "alarms": alarms::ask(&console.client)?["items"]
            });
            return console.document(&all);
        }
        console.pairs(&about_node(&node, &whoami, cluster.as_ref()))?;
        console.line("")?;
        console.pairs(&about_work(&node, &stats))?;
        if cluster.is_some() {
            console.line("")?;
            members(console, &nodes)?;
        }
        listeners(console, &node)?;
        reactors(console, &stats)?;
        alarms::note(console, alarms::is_trouble)
    }
}

fn about_node(node: &Value, whoami: &Value, cluster: Option<&Value>) -> Vec<(&'static str, String)> {
    let who = match (whoami.truth("open"), whoami.text("name")) {
        (true, _) => "open: every client that reaches it is admin".to_owned(),
        (false, name) => format!("{} as {}", whoami.text("role"), name),
    };
    let up = node
        .number("uptime_s")
        .map_or_else(|| node.age_cell("started_at", SystemTime::now()), human::seconds);
    vec![
        ("node", format!("{} ({})", node.cell("name"), node.cell("state"))),
        ("version", format!("{} ({})", node.cell("version"), node.cell("commit"))),
        ("up", format!("{up}, since {}", node.time_cell("started_at"))),
        ("process", format!("{} on {}, {} CPUs", node.cell("pid"), node.cell("os"), node.cell("cpus"))),
        ("data", format!("{} (storage: {})", node.text("data_dir"), node.cell("storage"))),
        ("cluster", cluster.map(cluster::line).unwrap_or_default()),
        ("http", node.text("http")),
        ("access", who),
    ]
}

fn about_work(node: &Value, stats: &Value) -> Vec<(&'static str, String)> {
    let count = |path: &str| stats.count_cell(path);
    let messages = |way: &str| {
        let qos: Vec<String> = stats
            .list(&format!("{way}.messages_by_qos"))
            .iter()
            .map(|n| human::count(n.as_u64().unwrap_or(0)))
            .collect();
        let by_qos =
            if qos.is_empty() { String::new() } else { format!(" (QoS 0, 1, 2: {})", qos.join(", ")) };
        format!(
            "{}{by_qos}, {}",
            count(&format!("{way}.messages")),
            stats.bytes_cell(&format!("{way}.bytes"))
        )
    };
    vec![
        ("clients", format!("{} of {}", count("connections"), node.count_cell("connections_max"))),
        ("sessions", format!("{} durable", count("sessions"))),
        ("subscriptions", format!("{} on {} routes", count("subscriptions"), count("routes"))),
        ("retained", format!("{}, {}", count("retained.messages"), stats.bytes_cell("retained.bytes"))),
        (
            "queued",
            format!(
                "{}, {} ({} for absent clients), oldest {}",
                count("queued.messages"),
                stats.bytes_cell("queued.bytes"),
                stats.bytes_cell("queued.offline_bytes"),
                stats.seconds_cell("queued.oldest_age_s")
            ),
        ),
        ("received", messages("received")),
        ("sent", messages("sent")),
        ("dropped", dropped(stats)),
        (
            "memory",
            format!(
                "{}, {} CPU time, {} of {} descriptors",
                stats.bytes_cell("process.resident_bytes"),
                stats.seconds_cell("process.cpu_s"),
                count("process.open_fds"),
                count("process.max_fds")
            ),
        ),
    ]
}

/// Returns the total, and the count of each reason that occurred.
fn dropped(stats: &Value) -> String {
    let reasons: Vec<String> = stats
        .field("dropped.by_reason")
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(reason, n)| {
            n.as_u64().filter(|&n| n > 0).map(|n| format!("{reason} {}", human::count(n)))
        })
        .collect();
    let total = stats.count_cell("dropped.total");
    if reasons.is_empty() { total } else { format!("{total} ({})", reasons.join(", ")) }
}

/// Lists the nodes of the cluster, each as it sees itself.
pub(super) fn members(console: &mut Console, nodes: &Value) -> Result<(), Failure> {
    let mut table = Table::new(&[
        left("NODE"),
        left("STATE"),
        left("ROLE"),
        left("REGION"),
        left("ATTACHED TO"),
        right("CLIENTS"),
        right("SUBS"),
        right("IN"),
        right("OUT"),
        right("UP"),
    ]);
    for node in nodes.list("items") {
        let state = match node.field("cluster.acknowledging").as_bool() {
            Some(false) => "not acknowledging".to_owned(),
            _ => node.cell("state"),
        };
        let region = match node.text("cluster.region") {
            none if none.is_empty() => crate::fields::NOTHING.to_owned(),
            region => region,
        };
        table.row(vec![
            node.cell("name"),
            state,
            node.cell("cluster.role"),
            region,
            node.cell("cluster.attached_to"),
            node.count_cell("connections"),
            node.count_cell("subscriptions"),
            node.count_cell("messages_received"),
            node.count_cell("messages_sent"),
            node.seconds_cell("uptime_s"),
        ]);
    }
    for node in nodes.list("missing").iter().filter_map(Value::as_str) {
        let nothing = std::iter::repeat_n(crate::fields::NOTHING.to_owned(), 8);
        table.row([node.to_owned(), "no answer".to_owned()].into_iter().chain(nothing).collect());
    }
    if nodes.list("items").is_empty() {
        return Ok(());
    }
    console.table(&mut table)
}

fn listeners(console: &mut Console, node: &Value) -> Result<(), Failure> {
    let mut table = Table::new(&[left("LISTENER"), left("ADDRESS"), right("CONNECTIONS"), right("AT MOST")]);
    for listener in node.list("listeners") {
        table.row(vec![
            listener.cell("name"),
            listener.cell("address"),
            listener.count_cell("connections"),
            match listener.whole("connections_max") {
                Some(0) => "no limit".to_owned(),
                _ => listener.count_cell("connections_max"),
            },
        ]);
    }
    if node.list("listeners").is_empty() {
        Ok(())
    } else {
        console.line("").and_then(|()| console.table(&mut table))
    }
}

fn reactors(console: &mut Console, stats: &Value) -> Result<(), Failure> {
    let up = stats.number("uptime_s").unwrap_or(0.0);
    let mut table = Table::new(&[
        left("REACTOR"),
        right("CLIENTS"),
        right("BUSY"),
        right("TURN P50"),
        right("TURN P99"),
        right("QUEUED"),
        right("MAILBOX"),
    ]);
    let micros = |worker: &Value, path: &str| match worker.number(path) {
        Some(us) if us < 1_000.0 => format!("{us:.0}us"),
        Some(us) => human::seconds(us / 1e6),
        None => crate::fields::NOTHING.to_owned(),
    };
    for worker in stats.list("workers") {
        let busy = worker.number("busy_us").filter(|_| up > 0.0).map_or(f64::NAN, |us| us / 1e6 / up);
        table.row(vec![
            worker.cell("worker"),
            worker.count_cell("connections"),
            human::percent(busy),
            micros(worker, "turn_us_p50"),
            micros(worker, "turn_us_p99"),
            worker.bytes_cell("queued_bytes"),
            worker.bytes_cell("mailbox_bytes"),
        ]);
    }
    if stats.list("workers").is_empty() {
        Ok(())
    } else {
        console.line("").and_then(|()| console.table(&mut table))
    }
}
