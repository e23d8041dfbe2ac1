//! Connections of linked clusters. Access control admits them with [`LinkTerms`].
//!
//! Such a client takes messages with a durable session, and publishes nothing but requests for the list of its own
//! subscriptions. See [`shard::wanted_origin`] for the messages that it gets.

use mqtt::{Properties, PropertiesBuf, Property, ReasonCode, Subscription, TopicFilter, TopicName};
use shard::{QueueFull, QueueLimits, fnv64, origin_cluster, wanted_origin};

use super::Worker;
use crate::access::{LinkQueue, LinkTerms};
use crate::connection::{Connection, Role};
use crate::groups;
use crate::internal;
use crate::message::MessageView;
use crate::node::Node;
use crate::origin;
use crate::route::RouteKind;

/// Minimum Session Expiry Interval of a link, in seconds: a day. Its session has to outlive connections.
const EXPIRY_MIN_S: u32 = 24 * 60 * 60;

impl Connection {
    /// Terms of a linked cluster.
    pub(super) fn link_terms(&self) -> Option<&LinkTerms> {
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

    /// Returns whether the client may make a subscription, as far as it is a linked cluster. It joins groups only while
    /// all nodes know them.
    pub(super) fn may_take_by_link(&self, node: &Node, subscription: &Subscription<'_>) -> bool {
        let joins = self.marks.role == Role::Link && subscription.share.is_some();
        self.may_keep_by_link(node, subscription) && (!joins || node.serves_linked_groups())
    }

    /// Returns whether the client may have a subscription, as far as it is a linked cluster: a filter that its link
    /// exports, or the answers to its requests. It joins only groups that have one member over all linked clusters.
    pub(super) fn may_keep_by_link(&self, node: &Node, subscription: &Subscription<'_>) -> bool {
        let Subscription { share, filter } = *subscription;
        let joined = share.and_then(groups::asked_share);
        let Some(terms) = self.link_terms() else {
            return self.marks.role != Role::Link && joined.is_none();
        };
        let text = filter.as_str();
        let is_exported = || !text.starts_with('$') && exports(terms).any(|export| export.covers(filter));
        match share {
            None => self.is_own_list(text) || is_exported(),
            // Messages of a third cluster are for members of that cluster, and of those that are linked with it.
            Some(_) => {
                terms.origin.is_none()
                    && joined.is_some_and(|share| {
                        node.routes.is_linked(share)
                            && share.len() + text.len() <= groups::GROUP_TEXT_MAX
                            && is_exported()
                    })
            }
        }
    }

    /// Returns whether the client may publish to a topic, as far as it is a linked cluster.
    pub(super) fn may_publish_by_link(&self, topic: &str) -> bool {
        self.marks.role != Role::Link || topic.strip_suffix(internal::LINK_LIST) == Some(&*self.client_id)
    }

    /// Returns whether a linked cluster gets a message: one of its origin with a topic that its link exports. It may
    /// have waited since the link exported more. Other clients get all messages.
    pub(super) fn takes_by_link(&self, view: &MessageView<'_>) -> bool {
        if self.marks.role != Role::Link || self.is_own_list(view.topic) {
            return true;
        }
        let is_exported = |terms| {
            TopicName::parse(view.topic).is_ok_and(|topic| exports(terms).any(|export| export.matches(topic)))
        };
        origin_cluster(view.properties) == wanted_origin(&self.client_id)
            && self.link_terms().is_some_and(is_exported)
    }

    /// Returns whether a topic is that of the answers to the requests of this linked cluster.
    fn is_own_list(&self, topic: &str) -> bool {
        topic.strip_suffix(internal::LINK_FILTERS) == Some(&*self.client_id)
    }
}

/// Filters that a link exports.
fn exports(terms: &LinkTerms) -> impl Iterator<Item = TopicFilter<'_>> {
    terms.export.iter().filter_map(|export| TopicFilter::parse(export).ok())
}

/// Returns a text that differs when the subscriptions that a linked cluster may have differ.
pub(super) fn export_name(linked_prefix: &str, terms: &LinkTerms) -> String {
    let mut all = linked_prefix.to_owned();
    for export in &terms.export {
        // No filter has this character.
        all.push('\0');
        all.push_str(export);
    }
    format!("{:016x}", fnv64(all.as_bytes()))
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

/// User Property of a retained message to a linked cluster: the time of its publish, in ms since 1970.
const PUBLISHED: &str = "meridian-time";

/// Appends the properties of a retained message for a linked cluster, with the time of its publish.
pub(super) fn put_time(properties: &[u8], published_ms: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(origin::split(properties).1);
    let text = published_ms.to_string();
    let time = PropertiesBuf::from_iter([Property::UserProperty(PUBLISHED, &text)]);
    out.extend_from_slice(time.as_properties().as_bytes());
}

/// Returns the time of the publish in ms since 1970, and appends the other properties to `out`. `None` without a time.
pub(super) fn take_time(properties: &[u8], out: &mut Vec<u8>) -> Option<u64> {
    let all = Properties::of_checked(properties);
    let mut published = None;
    let mut others = PropertiesBuf::default();
    for property in all.iter() {
        match property {
            Property::UserProperty(PUBLISHED, text) => published = text.parse().ok().or(published),
            property => {
                // The packet had it.
                others.push(property);
            }
        }
    }
    out.extend_from_slice(others.as_properties().as_bytes());
    published
}

fn queue_limits(queue: &LinkQueue) -> QueueLimits {
    QueueLimits {
        messages_max: queue.messages_max,
        bytes_max: queue.bytes_max,
        age_max_ms: queue.age_max_ms,
        full: if queue.drop_newest { QueueFull::DropNewest } else { QueueFull::DropOldest },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_export_has_another_name() {
        let name = |linked_prefix: &str, export: &[&str]| {
            let export = export.iter().map(|filter| Box::from(*filter)).collect();
            let queue = LinkQueue { messages_max: 1, bytes_max: 1, age_max_ms: 1, drop_newest: false };
            let terms = LinkTerms { name: "c".into(), origin: None, export, queue, history: None };
            export_name(linked_prefix, &terms)
        };
        let first = name("linked:", &["a", "b/#"]);
        assert_eq!(name("linked:", &["a", "b/#"]), first);
        for (linked_prefix, export) in
            [("linked:", &["a"][..]), ("linked:", &["a", "b/+"]), ("linked:", &["ab/#"]), ("", &["a", "b/#"])]
        {
            assert_ne!(name(linked_prefix, export), first, "{linked_prefix} {export:?}");
        }
    }

    #[test]
    fn the_time_of_a_publish_is_taken_out_of_the_properties() {
        let of_client = PropertiesBuf::from_iter([
            Property::UserProperty("name", "value"),
            Property::ContentType("text"),
        ]);
        let of_client = of_client.as_properties().as_bytes();
        let (mut sent, mut taken) = (Vec::new(), Vec::new());
        put_time(of_client, 1_700_000_000_123, &mut sent);
        assert_eq!(take_time(&sent, &mut taken), Some(1_700_000_000_123));
        assert_eq!(taken, of_client);
        taken.clear();
        assert_eq!(take_time(of_client, &mut taken), None);
        assert_eq!(taken, of_client);
        let bad = PropertiesBuf::from_iter([Property::UserProperty(PUBLISHED, "-1")]);
        assert_eq!(take_time(bad.as_properties().as_bytes(), &mut Vec::new()), None);
    }
}
