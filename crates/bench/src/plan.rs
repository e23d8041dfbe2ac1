//! Plans of the command lines of emqtt-bench and MQTTX.

use crate::agent::Agents;
use crate::codec::Version;
use crate::config::from_args::{resolve, with_port};
use crate::config::{
    Config, Connecting, Identity, LatencyFrom, Network, Reconnect, SessionOptions, SetupError, Traffic,
};
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
use tls::{ClientTls, OptionStyle, Trust, Versions};

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
    pub clients: Clients,
    pub target: Target,
    pub session: SessionPlan,
    pub connecting: Attempts,
    pub messages: Messages,
    /// Subscriptions of clients that publish as well.
    pub also: Subscriptions,
    pub schedule: Schedule,
    pub presence: Presence,
    pub output: Output,
}

/// Number and identity of the clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Clients {
    pub count: usize,
    /// Number `%i` of the first client.
    pub start: usize,
    /// Number of clients in the processes before this one.
    pub offset: usize,
    /// A Client Identifier with `%i` in it; without, the number is appended.
    pub id: String,
    /// The Client Identifier is used unchanged.
    pub exact_id: bool,
    pub username: Option<String>,
    pub password: Option<Secret>,
}

/// Brokers and the way to them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Hosts with their ports; client i uses host i mod n.
    pub hosts: Vec<String>,
    pub ifaddr: Vec<IpAddr>,
    pub tls: Option<Tls>,
    /// Path of the WebSocket, if any.
    pub websocket: Option<String>,
    /// Headers of the WebSocket request, which may contain a secret.
    pub headers: Vec<(String, Secret)>,
}

/// Contents of CONNECT, apart from the identity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionPlan {
    /// Protocol version: 3 (3.1), 4 (3.1.1) or 5.
    pub version: u8,
    pub keepalive: u16,
    pub clean: bool,
    /// Session Expiry Interval in seconds.
    pub expiry: u32,
    /// Properties of CONNECT, MQTT 5.0.
    pub properties: ConnectProperties,
    pub will: Option<Will>,
}

/// Pace of connecting, and further attempts after a failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempts {
    /// Connections per second, 0 for all at once.
    pub rate: f64,
    /// Maximum number of further attempts: until a client is connected, and after it was.
    pub retries: u32,
    pub reconnects: u32,
    /// The first pause before another attempt.
    pub backoff: Duration,
}

/// Topics and contents of messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Messages {
    pub topics: Vec<String>,
    pub qos: u8,
    /// Payload size in bytes, headers included, unless there is a message.
    pub size: usize,
    pub message: Option<Message>,
    pub headers: Headers,
    pub retain: bool,
    /// Properties of messages, MQTT 5.0.
    pub properties: Properties,
    /// Messages in flight of a publisher above QoS 0.
    pub inflight: usize,
    /// Time after which an unacknowledged message is sent again; zero: never.
    pub retry: Duration,
}

/// Topic Filters and their QoS.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Subscriptions {
    pub topics: Vec<String>,
    pub qos: u8,
}

/// Times and number of messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    pub pace: Pace,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Total number of messages, 0 for no limit.
    pub limit: u64,
    /// Publishers start only when all clients are connected.
    pub together: bool,
    pub wait: (Duration, Duration),
    /// Publishers stay connected when the limit is reached.
    pub keep: bool,
    /// The part of a scenario in which these clients run.
    pub span: Option<Span>,
}

/// Temporary disconnects of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Presence {
    /// Random times that clients stay connected and disconnected, repeatedly.
    pub churn: Option<Churn>,
    /// Clients that leave temporarily send no DISCONNECT.
    pub vanish: bool,
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
            style: OptionStyle::CommandLine,
        }
        .config()
        .map_err(SetupError::Tls)?;
        let mut config = ClientConfig::clone(&config);
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}

impl Target {
    fn layers(&self) -> Result<Layers, SetupError> {
        Ok(Layers {
            tls: self.tls.as_ref().map(Tls::config).transpose()?,
            websocket: self.websocket.clone(),
            headers: self.headers.iter().map(|(name, value)| (name.clone(), value.0.clone())).collect(),
            names: self.hosts.clone(),
        })
    }
}

