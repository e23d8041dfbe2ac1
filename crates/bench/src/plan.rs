//! What one of the familiar command lines comes down to.

use crate::config::from_args::resolve;
use crate::config::{Config, SetupError};
use crate::net;
use crate::plain::{Headers, Plain};
use std::net::Ipv4Addr;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Conn,
    Sub,
    Pub,
    Pubsub,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Conn => "conn",
            Kind::Sub => "sub",
            Kind::Pub => "pub",
            Kind::Pubsub => "pubsub",
        }
    }
}

/// The clients, what they do and for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub kind: Kind,
    /// With their ports; client i uses host i mod n.
    pub hosts: Vec<String>,
    pub v5: bool,
    pub count: usize,
    /// `%i` of the first client.
    pub start: usize,
    /// Connections a second, 0 for all at once.
    pub rate: f64,
    /// A Client Identifier with `%i` in it; without, the number follows.
    pub client_id: String,
    pub ifaddr: Vec<Ipv4Addr>,
    pub username: Option<String>,
    pub password: Option<String>,
    pub keepalive: u16,
    pub clean: bool,
    /// Session Expiry Interval in seconds.
    pub expiry: u32,
    pub connect_retries: u32,
    pub reconnects: u32,
    /// The first pause before another attempt.
    pub backoff: Duration,
    pub topics: Vec<String>,
    pub qos: u8,
    /// Payload bytes, headers included, unless there is a message.
    pub size: usize,
    pub message: Option<Vec<u8>>,
    pub headers: Headers,
    pub retain: bool,
    /// Between two messages of a publisher; zero for as fast as possible.
    pub interval: Duration,
    /// Messages in all, 0 for no limit.
    pub limit: u64,
    /// Messages in flight of a publisher above QoS 0.
    pub inflight: usize,
    /// Nobody publishes before everybody is connected.
    pub together: bool,
    pub wait: (Duration, Duration),
    pub output: Output,
}

/// How long a run goes on and what it says.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// None: until it is interrupted or has nothing left to do.
    pub duration: Option<Duration>,
    pub json: bool,
    pub quiet: bool,
    pub threads: usize,
}

impl Plan {
    /// # Errors
    /// Targets without an address, and payloads or topics that cannot be.
    pub fn config(&self) -> Result<Config, SetupError> {
        let hosts = resolve(&self.hosts, true)?;
        if self.qos > 2 {
            return Err(SetupError::NoSuchQos(self.qos));
        }
        let header = self.headers.len();
        let body = match &self.message {
            Some(message) => message.clone(),
            // A subscriber reads headers and makes no payload.
            None if self.kind == Kind::Sub => vec![],
            None if self.size < header => {
                return Err(SetupError::NoMessageHeader { size: self.size, header });
            }
            None => vec![b'm'; self.size - header],
        };
        let ns = |time: Duration| time.as_nanos() as u64;
        let topic = self.topics.first().cloned().unwrap_or_default();
        let plain = Plain {
            numbered: topic.contains("%s"),
            body,
            headers: self.headers.clone(),
            retain: self.retain,
            interval_ns: ns(self.interval),
            wait_ns: (ns(self.wait.0), ns(self.wait.1)),
        };
        let publishes = self.kind == Kind::Pub;
        let cfg = Config {
            v5: self.v5,
            keepalive: self.keepalive,
            clean: self.clean,
            expiry: if self.v5 { self.expiry } else { 0 },
            user: self.username.clone(),
            pass: self.password.clone(),
            sub_prefix: self.client_id.clone(),
            pub_prefix: self.client_id.clone(),
            pub_hosts: hosts.clone(),
            sub_hosts: hosts,
            binds: self.ifaddr.clone(),
            threads: self.output.threads.max(1),
            conn_rate: self.rate,
            concurrency: usize::MAX,
            connect_timeout_ms: 30_000,
            ping_timeout_ms: u64::from(self.keepalive.max(10)) * 1000,
            connect_retries: self.connect_retries,
            reconnects: self.reconnects,
            backoff_ms: (self.backoff.as_millis() as u64).max(1),
            backoff_max_ms: 30_000.max(self.backoff.as_millis() as u64),
            n_sub: if publishes { 0 } else { self.count },
            n_pub: if publishes { self.count } else { 0 },
            sub_topics: if self.kind == Kind::Sub { self.topics.clone() } else { vec![] },
            pub_topic: topic,
            pub_qos: self.qos,
            sub_qos: self.qos,
            payload: plain.payload(),
            window: self.inflight,
            messages: self.limit,
            from_due: true,
            start: self.start,
            plain: Some(plain),
            ..Config::idle(net::now() as u16)
        };
        let longest = match self.kind {
            Kind::Sub => cfg.filters_of_sub(self.count.saturating_sub(1)).iter().map(String::len).max(),
            _ => Some(cfg.topic_of_pub(self.count.saturating_sub(1)).len() + 20),
        };
        match longest {
            Some(bytes) if bytes > 65535 => Err(SetupError::TopicTooLong { bytes }),
            _ => Ok(cfg),
        }
    }
}

/// Adds `port` to the hosts that have none of their own.
pub fn with_port(hosts: &[String], port: u16) -> Vec<String> {
    let hosts = hosts.iter().map(|host| host.trim());
    hosts.map(|host| if host.contains(':') { host.to_owned() } else { format!("{host}:{port}") }).collect()
}
