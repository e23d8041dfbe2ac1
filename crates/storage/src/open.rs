//! Opens a log: verifies its files, cuts a torn tail, and locates all records.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::disk::Disk;
use crate::error::{Error, Lost};
use crate::events::LogListener;
use crate::id::SegmentId;
use crate::identity::{Identity, random};
use crate::keeper::Keeper;
use crate::load::{Loaded, load};
use crate::log::Log;
use crate::options::{Options, mutated};
use crate::queue::Item;
use crate::record::Kind;
use crate::recovery::{Recovery, RecoveryReport};
use crate::scan::Scan;
use crate::segment::{SPARE, Segment};
use crate::spare::{Spare, start_segment, take_spare};
use crate::state::{Shared, State};
use crate::writer::{OpenSegment, Writer};

/// A log that is ready. The disk stays in use, and a directory locked, until all fields and all handles are
/// dropped.
pub struct Opened {
    pub log: Log,
    /// Writes when it is called: give `writer` and `keeper` to [`spawn`](crate::spawn), or call them.
    pub writer: Writer,
    pub keeper: Keeper,
    /// Recovered state of the groups. They read it before they append.
    pub recovery: Recovery,
}

/// Progress of opening a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of segments read.
    pub segments: usize,
    /// Number of all segments.
    pub segments_all: usize,
    /// Number of records found.
    pub records: u64,
}

/// Contents of a directory before any change.
pub(crate) struct DirectoryContents {
    pub identity: Option<Identity>,
    pub state: State,
    /// The last segment.
    pub open: Option<OpenSegment>,
    pub report: RecoveryReport,
    /// Files of segments before the floor.
    leftover: Vec<SegmentId>,
    /// Incomplete files that a crash left.
    stale_files: Vec<String>,
}

