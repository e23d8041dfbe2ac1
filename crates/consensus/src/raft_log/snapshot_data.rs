//! A snapshot as `openraft` passes it on: its parts are in the log.

use std::io;
use std::sync::Arc;

use super::checkpoint::CheckpointWriter;
use super::{PartOf, Store};
use crate::jobs::Restore;
use crate::manifest::Manifest;
use crate::wire::SnapshotForm;

/// Parts of a snapshot.
pub(crate) enum SnapshotData {
    Stored(StoredSnapshot),
    /// Snapshot of another replica. Its parts are in the log, and its checkpoint is not complete.
    Received(Box<Restored>),
}

/// Snapshot of another replica that the owner has read.
pub(crate) struct Restored {
    pub writer: CheckpointWriter,
    pub restore: Restore,
}

/// Parts of the checkpoint at this index of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredSnapshot {
    pub checkpoint: u64,
    pub parts: Arc<Manifest>,
}

/// Reads a snapshot piece by piece, as it is sent. It has one part in memory.
pub(crate) struct SnapshotReader {
    store: Store,
    checkpoint: u64,
    /// Encoding of the manifest. Empty for [`SnapshotForm::Whole`].
    head: Vec<u8>,
    /// Numbers of the parts, and the offsets at which they end.
    ends: Vec<(u64, u32)>,
    part: Option<(u32, Arc<[u8]>)>,
}

impl SnapshotReader {
    pub fn new(store: Store, snapshot: &StoredSnapshot, form: SnapshotForm) -> Self {
        let head = match form {
            SnapshotForm::Whole => Vec::new(),
            SnapshotForm::Parts => snapshot.parts.encode(),
        };
        let mut end = head.len() as u64;
        let end_of = |(number, part): (&u32, &crate::manifest::PartInfo)| {
            end += u64::from(part.length);
            (end, *number)
        };
        let ends = snapshot.parts.0.iter().map(end_of).collect();
        Self { store, checkpoint: snapshot.checkpoint, head, ends, part: None }
    }

    /// Number of bytes to send.
    pub fn size(&self) -> u64 {
        self.ends.last().map_or(self.head.len() as u64, |(end, _)| *end)
    }

    /// Reads `size` bytes from an offset on, or fewer up to the end of the snapshot. Many small parts are read at once.
    ///
    /// # Errors
    /// A part cannot be read, or another snapshot has replaced this one.
    pub async fn read(&mut self, offset: u64, size: usize) -> io::Result<Vec<u8>> {
        let head = self.head.get(offset as usize..).unwrap_or_default();
        let mut out = head[..size.min(head.len())].to_vec();
        while out.len() < size {
            let at = offset + out.len() as u64;
            let next = self.ends.partition_point(|(end, _)| *end <= at);
            let Some((end, number)) = self.ends.get(next).copied() else { break };
            let bytes = match &self.part {
                Some((known, bytes)) if *known == number => bytes.clone(),
                // Part 0 of a checkpoint holds the metadata.
                _ => self.store.read_part(PartOf::Checkpoint(self.checkpoint), number + 1).await?,
            };
            self.part = Some((number, bytes.clone()));
            let from = (bytes.len() as u64).checked_sub(end - at);
            let rest = from.and_then(|from| bytes.get(from as usize..)).filter(|rest| !rest.is_empty());
            let rest = rest.ok_or_else(|| io::Error::other("a part of the snapshot has another size"))?;
            out.extend_from_slice(&rest[..rest.len().min(size - out.len())]);
        }
        Ok(out)
    }
}
