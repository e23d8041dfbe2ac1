//! The checkpoint of a replica: who writes it, and which parts it has.
//!
//! One writer at a time: the log keeps the parts of an unfinished checkpoint by their numbers alone. A writer that is
//! given up ends its parts with the mark of the last checkpoint, so they keep no segment and are taken for no other
//! checkpoint's.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use link::Time;
use openraft::Instant as _;
use storage::Record;
use tokio::sync::oneshot;

use super::{RaftLog, Store, notify};
use crate::config::SNAPSHOT_BYTES_IN_FLIGHT;
use crate::manifest::{Manifest, PART_BYTES_MAX, PARTS_MAX, PartInfo};
use crate::mutation::{Mutation, mutated};
use crate::raft_types::SnapshotMeta;
use crate::runtime::Instant;
use crate::wire::encode_meta;

/// Time after which a transfer without progress holds up no snapshot and keeps no parts.
pub(crate) const TRANSFER_STALL: Duration = Duration::from_secs(20);

/// State of the checkpoints of a replica.
pub(super) struct Checkpoint {
    /// Index in the log of the last checkpoint, and of the last durable one.
    pub written: u64,
    pub durable: u64,
    /// Parts of the last checkpoint.
    pub parts: Arc<Manifest>,
    /// Checkpoints that are complete and not durable.
    next: VecDeque<(u64, SnapshotMeta, Arc<Manifest>)>,
    pub waiting: Vec<(u64, oneshot::Sender<()>)>,
    writer: Option<Writer>,
    /// Number of writers since the start.
    writers: u64,
    /// Sizes of the parts that are on their way to the disk.
    in_flight: VecDeque<usize>,
    in_flight_bytes: usize,
    /// Number of bytes of them up to which a writer goes on.
    in_flight_max: usize,
    room_waiters: Vec<oneshot::Sender<()>>,
    free_waiters: Vec<oneshot::Sender<()>>,
    /// True if a snapshot of this replica was put off.
    is_deferred: bool,
}

/// The checkpoint that is being written.
struct Writer {
    number: u64,
    /// Index of the checkpoint in the log.
    index: u64,
    parts: Manifest,
    origin: Origin,
    /// True if a part is in the log.
    has_written: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Local,
    /// Snapshot of another replica, and the time of the last piece.
    Received(Time),
    /// Snapshot of another replica that the owner restores. It can still be given up.
    Preparing,
    /// Snapshot of another replica that is being installed.
    Installing,
}

/// Right to write the next checkpoint. It is given up when this is dropped.
pub(crate) struct CheckpointWriter {
    store: Store,
    number: u64,
}

/// Reason why no checkpoint can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotBegun {
    /// Another checkpoint is being written, or a transfer needs the current one.
    Busy,
    /// The disk is full, and a received snapshot would not make room.
    Full,
    /// The log has a checkpoint at this index or later.
    Old,
}

fn now() -> Time {
    Instant::now().0
}

impl Checkpoint {
    /// Makes the state of a replica without a checkpoint.
    pub fn new() -> Self {
        Self {
            written: 0,
            durable: 0,
            parts: Arc::default(),
            next: VecDeque::new(),
            waiting: Vec::new(),
            writer: None,
            writers: 0,
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            in_flight_max: SNAPSHOT_BYTES_IN_FLIGHT,
            room_waiters: Vec::new(),
            free_waiters: Vec::new(),
            is_deferred: false,
        }
    }

    pub fn recovered(index: u64, parts: Manifest) -> Self {
        Self { written: index, durable: index, parts: Arc::new(parts), ..Self::new() }
    }

    fn writer(&mut self, number: u64) -> io::Result<&mut Writer> {
        let writer = self.writer.as_mut().filter(|writer| writer.number == number);
        writer.ok_or_else(|| io::Error::other("another checkpoint is being written"))
    }

    fn begin(&mut self, index: u64, parts: Manifest, origin: Origin) -> u64 {
        self.writers += 1;
        self.writer = Some(Writer { number: self.writers, index, parts, origin, has_written: false });
        self.writers
    }

    /// Handles parts that are durable.
    pub fn parts_durable(&mut self, parts: u64) {
        for _ in 0..parts {
            self.in_flight_bytes -= self.in_flight.pop_front().unwrap_or_default();
        }
        if self.in_flight_bytes < self.in_flight_max {
            notify_all(&mut self.room_waiters);
        }
    }

