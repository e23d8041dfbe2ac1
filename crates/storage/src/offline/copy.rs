//! Copies a whole log: the log of a running node as a backup, or a backup back.

use crate::disk::{Disk, DiskFile};
use crate::error::Error;
use crate::id::SegmentId;
use crate::identity::{IDENTITY_FILE, Identity};
use crate::log::Log;
use crate::open::inspect;
use crate::options::Options;
use crate::segment::Pin;

/// Result of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    pub segments: usize,
    /// Bytes of the segment files.
    pub bytes: u64,
}

/// Bytes per copy step.
const PIECE: usize = 1 << 20;

impl Log {
    /// Copies the log to an empty disk while the log is in use. The copy holds what is durable now, as a crash at
    /// this moment would leave it. Copied segments are not freed during the copy. Blocks until the copy is
    /// complete, so reactors must not call it. `progress` receives the numbers of copied and of all segments after
    /// each segment. `check` is called when all segments are copied: its error says why the copy must not be used.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is a log at the destination, or with the error of `check`; [`Error::Io`]. The
    /// destination has no identity then, so it is not a log.
    pub fn backup(
        &self,
        to: &dyn Disk,
        progress: &mut dyn FnMut(usize, usize),
        check: &dyn Fn() -> Result<(), String>,
    ) -> Result<CopyReport, Error> {
        let segments: Vec<(Pin, u64)> = {
            let state = self.shared.state();
            let last = state.open_segment().map(|segment| segment.id);
            let end = |s: &crate::segment::Segment| if Some(s.id) == last { s.end() } else { s.bytes };
            state.segments.values().map(|segment| (segment.pin(), end(segment))).collect()
        };
        copy_segments(&segments, to, &self.shared.identity, progress, check)
    }
}

/// Copies a log that no node uses to an empty disk.
///
/// # Errors
/// The errors of [`open`](crate::open) for the source, and those of [`Log::backup`] for the destination.
pub fn copy(
    from: &dyn Disk,
    to: &dyn Disk,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<CopyReport, Error> {
    let found = inspect(from, &Options::default(), &mut |_| {})?;
    let Some(identity) = found.identity else {
        return Err(Error::Missing {
            file: from.path(IDENTITY_FILE),
            detail: "there is no log here".to_owned(),
        });
    };
    let segments: Vec<(Pin, u64)> =
        found.state.segments.values().map(|segment| (segment.pin(), segment.bytes)).collect();
    copy_segments(&segments, to, &identity, progress, &|| Ok(()))
}

/// Verifies every record of a backup and copies it to an empty disk, from which a node can start.
///
/// # Errors
/// [`Error::Invalid`] with the problem when the backup is not whole; otherwise the errors of [`copy`].
pub fn restore(
    from: &dyn Disk,
    to: &dyn Disk,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<CopyReport, Error> {
    refuse_log(to)?;
    let report = super::check(from, &mut |_| {})?;
    if let Some(problem) = report.problems.first() {
        return Err(Error::Invalid(format!("the backup is not whole: {problem}")));
    }
    copy(from, to, progress)
}

/// Fails when the destination has a log.
pub(crate) fn refuse_log(to: &dyn Disk) -> Result<(), Error> {
    let names = to.list().map_err(Error::io(&to.path(""), "list"))?;
    match names.iter().find(|name| *name == IDENTITY_FILE || SegmentId::of_file(name).is_some()) {
        Some(name) => Err(Error::Invalid(format!(
            "{} is there already: give a directory that is empty, or move that log away",
            to.path(name)
        ))),
        None => Ok(()),
    }
}

fn copy_segments(
    segments: &[(Pin, u64)],
    to: &dyn Disk,
    identity: &Identity,
    progress: &mut dyn FnMut(usize, usize),
    check: &dyn Fn() -> Result<(), String>,
) -> Result<CopyReport, Error> {
    refuse_log(to)?;
    let mut report = CopyReport::default();
    for (segment, end) in segments {
        let name = segment.id.file();
        let path = to.path(&name);
        let file = to.create(&name, segment.bytes).map_err(Error::io(&path, "create"))?;
        copy_file(segment, &*file, *end, &path)?;
        file.sync_data().map_err(Error::io(&path, "sync"))?;
        report.segments += 1;
        report.bytes += segment.bytes;
        progress(report.segments, segments.len());
    }
    to.sync_dir().map_err(Error::io(&to.path(""), "sync"))?;
    check().map_err(Error::Invalid)?;
    // Written last: an incomplete copy has no identity and is not taken for a log.
    identity.copied()?.write(to)?;
    Ok(report)
}

fn copy_file(from: &Pin, to: &dyn DiskFile, end: u64, path: &str) -> Result<(), Error> {
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < end {
        let bytes = &mut piece[..PIECE.min((end - at) as usize)];
        from.file.read_at(bytes, at).map_err(Error::io(&from.path, "read"))?;
        to.write_at(bytes, at).map_err(Error::io(path, "write"))?;
        at += bytes.len() as u64;
    }
    Ok(())
}
