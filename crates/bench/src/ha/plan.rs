//! Options of `meridian bench ha`.

use super::checker::{STREAMS_MAX, Shape};
use crate::codec::Version;
use crate::config::SetupError;
use crate::target::Target;
use clap::{Args, ValueEnum};
use std::net::SocketAddr;
use std::time::Duration;

/// Options as they are typed.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    target: Target,
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    publishers: u32,
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=15_000))]
    subscribers: u32,
    /// Subscribers of each publisher: all of them, or for publisher p only subscriber p modulo their number
    #[arg(long, value_enum, default_value_t = Topology::All)]
    topology: Topology,
    /// QoS of the messages; mixed: every publisher sends both, to a topic each
    #[arg(long, short = 'q', value_enum, default_value_t = Qos::One)]
    qos: Qos,
    /// Messages per second, all publishers together; 0: as fast as the window allows
    #[arg(long, short = 'R', default_value_t = 1000)]
    rate: u32,
    /// Payload size in bytes; the checker uses 28 of them
    #[arg(long, short = 's', default_value_t = 256, value_parser = clap::value_parser!(u32).range(0..=200_000_000))]
    size: u32,
    /// Maximum number of messages in flight of a publisher; the broker's Receive Maximum applies as well
    #[arg(long, short = 'F', visible_alias = "inflight", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    window: u32,
    /// Seconds of publishing
    #[arg(long, default_value = "30", value_parser = seconds)]
    duration: Duration,
    /// Maximum seconds to wait at the end for acknowledgements and deliveries; ends early when nothing is missing
    #[arg(long, default_value = "30", value_parser = seconds)]
    drain: Duration,
    /// Seconds of silence at the end, with all clients connected, after which the run stops waiting
    #[arg(long, default_value = "10", value_parser = seconds)]
    still: Duration,
    /// Maximum seconds until all clients are connected and subscribed
    #[arg(long, default_value = "15", value_parser = seconds)]
    setup: Duration,
    /// Session Expiry Interval in seconds, MQTT 5.0; longer than the longest outage. 0: sessions end with their
    /// connections, so clients may miss messages while they are disconnected
    #[arg(long, short = 'x', default_value_t = 3600)]
    expiry: u32,
    /// Keep Alive in seconds; 0: off. A client sends PINGREQ after a second of silence anyway
    #[arg(long, short = 'k', default_value_t = 10)]
    keepalive: u16,
    /// Seconds without an answer after which a broker counts as gone
    #[arg(long, default_value = "5", value_parser = seconds)]
    answer: Duration,
    /// Longest pause before another attempt to connect, in milliseconds; the first is 50
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=600_000))]
    backoff_max: u32,
    /// Reconnect to the same broker, never to the next one
    #[arg(long)]
    stay: bool,
    /// Start all clients at the first broker, instead of at each broker in turn
    #[arg(long, conflicts_with = "stay")]
    first: bool,
    /// Prefix of topics and Client Identifiers, without wildcards
    #[arg(long, default_value = "meridian-ha")]
    prefix: String,
    /// Leave the sessions in the broker
    #[arg(long)]
    keep_sessions: bool,
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

/// A run, complete before the first connection.
pub struct Plan {
    pub hosts: Vec<SocketAddr>,
    pub version: Version,
    pub shape: Shape,
    /// Messages per second of all publishers; 0 for no limit.
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
    /// True when a client always uses the same host.
    pub stays: bool,
    /// True when all clients begin at the first host.
    pub begins_at_first: bool,
    pub json: bool,
    pub quiet: bool,
    /// Number at the start of this run's payloads.
    pub run: u32,
    /// Prefix of this run's topics and Client Identifiers.
    pub name: String,
}

/// Parses seconds, with an optional fraction.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    if (0.0..=1e7).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("the time is between 0 and 10,000,000 seconds".into())
    }
}

impl Plan {
    /// Place in the hosts at which a client begins.
    pub fn begin(&self, number: usize) -> usize {
        if self.begins_at_first { 0 } else { number }
    }

    /// Host that a client connects to. `attempt` is the number of connections that it has lost.
    pub fn host(&self, number: usize, attempt: usize) -> SocketAddr {
        self.hosts[if self.stays { number } else { attempt } % self.hosts.len()]
    }
}

impl Options {
    /// Plans the run.
    ///
    /// # Errors
    /// Hosts without an address, and more clients than can be counted.
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
            hosts: self.target.hosts()?,
            version: self.target.version(),
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
            username: self.target.login.username,
            password: self.target.login.password.map(|secret| secret.0),
            keep_sessions: self.keep_sessions,
            stays: self.stay,
            begins_at_first: self.first,
            json: self.target.json,
            quiet: self.target.quiet,
            run,
            name: format!("{}-{run:08x}", self.prefix),
        })
    }
}

impl Plan {
    /// Topic of a publisher's messages with one QoS.
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    #[command(disable_help_flag = true)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn plan(line: &str) -> Result<Plan, String> {
        let words = std::iter::once("ha").chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        line.options.plan(7).map_err(|error| error.to_string())
    }

    #[test]
    fn hosts_use_their_own_port_or_the_common_one() {
        let plan = plan("-h 127.0.0.1:7,127.0.0.2 -p 9 -q mixed --duration 0.5").unwrap();
        assert_eq!(
            plan.hosts.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["127.0.0.1:7", "127.0.0.2:9"]
        );
        assert_eq!((plan.shape.lanes, plan.duration), (vec![1, 2], Duration::from_millis(500)));
    }

    #[test]
    fn clients_begin_at_one_host_each_or_all_at_the_first() {
        let begins = |line: &str| {
            let plan = plan(line).unwrap();
            [0, 1, 5].map(|number| plan.host(number, plan.begin(number)).port())
        };
        let hosts = "-h 127.0.0.1:7,127.0.0.1:8";
        assert_eq!(begins(hosts), [7, 8, 8]);
        assert_eq!(begins(&format!("{hosts} --first")), [7, 7, 7]);
    }

    #[test]
    fn a_filter_selects_the_publishers_of_its_subscriber() {
        let all = plan("-h 127.0.0.1 --publishers 4 --subscribers 2").unwrap();
        assert_eq!(all.topic(3, 1), "meridian-ha-00000007/0/3/1");
        assert_eq!(all.filter(1), "meridian-ha-00000007/0/+/+");
        let dealt = plan("-h 127.0.0.1 --publishers 4 --subscribers 2 --topology dealt").unwrap();
        assert_eq!(dealt.topic(3, 1), "meridian-ha-00000007/1/3/1");
        assert_eq!(dealt.filter(1), "meridian-ha-00000007/1/+/+");
    }

    #[test]
    fn impossible_options_are_refused_with_advice() {
        for (line, expected) in [
            ("-q 0", "possible values: 1, 2, mixed"),
            ("-V 3", "4..=5"),
            ("-h 127.0.0.1 --prefix a/#", "without + and #"),
            ("-h 127.0.0.1 --publishers 10000 --subscribers 10000", "--topology dealt"),
            ("--duration=-1", "between 0 and 10,000,000 seconds"),
            ("--drain nan", "seconds"),
            ("--window 0", "1..=20000"),
        ] {
            let text = plan(line).err().unwrap_or_default();
            assert!(text.contains(expected), "{line}: {text}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let line = Line::try_parse_from(["ha", "-P", "hunter2"]).unwrap();
        assert!(!format!("{:?}", line.options).contains("hunter2"));
    }
}
