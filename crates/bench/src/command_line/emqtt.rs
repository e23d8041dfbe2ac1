//! Options and defaults of emqtt-bench.

use super::familiar::{Limit, Qos, no_wildcard, rate, some_clients};
use super::reports::{Reports, listen_on};
use super::unsupported::{self, EMQTT};
use super::{Invocation, UsageError, answer, random};
use crate::login::Login;
use crate::pace::Pace;
use crate::plain::Headers;
use crate::plan::{
    Attempts, Clients, Kind, Message, Messages, Output, Plan, Schedule, SessionPlan, Target, Tls, with_ports,
};
use crate::scenario::Options;
use crate::template::{Placeholders, Template};
use clap::{ArgAction, Args, Parser, Subcommand};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Measures an MQTT broker, with the options of emqtt-bench. Help is --help: -h is the host, -V the protocol version.
#[derive(Debug, Parser)]
#[command(
    name = "meridian bench",
    disable_help_flag = true,
    disable_help_subcommand = true,
    subcommand_required = true,
    after_help = "`meridian bench --as mqttx bench ...` accepts MQTTX's options instead."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print help
    #[arg(long, global = true, action = ArgAction::Help)]
    help: Option<bool>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Connect clients and hold them
    Conn(Conn),
    /// Connect clients that subscribe, and count the messages
    Sub(Sub),
    /// Connect clients that publish
    Pub(Pub),
    /// Run as many subscribers as publishers, pair by pair: exact loss, duplicates and order
    Pubsub(Pub),
    /// Check for lost messages: clients that survive broker failures, and an exact account of acknowledged messages
    Ha(crate::ha::Options),
    /// Measure one publisher, one subscriber, one topic: rates and latencies by size and QoS, next to those of
    /// another broker
    TxRx(crate::tx_rx::Options),
    /// Run groups of clients with their own behaviour, in stages, as described by a file; also `--scenario FILE`
    Scenario(Scenario),
    /// Wait for runs of other machines (--agents there) and run shares of them
    Agent(crate::agent::Options),
    /// Estimate a deployment: memory, CPU, traffic and nodes, based on measurements
    Size(crate::size::Options),
}

#[derive(Debug, Args)]
struct Scenario {
    /// Scenario file: TOML, see docs/bench.md
    file: PathBuf,
    /// Hosts instead of those in the file
    #[arg(long, short = 'h', value_delimiter = ',')]
    host: Vec<String>,
    /// Print the plan of the scenario without running it
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    reports: Reports,
}

#[derive(Debug, Args)]
struct Conn {
    #[command(flatten)]
    clients: ClientArgs,
}

