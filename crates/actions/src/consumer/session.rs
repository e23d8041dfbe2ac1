//! The session of an action: its CONNECT and its subscriptions.

use bridge::ConnectOptions;
use broker::internal::{
    ACTION, QUEUE_AGE_MAX_MS, QUEUE_BYTES_MAX, QUEUE_FULL, QUEUE_MESSAGES_MAX, STORE_QOS0,
};
use mqtt::{TopicName, Version};
use rules::Source;
use sinks::WhenFull;

use super::Consumer;
use crate::plan::{Output, Plan};

impl Consumer {
    pub(super) fn connect_options(&self) -> ConnectOptions {
        let settings = &self.plan.settings;
        let mut properties = vec![
            (QUEUE_MESSAGES_MAX.to_owned(), settings.queue_messages_max.to_string()),
            (QUEUE_BYTES_MAX.to_owned(), settings.queue_bytes_max.bytes().to_string()),
        ];
        if !settings.queue_age_max.is_zero() {
            properties.push((QUEUE_AGE_MAX_MS.to_owned(), settings.queue_age_max.as_millis().to_string()));
        }
        let full = match settings.queue_full {
            WhenFull::DropOldest => None,
            WhenFull::DropNewest => Some("drop-newest"),
            WhenFull::Refuse => Some("refuse"),
        };
        properties.extend(full.map(|full| (QUEUE_FULL.to_owned(), full.to_owned())));
        if settings.store_qos0 {
            properties.push((STORE_QOS0.to_owned(), "true".to_owned()));
        }
        ConnectOptions {
            clean_start: false,
            session_expiry: u32::MAX,
            receive_maximum: match self.plan.output {
                // It must read while it publishes, so messages that are deferred depend on this number.
                Output::Publish(_) => settings.in_flight.min(PUBLISHING_MAX),
                Output::Write(_) => settings.in_flight,
            },
            user_properties: properties,
            ..brief_connect(client_id(&settings.name))
        }
    }
}

/// Client Identifier of an action, and beginning of the topics of messages that other actions pass to it.
pub fn client_id(name: &str) -> String {
    format!("{ACTION}{name}")
}

/// Content of a CONNECT of the process for a session that ends with its connection.
pub fn brief_connect(client_id: String) -> ConnectOptions {
    ConnectOptions {
        version: Version::V5,
        private: false,
        client_id,
        username: None,
        password: None,
        clean_start: true,
        session_expiry: 0,
        keep_alive: 0,
        receive_maximum: 1,
        packet_size_max: u32::MAX,
        user_properties: Vec::new(),
        will: None,
    }
}

/// Filters that the session of an action subscribes.
pub fn filters(plan: &Plan) -> Vec<String> {
    let mut filters = vec![format!("{}/#", client_id(&plan.settings.name))];
    for source in plan.rule.sources() {
        for filter in plan.namespace.filters(source) {
            if !filters.contains(&filter) {
                filters.push(filter);
            }
        }
    }
    filters
}

/// Returns whether a source of a rule selects messages on this topic.
pub(super) fn selects(source: &Source, topic: &str) -> bool {
    match source {
        Source::Event(event) => event.name() == topic,
        Source::Filter(filter) => {
            let (filter, name) = (mqtt::TopicFilter::parse(filter), TopicName::parse(topic));
            filter.ok().zip(name.ok()).is_some_and(|(filter, name)| filter.matches(name))
        }
    }
}

/// Maximum number of messages that an action which publishes at this broker works on at a time.
const PUBLISHING_MAX: u16 = 256;