impl SessionPlan {
    fn options(&self) -> SessionOptions {
        SessionOptions {
            version: match self.version {
                3 => Version::V31,
                5 => Version::V5,
                _ => Version::V311,
            },
            keepalive: self.keepalive,
            clean: self.clean,
            expiry: if self.version == 5 { self.expiry } else { 0 },
            recv_max: self.properties.receive_maximum,
            properties: self.properties.encode(),
            will: self.will.clone(),
        }
    }
}

impl Attempts {
    fn config(&self) -> Connecting {
        Connecting {
            rate: self.rate,
            concurrency: usize::MAX,
            timeout_ms: 30_000,
            reconnect: Reconnect::Limited { first: self.retries, later: self.reconnects },
            backoff_ms: (self.backoff.as_millis() as u64).max(1),
            backoff_max_ms: 30_000.max(self.backoff.as_millis() as u64),
        }
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
            clients: Clients {
                count: 1,
                start: 1,
                offset: 0,
                id: String::new(),
                exact_id: false,
                username: None,
                password: None,
            },
            target: Target::default(),
            session: SessionPlan {
                version: 5,
                keepalive: 60,
                clean: true,
                expiry: 0,
                properties: ConnectProperties::default(),
                will: None,
            },
            connecting: Attempts { rate: 0.0, retries: 0, reconnects: 0, backoff: Duration::from_secs(1) },
            messages: Messages {
                topics: vec![],
                qos: 0,
                size: 0,
                message: None,
                headers: Headers::default(),
                retain: false,
                properties: Properties::default(),
                inflight: 1,
                retry: Duration::ZERO,
            },
            also: Subscriptions::default(),
            schedule: Schedule {
                pace: Pace::default(),
                seed: crate::net::now(),
                limit: 0,
                together: false,
                wait: (Duration::ZERO, Duration::ZERO),
                keep: false,
                span: None,
            },
            presence: Presence::default(),
            output: Output { threads: 1, processes: 1, ..Output::default() },
        }
    }

    fn check_properties(&self) -> Result<(), String> {
        self.messages.properties.check()?;
        self.session.properties.check()?;
        self.session.will.as_ref().map_or(Ok(()), Will::check)?;
        let will = self.session.will.as_ref().is_some_and(Will::needs_5);
        if self.session.version < 5
            && (will || !self.messages.properties.is_empty() || !self.session.properties.is_empty())
        {
            return Err("only MQTT 5.0 has properties: leave them out, or use -V 5".to_owned());
        }
        Ok(())
    }

    /// The share of process `index` of `of`: its clients with their numbers, and its parts of rates and limits.
    pub fn share(&self, index: usize, of: usize) -> Plan {
        let all = self.clients.count;
        let first = all * index / of;
        let count = all * (index + 1) / of - first;
        let part = |all: u64| all / of as u64 + u64::from((index as u64) < all % of as u64);
        let mut share = Plan {
            output: Output {
                duration: self.output.duration,
                threads: self.output.threads,
                processes: 1,
                quiet: true,
                ..Output::default()
            },
            ..self.clone()
        };
        share.clients.count = count;
        share.clients.start += first;
        share.clients.offset += first;
        share.connecting.rate = self.connecting.rate * count as f64 / all.max(1) as f64;
        share.schedule.limit = part(self.schedule.limit);
        share
    }

    /// Numbers of clients, and what they subscribe to.
    fn traffic(&self, idle: Traffic) -> Traffic {
        match self.kind {
            Kind::Pub => Traffic {
                n_pub: self.clients.count,
                sub_topics: self.also.topics.clone(),
                pub_qos: self.messages.qos,
                sub_qos: self.also.qos,
                ..idle
            },
            _ => Traffic {
                n_sub: self.clients.count,
                sub_topics: if self.kind == Kind::Sub {
                    self.messages.topics.clone()
                } else {
                    self.also.topics.clone()
                },
                pub_qos: self.messages.qos,
                sub_qos: self.messages.qos,
                ..idle
            },
        }
    }

    /// Converts the plan.
    ///
    /// # Errors
    /// Targets without an address, and invalid payloads or topics.
    pub fn config(&self) -> Result<Config, SetupError> {
        let hosts = resolve(&self.target.hosts, true)?;
        if self.messages.qos > 2 {
            return Err(SetupError::NoSuchQos(self.messages.qos));
        }
        self.check_properties().map_err(SetupError::Properties)?;
        let header = self.messages.headers.len();
        let body = match &self.messages.message {
            Some(Message::Fixed(bytes)) => Body::Fixed(bytes.clone()),
            Some(Message::Generated(template)) => Body::Generated(template.clone()),
            // A client that only subscribes reads headers and makes no payload.
            None if matches!(self.kind, Kind::Sub | Kind::Conn) => Body::default(),
            None if self.messages.size < header => {
                return Err(SetupError::NoMessageHeader { size: self.messages.size, header });
            }
            None => Body::Fixed(vec![b'a'; self.messages.size - header]),
        };
        let template = |text: &str| Template::parse(text, Placeholders::Topic).map_err(SetupError::Template);
        let will = self.session.will.as_ref().map(|will| &will.topic);
        for text in
            self.messages.topics.iter().chain(&self.clients.username).chain(&self.also.topics).chain(will)
        {
            template(text)?;
        }
        let ns = |time: Duration| time.as_nanos() as u64;
        let topic = self.messages.topics.first().cloned().unwrap_or_default();
        let plain = Plain {
            topic: template(&topic)?,
            body,
            headers: self.messages.headers.clone(),
            retain: self.messages.retain,
            pace: self.schedule.pace.clone(),
            wait_ns: (ns(self.schedule.wait.0), ns(self.schedule.wait.1)),
            seed: self.schedule.seed,
        };
        let mut cfg = Config::idle(net::now() as u16);
        cfg.threads.count = self.output.threads.max(1);
        cfg.network = Network {
            pub_hosts: hosts.clone(),
            sub_hosts: hosts,
            binds: self.target.ifaddr.clone(),
            offset: self.clients.offset,
            layers: self.target.layers()?,
            ..Network::default()
        };
        cfg.identity = Identity {
            user: self.clients.username.clone(),
            pass: self.clients.password.as_ref().map(|secret| secret.0.clone()),
            sub_prefix: self.clients.id.clone(),
            pub_prefix: self.clients.id.clone(),
            exact_id: self.clients.exact_id,
            start: self.clients.start,
        };
        cfg.session = self.session.options();
        cfg.connecting = self.connecting.config();
        cfg.ping.timeout_ms = u64::from(self.session.keepalive.max(10)) * 1000;
        cfg.presence = self.presence;
        cfg.traffic = Traffic {
            payload: plain.payload(),
            pub_topic: topic,
            properties: self.messages.properties.encode(),
            ..self.traffic(cfg.traffic)
        };
        cfg.sending.window = self.messages.inflight;
        cfg.sending.messages = self.schedule.limit;
        cfg.sending.retry_ns = ns(self.messages.retry);
        cfg.checks.latency_from = LatencyFrom::Due;
        cfg.plain = Some(plain);
        let longest = match self.kind {
            Kind::Sub => {
                cfg.filters_of_sub(self.clients.count.saturating_sub(1)).iter().map(String::len).max()
            }
            _ => Some(cfg.topic_of_pub(self.clients.count.saturating_sub(1)).len() + 20),
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
        let whole = {
            let mut plan = Plan::base(Kind::Pub);
            plan.clients.count = 10;
            plan.clients.start = 5;
            plan.connecting.rate = 100.0;
            plan.schedule.limit = 11;
            plan
        };
        let parts: Vec<Plan> = (0..3).map(|index| whole.share(index, 3)).collect();
        let mut next = whole.clients.start;
        for part in &parts {
            assert_eq!((part.clients.start, part.clients.offset), (next, next - whole.clients.start));
            next += part.clients.count;
        }
        assert_eq!(next, whole.clients.start + whole.clients.count);
        assert_eq!(parts.iter().map(|part| part.schedule.limit).sum::<u64>(), 11);
        assert_eq!(parts.iter().map(|part| part.connecting.rate).sum::<f64>(), 100.0);
    }

    #[test]
    fn a_password_is_not_shown() {
        let mut plan = Plan::base(Kind::Conn);
        plan.clients.password = Some(Secret("hunter2".to_owned()));
        assert!(!format!("{plan:?}").contains("hunter2"));
    }

    #[test]
    fn ports_are_added_to_hosts_without_one() {
        let hosts = ["a", "b:7", "::1", "[::1]:7", "[::1]", " 127.0.0.1 "].map(str::to_owned);
        let with = with_ports(&hosts, 1883);
        assert_eq!(with, ["a:1883", "b:7", "[::1]:1883", "[::1]:7", "[::1]:1883", "127.0.0.1:1883"]);
    }
}
