//! What a replica keeps on the node's log: entries, its vote, how far it knows entries to be committed, and its snapshot.
//!
//! An entry of the replica is an entry of the log's group, with an index that is one higher (those of the log begin at 1). A snapshot is a
//! checkpoint: part 0 says what it stands for, the others have its bytes. Votes have a group of their own, whose last entry counts.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, Mutex, MutexGuard};

use openraft::storage::{LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use storage::{GroupId, Log, Record, RecoveredGroup, SegmentId, Vacate};
use tokio::sync::oneshot;

use crate::mutation::{Mutation, mutated};
use crate::runtime::lock;
use crate::raft_types::{Entry, IoFlushed, LogId, Snapshot, SnapshotMeta, Types, Vote};
use crate::wire::{HardState, decode_entry, decode_meta, encode_entry, encode_meta, log_id, term_of};

#[cfg(test)]
mod tests;

/// Bytes of a snapshot in one part of its checkpoint.
const PART: usize = 1 << 20;
/// Bytes of entries that are sent at once, if it is more than one.
const BATCH_BYTES: usize = 1 << 20;

/// The two groups of the log that a replica has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageGroups {
    pub entries: GroupId,
    pub votes: GroupId,
}

/// One replica's, shared by all that `openraft` runs for it.
#[derive(Clone)]
pub(crate) struct Store(Arc<Mutex<RaftLog>>);

pub(crate) struct RaftLog {
    log: Log,
    storage_groups: StorageGroups,
    /// Those after `purged`.
    entries: VecDeque<Entry>,
    purged: Option<LogId>,
    hard: HardState,
    votes: Votes,
    /// In the log, durable or not: the index there.
    written: u64,
    /// Who waits until an entry is durable, in the order of the log.
    flushes: VecDeque<(u64, IoFlushed)>,
    /// Who waits until all of them are.
    flush_waiters: Vec<oneshot::Sender<()>>,
    /// Entries behind a snapshot that is not durable yet: before it they would leave a hole.
    deferred: VecDeque<Record>,
    checkpoint: Checkpoint,
    snapshot: Option<(SnapshotMeta, Arc<[u8]>)>,
    /// Segments that wait for a checkpoint at this index of the log or later.
    vacates: Vec<(SegmentId, u64)>,
    failed: Option<String>,
}

#[derive(Default)]
struct Votes {
    /// Index of the last one in the log.
    written: u64,
    durable: u64,
    waiting: Vec<(u64, oneshot::Sender<()>)>,
    vacates: Vec<(SegmentId, u64)>,
}

#[derive(Default)]
struct Checkpoint {
    /// Index of the last one in the log, and that of the last durable one.
    written: u64,
    durable: u64,
    /// Parts besides the first.
    parts: u32,
    waiting: Vec<(u64, oneshot::Sender<()>)>,
}

/// The log holds something that no replica has written.
#[derive(Debug)]
pub struct Unreadable(pub String);

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreadable {}

impl From<storage::Error> for Unreadable {
    fn from(error: storage::Error) -> Self {
        Self(error.to_string())
    }
}

fn in_log(log_id: &LogId) -> u64 {
    log_id.index + 1
}

impl Store {
    /// Reads what a replica had: nothing where the groups are not there.
    ///
    /// # Errors
    /// What is there is damaged, or of a later version: the replica must not vote.
    pub fn recover(
        log: Log,
        storage_groups: StorageGroups,
        recovered: &[RecoveredGroup],
    ) -> Result<Self, Unreadable> {
        let find = |group| recovered.iter().find(|found| found.group == group);
        let mut raft_log = RaftLog {
            log,
            storage_groups,
            entries: VecDeque::new(),
            purged: None,
            hard: HardState::default(),
            votes: Votes::default(),
            written: 0,
            flushes: VecDeque::new(),
            flush_waiters: Vec::new(),
            deferred: VecDeque::new(),
            checkpoint: Checkpoint::default(),
            snapshot: None,
            vacates: Vec::new(),
            failed: None,
        };
        if let Some(found) = find(storage_groups.votes) {
            raft_log.recover_votes(found)?;
        }
        if let Some(found) = find(storage_groups.entries) {
            raft_log.recover_entries(found)?;
        }
        // It may have been told of entries that did not become durable here: others have them.
        raft_log.hard.committed = raft_log.hard.committed.min(raft_log.last());
        for group in [storage_groups.entries, storage_groups.votes] {
            // Nothing of it would have to be written again: a checkpoint stands for all.
            raft_log.log.report_live(group, 0);
        }
        Ok(Self(Arc::new(Mutex::new(raft_log))))
    }

