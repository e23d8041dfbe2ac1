//! Writes the queued records, one group commit after the other. It has no thread: [`spawn`](crate::spawn) gives it
//! one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::body_index::BodyLocation;
use crate::disk::DiskFile;
use crate::error::{Error, is_full};
use crate::events::LogListener;
use crate::id::GroupId;
use crate::layout::{Payload, Prepared, layout};
use crate::options::mutated;
use crate::queue::{Item, Queue, Record, remove_void};
use crate::record::{Kind, LAST, RecordHeader};
use crate::segment::{FOOTER, Segment, SegmentFooter};
use crate::segment_index::SegmentIndex;
use crate::spare::{start_segment, take_spare};
use crate::state::{Notice, Shared};

/// Result of one call of [`Writer::commit_once`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// Nothing was queued.
    Idle,
    /// Number of records that became durable, and their bytes.
    Wrote { records: usize, bytes: u64 },
    /// The queued records do not fit on the disk. They stay queued, in order; try again when there is room.
    NoRoom,
}

/// The only writer of segments.
pub struct Writer {
    shared: Arc<Shared>,
    events: Box<dyn LogListener>,
    open: OpenSegment,
    drops: VecDeque<Item>,
    first: VecDeque<Item>,
    high: VecDeque<Item>,
    low: VecDeque<Item>,
    bodies: VecDeque<Item>,
    buffer: Vec<u8>,
    /// A commit that is encoded and could not be written yet, because the disk is full.
    prepared: Option<Prepared>,
    failed: Option<Error>,
}

/// The segment that is written to.
pub(crate) struct OpenSegment {
    pub segment: Arc<Segment>,
    /// Offset of the next record.
    pub end: u64,
    pub index: SegmentIndex,
    /// Checksum of the last record.
    pub chain: u32,
    /// Number of the next commit.
    pub commit: u64,
    /// Offset of the last commit, as found when the log was opened.
    pub commit_at: u64,
    /// True when it has its index already: the next record goes into another segment.
    pub sealed: bool,
    /// True when it was the last ready spare when it was opened.
    pub is_last: bool,
}

/// Set of records that may be chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    /// Records for a full disk: those that do not fit wait. Checkpoints free space and may overtake them, because
    /// they cover entries that are durable. Entries of urgent groups may overtake them too.
    WhatFrees,
}

enum Choice {
    Nothing,
    Items(Vec<Item>),
    /// The first record does not fit into the open segment, and this many spares must stay.
    Roll {
        need: u64,
        keep_min: usize,
    },
}

impl OpenSegment {
    fn fits(&self, bytes: u64, cost: u64) -> bool {
        let end = self.end + bytes + self.index.encoded_len() + cost + FOOTER as u64;
        !self.sealed && end <= self.segment.bytes
    }
}

