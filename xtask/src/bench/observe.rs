//! `cargo xtask observe`: the latency of messages while operators use the node, and without them, in alternation.

use super::broker::{Broker, Kind, free_address};
use super::child;
use super::idle_clients::IdleClients;
use super::measure::{self, Figures, cell};
use super::workload;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    /// Number of connected clients, each with its own subscription, in addition to those that send and receive
    #[arg(long, default_value_t = 15_000)]
    connections: u32,
    /// Measured seconds of each load, after one second of warm-up
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Number of runs of each kind of observation
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
}

/// Load of 50 pairs, 2,000 messages a second, QoS 1.
const LOAD: &str = "latency";

/// Action of an operator during the load.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Observer {
    Nobody,
    Scrape,
    List,
    Trace,
}

impl Observer {
    const ALL: [Observer; 4] = [Observer::Nobody, Observer::Scrape, Observer::List, Observer::Trace];

    fn name(self) -> &'static str {
        match self {
            Observer::Nobody => "nobody looks",
            Observer::Scrape => "`/metrics` once a second",
            Observer::List => "every client listed, again and again, 1,000 a page",
            Observer::Trace => "a trace of every message (`#`)",
        }
    }
}

pub fn run(args: &Args) -> Result<()> {
    super::build(&[Kind::Meridian])?;
    child::catch_signals();
    let http = free_address()?;
    let mut broker = Broker::start_with_http(http)?;
    // Idle clients.
    let idle_clients = format!(
        "sub -c {} -R 0 -T idle/%i/# -q 1 -k 600 --bind 127.0.0.2,127.0.0.3 --setup-timeout 120 --hold 3600",
        args.connections
    );
    let idle_clients = IdleClients::start(broker.address, &workload::split(&idle_clients))?;
    let load = workload::all(args.seconds, 1).into_iter().find(|load| load.name == LOAD).context(LOAD)?;
    let mut rows: Vec<(Observer, Vec<Figures>, u64)> =
        Observer::ALL.map(|observer| (observer, Vec::new(), 0)).into();
    for round in 0..args.rounds {
        for at in 0..rows.len() {
            let row = (at + round as usize) % Observer::ALL.len();
            let (observer, runs, answers) = &mut rows[row];
            eprintln!("round {}/{}: {}", round + 1, args.rounds, observer.name());
            let stop = AtomicBool::new(false);
            let (figures, answered) = std::thread::scope(|scope| {
                let watching = scope.spawn(|| look(*observer, http, &stop));
                let figures = measure::run(&load, &broker, round, None);
                stop.store(true, Relaxed);
                (figures, watching.join().expect("the operator does not panic"))
            });
            runs.push(figures?);
            *answers += answered?;
            if child::interrupted() {
                bail!("interrupted");
            }
        }
    }
    ensure!(broker.alive(), "the broker ended by itself; its log ends with\n{}", broker.log_tail());
    drop(idle_clients);
    print(args, &rows);
    Ok(())
}

/// Observes until it is stopped; returns the number of answers (for a trace: bytes).
fn look(observer: Observer, http: SocketAddr, stop: &AtomicBool) -> Result<u64> {
    let mut answers = 0;
    let mut cursor = String::new();
    while !stop.load(Relaxed) {
        match observer {
            Observer::Nobody => std::thread::sleep(Duration::from_millis(50)),
            Observer::Scrape => {
                get(http, "/metrics")?;
                answers += 1;
                for _ in 0..20 {
                    if !stop.load(Relaxed) {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                }
            }
            Observer::List => {
                let page = get(http, &format!("/api/v1/clients?limit=1000{cursor}"))?;
                let page: Value = serde_json::from_slice(&page).context("a page")?;
                let next = page["next"].as_str();
                answers += u64::from(next.is_none());
                cursor = next.map(|next| format!("&cursor={next}")).unwrap_or_default();
            }
            Observer::Trace => return trace(http, stop),
        }
    }
    Ok(answers)
}

fn request(http: SocketAddr, path: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&http, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n")?;
    Ok(stream)
}

/// The body of an answer.
fn get(http: SocketAddr, path: &str) -> Result<Vec<u8>> {
    let mut answer = Vec::new();
    request(http, path)?.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").context("no HTTP answer")?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    ensure!(head.starts_with("HTTP/1.1 200 "), "{path}: {}", head.lines().next().unwrap_or_default());
    answer.drain(..end + 4);
    Ok(answer)
}

fn trace(http: SocketAddr, stop: &AtomicBool) -> Result<u64> {
    let mut stream = request(http, "/api/v1/trace?topic=%23&seconds=3600&events=100000")?;
    stream.set_read_timeout(Some(Duration::from_millis(100)))?;
    let (mut bytes, mut buffer) = (0, vec![0; 65536]);
    while !stop.load(Relaxed) {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => bytes += count as u64,
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

fn print(args: &Args, rows: &[(Observer, Vec<Figures>, u64)]) {
    let Args { connections, seconds, rounds } = args;
    println!(
        "`cargo xtask observe --connections {connections} --seconds {seconds} --rounds {rounds}`: 50 pairs, 2,000 messages/s, \
         QoS 1, with {connections} idle clients; median (lowest-highest) of {rounds} rounds.\n"
    );
    println!("| meanwhile | p50 us | p99 us | lost | done |\n|---|---|---|---|---|");
    for (observer, runs, answers) in rows {
        let lost: f64 = runs.iter().filter_map(|run| run.lost).sum();
        let done = match observer {
            Observer::Nobody => String::new(),
            Observer::Scrape => format!("{answers} scrapes"),
            Observer::List => format!("{answers} whole listings"),
            Observer::Trace => format!("{answers} bytes of events"),
        };
        let name = observer.name();
        println!(
            "| {name} | {} | {} | {lost:.0} | {done} |",
            cell(runs, 0, |run| run.p50_us),
            cell(runs, 0, |run| run.p99_us)
        );
    }
}
