//! Frames between a worker and the leaders of shards. Little endian.
//!
//! ```text
//! requests       0 | incarnation u64 | worker u16 | round u32 | flags u8
//!                | items: number u64, epoch u32, age in ms u32, length u32, request
//! answers        1 | incarnation u64 | shard u16 | round u32 | index u64 | received u64 | items: length u32, answer
//! not leading    2 | incarnation u64 | shard u16 | round u32 | term u64
//! ended          3 | incarnation u64 | shard u16 | round u32 | last u64
//! routes wanted  4 | incarnation u64 | worker u16 | number u64 | progress
//! routes         5 | incarnation u64 | shard u16 | number u64 | flags u8 | position u64 | taken u32
//!                | items: 1 for an added filter or 0 for a removed one, length u32, filter
//!
//! progress       u8 0 | position u64 | taken u32, or u8 1 | position u64 | filter
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
    /// Route position of a node that knows all subscriptions in the answers.
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
    Routes(Page<'a>),
}

/// A frame for a shard.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ToShard<'a> {
    Requests(Requests<'a>),
    RoutesWanted(RoutesWanted),
}

/// Request of a worker for routes of a shard that has no replica on its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RoutesWanted {
    /// Incarnation of the node of the worker.
    pub incarnation: u64,
    pub worker: u16,
    /// Number of the request, which the answer repeats.
    pub number: u64,
    pub progress: Progress,
}

/// Routes of a shard that a node has already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// All changes up to this route position, and so many of those that follow.
    Changes { position: u64, taken: u32 },
    /// The part of a copy up to this filter. The copy was begun when the leader was at this position.
    Copy { position: u64, filter: Box<str> },
}

/// Page of the routes of a shard.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page<'a> {
    pub incarnation: u64,
    pub shard: ShardId,
    /// Number of the request.
    pub number: u64,
    pub flags: PageFlags,
    /// Position that the node has with the page. Of a copy: position of the leader when the copy was begun.
    pub position: u64,
    /// Number of changes after that position that the node has with the page.
    pub taken: u32,
    items: &'a [u8],
}

/// Properties of a page of routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PageFlags {
    /// The page belongs to a copy of all filters, in their order. Otherwise it has changes.
    pub is_copy: bool,
    /// First page of a copy.
    pub is_first: bool,
    /// Last page of a copy.
    pub is_last: bool,
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
const ROUTES_WANTED: u8 = 4;
const ROUTES: u8 = 5;

/// Items of a frame, with room in front of them for the other fields. The values of these fields are known after the
/// last item. With the room, the items need not be copied then.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Items<const HEAD: usize>(Vec<u8>);

/// Items of a frame of requests.
pub(super) type RequestItems = Items<16>;
/// Items of a frame of answers.
pub(super) type AnswerItems = Items<31>;

impl<const HEAD: usize> Items<HEAD> {
    pub fn new() -> Self {
        Self(vec![0; HEAD])
    }

    /// Number of bytes of the items.
    pub fn len(&self) -> usize {
        self.0.len() - HEAD
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Completes the frame with its fields, which have `HEAD` bytes together.
    fn complete<const FIELDS: usize>(mut self, fields: [&[u8]; FIELDS]) -> Vec<u8> {
        let mut room = &mut self.0[..HEAD];
        for field in fields {
            let (start, rest) = room.split_at_mut(field.len());
            start.copy_from_slice(field);
            room = rest;
        }
        assert!(room.is_empty(), "a field of the frame is missing");
        self.0
    }
}

impl RequestItems {
    /// Appends a request.
    pub fn push(&mut self, item: Item<'_>) {
        let Self(items) = self;
        items.extend(item.number.to_le_bytes());
        items.extend(item.epoch.to_le_bytes());
        items.extend(item.age_ms.to_le_bytes());
        push_bytes(item.bytes, items);
    }

    /// Makes a frame of requests.
    pub fn into_frame(self, incarnation: u64, worker: u16, round: u32, flags: Flags) -> Vec<u8> {
        let (worker, round) = (worker.to_le_bytes(), round.to_le_bytes());
        self.complete([&[REQUESTS], &incarnation.to_le_bytes(), &worker, &round, &[flags.bits()]])
    }
}

impl AnswerItems {
    /// Appends an answer.
    pub fn push(&mut self, answer: &[u8]) {
        push_bytes(answer, &mut self.0);
    }

