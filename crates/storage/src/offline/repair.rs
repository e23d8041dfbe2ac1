//! Repairs a damaged log: saves its whole records into a new one.

use std::sync::Arc;

use super::copy::refuse_log;
use crate::disk::Disk;
use crate::error::{Error, Lost};
use crate::id::{GroupId, SegmentId};
use crate::identity::{Identity, random};
use crate::open::{gaps, open};
use crate::options::Options;
use crate::queue::{Item, Record};
use crate::record::{LAST, RecordHeader};
use crate::scan::{FoundRecord, Scan};
use crate::segment::{FORMAT, HEADER, Segment, SegmentHeader};
use crate::segment_index::{DONE, SegmentIndex};
use crate::state::{Shared, State, read_record};
use crate::writer::{Commit, Writer};

/// Result of a repair: saved and lost data.
#[derive(Clone, Debug, Default)]
pub struct RepairReport {
    /// Damaged locations, one sentence each.
    pub damage: Vec<String>,
    pub groups: Vec<RepairedGroup>,
}

/// One group of a repaired log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairedGroup {
    pub group: GroupId,
    pub checkpoint: Option<u64>,
    /// Number of saved entries, bodies before the checkpoint included.
    pub entries: u64,
    /// Number of saved parts of the checkpoint.
    pub parts: u32,
    /// True when parts of the checkpoint are lost.
    pub parts_lost: bool,
    /// Entries after the checkpoint that are lost.
    pub lost: Vec<Lost>,
}

impl RepairReport {
    /// Returns whether no needed data was lost.
    #[must_use]
    pub fn nothing_lost(&self) -> bool {
        self.groups.iter().all(|group| group.lost.is_empty() && !group.parts_lost)
    }
}

/// Reads every whole record of all segments and writes those that count into a new log on an empty disk. The
/// damaged log is not changed. The new one is a copy with the same id and secret. It marks lost entries, and
/// recovery skips them.
///
/// If the record of a drop is damaged, whole records of what was dropped count again.
///
/// # Errors
/// [`Error::Invalid`] when there is a log at the destination, or nothing to save; [`Error::Io`]; [`Error::Newer`].
pub fn repair(from: &dyn Disk, to: Arc<dyn Disk>) -> Result<RepairReport, Error> {
    refuse_log(&*to)?;
    let mut report = RepairReport::default();
    let ids = segments(from)?;
    let identity = identity(from, &ids, &mut report)?;
    let mut state = State::default();
    for id in &ids {
        if let Some(segment) = salvage_open(from, *id, &identity, &mut report)? {
            let segment = Arc::new(segment);
            let index = salvage(&segment, Some(id) == ids.last(), &mut report)?;
            state.segments.insert(*id, segment);
            state.replay(*id, index);
        }
    }
    let mut entropy = [0; 48];
    entropy[..16].copy_from_slice(&identity.log);
    entropy[16..].copy_from_slice(&identity.secret);
    let segment_bytes = state.segments.values().map(|segment| segment.bytes).min();
    let options = Options {
        segment_bytes: segment_bytes.unwrap_or(Options::default().segment_bytes).next_multiple_of(512),
        reserve_bytes: 0,
        entropy: Some(entropy),
        now_ms: identity.created_ms,
        ..Options::default()
    };
    let mut opened = open(to.clone(), options, Box::new(()), &mut |_| {})?;
    for (group, known) in &state.groups {
        let lost = gaps(known);
        let repaired = RepairedGroup {
            group: *group,
            checkpoint: known.part_index.checkpoint,
            entries: known.entries.count(),
            parts: known.part_index.figures().0,
            parts_lost: !known.part_index.complete(),
            lost: lost
                .iter()
                .map(|(first, last)| Lost { group: *group, first: *first, last: Some(*last) })
                .collect(),
        };
        write_group(&state, *group, &opened.log.shared, &mut opened.writer)?;
        let known_lost = known.part_index.lost.iter().copied().chain(lost);
        opened.log.shared.append(known_lost.map(|(first, last)| Item::Lost { group: *group, first, last }));
        commit(&mut opened.writer)?;
        report.groups.push(repaired);
    }
    identity.copied()?.write(&*to)?;
    Ok(report)
}

fn segments(disk: &dyn Disk) -> Result<Vec<SegmentId>, Error> {
    let names = disk.list().map_err(Error::io(&disk.path(""), "list"))?;
    let mut ids: Vec<SegmentId> = names.iter().filter_map(|name| SegmentId::of_file(name)).collect();
    ids.sort_unstable();
    if ids.is_empty() {
        return Err(Error::Invalid(format!(
            "{} has no segment of a log: give the directory of a log",
            disk.path("")
        )));
    }
    Ok(ids)
}

/// Reads the identity. Without an identity file, the segments name the log, and the secret is a new one.
fn identity(disk: &dyn Disk, ids: &[SegmentId], report: &mut RepairReport) -> Result<Identity, Error> {
    match Identity::read(disk) {
        Ok(Some(identity)) => return Ok(identity),
        Ok(None) => report.damage.push(format!("{} is missing", disk.path(crate::IDENTITY_FILE))),
        Err(error @ Error::Newer { .. }) => return Err(error),
        Err(error) => report.damage.push(error.to_string()),
    }
    let segment = ids.iter().find_map(|id| Segment::open(disk, *id).ok());
    let Some(segment) = segment else {
        return Err(Error::Invalid(
            "neither an identity file nor any segment says which log it is: nothing can be saved; restore a backup".to_owned(),
        ));
    };
    let mut entropy = [0; 48];
    random(&mut entropy)?;
    entropy[..16].copy_from_slice(&segment.header.log);
    Ok(Identity::new(&entropy, 0))
}

