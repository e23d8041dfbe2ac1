//! Settings of bridges: `[[bridge]]`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bridge::{AddressOrder, AddressSessions, Backoff, Notifications, SettingsError, Start};
use broker::internal::{QUEUE_AGE_MAX_MS, QUEUE_BYTES_MAX, QUEUE_FULL, QUEUE_MESSAGES_MAX};
use definitions::{Problem, SecretsDirectory};
use mqtt::Version;
use rustls::ClientConfig;
use settings::{ByteSize, HostPort, HostPorts, choices, section};
use tls::{OptionStyle, TlsFiles};

use crate::runner::Credentials;
use crate::topics::Topics;

section! {
    /// Bridge to another MQTT broker. Messages wait in a durable session of this node or cluster until the other broker
    /// has them. In a cluster give all nodes the same bridges: each runs on one of them.
    [bridge]
    pub struct BridgeSettings {
        /// Name of the bridge. It belongs to the session in which messages wait.
        pub name: String = "", at start;
        /// Run the bridge. Messages wait for a bridge that has run before, too, while it does not run.
        pub enabled: bool = "true", at start;
        /// Addresses of the other broker, separated by commas. All of them must reach the same broker or cluster.
        pub address: Option<HostPorts> = "", at start;
        /// Order in which several addresses are used.
        pub address_order: AddressChoice = "ordered", at start;
        /// Protocol below MQTT.
        pub transport: BridgeTransport = "tcp", at start;
        /// Path of the WebSocket at the other broker.
        pub websocket_path: String = "/mqtt", at start;
        /// Topics of the bridge, a line for each: `PATTERN [out|in|both [QOS [LOCAL-PREFIX [REMOTE-PREFIX]]]]`.
        /// Without a direction it is `out`, without a QoS 0. `""` is an empty prefix.
        pub topics: Topics = "", at start;
        /// MQTT version towards the other broker.
        pub version: BridgeVersion = "5.0", at start;
        /// Client Identifier at the other broker, which must be used by no other client there. Empty: the name of the
        /// bridge.
        pub client_id: String = "", at start;
        /// User name at the other broker.
        pub username: Option<String> = "", at start;
        /// File with the password at the other broker, in its first line. It is read at each connection.
        pub password_file: Option<PathBuf> = "", at start;
        /// `true`: the other broker keeps no session of the bridge. What is in flight when a connection is lost may
        /// then be lost or come twice.
        pub clean: bool = "false", at start;
        /// Keep Alive towards the other broker; 0 turns it off.
        pub keep_alive: Duration = "1m" in "0s..=65535s", at start;
        /// Maximum number of unacknowledged messages in each direction, if the other broker accepts as many. 0 is 256
        /// with MQTT 5.0, and 20 with 3.1.1: there a broker cannot say how many it accepts, and mosquitto discards
        /// QoS 2 messages beyond its `max_inflight_messages`, which is 20. At most 1024 to the other broker.
        pub in_flight: u16 = "0", at start;
        /// Moment at which the bridge connects.
        pub start: StartChoice = "automatic", at start;
        /// Time without messages after which a lazy bridge disconnects.
        pub lazy_idle: Duration = "1m" in "1s..=1d", at start;
        /// Number of waiting messages at which a lazy bridge connects.
        pub lazy_messages: u32 = "1" in "1..", at start;
        /// Tell brokers of MQTT 3.1.1 that this client is a bridge. They do not send its own messages back to it then.
        pub try_private: bool = "true", at start;
        /// Topic at the other broker on which the bridge publishes `1` while it is connected, and `0` otherwise,
        /// retained.
        pub state_topic_remote: Option<String> = "", at start;
        /// Topic at this broker on which the bridge publishes `1` while it is connected, and `0` otherwise, retained.
        pub state_topic_local: Option<String> = "", at start;
        /// Pause after the first failed connection. It doubles with each further one.
        pub backoff_min: Duration = "1s" in "100ms..=1h", at start;
        /// Longest pause between two attempts to connect.
        pub backoff_max: Duration = "1m" in "100ms..=1d", at start;
        /// Maximum number of bridges that a message passes, between brokers of MQTT 5.0 that count them.
        pub hops_max: u16 = "8" in "1..=64", at start;
        /// Number of connections in a row that the other broker closes at the same message, after which the message is
        /// dropped. Some brokers refuse a message by closing. 0 drops none: a bad network looks the same.
        pub closes_max: u8 = "0", at start;
        /// Maximum size of a packet.
        pub packet_size_max: ByteSize = "1MiB" in "1KiB..=256MiB", at start;
        /// Maximum number of messages that wait for the other broker. Each takes about 100 bytes of memory on each node
        /// that has a replica of the session; its payload is on disk.
        pub queue_messages_max: u32 = "1000000" in "1..", at start;
        /// Maximum number of bytes that wait for the other broker.
        pub queue_bytes_max: ByteSize = "1GiB" in "1KiB..", at start;
        /// Maximum time that a message waits; 0 is until it expires.
        pub queue_age_max: Duration = "0s", at start;
        /// Rule for messages when the queue is full.
        pub queue_full: QueueFull = "drop_oldest", at start;
        /// Connect with TLS.
        pub tls: bool = "false", at start;
        /// Authorities (PEM) that verify the certificate of the other broker. Unset: those of the system.
        pub tls_ca: Option<PathBuf> = "", at start;
        /// Certificate chain (PEM) of the bridge.
        pub tls_certificate: Option<PathBuf> = "", at start;
        /// Private key (PEM) of `tls_certificate`.
        pub tls_key: Option<PathBuf> = "", at start;
        /// Host name that the certificate of the other broker must have. Unset: that of its address.
        pub tls_server_name: Option<String> = "", at start;
    }
}

