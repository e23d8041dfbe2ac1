//! A core that is killed, loses its disk and starts again while clients publish on the other two: time, bytes, and the
//! latency of these clients.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::bench::{Args, LONGEST, mqload, pause, start_with, wait_until};
use super::nodes::{Nodes, document};
use crate::bench::child::Guarded;
use crate::bench::durable::client::Client;
use crate::bench::listener::process::Cpu;

/// Number of sessions that have the data.
const SESSIONS: u32 = 64;
/// Payload of their messages, in bytes.
const PAYLOAD: u64 = 16 << 10;
/// Number of messages that are published at a time.
const PORTION: u64 = (256 << 20) / PAYLOAD;
/// Settings of queues that hold all data.
const ROOM: [&str; 3] =
    ["queue.messages_max=2000000", "queue.bytes_max=8GiB", "limits.memory_queued_max=64GiB"];
/// The core that is replaced; publishers are on the second core, and subscribers on the third.
const REPLACED: usize = 0;
/// Measured time of each phase, except of the replacement.
const PHASE: Duration = Duration::from_secs(15);
/// Maximum time of a replacement.
const REPLACEMENT_MAX: Duration = Duration::from_secs(1_800);
/// Time between two lines about the replacement.
const PROGRESS: Duration = Duration::from_secs(5);
/// Time between two looks at the replicas. A look costs the cores some milliseconds of CPU, which clients wait for.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Number of records that a replica may lack for a moment.
const BEHIND: u64 = 100;

/// Pairs of clients with a fixed rate, on the two other cores.
#[derive(Clone, Copy)]
struct Live {
    name: &'static str,
    options: &'static str,
}

const LIVE: [Live; 2] = [
    Live {
        name: "durable",
        options: "--clean false -I live- --pub-topic live/%i --sub-topic live/%i -k 600",
    },
    Live { name: "ephemeral", options: "--clean true --pub-topic passing/%i --sub-topic passing/%i" },
];
/// Time until the clients are connected and have published for a second.
const SETUP: Duration = Duration::from_secs(3);
/// Pairs of each kind, and their messages per second together.
const PAIRS: u32 = 20;
const RATE: u32 = 500;

/// A running load.
struct Running {
    process: Guarded,
    report: JoinHandle<std::io::Result<String>>,
}

pub fn run(args: &Args, programs: &Path, page: &mut String) -> Result<()> {
    let copy_rate = args.copy_rate.as_ref().map(|rate| format!("cluster.copy_rate={rate}"));
    let settings: Vec<&str> = ROOM.into_iter().chain(copy_rate.as_deref()).collect();
    let mut cluster = start_with(args, programs, (3, 0), &settings)?;
    writeln!(
        page,
        "\nA core with {} GiB of queued messages is replaced{}; 20 pairs of durable and 20 of ephemeral sessions on the \
         other two, QoS 1, 256 B, {RATE} messages/s of each kind\n",
        args.gib,
        copy_rate.as_ref().map(|setting| format!(", with {setting}")).unwrap_or_default()
    )?;
    wait_until(|| Ok(lacking(&cluster).is_ok_and(|count| count == 0)))?;
    let filled = fill(args, programs, &cluster)?;
    let mut rows = Rows { page, base: None };
    writeln!(
        rows.page,
        "| phase | s | CPU of the cores, % of one | durable: p50 ms | p99 | longest | p99, times that before | ephemeral: p50 ms | p99 | longest | p99, times that before |"
    )?;
    writeln!(rows.page, "|---|---|---|---|---|---|---|---|---|---|---|")?;

    rows.add("three cores", &measured(programs, &mut cluster, |_| pause(PHASE))?)?;
    let begun = Instant::now();
    cluster.kill(REPLACED)?;
    wait_until(|| is_led_elsewhere(&cluster))?;
    let led = begun.elapsed();
    cluster.remove_disk(REPLACED)?;
    rows.add("two cores", &measured(programs, &mut cluster, |_| pause(PHASE))?)?;
    let during = measured(programs, &mut cluster, |cluster| {
        let begun = Instant::now();
        cluster.start_again(REPLACED)?;
        wait_for_replicas(cluster, begun)
    })?;
    let (took, received) = (during.time, bytes_received(&cluster)?);
    rows.add("the core gets its replicas", &during)?;
    rows.add("its shards are led there again", &measured(programs, &mut cluster, |_| pause(2 * PHASE))?)?;

    writeln!(page, "\n| what | figure |")?;
    writeln!(page, "|---|---|")?;
    let lines = [
        (
            "filled with",
            format!("{:.2} GB of payload, at {:.0} MB/s", filled.0 / 1e9, filled.0 / 1e6 / filled.1),
        ),
        ("all shards have a leader", format!("{:.2} s after `kill -9`", led.as_secs_f64())),
        (
            "all replicas have caught up",
            format!("{:.1} s after the start of its process", took.as_secs_f64()),
        ),
        (
            "received by it from the others until then",
            format!(
                "{:.2} GB, {:.0} MB/s",
                received as f64 / 1e9,
                received as f64 / 1e6 / took.as_secs_f64()
            ),
        ),
    ];
    for (what, figure) in lines {
        eprintln!("| {what} | {figure} |");
        writeln!(page, "| {what} | {figure} |")?;
    }
    Ok(())
}

