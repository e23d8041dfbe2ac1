//! Cluster messages between nodes, next to forwarded MQTT messages. They have one byte of kind and then fields in
//! little endian:
//!
//! ```text
//! 1 hello     version u8 = 1, role u8, asks u8, number u32, load u32, incarnation u64, vector
//! 2 delta     number u32 of the hello that it answers, delta
//! 3 applied   vector
//! 4 settle    position u64; with 1 u8 after it, 25 is wanted, too
//! 5 settled   incarnation u64, position u64
//! 6 confirm   (lane u8, reason u8, first u32, count u32)*
//! 7 renew     stamp u64
//! 8 grant     stamp u64
//! 9 brief     (writer u64, incarnation varint, position varint)*: as applied, for peers that can read it
//! 10 ask      number u64, question
//! 11 answer   number u64, part u8, part of the answer
//! 12 replica  a frame of the meta group
//! 13 roster   the roster that the sender knows
//! 14 propose  number u64, command
//! 15 proposed number u64, leader u64, answer
//! 16 reach    the nodes that a core does not reach
//! 17 copied   position of a copy of the records, and its request
//! 18 records  records that a copy lacks
//! 19 balance
//! 20 ask clock stamp u64
//! 21 clock    stamp u64 of the question, milliseconds since 1970 u64
//! 22 relay    from u64, to u64, features u64, message
//! 23 request copies
//! 24 namesake address
//! 25 region   incarnation u64, position u64
//! 26 shard    number u16 of the shard, a frame of its agreement
//! 27 to shard number u16 of the shard, a request
//! 28 to worker number u16 of the worker, an answer of a shard
//! 29 leads    number u16 of the shard, term u64
//! 30 follows  number u16 of the shard, term u64
//! 31 settle shard  number u16 of the shard, position u64
//! 32 shard settled number u16 of the shard, position u64
//! 33 reach shards  (number u16 of a shard, position u64)*
//! vector      (writer u64, incarnation u64, position u64)*
//! varint      seven bits a byte, the lowest first, the top bit in all but the last
//! ```
//!
//! Part: 0 is the last of an answer, 4 means that there is more. Without an answer, 1 means too busy, 2 too large, and
//! anything else that the node does not answer.
//!
//! Fields that a later version appends are ignored. Exceptions are fields that extend to the end: lists, deltas,
//! questions, answers, all of 12 to 18, relayed messages, addresses, frames of agreements, requests to shards and their
//! answers.

use link::NodeId;
use replog::{Incarnation, Position, WriterId};

use crate::meta::MetaMessage;
use crate::questions::Part;

pub const VERSION: u8 = 1;

const SHARD: u8 = 26;
const TO_SHARD: u8 = 27;
const TO_WORKER: u8 = 28;

/// Writers whose changes a node requests from another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FeedScope {
    #[default]
    Nothing,
    /// The other node and those that are attached to it.
    Branch,
    /// All writers but the requesting node.
    All,
}

