//! Data of a replica in the node's log: entries, vote, last committed entry, and snapshot.
//!
//! An entry of the replica is an entry of the log's group, with an index that is one higher (those of the log begin at
//! 1). A snapshot is a checkpoint: part 0 holds its metadata, and each other part a part of the state machine, whose
//! number is one lower. Votes have a group of their own, whose last entry counts.
//!
//! The newest entries are in memory. Older ones, and the parts of snapshots, are read from the log when they are
//! needed: [`LogRead`].

mod checkpoint;
mod entry_cache;
mod held_writes;
mod log_read;
mod raft_storage;
mod recovery;
mod snapshot_data;
mod terms;
mod transfers;

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use checkpoint::Checkpoint;
use entry_cache::EntryCache;
use held_writes::HeldWrites;
use link::Time;
use log_read::{Found, LogReads, Waiting};
use storage::{GroupId, Log, Record, SegmentId, Vacate};
use terms::Terms;
use tokio::sync::oneshot;
use transfers::Transfers;

pub(crate) use self::checkpoint::{CheckpointWriter, NotBegun, TRANSFER_STALL, part_in_log};
pub(crate) use self::log_read::PartOf;
pub use self::log_read::{LogRead, LogReadResult};
pub(crate) use self::recovery::NotRecovered;
pub(crate) use self::snapshot_data::{Restored, SnapshotData, SnapshotReader, StoredSnapshot};
use crate::mutation::{Mutation, mutated};
use crate::raft_types::{Entry, IoFlushed, LogId, ReplicaId, Snapshot, SnapshotMeta, Vote};
use crate::wire::{HardState, encode_entry, term_of};

#[cfg(test)]
mod tests;

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
    /// Newest entries. Includes all that are not durable yet.
    cache: EntryCache,
    /// Ids of the entries after `purged`.
    terms: Terms,
    purged: Option<LogId>,
    reads: LogReads,
    /// True while the replica starts: it may wait for the disk.
    is_starting: bool,
    /// Number of times that entries at the end of the log were removed.
    truncations: u64,
    counters: ReadCounters,
    hard: HardState,
    votes: Votes,
    /// Index in the log of the last entry that was appended, durable or not.
    written: u64,
    /// Index in the log up to which entries are durable.
    durable: u64,
    /// Callbacks for durable entries, in the order of the log.
    flushes: VecDeque<(u64, IoFlushed)>,
    /// Tasks that wait until all entries are durable.
    flush_waiters: Vec<oneshot::Sender<()>>,
    /// Entries after a snapshot that is not durable yet. If they were written before it, they would leave a gap.
    deferred: VecDeque<Record>,
    checkpoint: Checkpoint,
    /// The last durable snapshot.
    snapshot: Option<(SnapshotMeta, StoredSnapshot)>,
    /// Snapshots that this replica sends.
    transfers: Transfers,
    /// Segments that are to be freed.
    vacates: Vec<Vacating>,
    /// True if the owner keeps bodies of the entries in these segments.
    keeps_bodies: bool,
    /// [`Config::save_committed_after`](crate::Config::save_committed_after).
    save_committed_after: u64,
    /// Index of the committed entry up to which the log knows that entries are committed.
    saved_committed: Option<u64>,
    held: HeldWrites,
    /// Segments that the owner has not been asked for.
    unasked: VecDeque<Vacate>,
    failed: Option<String>,
}

/// Numbers of reads of entries since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadCounters {
    /// Reads that the cache answered.
    pub cached: u64,
    /// Reads from the log.
    pub stored: u64,
}

/// Answer to a request for entries.
enum Lookup {
    Found(Vec<Entry>),
    /// The entries are read from the log.
    Reads(oneshot::Receiver<Option<Vec<Entry>>>),
}

#[derive(Default)]
struct Votes {
    /// Index in the log of the last vote.
    written: u64,
    durable: u64,
    waiting: Vec<(u64, oneshot::Sender<()>)>,
    vacates: Vec<Vacating>,
}

