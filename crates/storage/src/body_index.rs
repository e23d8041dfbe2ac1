//! Index of one group's bodies: records that keep what is needed of entries whose segments are freed.

use std::collections::BTreeMap;

use crate::id::SegmentId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyLocation {
    pub segment: SegmentId,
    pub offset: u64,
}

/// Locations of bodies. Of several for one entry the newest counts.
#[derive(Default)]
pub(crate) struct BodyIndex {
    locations: BTreeMap<u64, BodyLocation>,
    /// Entries whose bodies were written into a segment. There may be newer ones in another segment.
    by_segment: BTreeMap<SegmentId, Vec<u64>>,
}

impl BodyIndex {
    pub fn insert(&mut self, index: u64, location: BodyLocation) {
        let previous = self.locations.insert(index, location);
        if previous.is_none_or(|previous| previous.segment != location.segment) {
            self.by_segment.entry(location.segment).or_default().push(index);
        }
    }

    pub fn get(&self, index: u64) -> Option<BodyLocation> {
        self.locations.get(&index).copied()
    }

    pub fn len(&self) -> u64 {
        self.locations.len() as u64
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, BodyLocation)> + '_ {
        self.locations.iter().map(|(index, location)| (*index, *location))
    }

    /// Returns the entries whose bodies were written into a segment, in no particular order. There may be newer ones
    /// elsewhere.
    pub fn in_segment(&self, segment: SegmentId) -> Vec<u64> {
        self.by_segment.get(&segment).cloned().unwrap_or_default()
    }

    /// Removes up to `max` bodies in a segment that is freed. Returns false when no more are left.
    pub fn forget_some(&mut self, segment: SegmentId, max: usize) -> bool {
        let Some(written) = self.by_segment.get_mut(&segment) else { return false };
        for index in written.drain(written.len().saturating_sub(max)..) {
            if self.locations.get(&index).is_some_and(|location| location.segment == segment) {
                self.locations.remove(&index);
            }
        }
        let is_any = !written.is_empty();
        if !is_any {
            self.by_segment.remove(&segment);
        }
        is_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_bodies_of_an_entry_count() {
        let mut bodies = BodyIndex::default();
        let at = |segment, offset| BodyLocation { segment: SegmentId(segment), offset };
        for (index, location) in [(7, at(1, 64)), (3, at(1, 128)), (7, at(2, 64)), (7, at(2, 128))] {
            bodies.insert(index, location);
        }
        assert_eq!((bodies.in_segment(SegmentId(1)), bodies.in_segment(SegmentId(2))), (vec![7, 3], vec![7]));
        assert_eq!(bodies.get(7), Some(at(2, 128)));
        bodies.insert(7, at(3, 64));
        assert!(!bodies.forget_some(SegmentId(2), 9));
        assert_eq!((bodies.get(7), bodies.len()), (Some(at(3, 64)), 2));
        assert!(bodies.forget_some(SegmentId(1), 1) && !bodies.forget_some(SegmentId(1), 1));
        assert!(!bodies.forget_some(SegmentId(3), 1) && !bodies.forget_some(SegmentId(3), 1));
        assert_eq!((bodies.len(), bodies.by_segment.len()), (0, 0));
    }
}
