//! Empty segments: creates them, takes them, and turns one into the next segment of the log.

use std::sync::Arc;

use crate::disk::{Disk, DiskFile, Pause};
use crate::error::{Error, Shortage, is_full};
use crate::id::SegmentId;
use crate::options::mutated;
use crate::segment::{FOOTER, FORMAT, HEADER, Segment, SegmentHeader};
use crate::segment_index::SegmentIndex;
use crate::state::Shared;
use crate::writer::OpenSegment;

/// An empty file that becomes a segment later.
pub(crate) struct Spare {
    pub name: String,
    pub file: Arc<dyn DiskFile>,
    pub bytes: u64,
    /// True when it was the last spare that was ready when it was taken.
    pub is_last: bool,
}

impl Spare {
    pub fn new(name: String, file: Arc<dyn DiskFile>, bytes: u64) -> Self {
        Self { name, file, bytes, is_last: false }
    }
}

/// Takes a spare that is ready, or creates one; `None` when there is no room or no descriptor. On a full disk,
/// `keep_min` of the ready spares stay.
pub(crate) fn take_spare(shared: &Shared, need: u64, keep_min: usize) -> Result<Option<Spare>, Error> {
    let disk = &*shared.disk;
    let whole = (HEADER + FOOTER) as u64 + SegmentIndex::default().encoded_len() + need;
    let bytes = shared.options.segment_bytes.max(whole.next_multiple_of(512));
    let large = bytes > shared.options.segment_bytes;
    if !large {
        let mut state = shared.state();
        let is_kept = state.full.is_some() && state.spares.len() <= keep_min;
        let ready = if is_kept { None } else { state.spares.pop_front() };
        if let Some(ready) = ready {
            let is_last = state.spares.is_empty();
            return Ok(Some(Spare { is_last, ..ready }));
        }
    }
    let name = shared.state().spare_name();
    let mut made = make_spare(disk, &name, bytes, None);
    // A record that is larger than a segment may use the room of the reserve: otherwise it would hold up everything
    // after it.
    while large && made.as_ref().is_err_and(is_full) && release_spare(shared, keep_min)? {
        made = make_spare(disk, &name, bytes, None);
    }
    let shortage = made.as_ref().err().and_then(Shortage::of);
    let mut state = shared.state();
    state.starved = large && shortage == Some(Shortage::Room);
    state.shortage = shortage.unwrap_or_default();
    drop(state);
    match made {
        Ok(file) => Ok(Some(Spare::new(name, file, bytes))),
        Err(_) if shortage.is_some() => Ok(None),
        Err(error) => Err(Error::io(&disk.path(&name), "create")(error)),
    }
}

fn release_spare(shared: &Shared, keep_min: usize) -> Result<bool, Error> {
    let released = {
        let mut state = shared.state();
        if state.spares.len() <= keep_min { None } else { state.spares.pop_front() }
    };
    let Some(Spare { name, .. }) = released else { return Ok(false) };
    shared.disk.remove(&name).map_err(Error::io(&shared.disk.path(&name), "remove"))?;
    Ok(true)
}

/// Creates a spare. A file gets the name of a spare once its size and its zeros are durable; until then a start
/// removes it.
pub(crate) fn make_spare(
    disk: &dyn Disk,
    name: &str,
    bytes: u64,
    pause: Option<&Pause<'_>>,
) -> std::io::Result<Arc<dyn DiskFile>> {
    let beside = format!("{name}.new");
    let file = match pause {
        Some(pause) => disk.create_slowly(&beside, bytes, pause)?,
        None => disk.create(&beside, bytes)?,
    };
    file.sync_data()?;
    disk.rename(&beside, name)?;
    Ok(file)
}

/// Makes the spare the next segment. Its header is durable before it gets the name, and the name is durable before
/// any record is written. So a file with the name of a segment always has a header, and a segment with records has
/// its name.
pub(crate) fn start_segment(
    shared: &Shared,
    spare: Spare,
    id: SegmentId,
    commit: u64,
    chain: u32,
) -> Result<OpenSegment, Error> {
    let disk = &*shared.disk;
    let (name, path) = (id.file(), disk.path(&id.file()));
    let floor = SegmentId(shared.state().floor.max(1));
    let sectors = (spare.bytes / 512) as u32;
    let header = SegmentHeader {
        format: FORMAT,
        log: shared.identity.log,
        segment: id,
        commit,
        floor,
        chain,
        sectors,
    };
    spare.file.write_at(&header.encode(), 0).map_err(Error::io(&path, "write"))?;
    if !mutated!(shared.options, SkipHeaderSync) {
        spare.file.sync_data().map_err(Error::io(&path, "sync"))?;
    }
    disk.rename(&spare.name, &name).map_err(Error::io(&path, "create"))?;
    if !mutated!(shared.options, SkipDirectorySync) {
        disk.sync_dir().map_err(Error::io(&path, "sync the directory of"))?;
    }
    let segment = Segment::new(header, spare.file, path, spare.bytes);
    #[cfg(feature = "trial")]
    let segment = segment.mutate(&shared.options);
    let segment = Arc::new(segment);
    shared.state().segments.insert(id, segment.clone());
    Ok(OpenSegment {
        segment,
        end: HEADER as u64,
        index: SegmentIndex::default(),
        chain,
        commit,
        commit_at: HEADER as u64,
        sealed: false,
        is_last: spare.is_last,
    })
}