choices! {
    /// Rule for messages when the queue of a bridge is full.
    pub enum QueueFull {
        /// The oldest message is dropped, so that the newest ones arrive.
        DropOldest = "drop_oldest",
        /// The arriving message is dropped, so that accepted messages stay.
        DropNewest = "drop_newest",
        /// The arriving message is refused: its publisher gets 0x97 (Quota exceeded).
        Refuse = "refuse",
    }
}

choices! {
    /// Protocol below MQTT of a bridge.
    pub enum BridgeTransport {
        /// TCP, with TLS if `tls` is set.
        Tcp = "tcp",
        /// WebSocket: `ws://`, and `wss://` if `tls` is set.
        WebSocket = "websocket",
    }
}

choices! {
    /// MQTT version of a bridge.
    pub enum BridgeVersion {
        /// MQTT 5.0.
        V5 = "5.0",
        /// MQTT 3.1.1.
        V311 = "3.1.1",
    }
}

choices! {
    /// Order in which the addresses of a bridge are used.
    pub enum AddressChoice {
        /// The next address after a failure, and the first one again after a stable connection.
        Ordered = "ordered",
        /// The next address for each connection.
        RoundRobin = "round_robin",
    }
}

choices! {
    /// Moment at which a bridge connects.
    pub enum StartChoice {
        /// The bridge is always connected.
        Automatic = "automatic",
        /// The bridge connects while messages wait.
        Lazy = "lazy",
        /// The bridge connects once, and stops when that connection ends.
        Once = "once",
    }
}

/// Facts about a node that its bridges depend on.
#[derive(Clone, Debug, Default)]
pub struct Own {
    /// Addresses at which the node listens.
    pub listens: Vec<HostPort>,
    pub secrets: SecretsDirectory,
}

/// Checks all bridges of a node, with their files. Returns what is wrong.
pub fn check(bridges: &[BridgeSettings], own: &Own) -> Vec<String> {
    let mut problems = Vec::new();
    for (at, bridge) in bridges.iter().enumerate() {
        let mut note = |problem: Problem| problems.push(format!("bridge.{at}.{problem}"));
        if let Err(wrong) = bridge.check() {
            note(wrong.into());
            continue;
        }
        if bridges[..at].iter().any(|other| other.name == bridge.name) {
            note(Problem::new("name", format!("another bridge has the name \"{}\"", bridge.name)));
        }
        bridge.check_address(&own.listens).err().into_iter().for_each(|problem| note(problem.into()));
        own.secrets.check(bridge).err().into_iter().for_each(&mut note);
        bridge.password().err().into_iter().for_each(|problem| note(problem.into()));
        bridge.tls().err().into_iter().for_each(|problem| note(problem.into()));
    }
    problems
}