/// Divisor for the part of the last segment on a full disk that is for urgent entries alone. Checkpoints may be
/// larger than the rest.
const MARGIN: u64 = 4;
/// Size above which a buffer is freed after use.
const BUFFER_MAX: usize = 16 << 20;

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, events: Box<dyn LogListener>, open: OpenSegment) -> Self {
        Self {
            shared,
            events,
            open,
            drops: VecDeque::new(),
            first: VecDeque::new(),
            high: VecDeque::new(),
            low: VecDeque::new(),
            bodies: VecDeque::new(),
            buffer: vec![],
            prepared: None,
            failed: None,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Waits for work, at most for `limit`. Returns false once the log is to stop and nothing is left to write.
    pub(crate) fn wait(&self, limit: Duration, stalled: bool) -> bool {
        let queues = [&self.drops, &self.first, &self.high, &self.low, &self.bodies];
        let mine = self.prepared.is_some() || queues.iter().any(|queue| !queue.is_empty());
        if mine && !stalled {
            return true;
        }
        self.shared.wait_for_work(limit, stalled)
    }

    /// Makes one group commit: takes as many queued records as one commit and the open segment hold, writes and
    /// syncs them, and notifies the groups.
    ///
    /// # Errors
    /// A write or sync failed, now or earlier. Nothing becomes durable any more.
    pub fn commit_once(&mut self) -> Result<Commit, Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.deliver_notices();
        let result = self.commit();
        self.deliver_notices();
        result.inspect_err(|error| self.fail(error))
    }

    fn fail(&mut self, error: &Error) {
        let why = error.to_string();
        tracing::error!(error = %why, "the log stopped: nothing is durable any more until the node is restarted");
        self.failed = Some(Error::Failed(why.as_str().into()));
        self.shared.counters().failed = Some(why);
        {
            let mut queue = self.shared.queue();
            *queue = Queue { closed: true, stopped: queue.stopped, ..Queue::default() };
        }
        for queue in [&mut self.drops, &mut self.first, &mut self.high, &mut self.low, &mut self.bodies] {
            queue.clear();
        }
        self.shared.queued_bytes.store(0, Ordering::Relaxed);
        self.shared.queued_records.store(0, Ordering::Relaxed);
        self.events.failed(error);
    }

    fn deliver_notices(&mut self) {
        loop {
            let notice = self.shared.state().notices.pop_front();
            match notice {
                Some(Notice::Vacate(vacate)) => self.events.vacate(vacate),
                Some(Notice::Full(shortage)) => self.events.full(shortage),
                Some(Notice::Room) => self.events.room(),
                None => return,
            }
        }
    }

    fn commit(&mut self) -> Result<Commit, Error> {
        let started = Instant::now();
        if self.prepared.is_none() {
            let items = match self.choose(Scope::All) {
                Choice::Nothing => return Ok(Commit::Idle),
                Choice::Items(items) => items,
                Choice::Roll { need, keep_min } => match self.choose_after_roll(need, keep_min)? {
                    Some(items) => items,
                    None => return Ok(self.no_room()),
                },
            };
            self.prepare(items);
        }
        self.write(started)
    }

    /// Chooses records for the next segment. If there is no segment for the first record, it chooses records that
    /// may overtake that one.
    fn choose_after_roll(&mut self, need: u64, keep_min: usize) -> Result<Option<Vec<Item>>, Error> {
        let mut scope = Scope::All;
        if !self.roll(need, keep_min)? {
            self.notify_full();
            scope = Scope::WhatFrees;
        }
        let mut chosen = self.choose(scope);
        if let Choice::Roll { need, keep_min: 0 } = chosen
            && keep_min > 0
            && self.roll(need, 0)?
        {
            chosen = self.choose(scope);
        }
        Ok(match chosen {
            Choice::Items(items) => Some(items),
            _ => None,
        })
    }

    fn notify_full(&self) {
        let mut state = self.shared.state();
        let shortage = state.shortage;
        let changed = state.set_full(Some(shortage));
        drop(state);
        if changed {
            self.shared.counters().full_count += 1;
        }
    }

    fn no_room(&mut self) -> Commit {
        self.notify_full();
        if mutated!(self.shared.options, DropWhenFull) {
            // A mutation: pretends that the records were written.
            let dropped: Vec<Item> = self.high.drain(..).chain(self.low.drain(..)).collect();
            let mut durable = vec![];
            for item in &dropped {
                if let Item::Record(Record::Entry { group, index, .. }) = item {
                    durable.push((*group, *index));
                }
            }
            self.events.durable(&durable);
        }
        Commit::NoRoom
    }

    /// Returns whether the open segment is the last one on a full disk and some groups are urgent. Other records
    /// wait for room then. When the segment was opened, the full disk may not have been known yet.
    fn is_kept(&self) -> bool {
        self.open.is_last && self.shared.options.spares_kept() > 0 && {
            let state = self.shared.state();
            state.full.is_some() && state.spares.is_empty()
        }
    }

    /// Takes the records that one commit may hold. Only records of one queue keep their order: the rest of the
    /// segment or of the commit is for other queues, so that entries do not delay a checkpoint.
    fn choose(&mut self, scope: Scope) -> Choice {
        {
            let mut queue = self.shared.queue();
            for group in queue.drops.iter().filter_map(Item::dropped) {
                if mutated!(self.shared.options, WriteDropped) {
                    break;
                }
                // These records were queued before the drop.
                let queues = [&mut self.first, &mut self.high, &mut self.low, &mut self.bodies];
                self.shared.count_removed(remove_void(queues, group));
            }
            self.drops.append(&mut queue.drops);
            self.first.append(&mut queue.first);
            self.high.append(&mut queue.high);
            self.low.append(&mut queue.low);
            self.bodies.append(&mut queue.bodies);
        }
        let (commit, low) = (self.shared.options.commit_bytes_max, self.shared.options.low_bytes_per_commit);
        let is_kept = self.is_kept();
        let (mut items, mut total, mut cost, mut waiting) = (vec![], 0, 0, Choice::Nothing);
        let kept = self.shared.options.spares_kept();
        while let Some(item) = self.drops.front() {
            let (size, more) = (item.size(), SegmentIndex::cost(item.kind()));
            let has_room = self.open.fits(total + size, cost + more);
            if !has_room || !self.open.segment.may_hold(item.kind()) {
                if items.is_empty() && scope == Scope::All {
                    return Choice::Roll { need: size + more, keep_min: 0 };
                }
                break;
            }
            total += size;
            cost += more;
            items.extend(self.drops.pop_front());
        }
        let drops = if mutated!(self.shared.options, OvertakeDrop) { &VecDeque::new() } else { &self.drops };
        // Records that follow a drop wait for it, and no others do: they may be what makes room for it.
        let waits_for_drop = |item: &Item| {
            let mut groups = drops.iter().filter_map(Item::dropped);
            !drops.is_empty() && groups.any(|group| item.is_void_after_drop_of(group))
        };
        let queues = [
            (&mut self.first, commit, 0),
            (&mut self.high, commit, kept),
            (&mut self.low, low, 0),
            (&mut self.bodies, low, kept),
        ];
        for (rank, (queue, limit, keep_min)) in queues.into_iter().enumerate() {
            let margin = if is_kept && rank > 0 { self.open.segment.bytes / MARGIN } else { 0 };
            let mut bytes = 0;
            let mut after_drops = 0;
            while let Some(item) = queue.get(after_drops) {
                if waits_for_drop(item) {
                    after_drops += 1;
                    continue;
                }
                let (size, more) = (item.size(), SegmentIndex::cost(item.kind()));
                // Entries in the first queue are urgent.
                let is_usual = item.kind() == Kind::Entry && rank > 0;
                if scope == Scope::WhatFrees && is_usual {
                    break;
                }
                if is_kept && is_usual {
                    waiting = Choice::Roll { need: size + more, keep_min };
                    break;
                }
                if bytes > 0 && bytes + size > limit {
                    break;
                }
                let has_room = self.open.fits(total + size + margin, cost + more);
                if !has_room || !self.open.segment.may_hold(item.kind()) {
                    if items.is_empty() {
                        return Choice::Roll { need: size + more, keep_min };
                    }
                    break;
                }
                bytes += size;
                total += size;
                cost += more;
                items.extend(queue.remove(after_drops));
            }
        }
        if items.is_empty() { waiting } else { Choice::Items(items) }
    }

    /// Assigns a location to each record, updates the indexes, and encodes all records.
    fn prepare(&mut self, mut items: Vec<Item>) {
        if mutated!(self.shared.options, Reorder) && items.len() > 1 {
            items.swap(0, 1);
        }
        let mut prepared = Prepared { at: self.open.end, ..Prepared::default() };
        let mut headers: Vec<(RecordHeader, Payload)> = Vec::with_capacity(items.len());
        {
            let shared = self.shared.clone();
            let mut state = shared.state();
            let mut at = self.open.end;
            for item in items {
                prepared.records += 1;
                prepared.queued_bytes += item.size();
                if let Some((header, payload)) =
                    layout(&mut state, &self.open.segment, at, &item, &mut prepared, &shared.options)
                {
                    self.open.index.push(&header, at, payload.bytes());
                    at += header.size();
                    headers.push((header, payload));
                }
            }
        }
        prepared.removed.clear();
        let count = headers.len();
        self.buffer.clear();
        let no_chain = mutated!(self.shared.options, NoChain);
        let seed = self.open.segment.seed;
        for (n, (mut header, payload)) in headers.into_iter().enumerate() {
            header.chain = if no_chain { 0 } else { self.open.chain };
            header.commit = self.open.commit;
            header.flags = if n + 1 == count { LAST } else { 0 };
            self.open.chain = header.encode(seed, payload.bytes(), &mut self.buffer);
        }
        self.prepared = Some(prepared);
    }

    fn write(&mut self, started: Instant) -> Result<Commit, Error> {
        let Some(prepared) = self.prepared.take() else { return Ok(Commit::Idle) };
        let segment = self.open.segment.clone();
        // All chosen records may have been moves that are no longer needed.
        if !self.buffer.is_empty() {
            match segment.file.write_at(&self.buffer, prepared.at) {
                Ok(()) => {}
                Err(error) if is_full(&error) => {
                    self.prepared = Some(prepared);
                    return Ok(self.no_room());
                }
                Err(error) => return Err(Error::io(&segment.path, "write")(error)),
            }
            if mutated!(self.shared.options, ReportBeforeSync) {
                self.events.durable(&prepared.entries);
            }
            let before = Instant::now();
            if !mutated!(self.shared.options, SkipSync) {
                self.sync(&*segment.file, &segment.path)?;
            }
            let mut counters = self.shared.counters();
            counters.synced(before.elapsed());
            counters.commit.record(started.elapsed());
            counters.commits += 1;
            counters.records += prepared.records as u64;
            counters.bytes_written += self.buffer.len() as u64;
            counters.checkpoint_bytes += prepared.checkpoint_bytes;
            counters.parts_moved += prepared.moved;
            counters.moved_bytes += prepared.moved_bytes;
            self.open.commit += 1;
        }
        let bytes = self.buffer.len() as u64;
        self.open.end += bytes;
        segment.set_end(self.open.end);
        if self.buffer.capacity() > BUFFER_MAX {
            self.buffer = vec![];
        }
        self.report(&prepared);
        Ok(Commit::Wrote { records: prepared.records, bytes })
    }

    /// Syncs the file. A failed sync is never tried again: the system may have dropped the data that it could not
    /// write, and the next sync would succeed.
    fn sync(&self, file: &dyn DiskFile, path: &str) -> Result<(), Error> {
        let result = file.sync_data();
        if result.is_err() && mutated!(self.shared.options, RetryFailedSync) {
            return file.sync_data().map_err(Error::io(path, "sync"));
        }
        result.map_err(Error::io(path, "sync"))
    }

    fn report(&mut self, prepared: &Prepared) {
        self.shared.queued_bytes.fetch_sub(prepared.queued_bytes, Ordering::Relaxed);
        self.shared.queued_records.fetch_sub(prepared.records as u64, Ordering::Relaxed);
        for group in &prepared.dropped {
            self.events.dropped(*group);
        }
        self.report_bodies(prepared);
        let is_freeing = prepared.floor.is_some() || prepared.moved > 0 || !prepared.dropped.is_empty();
        if !prepared.done.is_empty() || is_freeing {
            let mut state = self.shared.state();
            for (group, checkpoint) in &prepared.done {
                state.group(*group).checkpoint_durable = Some(*checkpoint);
            }
            state.floor = state.floor.max(prepared.floor.unwrap_or_default());
            drop(state);
            self.shared.kick_keeper();
        }
        if !prepared.entries.is_empty() && !mutated!(self.shared.options, ReportBeforeSync) {
            self.events.durable(&prepared.entries);
        }
        for (group, parts) in &prepared.parts {
            self.events.parts_durable(*group, *parts);
        }
        for (group, checkpoint) in &prepared.done {
            self.events.checkpoint_durable(*group, *checkpoint);
        }
    }

    /// Makes bodies readable, and reports them.
    fn report_bodies(&mut self, prepared: &Prepared) {
        if prepared.bodies.is_empty() {
            return;
        }
        let mut counts: BTreeMap<GroupId, u64> = BTreeMap::new();
        {
            let mut state = self.shared.state();
            let segment = self.open.segment.id;
            for (group, index, offset) in prepared.bodies.iter().copied() {
                state.group(group).bodies.insert(index, BodyLocation { segment, offset });
                *counts.entry(group).or_default() += 1;
            }
        }
        for (group, count) in counts {
            self.events.bodies_durable(group, count);
        }
    }

    /// Closes the open segment with its index and opens another one that fits a record of `need` bytes. Returns
    /// false when there is no room except for the spares that must stay.
    fn roll(&mut self, need: u64, keep_min: usize) -> Result<bool, Error> {
        let Some(spare) = take_spare(&self.shared, need, keep_min)? else { return Ok(false) };
        if !self.seal()? {
            if spare.bytes == self.shared.options.segment_bytes {
                self.shared.state().spares.push_front(spare);
            }
            return Ok(false);
        }
        let open = start_segment(
            &self.shared,
            spare,
            self.open.segment.id.next(),
            self.open.commit,
            self.open.chain,
        )?;
        self.open = open;
        self.shared.kick_keeper();
        Ok(true)
    }

    fn seal(&mut self) -> Result<bool, Error> {
        if self.open.sealed {
            return Ok(true);
        }
        let segment = self.open.segment.clone();
        let mut footer = SegmentFooter {
            format: segment.header.format,
            end: self.open.end,
            index_bytes: 0,
            index_crc: 0,
            records: self.open.index.records() as u32,
            chain: self.open.chain,
            commit: self.open.commit - 1,
        };
        match segment.write_index(&mut footer, &self.open.index) {
            Ok(()) => {}
            Err(error) if is_full(&error) => return Ok(false),
            Err(error) => return Err(Error::io(&segment.path, "write")(error)),
        }
        self.sync(&*segment.file, &segment.path)?;
        self.shared.counters().bytes_written += u64::from(footer.index_bytes) + FOOTER as u64;
        self.open.sealed = true;
        Ok(true)
    }
}
