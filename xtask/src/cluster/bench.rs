//! `cargo xtask cluster-bench`: cost of clients on several nodes, compared with clients on one.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::copies::{self, Copy, Writers, publish_when_served};
use super::nodes::Nodes;
use super::{disconnect, memory, peers, replace, takeover};
use crate::bench::child::{self, interrupted};
use crate::bench::generator;
use crate::bench::listener::process::Cpu;
use crate::chaos::target;
use crate::repository;

#[derive(clap::Args)]
pub struct Args {
    /// Run only measurements whose name begins with this: messages, latency, subscribe, routes, idle, disconnect,
    /// takeover, durable, peers-latency, peers-messages, peers-connect, replace, memory-sessions, memory-messages
    #[arg(long)]
    only: Option<String>,
    /// Measured seconds of each load, after one second of warm-up
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(super) seconds: u32,
    /// Number of runs of each measurement, in alternation
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub(super) rounds: u32,
    /// Number of clients that connect and subscribe
    #[arg(long, default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(100..=15_000))]
    pub(super) clients: u32,
    /// Number of routes that a returning node copies, a multiple of 50,000
    #[arg(long, default_value_t = 500_000)]
    routes: u32,
    /// Number of clients that disconnect at once
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(600..=110_000))]
    pub(super) disconnecting_clients: u32,
    /// Queued messages of the cluster whose core is replaced, in GiB of payload
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) gib: u32,
    /// `cluster.copy_rate` of that cluster (default: that of the program)
    #[arg(long)]
    pub(super) copy_rate: Option<String>,
    /// Clusters of other brokers to measure, of mosquitto, nats, rmqtt, and for `durable` of nats, nats-always,
    /// rabbitmq (default: those that are installed)
    #[arg(long, value_delimiter = ',')]
    pub(super) brokers: Vec<String>,
    /// Use the existing binaries
    #[arg(long)]
    no_build: bool,
    /// Measure programs built for development, to try the command
    #[arg(long)]
    pub(super) debug: bool,
    #[arg(long, default_value_t = 22883)]
    pub(super) port: u16,
}

/// Maximum time of every wait.
pub(super) const LONGEST: Duration = Duration::from_secs(300);
/// Maximum age of a node's view of its cluster.
pub(super) const VIEW: Duration = Duration::from_millis(700);

pub fn run(args: &Args) -> Result<()> {
    child::catch_signals();
    if !args.no_build {
        target::build(args.debug, true)?;
    }
    let programs = target::profile_directory(args.debug);
    let is_wanted = |name: &str| args.only.as_ref().is_none_or(|only| name.starts_with(only.as_str()));
    let mut page = String::new();
    if is_wanted("messages") {
        messages(args, &programs, &mut page)?;
    }
    if is_wanted("latency") {
        latency(args, &programs, &mut page)?;
    }
    if is_wanted("subscribe") {
        subscribe(args, &programs, &mut page)?;
    }
    if is_wanted("routes") {
        routes(args, &programs, &mut page)?;
    }
    if is_wanted("idle") {
        idle(args, &programs, &mut page)?;
    }
    if is_wanted("disconnect") {
        disconnect::run(args, &programs, &mut page)?;
    }
    if is_wanted("takeover") {
        takeover::run(args, &programs, &mut page)?;
    }
    if is_wanted("peers-latency") {
        peers::latency(args, &programs, &mut page)?;
    }
    if is_wanted("peers-messages") {
        peers::messages(args, &programs, &mut page)?;
    }
    if is_wanted("peers-connect") {
        peers::connect(args, &programs, &mut page)?;
    }
    if is_wanted("durable") {
        peers::durable(args, &programs, &mut page)?;
    }
    if is_wanted("replace") {
        replace::run(args, &programs, &mut page)?;
    }
    if is_wanted("memory-sessions") {
        memory::sessions(args, &programs, &mut page)?;
    }
    if is_wanted("memory-messages") {
        memory::messages(args, &programs, &mut page)?;
    }
    println!("{page}");
    Ok(())
}

pub(super) fn start(args: &Args, programs: &Path, nodes: (usize, usize)) -> Result<Nodes> {
    start_with(args, programs, nodes, &[])
}

/// Starts nodes with further settings, as of `--set`.
pub(super) fn start_with(
    args: &Args,
    programs: &Path,
    nodes: (usize, usize),
    settings: &[&str],
) -> Result<Nodes> {
    let directory = repository::root().join("target/cluster-bench");
    Nodes::start(&programs.join("meridian"), &directory, nodes, args.port, settings)
}

