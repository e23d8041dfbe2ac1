use rumqttc::QoS;

/// Event of one client, in a form that is common to both protocol versions of the library.
#[derive(Debug)]
pub(crate) enum Event {
    Connected {
        session_present: bool,
    },
    Subscribed {
        granted: Vec<QoS>,
    },
    /// A PUBLISH is complete: PUBACK or PUBCOMP arrived, or a QoS 0 PUBLISH was written.
    Published,
    Message(Message),
}

/// Application Message that a client has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub topic: String,
    pub payload: String,
    pub qos: QoS,
    pub retain: bool,
    /// Empty for MQTT 3.1.1.
    pub properties: Properties,
}

/// PUBLISH properties that the scenarios check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    pub content_type: Option<String>,
    pub response_topic: Option<String>,
    pub correlation_data: Option<Vec<u8>>,
    /// Message Expiry Interval in seconds.
    pub message_expiry: Option<u32>,
    pub payload_format: Option<u8>,
    pub user: Vec<(String, String)>,
    pub subscription_identifiers: Vec<usize>,
}

/// Reason for the end of a Network Connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The broker sent DISCONNECT with this Reason Code (MQTT 5.0 only).
    ByReason(u8),
    /// The stream ended, or the library gave up. Holds the library's error message.
    Otherwise(String),
}
