//! Assigns a location and a header to each record, and updates the indexes.

use std::sync::Arc;

use crate::id::GroupId;
use crate::options::{Options, mutated};
use crate::queue::{Item, Record};
use crate::record::{Kind, RecordHeader};
use crate::segment::Segment;
use crate::segment_index::{DONE, SegmentIndex, encode_done};
use crate::state::{Group, State};

/// An encoded commit with its location, and the events to report when it is durable.
#[derive(Default)]
pub(crate) struct Prepared {
    pub at: u64,
    pub records: usize,
    pub queued_bytes: u64,
    pub entries: Vec<(GroupId, u64)>,
    pub done: Vec<(GroupId, u64)>,
    /// Numbers of parts of checkpoints.
    pub parts: Vec<(GroupId, u64)>,
    pub floor: Option<u64>,
    /// Groups that are dropped.
    pub dropped: Vec<GroupId>,
    /// Indexes of the dropped groups. They may be large, and are freed when no lock is held.
    pub removed: Vec<Group>,
    /// Groups, entries and offsets of the bodies.
    pub bodies: Vec<(GroupId, u64, u64)>,
    pub checkpoint_bytes: u64,
    pub moved: u64,
    pub moved_bytes: u64,
}

/// Content of a record.
pub(crate) enum Payload {
    None,
    Entry(Arc<Vec<u8>>),
    Part(Arc<[u8]>),
    Done([u8; DONE]),
}

impl Payload {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Entry(bytes) => bytes,
            Self::Part(bytes) => bytes,
            Self::Done(bytes) => bytes,
        }
    }
}

/// Adds the record to the indexes. Returns `None` for a move that a newer version of the part, or a drop of its group,
/// made unnecessary.
pub(crate) fn layout(
    state: &mut State,
    segment: &Segment,
    at: u64,
    item: &Item,
    prepared: &mut Prepared,
    options: &Options,
) -> Option<(RecordHeader, Payload)> {
    let kind = item.kind();
    let mut header = RecordHeader {
        crc: 0,
        length: 0,
        chain: 0,
        kind,
        group: GroupId(0),
        commit: 0,
        term: 0,
        index: 0,
        part: 0,
        flags: 0,
    };
    let mut payload = Payload::None;
    match item {
        Item::Record(Record::Entry { group, term, index, payload: bytes }) => {
            (header.group, header.term, header.index) = (*group, *term, *index);
            payload = Payload::Entry(bytes.clone());
            state.group(*group).entries.push(segment.id, *term, *index, at);
            match prepared.entries.iter_mut().find(|(known, _)| known == group) {
                Some((_, last)) => *last = *index,
                None => prepared.entries.push((*group, *index)),
            }
        }
        Item::Record(Record::Part { group, part, checkpoint, payload: bytes }) => {
            (header.group, header.part, header.index) = (*group, *part, *checkpoint);
            payload = Payload::Part(bytes.clone());
            match prepared.parts.iter_mut().find(|(known, _)| known == group) {
                Some((_, count)) => *count += 1,
                None => prepared.parts.push((*group, 1)),
            }
        }
        Item::Bodies { group, index, payload: bytes } => {
            (header.group, header.index) = (*group, *index);
            payload = Payload::Part(bytes.clone());
            prepared.bodies.push((*group, *index, at));
            if mutated!(options, DropBodies) {
                return None;
            }
        }
        Item::MovedPart { group, part, location, payload: bytes } => {
            prepared.moved += 1;
            state.moving = state.moving.saturating_sub(1);
            let known = state.groups.get(group);
            let is_live = known.is_some_and(|known| known.part_index.movable(*part, *location));
            if !is_live && !mutated!(options, MoveReplaced) {
                return None;
            }
            (header.group, header.part, header.index) = (*group, *part, location.version);
            payload = Payload::Part(bytes.clone());
        }
        Item::Record(Record::Done { group, checkpoint }) => {
            (header.group, header.index) = (*group, *checkpoint);
            prepared.done.push((*group, *checkpoint));
        }
        Item::MovedDone { group, checkpoint } => {
            prepared.moved += 1;
            state.moving = state.moving.saturating_sub(1);
            let known = state.groups.get(group);
            if known.and_then(|known| known.part_index.checkpoint) != Some(*checkpoint) {
                return None;
            }
            (header.group, header.index) = (*group, *checkpoint);
        }
        Item::Floor(floor) => {
            header.index = floor.0;
            prepared.floor = Some(floor.0);
        }
        Item::Opened => {}
        Item::Lost { group, first, last } => {
            (header.group, header.index, header.term) = (*group, *first, *last);
        }
        Item::Dropped(group) => {
            header.group = *group;
            prepared.dropped.push(*group);
            prepared.removed.extend(state.remove_group(*group));
        }
    }
    if matches!(kind, Kind::Done | Kind::MovedDone) {
        header.length = DONE as u32;
    } else {
        header.length = payload.bytes().len() as u32;
    }
    if kind != Kind::Entry {
        if !matches!(kind, Kind::Floor | Kind::Opened | Kind::Bodies | Kind::Dropped) {
            prepared.checkpoint_bytes += header.size();
        }
        if matches!(kind, Kind::MovedPart | Kind::MovedDone | Kind::Bodies) {
            prepared.moved_bytes += header.size();
        }
        // Until new bodies are durable, the earlier ones are read.
        if kind != Kind::Bodies {
            let mut index = SegmentIndex::default();
            index.push(&header, at, &[]);
            index.others.iter().for_each(|other| state.apply_other(segment.id, other));
        }
    }
    if matches!(kind, Kind::Done | Kind::MovedDone) {
        let (live, digest) = state.group(header.group).part_index.figures();
        payload = Payload::Done(encode_done(live, digest));
    }
    Some((header, payload))
}
