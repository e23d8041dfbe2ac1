//! Queue of the records that wait to be written.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::id::{GroupId, SegmentId};
use crate::part_index::PartLocation;
use crate::record::{Kind, size};

/// A record that a group appends. Payloads are shared, not copied. Their maximum is 1 MiB plus the largest packet
/// (257 MiB). The log releases the payload of an entry before it reports that the entry is durable, so the owner
/// may reuse the memory then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A batch of commands. Indexes of a group begin at 1 and are consecutive. An index that exists replaces that
    /// entry and all later ones, as in a replicated log.
    Entry { group: GroupId, term: u64, index: u64, payload: Arc<Vec<u8>> },
    /// A part of the checkpoint that covers the entries up to `checkpoint`. Without payload, it removes the part. It is
    /// valid once [`Done`](Self::Done) of that checkpoint is durable. Low priority.
    Part { group: GroupId, part: u32, checkpoint: u64, payload: Arc<[u8]> },
    /// All parts that changed since the last checkpoint were appended. The checkpoints of a group have increasing
    /// indexes. Low priority.
    ///
    /// Repeated with the index of the last checkpoint (0 if there is none), it removes the parts that were appended
    /// since: the checkpoint that they were for is given up.
    Done { group: GroupId, checkpoint: u64 },
}

impl Record {
    /// Bytes of the payload.
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

/// State of a log after it has dropped groups that have no owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterDrop {
    /// The same log. The owner has noted that the groups may be gone.
    Same,
    /// Another copy of it ([`Identity::copy`](crate::Identity::copy)): promises to other nodes are forgotten.
    AnotherCopy,
}

/// A record of a group or of the log itself.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Record(Record),
    /// Bodies that are still needed of the entry `index`. Low priority.
    Bodies {
        group: GroupId,
        index: u64,
        payload: Arc<[u8]>,
    },
    MovedPart {
        group: GroupId,
        part: u32,
        /// Location from which it is moved.
        location: PartLocation,
        payload: Arc<[u8]>,
    },
    MovedDone {
        group: GroupId,
        checkpoint: u64,
    },
    Floor(SegmentId),
    Opened,
    Lost {
        group: GroupId,
        first: u64,
        last: u64,
    },
    Dropped(GroupId),
}

impl Item {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Record(Record::Entry { .. }) => Kind::Entry,
            Self::Record(Record::Part { .. }) => Kind::Part,
            Self::Record(Record::Done { .. }) => Kind::Done,
            Self::Bodies { .. } => Kind::Bodies,
            Self::MovedPart { .. } => Kind::MovedPart,
            Self::MovedDone { .. } => Kind::MovedDone,
            Self::Floor(_) => Kind::Floor,
            Self::Opened => Kind::Opened,
            Self::Lost { .. } => Kind::Lost,
            Self::Dropped(_) => Kind::Dropped,
        }
    }

    /// Bytes of the record in the log.
    pub fn size(&self) -> u64 {
        match self {
            Self::Record(Record::Done { .. }) | Self::MovedDone { .. } => size(crate::segment_index::DONE),
            Self::Record(record) => size(record.len()),
            Self::MovedPart { payload, .. } | Self::Bodies { payload, .. } => size(payload.len()),
            Self::Floor(_) | Self::Opened | Self::Lost { .. } | Self::Dropped(_) => size(0),
        }
    }

    /// Returns whether a drop of the group makes the queued record void. A moved record is left out when it is written,
    /// because it is not live then.
    pub fn is_void_after_drop_of(&self, group: GroupId) -> bool {
        let of = match self {
            Self::Record(
                Record::Entry { group, .. } | Record::Part { group, .. } | Record::Done { group, .. },
            )
            | Self::Bodies { group, .. }
            | Self::Lost { group, .. } => *group,
            Self::MovedPart { .. } | Self::MovedDone { .. } => return false,
            Self::Floor(_) | Self::Opened | Self::Dropped(_) => return false,
        };
        of == group
    }

    /// Returns the group that the record drops.
    pub fn dropped(&self) -> Option<GroupId> {
        if let Self::Dropped(group) = self { Some(*group) } else { None }
    }

    fn low(&self) -> bool {
        match self {
            Self::Record(Record::Entry { .. }) | Self::Floor(_) | Self::Opened => false,
            Self::Lost { .. } | Self::Dropped(_) => false,
            Self::Record(_) | Self::Bodies { .. } | Self::MovedPart { .. } | Self::MovedDone { .. } => true,
        }
    }
}

/// Records that wait. The appending group bounds the queue: it limits what it has in flight, which
/// [`Stats::queue_bytes`](crate::Stats::queue_bytes) shows.
#[derive(Default)]
pub(crate) struct Queue {
    /// Drops of groups. They are written before all other records: queued records of their groups are those that follow
    /// the drop.
    pub drops: VecDeque<Item>,
    /// Records that free space or that others wait for: they are written even when nothing else fits. Records of a
    /// start are here too, because no part may precede them.
    pub first: VecDeque<Item>,
    pub high: VecDeque<Item>,
    pub low: VecDeque<Item>,
    /// Bodies. A checkpoint does not wait for them: it may be what makes room for them.
    pub bodies: VecDeque<Item>,
    /// Groups that have no owner. They are dropped, in this order, when the log has to free segments.
    pub abandoned: Vec<(GroupId, AfterDrop)>,
    /// True when the writer has work other than records.
    pub kicked: bool,
    /// True when the writer has nothing to do and has to be woken. A busy writer is not woken, which saves a system
    /// call.
    pub idle: bool,
    pub stopped: bool,
    /// True when no more records are accepted.
    pub closed: bool,
}

impl Queue {
    pub fn push(&mut self, item: Item, urgent: &[GroupId]) {
        let queue = match &item {
            Item::Dropped(_) => &mut self.drops,
            Item::Floor(_) | Item::Opened => &mut self.first,
            Item::Bodies { .. } => &mut self.bodies,
            Item::Record(Record::Entry { group, .. }) if urgent.contains(group) => &mut self.first,
            _ if item.low() => &mut self.low,
            _ => &mut self.high,
        };
        queue.push_back(item);
    }

    pub fn is_empty(&self) -> bool {
        [&self.drops, &self.first, &self.high, &self.low, &self.bodies].iter().all(|queue| queue.is_empty())
    }

    /// Queues the drop of a group, and removes its records. Returns the number and the bytes of what was removed.
    pub fn drop_group(&mut self, group: GroupId) -> (u64, u64) {
        // The next one of this number has an owner.
        self.abandoned.retain(|(abandoned, _)| *abandoned != group);
        self.push(Item::Dropped(group), &[]);
        remove_void([&mut self.first, &mut self.high, &mut self.low, &mut self.bodies], group)
    }
}

/// Removes the records of a group that is dropped. Returns their number and their bytes.
pub(crate) fn remove_void(queues: [&mut VecDeque<Item>; 4], group: GroupId) -> (u64, u64) {
    let (mut records, mut bytes) = (0, 0);
    for queue in queues {
        queue.retain(|item| {
            let is_void = item.is_void_after_drop_of(group);
            if is_void {
                (records, bytes) = (records + 1, bytes + item.size());
            }
            !is_void
        });
    }
    (records, bytes)
}
