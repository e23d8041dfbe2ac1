//! Settings of one bridge, as plain data.

use std::fmt;
use std::time::Duration;

use mqtt::{QoS, TopicName, Version};

use crate::interest::{InterestError, InterestSettings};
use crate::topic_map::{MapError, TopicMap};

/// Settings of one bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Name of the bridge.
    pub name: String,
    /// Client Identifier of the local session; `None` for `$bridge/` and the name.
    pub local_client_id: Option<String>,
    /// Addresses of the remote broker, in order of preference.
    pub addresses: Vec<String>,
    pub address_sessions: AddressSessions,
    /// Choice of the address after a failure.
    pub address_order: AddressOrder,
    /// Protocol version towards the remote broker: 3.1.1 or 5.0.
    pub version: Version,
    /// Client Identifier of the remote session.
    pub client_id: String,
    pub username: Option<String>,
    pub password: Option<Password>,
    /// True to discard the remote session at each connection. Messages in flight may then be lost or duplicated.
    pub clean: bool,
    /// Seconds that the remote session outlives its connection, in MQTT 5.0; `u32::MAX` is forever.
    pub session_expiry: u32,
    /// Keep Alive in seconds towards the remote broker; 0 turns it off.
    pub keep_alive: u16,
    /// Maximum number of unacknowledged QoS 1 and 2 messages in each direction; at least 1.
    pub in_flight: u16,
    /// Topics that the bridge carries, and their names on each side. The first entry that matches applies.
    pub topics: Vec<Topic>,
    pub start: Start,
    /// True to set the bridge bit of the protocol level in MQTT 3.1.1. A remote broker that refuses it gets a CONNECT
    /// without the bit.
    pub try_private: bool,
    /// True to carry topics in both directions even if the remote broker cannot exclude the bridge's own messages. Each
    /// message then comes back once.
    pub allow_echo: bool,
    /// Number of connections in a row that the remote broker closes at the same message, after which the message is
    /// dropped. Some brokers refuse a message by closing. `None` to never drop one: a bad network looks the same.
    pub closes_max: Option<u8>,
    /// Topics on which the bridge publishes, retained, whether it is connected: `1` or `0`.
    pub notifications: Notifications,
    pub backoff: Backoff,
    /// Maximum time to open a connection and to get its CONNACK.
    pub connect_timeout: Duration,
    pub pass: Pass,
    /// Maximum number of bridges that a message passes.
    pub hops_max: usize,
    /// Maximum size of a packet from either broker, in bytes.
    pub packet_size_max: u32,
    /// Number of bytes that may wait for one side before the bridge stops reading the other side. One packet may
    /// exceed it.
    pub outgoing_max: usize,
    /// User Properties of each CONNECT to this broker.
    pub local_properties: Vec<(String, String)>,
    /// Beginning of filters at this broker, with which the local session stores the filters of the remote session. A
    /// later relay ends those that its settings do not have. `None` to store nothing.
    pub memory: Option<String>,
    /// Subscriptions at the remote broker that change while the relay runs; `None` for those of `topics`.
    pub interest: Option<InterestSettings>,
}

/// Password of the remote session.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Vec<u8>);

impl Password {
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Password {
    /// Hides the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Choice of the next address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressOrder {
    /// The next address after a failure, and the first one again after a connection that was stable.
    #[default]
    Ordered,
    /// The next address for each connection.
    RoundRobin,
}

/// Relation of the bridge's sessions at different addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressSessions {
    /// Each address is a broker with a session of its own. A message in flight may be duplicated when the address
    /// changes.
    #[default]
    Separate,
    /// The addresses belong to one broker, or to a cluster that has one session for the bridge.
    Shared,
}

/// Start of a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// The bridge is always connected.
    #[default]
    Automatic,
    /// The bridge connects when messages wait, and disconnects when it was idle.
    Lazy {
        /// Time without messages after which the bridge disconnects.
        idle: Duration,
        /// Number of waiting messages that make it connect; at least 1.
        queued_min: u64,
    },
    /// The bridge connects once, and stops when the connection ends.
    Once,
}

/// Direction in which a topic is carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Direction from the remote broker to this one.
    In,
    /// Direction from this broker to the remote one.
    #[default]
    Out,
    Both,
}

impl Direction {
    /// Returns whether messages leave this broker.
    #[must_use]
    pub fn is_out(self) -> bool {
        self != Self::In
    }

    /// Returns whether messages enter this broker.
    #[must_use]
    pub fn is_in(self) -> bool {
        self != Self::Out
    }
}

/// Topics that a bridge carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    pub names: Names,
    pub direction: Direction,
    /// Maximum QoS of the messages.
    pub qos: QoS,
}

/// Names of topics on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Names {
    /// The words of mosquitto: the topics on a side are those that begin with its prefix and continue with the filter.
    /// With an empty filter the prefixes are complete Topic Names.
    Prefixed { filter: String, local_prefix: String, remote_prefix: String },
    /// Two filters with the same wildcards in the same order.
    Remapped { local: String, remote: String },
}

