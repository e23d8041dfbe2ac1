//! Record sync: transfer of records from the cores to the copies of all nodes. All integers are little endian:
//!
//! ```text
//! ask      founded u128, revision u64 of the copy, whole u64 that it has a part of or 0, offset u64
//! tail     0 u8, founded u128, revision u64 of the sender, first u64, (length u32, batch)*
//! part     1 u8, founded u128, revision u64 of the whole, size u64, offset u64, part of the whole
//! ```
//!
//! A node asks one core. The core answers with the changes that the copy lacks, and sends every change from then on. An
//! `ask` contains the node's position, so it acknowledges earlier answers, and lost messages are requested again. A
//! core forgets a node when their link is lost, and the node may not notice the loss. So a node that receives nothing
//! asks again at intervals. A `whole` of `u64::MAX` ends the subscription.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use configstore::{Position, RecordUpdate, Records};
use link::{NodeId, Time};

use super::reader::Reader;

/// Interval after which an unanswered request or an unacknowledged answer is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Time without changes after which a node asks again.
const QUIET: Duration = Duration::from_secs(5);
/// Time for which a copy may be ahead of the cores. A core may be behind for a moment; after that time the copy is
/// invalid.
const AHEAD: Duration = Duration::from_secs(30);
/// Maximum bytes of batches in one answer, unless a single batch is longer.
const TAIL_BYTES: usize = 256 << 10;
/// Parts of the whole that are sent for one request.
const PARTS: u64 = 4;
/// Maximum size in bytes of a whole that is accepted.
const WHOLE_MAX: u64 = 1 << 30;
/// Time for which a whole is kept after the last request for it.
const COPY_TTL: Duration = Duration::from_secs(60);
const NO_MORE: u64 = u64::MAX;

/// Sizes of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSyncConfig {
    /// Bytes of a part of the whole.
    pub part_bytes: usize,
}

impl Default for RecordSyncConfig {
    fn default() -> Self {
        Self { part_bytes: 128 << 10 }
    }
}

/// Both sides of the protocol: a node that follows, and a core that sends.
#[derive(Debug)]
pub struct RecordSync {
    config: RecordSyncConfig,
    /// Position of this node's copy; `None` while an update is being applied to it, or if there is none.
    copy: Option<Position>,
    ahead_since: Option<Time>,
    deliveries: VecDeque<RecordUpdate>,
    /// Core that this node asks, and the state of the request.
    from: Option<NodeId>,
    awaiting: Awaiting,
    tries: usize,
    partial: Option<PartialCopy>,
    /// Last revision that the asked core reported.
    known_revision: Option<u64>,
    /// Nodes that have asked this core.
    readers: BTreeMap<NodeId, Subscriber>,
    whole: Option<Whole>,
}

/// State of a node that has a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaiting {
    /// The node is about to ask.
    Nothing,
    /// The node waits for an answer until this time, and then asks another core.
    Answer(Time),
    /// The node waits for changes until this time, and then asks again.
    News(Time),
}

/// Received part of the whole.
#[derive(Debug)]
struct PartialCopy {
    founded: u128,
    revision: u64,
    size: u64,
    bytes: Vec<u8>,
    /// Parts received since the last request.
    parts: u64,
}

#[derive(Debug)]
struct Whole {
    founded: u128,
    revision: u64,
    bytes: Arc<[u8]>,
    used: Time,
}

#[derive(Debug)]
struct Subscriber {
    at: Position,
    /// Time of the last answer since its last request.
    answered: Option<Time>,
    ahead_since: Option<Time>,
}

/// Request of a node that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SyncRequest {
    at: Position,
    whole: u64,
    offset: u64,
}

impl SyncRequest {
    fn encode(self) -> Vec<u8> {
        let mut out = self.at.founded.to_le_bytes().to_vec();
        for number in [self.at.revision, self.whole, self.offset] {
            out.extend(number.to_le_bytes());
        }
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let at = Position { founded: reader.u128()?, revision: reader.u64()? };
        let ask = Self { at, whole: reader.u64()?, offset: reader.u64()? };
        reader.is_empty().then_some(ask)
    }
}

