//! Messages from node to node, compared with the clusters of other brokers: in one run, in alternation, with one
//! load.

mod others;

use anyhow::{Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use super::bench::{Args, median, mqload, start};
use super::nodes::Nodes;
use crate::bench::broker::Kind;
use crate::bench::child::interrupted;
use others::Others;

/// A running cluster, of Meridian or of another broker.
struct Cluster {
    /// Name with its version.
    name: String,
    /// Addresses of two nodes: publishers are on the first, and subscribers on it or on the other.
    nodes: [SocketAddr; 2],
    pids: Vec<u32>,
    /// Processes, ended when it is dropped.
    _processes: Processes,
}

#[expect(dead_code, reason = "they end when it is dropped")]
enum Processes {
    Ours(Nodes),
    Others(Others),
}

/// Figures of one load on one cluster: of pairs on one node, and on two.
type Runs = [Vec<Value>; 2];

/// Measures throughput and CPU of pairs on one node and on two. Each load starts with new processes: a bridge may
/// still be busy with the previous one.
pub fn messages(args: &Args, programs: &Path, page: &mut String) -> Result<()> {
    writeln!(
        page,
        "\nBeside other clusters: 50 pairs, 256 B, saturated, {} s x {}; medians\n",
        args.seconds, args.rounds
    )?;
    writeln!(
        page,
        "| QoS | cluster | messages/s, one node | two nodes | CPU us a message, one node | two nodes | lost |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|---|")?;
    for qos in 0..3 {
        let window = if qos == 0 { "--max-outstanding 20000" } else { "--inflight 100" };
        let load = format!("-p 50 -s 50 -q {qos} {window} --coalesce-us 500");
        let clusters = clusters(args, programs, &others::NAMES)?;
        for (cluster, runs) in clusters.iter().zip(alternate(args, programs, &clusters, &load)?) {
            let figure = |path: &str| [shown(&runs[0], path), shown(&runs[1], path)].join(" | ");
            writeln!(
                page,
                "| {qos} | {} | {} | {} | {} |",
                cluster.name,
                figure("/received_per_s"),
                figure("/cpu/broker_us_per_delivery"),
                shown(&runs[1], "/lost")
            )?;
        }
    }
    Ok(())
}

/// Measures the latency that a hop to another node adds to few messages.
pub fn latency(args: &Args, programs: &Path, page: &mut String) -> Result<()> {
    writeln!(
        page,
        "\nBeside other clusters: latency, 256 B, {} s x {}; medians, us\n",
        args.seconds, args.rounds
    )?;
    writeln!(
        page,
        "| load | cluster | p50, one node | two nodes | added | p99, one node | two nodes | added |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|---|---|")?;
    let loads = [
        ("10 pairs, 500/s, QoS 0", "-p 10 -s 10 -q 0 -R 500"),
        ("1 pair, QoS 1, window 1", "-p 1 -s 1 -q 1 --inflight 1"),
        ("1 pair, QoS 2, window 1", "-p 1 -s 1 -q 2 --inflight 1"),
    ];
    for (title, load) in loads {
        let clusters = clusters(args, programs, &others::NAMES)?;
        for (cluster, runs) in clusters.iter().zip(alternate(args, programs, &clusters, load)?) {
            let figure = |path: &str| {
                let (one, two) = (median(&runs[0], path), median(&runs[1], path));
                format!("{one:.0} | {two:.0} | {:.0}", two - one)
            };
            let (p50, p99) = (figure("/latency_us/p50"), figure("/latency_us/p99"));
            writeln!(page, "| {title} | {} | {p50} | {p99} |", cluster.name)?;
        }
    }
    Ok(())
}

/// Measures clients that connect as fast as they can, each with a filter of its own, on two nodes of each cluster.
pub fn connect(args: &Args, programs: &Path, page: &mut String) -> Result<()> {
    writeln!(
        page,
        "\nBeside other clusters: {} clients connect and subscribe to a filter of their own, x {}; medians\n",
        args.clients, args.rounds
    )?;
    writeln!(page, "| cluster | clients/s | CPU us a client, all nodes | clients without SUBACK |")?;
    writeln!(page, "|---|---|---|---|")?;
    let mut rows: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for _ in 0..args.rounds {
        // Each round has new processes: some brokers keep what earlier clients left.
        for Cluster { name, nodes, pids, _processes } in clusters(args, programs, &others::NAMES)? {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            let load = format!(
                "sub -c {} -R 0 -H {},{} --broker-pid {} --hold 1",
                args.clients,
                nodes[0],
                nodes[1],
                pids.join(",")
            );
            match mqload(programs, &load) {
                Ok(report) => rows.entry(name).or_default().push(report),
                Err(error) => eprintln!("{name}: {error:#}"),
            }
            ensure!(!interrupted(), "interrupted");
        }
    }
    for (name, runs) in rows {
        let ready = median(&runs, "/ready");
        let cpu = median(&runs, "/broker_cpu_s_until_ready") * 1e6 / ready;
        let left = f64::from(args.clients) - ready;
        writeln!(page, "| {name} | {} | {cpu:.0} | {left:.0} |", shown(&runs, "/subscribed_per_s"))?;
    }
    Ok(())
}

/// A number of publishers, each with a durable session that subscribes to it.
struct DurableLoad {
    qos: u8,
    publishers: u32,
    /// Maximum number of messages in flight of a publisher.
    window: u32,
}

impl DurableLoad {
    const ALL: [Self; 8] = [
        Self::new(1, 1, 1),
        Self::new(1, 10, 1),
        Self::new(1, 100, 1),
        Self::new(2, 1, 1),
        Self::new(2, 100, 1),
        Self::new(1, 1, 100),
        Self::new(1, 100, 100),
        Self::new(2, 100, 100),
    ];

    const fn new(qos: u8, publishers: u32, window: u32) -> Self {
        Self { qos, publishers, window }
    }

    fn command_line(&self) -> String {
        let Self { qos, publishers, window } = self;
        // With many messages in flight the generator can poll rarely; it shares the CPUs.
        let coalesce = if *window > 1 { " --coalesce-us 500" } else { "" };
        format!(
            "-p {publishers} -s {publishers} -q {qos} --clean false --inflight {window} --connect-rate 0 \
             --setup-timeout 60 --drain 10 -k 600{coalesce}"
        )
    }
}

/// Measures messages to durable sessions with three copies each, of pairs on one node and on two.
pub fn durable(args: &Args, programs: &Path, page: &mut String) -> Result<()> {
    writeln!(
        page,
        "\nDurable sessions with three copies, one for each publisher, 256 B, {} s x {}; medians\n",
        args.seconds, args.rounds
    )?;
    writeln!(
        page,
        "| QoS | publishers | window | cluster | messages/s, one node | two nodes | PUBACK or PUBCOMP p50 us, one node | two nodes | p99 us, one node | two nodes | CPU us a message, one node | two nodes | lost |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|---|---|---|---|---|---|---|")?;
    // The largest loads come last: other brokers slow down after them.
    let clusters = clusters(args, programs, &others::DURABLE)?;
    for load in DurableLoad::ALL {
        for (cluster, runs) in
            clusters.iter().zip(alternate(args, programs, &clusters, &load.command_line())?)
        {
            let figure = |path: &str| [shown(&runs[0], path), shown(&runs[1], path)].join(" | ");
            let DurableLoad { qos, publishers, window } = load;
            let row = format!(
                "| {qos} | {publishers} | {window} | {} | {} | {} | {} | {} | {} |",
                cluster.name,
                figure("/acked_per_s"),
                figure("/ack_us/p50"),
                figure("/ack_us/p99"),
                figure("/cpu/broker_us_per_delivery"),
                shown(&runs[1], "/lost")
            );
            eprintln!("{row}");
            writeln!(page, "{row}")?;
        }
    }
    Ok(())
}

/// Clusters to measure: Meridian first, then the requested ones of `names`, or all of these that are installed.
fn clusters(args: &Args, programs: &Path, names: &[&str]) -> Result<Vec<Cluster>> {
    let nodes = start(args, programs, (3, 0))?;
    let version = if args.debug { "meridian".to_owned() } else { Kind::Meridian.version() };
    let mut clusters = vec![Cluster {
        name: version,
        nodes: [nodes.nodes[0].mqtt, nodes.nodes[1].mqtt],
        pids: nodes.nodes.iter().map(super::nodes::Node::id).collect(),
        _processes: Processes::Ours(nodes),
    }];
    for name in names {
        if !args.brokers.is_empty() && !args.brokers.iter().any(|wanted| wanted == name) {
            continue;
        }
        match Others::start(name, args.port + 100).and_then(|others| reached(programs, others)) {
            Ok(cluster) => clusters.push(cluster),
            Err(error) if args.brokers.is_empty() => eprintln!("skipped: {name}: {error:#}"),
            Err(error) => return Err(error.context((*name).to_owned())),
        }
        ensure!(!interrupted(), "interrupted");
    }
    Ok(clusters)
}

/// Waits until the nodes of a cluster exchange messages of QoS 1.
fn reached(programs: &Path, mut others: Others) -> Result<Cluster> {
    let [from, to] = others.nodes;
    let load = format!(
        "pubsub -p 1 -s 1 -q 1 -m 20 --max-time 5 --drain 2 --connect-timeout 3 --setup-timeout 5 --pub-host {from} --sub-host {to}"
    );
    others.wait_until(|| mqload(programs, &load).is_ok_and(|report| report["totals"]["unique"] == 20))?;
    let (name, pids) = (others.name.clone(), others.pids());
    Ok(Cluster { name, nodes: [from, to], pids, _processes: Processes::Others(others) })
}

/// Runs a load on all clusters, round after round, in alternating order. Failures are printed and left out.
fn alternate(args: &Args, programs: &Path, clusters: &[Cluster], load: &str) -> Result<Vec<Runs>> {
    let mut all: Vec<Runs> = clusters.iter().map(|_| Runs::default()).collect();
    for round in 0..args.rounds as usize {
        for step in 0..clusters.len() {
            let at = (step + round) % clusters.len();
            let Cluster { name, nodes, pids, .. } = &clusters[at];
            for across in 0..2 {
                let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                let command = format!(
                    "pubsub {load} -l 256 --warmup 1 -d {} --pub-host {} --sub-host {} --broker-pid {}",
                    args.seconds,
                    nodes[0],
                    nodes[across],
                    pids.join(",")
                );
                match mqload(programs, &command) {
                    Ok(report) => all[at][across].push(report),
                    Err(error) => eprintln!("{name}: {error:#}"),
                }
                ensure!(!interrupted(), "interrupted");
            }
        }
    }
    Ok(all)
}

fn shown(runs: &[Value], path: &str) -> String {
    let figure = median(runs, path);
    match figure {
        _ if figure.is_nan() => "-".to_owned(),
        _ if figure.abs() < 1000.0 && figure.fract() != 0.0 => format!("{figure:.2}"),
        _ => format!("{figure:.0}"),
    }
}