/// Returns whether a node that listens at these addresses answers at `address`, as far as that is known without the
/// network.
pub fn leads_here(listens: &[HostPort], address: &HostPort) -> bool {
    listens.iter().any(|own| {
        own.is_same(address)
            || address.is_loopback()
                && own.port() == address.port()
                && (own.is_loopback() || own.is_unspecified())
    })
}

/// Reason why a bridge cannot run as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeProblem {
    /// Name of the setting, without its section.
    pub setting: &'static str,
    pub why: String,
}

impl fmt::Display for BridgeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.why)
    }
}

impl std::error::Error for BridgeProblem {}

fn problem(setting: &'static str, why: impl fmt::Display) -> BridgeProblem {
    BridgeProblem { setting, why: why.to_string() }
}

impl BridgeSettings {
    /// Checks what can be checked without files.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn check(&self) -> Result<(), BridgeProblem> {
        if self.address.is_none() {
            return Err(problem("address", "the other broker has no address; write HOST:PORT"));
        }
        if self.topics.is_empty() {
            return Err(problem(
                "topics",
                "the bridge carries no topic; write a line such as sensors/# out 1",
            ));
        }
        let is_path =
            self.websocket_path.starts_with('/') && self.websocket_path.bytes().all(|b| b.is_ascii_graphic());
        if self.transport == BridgeTransport::WebSocket && !is_path {
            return Err(problem("websocket_path", "it is no path of a URL; write one such as /mqtt"));
        }
        if self.tls_certificate.is_some() != self.tls_key.is_some() {
            return Err(problem("tls_key", "tls_certificate and tls_key belong together; set both or none"));
        }
        if !self.tls && (self.tls_ca.is_some() || self.tls_certificate.is_some()) {
            return Err(problem("tls", "there are settings of TLS and it is off; set tls = true"));
        }
        if self.version == BridgeVersion::V311 && self.password_file.is_some() && self.username.is_none() {
            return Err(problem(
                "username",
                "MQTT 3.1.1 has no password without a user name; set a user name",
            ));
        }
        if self.backoff_min > self.backoff_max {
            return Err(problem("backoff_min", "it is longer than backoff_max"));
        }
        self.relay().check().map_err(|error| problem(self.setting_of(&error), error)).map(drop)
    }

    /// The setting that an error of the relay is about.
    fn setting_of(&self, error: &SettingsError) -> &'static str {
        match error {
            SettingsError::NameInvalid { .. } | SettingsError::NameChanged => "name",
            SettingsError::NoAddress => "address",
            SettingsError::VersionNotSupported => "version",
            SettingsError::ClientIdMissing => "client_id",
            SettingsError::PasswordWithoutUserName => "username",
            SettingsError::InFlightZero => "in_flight",
            SettingsError::HopsMaxZero => "hops_max",
            SettingsError::PacketSizeTooSmall { .. } => "packet_size_max",
            SettingsError::QueuedMinZero => "lazy_messages",
            SettingsError::NotificationTopicInvalid { topic } => match &self.state_topic_local {
                Some(local) if local == topic => "state_topic_local",
                _ => "state_topic_remote",
            },
            SettingsError::Topic(_) | SettingsError::Echo { .. } | SettingsError::Interest(_) => "topics",
        }
    }

    /// Checks that a bridge of this node leads to another broker, and names only secrets that it may use.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn check_here(&self, own: &Own) -> Result<(), Problem> {
        self.check_address(&own.listens)?;
        own.secrets.check(self)
    }

    fn check_address(&self, listens: &[HostPort]) -> Result<(), BridgeProblem> {
        let mut addresses = self.address.iter().flat_map(|addresses| &addresses.0);
        match addresses.find(|address| leads_here(listens, address)) {
            None => Ok(()),
            Some(own) => {
                let why = format!("{own} is an address of this node; a bridge leads to another broker");
                Err(problem("address", why))
            }
        }
    }

    /// Checks a bridge with its files.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn check_with_files(&self) -> Result<(), BridgeProblem> {
        self.check()?;
        self.password()?;
        self.tls().map(drop)
    }

    /// Settings of the relay, without the password.
    pub fn relay(&self) -> bridge::Settings {
        let addresses = self.address.iter().flat_map(|addresses| &addresses.0);
        let mut properties = vec![
            (QUEUE_MESSAGES_MAX.to_owned(), self.queue_messages_max.to_string()),
            (QUEUE_BYTES_MAX.to_owned(), self.queue_bytes_max.bytes().to_string()),
        ];
        if !self.queue_age_max.is_zero() {
            properties.push((QUEUE_AGE_MAX_MS.to_owned(), self.queue_age_max.as_millis().to_string()));
        }
        let full = match self.queue_full {
            QueueFull::DropOldest => None,
            QueueFull::DropNewest => Some("drop-newest"),
            QueueFull::Refuse => Some("refuse"),
        };
        properties.extend(full.map(|full| (QUEUE_FULL.to_owned(), full.to_owned())));
        bridge::Settings {
            addresses: addresses.map(|address| address.as_str().to_owned()).collect(),
            // The settings say that all addresses reach one broker or cluster.
            address_sessions: AddressSessions::Shared,
            address_order: match self.address_order {
                AddressChoice::Ordered => AddressOrder::Ordered,
                AddressChoice::RoundRobin => AddressOrder::RoundRobin,
            },
            version: match self.version {
                BridgeVersion::V5 => Version::V5,
                BridgeVersion::V311 => Version::V3_1_1,
            },
            client_id: if self.client_id.is_empty() { self.name.clone() } else { self.client_id.clone() },
            username: self.username.clone(),
            clean: self.clean,
            keep_alive: self.keep_alive.as_secs() as u16,
            in_flight: match (self.in_flight, self.version) {
                (0, BridgeVersion::V5) => 256,
                (0, BridgeVersion::V311) => 20,
                (in_flight, _) => in_flight,
            },
            topics: self.topics.topics().to_vec(),
            start: match self.start {
                StartChoice::Automatic => Start::Automatic,
                StartChoice::Lazy => {
                    Start::Lazy { idle: self.lazy_idle, queued_min: u64::from(self.lazy_messages) }
                }
                StartChoice::Once => Start::Once,
            },
            try_private: self.try_private,
            notifications: Notifications {
                remote: self.state_topic_remote.clone(),
                local: self.state_topic_local.clone(),
            },
            backoff: Backoff { min: self.backoff_min, max: self.backoff_max, ..Backoff::default() },
            hops_max: usize::from(self.hops_max),
            packet_size_max: self.packet_size_max.bytes() as u32,
            closes_max: (self.closes_max > 0).then_some(self.closes_max),
            local_properties: properties,
            // Only this session may have such filters, and no topic of the broker begins like that.
            memory: Some(format!("$bridge/{}/in/", self.name)),
            ..bridge::Settings::new(&self.name, "")
        }
    }
}