/// A segment that is to be freed.
struct Vacating {
    segment: SegmentId,
    /// Index of the log that a checkpoint has to reach.
    last: u64,
    /// True if the log has what the owner needs of it.
    is_kept: bool,
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

/// Returns the index that an entry of Raft has in the log of `storage`. All other indexes of this crate are those of
/// Raft, which begin at 0.
pub const fn log_index(index: u64) -> u64 {
    index + 1
}

fn in_log(log_id: &LogId) -> u64 {
    log_index(log_id.index)
}

impl Store {
    /// Sets whether the owner keeps bodies of segments that are to be freed.
    pub fn set_keeps_bodies(&self, keeps_bodies: bool) {
        self.lock().keeps_bodies = keeps_bodies;
    }

    /// Sets how often the index of the last committed entry is written.
    pub fn set_save_committed_after(&self, entries: u64) {
        self.lock().save_committed_after = entries;
    }

    /// Sets whether appended entries are reported to the leader.
    pub fn set_reports_held(&self, reports_held: bool) {
        self.lock().held.set_reports(reports_held);
    }

    pub fn lock(&self) -> MutexGuard<'_, RaftLog> {
        sync::lock(&self.0)
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
            if raft_log.failed.is_some() {
                return Err(raft_log.failure());
            }
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

    /// Waits until all appended entries and the last complete checkpoint are durable.
    ///
    /// # Errors
    /// The log has failed.
    pub async fn wait_all_durable(&self) -> io::Result<()> {
        self.wait_durable().await?;
        let settled = {
            let mut raft_log = self.lock();
            if raft_log.failed.is_some() {
                return Err(raft_log.failure());
            }
            let (sender, receiver) = oneshot::channel();
            let written = raft_log.checkpoint.written;
            raft_log.checkpoint.waiting.push((written, sender));
            let durable = raft_log.checkpoint.durable;
            notify(&mut raft_log.checkpoint.waiting, durable);
            receiver
        };
        settled.await.map_err(|_| self.failure())
    }
}

impl RaftLog {
    pub fn last(&self) -> Option<LogId> {
        self.terms.last().or(self.purged)
    }

    /// Index after the last entry.
    fn next(&self) -> u64 {
        self.last().map_or(0, |last| last.index + 1)
    }

    fn add(&mut self, entry: Entry) {
        self.terms.push(entry.log_id);
        self.cache.push(entry);
    }

    /// Removes entries from memory that can be read from the log.
    fn evict(&mut self) {
        self.cache.evict(self.durable);
    }

    /// Returns whether the last entry of this leader's snapshot is here, too. Then all entries before it are.
    pub fn has_from(&self, leader: &Vote, last: Option<LogId>) -> bool {
        let Some(last) = last else { return true };
        self.hard.vote.as_ref() == Some(leader) && self.terms.get(last.index) == Some(last)
    }

    /// Returns whether this is the last leader that the replica knows, and the log has its entries up to this one
    /// durably.
    pub fn has_durably(&self, leader: &Vote, last: Option<LogId>) -> bool {
        let durable = self.durable.max(self.checkpoint.durable);
        let is_durable = last.is_none_or(|last| log_index(last.index) <= durable);
        self.hard.vote.as_ref() == Some(leader) && self.last() >= last && is_durable
    }

    /// Index in the log up to which the entries are sure to be those of a snapshot whose last entry has this term, and
    /// the index of the last entry. A leader has one log, so the last entry is in that of the snapshot's leader if it
    /// has the same term (the Raft paper's Log Matching), and what is committed is the same everywhere.
    pub fn entries_as_of(&self, term: Option<u64>) -> (u64, u64) {
        let end = |entry: Option<LogId>| entry.map_or(0, |entry| in_log(&entry));
        let last = self.last();
        let same = if term.is_some() && last.as_ref().map(term_of) == term {
            last
        } else {
            self.hard.committed.min(last)
        };
        (end(same), end(last))
    }