    /// Makes a frame of answers.
    pub fn into_frame(
        self,
        incarnation: u64,
        (shard, round): (ShardId, u32),
        (index, received): (u64, Received),
    ) -> Vec<u8> {
        let (shard, round) = (shard.0.to_le_bytes(), round.to_le_bytes());
        let (index, received) = (index.to_le_bytes(), received.bits().to_le_bytes());
        self.complete([&[ANSWERS], &incarnation.to_le_bytes(), &shard, &round, &index, &received])
    }
}

/// Appends bytes after their length.
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

impl RoutesWanted {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![ROUTES_WANTED];
        bytes.extend(self.incarnation.to_le_bytes());
        bytes.extend(self.worker.to_le_bytes());
        bytes.extend(self.number.to_le_bytes());
        match &self.progress {
            Progress::Changes { position, taken } => {
                bytes.push(0);
                bytes.extend(position.to_le_bytes());
                bytes.extend(taken.to_le_bytes());
            }
            Progress::Copy { position, filter } => {
                bytes.push(1);
                bytes.extend(position.to_le_bytes());
                bytes.extend(filter.as_bytes());
            }
        }
        bytes
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, FrameError> {
        let incarnation = u64::from_le_bytes(take(bytes)?);
        let worker = u16::from_le_bytes(take(bytes)?);
        let number = u64::from_le_bytes(take(bytes)?);
        let [kind] = take(bytes)?;
        let position = u64::from_le_bytes(take(bytes)?);
        let progress = match kind {
            0 => Progress::Changes { position, taken: u32::from_le_bytes(take(bytes)?) },
            1 => {
                let filter = str::from_utf8(std::mem::take(bytes)).map_err(|_| FrameError)?.into();
                Progress::Copy { position, filter }
            }
            _ => return Err(FrameError),
        };
        bytes.is_empty().then_some(Self { incarnation, worker, number, progress }).ok_or(FrameError)
    }
}

impl<'a> Page<'a> {
    /// Makes an empty page. [`Page::push`] fills the items of a frame.
    pub fn new(
        incarnation: u64,
        (shard, number): (ShardId, u64),
        flags: PageFlags,
        (position, taken): (u64, u32),
        items: &'a [u8],
    ) -> Self {
        Self { incarnation, shard, number, flags, position, taken, items }
    }

    /// Appends a filter to the items of a page. Returns false if the page has no room for it.
    pub fn push(is_added: bool, filter: &str, items: &mut Vec<u8>) -> bool {
        let has_room = items.is_empty() || items.len() + ROUTE + filter.len() <= FULL;
        if has_room {
            items.push(u8::from(is_added));
            push_bytes(filter.as_bytes(), items);
        }
        has_room
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(32 + self.items.len());
        bytes.push(ROUTES);
        bytes.extend(self.incarnation.to_le_bytes());
        bytes.extend(self.shard.0.to_le_bytes());
        bytes.extend(self.number.to_le_bytes());
        let PageFlags { is_copy, is_first, is_last } = self.flags;
        bytes.push(u8::from(is_copy) | u8::from(is_first) << 1 | u8::from(is_last) << 2);
        bytes.extend(self.position.to_le_bytes());
        bytes.extend(self.taken.to_le_bytes());
        bytes.extend(self.items);
        bytes
    }

    fn decode(mut bytes: &'a [u8]) -> Result<Self, FrameError> {
        let rest = &mut bytes;
        let incarnation = u64::from_le_bytes(take(rest)?);
        let shard = ShardId(u16::from_le_bytes(take(rest)?));
        let number = u64::from_le_bytes(take(rest)?);
        let [bits] = take(rest)?;
        let [is_copy, is_first, is_last] = [1, 2, 4].map(|bit| bits & bit != 0);
        let flags = PageFlags { is_copy, is_first, is_last };
        let position = u64::from_le_bytes(take(rest)?);
        let taken = u32::from_le_bytes(take(rest)?);
        let items = *rest;
        while !rest.is_empty() {
            take_route(rest)?;
        }
        if bits > 7 || !is_copy && bits != 0 {
            return Err(FrameError);
        }
        Ok(Self { incarnation, shard, number, flags, position, taken, items })
    }

    /// Filters of the page, and whether each was added.
    pub fn routes(&self) -> impl Iterator<Item = (bool, &'a str)> {
        let mut rest = self.items;
        std::iter::from_fn(move || take_route(&mut rest).ok())
    }
}

/// Bytes of a filter in a page, in addition to its text.
const ROUTE: usize = 5;

fn take_route<'a>(bytes: &mut &'a [u8]) -> Result<(bool, &'a str), FrameError> {
    let [kind] = take(bytes)?;
    let filter = str::from_utf8(take_bytes(bytes)?).map_err(|_| FrameError)?;
    if kind > 1 { Err(FrameError) } else { Ok((kind == 1, filter)) }
}

/// Decodes a frame for a shard.
pub(super) fn decode_to_shard(mut bytes: &[u8]) -> Result<ToShard<'_>, FrameError> {
    match bytes.first() {
        Some(&ROUTES_WANTED) => {
            bytes = &bytes[1..];
            RoutesWanted::decode(&mut bytes).map(ToShard::RoutesWanted)
        }
        _ => decode_requests(bytes).map(ToShard::Requests),
    }
}

/// Decodes a frame of requests.
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
    if kind == ROUTES {
        return Page::decode(rest).map(ToWorker::Routes);
    }
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