impl Credentials for BridgeSettings {
    /// Returns the first line of the file.
    fn password(&self) -> Result<Option<Vec<u8>>, BridgeProblem> {
        let Some(path) = &self.password_file else { return Ok(None) };
        settings::secret_line(path).map(Some).map_err(|why| problem("password_file", why))
    }

    fn tls(&self) -> Result<Option<Arc<ClientConfig>>, BridgeProblem> {
        if !self.tls {
            return Ok(None);
        }
        let files = TlsFiles {
            ca: self.tls_ca.as_deref(),
            certificate: self.tls_certificate.as_deref(),
            key: self.tls_key.as_deref(),
        };
        files.config(OptionStyle::Bridge).map(Some).map_err(|(setting, error)| problem(setting, error))
    }

    fn tls_server_name(&self) -> Option<&str> {
        self.tls_server_name.as_deref()
    }

    fn websocket_path(&self) -> Option<&str> {
        (self.transport == BridgeTransport::WebSocket).then_some(&*self.websocket_path)
    }
}

#[cfg(test)]
mod tests {
    use settings::{Raw, Value as _};

    use super::*;

    fn bridge(address: &str) -> BridgeSettings {
        let topics = Topics::from_raw(&Raw::Text("a/# out 1".to_owned())).expect("valid topics");
        let address = HostPorts::from_raw(&Raw::Text(address.to_owned())).expect("valid addresses");
        BridgeSettings {
            name: "plant".to_owned(),
            address: Some(address),
            topics,
            ..BridgeSettings::default()
        }
    }

