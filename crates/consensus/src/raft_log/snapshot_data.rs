//! Bytes of a snapshot: in memory while it is made, received or written, and then in the log.

use std::io;
use std::sync::Arc;

use super::{PART, Store};

/// Bytes of a snapshot.
#[derive(Clone, Debug)]
pub(crate) enum SnapshotData {
    Bytes(Arc<[u8]>),
    /// Parts of the checkpoint at this index of the log.
    Stored {
        checkpoint: u64,
        size: u64,
    },
}

impl SnapshotData {
    pub fn size(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Stored { size, .. } => *size,
        }
    }
}

/// Reads a snapshot piece by piece. It has one part in memory.
pub(crate) struct SnapshotReader {
    store: Store,
    data: SnapshotData,
    part: Option<(u64, Arc<[u8]>)>,
}

impl SnapshotReader {
    pub fn new(store: Store, data: SnapshotData) -> Self {
        Self { store, data, part: None }
    }

    /// Reads up to `size` bytes from an offset on. Returns at least one byte before the end of the snapshot.
    ///
    /// # Errors
    /// The part cannot be read, or another snapshot has replaced this one.
    pub async fn read(&mut self, offset: u64, size: usize) -> io::Result<Vec<u8>> {
        if offset >= self.data.size() {
            return Ok(Vec::new());
        }
        let (bytes, from) = match &self.data {
            SnapshotData::Bytes(bytes) => (bytes.clone(), offset),
            SnapshotData::Stored { checkpoint, .. } => {
                let number = offset / PART as u64;
                let bytes = match &self.part {
                    Some((at, bytes)) if *at == number => bytes.clone(),
                    // Part 0 holds the metadata.
                    _ => self.store.read_part(number as u32 + 1, *checkpoint).await?,
                };
                self.part = Some((number, bytes.clone()));
                (bytes, offset % PART as u64)
            }
        };
        let rest = bytes.get(from as usize..).filter(|rest| !rest.is_empty());
        let rest = rest.ok_or_else(|| io::Error::other("a part of the snapshot is too short"))?;
        Ok(rest[..size.min(rest.len())].to_vec())
    }
}
