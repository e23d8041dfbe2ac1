//! Shared groups that have one member over all linked clusters.
//!
//! A linked cluster joins such a group with its session, by a ShareName that begins with [`LINK_SHARE`]. It gets a
//! message when no client of this cluster is a connected member. The message names the group in the User Property
//! [`GROUP`](shard::GROUP), and its Subscription Identifier says that the broker has put it there.

use mqtt::{Properties, PropertiesBuf, Property, TopicName};
use settings::{Invalid, Raw, Value};
use shard::{GROUP, LINK_SHARE, origin_cluster};

use crate::message::{Message, MessageView};
use crate::origin;
use crate::store::GroupName;

/// Subscription Identifier of the shared subscriptions of linked clusters. A client cannot give it to a message.
pub(crate) const GROUP_SUBSCRIPTION: u32 = 1;

/// Longest prefix.
const PREFIX_MAX: usize = 128;

/// Beginning of the ShareNames of groups that have one member over all linked clusters. Empty: there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkedPrefix(Box<str>);

impl LinkedPrefix {
    /// Returns whether a group with this ShareName has one member over all linked clusters.
    pub fn includes(&self, share: &str) -> bool {
        !self.0.is_empty() && share.starts_with(&*self.0)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    #[cfg(test)]
    pub(crate) fn of(text: &str) -> Self {
        Self(text.into())
    }

    fn parse(text: &str) -> Result<Self, String> {
        if text.contains(['/', '+', '#', '\0']) {
            return Err("a ShareName has no `/`, `+` and `#`; write a text such as linked:".to_owned());
        }
        if text.starts_with('$') {
            return Err("names that begin with `$` are reserved; write a text such as linked:".to_owned());
        }
        if text.len() > PREFIX_MAX {
            return Err(format!(
                "it has {} bytes, and the maximum is {PREFIX_MAX}; use a shorter one",
                text.len()
            ));
        }
        Ok(Self(text.into()))
    }
}

impl Value for LinkedPrefix {
    const TYPE: &'static str = "string";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        let text = String::from_raw(raw)?;
        Self::parse(&text).map_err(|why| Invalid::Form {
            expected: "the beginning of a ShareName",
            found: raw.to_string(),
            why,
        })
    }

    fn to_toml(&self) -> Option<String> {
        self.0.clone().into_string().to_toml()
    }
}

/// Returns a copy of a message for a linked cluster that is a member of this group.
pub(crate) fn for_link(view: &MessageView<'_>, group: &GroupName) -> Message {
    let text = group.text();
    // A longer text does not fit into a property. Such a link is not admitted to the group.
    let named = PropertiesBuf::from_iter([Property::UserProperty(GROUP, &text)]);
    let mut properties = view.properties.to_vec();
    properties.extend_from_slice(named.as_properties().as_bytes());
    MessageView { properties: &properties, ..*view }.to_message()
}

/// Returns the group that a message of a link is for. The link has checked that it may name one.
pub(crate) fn target(properties: &[u8]) -> Option<GroupName> {
    let properties = Properties::of_checked(origin::split(properties).1);
    let named = properties.user_properties().filter(|(name, _)| *name == GROUP).last();
    GroupName::parse(named?.1).map(|name| name.of_clients().into_owned())
}

/// Returns whether another cluster has chosen this one for a message of a group.
pub(crate) fn is_from_link_for_group(properties: &[u8]) -> bool {
    !origin_cluster(properties).is_empty() && target(properties).is_some()
}

/// Returns whether a message was published in this cluster, as far as links are concerned.
pub(crate) fn is_of_this_cluster(view: &MessageView<'_>) -> bool {
    origin_cluster(view.properties).is_empty()
}

/// Topic of a message that the log of a shard gets in place of one for a group, with its identity. No session has a
/// subscription for it.
const PLACEHOLDER: &str = "$link/group";

/// Returns an empty message in place of one.
pub(crate) fn placeholder(message: &Message) -> Message {
    debug_assert!(TopicName::parse(PLACEHOLDER).is_ok());
    MessageView { topic: PLACEHOLDER, properties: &[], payload: &[], retain: false, ..message.view() }
        .to_message()
}

/// Longest text of a group that a linked cluster may join, without [`LINK_SHARE`].
pub(crate) const GROUP_TEXT_MAX: usize = 1024;

/// Returns the ShareName of the clients' group that a linked cluster asks to join.
pub(crate) fn asked_share(share: &str) -> Option<&str> {
    share.strip_prefix(LINK_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(share: &str) -> GroupName {
        GroupName { share: share.into(), filter: "a/+".into() }
    }

    #[test]
    fn a_group_is_linked_by_the_beginning_of_its_name() {
        let prefix = LinkedPrefix::parse("linked:").expect("valid");
        assert!(prefix.includes("linked:jobs") && prefix.includes("linked:"));
        assert!(!prefix.includes("jobs") && !prefix.includes("Linked:jobs") && !prefix.includes("linked"));
        assert!(!LinkedPrefix::default().includes("linked:jobs"), "an empty prefix includes nothing");
        for (text, why) in [("a/b", "no `/`"), ("a+", "no `/`"), ("$link:", "reserved")] {
            assert!(LinkedPrefix::parse(text).expect_err(text).contains(why));
        }
        assert!(LinkedPrefix::parse(&"x".repeat(129)).expect_err("long").contains("129 bytes"));
    }

    #[test]
    fn a_message_for_a_linked_cluster_names_the_group_last() {
        let of_client = PropertiesBuf::from_iter([Property::UserProperty(GROUP, "$share/forged/#")]);
        let of_client = of_client.as_properties().as_bytes();
        let view = MessageView { properties: of_client, payload: b"p", ..MessageView::plain("a/b") };
        let sent = for_link(&view, &name("linked:g"));
        assert_eq!(target(sent.view().properties), Some(name("linked:g")));
        assert_eq!((sent.view().payload, sent.view().topic), (&b"p"[..], "a/b"));
        assert!(!is_from_link_for_group(sent.view().properties), "it is of this cluster");
        assert_eq!(target(&[]), None);
    }

    #[test]
    fn names_of_clients_and_of_linked_clusters_belong_together() {
        use crate::store::MemberKind;
        let group = name("linked:g");
        let of_links = group.clone().of(MemberKind::Link);
        assert_eq!(of_links.text(), "$share/$link:linked:g/a/+");
        assert_eq!((of_links.kind(), group.kind()), (MemberKind::Link, MemberKind::Client));
        assert_eq!(*of_links.of_clients(), group);
        assert_eq!(of_links.shard(), group.shard());
    }
}
