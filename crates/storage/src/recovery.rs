//! Results of opening the log, for each group.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::id::GroupId;
use crate::part_index::PartLocation;
use crate::record::Kind;
use crate::segment::Pin;
use crate::state::{Shared, Window};

/// Figures of the recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Number of segments with records.
    pub segments: usize,
    pub records: u64,
    /// Bytes of their records.
    pub bytes: u64,
    /// Bytes of an incomplete last commit. A crash during the write leaves one, and so does damage to a durable
    /// commit.
    pub cut_bytes: u64,
    /// Number of full segments whose index was damaged and rebuilt from their records.
    pub indexes_rebuilt: usize,
    /// Time that opening took.
    pub took: Duration,
}

/// Point at which each group continues.
pub struct Recovery {
    pub report: RecoveryReport,
    /// Groups in the order of their ids. Groups that never wrote are not here.
    pub groups: Vec<RecoveredGroup>,
}

/// One group: its checkpoint, and the entries after it. It can be sent to the thread that restores the group. Its
/// records are verified when they are read; an error means damage that opening could not see.
pub struct RecoveredGroup {
    shared: Arc<Shared>,
    pub group: GroupId,
    /// Term of the last entry; 0 when there is none.
    pub term: u64,
    /// Index of the checkpoint, which contains the entries up to it. `None`: there is no checkpoint, and entries
    /// begin at 1.
    pub checkpoint: Option<u64>,
    /// Index of the last entry or of the checkpoint, whichever is higher.
    pub last: u64,
    /// Entries after the checkpoint that a repair could not save: first and last index. Recovery skips them. The first
    /// may be in the checkpoint.
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
        let groups = ids.into_iter().filter_map(|group| RecoveredGroup::new(shared, group)).collect();
        Self { report, groups }
    }
}

impl RecoveredGroup {
    /// Returns what the log has of a group; `None` if that is nothing.
    pub(crate) fn new(shared: &Arc<Shared>, group: GroupId) -> Option<Self> {
        let state = shared.state();
        let known = state.groups.get(&group)?;
        let mut parts: Vec<_> = known
            .part_index
            .live()
            .filter_map(|(part, location)| {
                Some((part, location, state.segments.get(&location.segment)?.pin()))
            })
            .collect();
        // Read in the order of the disk.
        parts.sort_by_key(|(_, location, _)| (location.segment, location.offset));
        let last = known.entries.last();
        Some(Self {
            shared: shared.clone(),
            group,
            term: last.map_or(0, |entry| entry.term),
            checkpoint: known.part_index.checkpoint,
            last: last.map_or(0, |entry| entry.index).max(known.part_index.checkpoint.unwrap_or(0)),
            lost: known.part_index.lost_after_checkpoint(),
            parts,
        })
    }

    /// Returns the number of parts of the checkpoint.
    #[must_use]
    pub fn parts_count(&self) -> usize {
        self.parts.len()
    }

    /// Iterates over the numbers of the checkpoint's parts.
    pub fn part_numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.parts.iter().map(|(part, ..)| *part)
    }

    /// Returns the bytes of the checkpoint's parts.
    #[must_use]
    pub fn parts_bytes(&self) -> u64 {
        self.parts.iter().map(|(_, location, _)| u64::from(location.length)).sum()
    }

    /// Returns the parts of the checkpoint, in the order of the disk.
    pub fn parts(&self) -> impl Iterator<Item = Result<(u32, Arc<[u8]>), Error>> + '_ {
        self.read_parts(self.parts.iter().collect())
    }

    /// Returns the parts of the checkpoint, in the order of their numbers. Slower than [`Self::parts`] for small parts.
    pub fn parts_in_order(&self) -> impl Iterator<Item = Result<(u32, Arc<[u8]>), Error>> + '_ {
        let mut parts: Vec<_> = self.parts.iter().collect();
        parts.sort_by_key(|(part, ..)| *part);
        self.read_parts(parts)
    }

    fn read_parts<'a>(
        &'a self,
        parts: Vec<&'a (u32, PartLocation, Pin)>,
    ) -> impl Iterator<Item = Result<(u32, Arc<[u8]>), Error>> + 'a {
        let mut window = Window::for_many();
        parts.into_iter().map(move |(part, location, pin)| {
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

    /// Returns the entries after the checkpoint in the order of their indexes, one in memory at a time. Call it
    /// before the group appends.
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