/// Figures of a phase.
struct Measured {
    time: Duration,
    /// Processors that the cores used, all together.
    cpu: f64,
    /// Reports of the kinds of clients.
    reports: Vec<Value>,
}

/// Table of the phases.
struct Rows<'a> {
    page: &'a mut String,
    /// p99 of each kind of clients in the first phase.
    base: Option<Vec<f64>>,
}

impl Rows<'_> {
    fn add(&mut self, phase: &str, measured: &Measured) -> Result<()> {
        let Measured { time, cpu, reports } = measured;
        let figure =
            |report: &Value, path: &str| report.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN);
        let p99: Vec<f64> = reports.iter().map(|report| figure(report, "/latency_us/p99")).collect();
        let base = self.base.get_or_insert_with(|| p99.clone());
        let mut row = format!("| {phase} | {:.0} | {:.0} |", time.as_secs_f64(), cpu * 100.0);
        for (report, base) in reports.iter().zip(base) {
            let of = |name: &str| figure(report, &format!("/latency_us/{name}"));
            write!(row, " {:.2} | {:.2} | {:.1} |", of("p50") / 1e3, of("p99") / 1e3, of("max") / 1e3)?;
            write!(row, " {:.2} |", of("p99") / *base)?;
        }
        eprintln!("{row}");
        writeln!(self.page, "{row}")?;
        for (live, report) in LIVE.iter().zip(reports) {
            ensure!(report["lost"] == 0, "{phase}, {}: {} messages were lost", live.name, report["lost"]);
        }
        Ok(())
    }
}

/// Queues the data for sessions that are away. Returns bytes of payload and seconds.
fn fill(args: &Args, programs: &Path, cluster: &Nodes) -> Result<(f64, f64)> {
    for number in 0..SESSIONS {
        let (at, topic) = (number as usize % cluster.nodes.len(), format!("bulk/{number}"));
        let mut client =
            Client::connect(cluster.nodes[at].mqtt, Ipv4Addr::LOCALHOST, &format!("bulk-{number}"))?;
        client.subscribe(&topic)?;
        client.leave()?;
    }
    let (wanted, begun) = ((u64::from(args.gib) << 30) / PAYLOAD, Instant::now());
    let mut queued = 0;
    while queued < wanted {
        let portion = PORTION.min(wanted - queued);
        let to = cluster.nodes[1].mqtt;
        let load = format!(
            "pubsub -p {SESSIONS} -s 0 -q 1 --inflight 20 -l {PAYLOAD} --pub-topic bulk/%i -m {portion} --max-time 200 \
             --pub-host {to} --sub-host {to}"
        );
        let acknowledged = mqload(programs, &load)?
            .pointer("/totals/acked")
            .and_then(Value::as_u64)
            .context("acknowledged messages")?;
        ensure!(acknowledged == portion, "{acknowledged} of {portion} messages were acknowledged in 200 s");
        queued += portion;
        eprintln!(
            "{:.2} GB queued after {:.0} s",
            (queued * PAYLOAD) as f64 / 1e9,
            begun.elapsed().as_secs_f64()
        );
    }
    Ok(((queued * PAYLOAD) as f64, begun.elapsed().as_secs_f64()))
}

/// Runs all kinds of live clients during `phase`.
fn measured(
    programs: &Path,
    cluster: &mut Nodes,
    phase: impl FnOnce(&mut Nodes) -> Result<()>,
) -> Result<Measured> {
    let running: Vec<Running> =
        LIVE.iter().map(|live| Running::start(programs, cluster, *live)).collect::<Result<_>>()?;
    pause(SETUP)?;
    let (begun, before) = (Instant::now(), cpu_seconds(cluster));
    phase(cluster)?;
    let time = begun.elapsed();
    let cpu = (cpu_seconds(cluster) - before) / time.as_secs_f64();
    let reports = running.into_iter().map(Running::finish).collect::<Result<_>>()?;
    Ok(Measured { time, cpu, reports })
}

