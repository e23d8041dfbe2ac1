//! A snapshot that arrives in pieces. Its parts go to the log as they become whole: one of them is in memory.

use std::collections::VecDeque;
use std::io;

use crate::machine::STREAM_PART_BYTES;
use crate::manifest::{HEADER, Manifest, PARTS_MAX, PartInfo};
use crate::mutation::{Mutation, mutated};
use crate::raft_log::CheckpointWriter;
use crate::raft_types::{ReplicaId, SnapshotMeta, Vote};
use crate::wire::{SnapshotForm, SnapshotPiece};

/// Identity of a snapshot of another replica.
#[derive(Clone)]
pub(crate) struct Source {
    from: ReplicaId,
    form: SnapshotForm,
    pub vote: Vote,
    pub meta: SnapshotMeta,
    pub size: u64,
}

impl Source {
    pub fn new(from: ReplicaId, piece: &SnapshotPiece) -> Self {
        let SnapshotPiece { form, vote, size, .. } = *piece;
        Self { from, form, vote, meta: piece.meta.clone(), size }
    }

    /// Returns whether a piece belongs to this snapshot.
    pub fn has(&self, from: ReplicaId, piece: &SnapshotPiece) -> bool {
        let is_same =
            self.from == from && (self.form, self.vote, self.size) == (piece.form, piece.vote, piece.size);
        is_same && self.meta == piece.meta || mutated(Mutation::MixSnapshots)
    }
}

/// A snapshot of another replica that arrives.
pub(crate) struct Incoming {
    pub source: Source,
    pub writer: CheckpointWriter,
    /// Number of bytes that have arrived.
    pub received: u64,
    /// Bytes of the manifest.
    head: Vec<u8>,
    /// Parts that are not whole yet. `None` before the manifest is whole.
    rest: Option<VecDeque<WantedPart>>,
    /// Bytes of the first of them.
    part: Vec<u8>,
}

struct WantedPart {
    number: u32,
    length: usize,
    /// `None` if the sender does not know it: [`SnapshotForm::Whole`].
    info: Option<PartInfo>,
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Incoming {
    /// Begins with the first piece.
    ///
    /// # Errors
    /// The snapshot has too many parts.
    pub fn new(from: ReplicaId, piece: &SnapshotPiece, writer: CheckpointWriter) -> io::Result<Self> {
        let rest = match piece.form {
            SnapshotForm::Parts => None,
            SnapshotForm::Whole => Some(stream_parts(piece.size)?),
        };
        let source = Source::new(from, piece);
        Ok(Self { source, writer, received: 0, head: Vec::new(), rest, part: Vec::new() })
    }

    /// Adds the bytes of the next piece.
    ///
    /// # Errors
    /// The bytes are not those of a snapshot, or the log has failed.
    pub fn feed(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let left = self.source.size - self.received;
        if bytes.len() as u64 > left {
            if !mutated(Mutation::MixSnapshots) {
                return Err(malformed("a snapshot is larger than it should be"));
            }
            bytes = &bytes[..left as usize];
        }
        self.received += bytes.len() as u64;
        self.feed_parts(bytes)?;
        if self.received == self.source.size && !self.is_whole() {
            return Err(malformed("a snapshot has fewer bytes than its parts"));
        }
        Ok(())
    }

    fn feed_parts(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let Some(rest) = &mut self.rest else {
                bytes = self.feed_head(bytes)?;
                continue;
            };
            let wanted = rest.front().ok_or_else(|| malformed("a snapshot has bytes after its last part"))?;
            let (some, others) = bytes.split_at(bytes.len().min(wanted.length - self.part.len()));
            self.part.extend_from_slice(some);
            bytes = others;
            if self.part.len() < wanted.length {
                return Ok(());
            }
            let is_right = wanted.info.is_none_or(|info| info == PartInfo::of(&self.part));
            if !is_right && !mutated(Mutation::MixSnapshots) {
                return Err(malformed("a part of a snapshot has a wrong checksum"));
            }
            self.writer.put(wanted.number, &self.part)?;
            self.part.clear();
            rest.pop_front();
        }
        Ok(())
    }

    /// Adds bytes to the manifest, and returns the others.
    fn feed_head<'a>(&mut self, bytes: &'a [u8]) -> io::Result<&'a [u8]> {
        let invalid = || malformed("the manifest of a snapshot cannot be read");
        let wanted = match self.head.first_chunk() {
            Some(header) => Manifest::encoded_len(header).ok_or_else(invalid)?,
            None => HEADER,
        };
        let (some, others) = bytes.split_at(bytes.len().min(wanted - self.head.len()));
        self.head.extend_from_slice(some);
        let Some(header) = self.head.first_chunk() else { return Ok(others) };
        if Manifest::encoded_len(header).ok_or_else(invalid)? == self.head.len() {
            let manifest = Manifest::decode(&self.head).ok_or_else(invalid)?;
            if self.head.len() as u64 + manifest.parts_bytes() != self.source.size {
                return Err(malformed("the parts of a snapshot have another size than the snapshot"));
            }
            let wanted = |(number, info): (u32, PartInfo)| WantedPart {
                number,
                length: info.length as usize,
                info: Some(info),
            };
            self.rest = Some(manifest.0.into_iter().map(wanted).collect());
            self.head = Vec::new();
        }
        Ok(others)
    }

    /// Returns whether all parts are there.
    pub fn is_whole(&self) -> bool {
        let missing = self.rest.as_ref().map(VecDeque::len);
        missing == Some(0) || missing == Some(1) && mutated(Mutation::InstallEarly)
    }
}

/// Parts of a stream of this size.
fn stream_parts(size: u64) -> io::Result<VecDeque<WantedPart>> {
    if size.div_ceil(STREAM_PART_BYTES as u64) > PARTS_MAX as u64 {
        return Err(malformed("a snapshot has too many parts"));
    }
    let starts = (0..size).step_by(STREAM_PART_BYTES);
    let wanted = |(number, start): (u32, u64)| WantedPart {
        number,
        length: (size - start).min(STREAM_PART_BYTES as u64) as usize,
        info: None,
    };
    Ok((0..).zip(starts).map(wanted).collect())
}
