//! Data of a replica in the node's log: entries, vote, last committed entry, and snapshot.
//!
//! An entry of the replica is an entry of the log's group, with an index that is one higher (those of the log begin at
//! 1). A snapshot is a checkpoint: part 0 holds its metadata, the others hold its bytes. Votes have a group of their
//! own, whose last entry counts.

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
use crate::raft_types::{Entry, IoFlushed, LogId, Snapshot, SnapshotMeta, Types, Vote};
use crate::wire::{HardState, decode_entry, decode_meta, encode_entry, encode_meta, log_id, term_of};

#[cfg(test)]
mod tests;

/// Bytes of a snapshot in one part of its checkpoint.
const PART: usize = 1 << 20;
/// Maximum number of bytes of entries in one message, unless it is a single entry.
const BATCH_BYTES: usize = 1 << 20;

/// Groups of the log that a replica uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageGroups {
    pub entries: GroupId,
    pub votes: GroupId,
}

/// Log of one replica, shared by all tasks that `openraft` runs for it.
#[derive(Clone)]
pub(crate) struct Store(Arc<Mutex<RaftLog>>);

pub(crate) struct RaftLog {
    log: Log,
    storage_groups: StorageGroups,
    /// Entries after `purged`.
    entries: VecDeque<Entry>,
    purged: Option<LogId>,
    hard: HardState,
    votes: Votes,
    /// Index in the log of the last entry that was appended, durable or not.
    written: u64,
    /// Callbacks for durable entries, in the order of the log.
    flushes: VecDeque<(u64, IoFlushed)>,
    /// Tasks that wait until all entries are durable.
    flush_waiters: Vec<oneshot::Sender<()>>,
    /// Entries after a snapshot that is not durable yet. If they were written before it, they would leave a gap.
    deferred: VecDeque<Record>,
    checkpoint: Checkpoint,
    snapshot: Option<(SnapshotMeta, Arc<[u8]>)>,
    /// Segments that wait for a checkpoint at this index of the log or later.
    vacates: Vec<(SegmentId, u64)>,
    failed: Option<String>,
}

#[derive(Default)]
struct Votes {
    /// Index in the log of the last vote.
    written: u64,
    durable: u64,
    waiting: Vec<(u64, oneshot::Sender<()>)>,
    vacates: Vec<(SegmentId, u64)>,
}

#[derive(Default)]
struct Checkpoint {
    /// Index in the log of the last checkpoint, and of the last durable one.
    written: u64,
    durable: u64,
    /// Number of parts after the first.
    parts: u32,
    waiting: Vec<(u64, oneshot::Sender<()>)>,
}

/// Error: the log holds something that no replica has written.
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
    /// Reads the data of a replica. Without the groups, the replica is empty.
    ///
    /// # Errors
    /// The data is damaged, or of a later version. The replica must not vote.
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
        // The committed entry may be one that did not become durable here: other replicas have it.
        raft_log.hard.committed = raft_log.hard.committed.min(raft_log.last());
        for group in [storage_groups.entries, storage_groups.votes] {
            // A checkpoint covers all entries, so none has to be rewritten.
            raft_log.log.report_live(group, 0);
        }
        Ok(Self(Arc::new(Mutex::new(raft_log))))
    }

    pub fn lock(&self) -> MutexGuard<'_, RaftLog> {
        sync::lock(&self.0)
    }

    /// Writes a checkpoint, and returns when it is durable. A checkpoint that is older than the current one is not
    /// written.
    pub async fn save_snapshot(&self, meta: SnapshotMeta, bytes: Arc<[u8]>) -> io::Result<()> {
        let waits = self.lock().write_snapshot(meta, bytes)?;
        waits.await.map_err(|_| self.failure())
    }

    fn failure(&self) -> io::Error {
        self.lock().failure()
    }

    /// Waits until all appended entries are durable.
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
            return Err(Unreadable(
                "votes of a replica are lost: it must come back as another replica".into(),
            ));
        }
        self.votes.written = found.last;
        self.votes.durable = found.last;
        Ok(())
    }

    fn recover_entries(&mut self, found: &RecoveredGroup) -> Result<(), Unreadable> {
        if !found.lost.is_empty() {
            return Err(Unreadable(
                "entries of a replica are lost: it must come back as another replica".into(),
            ));
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
                // These entries are older than the snapshot, whose leader had other entries before it.
                break;
            }
            self.entries.push_back(entry);
        }
        Ok(())
    }

    pub fn last(&self) -> Option<LogId> {
        self.entries.back().map(|entry| entry.log_id).or(self.purged)
    }

    /// Returns whether the last entry of this leader's snapshot is here, too. Then all entries before it are.
    pub fn has_from(&self, leader: &Vote, last: Option<LogId>) -> bool {
        let Some(last) = last else { return true };
        self.hard.vote.as_ref() == Some(leader)
            && self.range(last.index..=last.index).any(|entry| entry.log_id == last)
    }

    /// Index of the first entry.
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
            // Empties the parts that only an earlier checkpoint had.
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

    /// Handles a durable write in one of the replica's groups.
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

    /// Handles the log's request to free a segment.
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

    /// Index of the last entry that a snapshot has to cover to free the requested segments.
    pub fn wanted_snapshot(&self) -> Option<u64> {
        let wanted = self.vacates.iter().map(|(_, last)| *last).max()?;
        (wanted > self.checkpoint.written).then(|| wanted - 1)
    }

    /// Handles a failed write: nothing becomes durable any more.
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

    /// Reason why nothing becomes durable any more.
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
        // The task may have stopped waiting.
        let _ = sender.send(());
    }
}

fn answer(log: &Log, group: GroupId, vacates: &mut Vec<(SegmentId, u64)>, durable: u64) {
    for (segment, _) in vacates.extract_if(.., |(_, last)| *last <= durable) {
        if let Err(refused) = log.vacated(group, segment) {
            tracing::error!(%refused, %group, "consensus: segment cannot be freed; it is kept");
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

    /// Writes without waiting: the entry stays committed even if this write is lost.
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

    /// Waits for pending writes first: the log reports progress by index, and the truncated indexes are used again.
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
