//! Two copies of one log that went different ways, and a segment of one of them among those of the other.

use std::sync::Arc;

use crate::fault::FaultDisk;
use crate::id::GroupId;
use crate::{Commit, Error, Mutation, Opened, Options, Record, SegmentId, open};

fn start(disk: &FaultDisk, mutation: Option<Mutation>) -> Result<Opened, Error> {
    let options = Options {
        segment_bytes: 4096,
        reserve_bytes: 0,
        entropy: Some([1; 48]),
        mutation,
        ..Options::default()
    };
    open(Arc::new(disk.clone()), options, Box::new(()), &mut |_| {})
}

fn fill(opened: &mut Opened, indexes: std::ops::Range<u64>, byte: u8) -> Result<(), Error> {
    for index in indexes {
        let payload = vec![byte; 1000].into();
        opened.log.append([Record::Entry { group: GroupId(1), term: 1, index, payload }]);
        while opened.writer.commit_once()? != Commit::Idle {}
    }
    Ok(())
}

/// A segment of the other copy has the right name, the right log, whole records with the right numbers: only the checksums that each
/// record and each segment keeps of the one before tell that it is of another time.
///
/// # Errors
/// When the log does not notice.
pub fn diverged(mutation: Option<Mutation>) -> Result<(), String> {
    let failed = |error: Error| error.to_string();
    let one = FaultDisk::new(1);
    fill(&mut start(&one, mutation).map_err(failed)?, 1..5, b'=').map_err(failed)?;
    let (one, other) = (one.kill(), one.kill());
    for (disk, byte) in [(&one, b'1'), (&other, b'2')] {
        fill(&mut start(disk, mutation).map_err(failed)?, 5..20, byte).map_err(failed)?;
    }
    let name = SegmentId(4).file();
    let segment = other.contents(&name).ok_or("the other copy has the segment")?;
    let mixed = one.kill();
    mixed.put(&name, &segment);
    match start(&mixed, mutation) {
        Err(error) if error.is_damage() => Ok(()),
        Err(error) => Err(format!("it is refused for another reason: {error}")),
        Ok(_) => Err("a segment of another time is taken for this log's".to_owned()),
    }
}
