//! What `meridian bench ha` is asked for.

use super::checker::{STREAMS_MAX, Shape};
use crate::config::SetupError;
use crate::config::from_args::resolve;
use crate::secret::Secret;
use clap::{Args, ValueEnum};
use std::net::SocketAddr;
use std::time::Duration;

/// Options as they are typed.
#[derive(Debug, Args)]
pub struct Options {
    /// Brokers, each with a port of its own if need be; a client that loses one goes to the next
    #[arg(long, short = 'h', default_value = "localhost", value_delimiter = ',')]
    host: Vec<String>,
    #[arg(long, short = 'p', default_value_t = 1883)]
    port: u16,
    /// Protocol version: 4 (3.1.1) or 5
    #[arg(long, short = 'V', default_value_t = 5, value_parser = clap::value_parser!(u8).range(4..=5))]
    version: u8,
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    publishers: u32,
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    subscribers: u32,
    /// Who hears whom: every subscriber every publisher, or publisher p only subscriber p modulo their number
    #[arg(long, value_enum, default_value_t = Topology::All)]
    topology: Topology,
    /// mixed: every publisher sends both, to a topic each
    #[arg(long, short = 'q', value_enum, default_value_t = Qos::One)]
    qos: Qos,
    /// Messages a second, all publishers together; 0: as fast as the window allows
    #[arg(long, short = 'R', default_value_t = 1000)]
    rate: u32,
    /// Payload bytes, 28 of them the checker's
    #[arg(long, short = 's', default_value_t = 256, value_parser = clap::value_parser!(u32).range(0..=200_000_000))]
    size: u32,
    /// Messages in flight of a publisher; the broker's Receive Maximum holds as well
    #[arg(long, short = 'F', visible_alias = "inflight", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    window: u32,
    /// Seconds of publishing
    #[arg(long, default_value = "30", value_parser = seconds)]
    duration: Duration,
    /// Seconds to wait at the end for acknowledgements and deliveries; over earlier when nothing is missing
    #[arg(long, default_value = "30", value_parser = seconds)]
    drain: Duration,
    /// Seconds at the end in which everybody is connected and nothing comes, after which nothing is waited for
    #[arg(long, default_value = "10", value_parser = seconds)]
    still: Duration,
    /// Seconds until all clients have to be connected and subscribed
    #[arg(long, default_value = "15", value_parser = seconds)]
    setup: Duration,
    /// Session Expiry Interval in seconds, MQTT 5.0; longer than the longest outage
    #[arg(long, short = 'x', default_value_t = 3600, value_parser = clap::value_parser!(u32).range(1..))]
    expiry: u32,
    /// Keep Alive in seconds; 0: off. A client asks after a second of silence anyway
    #[arg(long, short = 'k', default_value_t = 10)]
    keepalive: u16,
    /// Seconds without an answer after which a broker counts as gone
    #[arg(long, default_value = "5", value_parser = seconds)]
    answer: Duration,
    /// Longest pause before another attempt to connect, in milliseconds; the first is 50
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=600_000))]
    backoff_max: u32,
    /// Start of topics and Client Identifiers, without wildcards
    #[arg(long, default_value = "meridian-ha")]
    prefix: String,
    #[arg(long, short = 'u')]
    username: Option<String>,
    #[arg(long, short = 'P')]
    password: Option<Secret>,
    /// Leave the sessions in the broker
    #[arg(long)]
    keep_sessions: bool,
    /// The result as one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// No lines while running
    #[arg(long)]
    quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Topology {
    All,
    Dealt,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Qos {
    #[value(name = "1")]
    One,
    #[value(name = "2")]
    Two,
    Mixed,
}

/// A run, settled before the first connection.
pub struct Plan {
    pub hosts: Vec<SocketAddr>,
    pub v5: bool,
    pub shape: Shape,
    /// Messages a second of all publishers; 0 for no limit.
    pub rate: u32,
    pub size: usize,
    pub window: usize,
    pub duration: Duration,
    pub drain: Duration,
    pub still: Duration,
    pub setup: Duration,
    pub expiry: u32,
    pub keepalive: u16,
    pub answer: Duration,
    pub backoff_max: Duration,
    pub username: Option<String>,
    pub password: Option<String>,
    pub keep_sessions: bool,
    pub json: bool,
    pub quiet: bool,
    /// What this run's payloads begin with.
    pub run: u32,
    /// Start of this run's topics and Client Identifiers.
    pub name: String,
}

/// Seconds, a fraction allowed.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "it is a number of seconds".to_owned())?;
    if (0.0..=1e7).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("it is between 0 and 10,000,000 seconds".into())
    }
}

impl Options {
    /// # Errors
    /// Hosts without an address, and more than can be kept count of.
    pub fn plan(self, run: u32) -> Result<Plan, SetupError> {
        let shape = Shape {
            publishers: self.publishers as usize,
            subscribers: self.subscribers as usize,
            lanes: match self.qos {
                Qos::One => vec![1],
                Qos::Two => vec![2],
                Qos::Mixed => vec![1, 2],
            },
            dealt: self.topology == Topology::Dealt,
        };
        if shape.streams() > STREAMS_MAX {
            return Err(SetupError::TooManyStreams { streams: shape.streams(), limit: STREAMS_MAX });
        }
        if self.prefix.is_empty() || self.prefix.contains(['+', '#', '\0']) || self.prefix.len() > 1000 {
            return Err(SetupError::NoPrefix(self.prefix));
        }
        Ok(Plan {
            hosts: resolve(&crate::plan::with_ports(&self.host, self.port), true)?,
            v5: self.version == 5,
            shape,
            rate: self.rate,
            size: self.size as usize,
            window: self.window as usize,
            duration: self.duration,
            drain: self.drain,
            still: self.still,
            setup: self.setup,
            expiry: self.expiry,
            keepalive: self.keepalive,
            answer: self.answer.max(Duration::from_millis(100)),
            backoff_max: Duration::from_millis(u64::from(self.backoff_max)),
            username: self.username,
            password: self.password.map(|secret| secret.0),
            keep_sessions: self.keep_sessions,
            json: self.json,
            quiet: self.quiet,
            run,
            name: format!("{}-{run:08x}", self.prefix),
        })
    }
}

impl Plan {
    /// Where a publisher's messages of one QoS go.
    pub fn topic(&self, publisher: usize, qos: u8) -> String {
        let group = if self.shape.dealt { publisher % self.shape.subscribers } else { 0 };
        format!("{}/{group}/{publisher}/{qos}", self.name)
    }

    pub fn filter(&self, subscriber: usize) -> String {
        let group = if self.shape.dealt { subscriber } else { 0 };
        format!("{}/{group}/+/+", self.name)
    }

    pub fn client_id(&self, role: char, number: usize) -> String {
        format!("{}-{role}{number}", self.name)
    }
}
