//! Handle of the log that groups hold.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::entries::EntryLocation;
use crate::error::{Error, Shortage};
use crate::id::{GroupId, SegmentId};
use crate::identity::Identity;
use crate::part_index::{PartIndex, PartLocation};
use crate::queue::{AfterDrop, Item, Record};
use crate::record::{Kind, PAYLOAD_MAX};
use crate::recovery::{RecoveredEntry, RecoveredGroup};
use crate::segment::Pin;
use crate::state::{Shared, Window, read_record};
use crate::stats::{Stats, Tally};

/// Number of reads of the disk after which a read of a range ends.
const RANGE_READS_MAX: u32 = 32;

/// A handle that appends and reads. Cheap to clone; every handle refers to the same log.
#[derive(Clone)]
pub struct Log {
    pub(crate) shared: Arc<Shared>,
}

/// Bodies of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bodies {
    /// The payload of the entry.
    InEntry(Arc<[u8]>),
    /// The payload of [`Log::append_bodies`], after the segment of the entry was freed.
    Kept(Arc<[u8]>),
}

/// Reason why a segment stays: the group still needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VacateRefused {
    /// The group's last checkpoint.
    pub checkpoint: Option<u64>,
    /// Highest index of the group's entries in the segment. The checkpoint has to reach it.
    pub last: u64,
}

impl fmt::Display for VacateRefused {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "entries up to {} are in the segment, and the last checkpoint is at ", self.last)?;
        match self.checkpoint {
            Some(index) => write!(f, "{index}"),
            None => f.write_str("none"),
        }
    }
}

impl std::error::Error for VacateRefused {}

impl Log {
    /// Queues records in this order and returns at once: one short lock, no system call except to wake the log's
    /// thread.
    ///
    /// [`LogListener`](crate::LogListener) reports when each is durable. Entries of one group become durable in the
    /// order in which they were appended, and so do its parts of checkpoints. Between entries and parts there is no
    /// order. After a failure they are dropped.
    ///
    /// The queue has no bound: the caller bounds what it has in flight.
    ///
    /// # Panics
    /// Panics on a payload above 257 MiB: an error of the caller.
    pub fn append(&self, records: impl IntoIterator<Item = Record>) {
        self.shared.append(records.into_iter().map(|record| {
            assert!(record.len() as u64 <= u64::from(PAYLOAD_MAX), "a payload of {} bytes", record.len());
            Item::Record(record)
        }));
    }

    /// Queues the bodies that are still needed of some entries, each with the index of its entry. They replace earlier
    /// ones of the same entry, and can be read with [`Self::read_bodies`] after the segment of the entry was freed. Low
    /// priority. [`LogListener::bodies_durable`](crate::LogListener::bodies_durable) reports them.
    ///
    /// # Panics
    /// Panics on a payload above 257 MiB: an error of the caller.
    pub fn append_bodies(&self, group: GroupId, bodies: Vec<(u64, Arc<[u8]>)>) {
        self.shared.append(bodies.into_iter().map(|(index, payload)| {
            assert!(payload.len() as u64 <= u64::from(PAYLOAD_MAX), "a payload of {} bytes", payload.len());
            Item::Bodies { group, index, payload }
        }));
    }

    /// Drops a group: everything that was appended for it is void.
    /// [`LogListener::dropped`](crate::LogListener::dropped) reports that this is durable. From then on the entries,
    /// checkpoint, parts and bodies of before cannot be read, and keep no segment. A crash before that may bring them
    /// back.
    ///
    /// Records of the group that are still queued are not written, and not reported. Records that are appended later
    /// are the first ones of the group: its entries begin at 1 again, or after a checkpoint. So nothing may be appended
    /// or reported for the earlier group after this call, by no thread.
    ///
    /// Returns at once, like [`Self::append`]. The record is written before all other queued records. On a full disk it
    /// goes into the reserve, because a drop frees space.
    pub fn drop_group(&self, group: GroupId) {
        self.shared.drop_group(group);
    }