    /// Returns whether the log has this entry.
    pub fn has(&self, entry: &LogId) -> bool {
        self.terms.get(entry.index).as_ref() == Some(entry)
    }

    pub fn held_mut(&mut self) -> &mut HeldWrites {
        &mut self.held
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
            self.durable = self.durable.min(entry.log_id.index);
            self.held.appended(&entry);
            self.add(entry);
            self.put(record);
        }
        if self.unsaved_committed() >= self.save_committed_after.max(1) {
            self.save_committed();
        }
        self.evict();
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

    /// Returns whether the log knows all entries that are committed. On a full disk, and with
    /// [`Config::save_committed_after`](crate::Config::save_committed_after), it may lack the last ones.
    pub fn has_saved_committed(&self) -> bool {
        self.unsaved_committed() == 0
    }

    /// Writes the index of the last committed entry that had no room on a full disk.
    pub fn save_delayed_committed(&mut self) {
        if self.save_committed_after == 0 && !self.has_saved_committed() && self.failed.is_none() {
            self.save_committed();
        }
    }

    /// Number of entries that are committed after those that the log knows to be.
    fn unsaved_committed(&self) -> u64 {
        let next = |index: Option<u64>| index.map_or(0, |index| index + 1);
        next(self.hard.committed.map(|last| last.index)).saturating_sub(next(self.saved_committed))
    }

    /// Writes the index of the last committed entry. It stays committed even if this write is lost. A full disk has
    /// room for votes alone.
    fn save_committed(&mut self) {
        if !self.log.is_full() {
            self.write_hard_state();
        }
    }

    fn write_hard_state(&mut self) -> u64 {
        self.saved_committed = self.hard.committed.map(|last| last.index);
        self.votes.written += 1;
        let (group, index) = (self.storage_groups.votes, self.votes.written);
        let mut hard = self.hard;
        if mutated(Mutation::ForgetVote) {
            hard.vote = None;
        }
        self.log.append([Record::Entry { group, term: 1, index, payload: Arc::new(hard.encode()) }]);
        index
    }

