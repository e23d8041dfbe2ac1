//! The log and the vote of a replica, as `openraft` reads and writes them.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds, RangeInclusive};
use std::sync::Arc;

use futures_util::{Stream, stream};
use openraft::storage::{LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use tokio::sync::oneshot;

use super::log_read::{PartOf, Waiting};
use super::{Lookup, Store, in_log};
use crate::mutation::{Mutation, mutated};
use crate::raft_types::{Entry, IoFlushed, LogId, Types, Vote};

/// Maximum number of bytes of entries in one message, unless it is a single entry.
const BATCH_BYTES: usize = 1 << 20;

impl Store {
    /// Reads a part of a checkpoint.
    pub(super) async fn read_part(&self, of: PartOf, part: u32) -> io::Result<Arc<[u8]>> {
        let receiver = {
            let mut raft_log = self.lock();
            if raft_log.failed.is_some() {
                return Err(raft_log.failure());
            }
            let (reader, receiver) = oneshot::channel();
            let group = raft_log.storage_groups.entries;
            raft_log.reads.add_part(group, part, of, Waiting::Part(reader));
            receiver
        };
        let read = receiver.await.map_err(|_| self.failure())?;
        read.ok_or_else(|| io::Error::other("another snapshot replaces this one, or a part of it is moved"))
    }

    /// Reads the entries of a range, up to `payload_max` bytes of payloads, but at least one. Entries that are not in
    /// the log are left out.
    async fn read(&self, range: Range<u64>, payload_max: usize) -> io::Result<Vec<Entry>> {
        loop {
            let looked_up = self.lock().look_up(range.clone(), payload_max)?;
            let receiver = match looked_up {
                Lookup::Found(entries) => return Ok(entries),
                Lookup::Reads(receiver) => receiver,
            };
            if let Some(entries) = receiver.await.map_err(|_| self.failure())? {
                return Ok(entries);
            }
        }
    }
}

impl RaftLogReader<Types> for Store {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        let range = bounds(&range);
        let mut truncations = self.lock().truncations;
        let (mut entries, mut start) = (Vec::new(), range.start);
        loop {
            let mut some = self.read(start..range.end, BATCH_BYTES).await?;
            let truncations_now = self.lock().truncations;
            let follows = entries.is_empty() || some.first().is_none_or(|first| first.log_id.index == start);
            if truncations_now != truncations || !follows {
                // Entries were truncated or purged meanwhile. The result is the log at one time.
                (truncations, start) = (truncations_now, range.start);
                entries.clear();
                continue;
            }
            let Some(last) = some.last() else { return Ok(entries) };
            start = last.log_id.index + 1;
            entries.append(&mut some);
        }
    }

    /// Reads a part of the range at a time, so that memory holds no more than that.
    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = io::Result<Entry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let rest = (self.clone(), bounds(&range), VecDeque::new());
        stream::try_unfold(rest, |(store, mut range, mut entries)| async move {
            if range.is_empty() {
                return Ok(None);
            }
            if entries.is_empty() {
                entries = store.read(range.clone(), BATCH_BYTES).await?.into();
            }
            let next = entries.pop_front().filter(|entry| entry.log_id.index == range.start);
            let Some(entry) = next else {
                return Err(io::Error::other(format!("entry {} is not in the log", range.start)));
            };
            range.start += 1;
            Ok(Some((entry, (store, range, entries))))
        })
    }

    /// Returns nothing if the first of the entries are purged: it must not return entries that do not follow.
    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        let mut entries = self.read(start..end, BATCH_BYTES).await?;
        if entries.first().is_some_and(|first| first.log_id.index != start) {
            entries.clear();
        }
        Ok(entries)
    }

    async fn get_key_log_ids(&mut self, range: RangeInclusive<LogId>) -> io::Result<Vec<LogId>> {
        Ok(self.lock().terms.last_ids(&range))
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.lock().hard.vote)
    }
}

impl RaftLogStorage<Types> for Store {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let raft_log = self.lock();
        Ok(LogState { last_purged_log_id: raft_log.purged, last_log_id: raft_log.last() })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let receiver = {
            let mut raft_log = self.lock();
            if raft_log.failed.is_some() {
                return Err(raft_log.failure());
            }
            let (sender, receiver) = oneshot::channel();
            raft_log.hard.vote = Some(*vote);
            let index = raft_log.write_hard_state();
            raft_log.votes.waiting.push((index, sender));
            receiver
        };
        receiver.await.map_err(|_| self.failure())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let mut raft_log = self.lock();
        // A majority has it, whether it reports that or not.
        raft_log.held.advance(committed.map(|last| last.index));
        if mutated(Mutation::ForgetCommitted) {
            return Ok(());
        }
        if raft_log.hard.committed < committed {
            raft_log.hard.committed = committed;
            if raft_log.save_committed_after == 0 {
                raft_log.save_committed();
            }
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.lock().hard.committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IoFlushed) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.lock().append(entries.into_iter(), callback)
    }

    /// Waits for pending writes first: the log reports progress by index, and the truncated indexes are used again.
    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        self.wait_durable().await?;
        let mut raft_log = self.lock();
        let next = last.map_or(0, |last| last.index + 1).max(raft_log.first());
        raft_log.terms.truncate(next);
        raft_log.cache.truncate(next);
        raft_log.truncations += 1;
        let end = raft_log.last().as_ref().map_or(0, in_log);
        raft_log.written = raft_log.written.min(end);
        raft_log.durable = raft_log.durable.min(end);
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        let mut raft_log = self.lock();
        if raft_log.purged < Some(upto) {
            raft_log.purged = Some(upto);
            raft_log.terms.purge(upto.index + 1);
            raft_log.cache.purge(upto.index + 1);
            raft_log.evict();
            raft_log.free();
        }
        Ok(())
    }
}

fn bounds(range: &impl RangeBounds<u64>) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(index) => *index,
        Bound::Excluded(index) => index + 1,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(index) => index + 1,
        Bound::Excluded(index) => *index,
        Bound::Unbounded => u64::MAX,
    };
    start..end
}