    fn has_ended(&mut self) {
        self.writer = None;
        notify_all(&mut self.free_waiters);
    }

    /// Drops everything that waits: their readers see an error.
    pub fn fail(&mut self) {
        self.writer = None;
        self.waiting.clear();
        self.room_waiters.clear();
        self.free_waiters.clear();
        self.is_deferred = false;
    }

    /// Returns the snapshot that has become durable, if any.
    pub fn take_durable(&mut self) -> Option<(u64, SnapshotMeta, Arc<Manifest>)> {
        let mut newest = None;
        while self.next.front().is_some_and(|(index, ..)| *index <= self.durable) {
            newest = self.next.pop_front();
        }
        newest
    }
}

fn notify_all(waiters: &mut Vec<oneshot::Sender<()>>) {
    for waiter in waiters.drain(..) {
        // The task may have stopped waiting.
        let _ = waiter.send(());
    }
}

impl RaftLog {
    fn append_part(&mut self, part: u32, payload: Arc<[u8]>, checkpoint: u64) {
        self.checkpoint.in_flight.push_back(payload.len());
        self.checkpoint.in_flight_bytes += payload.len();
        let group = self.storage_groups.entries;
        self.log.append([Record::Part { group, part, checkpoint, payload }]);
    }

    fn put_part(&mut self, number: u64, part: u32, bytes: &[u8]) -> io::Result<()> {
        assert!(bytes.len() <= PART_BYTES_MAX, "part {part} of a snapshot has {} bytes", bytes.len());
        if self.failed.is_some() {
            return Err(self.failure());
        }
        let writer = self.checkpoint.writer(number)?;
        let known = match bytes {
            [] => writer.parts.0.remove(&part),
            _ => writer.parts.0.insert(part, PartInfo::of(bytes)),
        };
        assert!(writer.parts.0.len() <= PARTS_MAX, "a snapshot has more than {PARTS_MAX} parts");
        if bytes.is_empty() && known.is_none() {
            return Ok(());
        }
        writer.has_written = true;
        let index = writer.index;
        if !mutated(Mutation::DropPart) || part % 3 != 1 {
            self.append_part(part_in_log(part)?, bytes.into(), index);
        }
        Ok(())
    }

    fn finish_checkpoint(&mut self, number: u64, meta: SnapshotMeta) -> io::Result<oneshot::Receiver<()>> {
        if self.failed.is_some() {
            return Err(self.failure());
        }
        let Writer { index, parts, origin, .. } = {
            self.checkpoint.writer(number)?;
            self.checkpoint.writer.take().ok_or_else(|| io::Error::other("no checkpoint is being written"))?
        };
        if origin != Origin::Local && !mutated(Mutation::KeepOldParts) {
            // Parts that only the previous checkpoint has.
            let before = self.checkpoint.parts.clone();
            for gone in before.0.keys().filter(|part| !parts.0.contains_key(part)) {
                self.append_part(part_in_log(*gone)?, Arc::from([]), index);
            }
        }
        self.append_part(0, encode_meta(&meta).into(), index);
        self.log.append([Record::Done { group: self.storage_groups.entries, checkpoint: index }]);
        let parts = Arc::new(parts);
        self.checkpoint.written = index;
        self.checkpoint.parts = parts.clone();
        self.checkpoint.next.push_back((index, meta, parts));
        self.checkpoint.has_ended();
        let (sender, receiver) = oneshot::channel();
        self.checkpoint.waiting.push((index, sender));
        notify(&mut self.checkpoint.waiting, self.checkpoint.durable);
        Ok(receiver)
    }

    /// Gives a writer up. Does nothing if it has ended.
    fn abandon_checkpoint(&mut self, number: u64) {
        let Ok(writer) = self.checkpoint.writer(number) else { return };
        if writer.has_written && self.failed.is_none() {
            let checkpoint = self.checkpoint.written;
            self.log.append([Record::Done { group: self.storage_groups.entries, checkpoint }]);
        }
        self.checkpoint.has_ended();
    }