/// Measures throughput of pairs on one node and on two.
fn messages(args: &Args, programs: &Path, page: &mut String) -> Result<()> {
    let cluster = start(args, programs, (2, 0))?;
    writeln!(page, "50 pairs, 256 B, saturated, {} s x {}; medians\n", args.seconds, args.rounds)?;
    writeln!(page, "| QoS | pairs on | messages/s | CPU us a message, all nodes | sent again | lost |")?;
    writeln!(page, "|---|---|---|---|---|---|")?;
    for qos in 0..3 {
        let window = if qos == 0 { "--max-outstanding 20000" } else { "--inflight 100" };
        let load = format!(
            "pubsub -p 50 -s 50 -q {qos} {window} -l 256 --warmup 1 -d {} --coalesce-us 500",
            args.seconds
        );
        let mut runs = [Vec::new(), Vec::new()];
        for _ in 0..args.rounds {
            for (across, runs) in runs.iter_mut().enumerate() {
                runs.push(generate(programs, &cluster, &load, (0, across))?);
            }
        }
        for (name, runs) in ["one node", "two nodes"].iter().zip(&runs) {
            let (rate, cpu) = (median(runs, "/received_per_s"), median(runs, "/cpu/broker_us_per_delivery"));
            let lost = median(runs, "/lost");
            let again = retransmitted(&cluster)?;
            writeln!(page, "| {qos} | {name} | {rate:.0} | {cpu:.2} | {again} | {lost:.0} |")?;
        }
    }
    Ok(())
}

/// Measures latency of pairs on one node and on two.
fn latency(args: &Args, programs: &Path, page: &mut String) -> Result<()> {
    let cluster = start(args, programs, (2, 0))?;
    writeln!(page, "\nLatency, 256 B, QoS 1, {} s x {}; medians\n", args.seconds, args.rounds)?;
    writeln!(page, "| load | pairs on | p50 us | p99 us |")?;
    writeln!(page, "|---|---|---|---|")?;
    let loads =
        [("50 pairs, 2,000/s", "-p 50 -s 50 -R 2000"), ("1 pair, window 1", "-p 1 -s 1 --inflight 1")];
    for (title, load) in loads {
        let load = format!("pubsub {load} -q 1 -l 256 --warmup 1 -d {}", args.seconds);
        let mut runs = [Vec::new(), Vec::new()];
        for _ in 0..args.rounds {
            for (across, runs) in runs.iter_mut().enumerate() {
                runs.push(generate(programs, &cluster, &load, (0, across))?);
            }
        }
        for (name, runs) in ["one node", "two nodes"].iter().zip(&runs) {
            let (p50, p99) = (median(runs, "/latency_us/p50"), median(runs, "/latency_us/p99"));
            writeln!(page, "| {title} | {name} | {p50:.0} | {p99:.0} |")?;
        }
    }
    Ok(())
}

/// Measures CPU and bytes between nodes for each client that connects and subscribes.
fn subscribe(args: &Args, programs: &Path, page: &mut String) -> Result<()> {
    writeln!(
        page,
        "\n{} clients connect and subscribe to a filter of their own (SUBACK `core`)\n",
        args.clients
    )?;
    writeln!(
        page,
        "| nodes | clients/s | CPU us a client, all nodes | of it a node | bytes between nodes a client | of it a node |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|")?;
    for (cores, replicants) in [(1, 0), (3, 0), (5, 0), (3, 2), (10, 0), (3, 7)] {
        let cluster = start(args, programs, (cores, replicants))?;
        let before = bytes_between(&cluster)?;
        let hosts: Vec<String> = cluster.nodes.iter().map(|node| node.mqtt.to_string()).collect();
        let pids: Vec<String> = cluster.nodes.iter().map(|node| node.id().to_string()).collect();
        let load = format!(
            "sub -c {} -R 0 -H {} --broker-pid {} --hold 1",
            args.clients,
            hosts.join(","),
            pids.join(",")
        );
        let report = mqload(programs, &load)?;
        let figure = |path: &str| report.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN);
        let cpu = figure("/broker_cpu_s_until_ready") * 1e6 / figure("/ready");
        let bytes = (bytes_between(&cluster)? - before) as f64 / figure("/ready");
        let nodes = (cores + replicants) as f64;
        let name = if replicants == 0 { format!("{cores}") } else { format!("{cores}+{replicants}") };
        let rate = figure("/subscribed_per_s");
        writeln!(
            page,
            "| {name} | {rate:.0} | {cpu:.1} | {:.1} | {bytes:.0} | {:.0} |",
            cpu / nodes,
            bytes / nodes
        )?;
    }
    Ok(())
}