    pub fn lock(&self) -> MutexGuard<'_, RaftLog> {
        lock(&self.0)
    }

    /// Writes a checkpoint, and returns when it is durable. One that is older than what there is, is not written.
    pub async fn save_snapshot(&self, meta: SnapshotMeta, bytes: Arc<[u8]>) -> io::Result<()> {
        let waits = self.lock().write_snapshot(meta, bytes)?;
        waits.await.map_err(|_| self.failure())
    }

    fn failure(&self) -> io::Error {
        self.lock().failure()
    }

    /// Waits until everything that was appended is durable.
    ///
    /// # Errors
    /// The log has failed.
    pub async fn wait_durable(&self) -> io::Result<()> {
        let settled = {
            let mut raft_log = self.lock();
            let (sender, receiver) = oneshot::channel();
            if raft_log.flushes.is_empty() {
                let _ = sender.send(());
            } else {
                raft_log.flush_waiters.push(sender);
            }
            receiver
        };
        settled.await.map_err(|_| self.failure())
    }
}

impl RaftLog {
    fn recover_votes(&mut self, found: &RecoveredGroup) -> Result<(), Unreadable> {
        let unreadable = || Unreadable("the vote of a replica cannot be read".into());
        for part in found.parts() {
            self.hard = HardState::decode(&part?.1).ok_or_else(unreadable)?;
        }
        for entry in found.entries() {
            self.hard = HardState::decode(&entry?.payload).ok_or_else(unreadable)?;
        }
        if !found.lost.is_empty() {
            return Err(Unreadable("votes of a replica are lost: it must come back as another".into()));
        }
        self.votes.written = found.last;
        self.votes.durable = found.last;
        Ok(())
    }

    fn recover_entries(&mut self, found: &RecoveredGroup) -> Result<(), Unreadable> {
        if !found.lost.is_empty() {
            return Err(Unreadable("entries of a replica are lost: it must come back as another".into()));
        }
        let mut parts = BTreeMap::new();
        for part in found.parts() {
            let (part, bytes) = part?;
            parts.insert(part, bytes);
        }
        if let Some(checkpoint) = found.checkpoint {
            let meta = parts.remove(&0).and_then(|bytes| decode_meta(&bytes));
            let meta = meta.ok_or_else(|| Unreadable("the snapshot of a replica cannot be read".into()))?;
            let bytes: Vec<u8> = parts.values().flat_map(|part| part.iter().copied()).collect();
            self.purged = meta.last_log_id;
            self.snapshot = Some((meta, bytes.into()));
            let parts = parts.len() as u32;
            self.checkpoint =
                Checkpoint { written: checkpoint, durable: checkpoint, parts, waiting: Vec::new() };
        }
        self.written = found.last;
        for entry in found.entries() {
            let entry = entry?;
            let log_id = log_id(entry.term, entry.index - 1);
            let (previous, entry) = decode_entry(log_id, &entry.payload)
                .ok_or_else(|| Unreadable(format!("entry {} of a replica cannot be read", entry.index)))?;
            if previous != self.last() {
                // Left over from before the snapshot that stands before it: the leader of that time had others.
                break;
            }
            self.entries.push_back(entry);
        }
        Ok(())
    }

    pub fn last(&self) -> Option<LogId> {
        self.entries.back().map(|entry| entry.log_id).or(self.purged)
    }

    /// Whether this leader's snapshot ends with an entry that is here too: then so is all that is before it.
    pub fn has_from(&self, leader: &Vote, last: Option<LogId>) -> bool {
        let Some(last) = last else { return true };
        self.hard.vote.as_ref() == Some(leader)
            && self.range(last.index..=last.index).any(|entry| entry.log_id == last)
    }

    /// Index of the first entry that is there.
    fn first(&self) -> u64 {
        self.purged.map_or(0, |purged| purged.index + 1)
    }

