//! Linked clusters: two clusters of three cores each, on two sites with a long line between them, joined by
//! `[[cluster_link]]` in both directions. `east` takes messages from `west`. Clients are on a host that is near both.

mod cut;
mod first;
mod interest;
mod judge;
mod pair;
mod peers;
mod steady;

use anyhow::{Context, Result, ensure};
use lab::{Lab, Topology};
use std::path::Path;

use super::percent;

#[derive(clap::Args)]
pub struct LinkArgs {
    /// Measurements of links
    #[arg(
        long,
        value_delimiter = ',',
        default_values = MEASUREMENTS,
        value_parser = MEASUREMENTS,
        help_heading = "Links"
    )]
    measure: Vec<String>,
    /// Round-trip time of the line between linked clusters
    #[arg(long, value_name = "TIME", default_value = "200ms", help_heading = "Links")]
    line_rtt: String,
    /// Rate of the line between linked clusters
    #[arg(long, value_name = "RATE", default_value = "50mbit", help_heading = "Links")]
    line_rate: String,
    /// Percentage of packets that the line between linked clusters loses in each direction; 0 is none
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = loss, help_heading = "Links")]
    line_loss: f64,
    /// Payload of the messages of links, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = clap::value_parser!(u32).range(32..=65536), help_heading = "Links")]
    payload: u32,
    /// QoS of the messages of links
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2], value_parser = clap::value_parser!(u8).range(1..=2), help_heading = "Links")]
    qos: Vec<u8>,
    /// Load of `steady`, in multiples of what the line carries
    #[arg(long, value_name = "TIMES", value_delimiter = ',', default_values_t = [0.5, 1.0, 2.0], value_parser = times, help_heading = "Links")]
    offered: Vec<f64>,
    /// Maximum number of messages that wait for the other cluster, in `steady` and `cut`. Beyond 1x, the default of
    /// `steady` is a quarter of what the line cannot carry
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Links")]
    queue_messages: Option<u32>,
    /// Maximum number of unacknowledged messages of the link. The default is that of the program
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Links")]
    in_flight: Option<u16>,
    /// Seconds for which `cut` and `peers` cut the line
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(5..=3600), help_heading = "Links")]
    cut: u32,
    /// Kill the node that runs the link by `kill -9` in the middle of a cut, and again 5 s after its end
    #[arg(long, help_heading = "Links")]
    kill: bool,
}

const MEASUREMENTS: [&str; 5] = ["first", "steady", "cut", "interest", "peers"];
/// Maximum multiple of the line's rate.
const TIMES_MAX: f64 = 10.0;
/// Bytes of a message on the line in addition to its payload: a PUBLISH packet with a topic of 20 bytes, and its share
/// of the headers of TCP and IP. `steady` prints the actual size.
const OVERHEAD: f64 = 44.0;

/// Names of the clusters, which are those of their sites, and the site of the clients.
const EAST: &str = "east";
const WEST: &str = "west";
const DESK: &str = "desk";
/// Host of all clients.
const CLIENTS: &str = "clients";

/// Programs, a directory for files, and the options.
struct Setup<'a> {
    program: &'a Path,
    mqload: &'a Path,
    directory: &'a Path,
    seconds: u32,
    args: &'a LinkArgs,
}

pub fn run(
    args: &LinkArgs,
    seconds: u32,
    (program, directory): (&Path, &Path),
    (passed, failed): (&mut usize, &mut Vec<String>),
) -> Result<()> {
    let directory = directory.join("links");
    std::fs::create_dir_all(&directory)?;
    let mqload = program.with_file_name("mqload");
    ensure!(mqload.is_file(), "{} does not exist: build it with the program", mqload.display());
    let context = Setup { program, mqload: &mqload, directory: &directory, seconds, args };
    let command: Vec<String> = std::env::args().skip(1).collect();
    println!("`cargo xtask {}`\n", command.join(" "));
    let congestion = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
    println!(
        "Two linked clusters of three cores; {} and {} between them, {} % of the packets lost in each direction. 1x = {:.0}",
        args.line_rtt,
        args.line_rate,
        args.line_loss,
        context.fits(&context.lab()?)?
    );
    println!(
        "messages/s of {} bytes. Congestion control of the hosts: {}.\n",
        args.payload,
        congestion.trim()
    );
    for name in &args.measure {
        let measured = match &name[..] {
            "first" => first::run(&context),
            "steady" => steady::run(&context),
            "cut" => cut::run(&context),
            "interest" => interest::run(&context),
            _ => peers::run(&context),
        };
        println!();
        match measured {
            Ok(()) => *passed += 1,
            Err(error) => failed.push(format!("links, {name}: {error:#}")),
        }
    }
    Ok(())
}

