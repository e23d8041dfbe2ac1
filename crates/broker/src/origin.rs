//! Origin of a message: who published it, where and when.
//!
//! Actions need it, other subscribers must not get it. The node of the publisher puts it in front of the properties of
//! a message whose topic an action has selected. It stays there on the way to other nodes and in the log. A delivery to
//! a client removes it, and a delivery to a connection of the process turns it into a User Property.
//!
//! A node of an earlier version does not know origins. While a node of the cluster may be such a node, messages get no
//! origin, and those that have one lose it on the way to other nodes ([`Origins`]).

use std::collections::BTreeMap;

use mqtt::{PropertiesBuf, Property};
pub(crate) use shard::split_origin as split;

use crate::access::{Identity, Principal};
use crate::ids::Time;
use crate::message::MessageView;

/// First User Property of each message to a connection of the process. Its value is empty when the origin is not known.
/// A client can send a property of this name, too; it comes after the first one.
pub const ORIGIN: &str = "$origin";

/// Publisher of a message, with place and time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Number of the message, which no other message has.
    pub id: u128,
    /// Time of arrival at the first node, in ms since 1970.
    pub received_ms: u64,
    /// Client Identifier without the mountpoint; empty for messages of the broker itself.
    pub client_id: Box<str>,
    /// QoS with which it was published.
    pub qos: u8,
    /// Empty without one.
    pub username: Box<str>,
    /// Empty without one.
    pub mountpoint: Box<str>,
    /// IP address, empty when it is not known.
    pub peerhost: Box<str>,
    /// Node that the client was connected to.
    pub node: Box<str>,
    /// Attributes of the client, by their names.
    pub attributes: BTreeMap<Box<str>, Box<str>>,
}

impl Origin {
    /// Reads the value of the User Property [`ORIGIN`].
    pub fn parse(value: &str) -> Option<Self> {
        let mut rest = value;
        let mut next = || take_text(&mut rest);
        Some(Self {
            id: u128::from_str_radix(next()?, 16).ok()?,
            received_ms: next()?.parse().ok()?,
            qos: next()?.parse().ok()?,
            client_id: next()?.into(),
            username: next()?.into(),
            mountpoint: next()?.into(),
            peerhost: next()?.into(),
            node: next()?.into(),
            // An earlier version does not write them.
            attributes: if rest.is_empty() { BTreeMap::new() } else { attributes(take_text(&mut rest)?)? },
        })
    }

    /// Writes the value of the User Property: a text for each field, with its length in front.
    pub fn to_value(&self) -> String {
        use std::fmt::Write as _;
        let (id, received) = (format!("{:x}", self.id), self.received_ms.to_string());
        let qos = self.qos.to_string();
        let fields = [
            &*id,
            &received,
            &qos,
            &self.client_id,
            &self.username,
            &self.mountpoint,
            &self.peerhost,
            &self.node,
        ];
        let mut value = String::with_capacity(64 + fields.iter().map(|field| field.len()).sum::<usize>());
        for field in fields {
            // Writing to a string succeeds.
            let _ = write!(value, "{}:{field}", field.len());
        }
        if !self.attributes.is_empty() {
            let mut all = String::new();
            for text in self.attributes.iter().flat_map(|(name, value)| [name, value]) {
                let _ = write!(all, "{}:{text}", text.len());
            }
            let _ = write!(value, "{}:{all}", all.len());
        }
        value
    }

    /// Appends the origin to `out`, as it stands in front of properties.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        shard::put_origin(self.to_value().as_bytes(), out);
    }
}

/// Takes a text with its length in front.
fn take_text<'a>(rest: &mut &'a str) -> Option<&'a str> {
    let (length, after) = rest.split_once(':')?;
    let (text, after) = after.split_at_checked(length.parse().ok()?)?;
    *rest = after;
    Some(text)
}

/// Reads names and values in turn.
fn attributes(mut rest: &str) -> Option<BTreeMap<Box<str>, Box<str>>> {
    let mut found = BTreeMap::new();
    while !rest.is_empty() {
        let name = take_text(&mut rest)?;
        found.insert(name.into(), take_text(&mut rest)?.into());
    }
    Some(found)
}

/// Says whether messages for other nodes keep their origin. A node of an earlier version would send it to clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Origins {
    #[default]
    Kept,
    Removed,
}

impl Origins {
    /// Properties of a message for another node.
    pub fn of(self, properties: &[u8]) -> &[u8] {
        match self {
            Self::Kept => properties,
            Self::Removed => split(properties).1,
        }
    }
}

/// Appends the properties for a connection of the process: the origin comes first.
pub(crate) fn put_for_process(properties: &[u8], out: &mut Vec<u8>) {
    let (value, rest) = split(properties);
    let value = value.and_then(|value| std::str::from_utf8(value).ok());
    // A longer one does not fit into a property.
    let value = value.filter(|value| value.len() <= usize::from(u16::MAX)).unwrap_or_default();
    let origin = PropertiesBuf::from_iter([Property::UserProperty(ORIGIN, value)]);
    out.extend_from_slice(origin.as_properties().as_bytes());
    out.extend_from_slice(rest);
}

/// Facts about this run of the node that origins contain.
#[derive(Clone, Debug, Default)]
pub(crate) struct OriginFacts {
    /// Name of the node.
    pub node: String,
    /// Number that no other run of any node has.
    pub run: u64,
}

/// Maximum length of a text of a client. Each receiver's queue has the origin, so it must be short.
const TEXT_MAX: usize = 1024;

/// Maximum number of attributes of a client that its messages have, and maximum lengths of their names and values.
/// Others are left out: a part of a value could mean something else.
const ATTRIBUTES_MAX: usize = 16;
const ATTRIBUTE_NAME_MAX: usize = 64;
const ATTRIBUTE_VALUE_MAX: usize = 256;

