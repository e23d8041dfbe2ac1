//! Tests of the log on a disk in memory and in a directory: appended records are durable when that is reported, and
//! are read back unchanged.

mod support;

use std::sync::Arc;

use storage::fault::{FaultDisk, FaultPlan};
use storage::{
    AfterDrop, Bodies, Commit, Disk as _, Error, GroupId, Identity, Opened, Options, RealDisk, open, spawn,
};
use support::{EventRecorder, bodies, done, drain, entries, entry, open_on, options, part, parts, settle};

#[test]
fn an_entry_reported_durable_survives_a_power_cut() {
    let disk = FaultDisk::new(1);
    let (mut opened, recorder) = open_on(&disk);
    opened.log.append([entry(1, 1, b"one"), entry(2, 1, b"other"), entry(1, 2, b"")]);
    assert_eq!(recorder.durable(1), 0, "nothing is durable by being appended");
    drain(&mut opened);
    assert_eq!((recorder.durable(1), recorder.durable(2)), (2, 1));
    assert_eq!(opened.log.read(GroupId(1), 1).expect("an entry").as_ref(), b"one");
    let (opened, _) = open_on(&disk.crash());
    assert_eq!(entries(&opened, 1), [(1, b"one".to_vec()), (2, vec![])]);
    assert_eq!(entries(&opened, 2), [(1, b"other".to_vec())]);
    assert_eq!(opened.recovery.report.cut_bytes, 0);
}

#[test]
fn the_log_continues_over_many_segments_and_starts() {
    let mut disk = FaultDisk::new(2);
    let payload = |index: u64| vec![index as u8; (index * 37 % 700) as usize];
    for start in 0..5 {
        let (mut opened, _) = open_on(&disk);
        for index in start * 40 + 1..=start * 40 + 40 {
            opened.log.append([entry(1, index, &payload(index))]);
            if index % 3 == 0 {
                drain(&mut opened);
            }
        }
        drain(&mut opened);
        disk = disk.crash();
    }
    let (opened, _) = open_on(&disk);
    let found = entries(&opened, 1);
    assert_eq!(found, (1..=200).map(|index| (index, payload(index))).collect::<Vec<_>>());
    assert!(opened.recovery.report.segments > 15, "{:?}", opened.recovery.report);
    for index in 1..=200 {
        assert_eq!(opened.log.read(GroupId(1), index).expect("an entry").as_ref(), payload(index));
    }
    assert!(matches!(opened.log.read(GroupId(1), 201), Err(Error::NotFound { .. })));
}

#[test]
fn a_range_of_entries_is_read_up_to_its_end_or_to_a_number_of_bytes() {
    let (mut opened, _) = open_on(&FaultDisk::new(6));
    let payload = |index: u64| vec![index as u8; (index * 37 % 700) as usize];
    let group = GroupId(1);
    opened.log.append((1..=100).flat_map(|index| [entry(1, index, &payload(index)), entry(2, index, b"x")]));
    drain(&mut opened);
    opened.log.append([entry(1, 101, b"queued")]);
    let read = |first, last, bytes_max| {
        let read = opened.log.read_range(group, first, last, bytes_max)?;
        Ok::<_, Error>(
            read.into_iter().map(|entry| (entry.index, entry.payload.to_vec())).collect::<Vec<_>>(),
        )
    };
    let all =
        |range: std::ops::RangeInclusive<u64>| range.map(|index| (index, payload(index))).collect::<Vec<_>>();
    assert_eq!(read(1, 100, usize::MAX).expect("all are durable"), all(1..=100));
    assert_eq!(read(7, 7, usize::MAX).expect("one entry"), all(7..=7));
    assert_eq!(read(40, 60, 0).expect("at least one entry"), all(40..=40));
    // Entries 10 and 11 have 370 and 407 bytes.
    assert_eq!(read(10, 100, 371).expect("two entries"), all(10..=11));
    assert!(matches!(read(100, 101, 1), Err(Error::NotFound { index: 101, .. })));
    assert!(matches!(opened.log.read_range(GroupId(3), 1, 1, 1), Err(Error::NotFound { .. })));
}