impl Setup<'_> {
    /// A lab with the two sites and the line between them.
    fn lab(&self) -> Result<Lab> {
        let LinkArgs { line_rtt, line_rate, line_loss, .. } = self.args;
        Ok(Lab::start(Topology::parse(&topology(line_rtt, line_rate, *line_loss))?)?)
    }

    /// Links with a limit of the messages that wait.
    fn links(&self, queue_messages: Option<u32>) -> pair::Means {
        pair::Means::Links { queue_messages, in_flight: self.args.in_flight }
    }

    /// Messages per second that the line carries: 1x.
    fn fits(&self, lab: &Lab) -> Result<f64> {
        let topology = lab.topology();
        let rate = topology.line(topology.site(WEST)?, topology.site(EAST)?).rate;
        ensure!(rate > 0, "--line-rate: give a rate, because loads are multiples of it");
        Ok(rate as f64 / 8.0 / (f64::from(self.args.payload) + OVERHEAD))
    }

    /// Keeps the report of a run.
    fn keep(&self, name: &str, report: &serde_json::Value) -> Result<()> {
        let path = self.directory.join(format!("{name}.json"));
        std::fs::write(&path, report.to_string()).with_context(|| path.display().to_string())
    }
}

fn topology(rtt: &str, rate: &str, loss: f64) -> String {
    let mut text = "name = \"links\"\n[sysctl]\n\"net.ipv4.tcp_rmem\" = \"4096 131072 16777216\"\n\
        \"net.ipv4.tcp_wmem\" = \"4096 65536 16777216\"\n"
        .to_owned();
    for site in [EAST, WEST, DESK] {
        text += &format!("[[site]]\nname = {site:?}\nrtt = \"0.4ms\"\n");
    }
    for site in [EAST, WEST] {
        for host in hosts(site) {
            text += &format!("[[host]]\nname = {host:?}\nsite = {site:?}\n");
        }
        text += &format!("[[line]]\na = {site:?}\nb = {DESK:?}\nrtt = \"1.5ms\"\n");
    }
    text += &format!("[[host]]\nname = {CLIENTS:?}\nsite = {DESK:?}\n");
    let between = format!("a = {EAST:?}\nb = {WEST:?}\nrtt = {rtt:?}\nrate = {rate:?}\nloss = \"{loss}%\"\n");
    text + "[[line]]\n" + &between
}

/// Hosts of a cluster.
fn hosts(site: &str) -> [String; 3] {
    [1, 2, 3].map(|number| format!("{site}{number}"))
}

fn loss(text: &str) -> Result<f64, String> {
    if text.trim_end_matches('%') == "0" { Ok(0.0) } else { percent(text) }
}

fn times(text: &str) -> Result<f64, String> {
    let times = text.trim_end_matches('x').parse().ok().filter(|it| *it > 0.0 && *it <= TIMES_MAX);
    times
        .ok_or_else(|| format!("a multiple of the line's rate, more than 0 and at most {TIMES_MAX}: 0.5,1,2"))
}

/// A figure of a report, which may be absent.
fn figure(report: &serde_json::Value, path: &str) -> f64 {
    report.pointer(path).and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN)
}

/// A count of a report.
///
/// # Errors
/// The report has none at this path.
fn count(report: &serde_json::Value, path: &str) -> Result<u64> {
    let found = report.pointer(path).and_then(serde_json::Value::as_u64);
    found.with_context(|| format!("the report has no {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_between_the_clusters_has_the_given_properties() {
        let topology = Topology::parse(&topology("200ms", "50mbit", 1.0)).expect("it is valid");
        let site = |name| topology.site(name).expect("a site");
        let line = topology.line(site(WEST), site(EAST));
        assert_eq!((line.rate, line.delay.as_millis()), (50_000_000, 100));
        assert!((line.loss - 0.01).abs() < 1e-9);
        assert_eq!(topology.line(site(DESK), site(WEST)).rate, 0, "clients are near both clusters");
        assert_eq!(topology.hosts_of(EAST).expect("hosts").len(), 3);
    }

    #[test]
    fn loads_are_positive_multiples() {
        assert_eq!((times("0.5"), times("2x"), loss("0"), loss("1%")), (Ok(0.5), Ok(2.0), Ok(0.0), Ok(1.0)));
        for bad in ["0", "-1", "11", "NaN", "", "x"] {
            assert!(times(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_report_without_a_count_is_an_error() {
        let report = serde_json::json!({ "lost": 3 });
        assert_eq!(count(&report, "/lost").expect("there"), 3);
        assert!(count(&report, "/duplicated").is_err());
        assert!(figure(&report, "/duplicated").is_nan());
    }
}
