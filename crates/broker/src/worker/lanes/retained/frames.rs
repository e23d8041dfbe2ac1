//! Frames of reads of retained messages. Little endian, as in [`frame`]:
//!
//! ```text
//! to a shard:
//! index wanted  16 | incarnation u64 | worker u16 | number u64
//! page wanted   17 | incarnation u64 | worker u16 | number u64 | index u64 | limit u32 | filter | [after]
//! to a worker:
//! index         18 | incarnation u64 | shard u16 | number u64 | index u64
//! page          19 | incarnation u64 | shard u16 | number u64 | examined u32 | after | messages
//! unreadable    20 | incarnation u64 | shard u16 | number u64
//! ```
//!
//! A text and a message have a length u32 in front. `after` is a topic; an empty one means: from the beginning, or that
//! the shard has no more. A message has the form of a message between nodes, see `peers::frame`. The incarnation is
//! that of the node of the worker.

use super::super::frame::{self, FrameError, take, take_bytes};
use crate::ids::{ShardId, Time};
use crate::message::Message;
use crate::peers::{self, FrameExtras};

/// A worker that reads, and the number of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub incarnation: u64,
    pub worker: u16,
    pub number: u64,
}

/// A request for a shard.
#[derive(Debug, PartialEq, Eq)]
pub enum ToShard<'a> {
    /// Asks for the index of the shard, after a read barrier.
    IndexWanted(Origin),
    /// Asks for the next page of the messages that match.
    PageWanted(Origin, PageWanted<'a>),
}

#[derive(Debug, PartialEq, Eq)]
pub struct PageWanted<'a> {
    /// Index that the leader has given for this read.
    pub index: u64,
    pub limit: u32,
    pub filter: &'a str,
    /// Topic after which the page begins; empty at the beginning.
    pub after: &'a str,
}

/// An answer for a worker.
#[derive(Debug)]
pub struct ToReader<'a> {
    pub incarnation: u64,
    pub shard: ShardId,
    pub number: u64,
    pub answer: Answer<'a>,
}

#[derive(Debug)]
pub enum Answer<'a> {
    Index(u64),
    Page {
        examined: u32,
        /// Topic after which the next page begins; empty if there is no more.
        after: &'a str,
        messages: Vec<Message>,
    },
    /// The node does not lead the shard, or has not applied the index.
    Unreadable,
}

const INDEX_WANTED: u8 = 16;
const PAGE_WANTED: u8 = 17;
const INDEX: u8 = 18;
const PAGE: u8 = 19;
const UNREADABLE: u8 = 20;

/// Returns whether a frame for a shard is one of these.
pub fn is_for_shard(bytes: &[u8]) -> bool {
    matches!(bytes.first(), Some(&(INDEX_WANTED | PAGE_WANTED)))
}

/// Returns whether a frame for a worker is one of these.
pub fn is_for_reader(bytes: &[u8]) -> bool {
    matches!(bytes.first(), Some(&(INDEX | PAGE | UNREADABLE)))
}

fn begin(kind: u8, incarnation: u64, port: u16, number: u64) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(incarnation.to_le_bytes());
    bytes.extend(port.to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes
}

pub fn index_wanted(Origin { incarnation, worker, number }: Origin) -> Vec<u8> {
    begin(INDEX_WANTED, incarnation, worker, number)
}

pub fn page_wanted(Origin { incarnation, worker, number }: Origin, wanted: &PageWanted<'_>) -> Vec<u8> {
    let mut bytes = begin(PAGE_WANTED, incarnation, worker, number);
    bytes.extend(wanted.index.to_le_bytes());
    bytes.extend(wanted.limit.to_le_bytes());
    frame::push_bytes(wanted.filter.as_bytes(), &mut bytes);
    frame::push_bytes(wanted.after.as_bytes(), &mut bytes);
    bytes
}

pub fn index(origin: Origin, shard: ShardId, index: u64) -> Vec<u8> {
    let mut bytes = begin(INDEX, origin.incarnation, shard.0, origin.number);
    bytes.extend(index.to_le_bytes());
    bytes
}

pub fn unreadable(origin: Origin, shard: ShardId) -> Vec<u8> {
    begin(UNREADABLE, origin.incarnation, shard.0, origin.number)
}

