//! What is known of one group's checkpoints: which version of each part counts.

use std::collections::BTreeMap;

use crate::id::SegmentId;
use crate::record::{Kind, size};
use crate::segment_index::Other;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The checkpoint that it was written for.
    pub version: u64,
    pub segment: SegmentId,
    pub offset: u64,
    /// Payload, in bytes.
    pub length: u32,
}

/// Filled in the order of the log, by whoever writes it and at the next start alike.
#[derive(Clone, Default)]
pub(crate) struct Book {
    /// The last one that is done.
    pub checkpoint: Option<u64>,
    /// Its `Done`.
    pub done: Option<Place>,
    /// What the last `Done` says of the live parts: how many, and their digest.
    said: Option<(u32, u64)>,
    live: BTreeMap<u32, Place>,
    /// Of a checkpoint that is not done.
    pending: BTreeMap<u32, Place>,
    digest: u64,
    pub live_bytes: u64,
    /// What a repair found lost: first and last index.
    pub lost: Vec<(u64, u64)>,
    unfinished_count: bool,
}

impl Book {
    /// For the crash tests: parts count before their checkpoint is done.
    pub fn count_unfinished(&mut self) {
        self.unfinished_count = true;
    }

    pub fn apply(&mut self, segment: SegmentId, other: &Other) {
        let place = Place {
            version: other.index,
            segment,
            offset: u64::from(other.offset) * 8,
            length: other.length,
        };
        match other.kind {
            Kind::Part if self.unfinished_count => self.put(other.part, place),
            Kind::Part => {
                self.pending.insert(other.part, place);
            }
            Kind::MovedPart => {
                if self.live.get(&other.part).is_none_or(|live| live.version <= place.version) {
                    self.put(other.part, place);
                }
            }
            Kind::Done => {
                for (part, place) in std::mem::take(&mut self.pending) {
                    if place.version == other.index {
                        self.put(part, place);
                    }
                }
                self.checkpoint = Some(other.index);
                self.done = Some(place);
                self.said = Some((other.live, other.digest));
            }
            Kind::MovedDone => {
                self.checkpoint = Some(other.index);
                self.done = Some(place);
                self.said = Some((other.live, other.digest));
            }
            Kind::Lost => self.lost.push((other.index, other.term)),
            Kind::Opened => self.pending.clear(),
            Kind::Entry | Kind::Floor => {}
        }
    }

    /// Makes it the live version of the part; without payload, there is none.
    fn put(&mut self, part: u32, place: Place) {
        let old = if place.length == 0 { self.live.remove(&part) } else { self.live.insert(part, place) };
        if let Some(old) = old {
            self.digest ^= fingerprint(part, old.version);
            self.live_bytes -= size(old.length as usize);
        }
        if place.length > 0 {
            self.digest ^= fingerprint(part, place.version);
            self.live_bytes += size(place.length as usize);
        }
    }

    /// How many parts are live, and their digest.
    pub fn figures(&self) -> (u32, u64) {
        (self.live.len() as u32, self.digest)
    }

    /// Whether the live parts are those that the last `Done` counted: otherwise some are missing.
    pub fn complete(&self) -> bool {
        self.said.is_none_or(|said| said == self.figures())
    }

    pub fn live(&self) -> impl Iterator<Item = (u32, Place)> + '_ {
        self.live.iter().map(|(part, place)| (*part, *place))
    }

    /// Whether the part may be moved: its live version is the newest in the log. Otherwise the move could outlive what replaces it.
    pub fn movable(&self, part: u32, version: u64) -> bool {
        !self.pending.contains_key(&part) && self.live.get(&part).is_some_and(|p| p.version == version)
    }

    /// Parts of an unfinished checkpoint in the segment.
    pub fn pending_in(&self, segment: SegmentId) -> bool {
        self.pending.values().any(|place| place.segment == segment)
    }
}

/// Mixed, so that the digest of a set, their exclusive or, differs when any member does.
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

    fn apply(book: &mut Book, kind: Kind, part: u32, index: u64, length: u32) {
        let (live, digest) = book.figures();
        let other = Other { kind, group: GroupId(1), part, index, term: 0, offset: 8, length, live, digest };
        book.apply(SegmentId(1), &other);
        if kind == Kind::Done {
            book.said = Some(book.figures());
        }
    }

    fn live(book: &Book) -> Vec<(u32, u64)> {
        book.live().map(|(part, place)| (part, place.version)).collect()
    }

    #[test]
    fn a_part_counts_once_its_checkpoint_is_done() {
        let mut book = Book::default();
        apply(&mut book, Kind::Part, 1, 10, 5);
        apply(&mut book, Kind::Part, 2, 10, 5);
        assert_eq!(live(&book), []);
        apply(&mut book, Kind::Done, 0, 10, 16);
        assert_eq!(live(&book), [(1, 10), (2, 10)]);
        apply(&mut book, Kind::Part, 1, 20, 5);
        assert!(!book.movable(1, 10), "a newer one is in the log");
        assert!(book.movable(2, 10));
        apply(&mut book, Kind::Opened, 0, 0, 0);
        apply(&mut book, Kind::Part, 2, 30, 0);
        apply(&mut book, Kind::Done, 0, 30, 16);
        assert_eq!(live(&book), [(1, 10)]);
        assert!(book.complete());
        assert_eq!(book.live_bytes, size(5));
    }

    #[test]
    fn a_part_that_is_gone_is_noticed() {
        let mut book = Book::default();
        apply(&mut book, Kind::Part, 1, 10, 5);
        apply(&mut book, Kind::Done, 0, 10, 16);
        let mut without = Book { said: book.said, checkpoint: book.checkpoint, ..Book::default() };
        assert!(!without.complete());
        apply(&mut without, Kind::MovedPart, 1, 10, 5);
        assert!(without.complete(), "what was moved counts as what it was");
    }
}