#[derive(Debug, Args)]
struct ClientArgs {
    /// Hosts, each with an optional port; clients use them in turn
    #[arg(long, short = 'h', default_value = "localhost", value_delimiter = ',')]
    host: Vec<String>,
    #[arg(long, short = 'p', default_value_t = 1883)]
    port: u16,
    /// Protocol version: 3 (3.1), 4 (3.1.1) or 5
    #[arg(long, short = 'V', default_value_t = 5)]
    version: u8,
    /// Number of clients
    #[arg(long, short = 'c', default_value_t = 200)]
    count: usize,
    /// Connections per second; 0: use --interval
    #[arg(long, short = 'R', default_value_t = 0)]
    connrate: u32,
    /// Milliseconds from one connection to the next; 0: all at once
    #[arg(long, short = 'i', default_value_t = 10)]
    interval: u64,
    /// Number before that of the first client
    #[arg(long, short = 'n', default_value_t = 0)]
    startnumber: usize,
    /// Local addresses used in turn, for more connections than one address has ports
    #[arg(long, value_delimiter = ',')]
    ifaddr: Vec<IpAddr>,
    /// Prefix of the Client Identifiers
    #[arg(long)]
    prefix: Option<String>,
    /// Use only the prefix, if any, and the number as Client Identifier
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    shortids: bool,
    /// Attempts after the first one until a client is connected
    #[arg(long, default_value_t = 0)]
    num_retry_connect: u32,
    /// Attempts to connect again when a connection ended
    #[arg(long, default_value_t = 0)]
    reconnect: u32,
    #[command(flatten)]
    login: Login,
    /// Keep Alive in seconds; 0: off
    #[arg(long, short = 'k', default_value_t = 300)]
    keepalive: u16,
    /// Clean session or clean start
    #[arg(long, short = 'C', num_args = 0..=1, default_value_t = true, default_missing_value = "true",
        action = ArgAction::Set)]
    clean: bool,
    /// Session Expiry Interval in seconds, MQTT 5.0
    #[arg(long, short = 'x', default_value_t = 0)]
    session_expiry: u32,
    /// Accepted and ignored: this tool always uses little memory
    #[arg(long, short = 'l', num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    lowmem: bool,
    /// Accepted and ignored
    #[arg(long, hide = true, default_value_t = 0)]
    force_major_gc_interval: u64,
    /// Use TLS
    #[arg(long, short = 'S', num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    ssl: bool,
    /// Use this version of TLS only: tlsv1.2 or tlsv1.3
    #[arg(long)]
    ssl_version: Option<String>,
    /// File with the authorities (PEM) that sign the server's certificate [default: the system's]
    #[arg(long, alias = "ca")]
    cacertfile: Option<PathBuf>,
    /// File with the clients' certificate (PEM)
    #[arg(long, alias = "cert", requires = "keyfile")]
    certfile: Option<PathBuf>,
    /// File with the key of --certfile (PEM)
    #[arg(long, alias = "key", requires = "certfile")]
    keyfile: Option<PathBuf>,
    /// Do not check the server's certificate (emqtt-bench never does)
    #[arg(long)]
    insecure: bool,
    /// Use MQTT over WebSocket
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    ws: bool,
    /// Path of the WebSocket
    #[arg(long, default_value = "/mqtt")]
    path: String,
    /// Accepted and ignored: the result always has the times of TCP, CONNACK and SUBACK
    #[arg(long, short = 'Q', num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    qoe: bool,
    /// Address at which the figures of this run are served, like --prometheus ADDRESS
    #[arg(long, value_name = "ADDRESS")]
    restapi: Option<String>,
    #[command(flatten)]
    reports: Reports,
}

#[derive(Debug, Args)]
struct Sub {
    #[command(flatten)]
    clients: ClientArgs,
    /// Topic Filter: %i the client's number, %c its Client Identifier, %u its User Name, %rand_9 one of 1 to 9
    #[arg(long, short = 't', required = true)]
    topic: Vec<String>,
    #[command(flatten)]
    qos: Qos,
    /// Headers that the publisher prepends: cnt64, ts (milliseconds), tsns (nanoseconds), or several
    #[arg(long, default_value = "", value_parser = Headers::parse)]
    payload_hdrs: Headers,
}

#[derive(Debug, Args)]
struct Pub {
    #[command(flatten)]
    clients: ClientArgs,
    /// Topic Name: %i the client's number, %c its Client Identifier, %u its User Name, %s the message's number, %rand_9
    /// one of 1 to 9
    #[arg(long, short = 't')]
    topic: String,
    #[command(flatten)]
    qos: Qos,
    /// Milliseconds from one message of a publisher to its next; 0: as fast as possible
    #[arg(long = "interval_of_msg", short = 'I', default_value_t = 1000)]
    interval_of_msg: u64,
    /// Payload size in bytes
    #[arg(long, short = 's', default_value_t = 256)]
    size: usize,
    /// Payload text, or template://FILE with %TIMESTAMP%, %TIMESTAMPMS%, %TIMESTAMPUS%, %TIMESTAMPNS%, %UNIQUE%,
    /// %RANDOM% (-s bytes)
    #[arg(long, short = 'm')]
    message: Option<String>,
    /// Headers to prepend to the payload: cnt64, ts (milliseconds), tsns (nanoseconds), or several
    #[arg(long, default_value = "", value_parser = Headers::parse)]
    payload_hdrs: Headers,
    #[arg(long, short = 'r', num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    retain: bool,
    #[command(flatten)]
    limit: Limit,
    /// Maximum number of messages in flight of a publisher at QoS 1 and 2; 0: the broker's maximum
    #[arg(long, short = 'F', default_value_t = 1)]
    inflight: usize,
    /// Publish when all clients are connected, or have failed
    #[arg(long, short = 'w', num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    wait_before_publishing: bool,
    /// Maximum random time that a publisher waits before its first message, in milliseconds
    #[arg(long, default_value_t = 0)]
    max_random_wait: u64,
    #[arg(long, default_value_t = 0)]
    min_random_wait: u64,
    /// Stay connected when the limit of messages is reached
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    keep_connected: bool,
    /// Seconds after which a message without its acknowledgement is sent again; 0: never. Not with -V 5, which
    /// forbids it
    #[arg(long, default_value_t = 0)]
    retry_interval: u64,
}

