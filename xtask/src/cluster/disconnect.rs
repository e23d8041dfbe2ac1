//! Many clients that disconnect at once: the time for which other nodes know their routes, and the delay of a
//! subscribing client meanwhile.

use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::bench::{Args, bytes_between, start, wait_until};
use super::client::Client;
use super::nodes::Nodes;
use crate::bench::child::Guarded;

/// Numbers of cores and replicants: a process may have 20,000 files, so 100,000 clients need six nodes, and six
/// processes.
const SHAPE: (usize, usize) = (3, 3);
/// Time for which SUBACK is measured before the disconnect.
const QUIET: Duration = Duration::from_secs(5);
/// Time between two subscriptions of the measured client.
const PAUSE: Duration = Duration::from_millis(5);

/// A measured SUBACK: the time of its SUBSCRIBE, and the delay.
type Waited = (Instant, Duration);

pub fn run(args: &Args, programs: &Path, page: &mut String) -> Result<()> {
    let cluster = start(args, programs, SHAPE)?;
    let nodes = cluster.nodes.len() as u32;
    let share = args.disconnecting_clients / nodes;
    let mut generators = Vec::new();
    for (at, node) in cluster.nodes.iter().enumerate() {
        generators.push(disconnecting_clients(programs, node.mqtt, at, share)?);
    }
    let count = u64::from(share * nodes);
    wait_until(|| known(&cluster, |filters| filters >= count))?;
    let (stop, asked) = (AtomicBool::new(false), cluster.nodes[1].mqtt);
    let (waited, figures) = std::thread::scope(|scope| -> Result<_> {
        let asking = scope.spawn(|| ask(asked, &stop));
        let figures = leave(&cluster, &mut generators);
        stop.store(true, Relaxed);
        let waited = asking.join().expect("does not panic")?;
        Ok((waited, figures?))
    })?;
    let before = spread(&waited, figures.quiet, figures.begun)?;
    let during = spread(&waited, figures.begun, figures.begun + figures.took)?;
    writeln!(page, "\n{count} clients on 3+3 nodes, a filter each, killed at once\n")?;
    writeln!(page, "| what | figure |")?;
    writeln!(page, "|---|---|")?;
    writeln!(
        page,
        "| their processes had ended | {:.2} s after the first signal |",
        figures.ended.as_secs_f64()
    )?;
    writeln!(page, "| no node knew a route of them | {:.2} s after it |", figures.took.as_secs_f64())?;
    writeln!(
        page,
        "| bytes between nodes | {:.1} MB, {:.0} a client; {:.1} MB in the {:.1} s before |",
        figures.bytes as f64 / 1e6,
        figures.bytes as f64 / count as f64,
        figures.quiet_bytes as f64 / 1e6,
        figures.quiet_s
    )?;
    for (when, (subacks, p50, p99, longest)) in [("before", before), ("meanwhile", during)] {
        writeln!(
            page,
            "| SUBACK `cluster` of another client, {when} | p50 {p50:.1} ms, p99 {p99:.1} ms, longest {longest:.1} ms of {subacks} |"
        )?;
    }
    Ok(())
}

/// Starts a process with clients of one node.
fn disconnecting_clients(programs: &Path, mqtt: SocketAddr, at: usize, count: u32) -> Result<Guarded> {
    let mut command = Command::new(programs.join("mqload"));
    command.args(["sub", "-c", &count.to_string(), "-R", "0", "-k", "900", "--hold", "3600", "--quiet"]);
    command.args(["-T", &format!("leaving/{at}/%i/#"), "-I", &format!("leaving-{at}-")]);
    command.args(["--setup-timeout", "280", "--connect-timeout", "60", "-H", &mqtt.to_string()]);
    command.args(["--bind", &format!("127.0.{}.1,127.0.{}.2", at + 1, at + 1)]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Guarded::spawn(&mut command)
}

/// Returns whether a condition holds for the number of routes that each node knows.
fn known(cluster: &Nodes, is_so: impl Fn(u64) -> bool) -> Result<bool> {
    for node in &cluster.nodes {
        let view = node.view()?;
        let routes = view["routes"].as_array().context("routes")?;
        if !is_so(routes.iter().filter_map(|routes| routes["filters"].as_u64()).sum()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Figures of the disconnect.
struct DisconnectFigures {
    quiet: Instant,
    quiet_s: f64,
    quiet_bytes: u64,
    begun: Instant,
    ended: Duration,
    took: Duration,
    bytes: u64,
}

fn leave(cluster: &Nodes, generators: &mut Vec<Guarded>) -> Result<DisconnectFigures> {
    let first = bytes_between(cluster)?;
    let quiet = Instant::now();
    std::thread::sleep(QUIET);
    let before = bytes_between(cluster)?;
    let begun = Instant::now();
    for disconnecting_clients in generators.iter_mut() {
        ensure!(disconnecting_clients.ended().is_none(), "a load generator ended by itself");
        disconnecting_clients.child().kill()?;
    }
    for mut disconnecting_clients in generators.drain(..) {
        disconnecting_clients.child().wait()?;
    }
    let ended = begun.elapsed();
    // The one remaining route is that of the measured client.
    wait_until(|| known(cluster, |filters| filters <= 1))?;
    let took = begun.elapsed();
    let bytes = bytes_between(cluster)? - before;
    let quiet_s = begun.duration_since(quiet).as_secs_f64();
    Ok(DisconnectFigures { quiet, quiet_s, quiet_bytes: before - first, begun, ended, took, bytes })
}

/// Subscribes to new filters repeatedly.
fn ask(mqtt: SocketAddr, stop: &AtomicBool) -> Result<Vec<Waited>> {
    let mut client = Client::connect(mqtt, "who-asks")?;
    let mut waited = Vec::new();
    for number in 0.. {
        if stop.load(Relaxed) {
            break;
        }
        let filter = format!("asks/{number}/#");
        let begun = Instant::now();
        client.subscribe(&filter, 1, "cluster")?;
        waited.push((begun, begun.elapsed()));
        client.unsubscribe(&filter)?;
        std::thread::sleep(PAUSE);
    }
    Ok(waited)
}

/// Count, median, 99th percentile and maximum in milliseconds, of measurements that began in a time.
fn spread(waited: &[Waited], from: Instant, to: Instant) -> Result<(usize, f64, f64, f64)> {
    let within = waited.iter().filter(|(begun, _)| (from..to).contains(begun));
    let mut took: Vec<f64> = within.map(|(_, took)| took.as_secs_f64() * 1000.0).collect();
    ensure!(!took.is_empty(), "no subscription meanwhile");
    took.sort_by(f64::total_cmp);
    let at = |share: f64| took[((took.len() - 1) as f64 * share).round() as usize];
    Ok((took.len(), at(0.5), at(0.99), at(1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_measurements_that_began_in_the_time_count() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let waited: Vec<Waited> = (0..100).map(|n| (at(n), Duration::from_millis(n))).collect();
        assert_eq!(spread(&waited, at(10), at(21)).unwrap(), (11, 15.0, 20.0, 20.0));
        assert!(spread(&waited, at(200), at(300)).is_err());
    }
}
