//! Plans of the command lines of emqtt-bench and MQTTX.

use crate::agent::Agents;
use crate::config::from_args::{resolve, with_port};
use crate::config::{Config, SetupError};
use crate::layer::Layers;
use crate::net;
use crate::pace::Pace;
use crate::plain::{Body, Headers, Plain};
use crate::properties::{ConnectProperties, Properties, Will};
use crate::secret::Secret;
use crate::template::{Placeholders, Template};
use rustls::ClientConfig;
use rustls::client::Resumption;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tls::{ClientTls, Trust, Versions};

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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

/// The clients, their work and its duration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub kind: Kind,
    /// Hosts with their ports; client i uses host i mod n.
    pub hosts: Vec<String>,
    /// Protocol version: 3 (3.1), 4 (3.1.1) or 5.
    pub version: u8,
    pub count: usize,
    /// Number `%i` of the first client.
    pub start: usize,
    /// Number of clients in the processes before this one.
    pub offset: usize,
    /// Connections per second, 0 for all at once.
    pub rate: f64,
    /// A Client Identifier with `%i` in it; without, the number is appended.
    pub client_id: String,
    /// The Client Identifier is used unchanged.
    pub exact_id: bool,
    pub ifaddr: Vec<IpAddr>,
    pub username: Option<String>,
    pub password: Option<Secret>,
    pub keepalive: u16,
    pub clean: bool,
    /// Session Expiry Interval in seconds.
    pub expiry: u32,
    pub connect_retries: u32,
    pub reconnects: u32,
    /// The first pause before another attempt.
    pub backoff: Duration,
    pub tls: Option<Tls>,
    /// Path of the WebSocket, if any.
    pub websocket: Option<String>,
    /// Headers of the WebSocket request, which may contain a secret.
    pub headers_of_request: Vec<(String, Secret)>,
    pub topics: Vec<String>,
    pub qos: u8,
    /// Payload size in bytes, headers included, unless there is a message.
    pub size: usize,
    pub message: Option<Message>,
    pub headers: Headers,
    pub retain: bool,
    pub pace: Pace,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Total number of messages, 0 for no limit.
    pub limit: u64,
    /// Messages in flight of a publisher above QoS 0.
    pub inflight: usize,
    /// Publishers start only when all clients are connected.
    pub together: bool,
    pub wait: (Duration, Duration),
    /// Publishers stay connected when the limit is reached.
    pub keep: bool,
    /// Time after which an unacknowledged message is sent again; zero: never.
    pub retry: Duration,
    /// Topic Filters of clients that publish as well, and their QoS.
    pub also: Vec<String>,
    pub also_qos: u8,
    /// Random times that clients stay connected and disconnected, repeatedly.
    pub churn: Option<Churn>,
    /// Properties of messages and of CONNECT, MQTT 5.0.
    pub properties: Properties,
    pub connect: ConnectProperties,
    pub will: Option<Will>,
    /// Clients that leave temporarily send no DISCONNECT.
    pub vanish: bool,
    /// The part of a scenario in which these clients run.
    pub span: Option<Span>,
    pub output: Output,
}

/// Times that clients stay connected and disconnected, each drawn between two.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Churn {
    pub stay: (Duration, Duration),
    pub away: (Duration, Duration),
}

/// Time from connecting to leaving, measured from the moment when the initial clients were ready.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Time of connecting; zero: these are initial clients.
    pub join: Duration,
    pub leave: Duration,
}

/// A payload other than filler of some size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    Fixed(Vec<u8>),
    Generated(Template),
}

/// TLS options of a command line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tls {
    /// Authorities; `None`: those of the system.
    pub ca: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub insecure: bool,
    /// TLS version, 12 or 13; `None`: both.
    pub version: Option<u8>,
    /// ALPN protocols, the preferred one first.
    pub alpn: Vec<String>,
}

