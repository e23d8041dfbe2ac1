//! Verifies every record of a log and collects its figures.

use crate::disk::Disk;
use crate::error::Error;
use crate::id::SegmentId;
use crate::identity::Identity;
use crate::open::inspect;
use crate::options::Options;
use crate::scan::Scan;
use crate::segment::{SPARE, Segment};
use crate::segment_index::SegmentIndex;
use crate::stats::GroupStats;

/// Contents of a directory, as far as opening it reads them.
#[derive(Clone, Debug)]
pub struct OfflineStats {
    pub identity: Option<Identity>,
    /// First and last segment, if there are any.
    pub segments: Option<(SegmentId, SegmentId)>,
    /// Bytes of the segment files, and bytes of the records in them.
    pub bytes: u64,
    pub record_bytes: u64,
    pub records: u64,
    /// Number of files of empty segments, and their bytes.
    pub spares: usize,
    pub spare_bytes: u64,
    /// Bytes of an incomplete last commit: the next start cuts it.
    pub torn_bytes: u64,
    pub groups: Vec<GroupStats>,
}

/// Result for one segment, with every record read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    pub segment: SegmentId,
    pub file: String,
    pub records: u64,
    pub record_bytes: u64,
    /// Description of the damage, if any.
    pub problem: Option<String>,
}

/// Result of [`check`].
#[derive(Clone, Debug)]
pub struct CheckReport {
    /// Segments in the order of the log.
    pub segments: Vec<SegmentReport>,
    /// Figures that a start would find; `None`: a start would fail, and the first of `problems` says why.
    pub stats: Option<OfflineStats>,
    /// Descriptions of all problems, one sentence each; empty: the log is whole.
    pub problems: Vec<String>,
}

/// Returns figures from the indexes of full segments and the records of the last one. Changes nothing.
///
/// # Errors
/// The errors of [`open`](crate::open).
pub fn stats(disk: &dyn Disk) -> Result<OfflineStats, Error> {
    let found = inspect(disk, &Options::default(), &mut |_| {})?;
    let state = &found.state;
    let ends = state.segments.keys().next().zip(state.segments.keys().next_back());
    let spares: Vec<u64> = spare_files(disk)?;
    Ok(OfflineStats {
        segments: ends.map(|(first, last)| (*first, *last)),
        bytes: state.total_bytes(),
        record_bytes: found.report.bytes,
        records: found.report.records,
        spares: spares.len(),
        spare_bytes: spares.iter().sum(),
        torn_bytes: found.report.cut_bytes,
        groups: state.group_stats(),
        identity: found.identity,
    })
}

fn spare_files(disk: &dyn Disk) -> Result<Vec<u64>, Error> {
    let names = disk.list().map_err(Error::io(&disk.path(""), "list"))?;
    names
        .iter()
        .filter(|name| name.starts_with(SPARE))
        .map(|name| disk.open(name).and_then(|file| file.len()).map_err(Error::io(&disk.path(name), "read")))
        .collect()
}

/// Reads every record of every segment and reports all problems. Changes nothing.
///
/// # Errors
/// Fails only when the directory cannot be read: damage is in the report.
pub fn check(disk: &dyn Disk, progress: &mut dyn FnMut(&SegmentReport)) -> Result<CheckReport, Error> {
    let names = disk.list().map_err(Error::io(&disk.path(""), "list"))?;
    let mut ids: Vec<SegmentId> = names.iter().filter_map(|name| SegmentId::of_file(name)).collect();
    ids.sort_unstable();
    let mut problems = vec![];
    let stats = stats(disk).map_err(|error| problems.push(error.to_string())).ok();
    let first = stats.as_ref().and_then(|stats| stats.segments).map_or(SegmentId(0), |(first, _)| first);
    let mut segments = vec![];
    for id in ids.iter().copied().filter(|id| *id >= first) {
        let report = match Segment::open(disk, id) {
            Ok(segment) => check_segment(&segment, Some(&id) == ids.last())?,
            Err(error) => SegmentReport {
                segment: id,
                file: disk.path(&id.file()),
                records: 0,
                record_bytes: 0,
                problem: Some(error.to_string()),
            },
        };
        progress(&report);
        if let Some(problem) = &report.problem
            && !problems.contains(problem)
        {
            problems.push(problem.clone());
        }
        segments.push(report);
    }
    Ok(CheckReport { segments, stats, problems })
}

fn check_segment(segment: &Segment, last: bool) -> Result<SegmentReport, Error> {
    let mut scan = Scan::new(segment);
    let mut index = SegmentIndex::default();
    while let Some(found) = scan.next()? {
        index.push(&found.header, found.offset, scan.payload(&found)?);
    }
    let (end, chain) = (scan.position(), scan.chain());
    let sealed = segment.read_index()?;
    let tail = scan.tail()?;
    let bad = |offset: u64, what: &str| Some(segment.corrupt(offset, what).to_string());
    let problem = match &sealed {
        Some((footer, _)) if footer.end != end || footer.chain != chain => {
            bad(end, "a record is bad here, in a segment that was full")
        }
        Some((_, stored)) if stored.runs != index.runs || stored.others != index.others => {
            bad(end, "the index is not that of the records")
        }
        None if !last => {
            bad(segment.bytes - 64, "the index of a full segment is damaged; a start makes it again")
        }
        None => tail.later.and_then(|_| bad(end, "a record is bad here, and one of a later commit is whole")),
        Some(_) => None,
    };
    Ok(SegmentReport {
        segment: segment.id,
        file: segment.path.clone(),
        records: index.records(),
        record_bytes: end - crate::segment::HEADER as u64,
        problem,
    })
}

impl CheckReport {
    /// Returns whether there are no problems.
    #[must_use]
    pub fn whole(&self) -> bool {
        self.problems.is_empty()
    }
}