/// Answer of a core.
#[derive(Debug, PartialEq, Eq)]
enum SyncAnswer<'a> {
    Tail { founded: u128, revision: u64, first: u64, batches: Vec<&'a [u8]> },
    Part { founded: u128, revision: u64, size: u64, offset: u64, bytes: &'a [u8] },
}

impl<'a> SyncAnswer<'a> {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Tail { founded, revision, first, batches } => {
                out.push(0);
                out.extend(founded.to_le_bytes());
                out.extend(revision.to_le_bytes());
                out.extend(first.to_le_bytes());
                for batch in batches {
                    out.extend((batch.len() as u32).to_le_bytes());
                    out.extend(*batch);
                }
            }
            Self::Part { founded, revision, size, offset, bytes } => {
                out.push(1);
                out.extend(founded.to_le_bytes());
                for number in [revision, size, offset] {
                    out.extend(number.to_le_bytes());
                }
                out.extend(*bytes);
            }
        }
        out
    }

    fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let kind = reader.u8()?;
        let (founded, revision) = (reader.u128()?, reader.u64()?);
        match kind {
            0 => {
                let first = reader.u64()?;
                let mut batches = Vec::new();
                while !reader.is_empty() {
                    let length = reader.u32()? as usize;
                    batches.push(reader.bytes(length)?);
                }
                Some(Self::Tail { founded, revision, first, batches })
            }
            1 => {
                let (size, offset) = (reader.u64()?, reader.u64()?);
                Some(Self::Part { founded, revision, size, offset, bytes: reader.rest() })
            }
            _ => None,
        }
    }
}

/// Changes that a copy lacks.
enum Missing {
    Nothing,
    /// Batches from this revision on.
    Batches(u64, Vec<Arc<[u8]>>),
    All,
    /// The copy is ahead of the core, because the core is behind or the copy is invalid.
    Ahead,
}

fn missing(at: Position, founded: u128, records: &Records) -> Missing {
    if at.founded != founded && at.founded != 0 {
        return Missing::All;
    }
    let revision = if at.founded == founded { at.revision } else { 0 };
    match revision.cmp(&records.revision()) {
        std::cmp::Ordering::Equal => Missing::Nothing,
        std::cmp::Ordering::Greater => Missing::Ahead,
        std::cmp::Ordering::Less => match records.since(revision, TAIL_BYTES) {
            Some(batches) => Missing::Batches(revision + 1, batches),
            None => Missing::All,
        },
    }
}

/// Returns whether a copy has been ahead for too long.
fn is_ahead_too_long(now: Time, since: &mut Option<Time>) -> bool {
    since.get_or_insert(now).after(AHEAD) <= now
}

impl RecordSync {
    pub fn new(config: RecordSyncConfig) -> Self {
        Self {
            config,
            copy: None,
            ahead_since: None,
            deliveries: VecDeque::new(),
            from: None,
            awaiting: Awaiting::Nothing,
            tries: 0,
            partial: None,
            known_revision: None,
            readers: BTreeMap::new(),
            whole: None,
        }
    }

    /// Sets the position of this node's copy, which waits for more.
    pub fn set_position(&mut self, at: Position) {
        self.copy = Some(at);
        // It reports the position to the core that it has asked.
        self.awaiting = Awaiting::Nothing;
    }

    pub fn poll_delivery(&mut self) -> Option<RecordUpdate> {
        self.deliveries.pop_front()
    }

    /// Returns the last revision that the asked core reported.
    pub fn known_revision(&self) -> Option<u64> {
        self.known_revision
    }

    pub fn lost(&mut self, node: NodeId) {
        self.readers.remove(&node);
        if self.from == Some(node) {
            (self.from, self.known_revision) = (None, None);
        }
    }

    fn deliver(&mut self, delivery: RecordUpdate) {
        (self.copy, self.partial, self.awaiting) = (None, None, Awaiting::Nothing);
        self.deliveries.push_back(delivery);
    }

    /// Updates the node's own copy from its replica, on a core.
    pub fn sync_own(&mut self, now: Time, founded: u128, records: &Records) {
        let Some(at) = self.copy else { return };
        match missing(at, founded, records) {
            Missing::Nothing => {}
            Missing::Batches(first, batches) => self.deliver(RecordUpdate::Tail { founded, first, batches }),
            Missing::Ahead if !is_ahead_too_long(now, &mut self.ahead_since) => return,
            Missing::Ahead | Missing::All => {
                let bytes = records.whole().into();
                self.deliver(RecordUpdate::Whole { founded, bytes });
            }
        }
        self.ahead_since = None;
    }