    fn append(&mut self, entries: impl Iterator<Item = Entry>, flushed: IoFlushed) -> io::Result<()> {
        if self.failed.is_some() {
            return Err(self.failure());
        }
        for entry in entries {
            let previous = self.last();
            if previous.map_or(0, |previous| previous.index + 1) != entry.log_id.index {
                return Err(io::Error::other(format!("{} does not follow {previous:?}", entry.log_id)));
            }
            let record = Record::Entry {
                group: self.storage_groups.entries,
                term: term_of(&entry.log_id),
                index: in_log(&entry.log_id),
                payload: Arc::new(encode_entry(previous.as_ref(), &entry)),
            };
            self.entries.push_back(entry);
            self.put(record);
        }
        match self.last() {
            Some(last) if !mutated(Mutation::FlushedBeforeDurable) => {
                self.flushes.push_back((in_log(&last), flushed));
            }
            _ => flushed.io_completed(Ok(())),
        }
        Ok(())
    }

    fn put(&mut self, record: Record) {
        let Record::Entry { index, .. } = &record else { return };
        let index = *index;
        let leaves_hole = index > self.written + 1 && self.checkpoint.durable + 1 < index;
        if leaves_hole || !self.deferred.is_empty() {
            self.deferred.push_back(record);
        } else {
            self.written = index;
            self.log.append([record]);
        }
    }

    fn write_hard_state(&mut self) -> u64 {
        self.votes.written += 1;
        let (group, index) = (self.storage_groups.votes, self.votes.written);
        let mut hard = self.hard;
        if mutated(Mutation::ForgetVote) {
            hard.vote = None;
        }
        self.log.append([Record::Entry { group, term: 1, index, payload: Arc::new(hard.encode()) }]);
        index
    }

    fn write_snapshot(&mut self, meta: SnapshotMeta, bytes: Arc<[u8]>) -> io::Result<oneshot::Receiver<()>> {
        if self.failed.is_some() {
            return Err(self.failure());
        }
        let (sender, receiver) = oneshot::channel();
        let index = meta.last_log_id.as_ref().map_or(0, in_log);
        if index > self.checkpoint.written {
            let group = self.storage_groups.entries;
            let part = |part, payload| Record::Part { group, part, checkpoint: index, payload };
            let mut parts = 0;
            self.log.append([part(0, encode_meta(&meta).into())]);
            for chunk in bytes.chunks(PART) {
                parts += 1;
                self.log.append([part(parts, chunk.into())]);
            }
            // What an earlier one had more is gone.
            for gone in parts + 1..=self.checkpoint.parts {
                self.log.append([part(gone, Arc::from([]))]);
            }
            self.log.append([Record::Done { group, checkpoint: index }]);
            self.checkpoint.written = index;
            self.checkpoint.parts = parts;
            self.snapshot = Some((meta, bytes));
        }
        self.checkpoint.waiting.push((index, sender));
        self.checkpoint_durable(self.checkpoint.durable);
        Ok(receiver)
    }

    /// The log has told it of one of the replica's groups.
    pub fn durable(&mut self, group: GroupId, index: u64) {
        if group == self.storage_groups.votes {
            self.votes.durable = self.votes.durable.max(index);
            notify(&mut self.votes.waiting, self.votes.durable);
            return;
        }
        while let Some((wanted, _)) = self.flushes.front()
            && *wanted <= index
        {
            if let Some((_, flushed)) = self.flushes.pop_front() {
                flushed.io_completed(Ok(()));
            }
        }
        if self.flushes.is_empty() {
            for sender in self.flush_waiters.drain(..) {
                let _ = sender.send(());
            }
        }
    }

    pub fn checkpointed(&mut self, group: GroupId, index: u64) {
        if group == self.storage_groups.votes {
            answer(&self.log, group, &mut self.votes.vacates, index);
            return;
        }
        self.checkpoint_durable(index);
    }

    fn checkpoint_durable(&mut self, index: u64) {
        self.checkpoint.durable = self.checkpoint.durable.max(index);
        let durable = self.checkpoint.durable;
        notify(&mut self.checkpoint.waiting, durable);
        answer(&self.log, self.storage_groups.entries, &mut self.vacates, durable);
        for record in std::mem::take(&mut self.deferred) {
            self.put(record);
        }
    }