    /// Notes that groups have no owner: none reports or vacates anything for them. The log keeps them, also over a
    /// start, until it has to free segments. Then it drops them in this order, and reports that like
    /// [`Self::drop_group`]. Holds until one of the two drops the group, or the log is closed.
    pub fn abandon(&self, groups: &[GroupId], after: AfterDrop) {
        let abandoned = &mut self.shared.queue().abandoned;
        for group in groups {
            abandoned.retain(|(other, _)| other != group);
            abandoned.push((*group, after));
        }
    }

    /// Returns what the log has of a group, as a start would recover it; `None` if that is nothing. The group must not
    /// have records that are not durable.
    pub fn recovered(&self, group: GroupId) -> Option<RecoveredGroup> {
        RecoveredGroup::new(&self.shared, group)
    }

    /// Reads the payload of an entry. Blocks for the disk, so reactors must not call it. An entry can be read from
    /// the time when it is durable until its segment is freed.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Corrupt`] when the bytes are not those that were written; [`Error::Io`].
    pub fn read(&self, group: GroupId, index: u64) -> Result<Arc<[u8]>, Error> {
        let (pin, location) = self.locate(group, index)?;
        let (header, payload) = read_record(&pin, location.offset)?;
        if header.kind != Kind::Entry || header.group != group || header.index != index {
            return Err(pin.corrupt(location.offset, format!("this is not entry {index} of {group}")));
        }
        Ok(payload)
    }

    /// Reads what the log has of an entry: the bodies that were kept of it, or the entry itself. Kept bodies come
    /// first: those of another replica may belong to another entry than the one here. Blocks for the disk, so reactors
    /// must not call it.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Corrupt`] when the bytes are not those that were written; [`Error::Io`].
    pub fn read_bodies(&self, group: GroupId, index: u64) -> Result<Bodies, Error> {
        if let Some(read) = self.read_kept(group, index) {
            return read.map(Bodies::Kept);
        }
        match self.read(group, index) {
            // The bodies may have been kept, and the segment of the entry freed, since the first look.
            Err(error @ Error::NotFound { .. }) => {
                self.read_kept(group, index).unwrap_or(Err(error)).map(Bodies::Kept)
            }
            read => read.map(Bodies::InEntry),
        }
    }

    fn read_kept(&self, group: GroupId, index: u64) -> Option<Result<Arc<[u8]>, Error>> {
        let (pin, location) = {
            let state = self.shared.state();
            let location = state.groups.get(&group)?.bodies.get(index)?;
            (state.segments.get(&location.segment)?.pin(), location)
        };
        let read = read_record(&pin, location.offset).and_then(|(header, payload)| {
            if header.kind != Kind::Bodies || header.group != group || header.index != index {
                let detail = format!("these are not the bodies of entry {index} of {group}");
                return Err(pin.corrupt(location.offset, detail));
            }
            Ok(payload)
        });
        Some(read)
    }

    /// Returns whether [`Self::read_bodies`] finds an entry or bodies of this index, without a look at the disk.
    pub fn has_bodies(&self, group: GroupId, index: u64) -> bool {
        let state = self.shared.state();
        let Some(known) = state.groups.get(&group) else { return false };
        let entry =
            known.entries.get(index).and_then(|entry| Some((state.segments.get(&entry.segment)?, entry)));
        known.bodies.get(index).is_some()
            || entry.is_some_and(|(segment, location)| location.offset < segment.end())
    }