/// A caller that reads the rest again does not keep the disk from others for long.
#[test]
fn a_read_of_entries_that_are_far_from_each_other_ends_early() {
    let disk = FaultDisk::new(6);
    let (mut opened, _) =
        support::try_open(&disk, &Options { segment_bytes: 8 << 20, ..options() }).expect("open");
    let other = vec![7; 40 << 10];
    for index in 1..=100 {
        opened.log.append([entry(1, index, b"x"), entry(2, index, &other)]);
        drain(&mut opened);
    }
    let (mut next, mut reads) = (1, 0);
    while next <= 100 {
        let read = opened.log.read_range(GroupId(1), next, 100, 1 << 20).expect("all are durable");
        assert!((1..=32).contains(&read.len()), "{} entries", read.len());
        assert_eq!(read[0].index, next);
        (next, reads) = (next + read.len() as u64, reads + 1);
    }
    assert_eq!((next, reads), (101, 4));
}

#[test]
fn a_part_is_read_until_another_checkpoint_replaces_it() {
    let (mut opened, _) = open_on(&FaultDisk::new(7));
    let group = GroupId(1);
    opened.log.append([entry(1, 1, b"x"), part(1, 3, 1, b"three"), part(1, 4, 1, b"four"), done(1, 1)]);
    assert!(matches!(opened.log.read_part(group, 3, 1), Err(Error::NotFound { .. })));
    drain(&mut opened);
    assert_eq!(opened.log.read_part(group, 3, 1).expect("a part").as_ref(), b"three");
    opened.log.append([entry(1, 2, b"x"), part(1, 3, 2, b"other")]);
    drain(&mut opened);
    assert_eq!(opened.log.read_part(group, 3, 1).expect("the last finished one").as_ref(), b"three");
    opened.log.append([done(1, 2)]);
    drain(&mut opened);
    assert!(matches!(opened.log.read_part(group, 3, 1), Err(Error::NotFound { .. })));
    assert_eq!(opened.log.read_part(group, 3, 2).expect("a part").as_ref(), b"other");
    // A part that did not change belongs to this checkpoint, too.
    assert_eq!(opened.log.read_part(group, 4, 2).expect("a part").as_ref(), b"four");
    assert!(matches!(opened.log.read_part(group, 9, 2), Err(Error::NotFound { .. })));
}

#[test]
fn a_part_of_an_unfinished_checkpoint_is_read_until_the_checkpoint_is_given_up() {
    let disk = FaultDisk::new(7);
    let (mut opened, _) = open_on(&disk);
    let group = GroupId(1);
    opened.log.append([entry(1, 1, b"x"), part(1, 3, 1, b"three"), done(1, 1)]);
    opened.log.append([part(1, 3, 9, b"other"), part(1, 4, 9, b"four")]);
    assert!(matches!(opened.log.read_pending_part(group, 4, 9), Err(Error::NotFound { .. })), "not durable");
    drain(&mut opened);
    assert_eq!(opened.log.read_pending_part(group, 3, 9).expect("a part").as_ref(), b"other");
    assert_eq!(opened.log.read_pending_part(group, 4, 9).expect("a part").as_ref(), b"four");
    assert!(matches!(opened.log.read_pending_part(group, 4, 8), Err(Error::NotFound { .. })));
    opened.log.append([done(1, 1)]);
    drain(&mut opened);
    assert!(matches!(opened.log.read_pending_part(group, 3, 9), Err(Error::NotFound { .. })));
    // The same checkpoint is written again. It has no part of the one that was given up.
    opened.log.append([part(1, 5, 9, b"five"), done(1, 9)]);
    drain(&mut opened);
    assert_eq!(opened.log.read_part(group, 3, 9).expect("a part").as_ref(), b"three");
    assert!(matches!(opened.log.read_part(group, 4, 9), Err(Error::NotFound { .. })));
    drop(opened);
    let (again, _) = open_on(&disk.crash());
    assert_eq!(again.log.read_part(group, 3, 9).expect("a part").as_ref(), b"three");
    assert_eq!(again.log.read_part(group, 5, 9).expect("a part").as_ref(), b"five");
    assert!(matches!(again.log.read_part(group, 4, 9), Err(Error::NotFound { .. })));
}