    /// Returns this node's requests with their recipients. `cores` are the linked cores, the preferred one first.
    pub fn ask(&mut self, now: Time, cores: &[NodeId]) -> Vec<(NodeId, Vec<u8>)> {
        let mut out = Vec::new();
        let Some(at) = self.copy else { return out };
        let is_there = self.from.is_some_and(|from| cores.contains(&from));
        if let Awaiting::Answer(until) | Awaiting::News(until) = self.awaiting
            && is_there
            && until > now
        {
            return out;
        }
        let is_overdue = matches!(self.awaiting, Awaiting::Answer(until) if until <= now);
        if !is_there || is_overdue {
            if let Some(from) = self.from.filter(|_| is_there && cores.len() > 1) {
                out.push((from, SyncRequest { at, whole: NO_MORE, offset: 0 }.encode()));
            }
            self.tries += usize::from(is_overdue);
            self.from = cores.get(self.tries % cores.len().max(1)).copied();
        }
        let Some(from) = self.from else { return out };
        let (whole, offset) = match &mut self.partial {
            Some(partial) => {
                partial.parts = 0;
                (partial.revision, partial.bytes.len() as u64)
            }
            None => (0, 0),
        };
        self.awaiting = Awaiting::Answer(now.after(RETRY_INTERVAL));
        out.push((from, SyncRequest { at, whole, offset }.encode()));
        out
    }

    /// Handles a core's answer or change. Returns false for a message that this version does not know.
    pub fn answered(&mut self, now: Time, from: NodeId, ours: u128, bytes: &[u8]) -> bool {
        let Some(answered) = SyncAnswer::decode(bytes) else { return false };
        let Some(at) = self.copy.filter(|_| self.from == Some(from)) else { return true };
        match answered {
            SyncAnswer::Tail { founded, .. } | SyncAnswer::Part { founded, .. } if founded != ours => {}
            SyncAnswer::Tail { founded, revision, first, batches } => {
                self.known_revision = Some(revision);
                if batches.is_empty() {
                    // An update is applied as it arrives; a core that is behind is judged when it is asked.
                    let is_behind = at.founded == founded && revision < at.revision;
                    self.awaiting = Awaiting::News(now.after(if is_behind { RETRY_INTERVAL } else { QUIET }));
                    return true;
                }
                let next = if at.founded == founded { at.revision.saturating_add(1) } else { 1 };
                if first == next {
                    let batches = batches.into_iter().map(Arc::from).collect();
                    self.deliver(RecordUpdate::Tail { founded, first, batches });
                } else {
                    self.awaiting = Awaiting::Nothing;
                }
            }
            SyncAnswer::Part { founded, revision, size, offset, bytes } => {
                self.known_revision =
                    Some(self.known_revision.map_or(revision, |known_revision| known_revision.max(revision)));
                self.part(now, (founded, revision, size), offset, bytes);
            }
        }
        true
    }

    fn part(&mut self, now: Time, (founded, revision, size): (u128, u64, u64), offset: u64, bytes: &[u8]) {
        let is_of_it = |partial: &PartialCopy| {
            (partial.founded, partial.revision, partial.size) == (founded, revision, size)
        };
        if offset == 0 && !self.partial.as_ref().is_some_and(is_of_it) && size <= WHOLE_MAX {
            self.partial = Some(PartialCopy { founded, revision, size, bytes: Vec::new(), parts: 0 });
        }
        let Some(partial) = self.partial.as_mut().filter(|partial| is_of_it(partial)) else { return };
        let has = partial.bytes.len() as u64;
        if offset != has || bytes.len() as u64 > size - has {
            return;
        }
        partial.bytes.extend(bytes);
        partial.parts += 1;
        if partial.bytes.len() as u64 == size {
            let bytes = std::mem::take(&mut partial.bytes).into();
            return self.deliver(RecordUpdate::Whole { founded, bytes });
        }
        self.awaiting = if partial.parts >= PARTS {
            Awaiting::Nothing
        } else {
            Awaiting::Answer(now.after(RETRY_INTERVAL))
        };
    }

