//! Encoding of a message between nodes. Little endian:
//!
//! ```text
//! version u8 = 1 | flags u8 | age u32, ms | publisher_key u64 | [expiry left u64, ms] | [stamp u64]
//!   | [group length u16 | group]
//!   | topic length u16 | properties length u32 | topic | properties | payload
//! ```
//!
//! Flags:
//! - bits 0-1: QoS;
//! - bit 2: RETAIN;
//! - bit 3: the message expires;
//! - bit 4: its publisher does not wait for disks;
//! - bit 5: it is for a member of a shared group, `$share/{ShareName}/{filter}`;
//! - bit 6: it is retained and has a stamp;
//! - bit 7: it is a copy, only to be retained. A deletion with bit 7 and without bit 2 is passed on by a node that did
//!   not know it.
//!
//! Clocks of nodes differ, so times are sent as differences.

use std::fmt;

use mqtt::{QoS, TopicName};

use crate::durability::Durability;
use crate::ids::Time;
use crate::message::MessageView;
use crate::origin::Origins;

const VERSION: u8 = 1;
const QOS: u8 = 0b11;
const RETAIN: u8 = 0b100;
const EXPIRES: u8 = 0b1000;
const IN_MEMORY: u8 = 0b1_0000;
const FOR_GROUP: u8 = 0b10_0000;
const STAMPED: u8 = 0b100_0000;
const COPY: u8 = 0b1000_0000;

/// A message of another node.
#[derive(Clone, Copy, Debug)]
pub struct Framed<'a> {
    pub name: TopicName<'a>,
    pub view: MessageView<'a>,
    /// Shared group whose member gets the message, `$share/{ShareName}/{filter}`.
    pub group: Option<&'a str>,
    /// Stamp of a retained message; 0 for others.
    pub stamp: u64,
    /// The message is a copy: it is retained and delivered to no client.
    pub is_copy: bool,
}

/// Error: the bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameError;

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid message from another node")
    }
}

impl std::error::Error for FrameError {}

/// Additional properties of a message between nodes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrameExtras<'a> {
    /// Shared group whose member gets the message, `$share/{ShareName}/{filter}`.
    pub group: Option<&'a str>,
    /// Stamp of a retained message; 0 for others.
    pub stamp: u64,
    /// The message is a copy: it is retained and delivered to no client.
    pub is_copy: bool,
    pub origins: Origins,
}

/// Appends a message.
pub(crate) fn encode(view: &MessageView<'_>, extras: FrameExtras<'_>, now: Time, out: &mut Vec<u8>) {
    let FrameExtras { group, stamp, is_copy, origins } = extras;
    let properties = origins.of(view.properties);
    let expires = view.expires != Time::NEVER;
    let mut flags = view.qos as u8;
    flags |= if view.retain { RETAIN } else { 0 };
    flags |= if expires { EXPIRES } else { 0 };
    flags |= if view.durability == Durability::Memory { IN_MEMORY } else { 0 };
    flags |= if group.is_some() { FOR_GROUP } else { 0 };
    flags |= if stamp != 0 { STAMPED } else { 0 };
    flags |= if is_copy { COPY } else { 0 };
    let age = u32::try_from(now.0.saturating_sub(view.received.0)).unwrap_or(u32::MAX);
    out.reserve(28 + view.topic.len() + properties.len() + view.payload.len());
    out.extend([VERSION, flags]);
    out.extend(age.to_le_bytes());
    out.extend(view.publisher_key.to_le_bytes());
    if expires {
        out.extend(view.expires.0.saturating_sub(now.0).to_le_bytes());
    }
    if stamp != 0 {
        out.extend(stamp.to_le_bytes());
    }
    if let Some(group) = group {
        // The text was one string in a SUBSCRIBE, so its length fits.
        out.extend((group.len() as u16).to_le_bytes());
        out.extend(group.as_bytes());
    }
    // A Topic Name has at most 65,535 bytes [MQTT-1.5.4-1], a packet fewer than 2^28.
    out.extend((view.topic.len() as u16).to_le_bytes());
    out.extend((properties.len() as u32).to_le_bytes());
    out.extend(view.topic.as_bytes());
    out.extend(properties);
    out.extend(view.payload);
}

/// Converts a message to a copy: the receiving node retains it and delivers it to no client.
pub fn as_copy(frame: &[u8]) -> Vec<u8> {
    let mut copy = frame.to_vec();
    copy.iter_mut().skip(1).take(1).for_each(|flags| *flags |= COPY);
    copy
}