    /// Handles a durable write in one of the replica's groups.
    pub fn durable(&mut self, group: GroupId, index: u64) {
        if group == self.storage_groups.votes {
            self.votes.durable = self.votes.durable.max(index);
            notify(&mut self.votes.waiting, self.votes.durable);
            return;
        }
        self.durable = self.durable.max(index);
        self.evict();
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

    /// Handles further durable parts of a checkpoint.
    pub fn parts_durable(&mut self, group: GroupId, parts: u64) {
        if group == self.storage_groups.entries {
            self.checkpoint.parts_durable(parts);
        }
    }

    fn checkpoint_durable(&mut self, index: u64) {
        self.checkpoint.durable = self.checkpoint.durable.max(index);
        if let Some((checkpoint, meta, parts)) = self.checkpoint.take_durable() {
            self.snapshot = Some((meta, StoredSnapshot { checkpoint, parts }));
        }
        let durable = self.checkpoint.durable;
        notify(&mut self.checkpoint.waiting, durable);
        self.free();
        for record in std::mem::take(&mut self.deferred) {
            self.put(record);
        }
    }

    /// Frees segments whose entries are in a durable checkpoint and are purged. Other entries may have to be read from
    /// the log: those in memory, too, once they are evicted. A replica that has failed reads and purges nothing any
    /// more.
    fn free(&mut self) {
        let durable = self.checkpoint.durable;
        let free = if self.failed.is_none() { durable.min(self.first()) } else { durable };
        answer(&self.log, self.storage_groups.entries, &mut self.vacates, free);
    }

    /// Index of the last entry that has to be purged to free the requested segments.
    pub fn wanted_purge(&self) -> Option<u64> {
        let durable = self.checkpoint.durable;
        let wanted =
            self.vacates.iter().map(|vacating| vacating.last).filter(|last| *last <= durable).max()?;
        wanted.checked_sub(1)
    }

    /// Handles the log's request to free a segment.
    pub fn vacate(&mut self, vacate: Vacate) {
        let last = vacate.entries.map_or(0, |(_, last)| last);
        let segment = vacate.segment;
        if vacate.group == self.storage_groups.entries {
            self.vacates.push(Vacating { segment, last, is_kept: !self.keeps_bodies });
            if self.keeps_bodies {
                self.unasked.push_back(vacate);
            }
            self.checkpoint_durable(self.checkpoint.durable);
            return;
        }
        let checkpoint = self.write_hard_state();
        let group = self.storage_groups.votes;
        let payload = self.hard.encode().into();
        self.log.append([Record::Part { group, part: 0, checkpoint, payload }]);
        self.log.append([Record::Done { group, checkpoint }]);
        self.votes.vacates.push(Vacating { segment, last, is_kept: true });
    }

    /// Index in the log up to which the entries are durable.
    pub fn durable_in_log(&self) -> u64 {
        self.durable
    }

    pub fn poll_vacate(&mut self) -> Option<Vacate> {
        self.unasked.pop_front()
    }

    /// Notes that the log has what the owner needs of a segment.
    pub fn bodies_kept(&mut self, segment: SegmentId) {
        for vacating in self.vacates.iter_mut().filter(|vacating| vacating.segment == segment) {
            vacating.is_kept = true;
        }
        self.free();
    }

    /// Index of the last entry that a snapshot has to cover to free the requested segments.
    pub fn wanted_snapshot(&self) -> Option<u64> {
        let wanted = self.vacates.iter().map(|vacating| vacating.last).max()?;
        (wanted > self.checkpoint.written).then(|| wanted - 1)
    }

    /// Handles a failed write or read: the replica writes and reads nothing any more.
    pub fn fail(&mut self, why: &str) {
        self.failed = Some(why.to_owned());
        for (_, flushed) in std::mem::take(&mut self.flushes) {
            flushed.io_completed(Err(io::Error::other(why.to_owned())));
        }
        self.votes.waiting.clear();
        self.checkpoint.fail();
        self.flush_waiters.clear();
        self.deferred.clear();
        self.reads.clear();
        self.free();
    }

    /// Reason why nothing becomes durable any more.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    fn failure(&self) -> io::Error {
        io::Error::other(self.failed.clone().unwrap_or_else(|| "the log has stopped".into()))
    }

    /// The last durable snapshot.
    pub fn snapshot(&self) -> Option<Snapshot> {
        let (meta, stored) = self.snapshot.clone()?;
        Some(Snapshot { meta, snapshot: SnapshotData::Stored(stored) })
    }

    /// Metadata of the last durable snapshot.
    pub fn snapshot_meta(&self) -> Option<&SnapshotMeta> {
        self.snapshot.as_ref().map(|(meta, _)| meta)
    }

    /// Vote of this replica.
    pub fn vote(&self) -> Option<Vote> {
        self.hard.vote
    }

    /// Handles the number of bytes of a snapshot that another replica has.
    pub fn snapshot_received(&mut self, to: ReplicaId, checkpoint: u64, offset: u64, now: Time) {
        self.transfers.received(to, checkpoint, offset, now);
    }

    /// Handles the end of the transfer of a snapshot.
    pub fn snapshot_sent(&mut self, to: ReplicaId) {
        self.transfers.ended(to);
    }

    /// Notes that another replica has a whole snapshot up to this entry, and installs it.
    pub fn snapshot_installing(&mut self, to: ReplicaId, last: u64, now: Time) {
        self.transfers.installing(to, last, now);
    }

