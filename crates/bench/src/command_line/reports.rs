//! Options of this tool in every style: duration and reports of a run.

use super::UsageError;
use crate::agent::Agents;
use crate::plan::Output;
use clap::Args;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Args)]
#[command(next_help_heading = "Run and report (options of this tool)")]
pub struct Reports {
    /// End after so many seconds; 0: at Ctrl-C, or when all work is done (pubsub: 10 seconds)
    #[arg(long, default_value_t = 0.0)]
    duration: f64,
    /// Print the result as one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// Write a row per second to this file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a self-contained page with charts to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print nothing on standard error while running
    #[arg(long)]
    quiet: bool,
    /// Number of worker threads in each process
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Number of processes that share the clients
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    processes: u16,
    #[command(flatten)]
    agents: Agents,
    /// Processes of the broker on this machine: report CPU and memory each second
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    broker_pid: Vec<u32>,
    /// URL of the broker's figures in Prometheus' format, such as http://127.0.0.1:18083/metrics
    #[arg(long, value_name = "URL")]
    broker_metrics: Option<String>,
    /// File with the token for --broker-metrics
    #[arg(long, value_name = "FILE", requires = "broker_metrics")]
    broker_token_file: Option<PathBuf>,
    /// Figures of --broker-metrics to report, summed over their labels [default: messages, bytes, drops of Meridian]
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "broker_metrics")]
    broker_counter: Vec<String>,
    /// Address at which the figures of this run are served for Prometheus
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "127.0.0.1:9090")]
    prometheus: Option<String>,
}

impl Reports {
    pub fn output(&self) -> Result<Output, UsageError> {
        if !(self.duration >= 0.0 && self.duration < 1e9) {
            return Err(UsageError(format!("error: --duration {} is not a valid time", self.duration)));
        }
        if self.broker_metrics.as_ref().is_some_and(|url| !url.starts_with("http://")) {
            return Err(UsageError("error: --broker-metrics needs an http:// URL".to_owned()));
        }
        if self.processes > 1 && !self.agents.agents.is_empty() {
            return Err(UsageError(
                "error: --processes does not go with --agents: start one agent for each process".to_owned(),
            ));
        }
        let counters = match self.broker_counter.is_empty() {
            true => COUNTERS.map(str::to_owned).to_vec(),
            false => self.broker_counter.clone(),
        };
        Ok(Output {
            duration: (self.duration > 0.0).then(|| Duration::from_secs_f64(self.duration)),
            json: self.json,
            quiet: self.quiet,
            threads: usize::from(self.threads),
            processes: usize::from(self.processes),
            agents: self.agents.clone(),
            csv: self.csv.clone(),
            html: self.html.clone(),
            broker_pid: self.broker_pid.clone(),
            broker_metrics: self.broker_metrics.clone(),
            broker_token_file: self.broker_token_file.clone(),
            broker_counter: if self.broker_metrics.is_some() { counters } else { vec![] },
            prometheus: self.prometheus.as_deref().map(listen_on).transpose()?,
            command: vec![],
        })
    }
}

/// Default figures of the broker to report.
const COUNTERS: [&str; 5] = [
    "meridian_messages_received_total",
    "meridian_messages_sent_total",
    "meridian_messages_dropped_total",
    "meridian_bytes_received_total",
    "meridian_bytes_sent_total",
];

/// Parses an address with its port, or a port on all addresses, as for emqtt-bench's --restapi.
pub fn listen_on(text: &str) -> Result<SocketAddr, UsageError> {
    let whole = if text.contains(':') { text.to_owned() } else { format!("0.0.0.0:{text}") };
    whole.parse().map_err(|_| {
        UsageError(format!(
            "error: `{text}` is not an address to listen on: use IP:PORT, or PORT for all addresses"
        ))
    })
}

/// The words of a command line, with the values of -P, --password, -wh and --ws-headers removed.
pub fn without_secrets(words: &[OsString]) -> Vec<String> {
    let mut shown = vec![];
    let mut secret = false;
    // Headers continue until the next option.
    let mut headers = false;
    for word in words {
        let word = word.to_string_lossy();
        shown.push(match &*word {
            _ if secret => "***".to_owned(),
            word if headers && !word.starts_with('-') => "***".to_owned(),
            word if word.starts_with("--ws-headers=") => "--ws-headers=***".to_owned(),
            word if word.starts_with("--password=") => "--password=***".to_owned(),
            word if word.starts_with("-P") && word.len() > 2 => "-P***".to_owned(),
            word => word.to_owned(),
        });
        headers = matches!(&*word, "-wh" | "--ws-headers") || headers && !word.starts_with('-');
        secret = matches!(&*word, "-P" | "--password") && !secret;
    }
    shown
}
