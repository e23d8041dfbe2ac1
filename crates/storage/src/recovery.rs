//! What was found when the log was opened, group by group.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::id::GroupId;
use crate::part_index::PartLocation;
use crate::record::Kind;
use crate::segment::Pin;
use crate::state::{Shared, Window};

/// What was found, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Segments with records.
    pub segments: usize,
    pub records: u64,
    /// Bytes of records in them.
    pub bytes: u64,
    /// Bytes of a last commit that is not complete. A crash while it was written leaves that, and so does damage to a commit that was durable.
    pub cut_bytes: u64,
    /// Full segments whose index was damaged, and was made again from their records.
    pub indexes_rebuilt: usize,
    /// How long opening took.
    pub took: Duration,
}

/// Where each group continues.
pub struct Recovery {
    pub report: RecoveryReport,
    /// In the order of their ids; those that never wrote are not here.
    pub groups: Vec<RecoveredGroup>,
}

/// One group: its checkpoint, and the entries after it. It can go to the thread that restores the group. What it reads is verified then;
/// an error means damage that opening could not see.
pub struct RecoveredGroup {
    shared: Arc<Shared>,
    pub group: GroupId,
    /// Of the last entry; 0 when there is none.
    pub term: u64,
    /// The entries up to it are in the checkpoint. `None`: there is no checkpoint, and entries begin at 1.
    pub checkpoint: Option<u64>,
    /// Index of the last entry or of the checkpoint, whichever is higher.
    pub last: u64,
    /// Entries that a repair could not save: first and last index. They are passed over.
    pub lost: Vec<(u64, u64)>,
    parts: Vec<(u32, PartLocation, Pin)>,
}

/// An entry as it was appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredEntry {
    pub term: u64,
    pub index: u64,
    pub payload: Arc<[u8]>,
}

impl Recovery {
    pub(crate) fn new(shared: &Arc<Shared>, report: RecoveryReport) -> Self {
        let ids: Vec<GroupId> = shared.state().groups.keys().copied().collect();
        let groups = ids.into_iter().map(|group| RecoveredGroup::new(shared, group)).collect();
        Self { report, groups }
    }
}

impl RecoveredGroup {
    fn new(shared: &Arc<Shared>, group: GroupId) -> Self {
        let state = shared.state();
        let known = &state.groups[&group];
        let mut parts: Vec<_> = known
            .part_index
            .live()
            .filter_map(|(part, location)| {
                Some((part, location, state.segments.get(&location.segment)?.pin()))
            })
            .collect();
        // As they are on the disk.
        parts.sort_by_key(|(_, location, _)| (location.segment, location.offset));
        let last = known.entries.last();
        Self {
            shared: shared.clone(),
            group,
            term: last.map_or(0, |entry| entry.term),
            checkpoint: known.part_index.checkpoint,
            last: last.map_or(0, |entry| entry.index).max(known.part_index.checkpoint.unwrap_or(0)),
            lost: known.part_index.lost.clone(),
            parts,
        }
    }

    /// How many parts the checkpoint has.
    #[must_use]
    pub fn parts_count(&self) -> usize {
        self.parts.len()
    }

    /// Bytes of the checkpoint's parts.
    #[must_use]
    pub fn parts_bytes(&self) -> u64 {
        self.parts.iter().map(|(_, location, _)| u64::from(location.length)).sum()
    }

    /// The parts of the checkpoint, in no order.
    pub fn parts(&self) -> impl Iterator<Item = Result<(u32, Arc<[u8]>), Error>> + '_ {
        let mut window = Window::for_many();
        self.parts.iter().map(move |(part, location, pin)| {
            let (header, payload) = window.read(pin, location.offset)?;
            let is = matches!(header.kind, Kind::Part | Kind::MovedPart)
                && (header.group, header.part, header.index) == (self.group, *part, location.version);
            if !is {
                return Err(
                    pin.corrupt(location.offset, format!("this is not part {part} of {}", self.group))
                );
            }
            Ok((*part, payload))
        })
    }

    /// The entries after the checkpoint, in the order of their indexes, one in memory at a time. To be read before the group appends.
    pub fn entries(&self) -> impl Iterator<Item = Result<RecoveredEntry, Error>> + '_ {
        let mut at = self.checkpoint.unwrap_or(0);
        let mut window = Window::for_many();
        std::iter::from_fn(move || {
            let (location, pin) = {
                let state = self.shared.state();
                let entries = &state.groups.get(&self.group)?.entries;
                let location = entries.get(entries.after(at)?)?;
                if location.index > self.last {
                    return None;
                }
                at = location.index;
                (location, state.segments.get(&location.segment)?.pin())
            };
            Some(window.read(&pin, location.offset).and_then(|(header, payload)| {
                if header.kind != Kind::Entry || (header.group, header.index) != (self.group, location.index)
                {
                    let detail = format!("this is not entry {} of {}", location.index, self.group);
                    return Err(pin.corrupt(location.offset, detail));
                }
                Ok(RecoveredEntry { term: header.term, index: header.index, payload })
            }))
        })
    }
}
