//! Reads one segment when a log is opened: its index, or its records up to their end.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Corrupt, Error, Lost};
use crate::options::{Options, mutated};
use crate::record::Kind;
use crate::recovery::RecoveryReport;
use crate::scan::Scan;
use crate::segment::Segment;
use crate::segment_index::SegmentIndex;

/// A segment and the locations of its records.
pub(crate) struct Loaded {
    pub segment: Arc<Segment>,
    pub index: SegmentIndex,
    /// Offset at which the records end.
    pub end: u64,
    pub chain: u32,
    /// Number of the last commit.
    pub commit: u64,
    /// Offset at which the last commit begins, in the last segment.
    pub commit_at: u64,
    pub sealed: bool,
}

/// Reads the index of a full segment, or all records of the last one.
pub(crate) fn load(
    segment: Arc<Segment>,
    before: Option<&Loaded>,
    last: bool,
    options: &Options,
    report: &mut RecoveryReport,
) -> Result<Loaded, Error> {
    if let Some(before) = before
        && before.segment.id.next() == segment.id
    {
        if before.segment.header.log != segment.header.log {
            let detail = "it is of another node's log".to_owned();
            return Err(Error::Foreign { file: segment.path.clone(), detail });
        }
        let chained = before.chain == segment.header.chain || mutated!(*options, NoChain);
        if !chained || before.commit + 1 != segment.header.commit {
            return Err(segment.corrupt(
                0,
                format!("it does not continue {}: one of the two is of another time", before.segment.id),
            ));
        }
    }
    let loaded = match segment.read_index()? {
        Some((footer, index)) => Loaded {
            end: footer.end,
            chain: footer.chain,
            commit: footer.commit,
            commit_at: footer.end,
            sealed: true,
            index,
            segment,
        },
        None if last => scan_open(segment, options, report)?,
        None => {
            report.indexes_rebuilt += 1;
            scan_full(segment, options)?
        }
    };
    loaded.segment.set_end(loaded.end);
    Ok(loaded)
}

/// Collects the records of a segment into an index, up to the first that does not follow.
fn collect(scan: &mut Scan) -> Result<SegmentIndex, Error> {
    let mut index = SegmentIndex::default();
    while let Some(found) = scan.next()? {
        index.push(&found.header, found.offset, scan.payload(&found)?);
    }
    Ok(index)
}

fn scan_open(segment: Arc<Segment>, options: &Options, report: &mut RecoveryReport) -> Result<Loaded, Error> {
    let checks = (!mutated!(*options, NoChecksum), !mutated!(*options, NoChain));
    let mut scan = Scan::new(&segment).with_checks(checks.0, checks.1);
    let whole = collect(&mut scan)?;
    let reached = scan.position();
    let mut tail = scan.tail()?;
    if let Some(offset) = tail.later.take()
        && !mutated!(*options, CutTooMuch)
    {
        let detail = format!("a record is bad here, and one of a later commit is whole at offset {offset}");
        let lost = lost_between(&mut scan, &whole, reached)?;
        let file = segment.path.clone();
        return Err(Error::Corrupt(Box::new(Corrupt {
            file,
            segment: segment.id,
            offset: reached,
            detail,
            lost,
        })));
    }
    if mutated!(*options, KeepTornCommit) {
        (tail.cut, tail.commit) = (reached, tail.commit + 1);
    }
    report.cut_bytes = tail.torn_end - tail.cut;
    // Scan again up to the cut: the records after it are not part of the log.
    let mut scan = Scan::new(&segment).with_checks(checks.0, checks.1);
    let mut index = SegmentIndex::default();
    let mut chain = segment.header.chain;
    while scan.position() < tail.cut
        && let Some(found) = scan.next()?
    {
        index.push(&found.header, found.offset, scan.payload(&found)?);
        chain = scan.chain();
    }
    let commit_at = scan.commit_at();
    Ok(Loaded { index, end: tail.cut, chain, commit: tail.commit - 1, commit_at, sealed: false, segment })
}

/// Returns the entries between the whole records before a bad offset and those after it.
fn lost_between(scan: &mut Scan, before: &SegmentIndex, from: u64) -> Result<Vec<Lost>, Error> {
    let last = |run: &crate::segment_index::Run| (run.group, run.first + run.offsets.len() as u64 - 1);
    let mut known: BTreeMap<_, u64> = before.runs.iter().map(last).collect();
    let (mut lost, mut at) = (vec![], from);
    while let Some((found, header)) = scan.find_valid(at)? {
        at = found + header.size();
        if header.kind == Kind::Entry
            && let Some(last) = known.remove(&header.group)
            && last + 1 < header.index
        {
            lost.push(Lost { group: header.group, first: last + 1, last: Some(header.index - 1) });
        }
    }
    Ok(lost)
}

/// Reads all records of a full segment whose index is damaged. All of them have to be whole.
fn scan_full(segment: Arc<Segment>, options: &Options) -> Result<Loaded, Error> {
    let checks = (!mutated!(*options, NoChecksum), !mutated!(*options, NoChain));
    let mut scan = Scan::new(&segment).with_checks(checks.0, checks.1);
    let index = collect(&mut scan)?;
    let (end, chain, tail) = (scan.position(), scan.chain(), scan.tail()?);
    if tail.cut != end || tail.later.is_some() {
        return Err(segment.corrupt(end, "a record is bad here, in a segment that was full"));
    }
    Ok(Loaded { index, end, chain, commit: tail.commit - 1, commit_at: end, sealed: true, segment })
}