    /// Index of the entry whose successors are kept for replicas that install snapshots.
    pub fn kept_after(&self, now: Time) -> Option<u64> {
        self.transfers.kept_after(now)
    }

    /// Looks up the entries of a range, up to `payload_max` bytes of payloads, but at least one. Entries that are not
    /// in the log are left out.
    fn look_up(&mut self, range: Range<u64>, payload_max: usize) -> io::Result<Lookup> {
        let (start, end) = (range.start.max(self.first()), range.end.min(self.next()));
        if start >= end {
            return Ok(Lookup::Found(Vec::new()));
        }
        if start >= self.cache.first() {
            self.counters.cached += 1;
            return Ok(Lookup::Found(self.cache.range(start..end, payload_max).cloned().collect()));
        }
        if self.failed.is_some() {
            return Err(self.failure());
        }
        self.counters.stored += 1;
        let (reader, receiver) = oneshot::channel();
        let waiting = Waiting::Entries { reader, first: start, truncations: self.truncations };
        // The indexes of the log are one higher.
        let indexes = (start + 1, end.min(self.cache.first()));
        self.reads.add_entries(self.storage_groups.entries, indexes, payload_max, waiting);
        if self.is_starting
            && let Some(read) = self.reads.poll()
        {
            let result = read.run(&self.log);
            self.handle_read(result).map_err(|Unreadable(why)| io::Error::other(why))?;
        }
        Ok(Lookup::Reads(receiver))
    }

    pub fn poll_read(&mut self) -> Option<LogRead> {
        self.reads.poll()
    }

    /// Handles the result of a read.
    ///
    /// # Errors
    /// The entries cannot be read, or are not those that the log should have.
    pub fn handle_read(&mut self, result: LogReadResult) -> Result<(), Unreadable> {
        // The tasks may have stopped waiting.
        let (reader, first, truncations) = match self.reads.finish(result.number) {
            None => return Ok(()),
            Some(Waiting::Part(reader)) => {
                if let Found::Part(part) = result.found.map_err(Unreadable)? {
                    let _ = reader.send(part);
                }
                return Ok(());
            }
            Some(Waiting::Entries { reader, first, truncations }) => (reader, first, truncations),
        };
        if truncations != self.truncations || first < self.first() {
            // Other entries may be at these indexes now, or none.
            let _ = reader.send(None);
            return Ok(());
        }
        let mut entries = Vec::new();
        let Found::Entries(found) = result.found.map_err(Unreadable)? else { return Ok(()) };
        for ((before, entry), index) in found.into_iter().zip(first..) {
            let previous = index.checked_sub(1).and_then(|before| self.terms.get(before)).or(self.purged);
            if self.terms.get(index) != Some(entry.log_id) || before != previous {
                return Err(Unreadable(format!("entry {} of a replica is another one", index + 1)));
            }
            entries.push(entry);
        }
        let _ = reader.send(Some(entries));
        Ok(())
    }

    /// Ends the start: from now on reads of the log are made by the owner.
    pub fn started(&mut self) {
        self.is_starting = false;
    }

    pub fn read_counters(&self) -> ReadCounters {
        self.counters
    }

    /// Number of bytes of entries in memory.
    pub fn cached_bytes(&self) -> usize {
        self.cache.bytes()
    }
}

fn notify(waiting: &mut Vec<(u64, oneshot::Sender<()>)>, durable: u64) {
    for (_, sender) in waiting.extract_if(.., |(index, _)| *index <= durable) {
        // The task may have stopped waiting.
        let _ = sender.send(());
    }
}

fn answer(log: &Log, group: GroupId, vacates: &mut Vec<Vacating>, durable: u64) {
    for Vacating { segment, .. } in vacates.extract_if(.., |next| next.is_kept && next.last <= durable) {
        if let Err(refused) = log.vacated(group, segment) {
            tracing::error!(%refused, %group, "consensus: segment cannot be freed; it is kept");
        }
    }
}