/// Measures the cost of an idle cluster.
fn idle(args: &Args, programs: &Path, page: &mut String) -> Result<()> {
    writeln!(page, "\nNodes without clients, {} s, after {} s of rest\n", IDLE.as_secs(), REST.as_secs())?;
    writeln!(
        page,
        "| nodes | CPU of a core, ms/s | of a replicant | bytes/s from a core to others | from a replicant | memory of a core, MB | of a replicant |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|---|")?;
    for (cores, replicants) in [(1, 0), (3, 0), (3, 2), (3, 7)] {
        let cluster = start(args, programs, (cores, replicants))?;
        // Segments of a new log are filled with zeros.
        pause(REST)?;
        let before = figures(&cluster)?;
        let begun = Instant::now();
        pause(IDLE)?;
        let after = figures(&cluster)?;
        let time = begun.elapsed().as_secs_f64();
        let mean = |nodes: std::ops::Range<usize>, of: &dyn Fn(usize) -> f64| match nodes.len() {
            0 => "-".to_owned(),
            len => format!("{:.1}", nodes.map(of).sum::<f64>() / len as f64),
        };
        let cpu = |at: usize| (after[at].cpu_s - before[at].cpu_s) * 1e3 / time;
        let bytes = |at: usize| (after[at].sent - before[at].sent) as f64 / time;
        let memory = |at: usize| after[at].memory as f64 / 1e6;
        let (of_cores, others) = (0..cores, cores..cores + replicants);
        let name = if replicants == 0 { format!("{cores}") } else { format!("{cores}+{replicants}") };
        let row: Vec<String> = [&cpu as &dyn Fn(usize) -> f64, &bytes, &memory]
            .into_iter()
            .flat_map(|of| [mean(of_cores.clone(), of), mean(others.clone(), of)])
            .collect();
        writeln!(page, "| {name} | {} |", row.join(" | "))?;
    }
    Ok(())
}

const REST: Duration = Duration::from_secs(15);
const IDLE: Duration = Duration::from_secs(30);

struct NodeFigures {
    cpu_s: f64,
    sent: u64,
    memory: u64,
}

fn figures(cluster: &Nodes) -> Result<Vec<NodeFigures>> {
    let of = |node: &super::nodes::Node| {
        Ok(NodeFigures {
            cpu_s: Cpu::now(node.id())?.broker_s,
            sent: node.view()?["transport"]["bytes_written"].as_u64().context("bytes_written")?,
            memory: anonymous(node.id())?,
        })
    };
    cluster.nodes.iter().map(of).collect()
}

pub(super) fn pause(time: Duration) -> Result<()> {
    let _ = child::until(time, || None::<()>);
    ensure!(!interrupted(), "interrupted");
    Ok(())
}

