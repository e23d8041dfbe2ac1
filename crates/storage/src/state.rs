//! State that writer, keeper and readers share: the locations of all records.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::body_index::{BodyIndex, BodyLocation};
use crate::disk::Disk;
use crate::entries::Entries;
use crate::error::{Error, Shortage};
use crate::events::Vacate;
use crate::id::{GroupId, SegmentId};
use crate::identity::Identity;
use crate::options::{Options, mutated};
use crate::part_index::PartIndex;
use crate::queue::{Item, Queue};
use crate::record::{HEADER, RecordHeader, size};
use crate::segment::{Pin, Segment};
use crate::segment_index::SegmentIndex;
use crate::spare::Spare;
use crate::stats::{Counters, GroupStats};

pub(crate) struct Shared {
    pub disk: Arc<dyn Disk>,
    pub options: Options,
    pub identity: Identity,
    queue: Mutex<Queue>,
    wake_writer: Condvar,
    state: Mutex<State>,
    keeper: Mutex<KeeperCall>,
    wake_keeper: Condvar,
    counters: Mutex<Counters>,
    /// Bytes that are appended and not yet durable.
    pub queued_bytes: AtomicU64,
    pub queued_records: AtomicU64,
}

#[derive(Default)]
struct KeeperCall {
    kicked: bool,
    stopped: bool,
}

#[derive(Default)]
pub(crate) struct State {
    /// Segments. Their ids are consecutive, and the last one is written to.
    pub segments: BTreeMap<SegmentId, Arc<Segment>>,
    pub groups: BTreeMap<GroupId, Group>,
    /// First segment that is needed. Durable.
    pub floor: SegmentId0,
    /// Empty segments. They are open, so that the next segment needs no descriptor.
    pub spares: VecDeque<Spare>,
    pub spare_next: u64,
    /// Segments that are being freed, with the groups that have not answered yet.
    pub vacating: BTreeMap<SegmentId, BTreeSet<GroupId>>,
    /// Notices that the writer has to report.
    pub notices: VecDeque<Notice>,
    /// Shortage that prevents another spare segment.
    pub full: Option<Shortage>,
    /// Shortage since the keeper's last report, whether or not there is room again.
    pub was_full: Option<Shortage>,
    /// Shortage that is reported to operators.
    pub reported: Option<Shortage>,
    /// Shortage at the last failed attempt to create a segment.
    pub shortage: Shortage,
    /// True while a record larger than a segment waits for room. New spares would only take that room away.
    pub starved: bool,
    /// Number of queued moves.
    pub moving: usize,
    /// Floor that is queued.
    pub floor_requested: SegmentId0,
    /// Damage found since the start.
    pub damage: Option<Error>,
}

/// A segment id that may be 0: before the first segment.
pub(crate) type SegmentId0 = u64;

#[derive(Default)]
pub(crate) struct Group {
    pub part_index: PartIndex,
    pub entries: Entries,
    pub bodies: BodyIndex,
    /// Last checkpoint whose `Done` was synced. The index may be ahead by records that are being written.
    pub checkpoint_durable: Option<u64>,
    /// Live bytes that the group reported.
    pub live_bytes: u64,
    /// True when the group was found at the start and has not reported yet.
    pub silent: bool,
}

pub(crate) enum Notice {
    Vacate(Vacate),
    Full(Shortage),
    Room,
}

impl State {
    pub fn group(&mut self, group: GroupId) -> &mut Group {
        self.groups.entry(group).or_default()
    }

    /// Adds the records of a segment, in the order of the log.
    pub fn replay(&mut self, segment: SegmentId, mut index: SegmentIndex) {
        for group in index.remove_void() {
            self.remove_group(group);
        }
        for run in index.runs {
            self.group(run.group).entries.add_run(segment, run);
        }
        for other in index.others {
            self.apply_other(segment, &other);
        }
    }

    /// Forgets a group that is dropped, and returns what was known of it. No segment waits for it any more.
    pub fn remove_group(&mut self, group: GroupId) -> Option<Group> {
        self.vacating.values_mut().for_each(|waiting| {
            waiting.remove(&group);
        });
        self.notices.retain(|notice| !matches!(notice, Notice::Vacate(vacate) if vacate.group == group));
        self.groups.remove(&group)
    }

    pub fn apply_other(&mut self, segment: SegmentId, other: &crate::segment_index::Other) {
        use crate::record::Kind;
        match other.kind {
            Kind::Opened => self.groups.values_mut().for_each(|g| g.part_index.apply(segment, other)),
            Kind::Floor | Kind::Dropped => {}
            Kind::Bodies => {
                let location = BodyLocation { segment, offset: u64::from(other.offset) * 8 };
                self.group(other.group).bodies.insert(other.index, location);
            }
            _ => self.group(other.group).part_index.apply(segment, other),
        }
    }

