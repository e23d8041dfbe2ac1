//! Sessions of other clusters that are linked with this one.
//!
//! The session `$link/NAME` of a cluster gets the messages of this cluster, and `$link/NAME/ORIGIN` those that came
//! here over a link from the cluster ORIGIN. So no message returns to its origin, and a message takes one way to each
//! cluster.

use mqtt::Properties;

use crate::origin;

/// Beginning of the Client Identifiers of such sessions.
pub const LINK: &str = "$link/";

/// User Property of a message that came over a link: the cluster where it was published.
pub const ORIGIN_CLUSTER: &str = "meridian-origin";

/// Beginning of the ShareNames by which linked clusters join the shared groups of this one. The rest is the ShareName
/// of the clients' group.
pub const LINK_SHARE: &str = "$link:";

/// User Property of a message that a linked cluster gets as a member of a shared group: the group,
/// `$share/{ShareName}/{filter}`.
pub const GROUP: &str = "meridian-group";

/// Returns the cluster whose messages a session of another cluster gets; empty for this cluster.
pub fn wanted_origin(client_id: &str) -> &str {
    let name = client_id.strip_prefix(LINK).unwrap_or_default();
    name.split_once('/').map_or("", |(_, origin)| origin)
}

/// Returns the cluster where a message was published, by its encoded properties; empty for this cluster.
pub fn origin_cluster(properties: &[u8]) -> &str {
    let (_, properties) = origin::split(properties);
    let properties = Properties::of_checked(properties);
    let mut all = properties.user_properties();
    all.find(|(name, _)| *name == ORIGIN_CLUSTER).map_or("", |(_, origin)| origin)
}

/// A Topic Filter of sessions of other clusters, in the texts of a shard's routes. It is no Topic Filter itself, and
/// names the origin of the messages. So a node knows which filters its own clients have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkFilter<'a> {
    /// Empty for this cluster.
    pub origin: &'a str,
    pub filter: &'a str,
}

impl<'a> LinkFilter<'a> {
    /// Reads a text of a route. `None` for a filter of clients.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (origin, filter) = text.strip_prefix('\0')?.split_once('\0')?;
        Some(Self { origin, filter })
    }

    pub fn to_text(self) -> Box<str> {
        format!("\0{}\0{}", self.origin, self.filter).into()
    }
}

#[cfg(test)]
mod tests {
    use mqtt::{PropertiesBuf, Property};

    use super::*;

    #[test]
    fn a_session_names_the_origin_that_it_wants() {
        for (client_id, origin) in [("$link/a", ""), ("$link/a/b", "b"), ("$link/a/", ""), ("a/b", "")] {
            assert_eq!(wanted_origin(client_id), origin, "{client_id}");
        }
    }

    #[test]
    fn the_first_origin_of_a_message_counts() {
        let properties = |all: &[Property<'static>]| PropertiesBuf::from_iter(all.iter().copied());
        let none = properties(&[Property::UserProperty("other", "x"), Property::ContentType("t")]);
        assert_eq!(origin_cluster(none.as_properties().as_bytes()), "");
        let some = properties(&[
            Property::UserProperty("other", "x"),
            Property::UserProperty(ORIGIN_CLUSTER, "b"),
            Property::UserProperty(ORIGIN_CLUSTER, "c"),
        ]);
        assert_eq!(origin_cluster(some.as_properties().as_bytes()), "b");
        assert_eq!(origin_cluster(&[]), "");
    }

    #[test]
    fn a_link_filter_is_read_as_it_was_written_and_is_no_topic_filter() {
        let filter = LinkFilter { origin: "b", filter: "a/#" };
        let text = filter.to_text();
        assert_eq!(LinkFilter::parse(&text), Some(filter));
        assert!(mqtt::TopicFilter::parse(&text).is_err());
        assert_eq!(LinkFilter::parse("a/#"), None);
        assert_eq!(LinkFilter::parse("\0a"), None);
    }
}
