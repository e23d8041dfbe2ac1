//! Scenarios that random trials reach rarely, played step by step.

use std::sync::Arc;

use super::runner::no_segment_is_missing;
use crate::fault::{FaultDisk, FaultPlan};
use crate::id::GroupId;
use crate::{Commit, Error, Mutation, Opened, Options, Record, SegmentId, open};

/// A scenario that the log has to survive.
pub struct Scenario {
    pub name: &'static str,
    play: fn(Option<Mutation>) -> Result<(), String>,
}

impl Scenario {
    pub const ALL: [Self; 5] = [
        Self { name: "a segment of a copy that went another way", play: diverged },
        Self { name: "the power goes while segments are freed", play: freed },
        Self { name: "a part is replaced while it is to be moved", play: replaced },
        Self { name: "the power goes while a group is dropped and begins again", play: dropped },
        Self { name: "the segment has no room for a drop", play: no_room_for_drop },
    ];

    /// Plays the scenario.
    ///
    /// # Errors
    /// A sentence that describes the error, when the log broke a guarantee.
    pub fn play(&self, mutation: Option<Mutation>) -> Result<(), String> {
        (self.play)(mutation).map_err(|why| format!("{}: {why}", self.name))
    }
}

const GROUP: GroupId = GroupId(1);
const SEGMENT: u64 = 4096;

fn start(disk: &FaultDisk, mutation: Option<Mutation>) -> Result<Opened, Error> {
    let options = Options {
        segment_bytes: SEGMENT,
        reserve_bytes: 0,
        entropy: Some([1; 48]),
        mutation,
        ..Options::default()
    };
    open(Arc::new(disk.clone()), options, Box::new(()), &mut |_| {})
}

fn entry(index: u64, byte: u8) -> Record {
    Record::Entry { group: GROUP, term: 1, index, payload: vec![byte; 1000].into() }
}

fn part(checkpoint: u64, bytes: &[u8]) -> Record {
    Record::Part { group: GROUP, part: 1, checkpoint, payload: bytes.into() }
}

fn done(checkpoint: u64) -> Record {
    Record::Done { group: GROUP, checkpoint }
}

fn drain(opened: &mut Opened) -> Result<(), Error> {
    while matches!(opened.writer.commit_once()?, Commit::Wrote { .. }) {}
    Ok(())
}

fn fill(opened: &mut Opened, indexes: std::ops::Range<u64>, byte: u8) -> Result<(), Error> {
    for index in indexes {
        opened.log.append([entry(index, byte)]);
        drain(opened)?;
    }
    Ok(())
}

/// Answers for the group that it needs no entry that a checkpoint covers.
fn give_up_segments(opened: &Opened) {
    for segment in 1..=50 {
        // The log refuses where entries after the checkpoint are in the segment.
        let _ = opened.log.vacated(GROUP, SegmentId(segment));
    }
}

/// A segment of another copy has the right name, the right log, and whole records with the right numbers. Only the
/// checksums of the previous record and segment show that it belongs to another timeline.
fn diverged(mutation: Option<Mutation>) -> Result<(), String> {
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
        Ok(_) => Err("a segment of another timeline is taken for this log's".to_owned()),
    }
}

/// A freed segment is renamed and used again. A crash must not undo the first rename and keep a later one. The file
/// must not have another header under its old name.
fn freed(mutation: Option<Mutation>) -> Result<(), String> {
    for seed in 0..3 {
        let whole = freed_until(seed, None, mutation)?;
        for cut in 1..=whole {
            freed_until(seed, Some(cut), mutation)
                .map_err(|why| format!("seed {seed}, power cut at operation {cut}: {why}"))?;
        }
    }
    Ok(())
}

/// Returns the number of operations of the disk.
fn freed_until(seed: u64, cut_at: Option<u64>, mutation: Option<Mutation>) -> Result<u64, String> {
    let disk = FaultDisk::new(seed);
    disk.set_plan(FaultPlan { cut_at, ..FaultPlan::default() });
    let (lived, operations) = (free_segments(&disk, mutation), disk.operations());
    if cut_at.is_none() {
        let freed = lived.map_err(|error| error.to_string())?;
        assert!(freed > 8 || mutation.is_some(), "the scenario needs freed segments: {freed}");
    }
    let disk = disk.crash();
    no_segment_is_missing(&disk)?;
    start(&disk, mutation).map_err(|error| format!("the log does not open: {error}"))?;
    Ok(operations)
}

