//! Configuration of a run, complete before the first connection. Read [`Config`] first; each of its parts holds what
//! one part of a worker needs.

pub(crate) mod from_args;
mod setup_error;

pub use setup_error::SetupError;

use crate::codec::Version;
use crate::layer::Layers;
use crate::plain::Plain;
use crate::plan::Presence;
use crate::properties::Will;
use crate::random::Random;
use crate::template::{Placeholders, Template};
use crate::topology::Topology;
use std::net::{IpAddr, SocketAddr};

/// A run, from the command line.
pub struct Config {
    /// Number of the run in its topics and in the tags of its messages.
    pub run_id: u16,
    pub threads: Threads,
    pub network: Network,
    pub identity: Identity,
    pub session: SessionOptions,
    pub connecting: Connecting,
    pub ping: Ping,
    pub presence: Presence,
    pub traffic: Traffic,
    pub sending: Sending,
    pub checks: Checks,
    /// Messages without the checker's header; each publisher keeps its own schedule.
    pub plain: Option<Plain>,
}

/// Worker threads, and the processors that they are pinned to.
pub struct Threads {
    pub count: usize,
    pub pin: Vec<usize>,
}

/// Addresses and sockets.
#[derive(Default)]
pub struct Network {
    pub pub_hosts: Vec<SocketAddr>,
    pub sub_hosts: Vec<SocketAddr>,
    /// Source addresses used in turn; empty for the kernel's choice.
    pub binds: Vec<IpAddr>,
    /// Number of clients in the processes before this one: determines the first host and source address.
    pub offset: usize,
    pub sndbuf: i32,
    pub rcvbuf: i32,
    /// Layers between the sockets and MQTT.
    pub layers: Layers,
}

/// Client Identifiers and credentials.
#[derive(Default)]
pub struct Identity {
    pub user: Option<String>,
    pub pass: Option<String>,
    pub sub_prefix: String,
    pub pub_prefix: String,
    /// Client Identifiers are the prefix alone.
    pub exact_id: bool,
    /// Number `%i` of the first client.
    pub start: usize,
}

/// Contents of CONNECT, apart from the identity.
pub struct SessionOptions {
    pub version: Version,
    pub keepalive: u16,
    pub clean: bool,
    /// Session Expiry Interval in seconds and Receive Maximum, 0 for none; 5.0 only.
    pub expiry: u32,
    pub recv_max: u16,
    /// Encoded properties of CONNECT; MQTT 5.0.
    pub properties: Vec<u8>,
    pub will: Option<Will>,
}

/// Pace of connecting, and further attempts after a failure.
pub struct Connecting {
    /// Maximum number of new connections per second, 0 for no limit, and of attempts at one time.
    pub rate: f64,
    pub concurrency: usize,
    pub timeout_ms: u64,
    pub reconnect: Reconnect,
    /// Pause before another attempt: the first one, which doubles, and its maximum.
    pub backoff_ms: u64,
    pub backoff_max_ms: u64,
}

/// Number of further attempts of a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reconnect {
    Unlimited,
    /// Maximum number of attempts after the first one: until the client is connected, and after it was.
    Limited {
        first: u32,
        later: u32,
    },
}

/// Monitoring of idle connections.
pub struct Ping {
    /// Silence in milliseconds after which a client sends PINGREQ; 0 for never.
    pub idle_rx_ms: u64,
    pub timeout_ms: u64,
}

/// Publishers, subscribers and the messages between them.
pub struct Traffic {
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
    /// Encoded properties of every message; MQTT 5.0.
    pub properties: Vec<u8>,
}

/// Rate, number and pacing of messages.
pub struct Sending {
    /// Messages per second, all publishers together; 0 for as fast as possible.
    pub rate: f64,
    /// Maximum number of messages in flight of each publisher above QoS 0.
    pub window: usize,
    /// Total number of messages, 0 for a run that ends by time.
    pub messages: u64,
    /// Maximum number of outstanding deliveries in total, 0 for no limit.
    pub max_outstanding: u64,
    pub tick_ns: u64,
    /// Interval in nanoseconds at which sockets are polled while publishing (0 = at once).
    pub coalesce_ns: u64,
    /// Maximum number of bytes that a publisher passes to the kernel at once.
    pub chunk: usize,
    /// Time after which an unacknowledged message is sent again on the same connection; 0: never. Not with MQTT 5.0.
    pub retry_ns: u64,
}

/// Checks of received messages, and records of the run.
pub struct Checks {
    pub latency_from: LatencyFrom,
    /// Payloads are compared byte by byte.
    pub verify: bool,
    /// Connections and disconnects are recorded with their times.
    pub log_events: bool,
}

/// The moment from which the latency of a message is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LatencyFrom {
    /// The time when it was due.
    Due,
    /// The time when it was sent.
    Send,
}