    /// Time until which a transfer holds up a snapshot of this replica, unless the log needs a segment.
    fn held_until(&self, now: Time) -> Option<Time> {
        let received = match self.checkpoint.writer.as_ref().map(|writer| writer.origin) {
            Some(Origin::Received(at)) => Some(at.after(TRANSFER_STALL)),
            Some(Origin::Preparing) => Some(Time::NEVER),
            Some(Origin::Installing | Origin::Local) => return Some(Time::NEVER),
            None => None,
        };
        if self.wanted_snapshot().is_some() {
            return None;
        }
        received.max(self.transfers.advance_until(self.checkpoint.written)).filter(|until| *until > now)
    }

    /// Gives up a snapshot of another replica whose transfer has stalled, and one whose entries are applied here. The
    /// state includes the entries before index `applied` of the log, and this one.
    pub fn expire_checkpoint(&mut self, now: Time, applied: u64) {
        let Some(Writer { number, index, origin, .. }) = self.checkpoint.writer else { return };
        let why = match origin {
            Origin::Received(at) if at.after(TRANSFER_STALL) <= now => "its transfer has stalled",
            Origin::Preparing if index <= applied => "its entries have arrived meanwhile",
            _ => return,
        };
        tracing::info!("consensus: a snapshot of another replica is given up: {why}");
        self.abandon_checkpoint(number);
    }

    /// Gives up a snapshot of another replica that the owner restores.
    pub fn abandon_prepared(&mut self) {
        if let Some(Writer { number, origin: Origin::Preparing, .. }) = self.checkpoint.writer {
            self.abandon_checkpoint(number);
        }
    }

    /// Returns whether a snapshot of this replica was put off and is no longer held up.
    pub fn take_deferred(&mut self, now: Time) -> bool {
        let is_due = self.checkpoint.is_deferred && self.held_until(now).is_none();
        if is_due {
            self.checkpoint.is_deferred = false;
        }
        is_due
    }

    /// Time at which [`Self::expire_checkpoint`] or [`Self::take_deferred`] has to be called.
    pub fn checkpoint_due(&self, now: Time) -> Time {
        let expires = match self.checkpoint.writer.as_ref().map(|writer| writer.origin) {
            Some(Origin::Received(at)) => at.after(TRANSFER_STALL),
            _ => Time::NEVER,
        };
        if self.checkpoint.is_deferred { expires.min(self.held_until(now).unwrap_or(now)) } else { expires }
    }
}

pub(crate) fn part_in_log(part: u32) -> io::Result<u32> {
    part.checked_add(1).ok_or_else(|| io::Error::other("a part with this number cannot be stored"))
}

impl Store {
    /// Sets the number of bytes of parts on their way to the disk up to which a writer goes on.
    pub fn set_bytes_in_flight(&self, bytes: usize) {
        self.lock().checkpoint.in_flight_max = bytes.max(1);
    }

    /// Begins a checkpoint of this replica's state up to an index in the log. It has the parts of the last one, apart
    /// from those that are written.
    pub fn begin_checkpoint(&self, index: u64) -> Result<CheckpointWriter, NotBegun> {
        let mut raft_log = self.lock();
        let now = now();
        if index <= raft_log.checkpoint.written {
            return Err(NotBegun::Old);
        }
        if raft_log.held_until(now).is_some() {
            raft_log.checkpoint.is_deferred = true;
            return Err(NotBegun::Busy);
        }
        if let Some(received) = raft_log.checkpoint.writer.as_ref().map(|writer| writer.number) {
            // The log needs a segment.
            raft_log.abandon_checkpoint(received);
        }
        let parts = (*raft_log.checkpoint.parts).clone();
        let number = raft_log.checkpoint.begin(index, parts, Origin::Local);
        Ok(CheckpointWriter { store: self.clone(), number })
    }

    /// Begins to write a snapshot of another replica up to an index in the log.
    pub fn begin_received(&self, index: u64) -> Result<CheckpointWriter, NotBegun> {
        let mut raft_log = self.lock();
        if index <= raft_log.checkpoint.written {
            return Err(NotBegun::Old);
        }
        if raft_log.checkpoint.writer.is_some() {
            return Err(NotBegun::Busy);
        }
        // An own checkpoint may make room, and would wait for this one.
        if raft_log.log.is_full() {
            return Err(NotBegun::Full);
        }
        let number = raft_log.checkpoint.begin(index, Manifest::default(), Origin::Received(now()));
        Ok(CheckpointWriter { store: self.clone(), number })
    }

