//! Locations of the records of one segment: collected while it is written, stored after its records when it is
//! full.

use std::collections::HashMap;

use crate::header::{put, u16_at, u32_at, u64_at};
use crate::id::GroupId;
use crate::record::{Kind, RecordHeader};

/// Entries of one group and term with consecutive indexes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub group: GroupId,
    pub term: u64,
    pub first: u64,
    /// Offsets in the segment, divided by 8.
    pub offsets: Vec<u32>,
}

/// A record that is not an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Other {
    pub kind: Kind,
    pub group: GroupId,
    pub part: u32,
    pub index: u64,
    pub term: u64,
    /// Offset in the segment, divided by 8.
    pub offset: u32,
    pub length: u32,
    /// Number of live parts, and their digest, for `Done` and `MovedDone`.
    pub live: u32,
    pub digest: u64,
}

/// Index of a segment: runs in the order of their first records, and other records in the order of the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct SegmentIndex {
    pub runs: Vec<Run>,
    pub others: Vec<Other>,
    /// Run of each group that its next entry may continue.
    current: HashMap<GroupId, usize>,
    entries: u64,
}

const RUN: u64 = 24;
const OTHER: u64 = 48;
const COUNTS: u64 = 8;

/// Size of the payload of `Done`, in bytes.
pub(crate) const DONE: usize = 16;

pub(crate) fn encode_done(live: u32, digest: u64) -> [u8; DONE] {
    let mut bytes = [0; DONE];
    put(&mut bytes, 0, &live.to_le_bytes());
    put(&mut bytes, 8, &digest.to_le_bytes());
    bytes
}

impl SegmentIndex {
    /// Returns the maximum number of bytes that a further record adds to the encoding.
    pub fn cost(kind: Kind) -> u64 {
        if kind == Kind::Entry { RUN + 4 } else { OTHER }
    }

    pub fn encoded_len(&self) -> u64 {
        COUNTS + self.runs.len() as u64 * RUN + self.entries * 4 + self.others.len() as u64 * OTHER
    }

    pub fn records(&self) -> u64 {
        self.entries + self.others.len() as u64
    }

    pub fn push(&mut self, header: &RecordHeader, offset: u64, payload: &[u8]) {
        let offset = (offset / 8) as u32;
        if header.kind == Kind::Entry {
            self.entries += 1;
            if let Some(run) = self.current.get(&header.group).map(|n| &mut self.runs[*n])
                && run.term == header.term
                && run.first + run.offsets.len() as u64 == header.index
            {
                run.offsets.push(offset);
                return;
            }
            self.current.insert(header.group, self.runs.len());
            let run =
                Run { group: header.group, term: header.term, first: header.index, offsets: vec![offset] };
            self.runs.push(run);
            return;
        }
        if header.kind == Kind::Dropped {
            // Entries of a run are all void or all valid.
            self.current.remove(&header.group);
        }
        let done = matches!(header.kind, Kind::Done | Kind::MovedDone) && payload.len() == DONE;
        self.others.push(Other {
            kind: header.kind,
            group: header.group,
            part: header.part,
            index: header.index,
            term: header.term,
            offset,
            length: header.length,
            live: if done { u32_at(payload, 0) } else { 0 },
            digest: if done { u64_at(payload, 8) } else { 0 },
        });
    }