#[test]
fn a_record_larger_than_a_segment_gets_a_segment_of_its_size() {
    let disk = FaultDisk::new(3);
    let (mut opened, _) = open_on(&disk);
    let large = vec![9; 100_000];
    opened.log.append([entry(1, 1, b"small"), entry(1, 2, &large), entry(1, 3, b"small")]);
    drain(&mut opened);
    let (opened, _) = open_on(&disk.crash());
    assert_eq!(entries(&opened, 1), [(1, b"small".to_vec()), (2, large), (3, b"small".to_vec())]);
}

#[test]
fn a_checkpoint_replaces_the_entries_before_it() {
    let disk = FaultDisk::new(4);
    let (mut opened, recorder) = open_on(&disk);
    opened.log.append((1..=4).map(|index| entry(1, index, b"x")));
    opened.log.append([part(1, 0, 3, b"zero"), part(1, 7, 3, b"seven"), done(1, 3)]);
    drain(&mut opened);
    assert_eq!(recorder.checkpoint(1), Some(3));
    // The next checkpoint deletes a part and is not finished.
    opened.log.append([part(1, 0, 4, b""), part(1, 9, 4, b"nine")]);
    drain(&mut opened);
    let disk = disk.crash();
    let (mut opened, _) = open_on(&disk);
    assert_eq!(parts(&opened, 1), [(0, b"zero".to_vec()), (7, b"seven".to_vec())].into());
    assert_eq!(entries(&opened, 1), [(4, b"x".to_vec())]);
    // Another checkpoint at the same index has other parts: the unfinished parts do not come back.
    opened.log.append([part(1, 7, 4, b""), done(1, 4)]);
    drain(&mut opened);
    let (opened, _) = open_on(&disk.crash());
    assert_eq!(parts(&opened, 1), [(0, b"zero".to_vec())].into());
    assert_eq!(entries(&opened, 1), []);
    assert_eq!(opened.recovery.groups[0].last, 4);
}

#[test]
fn entries_overtake_parts_which_are_written_one_mebibyte_at_a_time() {
    let disk = FaultDisk::new(5);
    let (mut opened, recorder) =
        support::try_open(&disk, &Options { segment_bytes: 8 << 20, ..options() }).expect("open");
    opened.log.append((0..8).map(|n| part(1, n, 0, &[1; 300_000])));
    opened.log.append([done(1, 0), entry(1, 1, b"in a hurry")]);
    let Ok(Commit::Wrote { bytes, .. }) = opened.writer.commit_once() else { panic!("a commit") };
    assert_eq!(recorder.durable(1), 1);
    assert!((900_000..1_100_000).contains(&bytes), "{bytes}");
    assert_eq!(recorder.checkpoint(1), None);
    drain(&mut opened);
    assert_eq!(recorder.checkpoint(1), Some(0));
}