impl Tls {
    /// Configuration without resumption. A session of one client is useless for another, and thousands of resumptions
    /// would not be a realistic measurement.
    fn config(&self) -> Result<Arc<ClientConfig>, SetupError> {
        let trust = match (&self.ca, self.insecure) {
            (_, true) => Trust::Anybody,
            (Some(path), false) => Trust::File(path.clone()),
            (None, false) => Trust::System,
        };
        let own = self.certificate.clone().zip(self.key.clone());
        let versions = match self.version {
            Some(12) => Versions::Only1_2,
            Some(_) => Versions::Only1_3,
            None => Versions::Both,
        };
        let config = ClientTls {
            trust,
            own,
            versions,
            alpn: self.alpn.iter().map(|name| name.clone().into_bytes()).collect(),
        }
        .config()
        .map_err(SetupError::Tls)?;
        let mut config = ClientConfig::clone(&config);
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}

/// Duration and output of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// Duration; `None`: until it is interrupted or has nothing left to do.
    pub duration: Option<Duration>,
    pub json: bool,
    pub quiet: bool,
    pub threads: usize,
    /// Number of processes that share the clients.
    pub processes: usize,
    /// Agents that share the clients instead.
    pub agents: Agents,
    pub csv: Option<PathBuf>,
    pub html: Option<PathBuf>,
    /// Processes of the broker on this machine.
    pub broker_pid: Vec<u32>,
    /// URL of the broker's own figures.
    pub broker_metrics: Option<String>,
    pub broker_token_file: Option<PathBuf>,
    /// Names of the reported figures.
    pub broker_counter: Vec<String>,
    /// Address at which the figures of this run are served.
    pub prometheus: Option<SocketAddr>,
    /// The command line of the run, without secrets.
    pub command: Vec<String>,
}

impl Plan {
    /// Clients of `kind` without any work yet, with all default values.
    pub fn base(kind: Kind) -> Plan {
        Plan {
            kind,
            hosts: vec![],
            version: 5,
            count: 1,
            start: 1,
            offset: 0,
            rate: 0.0,
            client_id: String::new(),
            exact_id: false,
            ifaddr: vec![],
            username: None,
            password: None,
            keepalive: 60,
            clean: true,
            expiry: 0,
            connect_retries: 0,
            reconnects: 0,
            backoff: Duration::from_secs(1),
            tls: None,
            websocket: None,
            headers_of_request: vec![],
            topics: vec![],
            qos: 0,
            size: 0,
            message: None,
            headers: Headers::default(),
            retain: false,
            pace: Pace::default(),
            seed: crate::net::now(),
            limit: 0,
            inflight: 1,
            together: false,
            wait: (Duration::ZERO, Duration::ZERO),
            keep: false,
            retry: Duration::ZERO,
            also: vec![],
            also_qos: 0,
            churn: None,
            properties: Properties::default(),
            connect: ConnectProperties::default(),
            will: None,
            vanish: false,
            span: None,
            output: Output { threads: 1, processes: 1, ..Output::default() },
        }
    }

    fn layers(&self) -> Result<Layers, SetupError> {
        Ok(Layers {
            tls: self.tls.as_ref().map(Tls::config).transpose()?,
            websocket: self.websocket.clone(),
            headers: self
                .headers_of_request
                .iter()
                .map(|(name, value)| (name.clone(), value.0.clone()))
                .collect(),
            names: self.hosts.clone(),
        })
    }

    fn check_properties(&self) -> Result<(), String> {
        self.properties.check()?;
        self.connect.check()?;
        self.will.as_ref().map_or(Ok(()), Will::check)?;
        let will = self.will.as_ref().is_some_and(Will::needs_5);
        if self.version < 5 && (will || !self.properties.is_empty() || !self.connect.is_empty()) {
            return Err("only MQTT 5.0 has properties: leave them out, or use -V 5".to_owned());
        }
        Ok(())
    }

    /// The share of process `index` of `of`: its clients with their numbers, and its parts of rates and limits.
    pub fn share(&self, index: usize, of: usize) -> Plan {
        let first = self.count * index / of;
        let count = self.count * (index + 1) / of - first;
        let part = |all: u64| all / of as u64 + u64::from((index as u64) < all % of as u64);
        Plan {
            count,
            start: self.start + first,
            offset: self.offset + first,
            rate: self.rate * count as f64 / self.count.max(1) as f64,
            limit: part(self.limit),
            output: Output {
                duration: self.output.duration,
                threads: self.output.threads,
                processes: 1,
                quiet: true,
                ..Output::default()
            },
            ..self.clone()
        }
    }

