//! Options and defaults of `mqttx bench`.

use super::familiar::{Qos, SendArgs, rate, some_clients};
use super::mqtt5::{ConnectPropertyArgs, MessagePropertyArgs, WillArgs};
use super::reports::Reports;
use super::simulate::Simulate;
use super::unsupported::{self, MQTTX};
use super::{Invocation, UsageError, answer, random};
use crate::layer::check_headers;
use crate::login::Login;
use crate::plan::{Attempts, Clients, Kind, Message, Plan, SessionPlan, Target, Tls, with_ports};
use crate::properties::pair;
use crate::random::noise;
use crate::secret::Secret;
use clap::{ArgAction, Args, Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// Measures an MQTT broker, with the options of MQTTX. Help is --help: -h is the host, -V the protocol version.
#[derive(Debug, Parser)]
#[command(
    name = "mqttx",
    disable_help_flag = true,
    disable_help_subcommand = true,
    subcommand_required = true
)]
struct Cli {
    #[command(subcommand)]
    command: Top,
    /// Print help
    #[arg(long, global = true, action = ArgAction::Help)]
    help: Option<bool>,
}

#[derive(Debug, Subcommand)]
enum Top {
    /// Measure a broker
    #[command(subcommand)]
    Bench(Command),
    /// Simulate devices that send JSON
    Simulate(Simulate),
    /// List built-in scenarios
    Ls {
        /// List the scenarios of simulate (-sc)
        #[arg(long)]
        scenarios: bool,
    },
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Connect clients and hold them
    Conn(Conn),
    /// Connect clients that subscribe, and count the messages
    Sub(Sub),
    /// Connect clients that publish
    Pub(Pub),
}