fn free_segments(disk: &FaultDisk, mutation: Option<Mutation>) -> Result<u64, Error> {
    let mut opened = start(disk, mutation)?;
    fill(&mut opened, 1..40, b'x')?;
    opened.log.append([part(39, b"part"), done(39)]);
    drain(&mut opened)?;
    // With room on the disk, several segments are freed before the next one is begun.
    for _ in 0..20 {
        opened.keeper.keep();
        give_up_segments(&opened);
        opened.writer.commit_once()?;
    }
    // On a full disk each freed segment is used at once.
    disk.set_capacity(Some(0));
    let mut last = 39;
    for _ in 0..30 {
        if opened.log.stats().spares > 0 {
            fill(&mut opened, last + 1..last + 3, b'y')?;
            last += 2;
            opened.log.append([part(last, b"newer"), done(last)]);
        }
        drain(&mut opened)?;
        opened.keeper.keep();
        give_up_segments(&opened);
    }
    Ok(opened.log.stats().freed)
}

/// A checkpoint without the part is queued before the move of the part: the move must not come after it. Otherwise
/// the part returns once the log frees the segment that records its removal.
fn replaced(mutation: Option<Mutation>) -> Result<(), String> {
    let disk = FaultDisk::new(1);
    replace_part(&disk, mutation).map_err(|error| error.to_string())?;
    let opened = start(&disk.kill(), mutation).map_err(|error| format!("the log does not open: {error}"))?;
    let mut groups = opened.recovery.groups.iter();
    let found = groups.find(|found| found.group == GROUP).ok_or("the group is not there")?;
    match found.parts().find(|part| part.as_ref().is_ok_and(|(part, _)| *part == 1)) {
        None => Ok(()),
        Some(_) => Err("a part is there that is not in the checkpoint".to_owned()),
    }
}

fn replace_part(disk: &FaultDisk, mutation: Option<Mutation>) -> Result<(), Error> {
    let mut opened = start(disk, mutation)?;
    opened.log.append([entry(1, b'x'), part(1, &[b'p'; 2000]), done(1)]);
    drain(&mut opened)?;
    let mut next = 2;
    let mut fill_to = |opened: &mut Opened, segments: u64| {
        while opened.log.stats().segments as u64 + opened.log.stats().freed < segments {
            fill(opened, next..next + 1, b'x')?;
            next += 1;
        }
        Ok::<u64, Error>(next - 1)
    };
    // The rest of the open segment is enough for the part without payload, not for the moved one.
    let last = fill_to(&mut opened, 6)?;
    fill(&mut opened, last + 1..last + 2, b'x')?;
    opened.keeper.keep();
    give_up_segments(&opened);
    opened.log.append([part(last, b"")]);
    opened.keeper.keep();
    drain(&mut opened)?;
    let stats = opened.log.stats();
    let is_moved = stats.parts_moved > 0 && stats.freed == 0;
    assert!(is_moved || mutation.is_some(), "the scenario needs a move that comes late: {stats:?}");
    opened.log.append([done(last)]);
    drain(&mut opened)?;
    let mut last = last + 1;
    // Up to the segment that records the removal of the part, and no further.
    for _ in 0..40 {
        if opened.log.stats().freed == 6 {
            break;
        }
        fill(&mut opened, last + 1..last + 4, b'x')?;
        last += 3;
        opened.log.append([Record::Part {
            group: GROUP,
            part: 2,
            checkpoint: last,
            payload: (*b"other").into(),
        }]);
        opened.log.append([done(last)]);
        drain(&mut opened)?;
        opened.keeper.keep();
        give_up_segments(&opened);
    }
    let freed = opened.log.stats().freed;
    assert!(freed == 6 || mutation.is_some(), "the scenario needs freed segments: {freed}");
    Ok(())
}

/// A power cut leaves what the group had before the drop, as far as that was reported, or what followed the drop. The
/// segments become free without an answer of the group.
fn dropped(mutation: Option<Mutation>) -> Result<(), String> {
    for seed in 0..3 {
        let whole = dropped_until(seed, None, mutation)?;
        for cut in 1..=whole {
            dropped_until(seed, Some(cut), mutation)
                .map_err(|why| format!("seed {seed}, power cut at operation {cut}: {why}"))?;
        }
    }
    Ok(())
}