    fn problems(listens: &[&str], address: &str) -> String {
        let listens: Vec<HostPort> = listens.iter().map(|listen| listen.parse().expect("valid")).collect();
        check(&[bridge(address)], &Own { listens, ..Own::default() }).join("\n")
    }

    #[test]
    fn the_path_of_a_websocket_is_checked() {
        for (path, is_valid) in
            [("/mqtt", true), ("/", true), ("mqtt", false), ("/a b", false), ("/a\r\nb", false)]
        {
            let (transport, websocket_path) = (BridgeTransport::WebSocket, path.to_owned());
            let bridge = BridgeSettings { transport, websocket_path, ..bridge("a:8083") };
            assert_eq!(bridge.check().is_ok(), is_valid, "{path:?}");
            assert_eq!(bridge.websocket_path(), Some(path));
        }
        assert_eq!(bridge("a:1883").websocket_path(), None);
    }

    #[test]
    fn a_problem_names_the_setting_that_is_wrong() {
        let topic = |topic: &str| Some(topic.to_owned());
        let old = BridgeSettings { version: BridgeVersion::V311, try_private: false, ..bridge("a:1883") };
        let both = Topics::from_raw(&Raw::Text("a/# both 1".to_owned())).expect("valid topics");
        for (bridge, setting) in [
            (BridgeSettings { state_topic_local: topic("a/+"), ..bridge("a:1883") }, "state_topic_local"),
            (BridgeSettings { state_topic_remote: topic("a/#"), ..bridge("a:1883") }, "state_topic_remote"),
            (BridgeSettings { topics: both, ..old }, "topics"),
            (BridgeSettings { name: "a/b".to_owned(), ..bridge("a:1883") }, "name"),
        ] {
            assert_eq!(bridge.check().map_err(|problem| problem.setting), Err(setting));
        }
    }

    #[test]
    fn a_bridge_to_its_own_node_is_refused() {
        for (listens, address) in [
            (["0.0.0.0:1883", "127.0.0.1:8083"], "127.0.0.1:1883"),
            (["0.0.0.0:1883", "127.0.0.1:8083"], "localhost:1883"),
            (["127.0.0.1:8083", "[::]:1883"], "[::1]:1883"),
            (["127.0.0.1:8083", "a.example.com:1883"], "A.example.com:1883"),
            (["127.0.0.1:8083", "10.0.0.1:1883"], "b.example.com:1883,10.0.0.1:1883"),
        ] {
            let found = problems(&listens, address);
            assert!(found.starts_with("bridge.0.address: "), "{listens:?} {address}: {found:?}");
            assert!(
                found.ends_with("is an address of this node; a bridge leads to another broker"),
                "{found}"
            );
        }
        for (listens, address) in [
            (["0.0.0.0:1883", "127.0.0.1:8083"], "127.0.0.1:1884"),
            (["10.0.0.1:1883", "127.0.0.1:8083"], "127.0.0.1:1883"),
            (["0.0.0.0:1883", "127.0.0.1:8083"], "b.example.com:1883"),
        ] {
            assert_eq!(problems(&listens, address), "", "{listens:?} {address}");
        }
    }
}
