//! Format of a record in a segment: 48 bytes of header, the payload, zeros up to the next multiple of 8.
//!
//! The checksum covers the log's id, the segment's number, the header and the payload. So a record of another log
//! or of an earlier use of the file is not valid, nor is one that a client's payload imitates. Each record also
//! holds the checksum of the one before it.

use crate::header::{aligned, put, u16_at, u32_at, u64_at};
use crate::id::{GroupId, SegmentId};

pub(crate) const HEADER: usize = 48;
pub(crate) const VERSION: u8 = 1;
/// Maximum size of a payload: a batch is closed at 1 MiB, its last message may be the largest packet (256 MiB), and
/// the rest is room for framing.
pub(crate) const PAYLOAD_MAX: u32 = (1 << 20) + (256 << 20) + (1 << 16);

/// Flag of the last record of its group commit.
pub(crate) const LAST: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A batch of a group.
    Entry = 1,
    /// A part of a checkpoint; empty: the part is gone.
    Part = 2,
    /// The parts of a checkpoint are complete. Payload: the number of live parts and their digest.
    Done = 3,
    /// A copy of a live part, moved out of a segment that is to be freed.
    MovedPart = 4,
    /// A copy of the last `Done` of a group.
    MovedDone = 5,
    /// Segments before `index` may be gone.
    Floor = 6,
    /// A process opened the log. Parts of checkpoints that are unfinished here are never finished.
    Opened = 7,
    /// Record of a repair: the entries `index` up to `term` of the group are lost. Recovery skips them.
    Lost = 8,
    /// The part of an entry that is still needed after its segment is freed.
    Bodies = 9,
    /// The group is dropped: all earlier records of it are void. Segments are freed in their order, so this record
    /// stays for as long as any of those.
    Dropped = 10,
}

impl Kind {
    pub fn parse(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Entry,
            2 => Self::Part,
            3 => Self::Done,
            4 => Self::MovedPart,
            5 => Self::MovedDone,
            6 => Self::Floor,
            7 => Self::Opened,
            8 => Self::Lost,
            9 => Self::Bodies,
            10 => Self::Dropped,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub crc: u32,
    /// Length of the payload in bytes.
    pub length: u32,
    /// Checksum of the previous record; in the first record of a segment, that of the last one of the previous
    /// segment.
    pub chain: u32,
    pub kind: Kind,
    pub group: GroupId,
    /// Number of the group commit that wrote the record: consecutive over the whole log.
    pub commit: u64,
    pub term: u64,
    /// Index of an entry, or of the entry that bodies are of; for a part or `Done`, the index of the checkpoint.
    pub index: u64,
    pub part: u32,
    pub flags: u32,
}

impl RecordHeader {
    /// Parses a header without its checksum; `None`: these bytes are not a record.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let length = u32_at(bytes, 4);
        if length > PAYLOAD_MAX || bytes[13] != VERSION {
            return None;
        }
        Some(Self {
            crc: u32_at(bytes, 0),
            length,
            chain: u32_at(bytes, 8),
            kind: Kind::parse(bytes[12])?,
            group: GroupId(u16_at(bytes, 14)),
            commit: u64_at(bytes, 16),
            term: u64_at(bytes, 24),
            index: u64_at(bytes, 32),
            part: u32_at(bytes, 40),
            flags: u32_at(bytes, 44),
        })
    }

    /// Returns the bytes of the record with its payload.
    pub fn size(&self) -> u64 {
        size(self.length as usize)
    }

