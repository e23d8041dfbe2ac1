//! Progress of the snapshots that a leader sends.

use std::collections::BTreeMap;

use link::Time;

use super::checkpoint::TRANSFER_STALL;
use crate::raft_types::ReplicaId;

#[derive(Default)]
pub(super) struct Transfers {
    /// The last transfer to each replica that has not ended.
    transfers: BTreeMap<ReplicaId, Transfer>,
    /// Last entry of the snapshot that a replica has whole, and the time at which it said last that it installs it.
    installing: BTreeMap<ReplicaId, (u64, Time)>,
}

struct Transfer {
    checkpoint: u64,
    /// Number of bytes that the replica has, at most so far. A transfer that begins again does not advance before it.
    offset: u64,
    advanced_at: Time,
}

impl Transfers {
    /// Handles the number of bytes of a checkpoint that a replica has.
    pub fn received(&mut self, to: ReplicaId, checkpoint: u64, offset: u64, now: Time) {
        self.installing.remove(&to);
        self.transfers.retain(|_, transfer| {
            transfer.advanced_at.after(TRANSFER_STALL) > now || transfer.checkpoint >= checkpoint
        });
        let known = self.transfers.get(&to);
        let known = known.is_some_and(|known| known.checkpoint == checkpoint && known.offset >= offset);
        if !known {
            self.transfers.insert(to, Transfer { checkpoint, offset, advanced_at: now });
        }
    }

    pub fn ended(&mut self, to: ReplicaId) {
        self.transfers.remove(&to);
    }

    /// Handles the answer of a replica that it has a whole snapshot up to an entry, and installs it.
    pub fn installing(&mut self, to: ReplicaId, last: u64, now: Time) {
        self.transfers.remove(&to);
        self.installing.insert(to, (last, now));
    }

    /// Index of the entry whose successors the replicas that install snapshots will need. A replica counts until it
    /// has said nothing for a while: it gets these entries after its last answer.
    pub fn kept_after(&self, now: Time) -> Option<u64> {
        let those = self.installing.values().filter(|(_, heard)| heard.after(TRANSFER_STALL) > now);
        those.map(|(last, _)| *last).min()
    }

    /// Time until which transfers of a checkpoint count as advancing.
    pub fn advance_until(&self, checkpoint: u64) -> Option<Time> {
        let those = self.transfers.values().filter(|transfer| transfer.checkpoint == checkpoint);
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

    #[test]
    fn entries_are_kept_for_a_replica_that_installs_a_snapshot() {
        let (to, other) = (ReplicaId(1), ReplicaId(2));
        let at = |seconds: u64| Time(seconds * 1_000_000);
        let mut transfers = Transfers::default();
        transfers.received(to, 7, 100, at(1));
        transfers.installing(to, 6, at(2));
        assert_eq!((transfers.advance_until(7), transfers.kept_after(at(2))), (None, Some(6)));
        transfers.installing(other, 4, at(3));
        assert_eq!(transfers.kept_after(at(3)), Some(4));
        transfers.installing(to, 6, at(10));
        assert_eq!((transfers.kept_after(at(22)), transfers.kept_after(at(23))), (Some(4), Some(6)));
        assert_eq!((transfers.kept_after(at(29)), transfers.kept_after(at(30))), (Some(6), None));
        // Another snapshot is sent.
        transfers.received(to, 8, 0, at(11));
        assert_eq!(transfers.kept_after(at(11)), Some(4));
    }
}