/// Decodes bytes as a frame in each direction, for the fuzz target.
pub(in crate::worker) fn decode_any(bytes: &[u8]) {
    drop((decode_to_shard(bytes), decode_answers(bytes)));
}

/// Checks that bytes are refused, or are a request for routes or a page that is encoded to the same bytes, for the fuzz
/// target.
///
/// # Panics
/// If they are encoded to other bytes.
pub(in crate::worker) fn check_any(bytes: &[u8]) {
    if let Ok(ToShard::RoutesWanted(wanted)) = decode_to_shard(bytes) {
        assert_eq!(wanted.encode(), bytes);
    }
    if let Ok(ToWorker::Routes(page)) = decode_answers(bytes) {
        assert_eq!(page.encode(), bytes);
        page.routes().for_each(drop);
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

    fn frames() -> [Vec<u8>; 7] {
        let mut items = RequestItems::new();
        items.push(Item { number: 0, epoch: 3, age_ms: 0, bytes: b"a" });
        items.push(Item { number: 9, epoch: 0, age_ms: 70, bytes: b"" });
        let flags = Flags { is_first: true, is_attached: true, wants_receipt: false };
        let requests = items.into_frame(7, 2, 5, flags);
        let mut items = AnswerItems::new();
        items.push(b"bc");
        items.push(b"");
        let answers = items.into_frame(7, (ShardId(4), 5), (77, Received::Request(9)));
        let not_leading = NotLeading { incarnation: 7, shard: ShardId(4), round: 5, term: 6 };
        let ended = Ended { incarnation: 7, shard: ShardId(4), round: 5, last: 8 };
        let [wanted, copy_wanted] = wanted().map(|wanted| wanted.encode());
        let mut items = Vec::new();
        assert!(Page::push(true, "a/+", &mut items) && Page::push(false, "b", &mut items));
        let flags = PageFlags { is_copy: true, is_first: true, is_last: false };
        let page = Page::new(7, (ShardId(4), 8), flags, (77, 2), &items).encode();
        [requests, answers, not_leading.encode(), ended.encode(), wanted, copy_wanted, page]
    }

    fn wanted() -> [RoutesWanted; 2] {
        let changes = Progress::Changes { position: 77, taken: 3 };
        let copy = Progress::Copy { position: 78, filter: "a/+".into() };
        [changes, copy].map(|progress| RoutesWanted { incarnation: 7, worker: 2, number: 8, progress })
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
            "040700000000000000020008000000000000000\
             04d0000000000000003000000",
            "04070000000000000002000800000000000000014e00000000000000612f2b",
            "05070000000000000004000800000000000000034d00000000000000020000000103000000612f2b000100000062",
        ];
        for (frame, golden) in frames().iter().zip(golden) {
            assert_eq!(hex(frame), golden.replace(' ', ""));
        }
    }

    #[test]
    fn frames_are_decoded_and_no_bytes_panic() {
        let [requests, answers, not_leading, ended, changes, copy, page] = frames();
        for (frame, wanted) in [changes, copy].iter().zip(wanted()) {
            assert_eq!(decode_to_shard(frame), Ok(ToShard::RoutesWanted(wanted)));
        }
        let Ok(ToWorker::Routes(decoded)) = decode_answers(&page) else { panic!("a page") };
        assert_eq!((decoded.shard, decoded.number, decoded.position, decoded.taken), (ShardId(4), 8, 77, 2));
        assert!(decoded.flags.is_copy && decoded.flags.is_first && !decoded.flags.is_last);
        assert_eq!(decoded.routes().collect::<Vec<_>>(), [(true, "a/+"), (false, "b")]);
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
        let receipt = AnswerItems::new().into_frame(7, (ShardId(4), 5), (77, Received::Connections(9)));
        assert_eq!(receipt[23..], [9, 0, 0, 0, 0, 0, 0, 0x80]);
        assert_eq!(of(&receipt), (77, Received::Connections(9), Vec::new()));
        let expected = NotLeading { incarnation: 7, shard: ShardId(4), round: 5, term: 6 };
        assert_eq!(decode_answers(&not_leading), Ok(ToWorker::NotLeading(expected)));
        let expected = Ended { incarnation: 7, shard: ShardId(4), round: 5, last: 8 };
        assert_eq!(decode_answers(&ended), Ok(ToWorker::Ended(expected)));
        for frame in frames() {
            for length in 0..frame.len() {
                let _ = (decode_to_shard(&frame[..length]), decode_answers(&frame[..length]));
            }
            for at in 0..frame.len() {
                for value in 0..=255 {
                    let mut bad = frame.clone();
                    bad[at] = value;
                    let _ = (decode_to_shard(&bad), decode_answers(&bad));
                }
            }
        }
        assert_eq!(decode_requests(&requests[..requests.len() - 1]), Err(FrameError));
        assert_eq!(decode_answers(&[&not_leading[..], b"x"].concat()), Err(FrameError));
    }
}
