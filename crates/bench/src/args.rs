//! The command line.

use crate::topology::Topology;
use clap::{Args, Subcommand};
use std::net::IpAddr;

/// Kind of measurement. Parsed by clap; [`crate::run`] executes it.
#[derive(Subcommand)]
pub enum Command {
    /// Open N connections and hold them: connect latency, broker memory per connection
    Conn(ConnectionsArgs),
    /// Connect N clients that each subscribe: time to CONNACK and SUBACK, wall time until the last SUBACK
    Sub(SubscribeArgs),
    /// Run publishers and subscribers: throughput, end-to-end latency, loss, duplicates, order
    Pubsub(PubsubArgs),
    /// Check delivery across failovers: persistent sessions, reconnects, retransmission
    Ha(HaArgs),
    /// Send at a fixed low rate with 1 publisher and 1 subscriber: latency distribution
    Probe(ProbeArgs),
}

impl Command {
    pub fn common(&self) -> &CommonArgs {
        match self {
            Command::Conn(a) => &a.common,
            Command::Sub(a) => &a.connections.common,
            Command::Pubsub(a) => &a.common,
            Command::Ha(a) => &a.common,
            Command::Probe(a) => &a.common,
        }
    }
}

#[derive(Args, Clone)]
pub struct CommonArgs {
    /// Brokers, host:port[,host:port...]; client i uses host i mod n
    #[arg(long, short = 'H', default_value = "127.0.0.1:1883", value_delimiter = ',')]
    pub host: Vec<String>,
    /// Brokers for the publishers only
    #[arg(long, value_delimiter = ',')]
    pub pub_host: Vec<String>,
    /// Brokers for the subscribers only
    #[arg(long, value_delimiter = ',')]
    pub sub_host: Vec<String>,
    /// MQTT version: 4 (3.1.1) or 5
    #[arg(long, short = 'V', default_value_t = 4, value_parser = clap::value_parser!(u8).range(4..=5))]
    pub version: u8,
    /// Keep-alive seconds (0 = off)
    #[arg(long, short = 'k')]
    pub keepalive: Option<u16>,
    /// Prefix of the client ids (default: mqload-RUN-)
    #[arg(long, short = 'I')]
    pub clientid_prefix: Option<String>,
    #[arg(long, short = 'u')]
    pub username: Option<String>,
    #[arg(long, short = 'P')]
    pub password: Option<String>,
    /// Source addresses, e.g. 127.0.0.2,127.0.0.3
    #[arg(long, value_delimiter = ',')]
    pub bind: Vec<IpAddr>,
    /// Worker threads
    #[arg(long, short = 't', default_value_t = 1)]
    pub threads: usize,
    /// CPUs to pin the workers to
    #[arg(long, value_delimiter = ',')]
    pub pin: Vec<usize>,
    /// Broker processes whose CPU time and memory are reported
    #[arg(long, value_delimiter = ',')]
    pub broker_pid: Vec<u32>,
    /// Maximum number of connection attempts at one time
    #[arg(long, default_value_t = 100)]
    pub concurrency: usize,
    /// Maximum seconds for one connection to become ready
    #[arg(long, default_value_t = 10.0)]
    pub connect_timeout: f64,
    /// Maximum seconds for all connections to become ready
    #[arg(long, default_value_t = 600.0)]
    pub setup_timeout: f64,
    /// Seconds to wait for a PINGRESP (default: the keep-alive)
    #[arg(long)]
    pub ping_timeout: Option<f64>,
    /// v5: session expiry seconds
    #[arg(long)]
    pub session_expiry: Option<u32>,
    /// v5: receive maximum that the client announces
    #[arg(long, default_value_t = 0)]
    pub receive_maximum: u16,
    /// SO_SNDBUF (0 = the system's)
    #[arg(long, default_value_t = 0)]
    pub sndbuf: i32,
    /// SO_RCVBUF (0 = the system's)
    #[arg(long, default_value_t = 0)]
    pub rcvbuf: i32,
    /// Allow targets outside 127.0.0.0/8
    #[arg(long)]
    pub allow_remote: bool,
    /// Print no progress on stderr
    #[arg(long)]
    pub quiet: bool,
    /// Print the report over many lines instead of one
    #[arg(long)]
    pub pretty: bool,
    /// Free text that is copied into the report
    #[arg(long)]
    pub label: Option<String>,
}

#[derive(Args)]
pub struct ConnectionsArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    #[arg(long, short = 'c', default_value_t = 1000)]
    pub count: usize,
    /// Connections per second (0 = as fast as --concurrency allows)
    #[arg(long, short = 'R', default_value_t = 1000.0)]
    pub rate: f64,
    /// Clean session/start: true or false
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub clean: bool,
    /// Seconds to stay connected
    #[arg(long, default_value_t = 0.0)]
    pub hold: f64,
}

#[derive(Args)]
pub struct SubscribeArgs {
    #[command(flatten)]
    pub connections: ConnectionsArgs,
    /// Topic filters; %i client index, %c client id, %n number within the client, %r run id
    #[arg(long, short = 'T', default_value = "mqload/%i", value_delimiter = ',')]
    pub topic: Vec<String>,
    /// Number of filters that a client makes of each topic (%n)
    #[arg(long, default_value_t = 1)]
    pub per_conn: usize,
    #[arg(long, short = 'q', default_value_t = 0)]
    pub qos: u8,
}