/// Maximum retry interval: a day.
const RETRY_MAX_S: u64 = 86_400;

pub fn parse(words: &[String]) -> Result<Invocation, UsageError> {
    if let Some(refusal) = unsupported::refuse(words, EMQTT) {
        return Err(UsageError(refusal));
    }
    let words = words.iter().map(String::as_str);
    // A leading `--scenario FILE` is the command of that name.
    let words: Vec<&str> = match words.clone().next() {
        Some("--scenario") => std::iter::once("scenario").chain(words.skip(1)).collect(),
        Some(first) => match first.strip_prefix("--scenario=") {
            Some(file) => ["scenario", file].into_iter().chain(words.skip(1)).collect(),
            None => words.collect(),
        },
        None => vec![],
    };
    let program = std::iter::once("meridian bench").chain(words);
    let cli = match answer(Cli::try_parse_from(program))? {
        Ok(cli) => cli,
        Err(invocation) => return Ok(invocation),
    };
    let plan = match cli.command {
        Command::Conn(a) => a.clients.plan(Kind::Conn),
        Command::Sub(a) => {
            let clients = a.clients.plan(Kind::Sub)?;
            let qos = a.qos.qos;
            let messages = Messages { topics: a.topic, qos, headers: a.payload_hdrs, ..clients.messages };
            Ok(Plan { messages, ..clients })
        }
        Command::Pub(a) => a.plan(Kind::Pub),
        Command::Pubsub(a) => a.plan(Kind::Pubsub),
        Command::Scenario(a) => {
            let output = a.reports.output()?;
            if output.duration.is_some() {
                return Err(UsageError(
                    "error: --duration: the stages define how long a scenario runs".to_owned(),
                ));
            }
            return Ok(Invocation::Scenario(Box::new(Options {
                file: a.file,
                hosts: a.host,
                check: a.check,
                output,
            })));
        }
        Command::Agent(options) => return Ok(Invocation::Agent(options)),
        Command::Size(options) => return Ok(Invocation::Size(options)),
        Command::TxRx(options) => return Ok(Invocation::TxRx(Box::new(options))),
        Command::Ha(options) => return Ok(Invocation::Ha(Box::new(options))),
    }?;
    Ok(Invocation::Run(Box::new(plan)))
}

impl ClientArgs {
    fn plan(&self, kind: Kind) -> Result<Plan, UsageError> {
        if !(3..=5).contains(&self.version) {
            return Err(UsageError(format!(
                "error: there is no MQTT version {}: -V is 3, 4 or 5",
                self.version
            )));
        }
        let prefix = self.prefix.as_deref();
        let role = kind.name();
        let client_id = match (self.shortids, prefix) {
            (true, prefix) => prefix.unwrap_or("").to_owned(),
            (false, Some(prefix)) => format!("{prefix}_bench_{role}_"),
            (false, None) => {
                let host = self.ifaddr.first().map_or_else(hostname, IpAddr::to_string);
                format!("{host}_bench_{role}_{}_", random())
            }
        };
        let served = self.restapi.as_deref().map(listen_on).transpose()?;
        let output = self.reports.output()?;
        let mut plan = Plan::base(kind);
        plan.clients = Clients {
            count: some_clients(self.count)?,
            start: self.startnumber + 1,
            id: client_id,
            username: self.login.username.clone(),
            password: self.login.password.clone(),
            ..plan.clients
        };
        plan.target = Target {
            hosts: with_ports(&self.host, self.port),
            ifaddr: self.ifaddr.clone(),
            tls: self.tls()?,
            websocket: self.ws.then(|| self.path.clone()),
            ..plan.target
        };
        plan.session = SessionPlan {
            version: self.version,
            keepalive: self.keepalive,
            clean: self.clean,
            expiry: self.session_expiry,
            ..plan.session
        };
        plan.connecting = Attempts {
            rate: match (self.connrate, self.interval) {
                (0, ms) => rate(ms),
                (rate, _) => f64::from(rate),
            },
            retries: self.num_retry_connect,
            reconnects: self.reconnect,
            ..plan.connecting
        };
        plan.output = Output { prometheus: served.or(output.prometheus), ..output };
        Ok(plan)
    }
}

