//! Configuration of a run, complete before the first connection.

pub(crate) mod from_args;

use crate::layer::Layers;
use crate::plain::Plain;
use crate::plan::Churn;
use crate::properties::Will;
use crate::random::Random;
use crate::template::{Placeholders, Template};
use crate::topology::Topology;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// Reason why a run could not start.
#[derive(Debug)]
pub enum SetupError {
    NotLoopback(SocketAddr),
    NoAddress(String),
    UnequalPairs {
        pubs: usize,
        subs: usize,
    },
    NoSuchQos(u8),
    TooManyFiles {
        needed: u64,
        limit: u64,
    },
    TopicTooLong {
        bytes: usize,
    },
    NoMessageHeader {
        size: usize,
        header: usize,
    },
    TooManyStreams {
        streams: usize,
        limit: usize,
    },
    NoPrefix(String),
    NotTwoEnds(usize),
    File {
        path: PathBuf,
        error: std::io::Error,
    },
    NoSuchProcess(u32),
    NoFigures {
        url: String,
        why: String,
    },
    NoListener {
        address: SocketAddr,
        error: std::io::Error,
    },
    /// Clients that depend on each other cannot be divided among processes.
    Indivisible,
    /// Another process of this run could not start. Holds its reason.
    Elsewhere(String),
    Tls(tls::TlsError),
    /// A topic, User Name or payload with unknown placeholders.
    Template(String),
    /// Properties or a Will that are not valid in a packet.
    Properties(String),
    /// An agent that is invalid or not reachable.
    Agent(String),
    /// An invalid scenario.
    Scenario(String),
}

impl SetupError {
    pub(crate) fn file(path: &Path, error: &std::io::Error) -> SetupError {
        SetupError::File {
            path: path.to_owned(),
            error: std::io::Error::new(error.kind(), error.to_string()),
        }
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            SetupError::NotLoopback(a) => write!(f, "{a} is not a loopback address (see --allow-remote)"),
            SetupError::NoAddress(host) => {
                write!(f, "no address for {host}: check the name, and that it resolves here")
            }
            SetupError::UnequalPairs { pubs, subs } => {
                write!(f, "one-to-one needs as many subscribers as publishers, not {pubs} and {subs}")
            }
            SetupError::NoSuchQos(qos) => write!(f, "QoS is 0, 1 or 2, not {qos}"),
            SetupError::TooManyFiles { needed, limit } => {
                write!(
                    f,
                    "{needed} descriptors needed, the limit is {limit}: raise it (`ulimit -Hn {needed}` as root, \
                     LimitNOFILE={needed} in a systemd unit) or ask for fewer clients"
                )
            }
            SetupError::TopicTooLong { bytes } => {
                write!(f, "a topic of {bytes} bytes; MQTT's maximum is 65535")
            }
            SetupError::TooManyStreams { streams, limit } => write!(
                f,
                "{streams} pairs of a publisher's topic and a subscriber, the limit is {limit}: \
                 ask for fewer clients, or for --topology dealt"
            ),
            SetupError::NotTwoEnds(hosts) => {
                write!(f, "expected one host or two, found {hosts}: the publisher's and the subscriber's")
            }
            SetupError::NoPrefix(prefix) => {
                write!(
                    f,
                    "`{prefix}` is not a prefix of a topic: --prefix is 1 to 1000 characters \
                         without + and #"
                )
            }
            SetupError::File { path, error } => write!(f, "{}: {error}", path.display()),
            SetupError::NoSuchProcess(pid) => {
                write!(f, "there is no process {pid} on this machine: check --broker-pid")
            }
            SetupError::NoFigures { url, why } => write!(f, "no figures from {url}: {why}"),
            SetupError::NoListener { address, error } => {
                write!(
                    f,
                    "figures cannot be served on {address}: {error}; use another address for --prometheus"
                )
            }
            SetupError::Indivisible => f.write_str(
                "with pubsub, several processes need %i in the topic: each process can check \
                     only messages of its own clients",
            ),
            SetupError::Elsewhere(text) => f.write_str(text),
            SetupError::Tls(error) => write!(f, "{error}"),
            SetupError::Template(text)
            | SetupError::Agent(text)
            | SetupError::Scenario(text)
            | SetupError::Properties(text) => f.write_str(text),
            SetupError::NoMessageHeader { size, header } => {
                write!(
                    f,
                    "a payload of {size} bytes has no room for {header} bytes of headers: use -s {header} or more"
                )
            }
        }
    }
}

