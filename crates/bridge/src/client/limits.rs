//! The server's answer to CONNECT.

use mqtt::{ConnAck, QoS};

/// Limits and facts of a CONNACK. What the server does not say has the value that the specification gives to its
/// absence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub session_present: bool,
    /// Maximum number of unacknowledged messages to the server.
    pub receive_maximum: u16,
    pub maximum_qos: QoS,
    pub retain_available: bool,
    /// Maximum size of a packet to the server, in bytes.
    pub packet_size_max: u32,
    pub topic_alias_maximum: u16,
    /// Keep Alive that the server requires instead of the client's, in seconds.
    pub keep_alive: Option<u16>,
    pub assigned_client_id: Option<String>,
    pub wildcard_subscriptions: bool,
    pub shared_subscriptions: bool,
    pub reason_string: Option<String>,
    pub server_reference: Option<String>,
    /// Id of the server's broker or cluster for the list of hops: the User Property `meridian-id`.
    pub hop: Option<String>,
    /// Name of the state that the server's sessions continue: the User Property `meridian-history`.
    pub history: Option<String>,
    /// Name of what the server exports to this link: the User Property `meridian-export`.
    pub export: Option<String>,
}

impl Limits {
    pub(crate) fn of(ack: &ConnAck<'_>) -> Self {
        let properties = ack.properties;
        let named = |wanted: &str| {
            let found =
                properties.user_properties().find(|(name, _)| *name == wanted).map(|(_, value)| value);
            found.filter(|value| value.len() <= TEXT_MAX).map(str::to_owned)
        };
        Self {
            session_present: ack.session_present,
            receive_maximum: properties.receive_maximum().unwrap_or(u16::MAX),
            maximum_qos: properties.maximum_qos().and_then(QoS::from_bits).unwrap_or(QoS::ExactlyOnce),
            retain_available: properties.retain_available().unwrap_or(true),
            packet_size_max: properties.maximum_packet_size().unwrap_or(u32::MAX),
            topic_alias_maximum: properties.topic_alias_maximum().unwrap_or(0),
            keep_alive: properties.server_keep_alive(),
            assigned_client_id: properties.assigned_client_identifier().map(str::to_owned),
            wildcard_subscriptions: properties.wildcard_subscription_available().unwrap_or(true),
            shared_subscriptions: properties.shared_subscription_available().unwrap_or(true),
            reason_string: properties.reason_string().map(printable),
            server_reference: properties.server_reference().map(printable),
            hop: named("meridian-id"),
            history: named("meridian-history"),
            export: named("meridian-export"),
        }
    }
}

/// Returns a text of a server for logs and operators: shortened, and without control characters.
pub(super) fn printable(text: &str) -> String {
    text.chars().take(TEXT_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Maximum length of a text from a server that is shown or passed on.
const TEXT_MAX: usize = 256;