/// Checkpoints free space. So they do not wait for entries that exceed one commit, nor for one too large for the
/// rest of the segment.
#[test]
fn a_checkpoint_does_not_wait_for_queued_entries_and_may_become_durable_before_them() {
    let (more, larger) = ([900; 9].as_slice(), [900, 900, 900, 2000].as_slice());
    for (commit_bytes_max, sizes, first) in [(2000, more, 2), (8 << 20, larger, 3)] {
        let disk = FaultDisk::new(5);
        let options = Options { commit_bytes_max, ..options() };
        let (mut opened, recorder) = support::try_open(&disk, &options).expect("open");
        drain(&mut opened);
        let all = sizes.len() as u64;
        opened.log.append((1..).zip(sizes).map(|(index, size)| entry(1, index, &vec![1; *size])));
        opened.log.append([part(1, 0, all, b"part"), done(1, all)]);
        opened.writer.commit_once().expect("a commit");
        assert_eq!((recorder.durable(1), recorder.checkpoint(1)), (first, Some(all)));
        // The checkpoint covers entries that the power cut removed.
        let (mut again, recorder_again) = support::try_open(&disk.crash(), &options).expect("open");
        assert_eq!(parts(&again, 1), [(0, b"part".to_vec())].into());
        assert_eq!((entries(&again, 1), again.recovery.groups[0].last), (vec![], all));
        again.log.append([entry(1, all + 1, b"next")]);
        drain(&mut again);
        assert_eq!(recorder_again.durable(1), all + 1);
    }
}

/// A node that keeps what it needs of entries when asked keeps the log at a few segments, however much passes through
/// it.
#[test]
fn old_segments_are_freed_when_the_groups_no_longer_need_them() {
    let disk = FaultDisk::new(6);
    let (mut opened, recorder) = open_on(&disk);
    opened.log.append([part(1, 5, 0, b"kept without being asked"), done(1, 0)]);
    let is_needed = |index: u64| index.is_multiple_of(50);
    let check_bodies = |opened: &storage::Opened, last: u64| {
        let mut kept = 0;
        for index in (1..=last).filter(|index| is_needed(*index)) {
            match opened.log.read_bodies(GroupId(1), index).expect("it is needed") {
                Bodies::InEntry(payload) => assert_eq!(*payload, [3; 500]),
                Bodies::Kept(payload) => {
                    kept += 1;
                    assert_eq!(*payload, index.to_le_bytes());
                }
            }
        }
        kept
    };
    let (mut index, mut written) = (0, 0);
    for _ in 0..300 {
        index += 1;
        opened.log.append([entry(1, index, &[3; 500])]);
        settle(&mut opened);
        for vacate in recorder.vacates() {
            let (first, last) = vacate.entries.unwrap_or((1, 0));
            assert!(last <= index && (first <= last || !vacate.bodies.is_empty()));
            if recorder.checkpoint(1) < Some(last) {
                let early = opened.log.vacated(vacate.group, vacate.segment).expect_err("no checkpoint yet");
                assert_eq!(early.last, last);
                opened.log.append([part(1, 1, index, &index.to_le_bytes()), done(1, index)]);
                drain(&mut opened);
            }
            let of_entries = (first..=last).filter(|index| is_needed(*index));
            let needed: Vec<_> = of_entries.chain(vacate.bodies).map(bodies).collect();
            written += needed.len() as u64;
            opened.log.append_bodies(vacate.group, needed);
            // The disk is full at the write: until bodies are durable, the earlier ones are read.
            let write_full_at = Some(disk.operations() + 1);
            disk.set_plan(FaultPlan { write_full_at, ..FaultPlan::default() });
            opened.writer.commit_once().expect("a full disk only delays");
            check_bodies(&opened, index);
            disk.set_plan(FaultPlan::default());
            drain(&mut opened);
            assert_eq!(recorder.bodies(), written);
            opened.log.vacated(vacate.group, vacate.segment).expect("a checkpoint");
        }
    }
    settle(&mut opened);
    assert!(check_bodies(&opened, index) >= 4);
    let unneeded = opened.log.read_bodies(GroupId(1), 1);
    assert!(matches!(unneeded, Err(storage::Error::NotFound { index: 1, .. })));
    let stats = opened.log.stats();
    assert!(stats.segments <= 6 && stats.freed > 20, "{stats:?}");
    assert!(disk.used() < 15 * 4096, "{}", disk.used());
    let (opened, _) = open_on(&disk.crash());
    assert!(check_bodies(&opened, index) >= 4);
    let checkpoint = opened.recovery.groups[0].checkpoint.expect("a checkpoint");
    let expected = [(1, checkpoint.to_le_bytes().to_vec()), (5, b"kept without being asked".to_vec())];
    assert_eq!(parts(&opened, 1), expected.into());
    assert_eq!(entries(&opened, 1).last().map(|e| e.0), (checkpoint < index).then_some(index));
}