/// Attributes of a client that its messages have. Of several values of a name, the last one counts, as in events.
fn attributes_of(principal: &Principal) -> BTreeMap<Box<str>, Box<str>> {
    let fits = |(name, value): &&(Box<str>, Box<str>)| {
        name.len() <= ATTRIBUTE_NAME_MAX && value.len() <= ATTRIBUTE_VALUE_MAX
    };
    let all: BTreeMap<_, _> = principal.attributes.iter().filter(fits).cloned().collect();
    all.into_iter().take(ATTRIBUTES_MAX).collect()
}

/// The beginning of a text, at most [`TEXT_MAX`] bytes.
fn shortened(text: &str) -> &str {
    let end = (0..=text.len().min(TEXT_MAX)).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

impl OriginFacts {
    /// Makes the origin of the message with this number on the node.
    pub(crate) fn origin(
        &self,
        (publisher, mountpoint): (Option<Identity<'_>>, &str),
        view: &MessageView<'_>,
        number: u64,
        wall_ms: u64,
    ) -> Origin {
        let Time(received) = view.received;
        let text = |text: Option<&str>| shortened(text.unwrap_or_default()).into();
        let principal = publisher.as_ref().and_then(|publisher| publisher.principal);
        Origin {
            attributes: principal.map(attributes_of).unwrap_or_default(),
            id: u128::from(self.run) << 64 | u128::from(number),
            received_ms: wall_ms.saturating_add(received),
            qos: view.qos as u8,
            client_id: text(publisher.as_ref().map(|publisher| publisher.client_id)),
            username: text(publisher.as_ref().and_then(|publisher| publisher.username)),
            mountpoint: text(Some(mountpoint)),
            peerhost: publisher
                .and_then(|publisher| publisher.peer)
                .map(|peer| peer.to_canonical().to_string().into())
                .unwrap_or_default(),
            node: self.node.as_str().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use mqtt::Properties;
    use shard::ORIGIN_MARK as MARK;

    use super::*;

    fn origin() -> Origin {
        Origin {
            id: 7 << 64 | 9,
            received_ms: 1_700_000_000_000,
            qos: 2,
            client_id: "a:1\u{7}é".into(),
            username: "".into(),
            mountpoint: "m/".into(),
            peerhost: "::1".into(),
            node: "n1".into(),
            attributes: BTreeMap::new(),
        }
    }

    fn with_attributes() -> Origin {
        let attributes = [("site".into(), "north 1:é".into()), ("empty".into(), "".into())];
        Origin { attributes: BTreeMap::from(attributes), ..origin() }
    }

    #[test]
    fn an_origin_is_read_as_it_was_written() {
        for origin in [origin(), with_attributes(), Origin::default()] {
            assert_eq!(Origin::parse(&origin.to_value()), Some(origin));
        }
        // What an earlier version has written has no attributes.
        let value = with_attributes().to_value();
        assert_eq!(Origin::parse(&value[..origin().to_value().len()]), Some(origin()));
    }

    #[test]
    fn a_message_has_a_bounded_part_of_the_attributes_and_each_of_them_whole() {
        let mut principal = Principal::default();
        let mut add = |name: &str, value: &str| principal.attributes.push((name.into(), value.into()));
        add(&"n".repeat(65), "a");
        add("long", &"v".repeat(257));
        add("team", "first");
        add("team", "last");
        add(&"m".repeat(64), &"w".repeat(256));
        let found = attributes_of(&principal);
        assert_eq!(found.len(), 2);
        assert_eq!(found.get("team").map(|value| &**value), Some("last"));
        for number in 0..1000 {
            principal.attributes.push((format!("{number:03}").into(), "x".repeat(256).into()));
        }
        let attributes = attributes_of(&principal);
        assert_eq!(attributes.len(), 16);
        let value = Origin { attributes, ..origin() }.to_value();
        assert!(value.len() < usize::from(u16::MAX) / 4, "it must fit into a User Property");
    }

    #[test]
    fn other_texts_are_no_origin() {
        let (plain, value) = (origin().to_value().len(), with_attributes().to_value());
        let cuts = (0..value.len()).filter(|cut| *cut != plain);
        for cut in cuts.filter(|cut| value.is_char_boundary(*cut)) {
            assert_eq!(Origin::parse(&value[..cut]), None, "{}", &value[..cut]);
        }
        for text in ["9:", ":", "-1:a", "99999999999999999999999:a", "1:é"] {
            assert_eq!(Origin::parse(text), None, "{text}");
        }
    }

    #[test]
    fn clients_get_their_properties_and_the_process_gets_the_origin_first() {
        let own = PropertiesBuf::from_iter([Property::UserProperty(ORIGIN, "forged")]);
        let own = own.as_properties().as_bytes();
        let mut marked = Vec::new();
        origin().put(&mut marked);
        marked.extend_from_slice(own);
        assert_eq!(split(&marked), (Some(origin().to_value().as_bytes()), own));
        assert_eq!(split(own), (None, own));
        for (properties, expected) in [(&marked[..], Some(origin())), (own, None)] {
            let mut out = Vec::new();
            put_for_process(properties, &mut out);
            let properties = Properties::of_checked(&out);
            let found: Vec<_> = properties.user_properties().collect();
            assert_eq!(found.len(), 2);
            assert_eq!((found[0].0, Origin::parse(found[0].1)), (ORIGIN, expected));
            assert_eq!(found[1], (ORIGIN, "forged"));
        }
        for damaged in [&[MARK][..], &[MARK, 1, 0], &[MARK, 9, 0, 0, 0, 1], &[MARK, 255, 255, 255, 255]] {
            assert_eq!(split(damaged).1, b"");
        }
    }
}
