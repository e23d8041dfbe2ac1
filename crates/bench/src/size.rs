//! `meridian bench size`: resources of a deployment, computed from measurements. [`measured`] has the constants, each
//! with its command and date; [`Sheet`] is the computation.

mod measured;
mod sheet;

use clap::Args;
use serde_json::Value;
use sheet::Sheet;
use std::io::Write;

/// Parameters of the deployment.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Number of clients that are connected at the same time; with k or M for thousands or millions
    #[arg(long, value_parser = clients)]
    clients: u64,
    /// Messages per second that are published, all clients together
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    rate: u64,
    /// Payload size in bytes
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(0..=268_435_455))]
    payload: u64,
    /// QoS of publishers and subscribers
    #[arg(long, short = 'q', default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=2))]
    qos: u8,
    /// Number of subscribers of each message
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    fan_out: u64,
    /// Length of a topic in bytes
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=65535))]
    topic: u64,
    /// Use TLS for clients
    #[arg(long)]
    tls: bool,
    /// Number of nodes; 0: as many as the machines below need, and one to spare
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    nodes: u64,
    /// Cores of a machine
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1024))]
    node_cores: u64,
    /// Memory of a machine in GiB
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=65536))]
    node_memory: u64,
    /// Share of a machine's memory that may be used, in percent: the rest is for queues, bursts and the loss of a node
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=100))]
    memory_share: u64,
    /// Number of replicas of the owner of each Client Identifier in a cluster (cluster.replicas)
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(0..=7))]
    replicas: u64,
    /// Print the sheet as one JSON object
    #[arg(long)]
    json: bool,
}

/// Reads a number of clients.
fn clients(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 1_000),
        Some(b'M') => (&text[..text.len() - 1], 1_000_000),
        _ => (text, 1),
    };
    let count = digits.parse().ok().and_then(|count: u64| count.checked_mul(unit));
    let count = count.filter(|count| (1..=CLIENTS_MAX).contains(count));
    count.ok_or_else(|| {
        format!("a number from 1 to {}M, such as 250000, 250k or 100M", CLIENTS_MAX / 1_000_000)
    })
}

const CLIENTS_MAX: u64 = 1_000_000_000;

/// Prints the sheet. The exit code: 0, or 1 when the requested nodes are too few.
pub fn run(options: &Options) -> i32 {
    let sheet = Sheet::new(options);
    let text = match options.json {
        true => format!("{}\n", Value::from(&sheet)),
        false => sheet.to_string(),
    };
    // A closed standard output does not change what was computed.
    let _ = std::io::stdout().write_all(text.as_bytes());
    i32::from(!sheet.fits())
}