/// Time of the processors that the running cores have used since their start.
fn cpu_seconds(cluster: &Nodes) -> f64 {
    // A core that was killed uses none. The one that replaces it begins at 0.
    cluster.nodes.iter().map(|node| Cpu::now(node.id()).map_or(0.0, |cpu| cpu.broker_s)).sum()
}

impl Running {
    fn start(programs: &Path, cluster: &Nodes, live: Live) -> Result<Self> {
        let (from, to) = (cluster.nodes[1].mqtt, cluster.nodes[2].mqtt);
        let arguments = format!(
            "pubsub -p {PAIRS} -s {PAIRS} -q 1 -l 256 -R {RATE} --latency-from due --warmup 1 --drain 20 \
             -d {} --pub-host {from} --sub-host {to} {}",
            REPLACEMENT_MAX.as_secs(),
            live.options
        );
        let mut command = Command::new(programs.join("mqload"));
        command.args(arguments.split(' ')).arg("--quiet");
        let mut process = Guarded::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
        let stdout = process.child().stdout.take().context("a pipe")?;
        Ok(Self { process, report: std::thread::spawn(move || std::io::read_to_string(stdout)) })
    }

    /// Ends the load, which prints its report then.
    fn finish(mut self) -> Result<Value> {
        // SAFETY: this is a child that is not yet waited for, so the id still refers to it.
        unsafe { libc::kill(self.process.id() as i32, libc::SIGTERM) };
        self.process.wait(LONGEST).context("mqload does not end")?;
        let text = self.report.join().expect("the reader does not panic")?;
        let report: Value = serde_json::from_str(&text).context("the report is not JSON")?;
        ensure!(report["error"].is_null(), "mqload: {}: {}", report["error"], report["reasons"]);
        Ok(report)
    }
}

/// Waits until the replaced core has all replicas and lacks nothing, and prints the progress.
fn wait_for_replicas(cluster: &Nodes, begun: Instant) -> Result<()> {
    let mut printed = begun;
    loop {
        // A node that starts does not answer yet.
        let lacking = lacking(cluster).ok();
        if lacking == Some(0) {
            return Ok(());
        }
        let took = begun.elapsed();
        ensure!(took < REPLACEMENT_MAX, "{lacking:?} shards lack a replica after {} s", took.as_secs());
        if printed.elapsed() > PROGRESS {
            printed = Instant::now();
            let bytes = bytes_received(cluster).unwrap_or(0) as f64 / 1e9;
            let lacking = lacking.map_or("unknown".to_owned(), |count| count.to_string());
            eprintln!("{:.0} s: replicas lacking: {lacking}; {bytes:.2} GB received", took.as_secs_f64());
        }
        pause(LOOK_AGAIN)?;
    }
}

/// Number of shards whose replica on the replaced core lacks records, as their leaders say.
fn lacking(cluster: &Nodes) -> Result<usize> {
    let name = cluster.nodes[REPLACED].name.as_str();
    let mut complete = HashSet::new();
    for node in &cluster.nodes {
        let view = document(node.http, "/api/v1/node")?;
        for shard in view["cluster"]["shards"].as_array().into_iter().flatten() {
            let has_all = |replica: &Value| {
                replica["node"] == name && replica["behind"].as_u64().is_some_and(|behind| behind <= BEHIND)
            };
            if node.name == name || shard["replicas"].as_array().into_iter().flatten().any(has_all) {
                complete.insert(shard["shard"].as_u64());
            }
        }
    }
    let is_complete = |shard: &Value| {
        complete.contains(&shard["shard"].as_u64())
            && shard["joining"].is_null()
            && shard["leaving"].is_null()
    };
    Ok(shards(cluster)?.iter().filter(|shard| !is_complete(shard)).count())
}

/// Returns whether all shards have a leader, which is not the replaced core.
fn is_led_elsewhere(cluster: &Nodes) -> Result<bool> {
    let name = cluster.nodes[REPLACED].name.as_str();
    Ok(shards(cluster)?.iter().all(|shard| shard["leader"].is_string() && shard["leader"] != name))
}

/// Shards of the cluster, as a core says that is not replaced.
fn shards(cluster: &Nodes) -> Result<Vec<Value>> {
    let view = cluster.nodes[1].view()?;
    let shards = view["shards"]["items"].as_array().cloned().unwrap_or_default();
    ensure!(!shards.is_empty(), "the shards are not placed yet");
    Ok(shards)
}

/// Bytes that the replaced core has received from others since its start.
fn bytes_received(cluster: &Nodes) -> Result<u64> {
    let view = cluster.nodes[REPLACED].view()?;
    let links = view["links"].as_array().context("links")?;
    Ok(links.iter().filter_map(|link| link["bytes_received"].as_u64()).sum())
}