/// Opens a segment. A segment whose header is damaged is identified by its file name.
fn salvage_open(
    disk: &dyn Disk,
    id: SegmentId,
    identity: &Identity,
    report: &mut RepairReport,
) -> Result<Option<Segment>, Error> {
    match Segment::open(disk, id) {
        Ok(segment) => return Ok(Some(segment)),
        Err(error @ Error::Newer { .. }) => return Err(error),
        Err(error) => report.damage.push(error.to_string()),
    }
    let path = disk.path(&id.file());
    let file = disk.open(&id.file()).map_err(Error::io(&path, "open"))?;
    let bytes = file.len().map_err(Error::io(&path, "read"))?;
    if bytes < (HEADER + crate::segment::FOOTER) as u64 {
        return Ok(None);
    }
    let header = SegmentHeader {
        format: FORMAT,
        log: identity.log,
        segment: id,
        commit: 1,
        floor: SegmentId(1),
        chain: 0,
        sectors: 0,
    };
    Ok(Some(Segment::new(header, file, path, bytes)))
}

/// A record that was found, with the part of its payload that an index needs.
struct SalvagedRecord {
    header: RecordHeader,
    offset: u64,
    done: Vec<u8>,
}

/// Reads all whole records of a segment, in order. Leaves out the records that a start would cut: an incomplete
/// last commit, and the remains of earlier ones after the end.
fn salvage(segment: &Segment, last: bool, report: &mut RepairReport) -> Result<SegmentIndex, Error> {
    let mut scan = Scan::new(segment);
    let mut index = SegmentIndex::default();
    let keep = |commit: &mut Vec<SalvagedRecord>, index: &mut SegmentIndex| {
        commit.drain(..).for_each(|salvaged| index.push(&salvaged.header, salvaged.offset, &salvaged.done));
    };
    let end = segment.read_index()?.map(|(footer, _)| footer.end);
    let mut commit: Vec<SalvagedRecord> = vec![];
    // True while the last commit has no hole since the end of the one before.
    let mut unbroken = true;
    let (mut at, mut number, mut complete) = (HEADER as u64, 0, true);
    while let Some((offset, header)) = scan.find_valid(at)? {
        let continues = header.commit == number && !complete;
        if header.commit <= number && !continues || end.is_some_and(|end| offset >= end) {
            break;
        }
        if !continues {
            keep(&mut commit, &mut index);
            unbroken = offset == at;
        }
        if offset != at {
            unbroken = false;
            report.damage.push(format!("{} has no whole record from offset {at} to {offset}", segment.path));
        }
        let found = FoundRecord { header, offset };
        let payload = scan.payload(&found)?;
        let done = if payload.len() == DONE { payload.to_vec() } else { vec![] };
        commit.push(SalvagedRecord { header, offset, done });
        (at, number, complete) = (offset + header.size(), header.commit, header.flags & LAST != 0);
    }
    if !last || end.is_some() || (complete && unbroken) {
        keep(&mut commit, &mut index);
    }
    if end.is_some_and(|end| end > at) {
        report.damage.push(format!("{} has no whole record from offset {at} to its end", segment.path));
    } else if end.is_none() && !last {
        report.damage.push(format!(
            "{} has no index: whether records are missing at its end is not known",
            segment.path
        ));
    }
    Ok(index)
}

/// Bytes that are read before they are written.
const PIECE: u64 = 4 << 20;

fn write_group(state: &State, group: GroupId, shared: &Shared, writer: &mut Writer) -> Result<(), Error> {
    let known = &state.groups[&group];
    let read = |segment: SegmentId, offset: u64| read_record(&state.segments[&segment].pin(), offset);
    let mut queued = 0;
    let mut append = |item: Item| {
        queued += item.size();
        shared.append([item].into_iter());
        if queued >= PIECE {
            queued = 0;
            commit(writer)?;
        }
        Ok::<(), Error>(())
    };
    let mut at = 0;
    while let Some(location) = known.entries.after(at).and_then(|index| known.entries.get(index)) {
        at = location.index;
        let (header, payload) = read(location.segment, location.offset)?;
        let payload = Arc::new(payload.to_vec());
        append(Item::Record(Record::Entry { group, term: header.term, index: at, payload }))?;
    }
    for (index, location) in known.bodies.iter() {
        let (_, payload) = read(location.segment, location.offset)?;
        append(Item::Bodies { group, index, payload })?;
    }
    let Some(checkpoint) = known.part_index.checkpoint else { return Ok(()) };
    for (part, location) in known.part_index.live() {
        let (_, payload) = read(location.segment, location.offset)?;
        append(Item::Record(Record::Part { group, part, checkpoint, payload }))?;
    }
    append(Item::Record(Record::Done { group, checkpoint }))
}

fn commit(writer: &mut Writer) -> Result<(), Error> {
    loop {
        match writer.commit_once()? {
            Commit::Idle => return Ok(()),
            Commit::Wrote { .. } => {}
            Commit::NoRoom => {
                return Err(Error::Invalid(
                    "the destination has no room: give a directory on a larger disk".to_owned(),
                ));
            }
        }
    }
}