#[derive(Args, Clone)]
pub struct FlowArgs {
    /// Number of publishers
    #[arg(long, short = 'p', default_value_t = 1)]
    pub pubs: usize,
    /// Number of subscribers
    #[arg(long, short = 's', default_value_t = 1)]
    pub subs: usize,
    #[arg(long, value_enum, default_value_t = Topology::OneToOne)]
    pub topology: Topology,
    /// Number of groups in the shared topology
    #[arg(long, default_value_t = 1)]
    pub groups: usize,
    /// Publisher's topic: %i publisher, %j its subscriber in fan-in, %c client id, %r run id
    #[arg(long)]
    pub pub_topic: Option<String>,
    /// Subscriber's filter: %i subscriber, %j its publisher (fan-out) or group (shared)
    #[arg(long)]
    pub sub_topic: Option<String>,
    /// QoS of publishers and subscribers
    #[arg(long, short = 'q', default_value_t = 0)]
    pub qos: u8,
    /// QoS of the subscribers, when different
    #[arg(long)]
    pub sub_qos: Option<u8>,
    /// Payload bytes (16 at least)
    #[arg(long, short = 'l', default_value_t = 64)]
    pub payload: usize,
    /// Messages in flight per publisher at QoS 1 and 2 (the broker's receive maximum also holds)
    #[arg(long, short = 'w', default_value_t = 32)]
    pub inflight: usize,
    /// Seconds at the start that are not measured
    #[arg(long, default_value_t = 1.0)]
    pub warmup: f64,
    /// Measured seconds
    #[arg(long, short = 'd', default_value_t = 5.0)]
    pub duration: f64,
    /// Maximum seconds to wait for late messages after the publishers stop (ends early when all have arrived)
    #[arg(long, default_value_t = 5.0)]
    pub drain: f64,
    /// Quiet time in milliseconds after the last expected message, in which duplicates can still arrive
    #[arg(long, default_value_t = 300)]
    pub settle_ms: u64,
    /// Seconds between the last subscription and the first publish
    #[arg(long, default_value_t = 0.2)]
    pub pause: f64,
    /// Connections per second during the setup
    #[arg(long, default_value_t = 2000.0)]
    pub connect_rate: f64,
    /// Compare every payload byte
    #[arg(long)]
    pub verify: bool,
    /// Start of the measured latency: the time a message was due (rate mode) or was written
    #[arg(long, default_value = "send", value_parser = ["send", "due"])]
    pub latency_from: String,
    /// Pacing step in microseconds: messages due within one step are sent together
    #[arg(long, default_value_t = 1000)]
    pub tick_us: u64,
    /// Poll the sockets only every so many microseconds while publishing (0 = at once): makes the generator cheaper
    /// in saturation runs, adds that much to the latencies
    #[arg(long, default_value_t = 0)]
    pub coalesce_us: u64,
    /// Maximum number of bytes that a publisher passes to the kernel at once
    #[arg(long)]
    pub chunk: Option<usize>,
}

#[derive(Args)]
pub struct PubsubArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    #[command(flatten)]
    pub flow: FlowArgs,
    /// Messages per second, all publishers together (0 = as fast as possible)
    #[arg(long, short = 'R', default_value_t = 0.0)]
    pub rate: f64,
    /// Stop after so many messages (all publishers together) instead of after --duration; no warm-up
    #[arg(long, short = 'm', default_value_t = 0)]
    pub messages: u64,
    /// Maximum time for --messages, in seconds
    #[arg(long, default_value_t = 300.0)]
    pub max_time: f64,
    /// Maximum number of outstanding deliveries in total (0 = no bound): makes QoS 0 closed-loop
    #[arg(long, default_value_t = 0)]
    pub max_outstanding: u64,
    /// Clean sessions: true or false. false: durable sessions on both sides (clean session off; v5: session expiry
    /// 3600), which stay in the broker
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub clean: bool,
}

#[derive(Args)]
pub struct HaArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    #[command(flatten)]
    pub flow: FlowArgs,
    /// Messages per second, all publishers together
    #[arg(long, short = 'R', default_value_t = 1000.0)]
    pub rate: f64,
    /// First pause before a reconnect, in milliseconds
    #[arg(long, default_value_t = 50)]
    pub backoff_ms: u64,
    #[arg(long, default_value_t = 2000)]
    pub backoff_max_ms: u64,
    /// Silence in milliseconds after which a client sends PINGREQ
    #[arg(long, default_value_t = 1000)]
    pub ping_idle_ms: u64,
    /// Leave the sessions in the broker at the end
    #[arg(long)]
    pub no_cleanup: bool,
}

#[derive(Args)]
pub struct ProbeArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    #[command(flatten)]
    pub flow: FlowArgs,
    /// Messages per second
    #[arg(long, short = 'R', default_value_t = 100.0)]
    pub rate: f64,
}