/// An older version knows neither bodies nor drops of groups. It still reads a segment that it began.
#[test]
fn newer_records_are_not_written_into_a_segment_of_an_older_format() {
    for (format, is_drop) in [(1, false), (1, true), (2, true)] {
        let disk = FaultDisk::new(6);
        let (mut opened, _) = open_on(&disk);
        opened.log.append([entry(1, 1, b"one"), entry(2, 1, b"other")]);
        drain(&mut opened);
        drop(opened);
        set_format(&disk, format);
        let (mut opened, _) = open_on(&disk);
        opened.log.append([entry(1, 2, b"two")]);
        drain(&mut opened);
        assert_eq!(opened.log.stats().segments, 1);
        if is_drop {
            opened.log.drop_group(GroupId(2));
        } else {
            opened.log.append_bodies(GroupId(1), vec![bodies(1)]);
        }
        drain(&mut opened);
        assert_eq!(opened.log.stats().segments, 2);
        drop(opened);
        let format_of = |segment| disk.contents(&storage::SegmentId(segment).file()).expect("is there")[8];
        assert_eq!((format_of(1), format_of(2)), (format, 3));
        let (opened, _) = open_on(&disk);
        assert_eq!(entries(&opened, 1), [(1, b"one".to_vec()), (2, b"two".to_vec())]);
        assert_eq!(entries(&opened, 2).is_empty(), is_drop);
    }
}

/// Gives the first segment the format of an older version.
fn set_format(disk: &FaultDisk, format: u8) {
    let file = disk.open(&storage::SegmentId(1).file()).expect("is there");
    let mut header = [0; 64];
    file.read_at(&mut header, 0).expect("a header");
    header[8] = format;
    let crc = crc32c::crc32c(&header[..60]);
    header[60..].copy_from_slice(&crc.to_le_bytes());
    file.write_at(&header, 0).expect("written");
}

/// The drop needs a segment of a newer format, and there is room for none. What makes room is written all the same: the
/// checkpoint of another group, and the record that a segment is free.
#[test]
fn a_drop_that_has_no_room_holds_up_only_records_of_its_group() {
    let disk = FaultDisk::new(6);
    let roomy = Options { segment_bytes: 64 << 10, ..options() };
    let (mut opened, _) = support::try_open(&disk, &roomy).expect("open");
    opened.log.append([entry(1, 1, b"one"), entry(2, 1, b"other")]);
    drain(&mut opened);
    drop(opened);
    set_format(&disk, 2);
    let (mut opened, recorder) = support::try_open(&disk, &roomy).expect("open");
    drain(&mut opened);
    disk.set_capacity(Some(0));
    opened.log.drop_group(GroupId(1));
    opened.log.append([entry(1, 1, b"later"), part(1, 1, 0, b"later"), part(2, 1, 1, b"part"), done(2, 1)]);
    while opened.writer.commit_once().expect("a full disk only delays") != Commit::NoRoom {}
    assert_eq!((recorder.checkpoint(2), recorder.durable(1), recorder.dropped()), (Some(1), 0, vec![]));
    disk.set_capacity(None);
    drain(&mut opened);
    assert_eq!((recorder.durable(1), recorder.dropped()), (1, vec![1]));
    assert_eq!((opened.log.stats().queue_records, opened.log.stats().queue_bytes), (0, 0));
    let (opened, _) = support::try_open(&disk.crash(), &roomy).expect("open");
    assert_eq!(entries(&opened, 1), [(1, b"later".to_vec())]);
}

