//! Index of one group's checkpoint parts: the valid version of each part.

use std::collections::BTreeMap;

use crate::id::SegmentId;
use crate::record::{Kind, size};
use crate::segment_index::Other;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartLocation {
    /// Checkpoint that the part was written for.
    pub version: u64,
    pub segment: SegmentId,
    pub offset: u64,
    /// Length of the payload in bytes.
    pub length: u32,
}

/// Index of parts. The writer fills it in the order of the log, and the next start fills it again in the same order.
#[derive(Clone, Default)]
pub(crate) struct PartIndex {
    /// The last finished checkpoint.
    pub checkpoint: Option<u64>,
    /// Location of its `Done`.
    pub done: Option<PartLocation>,
    /// Number and digest of the live parts, as stated by the last `Done`.
    counted: Option<(u32, u64)>,
    live: BTreeMap<u32, PartLocation>,
    /// Parts of an unfinished checkpoint. The next `Done` of any checkpoint removes them.
    pending: BTreeMap<u32, PartLocation>,
    digest: u64,
    pub live_bytes: u64,
    /// Entries that a repair marked as lost: first and last index.
    pub lost: Vec<(u64, u64)>,
    unfinished_count: bool,
}

impl PartIndex {
    /// Makes parts of unfinished checkpoints valid, for the crash tests.
    pub fn count_unfinished(&mut self) {
        self.unfinished_count = true;
    }

    pub fn apply(&mut self, segment: SegmentId, other: &Other) {
        let location = PartLocation {
            version: other.index,
            segment,
            offset: u64::from(other.offset) * 8,
            length: other.length,
        };
        match other.kind {
            Kind::Part if self.unfinished_count => self.put(other.part, location),
            Kind::Part => {
                self.pending.insert(other.part, location);
            }
            Kind::MovedPart => {
                if self.live.get(&other.part).is_none_or(|live| live.version <= location.version) {
                    self.put(other.part, location);
                }
            }
            Kind::Done => {
                for (part, location) in std::mem::take(&mut self.pending) {
                    if location.version == other.index {
                        self.put(part, location);
                    }
                }
                self.checkpoint = Some(other.index);
                self.done = Some(location);
                self.counted = Some((other.live, other.digest));
            }
            Kind::MovedDone => {
                self.checkpoint = Some(other.index);
                self.done = Some(location);
                self.counted = Some((other.live, other.digest));
            }
            Kind::Lost => self.lost.push((other.index, other.term)),
            Kind::Opened => self.pending.clear(),
            Kind::Entry | Kind::Floor | Kind::Bodies | Kind::Dropped => {}
        }
    }

    /// Makes this location the live version of the part. A location without payload removes the part.
    fn put(&mut self, part: u32, location: PartLocation) {
        let old =
            if location.length == 0 { self.live.remove(&part) } else { self.live.insert(part, location) };
        if let Some(old) = old {
            self.digest ^= fingerprint(part, old.version);
            self.live_bytes -= size(old.length as usize);
        }
        if location.length > 0 {
            self.digest ^= fingerprint(part, location.version);
            self.live_bytes += size(location.length as usize);
        }
    }

    /// Returns the number of live parts and their digest.
    pub fn figures(&self) -> (u32, u64) {
        (self.live.len() as u32, self.digest)
    }

    /// Returns whether the live parts are those that the last `Done` counted. Otherwise some are missing.
    pub fn complete(&self) -> bool {
        self.counted.is_none_or(|counted| counted == self.figures())
    }

    /// Returns the entries that a repair marked as lost and that the checkpoint does not contain. The marks of others
    /// stay in the log for as long as their segment.
    pub fn lost_after_checkpoint(&self) -> Vec<(u64, u64)> {
        let is_after = |(_, last): &&(u64, u64)| Some(*last) > self.checkpoint;
        self.lost.iter().filter(is_after).copied().collect()
    }

    /// Returns the live version of a part.
    pub fn get(&self, part: u32) -> Option<PartLocation> {
        self.live.get(&part).copied()
    }

    /// Returns a part of an unfinished checkpoint.
    pub fn get_pending(&self, part: u32, checkpoint: u64) -> Option<PartLocation> {
        self.pending.get(&part).copied().filter(|pending| pending.version == checkpoint)
    }

    /// Returns the bytes of the parts of unfinished checkpoints.
    pub fn pending_bytes(&self) -> u64 {
        self.pending.values().map(|pending| size(pending.length as usize)).sum()
    }