/// Measures the propagation of routes to all nodes, and to a returning one that has none.
fn routes(args: &Args, programs: &Path, page: &mut String) -> Result<()> {
    let mut cluster = start(args, programs, (3, 2))?;
    let begun = Instant::now();
    let mut writers = Writers::subscribe(cluster.nodes[0].mqtt, args.routes)?;
    let count = writers.count;
    wait_until(|| same_routes(&cluster, u64::from(count)))?;
    let known = begun.elapsed();
    let last = cluster.nodes.len() - 1;
    let memory = anonymous(cluster.nodes[last].id())?;
    let of_core = anonymous(cluster.nodes[1].id())?;
    let mut copies = Vec::new();
    for _ in 0..args.rounds {
        copies.push(copy(&mut cluster, last, &mut writers)?);
    }
    let middle = |of: fn(&Copy) -> f64| {
        let mut figures: Vec<f64> = copies.iter().map(of).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    let (served, bytes) = (middle(|copy| copy.served.as_secs_f64()), middle(|copy| copy.bytes as f64));
    let (cpu, linked) = (middle(|copy| copy.cpu_s), middle(|copy| copy.linked.as_secs_f64()));
    let subscribed = writers.took;
    writeln!(page, "\nRoutes: {count} filters of clients on one of 3+2 nodes\n")?;
    writeln!(page, "| what | figure |")?;
    writeln!(page, "|---|---|")?;
    writeln!(page, "| subscribed | {:.0} filters/s |", f64::from(count) / subscribed.as_secs_f64())?;
    writeln!(
        page,
        "| known to all five nodes | {:.2} s after the first, {:.2} s after the last |",
        known.as_secs_f64(),
        known.saturating_sub(subscribed).as_secs_f64()
    )?;
    writeln!(
        page,
        "| all of a replicant's memory, a route | {:.0} bytes |",
        memory as f64 / f64::from(count)
    )?;
    writeln!(
        page,
        "| all of a core's memory, that has no clients, a route | {:.0} bytes |",
        of_core as f64 / f64::from(count)
    )?;
    writeln!(
        page,
        "| a replicant that was killed, from the start of its process until it knows all and acknowledges | {served:.2} s, including {linked:.2} s until its links were up; {cpu:.2} s of its CPU |"
    )?;
    writeln!(
        page,
        "| what came over its links until then | {:.1} MB, {:.1} bytes a route |",
        bytes / 1e6,
        bytes / f64::from(count)
    )?;
    Ok(())
}

/// Kills a node and restarts it.
fn copy(cluster: &mut Nodes, at: usize, writers: &mut Writers) -> Result<Copy> {
    cluster.kill(at)?;
    let begun = Instant::now();
    cluster.start_again(at)?;
    publish_when_served(cluster.nodes[at].mqtt, &writers.last_topic(), LONGEST)?;
    writers.received(LONGEST)?;
    let served = begun.elapsed();
    let cpu_s = Cpu::now(cluster.nodes[at].id())?.broker_s;
    std::thread::sleep(VIEW);
    let view = cluster.nodes[at].view()?;
    // The view is of some moment within the time that was waited.
    let linked = begun.elapsed().saturating_sub(VIEW / 2).saturating_sub(copies::linked_for(&view)?);
    copies::ensure_same((&cluster.nodes[0].view()?, &view), "n1", writers.count)?;
    cluster.wait_for_links()?;
    let bytes = copies::bytes_received(&view);
    Ok(Copy { served, linked, cpu_s, bytes })
}

/// Returns whether all nodes know the same routes of the first, and so many.
fn same_routes(cluster: &Nodes, count: u64) -> Result<bool> {
    for node in &cluster.nodes {
        let view = node.view()?;
        let routes = view["routes"].as_array().context("routes")?;
        let of_first = routes.iter().find(|routes| routes["node"] == "n1");
        if of_first.and_then(|routes| routes["filters"].as_u64()) != Some(count) {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn wait_until(is_so: impl Fn() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + LONGEST;
    while !is_so()? {
        ensure!(Instant::now() < deadline, "not in {} s", LONGEST.as_secs());
        if interrupted() {
            bail!("interrupted");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The report of a load whose publishers are on one node and whose subscribers are on another, or the same.
fn generate(programs: &Path, cluster: &Nodes, load: &str, (from, to): (usize, usize)) -> Result<Value> {
    let (from, to) = (&cluster.nodes[from], &cluster.nodes[to]);
    let pids: Vec<String> = cluster.nodes.iter().map(|node| node.id().to_string()).collect();
    let hosts = format!("--pub-host {} --sub-host {} --broker-pid {}", from.mqtt, to.mqtt, pids.join(","));
    mqload(programs, &format!("{load} {hosts}"))
}

pub(super) fn mqload(programs: &Path, arguments: &str) -> Result<Value> {
    let mut command = Command::new(programs.join("mqload"));
    command.args(arguments.split(' ')).arg("--quiet");
    let text = generator::report(&mut command, LONGEST)?
        .with_context(|| format!("mqload {arguments} did not end"))?;
    let report: Value = serde_json::from_str(&text).context("the report is not JSON")?;
    ensure!(report["error"].is_null(), "mqload {arguments}: {}: {}", report["error"], report["reasons"]);
    Ok(report)
}

pub(super) fn median(runs: &[Value], path: &str) -> f64 {
    let mut figures: Vec<f64> = runs.iter().filter_map(|run| run.pointer(path)?.as_f64()).collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Number of frames that any node has sent again.
fn retransmitted(cluster: &Nodes) -> Result<u64> {
    let mut sum = 0;
    for link in links(cluster)? {
        let lanes = link["lanes"].as_array().cloned().unwrap_or_default();
        sum += lanes.iter().filter_map(|lane| lane["retransmitted"].as_u64()).sum::<u64>();
    }
    Ok(sum)
}

/// Bytes that all nodes have sent to others.
pub(super) fn bytes_between(cluster: &Nodes) -> Result<u64> {
    std::thread::sleep(VIEW);
    Ok(links(cluster)?.iter().filter_map(|link| link["bytes_sent"].as_u64()).sum())
}

fn links(cluster: &Nodes) -> Result<Vec<Value>> {
    let mut links = Vec::new();
    for node in &cluster.nodes {
        links.extend(node.view()?["links"].as_array().cloned().unwrap_or_default());
    }
    Ok(links)
}

/// Anonymous resident memory of a process in bytes.
pub(super) fn anonymous(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("RssAnon")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib * 1024)
}