    /// Handles a node's request on a core, and returns the answers. Returns `None` for a message that this version
    /// does not know.
    pub fn handle_request(
        &mut self,
        now: Time,
        from: NodeId,
        bytes: &[u8],
        (founded, records): (u128, &Records),
    ) -> Option<Vec<Vec<u8>>> {
        let SyncRequest { at, whole, offset } = SyncRequest::decode(bytes)?;
        if whole == NO_MORE {
            self.readers.remove(&from);
            return Some(Vec::new());
        }
        let ahead_since = self.readers.get(&from).and_then(|reader| reader.ahead_since);
        let mut reader = Subscriber { at, answered: None, ahead_since };
        let answered =
            if self.whole.as_ref().is_some_and(|kept| (kept.founded, kept.revision) == (founded, whole)) {
                reader.answered = Some(now);
                self.parts(now, offset)
            } else {
                self.answer(now, &mut reader, founded, records)
            };
        self.readers.insert(from, reader);
        Some(answered)
    }

    fn answer(
        &mut self,
        now: Time,
        reader: &mut Subscriber,
        founded: u128,
        records: &Records,
    ) -> Vec<Vec<u8>> {
        let revision = records.revision();
        let nothing =
            SyncAnswer::Tail { founded, revision, first: revision.saturating_add(1), batches: Vec::new() };
        let is_ahead = matches!(missing(reader.at, founded, records), Missing::Ahead);
        if !is_ahead {
            reader.ahead_since = None;
        }
        match missing(reader.at, founded, records) {
            Missing::Nothing => vec![nothing.encode()],
            Missing::Ahead if !is_ahead_too_long(now, &mut reader.ahead_since) => vec![nothing.encode()],
            Missing::Batches(first, batches) => {
                reader.answered = Some(now);
                let batches = batches.iter().map(|batch| &**batch).collect();
                vec![SyncAnswer::Tail { founded, revision, first, batches }.encode()]
            }
            Missing::All | Missing::Ahead => {
                reader.answered = Some(now);
                self.keep_whole(now, founded, records);
                self.parts(now, 0)
            }
        }
    }

    /// Creates the whole to send, unless an earlier one is kept whose following batches still exist.
    fn keep_whole(&mut self, now: Time, founded: u128, records: &Records) {
        let is_good = self
            .whole
            .as_ref()
            .is_some_and(|kept| kept.founded == founded && records.since(kept.revision, 1).is_some());
        if !is_good {
            let bytes = records.whole().into();
            self.whole = Some(Whole { founded, revision: records.revision(), bytes, used: now });
        }
    }

    fn parts(&mut self, now: Time, offset: u64) -> Vec<Vec<u8>> {
        let Some(kept) = &mut self.whole else { return Vec::new() };
        kept.used = now;
        let size = kept.bytes.len() as u64;
        let begin = usize::try_from(offset.min(size)).unwrap_or(usize::MAX);
        let mut at = begin as u64;
        let chunks = kept.bytes[begin..].chunks(self.config.part_bytes).take(PARTS as usize);
        chunks
            .map(|bytes| {
                let part = SyncAnswer::Part {
                    founded: kept.founded,
                    revision: kept.revision,
                    size,
                    offset: at,
                    bytes,
                };
                at += bytes.len() as u64;
                part.encode()
            })
            .collect()
    }

    /// Sends new changes to the nodes that have asked, on a core.
    pub fn push(&mut self, now: Time, founded: u128, records: &Records) -> Vec<(NodeId, Vec<u8>)> {
        self.whole.take_if(|kept| kept.used.after(COPY_TTL) <= now);
        let mut readers = std::mem::take(&mut self.readers);
        let mut out = Vec::new();
        for (id, reader) in &mut readers {
            let awaiting = reader.answered.is_some_and(|answered| answered.after(RETRY_INTERVAL) > now);
            let needs_more = match missing(reader.at, founded, records) {
                Missing::Nothing => false,
                // A node that is ahead asks again until its copy is declared invalid.
                Missing::Ahead => is_ahead_too_long(now, &mut reader.ahead_since),
                Missing::Batches(..) | Missing::All => true,
            };
            if !awaiting && needs_more {
                let frames = self.answer(now, reader, founded, records);
                out.extend(frames.into_iter().map(|frame| (*id, frame)));
            }
        }
        self.readers = readers;
        out
    }
}

#[cfg(test)]
mod tests;