/// Decodes the output of [`encode`] on another node.
///
/// # Errors
/// If the bytes are anything else. Never panics.
pub fn decode(mut bytes: &[u8], now: Time) -> Result<Framed<'_>, FrameError> {
    let [version, flags] = take(&mut bytes)?;
    let age = u32::from_le_bytes(take(&mut bytes)?);
    let publisher_key = u64::from_le_bytes(take(&mut bytes)?);
    let expires = if flags & EXPIRES == 0 {
        Time::NEVER
    } else {
        // A decoded expiry is never so long that it means none.
        Time(now.0.saturating_add(u64::from_le_bytes(take(&mut bytes)?)).min(Time::NEVER.0 - 1))
    };
    let stamp = if flags & STAMPED == 0 { 0 } else { u64::from_le_bytes(take(&mut bytes)?) };
    let group = if flags & FOR_GROUP == 0 {
        None
    } else {
        let length = usize::from(u16::from_le_bytes(take(&mut bytes)?));
        let (group, rest) = bytes.split_at_checked(length).ok_or(FrameError)?;
        bytes = rest;
        Some(std::str::from_utf8(group).map_err(|_| FrameError)?)
    };
    let topic_len = usize::from(u16::from_le_bytes(take(&mut bytes)?));
    let properties_len = u32::from_le_bytes(take(&mut bytes)?) as usize;
    let (topic, rest) = bytes.split_at_checked(topic_len).ok_or(FrameError)?;
    let (properties, payload) = rest.split_at_checked(properties_len).ok_or(FrameError)?;
    let topic = std::str::from_utf8(topic).map_err(|_| FrameError)?;
    let name = TopicName::parse(topic).map_err(|_| FrameError)?;
    let qos = QoS::from_bits(flags & QOS).ok_or(FrameError)?;
    if version != VERSION {
        return Err(FrameError);
    }
    let view = MessageView {
        topic,
        properties,
        payload,
        qos,
        retain: flags & RETAIN != 0,
        expires,
        received: Time(now.0.saturating_sub(u64::from(age))),
        publisher: None,
        publisher_key,
        durability: if flags & IN_MEMORY == 0 { Durability::LocalDisk } else { Durability::Memory },
        span: 0,
    };
    Ok(Framed { name, view, group, stamp, is_copy: flags & COPY != 0 })
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], FrameError> {
    let (taken, rest) = bytes.split_first_chunk::<N>().ok_or(FrameError)?;
    *bytes = rest;
    Ok(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::Origin;

    fn view() -> MessageView<'static> {
        MessageView {
            topic: "a/ü",
            properties: &[1, 1],
            payload: b"payload",
            qos: QoS::ExactlyOnce,
            retain: true,
            expires: Time(10_000),
            received: Time(900),
            publisher: None,
            publisher_key: 0x0102_0304_0506_0708,
            durability: Durability::Memory,
            span: 0,
        }
    }

    fn encoded() -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&view(), FrameExtras::default(), Time(1000), &mut bytes);
        bytes
    }

    /// Version 1 keeps these bytes for ever.
    #[test]
    fn a_message_between_nodes_has_these_bytes() {
        let found: String = encoded().iter().map(|byte| format!("{byte:02x}")).collect();
        let golden = [
            "011e",
            "64000000",
            "0807060504030201",
            "2823000000000000",
            "0400",
            "02000000",
            "612fc3bc",
            "0101",
            "7061796c6f6164",
        ];
        assert_eq!(found, golden.concat());
    }

    /// A message that waits in a session since all nodes knew origins may be for an earlier version, which would send
    /// the origin to its clients.
    #[test]
    fn an_origin_is_removed_for_nodes_that_do_not_know_it() {
        let mut with_origin = Vec::new();
        Origin { node: "n1".into(), ..Origin::default() }.put(&mut with_origin);
        with_origin.extend_from_slice(view().properties);
        let view = MessageView { properties: &with_origin, ..view() };
        for (origins, expected) in [(Origins::Kept, &with_origin[..]), (Origins::Removed, &[1, 1])] {
            let mut bytes = Vec::new();
            encode(&view, FrameExtras { origins, ..FrameExtras::default() }, Time(1000), &mut bytes);
            let found = decode(&bytes, Time(1000)).expect("a frame").view;
            assert_eq!((found.properties, found.payload), (expected, view.payload));
        }
    }

    /// Two nodes whose clocks are far apart agree on the age of a message and on its expiry.
    #[test]
    fn times_are_sent_as_differences() {
        let bytes = encoded();
        let Framed { name, view: found, group, stamp, is_copy } =
            decode(&bytes, Time(500_000)).expect("a frame");
        let expected = MessageView { received: Time(499_900), expires: Time(509_000), ..view() };
        assert_eq!(format!("{found:?}"), format!("{expected:?}"));
        assert_eq!((name.as_str(), group, stamp, is_copy), ("a/ü", None, 0, false));
        let early = decode(&bytes, Time(7)).expect("a frame").view;
        assert_eq!(early.received, Time(0), "a node younger than the message");
    }

    #[test]
    fn no_bytes_panic() {
        let bytes = encoded();
        for length in 0..bytes.len() - view().payload.len() {
            assert_eq!(decode(&bytes[..length], Time(0)).err(), Some(FrameError), "{length}");
        }
        for at in 0..bytes.len() {
            for value in 0..=255 {
                let mut bad = bytes.clone();
                bad[at] = value;
                if let Ok(framed) = decode(&bad, Time(0)) {
                    assert_eq!(framed.name.as_str(), framed.view.topic);
                }
            }
        }
    }

    #[test]
    fn a_message_may_be_for_a_group_or_a_copy_to_retain() {
        let mut bytes = Vec::new();
        let extras =
            FrameExtras { group: Some("$share/g/a/+"), stamp: 77, is_copy: true, ..FrameExtras::default() };
        encode(&view(), extras, Time(1000), &mut bytes);
        let found = decode(&bytes, Time(0)).expect("a frame");
        assert_eq!((found.group, found.stamp, found.is_copy), (Some("$share/g/a/+"), 77, true));
        for length in 0..bytes.len() - view().payload.len() {
            assert_eq!(decode(&bytes[..length], Time(0)).err(), Some(FrameError), "{length}");
        }
        let copy = as_copy(&encoded());
        let found = decode(&copy, Time(0)).expect("a frame");
        assert!(found.is_copy && found.view.payload == view().payload);
        assert!(as_copy(&[]).is_empty());
    }
}
