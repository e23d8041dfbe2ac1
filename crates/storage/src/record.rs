//! A record as it stands in a segment: 48 bytes of header, the payload, zeros up to the next multiple of 8.
//!
//! The checksum covers the log's id, the segment's number, the header and the payload. So a record of another log, of an earlier use of
//! the file, or one that a client's payload imitates, is none. Each record also holds the checksum of the one before it.

use crate::header::{aligned, put, u16_at, u32_at, u64_at};
use crate::id::{GroupId, SegmentId};

pub(crate) const HEADER: usize = 48;
pub(crate) const VERSION: u8 = 1;
/// The largest payload: a batch that is closed at 1 MiB and whose last message is the largest packet (256 MiB), and room for what
/// surrounds it.
pub(crate) const PAYLOAD_MAX: u32 = (1 << 20) + (256 << 20) + (1 << 16);

/// The last record of its group commit.
pub(crate) const LAST: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A batch of a group.
    Entry = 1,
    /// A part of a checkpoint; empty: the part is gone.
    Part = 2,
    /// The parts of a checkpoint are complete. Payload: how many are live, and their digest.
    Done = 3,
    /// A live part again, moved out of a segment that is to be freed.
    MovedPart = 4,
    /// The last `Done` of a group again.
    MovedDone = 5,
    /// Segments before `index` may be gone.
    Floor = 6,
    /// A process opened the log: parts of checkpoints that are not done by now never will be.
    Opened = 7,
    /// Written by a repair: the entries `index` up to `term` of the group are lost. They are passed over.
    Lost = 8,
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
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub crc: u32,
    /// Payload, in bytes.
    pub length: u32,
    /// Checksum of the record before; for the first one of a segment, that of the last one of the segment before.
    pub chain: u32,
    pub kind: Kind,
    pub group: GroupId,
    /// Number of the group commit that wrote it: consecutive over the whole log.
    pub commit: u64,
    pub term: u64,
    /// Of an entry its index, of a part or `Done` the checkpoint's.
    pub index: u64,
    pub part: u32,
    pub flags: u32,
}

impl RecordHeader {
    /// What can be said without the checksum; `None`: these bytes are no record.
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

    /// Bytes that it takes with its payload.
    pub fn size(&self) -> u64 {
        size(self.length as usize)
    }

    /// Appends the record to `out` and returns its checksum. `crc` and `length` of `self` do not matter.
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

/// Number of the commit that these bytes of a header name, whatever else is wrong with them.
pub(crate) fn commit_of(header: &[u8]) -> u64 {
    u64_at(header, 16)
}

/// Checksum of the record before that these bytes of a header name, whatever else is wrong with them.
pub(crate) fn chain_of(header: &[u8]) -> u32 {
    u32_at(header, 8)
}

/// Bytes of a record with a payload of that length.
pub(crate) fn size(payload: usize) -> u64 {
    aligned((HEADER + payload) as u64)
}

/// What every checksum of a segment begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed(u32);

impl Seed {
    pub fn new(log: &[u8; 16], segment: SegmentId) -> Self {
        Self(crc32c::crc32c_append(crc32c::crc32c(log), &segment.0.to_le_bytes()))
    }

    /// Of a record: the header without its checksum, and the payload.
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