/// Positions of a node in the changes of some writers.
pub type Vector = Vec<(WriterId, Incarnation, Position)>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerMessage<'a> {
    Hello(Hello),
    /// Encoded delta.
    Delta {
        number: u32,
        delta: &'a [u8],
    },
    /// Positions that the sender has applied.
    Applied(Vector),
    /// The same as `Applied` in fewer bytes, only for peers with [`BRIEF`](crate::features::BRIEF).
    Brief(Vector),
    /// The sender waits until its changes up to this position are known everywhere, or in its region and to the
    /// receiver.
    Settle {
        position: Position,
        in_region: bool,
    },
    /// All nodes that the sender lets acknowledge have applied the receiver's changes up to this position.
    Settled(Incarnation, Position),
    /// The sender and all nodes of the receiver's region have applied the receiver's changes up to this position. It
    /// answers [`PeerMessage::Settle`] with `in_region`.
    KnownInRegion(Incarnation, Position),
    /// Messages are stored at the sender.
    Confirm(Vec<Confirmed>),
    /// The sender asks for a lease, at a time of its own clock.
    Renew(u64),
    Grant(u64),
    /// Question of the sender's owner for the receiver's.
    Ask {
        number: u64,
        question: &'a [u8],
    },
    Answer {
        number: u64,
        part: Part,
        bytes: &'a [u8],
    },
    /// Message of the meta group.
    Meta(MetaMessage<'a>),
    /// Request to spread the replicants evenly over the cores.
    Balance,
    /// The sender asks for the time of the receiver's wall clock, at a time of its own. Only for peers with
    /// [`CLOCKS`](crate::features::CLOCKS).
    AskClock(u64),
    /// Time of the sender's wall clock, and the stamp of the question.
    Clock {
        stamp: u64,
        wall_ms: u64,
    },
    /// The sender had no room for retained messages of other nodes and has some now: they must be copied to it again.
    /// Only for peers with [`COPIES`](crate::features::COPIES).
    RequestCopies,
    /// Another process has the receiver's name, and is reached at this address. Only for peers with
    /// [`NAMESAKES`](crate::features::NAMESAKES).
    Namesake(&'a str),
    /// Frame of the agreement of a shard. Only for peers with [`SHARDS`](crate::features::SHARDS).
    Shard {
        shard: u16,
        frame: &'a [u8],
    },
    /// Frame of a worker of the sender for a shard that the receiver leads. This and the following only for peers with
    /// [`SHARDS`](crate::features::SHARDS).
    ToShard {
        shard: u16,
        frame: &'a [u8],
    },
    /// Frame of a shard that the sender leads, for a worker of the receiver.
    ToWorker {
        worker: u16,
        frame: &'a [u8],
    },
    /// The sender leads the shard in this term. It says so again after a link was lost: what it had sent or received
    /// before may be lost.
    Leads {
        shard: u16,
        term: u64,
    },
    /// The sender has led the shard in this term, and does not any more.
    Follows {
        shard: u16,
        term: u64,
    },
    /// The sender waits until the routes of the shard up to this position are known everywhere.
    SettleShard {
        shard: u16,
        position: Position,
    },
    /// The sender knows the routes of these shards up to positions that the receiver has not reported yet.
    ReachShards(Vec<(u16, Position)>),
    /// All nodes that the sender lets acknowledge know the routes of the shard up to this position.
    ShardSettled {
        shard: u16,
        position: Position,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub is_core: bool,
    pub feed_scope: FeedScope,
    /// Number of the hello on this link.
    pub number: u32,
    /// Number of nodes that are attached to it.
    pub load: u32,
    pub incarnation: Incarnation,
    pub vector: Vector,
}

/// Consecutive messages of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmed {
    pub lane: u8,
    /// Reason Code of a PUBACK.
    pub reason: u8,
    pub first: u32,
    pub count: u32,
}

impl PeerMessage<'_> {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Hello(Hello { is_core, feed_scope, number, load, incarnation, vector }) => {
                let feed_scope = match feed_scope {
                    FeedScope::Nothing => 0,
                    FeedScope::Branch => 1,
                    FeedScope::All => 2,
                };
                out.extend([1, VERSION, u8::from(*is_core), feed_scope]);
                out.extend(number.to_le_bytes());
                out.extend(load.to_le_bytes());
                out.extend(incarnation.0.to_le_bytes());
                put_vector(vector, &mut out);
            }
            Self::Delta { number, delta } => {
                out.push(2);
                out.extend(number.to_le_bytes());
                out.extend(*delta);
            }
            Self::Applied(vector) => {
                out.push(3);
                put_vector(vector, &mut out);
            }
            Self::Brief(vector) => {
                out.push(9);
                for (writer, incarnation, position) in vector {
                    out.extend(writer.0.to_le_bytes());
                    put_varint(incarnation.0, &mut out);
                    put_varint(position.0, &mut out);
                }
            }
            Self::Settle { position, in_region } => {
                out.push(4);
                out.extend(position.0.to_le_bytes());
                // Nodes of earlier versions ignore this byte and answer with the position that is known everywhere.
                out.extend(in_region.then_some(1));
            }
            Self::KnownInRegion(incarnation, position) => {
                out.push(25);
                out.extend(incarnation.0.to_le_bytes());
                out.extend(position.0.to_le_bytes());
            }
            Self::Settled(incarnation, position) => {
                out.push(5);
                out.extend(incarnation.0.to_le_bytes());
                out.extend(position.0.to_le_bytes());
            }
            Self::Confirm(confirmed) => {
                out.push(6);
                for Confirmed { lane, reason, first, count } in confirmed {
                    out.extend([*lane, *reason]);
                    out.extend(first.to_le_bytes());
                    out.extend(count.to_le_bytes());
                }
            }
            Self::Balance => out.push(19),
            Self::RequestCopies => out.push(23),
            Self::Namesake(address) => {
                out.push(24);
                out.extend(address.as_bytes());
            }
            Self::Shard { shard, frame } => put_numbered(SHARD, *shard, frame, &mut out),
            Self::ToShard { shard, frame } => put_numbered(TO_SHARD, *shard, frame, &mut out),
            Self::ToWorker { worker, frame } => put_numbered(TO_WORKER, *worker, frame, &mut out),
            Self::Leads { shard, term } => put_numbered(29, *shard, &term.to_le_bytes(), &mut out),
            Self::Follows { shard, term } => put_numbered(30, *shard, &term.to_le_bytes(), &mut out),
            Self::SettleShard { shard, position } => {
                put_numbered(31, *shard, &position.0.to_le_bytes(), &mut out);
            }
            Self::ShardSettled { shard, position } => {
                put_numbered(32, *shard, &position.0.to_le_bytes(), &mut out);
            }
            Self::ReachShards(positions) => {
                out.push(33);
                for (shard, position) in positions {
                    out.extend(shard.to_le_bytes());
                    out.extend(position.0.to_le_bytes());
                }
            }
            Self::AskClock(stamp) => {
                out.push(20);
                out.extend(stamp.to_le_bytes());
            }
            Self::Clock { stamp, wall_ms } => {
                out.push(21);
                out.extend(stamp.to_le_bytes());
                out.extend(wall_ms.to_le_bytes());
            }
            Self::Renew(stamp) => {
                out.push(7);
                out.extend(stamp.to_le_bytes());
            }
            Self::Grant(stamp) => {
                out.push(8);
                out.extend(stamp.to_le_bytes());
            }
            Self::Ask { number, question } => {
                out.push(10);
                out.extend(number.to_le_bytes());
                out.extend(*question);
            }
            Self::Answer { number, part, bytes } => {
                out.push(11);
                out.extend(number.to_le_bytes());
                out.push(part.byte());
                out.extend(*bytes);
            }
            Self::Meta(message) => match message {
                MetaMessage::Replica(frame) => {
                    out.push(12);
                    out.extend(*frame);
                }
                MetaMessage::Roster(roster) => {
                    out.push(13);
                    out.extend(*roster);
                }
                MetaMessage::Propose { number, command } => {
                    out.push(14);
                    out.extend(number.to_le_bytes());
                    out.extend(*command);
                }
                MetaMessage::Relay { from, to, features, message } => {
                    out.push(22);
                    for number in [from.0, to.0, *features] {
                        out.extend(number.to_le_bytes());
                    }
                    out.extend(*message);
                }
                MetaMessage::Proposed { number, leader, answer } => {
                    out.push(15);
                    out.extend(number.to_le_bytes());
                    out.extend(leader.to_le_bytes());
                    out.extend(*answer);
                }
                MetaMessage::Reachability(reachability) => {
                    out.push(16);
                    out.extend(*reachability);
                }
                MetaMessage::Copied(ask) => {
                    out.push(17);
                    out.extend(*ask);
                }
                MetaMessage::Records(bytes_of_answer) => {
                    out.push(18);
                    out.extend(*bytes_of_answer);
                }
            },
        }
        out
    }
}

