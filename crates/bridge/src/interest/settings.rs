//! Settings of a relay whose subscriptions at the remote broker change.

use std::fmt;

use mqtt::{QoS, TopicName};

use crate::settings::{Settings, SettingsError, Start};
use crate::topic_map::TopicMap;

/// Settings of a relay whose subscriptions at the remote broker change while it runs. It carries messages from the
/// remote broker to this one only. `Settings::topics` are the limit of what it accepts, and the names at this broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterestSettings {
    /// Maximum QoS of the subscriptions.
    pub qos: QoS,
    /// Topic at the remote broker on which the relay asks for the subscriptions of its session.
    pub list_topic: String,
    /// Topic at the remote broker of the answers.
    pub filters_topic: String,
    /// Name of the remote cluster. Messages without an origin come from it.
    pub origin: String,
    /// Name of this cluster.
    pub own: String,
    /// The only cluster whose messages this session takes; `None` for the remote cluster itself.
    pub transit: Option<String>,
    /// Name of the state of the remote cluster that was seen last, see [`Relay::history`](crate::Relay::history).
    pub history: Option<String>,
    /// Maximum number of SUBSCRIBE and UNSUBSCRIBE packets without an answer; at least 1.
    pub requests_max: usize,
    /// Maximum number of filters that the owner wants at a time. A list of the remote broker may have four times as
    /// many.
    pub filters_max: usize,
}

/// Reason why a relay cannot have subscriptions that change. Topic entries are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterestError {
    /// Older versions have no subscription options.
    Version,
    /// A lazy bridge connects for messages of this broker, which such a relay does not carry.
    Start,
    /// The entry carries messages to the remote broker.
    Direction { entry: usize },
    /// The filter begins with `$`.
    Reserved { entry: usize, filter: String },
    /// The name of a cluster is empty, or both clusters have the same.
    Name { name: String },
    /// The topic of the list has a wildcard or is empty.
    ListTopic { topic: String },
    /// No request may be sent.
    RequestsZero,
}

impl InterestSettings {
    /// Creates settings with default values for the cluster `own`, which takes messages of `origin`, or those of
    /// `transit` that `origin` passes on.
    pub fn new(own: &str, origin: &str, transit: Option<&str>) -> Self {
        let session = match transit {
            Some(transit) => format!("$link/{own}/{transit}"),
            None => format!("$link/{own}"),
        };
        Self {
            qos: QoS::ExactlyOnce,
            list_topic: format!("{session}/list"),
            filters_topic: format!("{session}/filters"),
            origin: origin.to_owned(),
            own: own.to_owned(),
            transit: transit.map(str::to_owned),
            history: None,
            requests_max: 8,
            filters_max: 100_000,
        }
    }

    /// Checks the settings together with the others of the relay.
    pub(crate) fn check(&self, settings: &Settings, map: &TopicMap) -> Result<(), SettingsError> {
        let refuse = |error| Err(SettingsError::Interest(error));
        if !settings.version.has_properties() {
            return refuse(InterestError::Version);
        }
        if let Start::Lazy { .. } = settings.start {
            return refuse(InterestError::Start);
        }
        if let Some(entry) = map.outgoing() {
            return refuse(InterestError::Direction { entry });
        }
        if let Some((entry, filter)) = map.reserved() {
            return refuse(InterestError::Reserved { entry, filter: filter.to_owned() });
        }
        let names = [Some(&self.own), Some(&self.origin), self.transit.as_ref()];
        for name in names.into_iter().flatten() {
            if name.is_empty() {
                return refuse(InterestError::Name { name: name.clone() });
            }
        }
        if self.own == self.origin || self.transit.as_ref() == Some(&self.own) {
            return refuse(InterestError::Name { name: self.own.clone() });
        }
        for topic in [&self.list_topic, &self.filters_topic] {
            if TopicName::parse(topic).is_err() {
                return refuse(InterestError::ListTopic { topic: topic.clone() });
            }
        }
        if self.requests_max == 0 {
            return refuse(InterestError::RequestsZero);
        }
        Ok(())
    }
}

impl fmt::Display for InterestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version => f.write_str("subscriptions that change need MQTT 5.0; use version 5.0"),
            Self::Start => f.write_str("a lazy start has no message to wait for; start automatically"),
            Self::Direction { entry } => {
                write!(f, "topic entry {entry} carries messages to the remote broker; use the direction in")
            }
            Self::Reserved { entry, filter } => {
                write!(
                    f,
                    "topic entry {entry}: {filter:?} begins with `$`; such topics stay in their cluster"
                )
            }
            Self::Name { name } => {
                write!(f, "the cluster name {name:?} is empty, or both clusters have it; give each its own")
            }
            Self::ListTopic { topic } => {
                write!(f, "{topic:?} is not a Topic Name; use a topic without wildcards for the list")
            }
            Self::RequestsZero => f.write_str("no SUBSCRIBE may be unanswered; allow at least 1"),
        }
    }
}

impl std::error::Error for InterestError {}
