//! Progress of the snapshots that a leader sends.

use std::collections::BTreeMap;

use link::Time;

use super::checkpoint::TRANSFER_STALL;
use crate::raft_types::ReplicaId;

/// The last transfer to each replica that has not ended.
#[derive(Default)]
pub(super) struct Transfers(BTreeMap<ReplicaId, Transfer>);

struct Transfer {
    checkpoint: u64,
    /// Number of bytes that the replica has, at most so far. A transfer that begins again does not advance before it.
    offset: u64,
    advanced_at: Time,
}

impl Transfers {
    /// Handles the number of bytes of a checkpoint that a replica has.
    pub fn received(&mut self, to: ReplicaId, checkpoint: u64, offset: u64, now: Time) {
        self.0.retain(|_, transfer| {
            transfer.advanced_at.after(TRANSFER_STALL) > now || transfer.checkpoint >= checkpoint
        });
        let known =
            self.0.get(&to).is_some_and(|known| known.checkpoint == checkpoint && known.offset >= offset);
        if !known {
            self.0.insert(to, Transfer { checkpoint, offset, advanced_at: now });
        }
    }

    pub fn ended(&mut self, to: ReplicaId) {
        self.0.remove(&to);
    }

    /// Time until which transfers of a checkpoint count as advancing.
    pub fn advance_until(&self, checkpoint: u64) -> Option<Time> {
        let those = self.0.values().filter(|transfer| transfer.checkpoint == checkpoint);
        those.map(|transfer| transfer.advanced_at.after(TRANSFER_STALL)).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_that_begins_again_does_not_advance() {
        let (to, other) = (ReplicaId(1), ReplicaId(2));
        let at = |seconds: u64| Time(seconds * 1_000_000);
        let until = |seconds: u64| Some(at(seconds).after(TRANSFER_STALL));
        let mut transfers = Transfers::default();
        assert_eq!(transfers.advance_until(7), None);
        transfers.received(to, 7, 100, at(1));
        assert_eq!((transfers.advance_until(7), transfers.advance_until(8)), (until(1), None));
        transfers.received(to, 7, 0, at(2));
        transfers.received(to, 7, 100, at(3));
        assert_eq!(transfers.advance_until(7), until(1));
        transfers.received(to, 7, 101, at(4));
        transfers.received(other, 7, 0, at(5));
        assert_eq!(transfers.advance_until(7), until(5));
        transfers.ended(other);
        assert_eq!(transfers.advance_until(7), until(4));
        transfers.received(to, 8, 0, at(6));
        assert_eq!((transfers.advance_until(7), transfers.advance_until(8)), (None, until(6)));
    }
}