/// Makes a page of as many of the messages as fit one frame, but of one at least.
pub fn page(
    origin: Origin,
    shard: ShardId,
    (now, extras): (Time, FrameExtras<'_>),
    (messages, examined): (&[Message], usize),
    after: Option<&str>,
) -> Vec<u8> {
    let (mut encoded, mut message) = (Vec::new(), Vec::new());
    let mut last = after;
    for (at, next) in messages.iter().enumerate() {
        message.clear();
        peers::encode(&next.view(), extras, now, &mut message);
        if at > 0 && encoded.len() + message.len() > frame::FULL {
            last = Some(messages[at - 1].view().topic);
            break;
        }
        frame::push_bytes(&message, &mut encoded);
    }
    let mut bytes = begin(PAGE, origin.incarnation, shard.0, origin.number);
    bytes.extend((examined as u32).to_le_bytes());
    frame::push_bytes(last.unwrap_or_default().as_bytes(), &mut bytes);
    bytes.extend(encoded);
    bytes
}

/// Decodes a frame for a shard.
pub fn decode_for_shard(mut bytes: &[u8]) -> Result<ToShard<'_>, FrameError> {
    let rest = &mut bytes;
    let [kind] = take(rest)?;
    let incarnation = u64::from_le_bytes(take(rest)?);
    let worker = u16::from_le_bytes(take(rest)?);
    let number = u64::from_le_bytes(take(rest)?);
    let origin = Origin { incarnation, worker, number };
    let wanted = match kind {
        INDEX_WANTED => ToShard::IndexWanted(origin),
        PAGE_WANTED => {
            let index = u64::from_le_bytes(take(rest)?);
            let limit = u32::from_le_bytes(take(rest)?);
            let (filter, after) = (take_text(rest)?, take_text(rest)?);
            ToShard::PageWanted(origin, PageWanted { index, limit, filter, after })
        }
        _ => return Err(FrameError),
    };
    if rest.is_empty() { Ok(wanted) } else { Err(FrameError) }
}

/// Decodes a frame for a worker that reads.
pub fn decode_for_reader(mut bytes: &[u8], now: Time) -> Result<ToReader<'_>, FrameError> {
    let rest = &mut bytes;
    let [kind] = take(rest)?;
    let incarnation = u64::from_le_bytes(take(rest)?);
    let shard = ShardId(u16::from_le_bytes(take(rest)?));
    let number = u64::from_le_bytes(take(rest)?);
    let answer = match kind {
        INDEX => Answer::Index(u64::from_le_bytes(take(rest)?)),
        PAGE => {
            let examined = u32::from_le_bytes(take(rest)?);
            let after = take_text(rest)?;
            let mut messages = Vec::new();
            while !rest.is_empty() {
                messages.push(take_message(rest, now)?);
            }
            Answer::Page { examined, after, messages }
        }
        UNREADABLE => Answer::Unreadable,
        _ => return Err(FrameError),
    };
    let answer = ToReader { incarnation, shard, number, answer };
    if rest.is_empty() { Ok(answer) } else { Err(FrameError) }
}

fn take_text<'a>(bytes: &mut &'a [u8]) -> Result<&'a str, FrameError> {
    std::str::from_utf8(take_bytes(bytes)?).map_err(|_| FrameError)
}

fn take_message(bytes: &mut &[u8], now: Time) -> Result<Message, FrameError> {
    match peers::decode(take_bytes(bytes)?, now) {
        Ok(framed) if framed.group.is_none() && framed.stamp == 0 && !framed.is_copy => {
            Ok(framed.view.to_message())
        }
        _ => Err(FrameError),
    }
}

#[cfg(test)]
mod tests {
    use mqtt::QoS;

    use super::*;
    use crate::durability::Durability;
    use crate::message::MessageView;

    const NOW: Time = Time(1000);
    const ORIGIN: Origin = Origin { incarnation: 7, worker: 2, number: 9 };
    const SHARD: ShardId = ShardId(4);

    fn message(topic: &str, payload: &[u8]) -> Message {
        let view = MessageView {
            topic,
            properties: &[],
            payload,
            qos: QoS::AtLeastOnce,
            retain: true,
            expires: Time(3000),
            received: Time(990),
            publisher: None,
            publisher_key: 0,
            durability: Durability::LocalDisk,
            span: 0,
        };
        view.to_message()
    }