    /// Removes the records that are void because the segment has a later drop of their group, and the drops. Returns
    /// the groups that are dropped here. The rest is for reading only.
    pub fn remove_void(&mut self) -> Vec<GroupId> {
        let drops = self.others.iter().filter(|other| other.kind == Kind::Dropped);
        let drops: HashMap<GroupId, u32> = drops.map(|other| (other.group, other.offset)).collect();
        if drops.is_empty() {
            return vec![];
        }
        let is_valid = |group, offset| drops.get(&group).is_none_or(|dropped| offset > *dropped);
        self.runs.retain(|run| run.offsets.first().is_some_and(|offset| is_valid(run.group, *offset)));
        // These two are records of the log itself.
        let is_of_log = |kind| matches!(kind, Kind::Floor | Kind::Opened);
        self.others.retain(|other| is_of_log(other.kind) || is_valid(other.group, other.offset));
        drops.into_keys().collect()
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.encoded_len() as usize);
        out.extend_from_slice(&(self.runs.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.others.len() as u32).to_le_bytes());
        for run in &self.runs {
            out.extend_from_slice(&run.group.0.to_le_bytes());
            out.extend_from_slice(&[0; 2]);
            out.extend_from_slice(&(run.offsets.len() as u32).to_le_bytes());
            out.extend_from_slice(&run.term.to_le_bytes());
            out.extend_from_slice(&run.first.to_le_bytes());
            run.offsets.iter().for_each(|offset| out.extend_from_slice(&offset.to_le_bytes()));
        }
        for other in &self.others {
            out.extend_from_slice(&[other.kind as u8, 0]);
            out.extend_from_slice(&other.group.0.to_le_bytes());
            out.extend_from_slice(&other.part.to_le_bytes());
            out.extend_from_slice(&other.index.to_le_bytes());
            out.extend_from_slice(&other.term.to_le_bytes());
            out.extend_from_slice(&other.offset.to_le_bytes());
            out.extend_from_slice(&other.length.to_le_bytes());
            out.extend_from_slice(&other.live.to_le_bytes());
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(&other.digest.to_le_bytes());
        }
        out
    }

    /// Decodes an index; `None`: these bytes are not an index. The result is for reading only: no record can be
    /// added to its runs.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let take = |at: &mut usize, n: usize| {
            let slice = bytes.get(*at..at.checked_add(n)?)?;
            *at += n;
            Some(slice)
        };
        let mut at = 0;
        let counts = take(&mut at, COUNTS as usize)?;
        let mut index = Self::default();
        for _ in 0..u32_at(counts, 0) {
            let head = take(&mut at, RUN as usize)?;
            let count = u32_at(head, 4) as usize;
            let offsets = take(&mut at, count.checked_mul(4)?)?;
            index.entries += count as u64;
            index.runs.push(Run {
                group: GroupId(u16_at(head, 0)),
                term: u64_at(head, 8),
                first: u64_at(head, 16),
                offsets: offsets.chunks_exact(4).map(|b| u32_at(b, 0)).collect(),
            });
        }
        for _ in 0..u32_at(counts, 4) {
            let bytes = take(&mut at, OTHER as usize)?;
            index.others.push(Other {
                kind: Kind::parse(bytes[0])?,
                group: GroupId(u16_at(bytes, 2)),
                part: u32_at(bytes, 4),
                index: u64_at(bytes, 8),
                term: u64_at(bytes, 16),
                offset: u32_at(bytes, 24),
                length: u32_at(bytes, 28),
                live: u32_at(bytes, 32),
                digest: u64_at(bytes, 40),
            });
        }
        (at == bytes.len()).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: Kind, group: u16, term: u64, index: u64) -> RecordHeader {
        RecordHeader {
            crc: 0,
            length: 9,
            chain: 0,
            kind,
            group: GroupId(group),
            commit: 1,
            term,
            index,
            part: 6,
            flags: 0,
        }
    }

    fn index() -> SegmentIndex {
        let mut index = SegmentIndex::default();
        for (n, (group, term, at)) in
            [(1, 1, 5), (2, 1, 1), (1, 1, 6), (1, 2, 7), (1, 2, 9)].into_iter().enumerate()
        {
            index.push(&header(Kind::Entry, group, term, at), 64 + 8 * n as u64, b"");
        }
        index.push(&header(Kind::Done, 1, 0, 6), 800, &encode_done(3, 4));
        index
    }

    /// Version 1 of the format. These bytes do not change; a new version gets bytes of its own.
    #[test]
    fn the_bytes_of_an_index_are_these() {
        let hex: String = index().encode().iter().map(|b| format!("{b:02x}")).collect();
        let golden = "0400000001000000010000000200000001000000000000000500000000000000080000000a000000\
            02000000010000000100000000000000010000000000000009000000010000000100000002000000\
            0000000007000000000000000b000000010000000100000002000000000000000900000000000000\
            0c000000030001000600000006000000000000000000000000000000640000000900000003000000\
            000000000400000000000000";
        assert_eq!(hex, golden);
    }

    /// An entry that follows the entries before the drop in index and term is not of their run.
    #[test]
    fn a_drop_makes_only_the_earlier_records_of_its_group_void() {
        let mut index = index();
        index.push(&header(Kind::Opened, 0, 0, 0), 808, b"");
        index.push(&header(Kind::Dropped, 1, 0, 0), 816, b"");
        index.push(&header(Kind::Dropped, 0, 0, 0), 824, b"");
        index.push(&header(Kind::Entry, 1, 2, 10), 832, b"");
        index.push(&header(Kind::Done, 1, 0, 10), 840, &encode_done(0, 0));
        let bytes = index.encode();
        let hex: String = bytes[bytes.len() - 3 * OTHER as usize..][..OTHER as usize]
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let golden = "0a0001000600000000000000000000000000000000000000660000000900000000000000\
            000000000000000000000000";
        assert_eq!(hex, golden);
        let mut index = SegmentIndex::decode(&bytes).expect("an index");
        let mut dropped = index.remove_void();
        dropped.sort_unstable();
        assert_eq!(dropped, [GroupId(0), GroupId(1)]);
        let runs: Vec<_> = index.runs.iter().map(|r| (r.group.0, r.term, r.first, r.offsets.len())).collect();
        assert_eq!(runs, [(2, 1, 1, 1), (1, 2, 10, 1)]);
        let others: Vec<_> = index.others.iter().map(|other| (other.kind, other.index)).collect();
        assert_eq!(others, [(Kind::Opened, 0), (Kind::Done, 10)]);
    }

    #[test]
    fn consecutive_entries_share_a_run() {
        let index = index();
        let runs: Vec<_> = index.runs.iter().map(|r| (r.group.0, r.term, r.first, r.offsets.len())).collect();
        assert_eq!(runs, [(1, 1, 5, 2), (2, 1, 1, 1), (1, 2, 7, 1), (1, 2, 9, 1)]);
        let bytes = index.encode();
        assert_eq!(bytes.len() as u64, index.encoded_len());
        let decoded = SegmentIndex::decode(&bytes).expect("an index");
        assert_eq!((decoded.runs, decoded.others), (index.runs, index.others));
        for cut in 0..bytes.len() {
            assert!(SegmentIndex::decode(&bytes[..cut]).is_none(), "{cut}");
        }
    }
}