#[test]
fn a_dropped_group_has_no_entries_parts_and_bodies_and_begins_again() {
    let disk = FaultDisk::new(8);
    let (mut opened, recorder) = open_on(&disk);
    let group = GroupId(1);
    opened.log.append((1..=9).flat_map(|index| [entry(1, index, b"earlier"), entry(2, index, b"other")]));
    opened.log.append([part(1, 3, 8, b"three"), done(1, 8), part(1, 4, 9, b"four")]);
    opened.log.append_bodies(group, vec![bodies(2)]);
    drain(&mut opened);
    // These are queued, and void.
    opened.log.append([entry(1, 10, b"earlier"), part(1, 5, 9, b"five"), done(1, 9)]);
    opened.log.append_bodies(group, vec![bodies(3)]);
    opened.log.drop_group(group);
    assert_eq!(opened.log.stats().queue_records, 1);
    assert_eq!((recorder.dropped(), recorder.bodies()), (vec![], 1));
    drain(&mut opened);
    let stats = opened.log.stats();
    assert_eq!((recorder.dropped(), recorder.bodies(), recorder.durable(1)), (vec![1], 1, 9));
    assert_eq!((stats.queue_records, stats.queue_bytes), (0, 0));
    assert_eq!(stats.groups.iter().map(|found| found.group.0).collect::<Vec<_>>(), [2]);
    let is_gone = |log: &storage::Log| {
        assert!(matches!(log.read(group, 9), Err(Error::NotFound { .. })));
        assert!(matches!(log.read_range(group, 1, 9, 1), Err(Error::NotFound { .. })));
        assert!(matches!(log.read_bodies(group, 2), Err(Error::NotFound { .. })));
        assert!(matches!(log.read_part(group, 3, 8), Err(Error::NotFound { .. })));
        assert!(matches!(log.read_pending_part(group, 4, 9), Err(Error::NotFound { .. })));
        assert!(!log.has_bodies(group, 2) && log.last(group).is_none());
    };
    is_gone(&opened.log);
    let disk = disk.crash();
    let (mut again, recorder) = open_on(&disk);
    is_gone(&again.log);
    assert_eq!(again.recovery.groups.iter().map(|found| found.group.0).collect::<Vec<_>>(), [2]);
    // The later group follows the drop in one commit.
    again.log.drop_group(group);
    again.log.append([entry(1, 1, b"later"), part(1, 4, 1, b"later"), done(1, 1), entry(1, 2, b"later")]);
    again.log.append_bodies(group, vec![bodies(1)]);
    drain(&mut again);
    assert_eq!((recorder.dropped(), recorder.durable(1), recorder.checkpoint(1)), (vec![1], 2, Some(1)));
    let (opened, _) = open_on(&disk.crash());
    assert_eq!(entries(&opened, 1), [(2, b"later".to_vec())]);
    assert_eq!(parts(&opened, 1), [(4, b"later".to_vec())].into());
    assert_eq!(opened.log.read_bodies(group, 1).expect("kept"), Bodies::Kept(bodies(1).1));
    assert!(!opened.log.has_bodies(group, 3));
    assert_eq!(entries(&opened, 2).len(), 9);
}

/// A replica that begins with a snapshot has entries from its end on. They are not a continuation of the earlier ones.
#[test]
fn a_dropped_group_may_begin_again_after_a_checkpoint() {
    let disk = FaultDisk::new(8);
    let (mut opened, _) = open_on(&disk);
    opened.log.append((1..=3).map(|index| entry(1, index, b"earlier")));
    drain(&mut opened);
    opened.log.drop_group(GroupId(1));
    opened.log.append([part(1, 1, 3, b"received"), done(1, 3), entry(1, 4, b"later")]);
    drain(&mut opened);
    opened.log.append([entry(1, 5, b"later")]);
    drain(&mut opened);
    let (opened, _) = open_on(&disk.crash());
    assert_eq!(entries(&opened, 1), [(4, b"later".to_vec()), (5, b"later".to_vec())]);
    assert_eq!(parts(&opened, 1), [(1, b"received".to_vec())].into());
    assert!(matches!(opened.log.read(GroupId(1), 3), Err(Error::NotFound { .. })));
}