    pub fn live(&self) -> impl Iterator<Item = (u32, PartLocation)> + '_ {
        self.live.iter().map(|(part, location)| (*part, *location))
    }

    /// Returns whether the part at this location may be moved: it is live, and the newest in the log. Otherwise the
    /// moved part could outlive its replacement. The version alone is not enough: a group that was dropped and begins
    /// again may have the same versions.
    pub fn movable(&self, part: u32, location: PartLocation) -> bool {
        !self.pending.contains_key(&part) && self.get(part) == Some(location)
    }

    /// Returns whether the segment has parts of an unfinished checkpoint.
    pub fn pending_in(&self, segment: SegmentId) -> bool {
        self.pending.values().any(|location| location.segment == segment)
    }
}

/// Hashes one version of a part. The digest of a set is the exclusive or of these hashes, so it differs when any member
/// differs.
fn fingerprint(part: u32, version: u64) -> u64 {
    let mut x = version ^ (u64::from(part) << 40).wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::GroupId;

    fn apply(part_index: &mut PartIndex, kind: Kind, part: u32, index: u64, length: u32) {
        let (live, digest) = part_index.figures();
        let other = Other { kind, group: GroupId(1), part, index, term: 0, offset: 8, length, live, digest };
        part_index.apply(SegmentId(1), &other);
        if kind == Kind::Done {
            part_index.counted = Some(part_index.figures());
        }
    }

    fn live(part_index: &PartIndex) -> Vec<(u32, u64)> {
        part_index.live().map(|(part, location)| (part, location.version)).collect()
    }

    fn movable(part_index: &PartIndex, part: u32) -> bool {
        part_index.movable(part, part_index.get(part).expect("a live part"))
    }

    #[test]
    fn a_part_counts_once_its_checkpoint_is_finished() {
        let mut part_index = PartIndex::default();
        apply(&mut part_index, Kind::Part, 1, 10, 5);
        apply(&mut part_index, Kind::Part, 2, 10, 5);
        assert_eq!(live(&part_index), []);
        apply(&mut part_index, Kind::Done, 0, 10, 16);
        assert_eq!(live(&part_index), [(1, 10), (2, 10)]);
        apply(&mut part_index, Kind::Part, 1, 20, 5);
        assert!(!movable(&part_index, 1), "a newer one is in the log");
        assert!(movable(&part_index, 2));
        apply(&mut part_index, Kind::Opened, 0, 0, 0);
        apply(&mut part_index, Kind::Part, 2, 30, 0);
        apply(&mut part_index, Kind::Done, 0, 30, 16);
        assert_eq!(live(&part_index), [(1, 10)]);
        assert!(part_index.complete());
        assert_eq!(part_index.live_bytes, size(5));
    }

    #[test]
    fn a_part_of_a_dropped_group_is_not_moved_over_one_of_the_same_version() {
        let mut part_index = PartIndex::default();
        apply(&mut part_index, Kind::Part, 1, 10, 5);
        apply(&mut part_index, Kind::Done, 0, 10, 16);
        let live = part_index.get(1).expect("a live part");
        assert!(part_index.movable(1, live));
        assert!(!part_index.movable(1, PartLocation { segment: SegmentId(0), ..live }));
    }

    #[test]
    fn a_repeated_done_removes_the_parts_of_an_unfinished_checkpoint() {
        let mut part_index = PartIndex::default();
        apply(&mut part_index, Kind::Part, 1, 10, 5);
        apply(&mut part_index, Kind::Done, 0, 10, 16);
        apply(&mut part_index, Kind::Part, 1, 20, 5);
        apply(&mut part_index, Kind::Part, 2, 20, 0);
        assert_eq!(part_index.get_pending(1, 20).map(|found| found.version), Some(20));
        assert_eq!((part_index.get_pending(1, 10), part_index.get_pending(3, 20)), (None, None));
        assert_eq!(part_index.pending_bytes(), size(5) + size(0));
        assert!(part_index.pending_in(SegmentId(1)));
        apply(&mut part_index, Kind::Done, 0, 10, 16);
        assert_eq!((part_index.get_pending(1, 20), part_index.pending_bytes()), (None, 0));
        assert!(!part_index.pending_in(SegmentId(1)) && movable(&part_index, 1));
        assert_eq!((live(&part_index), part_index.checkpoint), (vec![(1, 10)], Some(10)));
        // The same checkpoint begins again with other parts.
        apply(&mut part_index, Kind::Part, 3, 20, 5);
        apply(&mut part_index, Kind::Done, 0, 20, 16);
        assert_eq!(live(&part_index), [(1, 10), (3, 20)]);
    }

    #[test]
    fn a_missing_part_is_noticed() {
        let mut part_index = PartIndex::default();
        apply(&mut part_index, Kind::Part, 1, 10, 5);
        apply(&mut part_index, Kind::Done, 0, 10, 16);
        let mut without = PartIndex {
            counted: part_index.counted,
            checkpoint: part_index.checkpoint,
            ..PartIndex::default()
        };
        assert!(!without.complete());
        apply(&mut without, Kind::MovedPart, 1, 10, 5);
        assert!(without.complete(), "a moved part counts as before");
    }
}