    /// Appends the record to `out` and returns its checksum. Ignores `crc` and `length` of `self`.
    pub fn encode(&self, seed: Seed, payload: &[u8], out: &mut Vec<u8>) -> u32 {
        let at = out.len();
        out.resize(at + HEADER, 0);
        let header = &mut out[at..];
        put(header, 4, &(payload.len() as u32).to_le_bytes());
        put(header, 8, &self.chain.to_le_bytes());
        header[12] = self.kind as u8;
        header[13] = VERSION;
        put(header, 14, &self.group.0.to_le_bytes());
        put(header, 16, &self.commit.to_le_bytes());
        put(header, 24, &self.term.to_le_bytes());
        put(header, 32, &self.index.to_le_bytes());
        put(header, 40, &self.part.to_le_bytes());
        put(header, 44, &self.flags.to_le_bytes());
        let crc = seed.checksum(header, payload);
        put(header, 0, &crc.to_le_bytes());
        out.extend_from_slice(payload);
        out.resize(at + size(payload.len()) as usize, 0);
        crc
    }
}

/// Returns the commit number in a header, even when the header is damaged elsewhere.
pub(crate) fn commit_of(header: &[u8]) -> u64 {
    u64_at(header, 16)
}

/// Returns the checksum of the previous record in a header, even when the header is damaged elsewhere.
pub(crate) fn chain_of(header: &[u8]) -> u32 {
    u32_at(header, 8)
}

/// Returns the bytes of a record with a payload of that length.
pub(crate) fn size(payload: usize) -> u64 {
    aligned((HEADER + payload) as u64)
}

/// Initial value of every checksum of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed(u32);

impl Seed {
    pub fn new(log: &[u8; 16], segment: SegmentId) -> Self {
        Self(crc32c::crc32c_append(crc32c::crc32c(log), &segment.0.to_le_bytes()))
    }

    /// Returns the checksum of a record: of the header without its checksum, and of the payload.
    pub fn checksum(self, header: &[u8], payload: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c_append(self.0, &header[4..HEADER]), payload)
    }

    pub fn of(self, bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(self.0, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: [u8; 16] = *b"0123456789abcdef";

    fn header() -> RecordHeader {
        RecordHeader {
            crc: 0,
            length: 3,
            chain: 0x0403_0201,
            kind: Kind::Entry,
            group: GroupId(2),
            commit: 7,
            term: 1,
            index: 42,
            part: 0,
            flags: LAST,
        }
    }

    /// Version 1 of the format. These bytes do not change; a new version gets bytes of its own.
    #[test]
    fn the_bytes_of_a_record_are_these() {
        let mut out = vec![];
        let crc = header().encode(Seed::new(&LOG, SegmentId(5)), b"abc", &mut out);
        let hex: String = out.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            format!(
                "{}030000000102030401010200070000000000000001000000000000002a00000000000000000000000100000061626300\
                 00000000",
                crc.to_le_bytes().iter().map(|b| format!("{b:02x}")).collect::<String>()
            )
        );
        assert_eq!(crc, 1_160_792_013);
        let parsed = RecordHeader::parse(&out).expect("a record");
        assert_eq!(parsed, RecordHeader { crc, ..header() });
    }

    /// Version 1 of the format, too. Segments have such a record since their format 3.
    #[test]
    fn the_bytes_of_a_dropped_group_are_these() {
        let dropped = RecordHeader { length: 0, kind: Kind::Dropped, term: 0, index: 0, ..header() };
        let mut out = vec![];
        let crc = dropped.encode(Seed::new(&LOG, SegmentId(5)), b"", &mut out);
        let hex: String = out[4..].iter().map(|b| format!("{b:02x}")).collect();
        let golden = "00000000010203040a01020007000000000000000000000000000000\
            00000000000000000000000001000000";
        assert_eq!(hex, golden);
        assert_eq!(RecordHeader::parse(&out), Some(RecordHeader { crc, ..dropped }));
    }

    #[test]
    fn the_checksum_depends_on_log_and_segment() {
        let mut crcs: Vec<u32> = [Seed::new(&LOG, SegmentId(1)), Seed::new(&LOG, SegmentId(2))]
            .into_iter()
            .chain([Seed::new(b"0123456789abcdeg", SegmentId(1))])
            .map(|seed| header().encode(seed, b"abc", &mut vec![]))
            .collect();
        crcs.dedup();
        assert_eq!(crcs.len(), 3);
    }
}