    /// Returns a file name that is not in use.
    pub fn spare_name(&mut self) -> String {
        self.spare_next += 1;
        format!("{}{:020}", crate::segment::SPARE, self.spare_next)
    }

    pub fn total_bytes(&self) -> u64 {
        self.segments.values().map(|s| s.bytes).sum()
    }

    /// Returns the number of bytes that cannot be freed: the bytes that groups reported, and the parts of their
    /// checkpoints, unfinished ones included.
    pub fn live_bytes(&self) -> u64 {
        let parts = |group: &Group| group.part_index.live_bytes + group.part_index.pending_bytes();
        self.groups.values().map(|group| group.live_bytes + parts(group)).sum()
    }

    pub fn group_stats(&self) -> Vec<GroupStats> {
        let figures = |(group, known): (&GroupId, &Group)| GroupStats {
            group: *group,
            entries: known.entries.count(),
            bodies: known.bodies.len(),
            last: known.entries.last().map_or(0, |e| e.index),
            checkpoint: known.part_index.checkpoint,
            parts: known.part_index.figures().0,
            part_bytes: known.part_index.live_bytes,
            live_bytes: known.live_bytes,
        };
        self.groups.iter().map(figures).collect()
    }

    pub fn set_full(&mut self, full: Option<Shortage>) -> bool {
        let changed = self.full != full;
        if changed {
            self.full = full;
            self.was_full = full.or(self.was_full);
            if let Some(shortage) = full.filter(|_| self.reported.is_none()) {
                self.reported = full;
                tracing::error!(
                    "{shortage}: this node stores no messages for durable sessions until there is room (other work continues)"
                );
            }
            self.notices.push_back(full.map_or(Notice::Room, Notice::Full));
        }
        changed
    }

    pub fn open_segment(&self) -> Option<&Arc<Segment>> {
        self.segments.last_key_value().map(|(_, segment)| segment)
    }
}

impl Shared {
    pub fn new(disk: Arc<dyn Disk>, options: Options, identity: Identity, state: State) -> Self {
        Self {
            disk,
            options,
            identity,
            queue: Mutex::default(),
            wake_writer: Condvar::new(),
            state: Mutex::new(state),
            keeper: Mutex::default(),
            wake_keeper: Condvar::new(),
            counters: Mutex::default(),
            queued_bytes: AtomicU64::new(0),
            queued_records: AtomicU64::new(0),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }

    pub fn counters(&self) -> MutexGuard<'_, Counters> {
        sync::lock(&self.counters)
    }

    pub fn queue(&self) -> MutexGuard<'_, Queue> {
        sync::lock(&self.queue)
    }

    pub fn append(&self, items: impl Iterator<Item = Item>) {
        let (mut records, mut bytes) = (0, 0);
        let mut queue = self.queue();
        if queue.closed {
            return;
        }
        for item in items {
            records += 1;
            bytes += item.size();
            queue.push(item, self.options.urgent);
        }
        self.queued_records.fetch_add(records, Ordering::Relaxed);
        self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let idle = std::mem::take(&mut queue.idle);
        drop(queue);
        if idle {
            self.wake_writer.notify_one();
        }
    }

    /// Queues the drop of a group. Records of the group that are queued already are not written.
    pub fn drop_group(&self, group: GroupId) {
        {
            let mut queue = self.queue();
            if queue.closed {
                return;
            }
            if mutated!(self.options, WriteDropped) {
                queue.push(Item::Dropped(group), &[]);
            } else {
                self.count_removed(queue.drop_group(group));
            }
            self.queued_records.fetch_add(1, Ordering::Relaxed);
            self.queued_bytes.fetch_add(size(0), Ordering::Relaxed);
            queue.idle = false;
        }
        self.wake_writer.notify_one();
    }

    /// Queues the drops of all abandoned groups, and returns the groups.
    pub fn drop_abandoned(&self) -> Vec<GroupId> {
        let groups = {
            let mut queue = self.queue();
            let groups: Vec<GroupId> = queue.abandoned.iter().map(|(group, _)| *group).collect();
            if queue.closed {
                return Vec::new();
            }
            for group in &groups {
                self.count_removed(queue.drop_group(*group));
                self.queued_records.fetch_add(1, Ordering::Relaxed);
                self.queued_bytes.fetch_add(size(0), Ordering::Relaxed);
            }
            queue.idle = false;
            groups
        };
        self.wake_writer.notify_one();
        groups
    }

    /// Counts records that were queued and are not written.
    pub fn count_removed(&self, (records, bytes): (u64, u64)) {
        self.queued_records.fetch_sub(records, Ordering::Relaxed);
        self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub fn kick_writer(&self) {
        self.queue().kicked = true;
        self.wake_writer.notify_one();
    }

    pub fn stop_writer(&self) {
        self.queue().stopped = true;
        self.wake_writer.notify_one();
    }

    /// Waits for records or notices, or for `limit`. When `stalled`, it waits only for records that are written
    /// when nothing else fits. Returns false once the log is to stop and nothing is left.
    pub fn wait_for_work(&self, limit: std::time::Duration, stalled: bool) -> bool {
        let queue = self.queue();
        let idle = |q: &mut Queue| {
            let is_done = if stalled { q.drops.is_empty() && q.first.is_empty() } else { q.is_empty() };
            q.idle = !q.kicked && !q.stopped && is_done;
            q.idle
        };
        let waited = self.wake_writer.wait_timeout_while(queue, limit, idle);
        let (mut queue, _) = sync::ignore_poison(waited);
        (queue.kicked, queue.idle) = (false, false);
        !(queue.stopped && (stalled || queue.is_empty()))
    }

    pub fn kick_keeper(&self) {
        sync::lock(&self.keeper).kicked = true;
        self.wake_keeper.notify_one();
    }

    pub fn stop_keeper(&self) {
        sync::lock(&self.keeper).stopped = true;
        self.wake_keeper.notify_one();
    }

    /// Waits for `limit`, or until the log is to stop: then it returns false. A call stays for the next
    /// [`wait_for_call`](Self::wait_for_call).
    pub fn wait_unless_stopped(&self, limit: std::time::Duration) -> bool {
        let call = sync::lock(&self.keeper);
        let waited = self.wake_keeper.wait_timeout_while(call, limit, |c| !c.stopped);
        let (call, _) = sync::ignore_poison(waited);
        !call.stopped
    }

    /// Waits for a call, or for `limit`. Returns false once the log is to stop.
    pub fn wait_for_call(&self, limit: std::time::Duration) -> bool {
        let call = sync::lock(&self.keeper);
        let waited = self.wake_keeper.wait_timeout_while(call, limit, |c| !c.kicked && !c.stopped);
        let (mut call, _) = sync::ignore_poison(waited);
        call.kicked = false;
        !call.stopped
    }
}