    /// Reads consecutive entries from `first` on, up to `last` and to `bytes_max` bytes of payloads, but at least one.
    /// Returns fewer if they are so far from each other that they need many reads of the disk. Blocks for the disk, so
    /// reactors must not call it. All of them are durable before the call, and none is replaced during it.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Corrupt`] when the bytes are not those that were written; [`Error::Io`].
    pub fn read_range(
        &self,
        group: GroupId,
        first: u64,
        last: u64,
        bytes_max: usize,
    ) -> Result<Vec<RecoveredEntry>, Error> {
        self.locate(group, last)?;
        let mut window = Window::for_many();
        let (mut entries, mut bytes) = (Vec::new(), 0);
        let mut expected_to = None;
        for index in first..=last {
            let (pin, location) = self.locate(group, index)?;
            if Some(index) > expected_to {
                // The entries up to here are in one segment.
                let end = self.run_end(group, index).min(last);
                let end_offset = self.locate(group, end)?.1.offset;
                window.expect(end - index, end_offset.saturating_sub(location.offset));
                expected_to = Some(end);
            }
            let (header, payload) = window.read(&pin, location.offset)?;
            if header.kind != Kind::Entry || (header.group, header.index) != (group, index) {
                return Err(pin.corrupt(location.offset, format!("this is not entry {index} of {group}")));
            }
            bytes += payload.len();
            entries.push(RecoveredEntry { term: header.term, index, payload });
            if bytes >= bytes_max || window.reads >= RANGE_READS_MAX {
                break;
            }
        }
        Ok(entries)
    }

    /// Reads a part of the group's last checkpoint, if that is `checkpoint`. An earlier checkpoint may have written the
    /// part. Blocks for the disk, so reactors must not call it.
    ///
    /// # Errors
    /// [`Error::NotFound`] with the index of the checkpoint: there is another checkpoint, or the part is being moved;
    /// [`Error::Corrupt`] when the bytes are not those that were written; [`Error::Io`].
    pub fn read_part(&self, group: GroupId, part: u32, checkpoint: u64) -> Result<Arc<[u8]>, Error> {
        self.read_located(group, part, checkpoint, |part_index| {
            part_index.get(part).filter(|_| part_index.checkpoint == Some(checkpoint))
        })
    }

    /// Reads a part of an unfinished checkpoint: one that was written for it after the last [`Record::Done`]. Blocks
    /// for the disk, so reactors must not call it.
    ///
    /// # Errors
    /// [`Error::NotFound`] with the index of the checkpoint: the part is not written, or not durable;
    /// [`Error::Corrupt`] when the bytes are not those that were written; [`Error::Io`].
    pub fn read_pending_part(&self, group: GroupId, part: u32, checkpoint: u64) -> Result<Arc<[u8]>, Error> {
        self.read_located(group, part, checkpoint, |part_index| part_index.get_pending(part, checkpoint))
    }

    fn read_located(
        &self,
        group: GroupId,
        part: u32,
        checkpoint: u64,
        locate: impl FnOnce(&PartIndex) -> Option<PartLocation>,
    ) -> Result<Arc<[u8]>, Error> {
        let not_found = Error::NotFound { group, index: checkpoint };
        let (pin, location) = {
            let state = self.shared.state();
            let location = state.groups.get(&group).and_then(|known| locate(&known.part_index));
            let found = location.and_then(|found| Some((state.segments.get(&found.segment)?, found)));
            match found {
                Some((segment, found)) if found.offset < segment.end() => (segment.pin(), found),
                _ => return Err(not_found),
            }
        };
        let (header, payload) = read_record(&pin, location.offset)?;
        let is = matches!(header.kind, Kind::Part | Kind::MovedPart)
            && (header.group, header.part, header.index) == (group, part, location.version);
        if !is {
            return Err(pin.corrupt(location.offset, format!("this is not part {part} of {group}")));
        }
        Ok(payload)
    }

    /// Returns the last index of the entries that follow an entry in its segment.
    fn run_end(&self, group: GroupId, index: u64) -> u64 {
        let state = self.shared.state();
        state.groups.get(&group).map_or(index, |known| known.entries.run_end(index))
    }