impl std::error::Error for SetupError {}

/// A run, from the command line.
pub struct Config {
    pub v5: bool,
    /// MQTT 3.1: CONNECT differs from that of 3.1.1, and nothing else here.
    pub v31: bool,
    pub keepalive: u16,
    pub clean: bool,
    /// Session Expiry Interval in seconds and Receive Maximum, 0 for none; 5.0 only.
    pub expiry: u32,
    pub recv_max: u16,
    pub user: Option<String>,
    pub pass: Option<String>,
    pub sub_prefix: String,
    pub pub_prefix: String,
    /// Client Identifiers are the prefix alone.
    pub exact_id: bool,
    pub pub_hosts: Vec<SocketAddr>,
    pub sub_hosts: Vec<SocketAddr>,
    /// Source addresses used in turn; empty for the kernel's choice.
    pub binds: Vec<IpAddr>,
    pub threads: usize,
    pub pin: Vec<usize>,
    /// Maximum number of new connections per second, 0 for no limit, and of attempts at one time.
    pub conn_rate: f64,
    pub concurrency: usize,
    pub connect_timeout_ms: u64,
    /// Silence in milliseconds after which a client sends PINGREQ; 0 for never.
    pub ping_idle_rx_ms: u64,
    pub ping_timeout_ms: u64,
    pub sndbuf: i32,
    pub rcvbuf: i32,
    /// Clients reconnect after a pause that doubles.
    pub reconnect: bool,
    pub backoff_ms: u64,
    pub backoff_max_ms: u64,
    /// Limits of attempts with `reconnect` off: after the first one until a client is connected, and after it was.
    pub connect_retries: u32,
    pub reconnects: u32,
    pub log_events: bool,
    /// Schedule of clients that disconnect and reconnect by themselves.
    pub churn: Option<Churn>,

    pub n_sub: usize,
    pub n_pub: usize,
    pub sub_topics: Vec<String>,
    pub per_conn: usize,
    pub pub_topic: String,
    pub topology: Topology,
    pub groups: usize,
    pub pub_qos: u8,
    pub sub_qos: u8,
    pub payload: usize,
    /// Messages per second, all publishers together; 0 for as fast as possible.
    pub rate: f64,
    /// Maximum number of messages in flight of each publisher above QoS 0.
    pub window: usize,
    /// Total number of messages, 0 for a run that ends by time.
    pub messages: u64,
    /// Maximum number of outstanding deliveries in total, 0 for no limit.
    pub max_outstanding: u64,
    /// Latency is measured from the time a message was due, not from its sending.
    pub from_due: bool,
    pub verify: bool,
    pub tick_ns: u64,
    /// Interval in nanoseconds at which sockets are polled while publishing (0 = at once).
    pub coalesce_ns: u64,
    /// Maximum number of bytes that a publisher passes to the kernel at once.
    pub chunk: usize,
    pub run_id: u16,
    /// Number `%i` of the first client.
    pub start: usize,
    /// Number of clients in the processes before this one: determines the first host and source address.
    pub offset: usize,
    /// Messages without the checker's header; each publisher keeps its own schedule.
    pub plain: Option<Plain>,
    /// Layers between the sockets and MQTT.
    pub layers: Layers,
    /// Encoded properties of every message and of CONNECT; MQTT 5.0.
    pub message_properties: Vec<u8>,
    pub connect_properties: Vec<u8>,
    pub will: Option<Will>,
    /// Clients that leave temporarily send no DISCONNECT.
    pub vanish: bool,
    /// Time after which an unacknowledged message is sent again on the same connection; 0: never. Not with MQTT 5.0.
    pub retry_ns: u64,
}

