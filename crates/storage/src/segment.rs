//! A segment: one file of the log. It has a header and records; a full segment also has an index and a footer at
//! the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::disk::{Disk, DiskFile};
use crate::error::{Corrupt, Error};
use crate::header::{put, u16_at, u32_at, u64_at};
use crate::id::SegmentId;
use crate::record::{Kind, Seed};
use crate::segment_index::SegmentIndex;

/// Format of new segments. Formats differ in the kinds of records that a segment may have.
pub(crate) const FORMAT: u16 = WITH_DROPPED;
/// First format with records of the kind `Bodies`.
pub(crate) const WITH_BODIES: u16 = 2;
/// First format with records of the kind `Dropped`.
pub(crate) const WITH_DROPPED: u16 = 3;
pub(crate) const HEADER: usize = 64;
pub(crate) const FOOTER: usize = 64;
const MAGIC: &[u8; 8] = b"MRDNLOG\n";
const FOOTER_MAGIC: &[u8; 8] = b"MRDNIDX\n";
/// Prefix of the file names of empty segments; a number follows. Their contents have no meaning.
pub(crate) const SPARE: &str = "spare-";

/// Contents of the first 64 bytes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub format: u16,
    pub log: [u8; 16],
    pub segment: SegmentId,
    /// Number of the first commit in the segment.
    pub commit: u64,
    /// First segment that is needed. Earlier ones may be gone.
    pub floor: SegmentId,
    /// Checksum of the last record of the previous segment.
    pub chain: u32,
    /// Size of the file in units of 512 bytes. It tells a file that lost its end from a torn tail.
    pub sectors: u32,
}

impl SegmentHeader {
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        put(&mut bytes, 0, MAGIC);
        put(&mut bytes, 8, &self.format.to_le_bytes());
        put(&mut bytes, 10, &(HEADER as u16).to_le_bytes());
        put(&mut bytes, 12, &self.sectors.to_le_bytes());
        put(&mut bytes, 16, &self.log);
        put(&mut bytes, 32, &self.segment.0.to_le_bytes());
        put(&mut bytes, 40, &self.commit.to_le_bytes());
        put(&mut bytes, 48, &self.floor.0.to_le_bytes());
        put(&mut bytes, 56, &self.chain.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        put(&mut bytes, 60, &crc.to_le_bytes());
        bytes
    }

    /// Parses a header. `path` is for the error.
    pub fn parse(bytes: &[u8; HEADER], segment: SegmentId, path: &str) -> Result<Self, Error> {
        let damaged = |detail: &str| {
            Error::Corrupt(Box::new(Corrupt {
                file: path.to_owned(),
                segment,
                offset: 0,
                detail: detail.to_owned(),
                lost: vec![],
            }))
        };
        let sum = crc32c::crc32c(&bytes[..60]) == u32_at(bytes, 60);
        if &bytes[..8] != MAGIC {
            return Err(Error::Foreign {
                file: path.to_owned(),
                detail: "it does not begin with the header of a log segment".to_owned(),
            });
        }
        // In every format the first 64 bytes keep their checksum. So a flipped bit cannot look like a later format.
        if !sum {
            return Err(damaged("the header's checksum is wrong"));
        }
        let format = u16_at(bytes, 8);
        if format > FORMAT {
            return Err(Error::Newer { file: path.to_owned(), found: format, supported: FORMAT });
        }
        let header = Self {
            format,
            log: bytes[16..32].try_into().expect("16 bytes"),
            segment: SegmentId(u64_at(bytes, 32)),
            commit: u64_at(bytes, 40),
            floor: SegmentId(u64_at(bytes, 48)),
            chain: u32_at(bytes, 56),
            sectors: u32_at(bytes, 12),
        };
        if header.segment != segment {
            return Err(Error::Foreign {
                file: path.to_owned(),
                detail: format!("its header says that it is {}", header.segment),
            });
        }
        Ok(header)
    }
}

/// Contents of the last 64 bytes of a full segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentFooter {
    /// Format of the segment.
    pub format: u16,
    /// Offset at which records end and the index begins.
    pub end: u64,
    pub index_bytes: u32,
    pub index_crc: u32,
    pub records: u32,
    /// Checksum of the last record.
    pub chain: u32,
    /// Number of the last commit.
    pub commit: u64,
}

impl SegmentFooter {
    pub fn encode(&self, seed: Seed) -> [u8; FOOTER] {
        let mut bytes = [0; FOOTER];
        put(&mut bytes, 0, FOOTER_MAGIC);
        put(&mut bytes, 8, &self.format.to_le_bytes());
        put(&mut bytes, 16, &self.end.to_le_bytes());
        put(&mut bytes, 24, &self.index_bytes.to_le_bytes());
        put(&mut bytes, 28, &self.index_crc.to_le_bytes());
        put(&mut bytes, 32, &self.records.to_le_bytes());
        put(&mut bytes, 36, &self.chain.to_le_bytes());
        put(&mut bytes, 40, &self.commit.to_le_bytes());
        let crc = seed.of(&bytes[..60]);
        put(&mut bytes, 60, &crc.to_le_bytes());
        bytes
    }