/// Decodes the result of [`PeerMessage::encode`]; returns `None` for anything else. Never panics.
pub fn decode(bytes: &[u8]) -> Option<PeerMessage<'_>> {
    let (kind, mut rest) = bytes.split_first()?;
    let rest = &mut rest;
    Some(match kind {
        1 => {
            let [_version, is_core, feed_scope] = take(rest)?;
            let feed_scope = match feed_scope {
                0 => FeedScope::Nothing,
                1 => FeedScope::Branch,
                _ => FeedScope::All,
            };
            PeerMessage::Hello(Hello {
                is_core: is_core != 0,
                feed_scope,
                number: u32::from_le_bytes(take(rest)?),
                load: u32::from_le_bytes(take(rest)?),
                incarnation: Incarnation(number(rest)?),
                vector: take_vector(rest)?,
            })
        }
        2 => PeerMessage::Delta { number: u32::from_le_bytes(take(rest)?), delta: rest },
        3 => PeerMessage::Applied(take_vector(rest)?),
        4 => PeerMessage::Settle { position: Position(number(rest)?), in_region: rest.first() == Some(&1) },
        5 => PeerMessage::Settled(Incarnation(number(rest)?), Position(number(rest)?)),
        6 => {
            let mut confirmed = Vec::with_capacity(rest.len() / 10);
            while !rest.is_empty() {
                let [lane, reason] = take(rest)?;
                let first = u32::from_le_bytes(take(rest)?);
                confirmed.push(Confirmed { lane, reason, first, count: u32::from_le_bytes(take(rest)?) });
            }
            PeerMessage::Confirm(confirmed)
        }
        7 => PeerMessage::Renew(number(rest)?),
        8 => PeerMessage::Grant(number(rest)?),
        9 => {
            let mut vector = Vec::with_capacity(rest.len() / 10);
            while !rest.is_empty() {
                let writer = WriterId(number(rest)?);
                vector.push((writer, Incarnation(take_varint(rest)?), Position(take_varint(rest)?)));
            }
            PeerMessage::Brief(vector)
        }
        10 => PeerMessage::Ask { number: number(rest)?, question: rest },
        11 => {
            let number = number(rest)?;
            let [part] = take(rest)?;
            PeerMessage::Answer { number, part: Part::of_byte(part), bytes: rest }
        }
        12 => PeerMessage::Meta(MetaMessage::Replica(rest)),
        13 => PeerMessage::Meta(MetaMessage::Roster(rest)),
        14 => PeerMessage::Meta(MetaMessage::Propose { number: number(rest)?, command: rest }),
        15 => {
            let (number, leader) = (number(rest)?, number(rest)?);
            PeerMessage::Meta(MetaMessage::Proposed { number, leader, answer: rest })
        }
        16 => PeerMessage::Meta(MetaMessage::Reachability(rest)),
        17 => PeerMessage::Meta(MetaMessage::Copied(rest)),
        18 => PeerMessage::Meta(MetaMessage::Records(rest)),
        19 => PeerMessage::Balance,
        20 => PeerMessage::AskClock(number(rest)?),
        21 => PeerMessage::Clock { stamp: number(rest)?, wall_ms: number(rest)? },
        22 => {
            let (from, to, features) = (NodeId(number(rest)?), NodeId(number(rest)?), number(rest)?);
            PeerMessage::Meta(MetaMessage::Relay { from, to, features, message: rest })
        }
        23 => PeerMessage::RequestCopies,
        26 => PeerMessage::Shard { shard: u16::from_le_bytes(take(rest)?), frame: rest },
        27 => PeerMessage::ToShard { shard: u16::from_le_bytes(take(rest)?), frame: rest },
        28 => PeerMessage::ToWorker { worker: u16::from_le_bytes(take(rest)?), frame: rest },
        29 => PeerMessage::Leads { shard: u16::from_le_bytes(take(rest)?), term: number(rest)? },
        30 => PeerMessage::Follows { shard: u16::from_le_bytes(take(rest)?), term: number(rest)? },
        31 => PeerMessage::SettleShard {
            shard: u16::from_le_bytes(take(rest)?),
            position: Position(number(rest)?),
        },
        32 => PeerMessage::ShardSettled {
            shard: u16::from_le_bytes(take(rest)?),
            position: Position(number(rest)?),
        },
        33 => {
            let mut positions = Vec::with_capacity(rest.len() / 10);
            while !rest.is_empty() {
                positions.push((u16::from_le_bytes(take(rest)?), Position(number(rest)?)));
            }
            PeerMessage::ReachShards(positions)
        }
        24 => PeerMessage::Namesake(str::from_utf8(rest).ok()?),
        25 => PeerMessage::KnownInRegion(Incarnation(number(rest)?), Position(number(rest)?)),
        _ => return None,
    })
}

