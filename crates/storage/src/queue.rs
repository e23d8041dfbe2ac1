//! What waits to be written.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::id::{GroupId, SegmentId};
use crate::record::{Kind, size};

/// What a group appends. Payloads are shared, not copied; at most 1 MiB and the largest packet (257 MiB). The log has let go of an
/// entry's when it tells that it is durable, so whoever made it may use the memory again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A batch of commands. Indexes of a group begin at 1 and follow each other; an index that is already there replaces that entry and
    /// all after it, as in a replicated log.
    Entry { group: GroupId, term: u64, index: u64, payload: Arc<Vec<u8>> },
    /// A part of the checkpoint that stands for the entries up to `checkpoint`; without payload, the part is gone. It counts once
    /// [`Done`](Self::Done) of that checkpoint is durable. Low priority.
    Part { group: GroupId, part: u32, checkpoint: u64, payload: Arc<[u8]> },
    /// All parts of the checkpoint that changed since the last one were appended. Checkpoints of a group grow. Low priority.
    Done { group: GroupId, checkpoint: u64 },
}

impl Record {
    /// Bytes of payload.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Entry { payload, .. } => payload.len(),
            Self::Part { payload, .. } => payload.len(),
            Self::Done { .. } => 0,
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A record, or one that the log writes for itself.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Record(Record),
    MovedPart { group: GroupId, part: u32, version: u64, payload: Arc<[u8]> },
    MovedDone { group: GroupId, checkpoint: u64 },
    Floor(SegmentId),
    Opened,
    Lost { group: GroupId, first: u64, last: u64 },
}

impl Item {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Record(Record::Entry { .. }) => Kind::Entry,
            Self::Record(Record::Part { .. }) => Kind::Part,
            Self::Record(Record::Done { .. }) => Kind::Done,
            Self::MovedPart { .. } => Kind::MovedPart,
            Self::MovedDone { .. } => Kind::MovedDone,
            Self::Floor(_) => Kind::Floor,
            Self::Opened => Kind::Opened,
            Self::Lost { .. } => Kind::Lost,
        }
    }

    /// Bytes in the log.
    pub fn size(&self) -> u64 {
        match self {
            Self::Record(Record::Done { .. }) | Self::MovedDone { .. } => size(crate::segment_index::DONE),
            Self::Record(record) => size(record.len()),
            Self::MovedPart { payload, .. } => size(payload.len()),
            Self::Floor(_) | Self::Opened | Self::Lost { .. } => size(0),
        }
    }

    fn low(&self) -> bool {
        match self {
            Self::Record(Record::Entry { .. }) | Self::Floor(_) | Self::Opened | Self::Lost { .. } => false,
            Self::Record(_) | Self::MovedPart { .. } | Self::MovedDone { .. } => true,
        }
    }
}

/// Bounded by whoever appends: a group has at most so much in flight, which [`Stats::queue_bytes`](crate::Stats::queue_bytes) shows.
#[derive(Default)]
pub(crate) struct Queue {
    /// What frees space or others wait for: it goes even where nothing else fits. What a start writes, too, because no part may precede it.
    pub first: VecDeque<Item>,
    pub high: VecDeque<Item>,
    pub low: VecDeque<Item>,
    /// Something else than records needs the writer.
    pub kicked: bool,
    /// The writer has nothing to do and wants to be woken: what it is not waiting for costs no system call.
    pub idle: bool,
    pub stopped: bool,
    /// Nothing is taken any more.
    pub closed: bool,
}

impl Queue {
    pub fn push(&mut self, item: Item, urgent: &[GroupId]) {
        let queue = match &item {
            Item::Floor(_) | Item::Opened => &mut self.first,
            Item::Record(Record::Entry { group, .. }) if urgent.contains(group) => &mut self.first,
            _ if item.low() => &mut self.low,
            _ => &mut self.high,
        };
        queue.push_back(item);
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.high.is_empty() && self.low.is_empty()
    }
}
