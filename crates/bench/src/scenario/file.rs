//! The format of a scenario file: TOML.

use super::values::{Load, Pause};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The file. Its values are the defaults of the groups.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub title: Option<String>,
    /// Seed of all random numbers: the same seed gives the same messages.
    pub seed: Option<u64>,
    #[serde(default)]
    pub hosts: Vec<String>,
    pub version: Option<u8>,
    pub username: Option<String>,
    pub password_file: Option<PathBuf>,
    pub tls: Option<TlsFile>,
    /// Path of the WebSocket.
    pub websocket: Option<String>,
    #[serde(default)]
    pub stage: Vec<StageFile>,
    #[serde(default)]
    pub group: Vec<GroupFile>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFile {
    pub ca: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    #[serde(default)]
    pub insecure: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageFile {
    pub name: String,
    pub seconds: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupFile {
    pub name: String,
    pub clients: usize,
    /// Connections per second; all at once when unset.
    pub connect_rate: Option<f64>,
    /// Stage at whose start the clients connect, and stage at whose end they leave.
    pub join: Option<String>,
    pub leave: Option<String>,

    pub hosts: Option<Vec<String>>,
    pub version: Option<u8>,
    pub username: Option<String>,
    pub password_file: Option<PathBuf>,
    pub client_id: Option<String>,
    pub keepalive: Option<u16>,
    pub clean: Option<bool>,
    /// Session Expiry Interval in seconds.
    pub session_expiry: Option<u32>,
    /// Number of attempts to reconnect after a connection ended.
    pub reconnects: Option<u32>,
    /// Times that clients stay connected and disconnected, repeatedly.
    pub stay: Option<Pause>,
    pub away: Option<Pause>,
    /// True when they leave without DISCONNECT, so that their Wills are published.
    #[serde(default)]
    pub vanish: bool,
    pub will: Option<WillFile>,

    #[serde(default)]
    pub subscribe: Vec<String>,
    pub subscribe_qos: Option<u8>,

    pub publish: Option<String>,
    pub qos: Option<u8>,
    #[serde(default)]
    pub retain: bool,
    pub payload: Option<String>,
    pub payload_file: Option<PathBuf>,
    pub size: Option<usize>,
    /// Headers, as for --payload-hdrs; latency needs them at both ends.
    pub headers: Option<String>,
    /// Messages per second of the whole group.
    pub rate: Option<Rate>,
    /// Time from one message of a client to its next.
    pub think: Option<Pause>,
    /// Maximum number of messages in flight of a client above QoS 0.
    pub window: Option<usize>,
}

/// The Will of each client.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WillFile {
    pub topic: String,
    #[serde(default)]
    pub message: String,
    #[serde(default)]
    pub qos: u8,
    #[serde(default)]
    pub retain: bool,
    /// Will Delay Interval in seconds, MQTT 5.0.
    #[serde(default)]
    pub delay: u32,
}

/// One rate, or one for each stage.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "a rate is messages a second, such as 100, or \"100..1000\" for one that grows, \
         or { STAGE = RATE, ... }"
)]
pub enum Rate {
    Always(Load),
    Staged(BTreeMap<String, Load>),
}
