//! State machine of the simulation: the list of all proposals.

use consensus::{SnapshotError, StateMachine, UnsupportedVersion};

/// Applied proposals: index and number, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProposalLog {
    pub entries: Vec<(u64, u64)>,
    /// Position of the first entry that the oracle has not seen.
    pub seen: usize,
}

impl ProposalLog {
    /// Index of the last entry.
    pub fn last(&self) -> Option<u64> {
        self.entries.last().map(|(index, _)| *index)
    }
}

/// Encodes a proposal with padding, which gives logs and snapshots a size.
pub fn command(number: u64, padding: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(8 + padding, number as u8);
    bytes
}

impl StateMachine for ProposalLog {
    fn apply(&mut self, index: u64, command: &[u8]) -> Result<Vec<u8>, UnsupportedVersion> {
        let number = command.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        self.entries.push((index, number));
        Ok(number.to_le_bytes().to_vec())
    }

    fn snapshot(&self) -> Vec<u8> {
        let numbers = self.entries.iter().flat_map(|(index, number)| [*index, *number]);
        numbers.flat_map(u64::to_le_bytes).collect()
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), SnapshotError> {
        let (numbers, rest) = snapshot.as_chunks::<16>();
        if !rest.is_empty() {
            return Err(SnapshotError::Invalid);
        }
        let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        self.entries = numbers.iter().map(|pair| (number(pair), number(&pair[8..]))).collect();
        self.seen = 0;
        Ok(())
    }
}