impl Config {
    pub fn client_id(&self, is_pub: bool, i: usize) -> String {
        let (prefix, number) =
            (if is_pub { &self.pub_prefix } else { &self.sub_prefix }, (i + self.start).to_string());
        if self.exact_id {
            return prefix.clone();
        }
        if prefix.contains("%i") { prefix.replace("%i", &number) } else { format!("{prefix}{number}") }
    }
    /// The User Name of a client: `%i` is its number, `%rand_9` a number that it keeps.
    pub fn username(&self, i: usize) -> Option<String> {
        let user = self.user.as_ref()?;
        let (Some(plain), true) = (&self.plain, user.contains('%')) else { return Some(user.clone()) };
        let number = i + self.start;
        let template = Template::parse(user, Placeholders::Topic).unwrap_or_default();
        Some(template.text(number, "", "", &mut Random::of([plain.seed, number as u64, u64::MAX - 1])))
    }
    /// Properties of every PUBLISH, where the version has properties.
    pub fn properties(&self) -> Option<&[u8]> {
        self.v5.then_some(&self.message_properties)
    }
    /// Topic of the Will; empty without a Will.
    pub fn will_topic(&self, is_pub: bool, i: usize) -> String {
        self.will.as_ref().map(|will| self.expand(&will.topic, is_pub, i, i, 0)).unwrap_or_default()
    }
    fn expand(&self, t: &str, is_pub: bool, i: usize, partner: usize, n: usize) -> String {
        if let Some(plain) = &self.plain {
            let number = i + self.start;
            let username = self.username(i);
            let mut random = Random::of([plain.seed, number as u64, u64::MAX]);
            let template = Template::parse(t, Placeholders::Topic).unwrap_or_default();
            return template.text(
                number,
                &self.client_id(is_pub, i),
                username.as_deref().unwrap_or(""),
                &mut random,
            );
        }
        t.replace("%i", &(i + self.start).to_string())
            .replace("%j", &(partner + self.start).to_string())
            .replace("%c", &self.client_id(is_pub, i))
            .replace("%r", &format!("{:04x}", self.run_id))
            .replace("%n", &n.to_string())
    }
    pub fn topic_of_pub(&self, i: usize) -> String {
        let j = if self.topology == Topology::FanIn { i % self.n_sub.max(1) } else { i };
        self.expand(&self.pub_topic, true, i, j, 0)
    }
    /// Filters that a client subscribes to when it connects.
    pub fn filters(&self, is_pub: bool, i: usize) -> Vec<String> {
        match is_pub {
            true if self.plain.is_some() => {
                self.sub_topics.iter().map(|t| self.expand(t, true, i, i, 0)).collect()
            }
            true => vec![],
            false => self.filters_of_sub(i),
        }
    }
    pub fn filters_of_sub(&self, i: usize) -> Vec<String> {
        let j = match self.topology {
            Topology::FanOut => i % self.n_pub.max(1),
            Topology::Shared => i % self.groups.max(1),
            _ => i,
        };
        let mut v = vec![];
        for t in &self.sub_topics {
            for n in 0..self.per_conn {
                v.push(self.expand(t, false, i, j, n));
            }
        }
        v
    }
    pub fn tag(&self) -> u32 {
        0x4d51_0000 | self.run_id as u32
    }
    /// Number of messages that publisher `i` sends in --messages mode.
    pub fn quota(&self, i: usize) -> u64 {
        if self.messages == 0 {
            return u64::MAX;
        }
        let p = self.n_pub as u64;
        self.messages / p + ((i as u64) < self.messages % p) as u64
    }
}