impl Topic {
    /// Creates an entry whose topics have the same name on both sides.
    pub fn new(filter: &str, direction: Direction, qos: QoS) -> Self {
        Self::prefixed(filter, direction, qos, "", "")
    }

    /// Creates an entry of mosquitto's form: `topic FILTER DIRECTION QOS LOCAL-PREFIX REMOTE-PREFIX`.
    pub fn prefixed(filter: &str, direction: Direction, qos: QoS, local: &str, remote: &str) -> Self {
        let names = Names::Prefixed {
            filter: filter.into(),
            local_prefix: local.into(),
            remote_prefix: remote.into(),
        };
        Self { names, direction, qos }
    }

    /// Creates an entry from two filters.
    pub fn remapped(local: &str, remote: &str, direction: Direction, qos: QoS) -> Self {
        Self { names: Names::Remapped { local: local.into(), remote: remote.into() }, direction, qos }
    }
}

/// Topics of the state messages; `None` for no message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notifications {
    /// Topic at the remote broker, which also gets the Will of the connection.
    pub remote: Option<String>,
    /// Topic at this broker.
    pub local: Option<String>,
}

/// Waiting time between attempts to connect. It doubles from `min` to `max`; a random part of up to one half is taken
/// off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub min: Duration,
    pub max: Duration,
    /// Duration of a connection after which the waiting time is `min` again.
    pub stable: Duration,
}

/// Parts of a message that are passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    pub retain: bool,
    pub user_properties: bool,
    pub content_type: bool,
    /// The Response Topic, with its name on the other side.
    pub response_topic: bool,
    pub correlation_data: bool,
    pub payload_format: bool,
    pub message_expiry: bool,
}

impl Default for Pass {
    fn default() -> Self {
        Self {
            retain: true,
            user_properties: true,
            content_type: true,
            response_topic: true,
            correlation_data: true,
            payload_format: true,
            message_expiry: true,
        }
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self { min: Duration::from_secs(1), max: Duration::from_secs(60), stable: Duration::from_secs(30) }
    }
}

impl Settings {
    /// Creates the settings of a bridge with default values.
    pub fn new(name: &str, address: &str) -> Self {
        Self {
            name: name.into(),
            local_client_id: None,
            addresses: vec![address.into()],
            address_sessions: AddressSessions::default(),
            address_order: AddressOrder::default(),
            version: Version::V5,
            client_id: name.into(),
            username: None,
            password: None,
            clean: false,
            session_expiry: u32::MAX,
            keep_alive: 60,
            in_flight: 256,
            topics: Vec::new(),
            start: Start::default(),
            try_private: true,
            allow_echo: false,
            closes_max: None,
            notifications: Notifications::default(),
            backoff: Backoff::default(),
            connect_timeout: Duration::from_secs(30),
            pass: Pass::default(),
            hops_max: 8,
            packet_size_max: 1 << 20,
            outgoing_max: 1 << 20,
            local_properties: Vec::new(),
            memory: None,
            interest: None,
        }
    }

    /// Returns the Client Identifier of the local session.
    pub fn local_client_id(&self) -> String {
        self.local_client_id.clone().unwrap_or_else(|| format!("$bridge/{}", self.name))
    }

    /// Returns whether the CONNECT has the bridge bit, at least at first. MQTT 5.0 has subscription options instead.
    pub fn has_bridge_bit(&self) -> bool {
        self.try_private && !self.version.has_properties()
    }

    /// Checks the settings and returns their map of topics.
    ///
    /// # Errors
    /// The first value that is not valid.
    pub fn check(&self) -> Result<TopicMap, SettingsError> {
        if self.name.is_empty() || self.name.contains(['/', '+', '#', '\0']) {
            return Err(SettingsError::NameInvalid { name: self.name.clone() });
        }
        if self.addresses.is_empty() {
            return Err(SettingsError::NoAddress);
        }
        if self.version == Version::V3_1 {
            return Err(SettingsError::VersionNotSupported);
        }
        if self.client_id.is_empty() && !self.clean {
            return Err(SettingsError::ClientIdMissing);
        }
        if !self.version.has_properties() && self.password.is_some() && self.username.is_none() {
            return Err(SettingsError::PasswordWithoutUserName);
        }
        if self.in_flight == 0 {
            return Err(SettingsError::InFlightZero);
        }
        if self.hops_max == 0 {
            return Err(SettingsError::HopsMaxZero);
        }
        if self.packet_size_max < PACKET_SIZE_MIN {
            return Err(SettingsError::PacketSizeTooSmall { size: self.packet_size_max });
        }
        if let Start::Lazy { queued_min: 0, .. } = self.start {
            return Err(SettingsError::QueuedMinZero);
        }
        let names = [&self.notifications.local, &self.notifications.remote];
        for topic in names.into_iter().flatten() {
            if TopicName::parse(topic).is_err() {
                return Err(SettingsError::NotificationTopicInvalid { topic: topic.clone() });
            }
        }
        let map = TopicMap::new(&self.topics)?;
        if let Some(interest) = &self.interest {
            interest.check(self, &map)?;
        }
        let excludes_own = self.version.has_properties() || self.has_bridge_bit();
        if let (false, false, Some((out, into))) = (excludes_own, self.allow_echo, map.echoes().next()) {
            return Err(SettingsError::Echo { out, into });
        }
        Ok(map)
    }
}

