//! Frames between a worker and the leaders of shards. Little endian.
//!
//! ```text
//! requests     0 | incarnation u64 | worker u16 | round u32 | flags u8
//!              | items: number u64, epoch u32, age in ms u32, length u32, request
//! answers      1 | incarnation u64 | shard u16 | round u32 | index u64 | received u64 | items: length u32, answer
//! not leading  2 | incarnation u64 | shard u16 | round u32 | term u64
//! ended        3 | incarnation u64 | shard u16 | round u32 | last u64
//! ```
//!
//! The incarnation is that of the node of the worker, in both directions. `received` is the number of the last request
//! of the round that has arrived. Before the first one it is the number of reported connections, with the highest bit.

use crate::ids::ShardId;
use crate::peers::ShardFrame;

/// Error: the bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameError;

/// Requests of a worker to a shard.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Requests<'a> {
    /// Incarnation of the node of the worker.
    pub incarnation: u64,
    pub worker: u16,
    /// Number of times that the worker has begun to send its requests to a leader of the shard.
    pub round: u32,
    pub flags: Flags,
    pub items: Vec<Item<'a>>,
}

/// Properties of a frame of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    /// First frame of the round.
    pub is_first: bool,
    /// All connections that the shard serves are reported with this frame.
    pub is_attached: bool,
    /// The worker wants to know that everything until here has arrived.
    pub wants_receipt: bool,
}

impl Flags {
    fn bits(self) -> u8 {
        u8::from(self.is_first) | u8::from(self.is_attached) << 1 | u8::from(self.wants_receipt) << 2
    }

    fn of_bits(bits: u8) -> Option<Self> {
        let [is_first, is_attached, wants_receipt] = [1, 2, 4].map(|bit| bits & bit != 0);
        (bits < 8).then_some(Self { is_first, is_attached, wants_receipt })
    }
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item<'a> {
    /// Number of the request; 0 for one that belongs to the beginning of a round.
    pub number: u64,
    /// Epoch in which a connection makes it; 0 for others.
    pub epoch: u32,
    /// Time since it was encoded, in milliseconds.
    pub age_ms: u32,
    pub bytes: &'a [u8],
}

/// Answers for a worker.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answers<'a> {
    pub incarnation: u64,
    pub shard: ShardId,
    pub round: u32,
    /// Index of the last record that the shard had applied.
    pub index: u64,
    pub received: Received,
    pub items: Vec<&'a [u8]>,
}

/// Last item of a round that has arrived, in the order in which they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Received {
    /// The last one of so many connections was reported, and no request has arrived.
    Connections(u64),
    /// The request of this number has arrived.
    Request(u64),
}

/// Bit of [`Received::Connections`].
const CONNECTIONS: u64 = 1 << 63;

impl Received {
    fn bits(self) -> u64 {
        match self {
            Self::Connections(count) => count | CONNECTIONS,
            Self::Request(number) => number,
        }
    }

    fn of_bits(bits: u64) -> Self {
        if bits & CONNECTIONS == 0 { Self::Request(bits) } else { Self::Connections(bits & !CONNECTIONS) }
    }
}

/// The shard is not led here, or its leader does not know this round.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotLeading {
    pub incarnation: u64,
    pub shard: ShardId,
    pub round: u32,
    /// Term in which this node leads the shard; 0 when it does not.
    pub term: u64,
}

/// The shard takes nothing from the incarnation of the node, because it is over.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub incarnation: u64,
    pub shard: ShardId,
    pub round: u32,
    /// Last incarnation of the node that the shard knows.
    pub last: u64,
}

/// A frame for a worker.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ToWorker<'a> {
    Answers(Answers<'a>),
    NotLeading(NotLeading),
    Ended(Ended),
}

/// Size in bytes of the items at which a frame is full, if it has one.
pub(super) const FULL: usize = 256 * 1024;

/// Maximum length of a request: a frame takes it alone.
pub(super) const REQUEST_MAX: usize = ShardFrame::BYTES_MAX - 64;
const _: () = assert!(REQUEST_MAX > (256 << 20) + (512 << 10), "the largest message of a client fits");

const REQUESTS: u8 = 0;
const ANSWERS: u8 = 1;
const NOT_LEADING: u8 = 2;
const ENDED: u8 = 3;