/// The part of a client in the traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Side {
    Publisher,
    Subscriber,
}

impl Network {
    /// Addresses of the broker, used in turn.
    pub fn hosts(&self, side: Side) -> &[SocketAddr] {
        match side {
            Side::Publisher => &self.pub_hosts,
            Side::Subscriber => &self.sub_hosts,
        }
    }
}

impl Reconnect {
    /// Returns whether a client may try again after this number of further attempts.
    pub fn allows(self, attempts: u32, was_connected: bool) -> bool {
        match self {
            Reconnect::Unlimited => true,
            Reconnect::Limited { first, later } => attempts < if was_connected { later } else { first },
        }
    }
}

impl Traffic {
    /// Number of publishers and subscribers.
    pub fn clients(&self) -> usize {
        self.n_sub + self.n_pub
    }
    /// QoS of deliveries.
    pub fn qos(&self) -> u8 {
        self.pub_qos.min(self.sub_qos)
    }
}

impl Config {
    pub fn client_id(&self, side: Side, i: usize) -> String {
        let prefix = match side {
            Side::Publisher => &self.identity.pub_prefix,
            Side::Subscriber => &self.identity.sub_prefix,
        };
        let number = (i + self.identity.start).to_string();
        if self.identity.exact_id {
            return prefix.clone();
        }
        if prefix.contains("%i") { prefix.replace("%i", &number) } else { format!("{prefix}{number}") }
    }
    /// The User Name of a client: `%i` is its number, `%rand_9` a number that it keeps.
    pub fn username(&self, i: usize) -> Option<String> {
        let user = self.identity.user.as_ref()?;
        let (Some(plain), true) = (&self.plain, user.contains('%')) else { return Some(user.clone()) };
        let number = i + self.identity.start;
        let template = Template::parse(user, Placeholders::Topic).unwrap_or_default();
        Some(template.text(number, "", "", &mut Random::of([plain.seed, number as u64, u64::MAX - 1])))
    }
    /// Properties of every PUBLISH, where the version has properties.
    pub fn properties(&self) -> Option<&[u8]> {
        self.session.version.is_5().then_some(&self.traffic.properties)
    }
    /// Topic of the Will; empty without a Will.
    pub fn will_topic(&self, side: Side, i: usize) -> String {
        self.session.will.as_ref().map(|will| self.expand(&will.topic, side, i, i, 0)).unwrap_or_default()
    }
    fn expand(&self, t: &str, side: Side, i: usize, partner: usize, n: usize) -> String {
        if let Some(plain) = &self.plain {
            let number = i + self.identity.start;
            let username = self.username(i);
            let mut random = Random::of([plain.seed, number as u64, u64::MAX]);
            let template = Template::parse(t, Placeholders::Topic).unwrap_or_default();
            return template.text(
                number,
                &self.client_id(side, i),
                username.as_deref().unwrap_or(""),
                &mut random,
            );
        }
        t.replace("%i", &(i + self.identity.start).to_string())
            .replace("%j", &(partner + self.identity.start).to_string())
            .replace("%c", &self.client_id(side, i))
            .replace("%r", &format!("{:04x}", self.run_id))
            .replace("%n", &n.to_string())
    }
    pub fn topic_of_pub(&self, i: usize) -> String {
        let j = if self.traffic.topology == Topology::FanIn { i % self.traffic.n_sub.max(1) } else { i };
        self.expand(&self.traffic.pub_topic, Side::Publisher, i, j, 0)
    }
    /// Filters that a client subscribes to when it connects.
    pub fn filters(&self, side: Side, i: usize) -> Vec<String> {
        match side {
            Side::Publisher if self.plain.is_some() => {
                self.traffic.sub_topics.iter().map(|t| self.expand(t, side, i, i, 0)).collect()
            }
            Side::Publisher => vec![],
            Side::Subscriber => self.filters_of_sub(i),
        }
    }
    pub fn filters_of_sub(&self, i: usize) -> Vec<String> {
        let j = match self.traffic.topology {
            Topology::FanOut => i % self.traffic.n_pub.max(1),
            Topology::Shared => i % self.traffic.groups.max(1),
            _ => i,
        };
        let mut v = vec![];
        for t in &self.traffic.sub_topics {
            for n in 0..self.traffic.per_conn {
                v.push(self.expand(t, Side::Subscriber, i, j, n));
            }
        }
        v
    }
    pub fn tag(&self) -> u32 {
        0x4d51_0000 | self.run_id as u32
    }
    /// Number of messages that publisher `i` sends in --messages mode.
    pub fn quota(&self, i: usize) -> u64 {
        if self.sending.messages == 0 {
            return u64::MAX;
        }
        let p = self.traffic.n_pub as u64;
        self.sending.messages / p + ((i as u64) < self.sending.messages % p) as u64
    }
}