/// Opens the log on the disk, or creates one where there is none. Reads the indexes of full segments and every
/// record of the last one. Cuts a torn last commit. Any other damage is an error, and then nothing is changed.
///
/// `events` is called from the first commit on. `progress` is called after each segment.
///
/// # Errors
/// [`Error::Corrupt`], [`Error::Missing`], [`Error::Foreign`], [`Error::Newer`]: the files cannot be used.
/// [`Error::Io`] and [`Error::Full`]: the disk. [`Error::Invalid`]: the options.
pub fn open(
    disk: Arc<dyn Disk>,
    options: Options,
    events: Box<dyn LogListener>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Opened, Error> {
    let started = Instant::now();
    options.check()?;
    let mut found = inspect(&*disk, &options, progress)?;
    let created = found.identity.is_none();
    let identity = match found.identity.take() {
        Some(identity) => identity,
        None => Identity::new(&entropy(&options)?, options.now_ms),
    };
    if let Some(open) = &found.open {
        // Before anything is removed: a record in this commit may be the reason for the removal.
        write_again(open, &options)?;
    }
    tidy(&*disk, &mut found)?;
    let DirectoryContents { mut state, open, mut report, .. } = found;
    for group in state.groups.values_mut() {
        group.checkpoint_durable = group.part_index.checkpoint;
        group.silent = true;
    }
    let shared = Arc::new(Shared::new(disk.clone(), options, identity, state));
    let open = match open {
        Some(open) => {
            disk.sync_dir().map_err(Error::io(&open.segment.path, "sync the directory of"))?;
            open
        }
        None => {
            let file = disk.path(&SegmentId(1).file());
            let bytes = shared.options.segment_bytes;
            let spare = take_spare(&shared, 0, 0)?.ok_or(Error::Full { file, bytes })?;
            start_segment(&shared, spare, SegmentId(1), 1, 0)?
        }
    };
    if created {
        // Last: an identity file implies that there is a segment.
        shared.identity.write(&*disk)?;
    }
    shared.append([Item::Opened].into_iter());
    report.took = started.elapsed();
    log_report(&report);
    let log = Log { shared: shared.clone() };
    let recovery = Recovery::new(&shared, report);
    let keeper = Keeper::new(shared.clone());
    Ok(Opened { log, writer: Writer::new(shared, events, open), keeper, recovery })
}

fn log_report(report: &RecoveryReport) {
    if report.cut_bytes > 0 {
        tracing::warn!(
            bytes = report.cut_bytes,
            "the last commit of the log is not complete, as after a crash; it is cut off. If neither process nor machine crashed, check the disk: \
                messages that were acknowledged last may be lost"
        );
    }
    if report.indexes_rebuilt > 0 {
        tracing::warn!(
            segments = report.indexes_rebuilt,
            "indexes of segments were damaged and were made again from their records, which are whole; check the disk"
        );
    }
    tracing::info!(
        segments = report.segments,
        records = report.records,
        bytes = report.bytes,
        took_ms = u64::try_from(report.took.as_millis()).unwrap_or(u64::MAX),
        "log opened"
    );
}

/// Writes the last commit again and syncs it. After a killed process or a failed sync, the data that was read may
/// not be durable. Nothing may be done with it before it is. A sync alone is not enough: the system may believe
/// that it wrote data that it failed to write. Only the last commit can be affected.
fn write_again(open: &OpenSegment, options: &Options) -> Result<(), Error> {
    let segment = &open.segment;
    let mut bytes = vec![0; (open.end - open.commit_at) as usize];
    let read = segment.file.read_at(&mut bytes, open.commit_at);
    read.map_err(Error::io(&segment.path, "read"))?;
    if !bytes.is_empty() && !mutated!(*options, TrustCache) {
        segment.file.write_at(&bytes, open.commit_at).map_err(Error::io(&segment.path, "write"))?;
    }
    segment.file.sync_data().map_err(Error::io(&segment.path, "sync"))
}

fn entropy(options: &Options) -> Result<[u8; 48], Error> {
    if let Some(entropy) = options.entropy {
        return Ok(entropy);
    }
    let mut bytes = [0; 48];
    random(&mut bytes)?;
    Ok(bytes)
}

/// Reads the directory and changes nothing.
pub(crate) fn inspect(
    disk: &dyn Disk,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<DirectoryContents, Error> {
    let names = disk.list().map_err(Error::io(&disk.path(""), "list"))?;
    let identity = Identity::read(disk)?;
    let mut ids: Vec<SegmentId> = names.iter().filter_map(|name| SegmentId::of_file(name)).collect();
    ids.sort_unstable();
    let mut found = DirectoryContents {
        identity,
        state: State::default(),
        open: None,
        report: RecoveryReport { took: Duration::ZERO, ..RecoveryReport::default() },
        leftover: vec![],
        stale_files: names.iter().filter(|name| name.ends_with(".new")).cloned().collect(),
    };
    for name in names.iter().filter(|name| name.starts_with(SPARE) && !name.ends_with(".new")) {
        let number = name[SPARE.len()..].parse().unwrap_or(0);
        found.state.spare_next = found.state.spare_next.max(number);
        match disk.open(name) {
            Ok(file) if file.len().is_ok_and(|length| length == options.segment_bytes) => {
                found.state.spares.push_back(Spare::new(name.clone(), file, options.segment_bytes));
            }
            _ => found.stale_files.push(name.clone()),
        }
    }
    check_identity(disk, &found, &ids)?;
    let Some(&last) = ids.last() else { return Ok(found) };
    if found.identity.is_none() {
        found.stale_files.push(last.file());
        return Ok(found);
    }
    let segment = open_segment(disk, options, last)?;
    let mut floor = segment.header.floor;
    let mut loaded: Vec<Loaded> = vec![];
    let all = ids.iter().filter(|id| **id >= floor).count();
    for id in ids.iter().copied().filter(|id| *id >= floor) {
        let segment = Arc::new(open_segment(disk, options, id)?);
        let next = load(segment, loaded.last(), id == last, options, &mut found.report)?;
        found.report.records += next.index.records();
        loaded.push(next);
        progress(Progress { segments: loaded.len(), segments_all: all, records: found.report.records });
    }
    let floors = loaded.iter().flat_map(|l| &l.index.others).filter(|o| o.kind == Kind::Floor);
    floor = floors.map(|o| SegmentId(o.index)).chain([floor]).max().unwrap_or(floor);
    found.leftover = ids.iter().copied().filter(|id| *id < floor).collect();
    found.state.floor = floor.0;
    found.state.floor_requested = floor.0;
    let mut expected = floor;
    for loaded in loaded.into_iter().filter(|loaded| loaded.segment.id >= floor) {
        let id = loaded.segment.id;
        if id != expected {
            return Err(missing_segment(disk, expected));
        }
        expected = id.next();
        found.report.segments += 1;
        found.report.bytes += loaded.end;
        found.state.segments.insert(id, loaded.segment.clone());
        if mutated!(*options, UnfinishedPartCounts) {
            for run in &loaded.index.others {
                found.state.group(run.group).part_index.count_unfinished();
            }
        }
        if id == last {
            found.open = Some(OpenSegment {
                segment: loaded.segment,
                end: loaded.end,
                index: loaded.index.clone(),
                chain: loaded.chain,
                commit: loaded.commit + 1,
                commit_at: loaded.commit_at,
                sealed: loaded.sealed,
                // Records of a start do not wait.
                is_last: false,
            });
        }
        let mut index = loaded.index;
        if mutated!(*options, ForgetBodies) {
            index.others.retain(|other| other.kind != Kind::Bodies);
        }
        if mutated!(*options, ForgetDrops) {
            index.others.retain(|other| other.kind != Kind::Dropped);
        }
        found.state.replay(id, index);
    }
    check_groups(disk, &found.state)?;
    Ok(found)
}

fn open_segment(disk: &dyn Disk, options: &Options, id: SegmentId) -> Result<Segment, Error> {
    let segment = Segment::open(disk, id)?;
    #[cfg(feature = "trial")]
    let segment = segment.mutate(options);
    #[cfg(not(feature = "trial"))]
    let _: &Options = options;
    Ok(segment)
}

fn missing_segment(disk: &dyn Disk, id: SegmentId) -> Error {
    Error::Missing {
        file: disk.path(&id.file()),
        detail: "segments before and after it are there, or the log says that it is needed".to_owned(),
    }
}

/// Checks that identity and segments belong together.
fn check_identity(disk: &dyn Disk, found: &DirectoryContents, ids: &[SegmentId]) -> Result<(), Error> {
    match (&found.identity, ids) {
        (Some(_), []) => Err(Error::Missing {
            file: disk.path(&SegmentId(1).file()),
            detail: format!("there is an {} but no segment at all", crate::IDENTITY_FILE),
        }),
        (Some(identity), ids) => {
            let last = *ids.last().unwrap_or(&SegmentId(1));
            let segment = Segment::open(disk, last)?;
            if segment.header.log == identity.log {
                return Ok(());
            }
            Err(Error::Foreign { file: segment.path, detail: "it is of another node's log".to_owned() })
        }
        (None, []) => Ok(()),
        (None, [SegmentId(1)]) if half_made(disk)? => Ok(()),
        (None, _) => Err(Error::Missing {
            file: disk.path(crate::IDENTITY_FILE),
            detail: "there are segments of a log, but no file that says which node they belong to".to_owned(),
        }),
    }
}

/// Returns whether the first segment has no records, as after a crash before the identity was written.
fn half_made(disk: &dyn Disk) -> Result<bool, Error> {
    let segment = Segment::open(disk, SegmentId(1))?;
    let mut scan = Scan::new(&segment);
    Ok(scan.next()?.is_none()
        && scan.find_valid(scan.position())?.is_none()
        && segment.read_index()?.is_none())
}

/// Checks that every record that a group needs is there.
fn check_groups(disk: &dyn Disk, state: &State) -> Result<(), Error> {
    for (group, known) in &state.groups {
        if !known.part_index.complete() {
            return Err(Error::Missing {
                file: format!("a part of the log in {}", disk.path("")),
                detail: format!("parts of the checkpoint of {group} are not there"),
            });
        }
        let gaps = gaps(known);
        if !gaps.is_empty() {
            let lost: Vec<_> = gaps
                .iter()
                .map(|(first, last)| Lost { group: *group, first: *first, last: Some(*last) }.to_string())
                .collect();
            return Err(Error::Missing {
                file: format!("a part of the log in {}", disk.path("")),
                detail: format!("without {}, the later entries cannot be applied", lost.join(", ")),
            });
        }
    }
    Ok(())
}

/// Returns the missing indexes among the entries after the checkpoint, except those that a repair marked as lost.
pub(crate) fn gaps(group: &crate::state::Group) -> Vec<(u64, u64)> {
    let mut at = group.part_index.checkpoint.unwrap_or(0);
    let mut gaps = vec![];
    let lost: BTreeMap<u64, u64> = group.part_index.lost.iter().copied().collect();
    while let Some(next) = group.entries.after(at) {
        if next != at + 1 {
            let known = lost.range(..=at + 1).next_back().is_some_and(|(_, last)| *last >= next - 1);
            if !known {
                gaps.push((at + 1, next - 1));
            }
        }
        // Continue at the end of this run.
        at = group.entries.run_end(next);
    }
    gaps
}

/// Removes incomplete files of a crash, and segments before the floor.
fn tidy(disk: &dyn Disk, found: &mut DirectoryContents) -> Result<(), Error> {
    for name in found.stale_files.drain(..) {
        disk.remove(&name).map_err(Error::io(&disk.path(&name), "remove"))?;
    }
    for id in found.leftover.drain(..) {
        let name = id.file();
        disk.remove(&name).and_then(|()| disk.sync_dir()).map_err(Error::io(&disk.path(&name), "remove"))?;
    }
    Ok(())
}