/// Makes a frame of requests, whose items [`push_item`] has appended.
pub(super) fn requests(incarnation: u64, worker: u16, round: u32, flags: Flags, items: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + items.len());
    bytes.push(REQUESTS);
    bytes.extend(incarnation.to_le_bytes());
    bytes.extend(worker.to_le_bytes());
    bytes.extend(round.to_le_bytes());
    bytes.push(flags.bits());
    bytes.extend(items);
    bytes
}

/// Appends a request to the items of a frame.
pub(super) fn push_item(item: Item<'_>, items: &mut Vec<u8>) {
    items.extend(item.number.to_le_bytes());
    items.extend(item.epoch.to_le_bytes());
    items.extend(item.age_ms.to_le_bytes());
    push_bytes(item.bytes, items);
}

/// Makes a frame of answers, whose items [`push_bytes`] has appended.
pub(super) fn answers(
    incarnation: u64,
    (shard, round): (ShardId, u32),
    (index, received): (u64, Received),
    items: &[u8],
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(31 + items.len());
    bytes.push(ANSWERS);
    bytes.extend(incarnation.to_le_bytes());
    bytes.extend(shard.0.to_le_bytes());
    bytes.extend(round.to_le_bytes());
    bytes.extend(index.to_le_bytes());
    bytes.extend(received.bits().to_le_bytes());
    bytes.extend(items);
    bytes
}

/// Appends an answer to the items of a frame.
pub(super) fn push_bytes(item: &[u8], items: &mut Vec<u8>) {
    // A message has fewer than 2^28 bytes, and a list fewer than a packet.
    items.extend((item.len() as u32).to_le_bytes());
    items.extend(item);
}

impl NotLeading {
    pub fn encode(&self) -> Vec<u8> {
        refusal(NOT_LEADING, self.incarnation, (self.shard, self.round), self.term)
    }
}

impl Ended {
    pub fn encode(&self) -> Vec<u8> {
        refusal(ENDED, self.incarnation, (self.shard, self.round), self.last)
    }
}

fn refusal(kind: u8, incarnation: u64, (shard, round): (ShardId, u32), number: u64) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(incarnation.to_le_bytes());
    bytes.extend(shard.0.to_le_bytes());
    bytes.extend(round.to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes
}

/// Decodes a frame for a shard.
pub(super) fn decode_requests(mut bytes: &[u8]) -> Result<Requests<'_>, FrameError> {
    let rest = &mut bytes;
    let [kind] = take(rest)?;
    let incarnation = u64::from_le_bytes(take(rest)?);
    let worker = u16::from_le_bytes(take(rest)?);
    let round = u32::from_le_bytes(take(rest)?);
    let [flags] = take(rest)?;
    let flags = Flags::of_bits(flags).filter(|_| kind == REQUESTS).ok_or(FrameError)?;
    let mut items = Vec::new();
    while !rest.is_empty() {
        let number = u64::from_le_bytes(take(rest)?);
        let epoch = u32::from_le_bytes(take(rest)?);
        let age_ms = u32::from_le_bytes(take(rest)?);
        items.push(Item { number, epoch, age_ms, bytes: take_bytes(rest)? });
    }
    Ok(Requests { incarnation, worker, round, flags, items })
}

/// Decodes a frame for a worker.
pub(super) fn decode_answers(mut bytes: &[u8]) -> Result<ToWorker<'_>, FrameError> {
    let rest = &mut bytes;
    let [kind] = take(rest)?;
    let incarnation = u64::from_le_bytes(take(rest)?);
    let shard = ShardId(u16::from_le_bytes(take(rest)?));
    let round = u32::from_le_bytes(take(rest)?);
    let number = u64::from_le_bytes(take(rest)?);
    match kind {
        ANSWERS => {
            let received = Received::of_bits(u64::from_le_bytes(take(rest)?));
            let mut items = Vec::new();
            while !rest.is_empty() {
                items.push(take_bytes(rest)?);
            }
            Ok(ToWorker::Answers(Answers { incarnation, shard, round, index: number, received, items }))
        }
        NOT_LEADING if rest.is_empty() => {
            Ok(ToWorker::NotLeading(NotLeading { incarnation, shard, round, term: number }))
        }
        ENDED if rest.is_empty() => Ok(ToWorker::Ended(Ended { incarnation, shard, round, last: number })),
        _ => Err(FrameError),
    }
}

