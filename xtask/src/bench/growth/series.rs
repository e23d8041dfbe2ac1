//! Series of sizes, and the measurements of each.

use super::{Args, Row};
use crate::bench::broker::{Broker, Kind};
use crate::bench::child::{self, Guarded};
use crate::bench::measure;
use crate::bench::workload::{Purpose, Workload};
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use std::process::Stdio;
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum Series {
    Connections,
    Filters,
    Subscribers,
    Reactors,
}

pub struct Figure {
    /// Name in file names.
    pub name: &'static str,
    pub title: &'static str,
    /// Number of decimal places.
    pub digits: usize,
}

const fn figure(name: &'static str, title: &'static str, digits: usize) -> Figure {
    Figure { name, title, digits }
}

/// Minimum number of connections for memory figures: with fewer, fixed costs dominate.
const MEMORY_FROM: u32 = 1_000;
const SOURCES: &str = "-k 600 --bind 127.0.0.2,127.0.0.3 --setup-timeout 120";

impl Series {
    pub fn name(self) -> &'static str {
        match self {
            Series::Connections => "connections",
            Series::Filters => "filters",
            Series::Subscribers => "subscribers",
            Series::Reactors => "reactors",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Series::Connections => "Idle connections",
            Series::Filters => "Topic Filters",
            Series::Subscribers => "Subscribers of one topic",
            Series::Reactors => "Reactors",
        }
    }

    pub fn explanation(self) -> &'static str {
        match self {
            Series::Connections => {
                "50 pairs, 10,000 messages/s, QoS 1, 256 B, next to a number of idle clients. Each idle client has a wildcard\n\
                 subscription of its own. The last two columns are the cost of one idle client."
            }
            Series::Filters => {
                "The index alone, one thread, as `cargo bench -p routing --bench index` measures it. The filters are unique\n\
                 (`bench/NNNNNNN/#`), and a topic matches one of them."
            }
            Series::Subscribers => {
                "One publisher, QoS 0, 256 B, saturated, and a number of subscribers of its topic."
            }
            Series::Reactors => {
                "100 pairs, QoS 1, 256 B, saturated. The load generator uses the same CPUs, so more reactors do not mean more\n\
                 CPUs here."
            }
        }
    }

    /// Label of the x axis.
    pub fn axis(self) -> &'static str {
        match self {
            Series::Connections => "idle connections",
            Series::Filters => "filters",
            Series::Subscribers => "subscribers",
            Series::Reactors => "reactors",
        }
    }

    pub fn largest(self, args: &Args) -> u32 {
        match self {
            Series::Connections => args.connections,
            Series::Filters => args.filters,
            Series::Subscribers => 1_000,
            Series::Reactors => 2,
        }
    }

    pub fn figures(self) -> &'static [Figure] {
        const CPU: Figure = figure("cpu", "broker CPU, us a delivery", 2);
        const RATE: Figure = figure("rate", "deliveries a second", 0);
        match self {
            Series::Connections => {
                &const {
                    [
                        CPU,
                        figure("p50", "latency, p50 us", 0),
                        figure("memory", "anonymous bytes a connection", 0),
                        figure("connect", "broker CPU, us to connect and subscribe", 1),
                    ]
                }
            }
            Series::Filters => {
                &const {
                    [
                        figure("matches", "matches a second", 0),
                        figure("inserts", "inserts a second", 0),
                        figure("memory", "bytes a filter", 0),
                    ]
                }
            }
            Series::Subscribers | Series::Reactors => &const { [CPU, RATE] },
        }
    }

    /// Runs one size.
    pub fn measure(self, size: u32, seconds: u32) -> Result<Row> {
        match self {
            Series::Connections => connections(size, seconds),
            Series::Filters => filters(size, seconds),
            Series::Subscribers => {
                let arguments = format!(
                    "pubsub -p 1 -s {size} --topology fan-out -q 0 --max-outstanding {} --coalesce-us 500",
                    (size * 100).max(20_000)
                );
                flow(&arguments, seconds, None, None)
            }
            Series::Reactors => {
                flow("pubsub -p 100 -s 100 -q 1 --inflight 100 --coalesce-us 500", seconds, Some(size), None)
            }
        }
    }
}

