//! Connections of linked clusters. Access control admits them with [`LinkTerms`].
//!
//! Such a client takes messages with a durable session, and publishes nothing but requests for the list of its own
//! subscriptions. See [`shard::wanted_origin`] for the messages that it gets.

use mqtt::{ReasonCode, TopicFilter};
use shard::{QueueFull, QueueLimits, origin_cluster, wanted_origin};

use super::Worker;
use crate::access::{LinkQueue, LinkTerms};
use crate::connection::{Connection, Role};
use crate::internal;
use crate::message::MessageView;
use crate::route::RouteKind;

/// Minimum Session Expiry Interval of a link, in seconds: a day. Its session has to outlive connections.
const EXPIRY_MIN_S: u32 = 24 * 60 * 60;

impl Connection {
    /// Terms of a linked cluster.
    fn link_terms(&self) -> Option<&LinkTerms> {
        let principal = self.extra.as_ref()?.principal.as_ref()?;
        principal.link.as_ref().filter(|_| self.marks.role == Role::Link)
    }

    /// Kind of the routes of the connection's subscriptions that are not shared.
    pub(super) fn route_kind(&self) -> RouteKind {
        match (self.session, self.marks.role) {
            (None, _) => RouteKind::Connection,
            (Some(_), Role::Link) => RouteKind::ConnectionLink,
            (Some(_), _) => RouteKind::ConnectionQos0,
        }
    }

    /// Returns whether the client may have a subscription, as far as it is a linked cluster: a filter that its link
    /// exports, or the answers to its requests.
    pub(super) fn may_take_by_link(&self, filter: TopicFilter<'_>, is_shared: bool) -> bool {
        let Some(terms) = self.link_terms() else { return self.marks.role != Role::Link };
        let text = filter.as_str();
        let is_answer = text.strip_suffix(internal::LINK_FILTERS) == Some(&*self.client_id);
        let is_exported = || {
            let mut exports = terms.export.iter().filter_map(|export| TopicFilter::parse(export).ok());
            !text.starts_with('$') && exports.any(|export| export.covers(filter))
        };
        !is_shared && (is_answer || is_exported())
    }

    /// Returns whether the client may publish to a topic, as far as it is a linked cluster.
    pub(super) fn may_publish_by_link(&self, topic: &str) -> bool {
        self.marks.role != Role::Link || topic.strip_suffix(internal::LINK_LIST) == Some(&*self.client_id)
    }

    /// Returns whether a linked cluster gets messages of this origin. Others get all messages.
    pub(super) fn takes_origin(&self, view: &MessageView<'_>) -> bool {
        self.marks.role != Role::Link || origin_cluster(view.properties) == wanted_origin(&self.client_id)
    }
}

impl Worker {
    /// Makes a connection that access control has admitted one of a linked cluster.
    pub(super) fn admit_link(&mut self, slot: u32) -> Result<(), ReasonCode> {
        let Some(connection) = self.connections.occupant(slot) else { return Ok(()) };
        let Some(extra) = connection.extra.as_deref() else { return Ok(()) };
        let Some(terms) = extra.principal.as_ref().and_then(|principal| principal.link.as_ref()) else {
            return Ok(());
        };
        let has_will = extra.will.is_some();
        if !connection.client_id.starts_with(internal::LINK) || has_will || connection.marks.mounted {
            return Err(ReasonCode::NotAuthorized);
        }
        if !self.node.serves_links() {
            tracing::warn!(
                client = &*connection.client_id,
                "cluster link refused: some nodes of this cluster have an earlier version; upgrade them"
            );
            return Err(ReasonCode::ServerUnavailable);
        }
        let limits = queue_limits(&terms.queue);
        connection.marks.role = Role::Link;
        connection.session_expiry = connection.session_expiry.max(EXPIRY_MIN_S);
        if let Some(connecting) = &mut connection.connecting {
            connecting.queue_limits = Some(limits);
        }
        Ok(())
    }
}

fn queue_limits(queue: &LinkQueue) -> QueueLimits {
    QueueLimits {
        messages_max: queue.messages_max,
        bytes_max: queue.bytes_max,
        age_max_ms: queue.age_max_ms,
        full: if queue.drop_newest { QueueFull::DropNewest } else { QueueFull::DropOldest },
    }
}