#[derive(Debug, Args)]
struct Conn {
    #[command(flatten)]
    clients: ClientArgs,
    /// User Properties of CONNECT, "NAME: VALUE" (-up)
    #[arg(long, num_args = 1.., value_name = "PROPERTY", value_parser = pair)]
    user_properties: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub struct ClientArgs {
    #[arg(long, short = 'h', default_value = "localhost")]
    hostname: String,
    #[arg(long, short = 'p', default_value_t = 1883)]
    port: u16,
    /// Protocol: mqtt, mqtts, ws or wss
    #[arg(long, short = 'l', default_value = "mqtt")]
    protocol: String,
    /// MQTT version: 5.0, 3.1.1 or 3.1; also written 5, 4 and 3
    #[arg(long, short = 'V', default_value = "5.0")]
    mqtt_version: String,
    /// Number of clients
    #[arg(long, short = 'c', default_value_t = 1000)]
    count: usize,
    /// Milliseconds from one connection to the next
    #[arg(long, short = 'i', default_value_t = 10)]
    interval: u64,
    /// Client Identifier, with %i for the client's number
    #[arg(long, short = 'I')]
    client_id: Option<String>,
    /// Keep the session
    #[arg(long)]
    no_clean: bool,
    #[arg(long, short = 'k', default_value_t = 30)]
    keepalive: u16,
    #[command(flatten)]
    login: Login,
    /// Session Expiry Interval in seconds (-se) [default: with --no-clean never, else 0]
    #[arg(long)]
    session_expiry_interval: Option<u32>,
    /// Milliseconds before a client connects again (-rp); 0: never
    #[arg(long, default_value_t = 1000)]
    reconnect_period: u64,
    #[arg(long, default_value_t = 10)]
    maximum_reconnect_times: u32,
    /// Path of the WebSocket
    #[arg(long, default_value = "/mqtt")]
    path: String,
    /// File with the key of --cert (PEM)
    #[arg(long, requires = "cert")]
    key: Option<PathBuf>,
    /// File with the clients' certificate (PEM)
    #[arg(long, requires = "key")]
    cert: Option<PathBuf>,
    /// File with the authorities (PEM) that sign the server's certificate [default: the system's]
    #[arg(long)]
    ca: Option<PathBuf>,
    /// Do not check the server's certificate
    #[arg(long)]
    insecure: bool,
    /// Protocols to request by ALPN, the preferred one first
    #[arg(long, num_args = 1.., value_delimiter = ',')]
    alpn: Vec<String>,
    /// Headers of the WebSocket request, "NAME: VALUE" (-wh)
    #[arg(long, num_args = 1.., value_name = "HEADER", value_parser = header)]
    ws_headers: Vec<(String, Secret)>,
    #[command(flatten)]
    asked: ConnectPropertyArgs,
    #[command(flatten)]
    will: WillArgs,
    #[command(flatten)]
    reports: Reports,
}

#[derive(Debug, Args)]
struct Sub {
    #[command(flatten)]
    clients: ClientArgs,
    /// Topic Filters: %i the client's number, %c its Client Identifier, %u its User Name
    #[arg(long, short = 't', required = true, num_args = 1..)]
    topic: Vec<String>,
    #[command(flatten)]
    qos: Qos,
}

#[derive(Debug, Args)]
struct Pub {
    #[command(flatten)]
    clients: ClientArgs,
    /// Topic Name: %i the client's number, %c its Client Identifier, %u its User Name
    #[arg(long, short = 't')]
    topic: String,
    #[arg(long, short = 'm', default_value = HELLO)]
    message: String,
    /// Size of a random payload that replaces the message, such as 512B, 1KB or 2MB
    #[arg(long, short = 'S', value_parser = size)]
    payload_size: Option<usize>,
    /// File with the message
    #[arg(long)]
    file_read: Option<PathBuf>,
    #[command(flatten)]
    properties: MessagePropertyArgs,
    #[command(flatten)]
    sending: SendArgs,
}

const HELLO: &str = "Hello From MQTTX CLI";

/// Parses a size in bytes: `512B`, `1KB`, `1.5k` or `100`.
fn size(text: &str) -> Result<usize, String> {
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_end_matches('b');
    let (number, unit) = match digits.strip_suffix(['k', 'm', 'g']) {
        Some(number) => (number, 1u64 << (10 * (1 + "kmg".find(&digits[number.len()..]).unwrap_or(0)))),
        None => (digits, 1),
    };
    let bytes = number.parse::<f64>().map_or(f64::NAN, |number| (number * unit as f64).round());
    match bytes {
        0.0..=268_435_455.0 => Ok(bytes as usize),
        _ => Err("a size is a number with B, KB or MB, 256 MB at most".to_owned()),
    }
}

/// Short options of two and three characters, a peculiarity of MQTTX.
const PAIRS: [(&str, &str); 22] = [
    ("-im", "--message-interval"),
    ("-se", "--session-expiry-interval"),
    ("-rp", "--reconnect-period"),
    ("-wh", "--ws-headers"),
    ("-pf", "--payload-format-indicator"),
    ("-ta", "--topic-alias"),
    ("-rt", "--response-topic"),
    ("-cd", "--correlation-data"),
    ("-up", "--user-properties"),
    ("-ct", "--content-type"),
    ("-Cup", "--conn-user-properties"),
    ("-Wt", "--will-topic"),
    ("-Wm", "--will-message"),
    ("-Wq", "--will-qos"),
    ("-Wr", "--will-retain"),
    ("-Wd", "--will-delay-interval"),
    ("-Wpf", "--will-payload-format-indicator"),
    ("-We", "--will-message-expiry-interval"),
    ("-Wct", "--will-content-type"),
    ("-Wrt", "--will-response-topic"),
    ("-Wcd", "--will-correlation-data"),
    ("-Wup", "--will-user-properties"),
];
/// Short option for the name of a scenario or, with `ls`, for all of them.
const SCENARIO: &str = "-sc";

pub fn parse(words: &[String]) -> Result<Invocation, UsageError> {
    if let Some(refusal) = unsupported::refuse(words, MQTTX) {
        return Err(UsageError(refusal));
    }
    let list = words.first().is_some_and(|word| word == "ls");
    let full = |word: &String| {
        if word == SCENARIO {
            return if list { "--scenarios" } else { "--scenario" }.to_owned();
        }
        let pair = PAIRS.iter().find(|(short, _)| short == word);
        pair.map_or_else(|| word.clone(), |(_, long)| (*long).to_owned())
    };
    let program = std::iter::once("mqttx".to_owned()).chain(words.iter().map(full));
    let cli = match answer(Cli::try_parse_from(program))? {
        Ok(cli) => cli,
        Err(asked) => return Ok(asked),
    };
    let command = match cli.command {
        Top::Bench(command) => command,
        Top::Simulate(a) => return Ok(Invocation::Run(Box::new(a.plan()?))),
        Top::Ls { scenarios: true } => {
            return Ok(Invocation::Help(super::simulate::names().join("\n") + "\n"));
        }
        Top::Ls { .. } => return Err(UsageError("error: `ls` lists scenarios: ls -sc".to_owned())),
    };
    let plan = match command {
        Command::Conn(a) => {
            let mut plan = a.clients.plan(Kind::Conn)?;
            plan.session.properties.user.extend(a.user_properties);
            plan
        }
        Command::Sub(a) => {
            let mut plan = a.clients.plan(Kind::Sub)?;
            plan.messages.topics = a.topic;
            plan.messages.qos = a.qos.qos;
            plan
        }
        Command::Pub(a) => {
            let message = match (&a.file_read, a.payload_size) {
                (Some(path), _) => std::fs::read(path)
                    .map_err(|error| UsageError(format!("error: --file-read {}: {error}", path.display())))?,
                (None, Some(bytes)) if a.message == HELLO => noise(bytes),
                _ => a.message.into_bytes(),
            };
            let mut plan = a.sending.plan(a.clients.plan(Kind::Pub)?, a.topic, Message::Fixed(message))?;
            plan.messages.properties = a.properties.properties();
            plan
        }
    };
    Ok(Invocation::Run(Box::new(plan)))
}

/// Parses a header; its value may be a secret.
fn header(text: &str) -> Result<(String, Secret), String> {
    pair(text).map(|(name, value)| (name, Secret(value)))
}

impl ClientArgs {
    fn headers(&self, websocket: bool) -> Result<Vec<(String, Secret)>, UsageError> {
        if !websocket && !self.ws_headers.is_empty() {
            return Err(UsageError("error: -wh without a WebSocket: add -l ws or -l wss".to_owned()));
        }
        let plain: Vec<(String, String)> =
            self.ws_headers.iter().map(|(name, value)| (name.clone(), value.0.clone())).collect();
        check_headers(&plain).map_err(|why| UsageError(format!("error: -wh: {why}")))?;
        Ok(self.ws_headers.clone())
    }