    /// The log wants a segment back.
    pub fn vacate(&mut self, vacate: Vacate) {
        if vacate.group == self.storage_groups.entries {
            self.vacates.push((vacate.segment, vacate.last));
            self.checkpoint_durable(self.checkpoint.durable);
            return;
        }
        let checkpoint = self.write_hard_state();
        let group = self.storage_groups.votes;
        let payload = self.hard.encode().into();
        self.log.append([Record::Part { group, part: 0, checkpoint, payload }]);
        self.log.append([Record::Done { group, checkpoint }]);
        self.votes.vacates.push((vacate.segment, vacate.last));
    }

    /// Index of the last entry that a snapshot has to stand for, so that segments can go.
    pub fn wanted_snapshot(&self) -> Option<u64> {
        let wanted = self.vacates.iter().map(|(_, last)| *last).max()?;
        (wanted > self.checkpoint.written).then(|| wanted - 1)
    }

    /// A write has failed: nothing becomes durable any more.
    pub fn fail(&mut self, why: &str) {
        self.failed = Some(why.to_owned());
        for (_, flushed) in std::mem::take(&mut self.flushes) {
            flushed.io_completed(Err(io::Error::other(why.to_owned())));
        }
        self.votes.waiting.clear();
        self.checkpoint.waiting.clear();
        self.flush_waiters.clear();
        self.deferred.clear();
    }

    /// Why nothing becomes durable any more.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    fn failure(&self) -> io::Error {
        io::Error::other(self.failed.clone().unwrap_or_else(|| "the log has stopped".into()))
    }

    pub fn snapshot(&self) -> Option<Snapshot> {
        self.snapshot.as_ref().map(|(meta, bytes)| Snapshot { meta: meta.clone(), snapshot: bytes.clone() })
    }

    fn range(&self, range: impl RangeBounds<u64>) -> impl Iterator<Item = &Entry> {
        let first = self.first();
        let begin = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(index) => index + 1,
            Bound::Excluded(index) => *index,
            Bound::Unbounded => u64::MAX,
        };
        let begin = begin.saturating_sub(first).min(self.entries.len() as u64) as usize;
        let end = end.saturating_sub(first).min(self.entries.len() as u64) as usize;
        self.entries.range(begin..end.max(begin))
    }
}

fn notify(waiting: &mut Vec<(u64, oneshot::Sender<()>)>, durable: u64) {
    for (_, sender) in waiting.extract_if(.., |(index, _)| *index <= durable) {
        // It may have stopped waiting.
        let _ = sender.send(());
    }
}

fn answer(log: &Log, group: GroupId, vacates: &mut Vec<(SegmentId, u64)>, durable: u64) {
    for (segment, _) in vacates.extract_if(.., |(_, last)| *last <= durable) {
        if let Err(refused) = log.vacated(group, segment) {
            tracing::error!(%refused, %group, "a segment is kept");
        }
    }
}

impl RaftLogReader<Types> for Store {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        Ok(self.lock().range(range).cloned().collect())
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        let raft_log = self.lock();
        let mut bytes = 0;
        let few = raft_log.range(start..end).take_while(|entry| {
            let before = bytes;
            if let openraft::EntryPayload::Normal(command) = &entry.payload {
                bytes += command.0.len();
            }
            before < BATCH_BYTES
        });
        Ok(few.cloned().collect())
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

    /// Nobody waits for it: what is committed stays so.
    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        if mutated(Mutation::ForgetCommitted) {
            return Ok(());
        }
        let mut raft_log = self.lock();
        if raft_log.hard.committed < committed {
            raft_log.hard.committed = committed;
            raft_log.write_hard_state();
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

    /// What is being written is waited for: the log tells how far it is by indexes, and these come again.
    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        self.wait_durable().await?;
        let mut raft_log = self.lock();
        let keep = last.map_or(0, |last| last.index + 1).saturating_sub(raft_log.first());
        raft_log.entries.truncate(keep as usize);
        let end = raft_log.last().as_ref().map_or(0, in_log);
        raft_log.written = raft_log.written.min(end);
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        let mut raft_log = self.lock();
        let gone = (upto.index + 1).saturating_sub(raft_log.first()).min(raft_log.entries.len() as u64);
        raft_log.entries.drain(..gone as usize);
        if raft_log.purged < Some(upto) {
            raft_log.purged = Some(upto);
        }
        Ok(())
    }
}