/// The group answers nothing, and its unfinished checkpoint holds up nothing. The drop itself is freed with the records
/// before it.
#[test]
fn segments_of_a_dropped_group_are_freed_without_its_answer() {
    let disk = FaultDisk::new(9);
    let (mut opened, recorder) = open_on(&disk);
    for index in 1..=20 {
        opened.log.append([entry(1, index, &[1; 1000]), part(1, index as u32, 5, &[1; 500])]);
        if index == 5 {
            opened.log.append([done(1, 5)]);
        }
        settle(&mut opened);
    }
    let (before, asked) = (opened.log.stats(), recorder.vacates().len());
    assert!(before.vacating > 0 && before.freed == 0 && asked > 0, "{before:?}");
    opened.log.drop_group(GroupId(1));
    settle(&mut opened);
    // The log keeps four segments. Another group, which answers nothing either, makes it longer.
    for index in 1..=20 {
        opened.log.append([entry(2, index, &[2; 1000])]);
        settle(&mut opened);
    }
    let stats = opened.log.stats();
    assert!(stats.freed + 1 >= before.segments as u64 && stats.moved_bytes == 0, "{stats:?}");
    assert!(recorder.vacates().iter().all(|vacate| vacate.group == GroupId(2)));
    let (opened, _) = open_on(&disk.crash());
    assert_eq!(opened.recovery.groups.iter().map(|found| found.group.0).collect::<Vec<_>>(), [2]);
}

