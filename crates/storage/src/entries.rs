//! Locations of the entries of one group: four bytes per entry.

use std::collections::BTreeMap;

use crate::id::SegmentId;
use crate::segment_index::Run;

#[derive(Default)]
pub(crate) struct Entries {
    /// Runs by their first index. They do not overlap.
    runs: BTreeMap<u64, EntryRun>,
}

struct EntryRun {
    segment: SegmentId,
    term: u64,
    /// Offsets in the segment, divided by 8.
    offsets: Vec<u32>,
}

/// Location of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryLocation {
    pub segment: SegmentId,
    pub offset: u64,
    pub term: u64,
    pub index: u64,
}

impl Entries {
    /// Adds an entry. An entry at an index that exists replaces it and all later entries, as in a replicated log.
    pub fn push(&mut self, segment: SegmentId, term: u64, index: u64, offset: u64) {
        self.truncate(index);
        let offset = (offset / 8) as u32;
        if let Some(mut last) = self.runs.last_entry() {
            let first = *last.key();
            let run = last.get_mut();
            if run.segment == segment && run.term == term && first + run.offsets.len() as u64 == index {
                run.offsets.push(offset);
                return;
            }
            // No entry will be added to this run.
            run.offsets.shrink_to_fit();
        }
        self.runs.insert(index, EntryRun { segment, term, offsets: vec![offset] });
    }

    pub fn add_run(&mut self, segment: SegmentId, run: Run) {
        self.truncate(run.first);
        self.runs.insert(run.first, EntryRun { segment, term: run.term, offsets: run.offsets });
    }

    fn truncate(&mut self, index: u64) {
        while let Some(mut last) = self.runs.last_entry() {
            let first = *last.key();
            if first >= index {
                last.remove();
                continue;
            }
            let run = last.get_mut();
            run.offsets.truncate((index - first) as usize);
            return;
        }
    }

    pub fn get(&self, index: u64) -> Option<EntryLocation> {
        let (first, run) = self.runs.range(..=index).next_back()?;
        let offset = *run.offsets.get((index - first) as usize)?;
        Some(EntryLocation { segment: run.segment, offset: u64::from(offset) * 8, term: run.term, index })
    }

    /// Returns the last entry.
    pub fn last(&self) -> Option<EntryLocation> {
        let (first, run) = self.runs.last_key_value()?;
        self.get(first + run.offsets.len() as u64 - 1)
    }

    /// Returns the lowest and the highest index in the segment.
    pub fn span(&self, segment: SegmentId) -> Option<(u64, u64)> {
        let mut runs = self.runs.iter().filter(|(_, run)| run.segment == segment);
        let (first, run) = runs.next()?;
        let (last_first, last_run) = runs.next_back().unwrap_or((first, run));
        Some((*first, last_first + last_run.offsets.len() as u64 - 1))
    }

    /// Returns the lowest stored index above `index`.
    pub fn after(&self, index: u64) -> Option<u64> {
        if self.get(index + 1).is_some() {
            return Some(index + 1);
        }
        self.runs.range(index + 1..).next().map(|(first, _)| *first)
    }

    /// Returns the last index of the run that holds `index`.
    pub fn run_end(&self, index: u64) -> u64 {
        let run = self.runs.range(..=index).next_back();
        run.map_or(index, |(first, run)| (first + run.offsets.len() as u64).saturating_sub(1).max(index))
    }

    pub fn forget(&mut self, segment: SegmentId) {
        self.runs.retain(|_, run| run.segment != segment);
    }

    pub fn count(&self) -> u64 {
        self.runs.values().map(|run| run.offsets.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_replaces_the_old_ones_from_its_index_on() {
        let mut entries = Entries::default();
        for index in 1..=5 {
            entries.push(SegmentId(1), 1, index, index * 64);
        }
        entries.push(SegmentId(2), 2, 3, 64);
        assert_eq!(entries.last().map(|e| (e.index, e.term, e.segment)), Some((3, 2, SegmentId(2))));
        assert_eq!(entries.get(2).map(|e| e.offset), Some(128));
        assert_eq!(entries.get(4), None);
        assert_eq!(entries.span(SegmentId(1)), Some((1, 2)));
        entries.forget(SegmentId(1));
        assert_eq!((entries.count(), entries.after(0), entries.after(3)), (1, Some(3), None));
    }
}
