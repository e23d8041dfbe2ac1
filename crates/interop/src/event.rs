use rumqttc::QoS;

/// What one client saw, in the words of both of the library's halves.
#[derive(Debug)]
pub(crate) enum Event {
    Connected {
        session_present: bool,
    },
    Subscribed {
        granted: Vec<QoS>,
    },
    /// A PUBLISH is done: PUBACK, PUBCOMP, or written at QoS 0.
    Published,
    Message(Message),
}

/// An Application Message as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub topic: String,
    pub payload: String,
    pub qos: QoS,
    pub retain: bool,
    /// Empty for MQTT 3.1.1.
    pub properties: Properties,
}

/// The PUBLISH properties that the scenarios look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    pub content_type: Option<String>,
    pub response_topic: Option<String>,
    pub correlation_data: Option<Vec<u8>>,
    /// Seconds.
    pub message_expiry: Option<u32>,
    pub payload_format: Option<u8>,
    pub user: Vec<(String, String)>,
    pub subscription_identifiers: Vec<usize>,
}

/// Why a Network Connection is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The broker's DISCONNECT, which only MQTT 5.0 has.
    ByReason(u8),
    /// The stream ended, or the library gave up: its own words.
    Otherwise(String),
}