/// Number of bytes before the frame of a [`PeerMessage::Shard`], [`PeerMessage::ToShard`] or [`PeerMessage::ToWorker`].
pub const HEAD: usize = 3;

/// Bytes before the frame of a [`PeerMessage::Shard`].
pub fn shard_head(shard: u16) -> [u8; HEAD] {
    numbered_head(SHARD, shard)
}

/// Bytes before the frame of a [`PeerMessage::ToShard`].
pub fn to_shard_head(shard: u16) -> [u8; HEAD] {
    numbered_head(TO_SHARD, shard)
}

/// Bytes before the frame of a [`PeerMessage::ToWorker`].
pub fn to_worker_head(worker: u16) -> [u8; HEAD] {
    numbered_head(TO_WORKER, worker)
}

fn numbered_head(kind: u8, number: u16) -> [u8; HEAD] {
    let [low, high] = number.to_le_bytes();
    [kind, low, high]
}

/// Appends a kind, the number of a shard or worker, and the rest.
fn put_numbered(kind: u8, number: u16, rest: &[u8], out: &mut Vec<u8>) {
    out.extend(numbered_head(kind, number));
    out.extend(rest);
}

fn put_vector(vector: &Vector, out: &mut Vec<u8>) {
    for (writer, incarnation, position) in vector {
        for number in [writer.0, incarnation.0, position.0] {
            out.extend(number.to_le_bytes());
        }
    }
}