    pub fn parse(bytes: &[u8; FOOTER], seed: Seed) -> Option<Self> {
        let format = u16_at(bytes, 8);
        let ours = &bytes[..8] == FOOTER_MAGIC && (1..=FORMAT).contains(&format);
        (ours && seed.of(&bytes[..60]) == u32_at(bytes, 60)).then(|| Self {
            format,
            end: u64_at(bytes, 16),
            index_bytes: u32_at(bytes, 24),
            index_crc: u32_at(bytes, 28),
            records: u32_at(bytes, 32),
            chain: u32_at(bytes, 36),
            commit: u64_at(bytes, 40),
        })
    }
}

/// An open segment file and its state.
pub(crate) struct Segment {
    pub id: SegmentId,
    pub file: Arc<dyn DiskFile>,
    pub path: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    pub header: SegmentHeader,
    pub seed: Seed,
    /// Offset at which durable records end.
    end: AtomicU64,
    /// Number of readers. While there are any, the file is not used for anything else.
    pins: AtomicU32,
}

impl Segment {
    pub fn new(header: SegmentHeader, file: Arc<dyn DiskFile>, path: String, bytes: u64) -> Self {
        Self {
            id: header.segment,
            file,
            path,
            bytes,
            header,
            seed: Seed::new(&header.log, header.segment),
            end: AtomicU64::new(HEADER as u64),
            pins: AtomicU32::new(0),
        }
    }

    /// Makes checksums independent of the segment, for the crash tests.
    #[cfg(feature = "trial")]
    pub fn mutate(mut self, options: &crate::Options) -> Self {
        if options.is(crate::Mutation::ReuseRecycledBytes) {
            self.seed = Seed::new(&self.header.log, SegmentId(0));
        }
        self
    }

    /// Opens the file of the segment and reads its header.
    pub fn open(disk: &dyn Disk, id: SegmentId) -> Result<Self, Error> {
        let name = id.file();
        let path = disk.path(&name);
        let file = disk.open(&name).map_err(Error::io(&path, "open"))?;
        let bytes = file.len().map_err(Error::io(&path, "read"))?;
        let mut header = [0; HEADER];
        if bytes < (HEADER + FOOTER) as u64 {
            return Err(Error::Foreign {
                file: path,
                detail: format!("a segment is longer than {bytes} bytes"),
            });
        }
        file.read_at(&mut header, 0).map_err(Error::io(&path, "read"))?;
        let header = SegmentHeader::parse(&header, id, &path)?;
        let segment = Self::new(header, file, path, bytes);
        if bytes != u64::from(header.sectors) * 512 {
            let whole = u64::from(header.sectors) * 512;
            return Err(segment.corrupt(bytes, format!("the file was {whole} bytes long and is {bytes}")));
        }
        Ok(segment)
    }

    /// Returns whether a version that knows the format of the segment knows this kind of record. Another version would
    /// take the record for a torn end.
    pub fn may_hold(&self, kind: Kind) -> bool {
        let first = match kind {
            Kind::Dropped => WITH_DROPPED,
            Kind::Bodies => WITH_BODIES,
            _ => 1,
        };
        self.header.format >= first
    }

    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    pub fn set_end(&self, end: u64) {
        self.end.store(end, Ordering::Release);
    }

    /// Returns the footer and the index, if both are there and whole.
    pub fn read_index(&self) -> Result<Option<(SegmentFooter, SegmentIndex)>, Error> {
        let mut bytes = [0; FOOTER];
        let read =
            |buffer: &mut [u8], at| self.file.read_at(buffer, at).map_err(Error::io(&self.path, "read"));
        read(&mut bytes, self.bytes - FOOTER as u64)?;
        let Some(footer) = SegmentFooter::parse(&bytes, self.seed) else { return Ok(None) };
        let end = footer.end.checked_add(u64::from(footer.index_bytes));
        if footer.end < HEADER as u64 || end.is_none_or(|end| end > self.bytes - FOOTER as u64) {
            return Ok(None);
        }
        let mut index = vec![0; footer.index_bytes as usize];
        read(&mut index, footer.end)?;
        if self.seed.of(&index) != footer.index_crc {
            return Ok(None);
        }
        Ok(SegmentIndex::decode(&index).map(|index| (footer, index)))
    }