    /// Returns a future that is ready when no checkpoint is being written.
    pub fn checkpoint_ended(&self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut raft_log = self.lock();
        if raft_log.checkpoint.writer.is_none() {
            let _ = sender.send(());
        } else {
            raft_log.checkpoint.free_waiters.push(sender);
        }
        receiver
    }
}

impl CheckpointWriter {
    /// Writes a part. Without bytes, it removes the part.
    ///
    /// # Errors
    /// The writer was given up, or the log has failed.
    pub fn put(&self, part: u32, bytes: &[u8]) -> io::Result<()> {
        self.store.lock().put_part(self.number, part, bytes)
    }

    /// Returns whether the disk of the log is full. Parts of an own snapshot free space. Those of a received one would
    /// take the reserve.
    pub fn is_full(&self) -> bool {
        self.store.lock().log.is_full()
    }

    /// Returns whether this is still the writer.
    pub fn is_current(&self) -> bool {
        self.store.lock().checkpoint.writer(self.number).is_ok()
    }

    /// Notes that a piece of the snapshot has arrived.
    pub fn advanced(&self) {
        if let Ok(writer) = self.store.lock().checkpoint.writer(self.number) {
            writer.origin = Origin::Received(now());
        }
    }

    /// Notes that the snapshot is whole, and that the owner restores it.
    ///
    /// # Errors
    /// The writer was given up.
    pub fn prepares(&self) -> io::Result<()> {
        self.store.lock().checkpoint.writer(self.number)?.origin = Origin::Preparing;
        Ok(())
    }

    /// Returns a future that is ready when this writer was given up.
    pub fn given_up(&self) -> oneshot::Receiver<()> {
        self.store.checkpoint_ended()
    }

    /// Notes that the owner has restored the snapshot. From now on only the installation ends it.
    ///
    /// # Errors
    /// The writer was given up.
    pub fn installs(&self) -> io::Result<()> {
        self.store.lock().checkpoint.writer(self.number)?.origin = Origin::Installing;
        Ok(())
    }

    /// Waits until few bytes of parts are on their way to the disk.
    ///
    /// # Errors
    /// The log has failed.
    pub async fn room(&self) -> io::Result<()> {
        let bytes = self.store.lock().checkpoint.in_flight_max;
        self.below(bytes).await
    }

    /// Waits until all parts are durable.
    ///
    /// # Errors
    /// The log has failed.
    pub async fn all_durable(&self) -> io::Result<()> {
        while self.store.lock().checkpoint.in_flight_bytes > 0 {
            self.below(1).await?;
        }
        Ok(())
    }

    async fn below(&self, bytes: usize) -> io::Result<()> {
        loop {
            let receiver = {
                let mut raft_log = self.store.lock();
                if raft_log.failed.is_some() {
                    return Err(raft_log.failure());
                }
                if raft_log.checkpoint.in_flight_bytes < bytes {
                    return Ok(());
                }
                let (sender, receiver) = oneshot::channel();
                raft_log.checkpoint.room_waiters.push(sender);
                receiver
            };
            receiver.await.map_err(|_| self.store.failure())?;
        }
    }

    /// Index of the checkpoint in the log.
    fn index(&self) -> io::Result<u64> {
        Ok(self.store.lock().checkpoint.writer(self.number)?.index)
    }

    /// Parts that were written so far.
    pub fn parts(&self) -> io::Result<Manifest> {
        Ok(self.store.lock().checkpoint.writer(self.number)?.parts.clone())
    }

    /// Reads a part back that is durable. The checkpoint is not complete.
    pub async fn read(&self, part: u32) -> io::Result<Arc<[u8]>> {
        let index = self.index()?;
        self.store.read_part(super::PartOf::Pending(index), part_in_log(part)?).await
    }

    /// Completes the checkpoint, and returns when it is durable.
    ///
    /// # Errors
    /// The writer was given up, or the log has failed.
    pub async fn finish(&self, meta: SnapshotMeta) -> io::Result<()> {
        let durable = self.store.lock().finish_checkpoint(self.number, meta)?;
        durable.await.map_err(|_| self.store.failure())
    }
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        self.store.lock().abandon_checkpoint(self.number);
    }
}