/// Returns the number of operations of the disk.
fn dropped_until(seed: u64, cut_at: Option<u64>, mutation: Option<Mutation>) -> Result<u64, String> {
    let disk = FaultDisk::new(seed);
    disk.set_plan(FaultPlan { cut_at, ..FaultPlan::default() });
    let mut reported = Reported::default();
    let lived = drop_and_begin_again(&disk, mutation, &mut reported);
    let operations = disk.operations();
    if cut_at.is_none() {
        lived.map_err(|error| error.to_string())?;
    }
    let opened = start(&disk.crash(), mutation).map_err(|error| format!("the log does not open: {error}"))?;
    let found = opened.recovery.groups.iter().find(|found| found.group == GROUP);
    let mut entries = vec![];
    for entry in found.into_iter().flat_map(|found| found.entries()) {
        let entry = entry.map_err(|error| error.to_string())?;
        entries.push((entry.index, entry.payload[0]));
    }
    let parts = found.map_or(0, |found| found.parts_count());
    let checkpoint = found.and_then(|found| found.checkpoint);
    // The earlier group has a checkpoint at 5 and kept bodies of entry 2. The later one has neither.
    let of_earlier = entries.iter().all(|(_, byte)| *byte == b'1');
    let bodies = opened.log.read_bodies(GROUP, 2);
    let is_kept = matches!(&bodies, Ok(crate::Bodies::Kept(bodies)) if bodies[0] == b'1');
    if !reported.dropped && of_earlier && (checkpoint.is_some() || !entries.is_empty()) {
        let last = found.map_or(0, |found| found.last);
        let is_whole = last >= reported.last && checkpoint >= reported.checkpoint;
        return if is_whole { Ok(operations) } else { Err(format!("{last} entries before the drop")) };
    }
    let last = entries.len() as u64;
    let expected: Vec<(u64, u8)> = (1..=last).map(|index| (index, b'2')).collect();
    if entries != expected || checkpoint.is_some() || parts > 0 || is_kept {
        return Err(format!(
            "entries {entries:?}, checkpoint {checkpoint:?}, {parts} parts, bodies {bodies:?}"
        ));
    }
    if reported.dropped && last < reported.last {
        return Err(format!("{} entries after the drop, and {last} are there", reported.last));
    }
    Ok(operations)
}

#[derive(Default)]
struct Reported {
    dropped: bool,
    last: u64,
    checkpoint: Option<u64>,
}

fn drop_and_begin_again(
    disk: &FaultDisk,
    mutation: Option<Mutation>,
    reported: &mut Reported,
) -> Result<(), Error> {
    let mut opened = start(disk, mutation)?;
    fill(&mut opened, 1..7, b'1')?;
    opened.log.append([part(5, b"part"), done(5)]);
    opened.log.append_bodies(GROUP, vec![(2, (*b"1").into())]);
    drain(&mut opened)?;
    (reported.last, reported.checkpoint) = (6, Some(5));
    // The queue has records of the group, also of an unfinished checkpoint.
    opened.log.append([entry(7, b'1'), part(7, b"other")]);
    opened.log.append_bodies(GROUP, vec![(3, (*b"1").into())]);
    opened.log.drop_group(GROUP);
    opened.log.append([entry(1, b'2')]);
    opened.writer.commit_once()?;
    *reported = Reported { dropped: true, ..Reported::default() };
    drain(&mut opened)?;
    reported.last = 1;
    for index in 2..5 {
        fill(&mut opened, index..index + 1, b'2')?;
        reported.last = index;
    }
    // Another group fills the log, so that the segments of the earlier group are freed.
    let other = GroupId(2);
    for index in 1..=30 {
        opened.log.append([Record::Entry { group: other, term: 1, index, payload: vec![b'o'; 1000].into() }]);
        drain(&mut opened)?;
        opened.keeper.keep();
        drain(&mut opened)?;
    }
    assert!(opened.log.stats().freed > 0 || mutation.is_some(), "the scenario needs freed segments");
    Ok(())
}

/// Two groups are dropped, and the segment has room for one of the two records and for a smaller one. Nothing that
/// follows a drop is written before it.
fn no_room_for_drop(mutation: Option<Mutation>) -> Result<(), String> {
    for filler in (0..900).step_by(8) {
        let disk = FaultDisk::new(1);
        let found = drop_two(&disk, filler, mutation).map_err(|error| error.to_string())?;
        if found != [(1, b'2')] {
            return Err(format!("{filler} bytes: the group that was dropped has {found:?}"));
        }
    }
    Ok(())
}

/// Returns the entries of the group after a start.
fn drop_two(disk: &FaultDisk, filler: usize, mutation: Option<Mutation>) -> Result<Vec<(u64, u8)>, Error> {
    let small =
        |index: u64, byte: u8| Record::Entry { group: GROUP, term: 1, index, payload: vec![byte; 1].into() };
    let mut opened = start(disk, mutation)?;
    fill(&mut opened, 1..4, b'1')?;
    opened.log.append([Record::Entry {
        group: GROUP,
        term: 1,
        index: 4,
        payload: vec![b'1'; filler].into(),
    }]);
    drain(&mut opened)?;
    opened.log.drop_group(GroupId(2));
    opened.log.drop_group(GROUP);
    opened.log.append([small(1, b'2')]);
    drain(&mut opened)?;
    let opened = start(&disk.kill(), mutation)?;
    let found = opened.recovery.groups.iter().find(|found| found.group == GROUP);
    let entries = found.into_iter().flat_map(|found| found.entries());
    entries.map(|entry| entry.map(|entry| (entry.index, entry.payload[0]))).collect()
}