pub(super) fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], FrameError> {
    let (taken, rest) = bytes.split_first_chunk::<N>().ok_or(FrameError)?;
    *bytes = rest;
    Ok(*taken)
}

pub(super) fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], FrameError> {
    let length = u32::from_le_bytes(take(bytes)?) as usize;
    let (taken, rest) = bytes.split_at_checked(length).ok_or(FrameError)?;
    *bytes = rest;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn frames() -> [Vec<u8>; 4] {
        let mut items = Vec::new();
        push_item(Item { number: 0, epoch: 3, age_ms: 0, bytes: b"a" }, &mut items);
        push_item(Item { number: 9, epoch: 0, age_ms: 70, bytes: b"" }, &mut items);
        let flags = Flags { is_first: true, is_attached: true, wants_receipt: false };
        let requests = requests(7, 2, 5, flags, &items);
        let mut items = Vec::new();
        push_bytes(b"bc", &mut items);
        push_bytes(b"", &mut items);
        let answers = answers(7, (ShardId(4), 5), (77, Received::Request(9)), &items);
        let not_leading = NotLeading { incarnation: 7, shard: ShardId(4), round: 5, term: 6 };
        let ended = Ended { incarnation: 7, shard: ShardId(4), round: 5, last: 8 };
        [requests, answers, not_leading.encode(), ended.encode()]
    }

    /// Nodes of different versions exchange these bytes.
    #[test]
    fn frames_have_these_bytes() {
        let golden = [
            "00070000000000000002000500000003000000000000000003000000000000000100000061090000000000000000000000\
             4600000000000000",
            "0107000000000000000400050000004d0000000000000009000000000000000200000062630000\
             0000",
            "02070000000000000004000500000006000000\
             00000000",
            "0307000000000000000400050000000800000000000000",
        ];
        for (frame, golden) in frames().iter().zip(golden) {
            assert_eq!(hex(frame), golden.replace(' ', ""));
        }
    }

    #[test]
    fn frames_are_decoded_and_no_bytes_panic() {
        let [requests, answers, not_leading, ended] = frames();
        let decoded = decode_requests(&requests).expect("a frame");
        let flags = Flags { is_first: true, is_attached: true, wants_receipt: false };
        assert_eq!((decoded.incarnation, decoded.worker, decoded.round, decoded.flags), (7, 2, 5, flags));
        let items = [
            Item { number: 0, epoch: 3, age_ms: 0, bytes: b"a" },
            Item { number: 9, epoch: 0, age_ms: 70, bytes: b"" },
        ];
        assert_eq!(decoded.items, items);
        let expected: Vec<&[u8]> = vec![b"bc", b""];
        let of = |frame| match decode_answers(frame) {
            Ok(ToWorker::Answers(answers)) => (answers.index, answers.received, answers.items),
            other => panic!("{other:?}"),
        };
        assert_eq!(of(&answers), (77, Received::Request(9), expected));
        let receipt = super::answers(7, (ShardId(4), 5), (77, Received::Connections(9)), &[]);
        assert_eq!(receipt[23..], [9, 0, 0, 0, 0, 0, 0, 0x80]);
        assert_eq!(of(&receipt), (77, Received::Connections(9), Vec::new()));
        let expected = NotLeading { incarnation: 7, shard: ShardId(4), round: 5, term: 6 };
        assert_eq!(decode_answers(&not_leading), Ok(ToWorker::NotLeading(expected)));
        let expected = Ended { incarnation: 7, shard: ShardId(4), round: 5, last: 8 };
        assert_eq!(decode_answers(&ended), Ok(ToWorker::Ended(expected)));
        for frame in frames() {
            for length in 0..frame.len() {
                let _ = (decode_requests(&frame[..length]), decode_answers(&frame[..length]));
            }
            for at in 0..frame.len() {
                for value in 0..=255 {
                    let mut bad = frame.clone();
                    bad[at] = value;
                    let _ = (decode_requests(&bad), decode_answers(&bad));
                }
            }
        }
        assert_eq!(decode_requests(&requests[..requests.len() - 1]), Err(FrameError));
        assert_eq!(decode_answers(&[&not_leading[..], b"x"].concat()), Err(FrameError));
    }
}