    /// Writes index and footer after the records, without a sync.
    pub fn write_index(&self, footer: &mut SegmentFooter, index: &SegmentIndex) -> std::io::Result<()> {
        let bytes = index.encode();
        footer.index_bytes = bytes.len() as u32;
        footer.index_crc = self.seed.of(&bytes);
        self.file.write_at(&bytes, footer.end)?;
        self.file.write_at(&footer.encode(self.seed), self.bytes - FOOTER as u64)
    }

    pub fn pin(self: &Arc<Self>) -> Pin {
        self.pins.fetch_add(1, Ordering::AcqRel);
        Pin(self.clone())
    }

    pub fn pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    pub fn corrupt(&self, offset: u64, detail: impl Into<String>) -> Error {
        Error::Corrupt(Box::new(Corrupt {
            file: self.path.clone(),
            segment: self.id,
            offset,
            detail: detail.into(),
            lost: vec![],
        }))
    }
}

/// Guard that keeps a segment's file from being used for anything else.
pub(crate) struct Pin(Arc<Segment>);

impl std::ops::Deref for Pin {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        &self.0
    }
}

impl Clone for Pin {
    fn clone(&self) -> Self {
        self.0.pin()
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.0.pins.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    fn header() -> SegmentHeader {
        SegmentHeader {
            format: 1,
            log: *b"0123456789abcdef",
            segment: SegmentId(3),
            commit: 9,
            floor: SegmentId(2),
            chain: 0x0403_0201,
            sectors: 8,
        }
    }

    /// Format 1, and later formats with their number only. These bytes do not change; a new format gets bytes of its
    /// own.
    #[test]
    fn the_bytes_of_a_header_and_a_footer_are_these() {
        let bytes = header().encode();
        let golden = "4d52444e4c4f470a0100400008000000303132333435363738396162636465660300000000000000\
            090000000000000002000000000000000102030434ccc200";
        assert_eq!(hex(&bytes), golden);
        assert_eq!(SegmentHeader::parse(&bytes, SegmentId(3), "x").expect("ours"), header());
        let with_bodies = SegmentHeader { format: WITH_BODIES, ..header() };
        let bytes = with_bodies.encode();
        let golden = "4d52444e4c4f470a0200400008000000303132333435363738396162636465660300000000000000\
            0900000000000000020000000000000001020304";
        assert_eq!(hex(&bytes[..60]), golden);
        assert_eq!(SegmentHeader::parse(&bytes, SegmentId(3), "x").expect("ours"), with_bodies);
        let with_dropped = SegmentHeader { format: WITH_DROPPED, ..header() };
        let bytes = with_dropped.encode();
        assert_eq!(hex(&bytes[..60]), golden.replacen("0a0200", "0a0300", 1));
        assert_eq!(SegmentHeader::parse(&bytes, SegmentId(3), "x").expect("ours"), with_dropped);
        let seed = Seed::new(&header().log, SegmentId(3));
        let footer = SegmentFooter {
            format: 1,
            end: 4096,
            index_bytes: 60,
            index_crc: 1,
            records: 5,
            chain: 2,
            commit: 11,
        };
        let bytes = footer.encode(seed);
        let golden = "4d52444e4944580a010000000000000000100000000000003c000000010000000500000002000000\
            0b000000000000000000000000000000000000007b98eb38";
        assert_eq!(hex(&bytes), golden);
        assert_eq!(SegmentFooter::parse(&bytes, seed), Some(footer));
        let with_bodies = SegmentFooter { format: WITH_BODIES, ..footer };
        assert_eq!(SegmentFooter::parse(&with_bodies.encode(seed), seed), Some(with_bodies));
        assert_eq!(SegmentFooter::parse(&bytes, Seed::new(&header().log, SegmentId(4))), None);
    }

    #[test]
    fn foreign_and_newer_segments_are_refused_with_their_file_name() {
        let refuse = |change: &dyn Fn(&mut [u8; HEADER])| {
            let mut bytes = header().encode();
            change(&mut bytes);
            SegmentHeader::parse(&bytes, SegmentId(3), "f.seg").expect_err("refused").to_string()
        };
        assert!(refuse(&|b| b[0] = b'X').contains("f.seg does not belong here"));
        let newer = |b: &mut [u8; HEADER]| {
            b[8] = 4;
            let crc = crc32c::crc32c(&b[..60]);
            put(b, 60, &crc.to_le_bytes());
        };
        assert!(refuse(&newer).contains("format 4, and this program knows formats up to 3"));
        assert!(refuse(&|b| b[40] ^= 1).contains("checksum"));
        let other = SegmentHeader { segment: SegmentId(4), ..header() }.encode();
        let error = SegmentHeader::parse(&other, SegmentId(3), "f.seg").expect_err("refused").to_string();
        assert!(error.contains("says that it is segment 4"), "{error}");
    }
}