fn take_vector(bytes: &mut &[u8]) -> Option<Vector> {
    let mut vector = Vec::with_capacity(bytes.len() / 24);
    while !bytes.is_empty() {
        vector.push((WriterId(number(bytes)?), Incarnation(number(bytes)?), Position(number(bytes)?)));
    }
    Some(vector)
}

fn put_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let [byte] = take(bytes)?;
        let part = u64::from(byte & 0x7f);
        // The tenth byte has one significant bit.
        if part << shift >> shift != part {
            return None;
        }
        number |= part << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(take(bytes)?))
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::questions::Unanswered;

    fn messages() -> [(PeerMessage<'static>, &'static str); 35] {
        let vector = vec![(WriterId(2), Incarnation(3), Position(4))];
        let in_hex = "020000000000000003000000000000000400000000000000";
        let hello = Hello {
            is_core: true,
            feed_scope: FeedScope::All,
            number: 7,
            load: 9,
            incarnation: Incarnation(5),
            vector: vector.clone(),
        };
        let confirmed = vec![Confirmed { lane: 3, reason: 0x97, first: 16, count: 2 }];
        [
            (
                PeerMessage::Hello(hello),
                "0101010207000000090000000500000000000000020000000000000003000000000000000400000000000000",
            ),
            (PeerMessage::Delta { number: 7, delta: b"ab" }, "02070000006162"),
            (PeerMessage::Applied(vector), in_hex),
            (PeerMessage::Settle { position: Position(6), in_region: false }, "040600000000000000"),
            (PeerMessage::Settle { position: Position(6), in_region: true }, "04060000000000000001"),
            (PeerMessage::Settled(Incarnation(1), Position(2)), "0501000000000000000200000000000000"),
            (PeerMessage::Confirm(confirmed), "0603971000000002000000"),
            (PeerMessage::Renew(8), "070800000000000000"),
            (PeerMessage::Grant(8), "080800000000000000"),
            (
                PeerMessage::Brief(vec![(WriterId(2), Incarnation(3), Position(300))]),
                "09020000000000000003ac02",
            ),
            (PeerMessage::Ask { number: 5, question: b"ab" }, "0a05000000000000006162"),
            (PeerMessage::Answer { number: 5, part: Part::More, bytes: b"ab" }, "0b0500000000000000046162"),
            (
                PeerMessage::Answer { number: 5, part: Part::Not(Unanswered::Busy), bytes: &[] },
                "0b050000000000000001",
            ),
            (PeerMessage::Meta(MetaMessage::Replica(b"ab")), "0c6162"),
            (PeerMessage::Meta(MetaMessage::Roster(b"ab")), "0d6162"),
            (PeerMessage::Meta(MetaMessage::Propose { number: 5, command: b"ab" }), "0e05000000000000006162"),
            (
                PeerMessage::Meta(MetaMessage::Proposed { number: 5, leader: 6, answer: b"ab" }),
                "0f050000000000000006000000000000006162",
            ),
            (PeerMessage::Meta(MetaMessage::Reachability(b"ab")), "106162"),
            (PeerMessage::Meta(MetaMessage::Copied(b"ab")), "116162"),
            (PeerMessage::Meta(MetaMessage::Records(b"ab")), "126162"),
            (PeerMessage::Balance, "13"),
            (PeerMessage::AskClock(8), "140800000000000000"),
            (PeerMessage::Clock { stamp: 8, wall_ms: 9 }, "1508000000000000000900000000000000"),
            (
                PeerMessage::Meta(MetaMessage::Relay {
                    from: NodeId(5),
                    to: NodeId(6),
                    features: 7,
                    message: b"ab",
                }),
                "160500000000000000060000000000000007000000000000006162",
            ),
            (PeerMessage::RequestCopies, "17"),
            (PeerMessage::Namesake("h:1"), "18683a31"),
            (PeerMessage::Shard { shard: 3, frame: b"ab" }, "1a03006162"),
            (PeerMessage::ToShard { shard: 0x103, frame: b"ab" }, "1b03016162"),
            (PeerMessage::ToWorker { worker: 0x104, frame: b"ab" }, "1c04016162"),
            (PeerMessage::Leads { shard: 3, term: 5 }, "1d03000500000000000000"),
            (PeerMessage::Follows { shard: 3, term: 5 }, "1e03000500000000000000"),
            (PeerMessage::SettleShard { shard: 3, position: Position(5) }, "1f03000500000000000000"),
            (PeerMessage::ShardSettled { shard: 3, position: Position(5) }, "2003000500000000000000"),
            (
                PeerMessage::ReachShards(vec![(3, Position(5)), (4, Position(6))]),
                "210300050000000000000004000600000000000000",
            ),
            (PeerMessage::KnownInRegion(Incarnation(1), Position(2)), "1901000000000000000200000000000000"),
        ]
    }

    /// Checks the bytes of version 1. They must never change.
    #[test]
    fn cluster_messages_keep_their_byte_format() {
        for (message, golden) in messages() {
            let bytes = message.encode();
            let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let golden = if matches!(message, PeerMessage::Applied(_)) {
                format!("03{golden}")
            } else {
                golden.into()
            };
            assert_eq!(found, golden);
            assert_eq!(decode(&bytes), Some(message));
        }
    }

    #[test]
    fn numbers_of_any_size_round_trip_and_longer_ones_are_refused() {
        for shift in 0..64 {
            for number in [1_u64 << shift, (1 << shift) - 1, u64::MAX - (1 << shift)] {
                let message =
                    PeerMessage::Brief(vec![(WriterId(number), Incarnation(number), Position(!number))]);
                assert_eq!(decode(&message.encode()), Some(message));
            }
        }
        let mut bytes = PeerMessage::Brief(Vec::new()).encode();
        bytes.extend([0; 8]);
        bytes.extend([0xff; 9]);
        bytes.extend([2, 0]);
        assert_eq!(decode(&bytes), None);
    }

    #[test]
    fn no_bytes_panic() {
        for (message, _) in messages() {
            let bytes = message.encode();
            for length in 0..bytes.len() {
                let _ = decode(&bytes[..length]);
            }
            for at in 0..bytes.len() {
                for value in 0..=255 {
                    let mut bad = bytes.clone();
                    bad[at] = value;
                    let _ = decode(&bad);
                }
            }
        }
        assert_eq!(decode(&[]), None);
        assert_eq!(decode(&[99]), None);
    }
}
