//! Reads the records of a segment one after the other, and searches for records after a bad one.

use crate::error::Error;
use crate::record::{HEADER, LAST, RecordHeader, chain_of, commit_of, size};
use crate::segment::{self, Segment};

/// Bytes that are read ahead.
const WINDOW: usize = 1 << 20;

/// A position in a segment, and the values that the next record needs to follow the previous one.
pub(crate) struct Scan<'a> {
    segment: &'a Segment,
    window: Vec<u8>,
    window_at: u64,
    /// Offset at which records end at the latest.
    limit: u64,
    position: u64,
    chain: u32,
    /// Commit of the previous record, and whether that record completed it.
    commit: u64,
    complete: bool,
    /// Offset at which the commit of the previous record begins.
    commit_at: u64,
    checked: bool,
    chained: bool,
}

pub(crate) struct FoundRecord {
    pub header: RecordHeader,
    pub offset: u64,
}

/// Bytes after the last record that follows.
#[derive(Debug)]
pub(crate) struct Tail {
    /// Offset of the cut. An incomplete commit, or no commit at all, begins here.
    pub cut: u64,
    /// Number of the next commit.
    pub commit: u64,
    /// Offset at which the torn commit ends, as far as visible; `cut` when there is none.
    pub torn_end: u64,
    /// Offset of a valid record of a later commit. The bytes before it were durable and are damaged.
    pub later: Option<u64>,
}

impl<'a> Scan<'a> {
    pub fn new(segment: &'a Segment) -> Self {
        Self {
            segment,
            window: vec![],
            window_at: 0,
            limit: segment.bytes - segment::FOOTER as u64,
            position: segment::HEADER as u64,
            chain: segment.header.chain,
            commit: segment.header.commit.wrapping_sub(1),
            complete: true,
            commit_at: segment::HEADER as u64,
            checked: true,
            chained: true,
        }
    }

    /// Disables checks, for the crash tests.
    pub fn with_checks(mut self, checked: bool, chained: bool) -> Self {
        self.checked = checked;
        self.chained = chained;
        self
    }

    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the offset at which the commit of the last record begins.
    pub fn commit_at(&self) -> u64 {
        self.commit_at
    }

    /// Returns the checksum of the last record.
    pub fn chain(&self) -> u32 {
        self.chain
    }

    fn bytes(&mut self, at: u64, length: usize) -> Result<&[u8], Error> {
        let inside = at >= self.window_at && at + length as u64 <= self.window_at + self.window.len() as u64;
        if !inside {
            let length = length.max(WINDOW.min((self.limit - at) as usize));
            self.window.resize(length, 0);
            self.window_at = at;
            self.segment.file.read_at(&mut self.window, at).map_err(Error::io(&self.segment.path, "read"))?;
        }
        let from = (at - self.window_at) as usize;
        Ok(&self.window[from..from + length])
    }

    /// Returns the record at `at` if its checksum is right.
    fn valid(&mut self, at: u64) -> Result<Option<RecordHeader>, Error> {
        if at + HEADER as u64 > self.limit {
            return Ok(None);
        }
        let Some(header) = RecordHeader::parse(self.bytes(at, HEADER)?) else { return Ok(None) };
        if at + header.size() > self.limit {
            return Ok(None);
        }
        let seed = self.segment.seed;
        let checked = self.checked;
        let bytes = self.bytes(at, header.size() as usize)?;
        let payload = &bytes[HEADER..HEADER + header.length as usize];
        Ok((!checked || seed.checksum(bytes, payload) == header.crc).then_some(header))
    }

    /// Returns the next record that follows the previous one; `None` at the end, or when other bytes are there.
    pub fn next(&mut self) -> Result<Option<FoundRecord>, Error> {
        let at = self.position;
        let Some(header) = self.valid(at)? else { return Ok(None) };
        let follows = if self.complete { self.commit + 1 } else { self.commit };
        if header.commit != follows || (self.chained && header.chain != self.chain) {
            return Ok(None);
        }
        if self.complete {
            self.commit_at = at;
        }
        self.commit = header.commit;
        self.complete = header.flags & LAST != 0;
        self.chain = header.crc;
        self.position = at + header.size();
        Ok(Some(FoundRecord { header, offset: at }))
    }

    /// Returns the payload of a record.
    pub fn payload(&mut self, found: &FoundRecord) -> Result<&[u8], Error> {
        let size = size(found.header.length as usize) as usize;
        Ok(&self.bytes(found.offset, size)?[HEADER..HEADER + found.header.length as usize])
    }

    /// Returns the next valid record at or after `from`, of any commit.
    pub fn find_valid(&mut self, from: u64) -> Result<Option<(u64, RecordHeader)>, Error> {
        let mut at = from;
        while at + HEADER as u64 <= self.limit {
            // Segments are filled with zeros: a quick check saves most of the work.
            if self.bytes(at, HEADER)?[..16] != [0; 16]
                && let Some(header) = self.valid(at)?
            {
                return Ok(Some((at, header)));
            }
            at += 8;
        }
        Ok(None)
    }

    /// Examines the bytes after the end that [`next`](Self::next) found: what is to be cut, and whether it may be
    /// cut.
    pub fn tail(&mut self) -> Result<Tail, Error> {
        let cut = if self.complete { self.position } else { self.commit_at };
        let torn = if self.complete { self.commit + 1 } else { self.commit };
        let mut tail = Tail { cut, commit: torn, torn_end: self.position.max(cut), later: None };
        let mut at = self.position;
        while let Some((found, header)) = self.find_valid(at)? {
            if header.commit > torn {
                tail.later = Some(found);
                break;
            }
            at = found + header.size();
            // Records of earlier commits are remains of an earlier torn commit.
            if header.commit == torn {
                tail.torn_end = at;
            }
        }
        if tail.torn_end == tail.cut && tail.later.is_none() {
            tail.torn_end += self.begun(tail.cut, torn)?;
        }
        Ok(tail)
    }

    /// Returns the bytes of a record at `at` that was begun for this commit and has a wrong checksum; 0 when there
    /// is none. A recycled file holds bytes of an earlier use, so bytes that are not zero prove nothing. The
    /// commit's number or the checksum of the previous record has to be right.
    fn begun(&mut self, at: u64, commit: u64) -> Result<u64, Error> {
        let room = self.limit.saturating_sub(at);
        if room < HEADER as u64 {
            return Ok(0);
        }
        let chain = self.chain;
        let header = self.bytes(at, HEADER)?;
        let is_next = (chain != 0 && chain_of(header) == chain) || commit_of(header) == commit;
        let length = RecordHeader::parse(header).map_or(HEADER as u64, |header| header.size());
        Ok(if is_next { length.min(room) } else { 0 })
    }
}
