//! State machine of the simulation: the list of all proposals.

use std::collections::BTreeMap;

use consensus::{Committed, SnapshotError, StateMachine, UnsupportedVersion};

/// Applied proposals: index and number, in order.
///
/// A snapshot has a part with the number of proposals, a part for each full block of them, and a part with those after
/// the last block. The number of that part depends on the number of proposals. So a snapshot adds, replaces, keeps and
/// removes parts, and parts of two snapshots do not fit together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProposalLog {
    pub entries: Vec<(u64, u64)>,
    /// Position of the first entry that the oracle has not seen.
    pub seen: usize,
    /// Number of blocks of the last snapshot, and the part with its last proposals.
    stored: (usize, Option<u32>),
    checkpoint: Option<Checkpoint>,
    restoring: BTreeMap<u32, Vec<u8>>,
    /// Number of snapshots during which proposals were applied.
    pub overlaps: u64,
    /// Number of snapshots that were read.
    pub restores: u64,
}

/// Snapshot that is being written: of so many proposals.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Checkpoint {
    count: usize,
    next_block: usize,
    has_written: bool,
}

/// Number of proposals of a block.
const BLOCK: usize = 16;
/// Part with the number of proposals, and the first of those with the proposals after the last block.
const COUNT: u32 = 0;
const TAILS: u32 = 1;
const TAIL_PARTS: usize = 5;
/// First part with a block.
const BLOCKS: u32 = 10;
/// Number of blocks that are written at once.
const BLOCKS_AT_ONCE: usize = 3;

impl ProposalLog {
    /// Index of the last entry.
    pub fn last(&self) -> Option<u64> {
        self.entries.last().map(|(index, _)| *index)
    }

    fn encode(&self, range: std::ops::Range<usize>) -> Vec<u8> {
        let numbers = self.entries[range].iter().flat_map(|(index, number)| [*index, *number]);
        numbers.flat_map(u64::to_le_bytes).collect()
    }
}

/// Part with the proposals after the last block, if there are any.
fn tail(count: usize) -> Option<u32> {
    (!count.is_multiple_of(BLOCK)).then_some(TAILS + (count % TAIL_PARTS) as u32)
}

/// Encodes a proposal with padding, which gives logs and snapshots a size.
pub fn command(number: u64, padding: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(8 + padding, number as u8);
    bytes
}

impl StateMachine for ProposalLog {
    /// Index and number of a proposal.
    type Effect = (u64, u64);

    fn apply(
        &mut self,
        committed: &Committed,
        effects: &mut Vec<(u64, u64)>,
    ) -> Result<(), UnsupportedVersion> {
        let number = committed.command.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        self.entries.push((committed.index, number));
        effects.push((committed.index, number));
        self.overlaps += u64::from(self.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.has_written));
        Ok(())
    }

    fn begin_checkpoint(&mut self) {
        let next_block = self.stored.0;
        self.checkpoint = Some(Checkpoint { count: self.entries.len(), next_block, has_written: false });
    }

    fn write_parts(&mut self, _: usize, out: &mut dyn FnMut(u32, &[u8])) -> bool {
        let Some(Checkpoint { count, next_block, has_written }) = self.checkpoint.clone() else {
            return true;
        };
        if !has_written {
            out(COUNT, &(count as u64).to_le_bytes());
            if let Some(before) = self.stored.1.filter(|before| Some(*before) != tail(count)) {
                out(before, &[]);
            }
            if let Some(part) = tail(count) {
                out(part, &self.encode(count - count % BLOCK..count));
            }
        }
        let end = (next_block + BLOCKS_AT_ONCE).min(count / BLOCK);
        for block in next_block..end {
            out(BLOCKS + block as u32, &self.encode(block * BLOCK..(block + 1) * BLOCK));
        }
        if end < count / BLOCK {
            self.checkpoint = Some(Checkpoint { count, next_block: end, has_written: true });
            return false;
        }
        self.checkpoint = None;
        self.stored = (count / BLOCK, tail(count));
        true
    }

    fn begin_restore(&mut self) {
        self.restoring.clear();
    }

    fn restore_part(&mut self, part: u32, bytes: &[u8]) -> Result<(), SnapshotError> {
        match self.restoring.insert(part, bytes.into()) {
            Some(_) => Err(SnapshotError::Invalid),
            None => Ok(()),
        }
    }

    fn restored(&mut self, index: u64) -> Result<(), SnapshotError> {
        let mut parts = std::mem::take(&mut self.restoring);
        let count = parts.remove(&COUNT).ok_or(SnapshotError::Invalid)?;
        let count = count.first_chunk().map(|count| u64::from_le_bytes(*count) as usize);
        let count = count.ok_or(SnapshotError::Invalid)?;
        let mut bytes = Vec::new();
        let blocks = (0..count / BLOCK).map(|block| BLOCKS + block as u32);
        for part in blocks.chain(tail(count)) {
            bytes.extend(parts.remove(&part).ok_or(SnapshotError::Invalid)?);
        }
        let (numbers, rest) = bytes.as_chunks::<16>();
        let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let entries: Vec<_> = numbers.iter().map(|pair| (number(pair), number(&pair[8..]))).collect();
        let is_in_order = entries.is_sorted_by(|one, next| one.0 < next.0);
        let is_past = entries.last().is_none_or(|(last, _)| *last <= index);
        if !parts.is_empty() || !rest.is_empty() || entries.len() != count || !is_in_order || !is_past {
            return Err(SnapshotError::Invalid);
        }
        (self.entries, self.seen, self.checkpoint) = (entries, 0, None);
        self.stored = (count / BLOCK, tail(count));
        self.restores += 1;
        Ok(())
    }
}