/// Reads one record and verifies it.
pub(crate) fn read_record(segment: &Pin, offset: u64) -> Result<(RecordHeader, Arc<[u8]>), Error> {
    Window::new(READ_AHEAD).read(segment, offset)
}

/// Bytes of a segment that were read at once, for consecutive records.
pub(crate) struct Window {
    ahead: u64,
    segment: Option<SegmentId>,
    at: u64,
    bytes: Vec<u8>,
    /// Number of reads of the disk.
    pub reads: u32,
}

/// Bytes read at once; most records are smaller.
const READ_AHEAD: u64 = 16 << 10;
/// Bytes read at once while records are read in order.
const READ_ON: u64 = 1 << 20;

impl Window {
    pub fn for_many() -> Self {
        Self::new(READ_ON)
    }

    /// Prepares for so many records, which begin within so many bytes of the first. Those that are far from each other
    /// are read one by one, because most of the bytes between them are of other groups.
    pub fn expect(&mut self, records: u64, bytes: u64) {
        let is_dense = bytes / records.max(1) <= READ_AHEAD;
        self.ahead = if is_dense { bytes.saturating_add(READ_AHEAD).min(READ_ON) } else { READ_AHEAD };
    }

    fn new(ahead: u64) -> Self {
        Self { ahead, segment: None, at: 0, bytes: vec![], reads: 0 }
    }

    /// Returns the bytes at the offset, without a check.
    fn bytes(&mut self, segment: &Pin, offset: u64, length: usize) -> Result<&[u8], Error> {
        let room = segment.bytes.saturating_sub(offset);
        if length as u64 > room {
            return Err(segment.corrupt(offset, "a record does not end within its file"));
        }
        let have = self.segment == Some(segment.id)
            && offset >= self.at
            && offset + length as u64 <= self.at + self.bytes.len() as u64;
        if !have {
            self.segment = None;
            self.bytes.resize((length as u64).max(self.ahead.min(room)) as usize, 0);
            segment.file.read_at(&mut self.bytes, offset).map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => segment.corrupt(offset, "the file ends within a record"),
                _ => Error::io(&segment.path, "read")(error),
            })?;
            (self.segment, self.at) = (Some(segment.id), offset);
            self.reads += 1;
        }
        let from = (offset - self.at) as usize;
        Ok(&self.bytes[from..from + length])
    }

    pub fn read(&mut self, segment: &Pin, offset: u64) -> Result<(RecordHeader, Arc<[u8]>), Error> {
        let header = RecordHeader::parse(self.bytes(segment, offset, HEADER)?);
        let header = header.ok_or_else(|| segment.corrupt(offset, "there is no record here"))?;
        let record = self.bytes(segment, offset, HEADER + header.length as usize)?;
        let payload = &record[HEADER..];
        if segment.seed.checksum(record, payload) != header.crc {
            return Err(segment.corrupt(offset, "the record's checksum is wrong"));
        }
        Ok((header, payload.into()))
    }
}