    pub fn plan(&self, kind: Kind) -> Result<Plan, UsageError> {
        let version = match self.mqtt_version.as_str() {
            "5.0" | "5" => 5,
            "3.1.1" | "4" => 4,
            "3.1" | "3" => 3,
            other => {
                return Err(UsageError(format!("error: there is no MQTT {other}: -V is 5.0, 3.1.1 or 3.1")));
            }
        };
        let (tls, websocket) = match self.protocol.as_str() {
            "mqtt" => (false, false),
            "mqtts" => (true, false),
            "ws" => (false, true),
            "wss" => (true, true),
            other => return Err(UsageError(format!("error: -l {other}: it is mqtt, mqtts, ws or wss"))),
        };
        if !tls && !self.alpn.is_empty() {
            return Err(UsageError("error: --alpn without TLS: add -l mqtts or -l wss".to_owned()));
        }
        let again = if self.reconnect_period == 0 { 0 } else { self.maximum_reconnect_times };
        let client_id = match &self.client_id {
            Some(id) if id.contains("%i") => id.clone(),
            // A single client uses the identifier unchanged.
            Some(id) if self.count == 1 => id.clone(),
            Some(id) => format!("{id}_%i"),
            None => format!("mqttx_{}_%i", random()),
        };
        // A kept session never ends unless -se sets a time.
        let kept = if self.no_clean { u32::MAX } else { 0 };
        let mut plan = Plan::base(kind);
        plan.clients = Clients {
            count: some_clients(self.count)?,
            exact_id: self.count == 1 && !client_id.contains("%i"),
            id: client_id,
            username: self.login.username.clone(),
            password: self.login.password.clone(),
            ..plan.clients
        };
        plan.target = Target {
            hosts: with_ports(std::slice::from_ref(&self.hostname), self.port),
            tls: tls.then(|| Tls {
                ca: self.ca.clone(),
                certificate: self.cert.clone(),
                key: self.key.clone(),
                insecure: self.insecure,
                version: None,
                alpn: self.alpn.clone(),
            }),
            websocket: websocket.then(|| self.path.clone()),
            headers: self.headers(websocket)?,
            ..plan.target
        };
        plan.session = SessionPlan {
            version,
            keepalive: self.keepalive,
            clean: !self.no_clean,
            expiry: self.session_expiry_interval.unwrap_or(kept),
            properties: self.asked.properties(),
            will: self.will.will()?,
        };
        plan.connecting = Attempts {
            rate: rate(self.interval),
            retries: again,
            reconnects: again,
            backoff: Duration::from_millis(self.reconnect_period),
        };
        plan.output = self.reports.output()?;
        Ok(plan)
    }
}