/// Nobody reports anything for such a group after a start. Others must not wait for it, and may lose nothing.
#[test]
fn abandoned_groups_stay_until_segments_are_to_be_freed() {
    let disk = FaultDisk::new(10);
    let (mut opened, _) = open_on(&disk);
    opened.log.append([entry(1, 1, b"one"), entry(3, 1, b"three"), entry(2, 1, b"two")]);
    drain(&mut opened);
    let copy_of = |disk: &FaultDisk| Identity::read(disk).expect("whole").expect("an identity").copy;
    for after in [AfterDrop::Same, AfterDrop::AnotherCopy] {
        let disk = disk.kill();
        let (mut opened, _) = open_on(&disk);
        opened.log.abandon(&[GroupId(1), GroupId(3)], after);
        settle(&mut opened);
        assert_eq!(opened.log.read(GroupId(3), 1).expect("it stays").as_ref(), b"three");
        assert_eq!(copy_of(&disk), 0);
    }
    let disk = disk.kill();
    let (mut opened, recorder) = open_on(&disk);
    let fill = |opened: &mut Opened, from: u64| {
        for index in from..from + 20 {
            opened.log.append([entry(2, index, &[2; 1000])]);
            settle(opened);
        }
    };
    opened.log.report_live(GroupId(2), 0);
    fill(&mut opened, 2);
    assert_eq!((opened.log.stats().vacating, recorder.dropped()), (0, vec![]), "it waits for their owners");
    opened.log.abandon(&[GroupId(3), GroupId(1)], AfterDrop::AnotherCopy);
    settle(&mut opened);
    assert_eq!(recorder.dropped(), [3, 1]);
    assert!(opened.log.stats().vacating > 0 && recorder.vacates().iter().all(|it| it.group == GroupId(2)));
    assert_ne!(copy_of(&disk), 0);
    // A group of this number that begins later has an owner.
    opened.log.append([entry(1, 1, b"new")]);
    fill(&mut opened, 22);
    assert_eq!(recorder.dropped(), [3, 1]);
    let (opened, _) = open_on(&disk.crash());
    assert_eq!(opened.recovery.groups.iter().map(|found| found.group.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(entries(&opened, 2).len(), 41);
}

#[test]
fn a_directory_works_as_the_disk_in_memory_and_is_locked() {
    let directory = std::env::temp_dir().join(format!("meridian-storage-{}-log", std::process::id()));
    let options = Options { segment_bytes: 1 << 20, ..options() };
    let recorder = EventRecorder::default();
    let disk = Arc::new(RealDisk::open(&directory).expect("a directory"));
    let opened = open(disk, options.clone(), Box::new(recorder.clone()), &mut |_| {}).expect("a log");
    let error = RealDisk::open(&directory).expect_err("locked").to_string();
    assert!(error.contains(&format!("in use by process {}", std::process::id())), "{error}");
    let log = opened.log.clone();
    let threads = spawn(opened.writer, opened.keeper).expect("threads");
    for index in 1..=1000 {
        log.append([entry(1, index, &[index as u8; 3000])]);
    }
    threads.stop();
    assert_eq!(recorder.durable(1), 1000);
    drop((log, opened.log, opened.recovery));
    let disk = Arc::new(RealDisk::open(&directory).expect("free again"));
    let opened = open(disk, options, Box::new(recorder), &mut |_| {}).expect("a log");
    let found = entries(&opened, 1);
    assert_eq!(found.len(), 1000);
    assert!(found.iter().all(|(index, payload)| payload == &[*index as u8; 3000]));
    drop(opened);
    std::fs::remove_dir_all(directory).expect("clean up");
}

/// Writer and keeper create files at the same time.
#[test]
fn files_that_are_created_concurrently_do_not_exceed_the_maximum_size_of_a_directory() {
    let directory = std::env::temp_dir().join(format!("meridian-storage-{}-limit", std::process::id()));
    let (bytes, bytes_max) = (1 << 20, 5 << 20);
    let disk = RealDisk::open(&directory).expect("a directory").limited_to(bytes_max);
    let size = || -> u64 {
        let entries = std::fs::read_dir(&directory).expect("a directory");
        entries.map(|entry| entry.expect("an entry").metadata().expect("a file").len()).sum()
    };
    for round in 0..20 {
        let made: Vec<String> = std::thread::scope(|scope| {
            let make = |name: String| disk.create(&name, bytes).is_ok().then_some(name);
            let makers: Vec<_> =
                (0..8).map(|maker| scope.spawn(move || make(format!("{round}-{maker}")))).collect();
            makers.into_iter().filter_map(|maker| maker.join().expect("no panic")).collect()
        });
        // The lock file uses some bytes of the fifth.
        assert_eq!(made.len(), 4);
        assert!(size() <= bytes_max);
        made.iter().for_each(|name| disk.remove(name).expect("it is there"));
    }
    drop(disk);
    std::fs::remove_dir_all(directory).expect("clean up");
}

/// A file of 4.5 MiB has five pieces, or more on a slow disk. The one that is needed at once gets no more pauses.
#[test]
fn a_file_that_is_created_slowly_has_a_pause_after_each_piece_until_it_is_needed() {
    let directory = std::env::temp_dir().join(format!("meridian-storage-{}-slow", std::process::id()));
    let disk = RealDisk::open(&directory).expect("a directory");
    let bytes = 9 << 19;
    for (name, pauses_max, expected) in [("slow", usize::MAX, 5..=72), ("needed", 2, 2..=2)] {
        let pauses = std::cell::Cell::new(0);
        let pause = |_, _| {
            pauses.set(pauses.get() + 1);
            pauses.get() < pauses_max
        };
        let file = disk.create_slowly(name, bytes, &pause).expect("created");
        assert_eq!(file.len().expect("a length"), bytes, "{name}");
        assert!(expected.contains(&pauses.get()), "{name}: {} pauses", pauses.get());
        let mut last = [1; 8];
        file.read_at(&mut last, bytes - 8).expect("read");
        assert_eq!(last, [0; 8]);
    }
    drop(disk);
    std::fs::remove_dir_all(directory).expect("clean up");
}