impl ClientArgs {
    fn tls(&self) -> Result<Option<Tls>, UsageError> {
        let version = match self.ssl_version.as_deref() {
            None => None,
            Some("tlsv1.2") => Some(12),
            Some("tlsv1.3" | "tlsv1.3_nocompat") => Some(13),
            Some(other) => {
                return Err(UsageError(format!("error: --ssl-version {other}: it is tlsv1.2 or tlsv1.3")));
            }
        };
        let wanted = self.ssl || version.is_some();
        if !wanted && (self.cacertfile.is_some() || self.certfile.is_some() || self.insecure) {
            return Err(UsageError("error: certificates without TLS: add -S".to_owned()));
        }
        Ok(wanted.then(|| Tls {
            ca: self.cacertfile.clone(),
            certificate: self.certfile.clone(),
            key: self.keyfile.clone(),
            insecure: self.insecure,
            version,
            alpn: vec![],
        }))
    }
}

impl Pub {
    fn plan(self, kind: Kind) -> Result<Plan, UsageError> {
        if self.retry_interval > 0 && self.clients.version == 5 {
            return Err(UsageError(
                "error: --retry-interval: MQTT 5.0 lets a client send again after a reconnect only; use -V 4, or \
                 --reconnect N"
                    .into(),
            ));
        }
        let own = ["%s", "%rand_"].iter().any(|placeholder| self.topic.contains(placeholder));
        let shaped = self.message.is_some() || self.payload_hdrs.len() > 0 || self.retain || own;
        if kind == Kind::Pubsub && (shaped || self.max_random_wait > 0) {
            return Err(UsageError(
                "error: pubsub makes its own payloads and schedule, and so accepts no -m, \
                 --payload-hdrs, -r, %s, %rand or random waits: use `sub` and `pub`"
                    .into(),
            ));
        }
        let ms = Duration::from_millis;
        let wait = (ms(self.min_random_wait), ms(self.max_random_wait.max(self.min_random_wait)));
        let topics = vec![no_wildcard(self.topic)?];
        let message = self.message.map(|text| message(text, self.size)).transpose()?;
        let clients = self.clients.plan(kind)?;
        let messages = Messages {
            topics,
            qos: self.qos.qos,
            size: self.size,
            message,
            headers: self.payload_hdrs,
            retain: self.retain,
            inflight: if self.inflight == 0 { 60_000 } else { self.inflight.min(60_000) },
            retry: Duration::from_secs(self.retry_interval.min(RETRY_MAX_S)),
            ..clients.messages
        };
        let schedule = Schedule {
            pace: Pace::Every(ms(self.interval_of_msg)),
            limit: self.limit.limit,
            together: self.wait_before_publishing,
            wait,
            keep: self.keep_connected,
            ..clients.schedule
        };
        Ok(Plan { messages, schedule, ..clients })
    }
}

/// The text, or the template in the file that it names.
fn message(text: String, size: usize) -> Result<Message, UsageError> {
    let Some(path) = text.strip_prefix("template://") else { return Ok(Message::Fixed(text.into_bytes())) };
    let template = std::fs::read_to_string(path).map_err(|error| error.to_string());
    let template = template.and_then(|text| Template::parse(&text, Placeholders::Emqtt { size }));
    template
        .map(Message::Generated)
        .map_err(|error| UsageError(format!("error: -m template://{path}: {error}")))
}

fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}