    /// Returns the location of an entry that can be read, and keeps its segment.
    fn locate(&self, group: GroupId, index: u64) -> Result<(Pin, EntryLocation), Error> {
        let state = self.shared.state();
        let location = state.groups.get(&group).and_then(|known| known.entries.get(index));
        let found = location.and_then(|location| Some((state.segments.get(&location.segment)?, location)));
        match found {
            Some((segment, location)) if location.offset < segment.end() => Ok((segment.pin(), location)),
            _ => Err(Error::NotFound { group, index }),
        }
    }

    /// Reports how many bytes of the group's entries are live: the bodies that it would have to write again. The
    /// keeper frees segments when the log is more than twice as large as all live data. After a start it frees
    /// nothing until every recovered group has reported.
    pub fn report_live(&self, group: GroupId, bytes: u64) {
        let mut state = self.shared.state();
        let known = state.group(group);
        (known.live_bytes, known.silent) = (bytes, false);
    }

    /// Answers a [`Vacate`](crate::Vacate): the group needs none of its entries and bodies in the segment any more.
    ///
    /// # Errors
    /// [`VacateRefused`] when the group's last durable checkpoint does not cover all its entries there. The segment
    /// is kept; answer again later.
    pub fn vacated(&self, group: GroupId, segment: SegmentId) -> Result<(), VacateRefused> {
        {
            let mut state = self.shared.state();
            if let Some(known) = state.groups.get(&group)
                && let Some((_, last)) = known.entries.span(segment)
                && known.checkpoint_durable < Some(last)
            {
                return Err(VacateRefused { checkpoint: known.checkpoint_durable, last });
            }
            if let Some(waiting) = state.vacating.get_mut(&segment) {
                waiting.remove(&group);
            }
        }
        self.shared.kick_keeper();
        Ok(())
    }

    /// Returns the term and the index of the group's last entry, durable or being written.
    #[must_use]
    pub fn last(&self, group: GroupId) -> Option<(u64, u64)> {
        self.shared.state().groups.get(&group)?.entries.last().map(|e| (e.term, e.index))
    }

    /// Returns the identity of this node.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// Returns the number of records that are queued and not yet being written; also part of [`Self::stats`].
    #[must_use]
    pub fn queue_records(&self) -> u64 {
        self.shared.queued_records.load(Ordering::Relaxed)
    }

    /// Returns a few figures of [`Self::stats`], at the cost of a lock.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let counters = self.shared.counters();
        Tally { checkpoint_bytes: counters.checkpoint_bytes, freed: counters.freed }
    }

    /// Returns the shortage that is reported to operators: the log lacks this resource, or lacked it within the
    /// last half minute.
    pub fn reported_full(&self) -> Option<Shortage> {
        let state = self.shared.state();
        state.full.or(state.reported)
    }

    /// Returns whether the log has no room for another segment.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.shared.state().full.is_some()
    }

    /// Returns the current figures. Takes time in proportion to the groups and segments.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = {
            let counters = self.shared.counters();
            Stats {
                commits: counters.commits,
                records: counters.records,
                bytes_written: counters.bytes_written,
                checkpoint_bytes: counters.checkpoint_bytes,
                parts_moved: counters.parts_moved,
                moved_bytes: counters.moved_bytes,
                freed: counters.freed,
                full_count: counters.full_count,
                sync: counters.sync.clone(),
                commit: counters.commit.clone(),
                failed: counters.failed.clone(),
                ..Stats::default()
            }
        };
        stats.queue_records = self.shared.queued_records.load(Ordering::Relaxed);
        stats.queue_bytes = self.shared.queued_bytes.load(Ordering::Relaxed);
        let state = self.shared.state();
        stats.segments = state.segments.len();
        stats.bytes = state.total_bytes();
        stats.live_bytes = state.live_bytes();
        stats.spares = state.spares.len();
        stats.vacating = state.vacating.len();
        stats.full = state.full;
        stats.damage = state.damage.as_ref().map(ToString::to_string);
        stats.groups = state.group_stats();
        stats
    }
}
