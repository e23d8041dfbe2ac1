//! Memory of cores that have replicas of many durable sessions, and of many queued messages. All clients are away.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use super::bench::{Args, anonymous, mqload, pause, start_with};
use super::nodes::Nodes;
use crate::bench::child::interrupted;
use crate::bench::durable::client::Client;

/// Numbers of sessions, each with one subscription.
const SESSIONS: [u32; 2] = [20_000, 100_000];
/// Number of clients that are connected at a time: a process may have 20,000 descriptors.
const AT_ONCE: u32 = 5_000;
/// Numbers of queued messages, and number of the sessions that they are for.
const MESSAGES: [u32; 2] = [200_000, 1_000_000];
const RECEIVERS: u32 = 100;
/// Settings of queues that hold all messages.
const ROOM: [&str; 3] =
    ["queue.messages_max=2000000", "queue.bytes_max=4GiB", "limits.memory_queued_max=8GiB"];
/// Time for the nodes to finish what follows a load, such as checkpoints.
const REST: Duration = Duration::from_secs(20);

/// Anonymous resident memory of each core in bytes.
type Memory = Vec<u64>;

/// Rows of the table, with the memory that the last one had.
struct Rows<'a> {
    page: &'a mut String,
    last: Option<(u32, Memory)>,
}

pub fn sessions(args: &Args, programs: &Path, page: &mut String) -> Result<()> {
    let mut rows = Rows::new("durable sessions with one subscription each", page)?;
    let cluster = start_with(args, programs, (3, 0), &ROOM)?;
    rows.add("sessions", 0, &cluster)?;
    let mut made = 0;
    for count in SESSIONS {
        while made < count {
            ensure!(!interrupted(), "interrupted");
            let hosts: Vec<String> = cluster.nodes.iter().map(|node| node.mqtt.to_string()).collect();
            let load = format!(
                "sub -c {AT_ONCE} -R 0 --clean false -q 1 -I memory-{made}- -T memory/{made}/%i -H {}",
                hosts.join(",")
            );
            let report = mqload(programs, &load)?;
            ensure!(report["ready"] == AT_ONCE, "{} of {AT_ONCE} clients subscribed", report["ready"]);
            made += AT_ONCE;
        }
        rows.add("sessions", count, &cluster)?;
    }
    Ok(())
}

pub fn messages(args: &Args, programs: &Path, page: &mut String) -> Result<()> {
    let mut rows = Rows::new("queued messages of 256 B", page)?;
    let cluster = start_with(args, programs, (3, 0), &ROOM)?;
    for number in 0..RECEIVERS {
        let (to, id) =
            (cluster.nodes[number as usize % cluster.nodes.len()].mqtt, format!("memory-{number}"));
        let mut client = Client::connect(to, Ipv4Addr::LOCALHOST, &id)?;
        client.subscribe(&format!("memory/{number}"))?;
        client.leave()?;
    }
    rows.add("queued messages", 0, &cluster)?;
    let to = cluster.nodes[0].mqtt;
    let mut queued = 0;
    for count in MESSAGES {
        let more = count - queued;
        let load = format!(
            "pubsub -p {RECEIVERS} -s 0 -q 1 --inflight 100 -l 256 --coalesce-us 500 --pub-topic memory/%i -m {more} \
             --max-time 280 --pub-host {to} --sub-host {to}"
        );
        let report = mqload(programs, &load)?;
        let acknowledged =
            report.pointer("/totals/acked").and_then(Value::as_u64).context("acknowledged messages")?;
        ensure!(acknowledged == u64::from(more), "{acknowledged} of {more} messages were acknowledged");
        queued = count;
        rows.add("queued messages", count, &cluster)?;
    }
    Ok(())
}

impl<'a> Rows<'a> {
    fn new(title: &str, page: &'a mut String) -> Result<Self> {
        writeln!(
            page,
            "\nMemory of three cores that have replicas of {title}, {} s after the load\n",
            REST.as_secs()
        )?;
        writeln!(
            page,
            "| what | memory of a core, MB: n1 | n2 | n3 | bytes for each more, a core | of all cores |"
        )?;
        writeln!(page, "|---|---|---|---|---|---|")?;
        Ok(Self { page, last: None })
    }

    /// Measures the cores, and compares them with the last row.
    fn add(&mut self, what: &str, count: u32, cluster: &Nodes) -> Result<()> {
        pause(REST)?;
        let memory: Memory = cluster.nodes.iter().map(|node| anonymous(node.id())).collect::<Result<_>>()?;
        let cells: Vec<String> = memory.iter().map(|bytes| format!("{:.1}", *bytes as f64 / 1e6)).collect();
        let each = self.last.as_ref().map(|(before, had)| {
            let grown: f64 = memory.iter().zip(had).map(|(now, had)| *now as f64 - *had as f64).sum();
            grown / f64::from(count - before)
        });
        let each = each
            .map_or("- | -".to_owned(), |all| format!("{:.0} | {all:.0}", all / cluster.nodes.len() as f64));
        let row = format!("| {count} {what} | {} | {each} |", cells.join(" | "));
        eprintln!("{row}");
        writeln!(self.page, "{row}")?;
        self.last = Some((count, memory));
        Ok(())
    }
}