    fn frames() -> [Vec<u8>; 5] {
        let wanted = PageWanted { index: 77, limit: 64, filter: "a/#", after: "a/b" };
        [
            index_wanted(ORIGIN),
            page_wanted(ORIGIN, &wanted),
            index(ORIGIN, SHARD, 77),
            page(ORIGIN, SHARD, (NOW, FrameExtras::default()), (&[message("a/c", b"hi")], 5), Some("a/c")),
            unreadable(ORIGIN, SHARD),
        ]
    }

    /// Nodes of different versions exchange these bytes.
    #[test]
    fn frames_have_these_bytes() {
        let golden = [
            "10 0700000000000000 0200 0900000000000000",
            "11 0700000000000000 0200 0900000000000000 4d00000000000000 40000000 03000000 612f23 03000000 612f62",
            "12 0700000000000000 0400 0900000000000000 4d00000000000000",
            "13 0700000000000000 0400 0900000000000000 05000000 03000000 612f63 21000000 01 0d 0a000000 \
             0000000000000000 d007000000000000 0300 00000000 612f63 6869",
            "14 0700000000000000 0400 0900000000000000",
        ];
        for (frame, golden) in frames().iter().zip(golden) {
            let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, golden.replace(' ', ""));
        }
    }

    #[test]
    fn frames_are_decoded_and_no_bytes_panic() {
        let [wants_index, wants_page, index, page, unreadable] = frames();
        assert_eq!(decode_for_shard(&wants_index), Ok(ToShard::IndexWanted(ORIGIN)));
        let wanted = PageWanted { index: 77, limit: 64, filter: "a/#", after: "a/b" };
        assert_eq!(decode_for_shard(&wants_page), Ok(ToShard::PageWanted(ORIGIN, wanted)));
        let answer = |frame| {
            let ToReader { incarnation, shard, number, answer } =
                decode_for_reader(frame, NOW).expect("a frame");
            assert_eq!((incarnation, shard, number), (7, SHARD, 9));
            answer
        };
        assert!(matches!(answer(&index), Answer::Index(77)));
        assert!(matches!(answer(&unreadable), Answer::Unreadable));
        let Answer::Page { examined: 5, after: "a/c", messages } = answer(&page) else { panic!("a page") };
        assert_eq!(messages.len(), 1);
        assert_eq!(format!("{:?}", messages[0]), format!("{:?}", message("a/c", b"hi")));
        for frame in frames() {
            for length in 0..frame.len() {
                let part = &frame[..length];
                // A page without its only message is one, too.
                let is_page = frame == page && length == 30;
                assert!(
                    decode_for_shard(part).is_err() && (is_page || decode_for_reader(part, NOW).is_err())
                );
            }
            let longer = [&frame[..], b"x"].concat();
            assert!(decode_for_shard(&longer).is_err() && decode_for_reader(&longer, NOW).is_err());
            for at in 0..frame.len() {
                for value in 0..=u8::MAX {
                    let mut bad = frame.clone();
                    bad[at] = value;
                    drop((decode_for_shard(&bad), decode_for_reader(&bad, NOW)));
                }
            }
        }
    }

    #[test]
    fn a_page_has_no_more_messages_than_fit_a_frame_but_one_at_least() {
        let large = vec![b'x'; frame::FULL / 2];
        let messages = [message("a", &large), message("b", &large), message("c", b"c")];
        let taken = |messages: &[Message], after| {
            let bytes = page(ORIGIN, SHARD, (NOW, FrameExtras::default()), (messages, 3), after);
            assert!(bytes.len() <= frame::FULL + 200);
            match decode_for_reader(&bytes, NOW).expect("a frame").answer {
                Answer::Page { after, messages, .. } => (messages.len(), after.to_owned()),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(taken(&messages, None), (1, "a".to_owned()));
        assert_eq!(taken(&messages[1..], None), (2, String::new()));
        assert_eq!(taken(&messages[2..], Some("c")), (1, "c".to_owned()));
        let huge = [message("a", &vec![b'x'; 2 * frame::FULL]), message("b", b"b")];
        let bytes = page(ORIGIN, SHARD, (NOW, FrameExtras::default()), (&huge, 2), None);
        assert!(bytes.len() > frame::FULL);
    }
}