fn load(purpose: Purpose, arguments: &str, idle_clients: Option<&str>) -> Workload {
    Workload::unnamed("growth", purpose, arguments, idle_clients)
}

fn on_a_fresh_broker(load: &Workload, workers: Option<u32>) -> Result<measure::Figures> {
    let broker = Broker::start(Kind::Meridian, workers)?.settled()?;
    let figures = measure::run(load, &broker, 0, None)?;
    figures.violations.iter().for_each(|violation| eprintln!("  {violation}"));
    Ok(figures)
}

fn flow(arguments: &str, seconds: u32, workers: Option<u32>, idle_clients: Option<&str>) -> Result<Row> {
    let arguments = format!("{arguments} -l 256 --warmup 1 -d {seconds}");
    let figures = on_a_fresh_broker(&load(Purpose::Throughput, &arguments, idle_clients), workers)?;
    Ok(vec![figures.cpu_us, figures.per_s])
}

fn connections(size: u32, seconds: u32) -> Result<Row> {
    let clients = format!("sub -c {size} -R 0 -T bench/%i/# -q 1 {SOURCES}");
    let idle_clients = format!("{clients} --hold 3600");
    let arguments = format!("pubsub -p 50 -s 50 -q 1 -R 10000 -l 256 --warmup 1 -d {seconds}");
    let flow = on_a_fresh_broker(&load(Purpose::Latency, &arguments, Some(&idle_clients)), None)?;
    let mut row = vec![flow.cpu_us, flow.p50_us, None, None];
    if size >= MEMORY_FROM {
        let clients = on_a_fresh_broker(&load(Purpose::Memory, &clients, None), None)?;
        row[2] = clients.anonymous;
        row[3] = clients.cpu_us;
    }
    Ok(row)
}

const INDEX: [&str; 6] = ["bench", "--quiet", "--package", "routing", "--bench", "index"];

/// Compiles the benchmark of the index before the measurement.
pub fn build_index() -> Result<()> {
    let status = crate::repository::cargo().args(INDEX).arg("--no-run").status().context("cargo bench")?;
    ensure!(status.success(), "cargo bench --no-run failed");
    Ok(())
}

fn filters(size: u32, seconds: u32) -> Result<Row> {
    let mut command = crate::repository::cargo();
    command.args(INDEX).args(["--", "one", "paths", "unique", &size.to_string(), &seconds.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = Guarded::spawn(&mut command)?;
    let status = process.wait(Duration::from_secs(600));
    ensure!(!child::interrupted(), "interrupted");
    ensure!(status.is_some_and(|status| status.success()), "the benchmark of the index failed");
    let text = std::io::read_to_string(process.child().stdout.take().context("a pipe")?)?;
    parse(&text).with_context(|| format!("the benchmark of the index said:\n{text}"))
}

/// Parses the line of one contender: matches and inserts per second, and bytes per filter where there are enough
/// filters.
fn parse(text: &str) -> Option<Row> {
    let line = text.lines().find(|line| line.starts_with("paths"))?;
    let numbers: Option<Vec<f64>> = line.split_whitespace().skip(2).map(|word| word.parse().ok()).collect();
    match numbers?[..] {
        [filters, bytes, _own, inserts, _slowest, _removes, _found, matches, _both] => {
            let enough = filters >= f64::from(10 * MEMORY_FROM);
            Some(vec![Some(matches), Some(inserts), enough.then_some(bytes)])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_index_is_parsed() {
        let line = "paths    unique   1000000     71.2       70.9    1870000        700    3000000     1.00    2540000    5330000\n";
        assert_eq!(parse(line), Some(vec![Some(2_540_000.0), Some(1_870_000.0), Some(71.2)]));
        let few = line.replace("1000000 ", "10 ");
        assert_eq!(parse(&few), Some(vec![Some(2_540_000.0), Some(1_870_000.0), None]));
        assert_eq!(parse("index    kind\n"), None);
        assert_eq!(parse("paths unique 5 5"), None);
    }
}
