//! Connections of the process itself, for bridges and actions. Their Client Identifiers are reserved, their sessions
//! last as long as they say, and their queues may have limits of their own.

use mqtt::Properties;
use shard::{QueueFull, QueueLimits};

/// Beginnings of Client Identifiers that only such connections may have.
const RESERVED: [&str; 4] = [ACTION, "$bridge/", LINKED, LINK_SERVICE];

/// User Property of CONNECT: maximum number of messages that wait for the session.
pub const QUEUE_MESSAGES_MAX: &str = "queue-messages-max";
/// User Property of CONNECT: maximum number of bytes of the messages that wait for the session.
pub const QUEUE_BYTES_MAX: &str = "queue-bytes-max";
/// User Property of CONNECT: maximum time in milliseconds that a message waits; the default is until it expires.
pub const QUEUE_AGE_MAX_MS: &str = "queue-age-max-ms";
/// User Property of CONNECT: `drop-oldest`, the default, `drop-newest` or `refuse`.
pub const QUEUE_FULL: &str = "queue-full";

/// User Property of CONNECT: with `true`, messages of QoS 0 for subscriptions of QoS 1 and 2 are stored for the session
/// and delivered as messages of QoS 1. The session must outlive the connection.
pub const STORE_QOS0: &str = "store-qos0";

/// Beginning of the Client Identifiers of linked clusters. They come by the network, and access control has to admit
/// them as such.
pub const LINK: &str = shard::LINK;

/// Beginning of the ShareNames by which linked clusters join shared groups. Other clients may not use it.
pub const LINK_SHARE: &str = shard::LINK_SHARE;

/// End of the topic on which a linked cluster asks for the subscriptions of its session, after its Client Identifier.
pub const LINK_LIST: &str = "/list";
/// End of the topic of the answers.
pub const LINK_FILTERS: &str = "/filters";

/// User Property of a CONNACK to a linked cluster: name of the state that its session continues.
pub const LINK_HISTORY: &str = "meridian-history";

/// User Property of a CONNACK to a linked cluster: name of what its link exports. With another one, subscriptions of
/// its session may have been removed.
pub const LINK_EXPORT: &str = "meridian-export";

/// Beginning of the Client Identifiers that publish what comes over a link.
pub const LINKED: &str = "$linked/";

/// Beginning of the Client Identifiers of the connections that serve linked clusters, one for each node.
pub const LINK_SERVICE: &str = "$linkd/";

/// Beginning of the Client Identifiers of actions.
pub const ACTION: &str = "$action/";

/// Returns the topic on which an action of a tenant gets an event about clients with this mountpoint. `event` is the
/// topic of the event. A subscription with an empty mountpoint asks for the event for some tenant; nothing is published
/// there.
pub fn tenant_events(event: &str, mountpoint: &str) -> String {
    format!("{ACTION}{event}/{mountpoint}")
}

/// Returns whether only connections of the process may have this Client Identifier.
pub fn is_reserved(client_id: &str) -> bool {
    RESERVED.iter().any(|prefix| client_id.starts_with(prefix))
}

/// Returns the limits that a CONNECT of the process has for the queue of its session. It has none without a number of
/// messages and of bytes.
pub(crate) fn queue_limits(properties: &Properties<'_>) -> Option<QueueLimits> {
    let text = |name| text(properties, name);
    Some(QueueLimits {
        messages_max: text(QUEUE_MESSAGES_MAX)?.parse().ok()?,
        bytes_max: text(QUEUE_BYTES_MAX)?.parse().ok()?,
        age_max_ms: text(QUEUE_AGE_MAX_MS).and_then(|ms| ms.parse().ok()).unwrap_or(u64::MAX),
        full: match text(QUEUE_FULL) {
            Some("drop-newest") => QueueFull::DropNewest,
            Some("refuse") => QueueFull::Refuse,
            _ => QueueFull::DropOldest,
        },
    })
}

/// Returns whether a CONNECT of the process asks for messages of QoS 0 to be stored.
pub(crate) fn stores_qos0(properties: &Properties<'_>) -> bool {
    text(properties, STORE_QOS0) == Some("true")
}

fn text<'a>(properties: &Properties<'a>, name: &str) -> Option<&'a str> {
    properties.user_properties().find(|(other, _)| *other == name).map(|(_, value)| value)
}