    /// Converts the plan.
    ///
    /// # Errors
    /// Targets without an address, and invalid payloads or topics.
    pub fn config(&self) -> Result<Config, SetupError> {
        let hosts = resolve(&self.hosts, true)?;
        if self.qos > 2 {
            return Err(SetupError::NoSuchQos(self.qos));
        }
        self.check_properties().map_err(SetupError::Properties)?;
        let header = self.headers.len();
        let body = match &self.message {
            Some(Message::Fixed(bytes)) => Body::Fixed(bytes.clone()),
            Some(Message::Generated(template)) => Body::Generated(template.clone()),
            // A client that only subscribes reads headers and makes no payload.
            None if matches!(self.kind, Kind::Sub | Kind::Conn) => Body::default(),
            None if self.size < header => {
                return Err(SetupError::NoMessageHeader { size: self.size, header });
            }
            None => Body::Fixed(vec![b'a'; self.size - header]),
        };
        let template = |text: &str| Template::parse(text, Placeholders::Topic).map_err(SetupError::Template);
        let will = self.will.as_ref().map(|will| &will.topic);
        for text in self.topics.iter().chain(&self.username).chain(&self.also).chain(will) {
            template(text)?;
        }
        let ns = |time: Duration| time.as_nanos() as u64;
        let topic = self.topics.first().cloned().unwrap_or_default();
        let plain = Plain {
            topic: template(&topic)?,
            body,
            headers: self.headers.clone(),
            retain: self.retain,
            pace: self.pace.clone(),
            wait_ns: (ns(self.wait.0), ns(self.wait.1)),
            seed: self.seed,
        };
        let publishes = self.kind == Kind::Pub;
        let cfg = Config {
            v5: self.version == 5,
            v31: self.version == 3,
            keepalive: self.keepalive,
            clean: self.clean,
            expiry: if self.version == 5 { self.expiry } else { 0 },
            user: self.username.clone(),
            pass: self.password.as_ref().map(|secret| secret.0.clone()),
            sub_prefix: self.client_id.clone(),
            pub_prefix: self.client_id.clone(),
            exact_id: self.exact_id,
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
            sub_topics: if self.kind == Kind::Sub { self.topics.clone() } else { self.also.clone() },
            pub_topic: topic,
            pub_qos: self.qos,
            sub_qos: if publishes { self.also_qos } else { self.qos },
            churn: self.churn,
            message_properties: self.properties.encode(),
            connect_properties: self.connect.encode(),
            recv_max: self.connect.receive_maximum,
            will: self.will.clone(),
            vanish: self.vanish,
            retry_ns: ns(self.retry),
            payload: plain.payload(),
            window: self.inflight,
            messages: self.limit,
            from_due: true,
            start: self.start,
            offset: self.offset,
            plain: Some(plain),
            layers: self.layers()?,
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

/// Appends `port` to the hosts without one.
pub fn with_ports(hosts: &[String], port: u16) -> Vec<String> {
    hosts.iter().map(|host| with_port(host.trim(), port)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_share_clients_numbers_rates_and_limits() {
        let whole = Plan { count: 10, start: 5, rate: 100.0, limit: 11, ..Plan::base(Kind::Pub) };
        let parts: Vec<Plan> = (0..3).map(|index| whole.share(index, 3)).collect();
        let mut next = whole.start;
        for part in &parts {
            assert_eq!((part.start, part.offset), (next, next - whole.start));
            next += part.count;
        }
        assert_eq!(next, whole.start + whole.count);
        assert_eq!(parts.iter().map(|part| part.limit).sum::<u64>(), 11);
        assert_eq!(parts.iter().map(|part| part.rate).sum::<f64>(), 100.0);
    }

    #[test]
    fn a_password_is_not_shown() {
        let plan = Plan { password: Some(Secret("hunter2".to_owned())), ..Plan::base(Kind::Conn) };
        assert!(!format!("{plan:?}").contains("hunter2"));
    }

    #[test]
    fn ports_are_added_to_hosts_without_one() {
        let hosts = ["a", "b:7", "::1", "[::1]:7", "[::1]", " 127.0.0.1 "].map(str::to_owned);
        let with = with_ports(&hosts, 1883);
        assert_eq!(with, ["a:1883", "b:7", "[::1]:1883", "[::1]:7", "[::1]:1883", "127.0.0.1:1883"]);
    }
}