/// Smallest value of `packet_size_max`, which a CONNACK needs.
const PACKET_SIZE_MIN: u32 = 256;

/// A value of the settings that is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingsError {
    NameInvalid {
        name: String,
    },
    NoAddress,
    VersionNotSupported,
    ClientIdMissing,
    PasswordWithoutUserName,
    InFlightZero,
    HopsMaxZero,
    PacketSizeTooSmall {
        size: u32,
    },
    QueuedMinZero,
    NotificationTopicInvalid {
        topic: String,
    },
    Topic(MapError),
    /// Messages of the entry `out` come back through the entry `into`. Entries are counted from 0.
    Echo {
        out: usize,
        into: usize,
    },
    /// New settings of a running bridge have another name.
    NameChanged,
    /// The settings do not allow subscriptions that change.
    Interest(InterestError),
}

impl From<MapError> for SettingsError {
    fn from(error: MapError) -> Self {
        Self::Topic(error)
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameInvalid { name } => {
                write!(f, "the name {name:?} is empty or has `/`, `+` or `#`; use another name")
            }
            Self::NoAddress => f.write_str("no address of the remote broker; write at least one"),
            Self::VersionNotSupported => f.write_str("MQTT 3.1 is not supported; use 3.1.1 or 5.0"),
            Self::ClientIdMissing => {
                f.write_str("a durable remote session needs a Client Identifier; set one, or set clean")
            }
            Self::PasswordWithoutUserName => {
                f.write_str("MQTT 3.1.1 has no password without a user name; set a user name")
            }
            Self::InFlightZero => f.write_str("the number of messages in flight is 0; use at least 1"),
            Self::HopsMaxZero => f.write_str("the maximum number of hops is 0; use at least 1"),
            Self::PacketSizeTooSmall { size } => {
                write!(f, "the maximum packet size is {size} bytes; use at least {PACKET_SIZE_MIN}")
            }
            Self::QueuedMinZero => f.write_str(
                "a lazy bridge connects at 0 waiting messages; use at least 1, or start automatically",
            ),
            Self::NotificationTopicInvalid { topic } => {
                write!(f, "{topic:?} is not a Topic Name; use a topic without wildcards for notifications")
            }
            Self::Topic(error) => error.fmt(f),
            Self::Echo { out, into } => write!(
                f,
                "messages of topic entry {out} come back through entry {into}, because the remote broker does not know \
                 that this client is a bridge; use MQTT 5.0 or try_private, or change the topics"
            ),
            Self::NameChanged => {
                f.write_str("the name of a bridge cannot change; remove the bridge and add another")
            }
            Self::Interest(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SettingsError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl Fn(&mut Settings)) -> Option<SettingsError> {
        let mut settings = Settings::new("b", "remote:1883");
        settings.topics = vec![Topic::new("a/#", Direction::Both, QoS::AtLeastOnce)];
        change(&mut settings);
        settings.check().err()
    }

    #[test]
    fn settings_are_checked() {
        assert_eq!(check(|_| ()), None);
        assert_eq!(check(|s| s.name = "a/b".into()), Some(SettingsError::NameInvalid { name: "a/b".into() }));
        assert_eq!(check(|s| s.addresses.clear()), Some(SettingsError::NoAddress));
        assert_eq!(check(|s| s.version = Version::V3_1), Some(SettingsError::VersionNotSupported));
        assert_eq!(check(|s| s.client_id.clear()), Some(SettingsError::ClientIdMissing));
        assert_eq!(check(|s| s.hops_max = 0), Some(SettingsError::HopsMaxZero));
        let size = 10;
        assert_eq!(check(|s| s.packet_size_max = 10), Some(SettingsError::PacketSizeTooSmall { size }));
        assert_eq!(check(|s| s.in_flight = 0), Some(SettingsError::InFlightZero));
        let topic = "a/+".to_owned();
        assert_eq!(
            check(|s| s.notifications.local = Some("a/+".into())),
            Some(SettingsError::NotificationTopicInvalid { topic })
        );
    }

    #[test]
    fn both_directions_need_a_remote_broker_that_excludes_own_messages() {
        let old = |s: &mut Settings| (s.version, s.try_private) = (Version::V3_1_1, false);
        assert_eq!(check(old), Some(SettingsError::Echo { out: 0, into: 0 }));
        assert_eq!(check(|s| s.version = Version::V3_1_1), None);
        let allowed = |s: &mut Settings| {
            old(s);
            s.allow_echo = true;
        };
        assert_eq!(check(allowed), None);
    }
}
