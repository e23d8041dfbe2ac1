//! Tests that inspect, copy and repair a log.

mod support;

use std::cell::Cell;
use std::sync::Arc;

use storage::fault::FaultDisk;
use storage::offline::{check, copy, read, repair, restore, stats};
use storage::{Error, GroupId, SegmentId};
use support::{done, drain, entries, entry, open_on, part, parts, settle};

/// Creates a log with two groups over several segments, one with a checkpoint.
fn filled() -> FaultDisk {
    let disk = FaultDisk::new(1);
    let (mut opened, _) = open_on(&disk);
    for index in 1..=20 {
        opened.log.append([entry(1, index, &[index as u8; 700]), entry(2, index, b"small")]);
        if index == 10 {
            opened.log.append([part(1, 3, 9, b"part three"), part(1, 4, 9, b"part four"), done(1, 9)]);
        }
        drain(&mut opened);
    }
    disk.kill()
}

fn files(disk: &FaultDisk) -> Vec<(String, Vec<u8>)> {
    let mut names = storage::Disk::list(disk).expect("names");
    names.sort();
    names.into_iter().map(|name| (name.clone(), disk.contents(&name).expect("a file"))).collect()
}

#[test]
fn a_whole_log_has_no_problems_and_inspection_does_not_change_it() {
    let disk = filled();
    let before = files(&disk);
    let report = check(&disk, &mut |_| {}).expect("readable");
    assert!(report.whole(), "{:?}", report.problems);
    let stats = stats(&disk).expect("whole");
    assert_eq!(report.segments.iter().map(|s| s.records).sum::<u64>(), stats.records);
    let groups: Vec<_> = stats.groups.iter().map(|g| (g.group.0, g.entries, g.checkpoint, g.parts)).collect();
    assert_eq!(groups, [(1, 20, Some(9), 2), (2, 20, None, 0)]);
    assert_eq!(files(&disk), before);
}

#[test]
fn a_log_is_read_without_a_change_and_without_its_torn_tail() {
    let (opened, _) = open_on(&filled());
    let expected = (entries(&opened, 1), parts(&opened, 1), opened.log.read(GroupId(1), 15).expect("a body"));
    drop(opened);
    let disk = filled();
    // The last commit was not written whole.
    let last =
        files(&disk).iter().filter(|(name, _)| name.ends_with(".seg")).map(|(name, _)| name.clone()).max();
    let name = last.expect("a segment");
    let bytes = disk.contents(&name).expect("a file");
    let at = bytes.iter().rposition(|byte| *byte != 0).expect("a record");
    disk.flip(&name, at as u64, 0);
    let before = files(&disk);
    let (log, recovery) = read(Arc::new(disk.clone())).expect("readable");
    assert_eq!(files(&disk), before);
    let group = recovery.groups.iter().find(|group| group.group == GroupId(1)).expect("a group");
    let found: Vec<_> = group.entries().map(|entry| entry.expect("whole").index).collect();
    let indexes: Vec<u64> = expected.0.iter().map(|entry| entry.0).collect();
    assert_eq!(found, indexes[..indexes.len() - 1], "without the torn commit");
    let found: Vec<_> = group.parts_in_order().map(|part| part.expect("whole")).collect();
    let found: std::collections::BTreeMap<u32, Vec<u8>> =
        found.into_iter().map(|(part, bytes)| (part, bytes.to_vec())).collect();
    assert_eq!(found, expected.1);
    assert_eq!(log.read(GroupId(1), 15).expect("a body"), expected.2);
    let nothing = read(Arc::new(FaultDisk::new(9)));
    assert!(matches!(nothing, Err(Error::Missing { .. })), "an empty disk has no log");
}

#[test]
fn check_finds_every_damaged_segment() {
    let disk = filled();
    disk.flip(&SegmentId(1).file(), 300, 1);
    disk.flip(&SegmentId(3).file(), 300, 1);
    let report = check(&disk, &mut |_| {}).expect("readable");
    let bad: Vec<u64> = report.segments.iter().filter(|s| s.problem.is_some()).map(|s| s.segment.0).collect();
    assert_eq!((bad, report.problems.len()), (vec![1, 3], 2));
}

#[test]
fn a_repaired_log_has_all_whole_records_and_names_the_lost_ones() {
    let disk = filled();
    // One record of each kind: an entry after the checkpoint, an entry before it, and a part.
    let find = |what: &[u8]| {
        let holds = |(name, bytes): &(String, Vec<u8>)| {
            let at = bytes.windows(what.len()).position(|window| window == what)?;
            name.ends_with(".seg").then(|| (name.clone(), at as u64))
        };
        files(&disk).iter().find_map(holds).expect("it is somewhere")
    };
    for what in [&[15; 700][..], &[4; 700], b"part four"] {
        let (name, at) = find(what);
        disk.flip(&name, at, 0);
    }
    let to = FaultDisk::new(2);
    let report = repair(&disk, Arc::new(to.clone())).expect("repaired");
    assert_eq!(report.damage.len(), 3, "{:?}", report.damage);
    assert!(!report.nothing_lost());
    let one = &report.groups[0];
    assert_eq!((one.entries, one.parts, one.parts_lost), (18, 1, true));
    assert_eq!(one.lost.iter().map(ToString::to_string).collect::<Vec<_>>(), ["entry 15 of group 1"]);
    assert!(report.groups[1].lost.is_empty());
    assert!(check(&to, &mut |_| {}).expect("readable").whole());
    let (opened, _) = open_on(&to.crash());
    assert_eq!(parts(&opened, 1), [(3, b"part three".to_vec())].into());
    let indexes: Vec<u64> = entries(&opened, 1).iter().map(|entry| entry.0).collect();
    assert_eq!(indexes, [10, 11, 12, 13, 14, 16, 17, 18, 19, 20]);
    assert_eq!(opened.recovery.groups[0].lost, [(15, 15)]);
    assert_eq!(opened.log.read(GroupId(1), 3).expect("a body").as_ref(), [3; 700]);
    assert!(matches!(opened.log.read(GroupId(1), 4), Err(Error::NotFound { .. })));
}

#[test]
fn repair_loses_nothing_of_a_log_that_is_whole_or_lost_its_identity() {
    let disk = filled();
    disk.lose("identity");
    let to = FaultDisk::new(3);
    let report = repair(&disk, Arc::new(to.clone())).expect("repaired");
    assert!(report.nothing_lost() && report.damage.len() == 1, "{report:?}");
    assert_eq!(entries(&open_on(&to).0, 1), entries(&open_on(&filled()).0, 1));
    let Err(error) = repair(&disk, Arc::new(to)) else { panic!("there is a log already") };
    assert!(error.to_string().contains("is there already"), "{error}");
}

#[test]
fn a_backup_of_a_running_log_starts_like_a_crashed_one() {
    let disk = FaultDisk::new(4);
    let (mut opened, _) = open_on(&disk);
    for index in 1..=10 {
        opened.log.append([entry(1, index, &[index as u8; 700])]);
        drain(&mut opened);
    }
    opened.log.append([entry(1, 11, b"not durable yet")]);
    let backup = FaultDisk::new(5);
    let report = opened.log.backup(&backup, &mut |_, _| {}, &|| Ok(())).expect("copied");
    assert!(report.segments > 1);
    // The log continues, and the copy does not change.
    settle(&mut opened);
    let to = FaultDisk::new(6);
    restore(&backup, &to, &mut |_, _| {}).expect("restored");
    let (restored, _) = open_on(&to);
    assert_eq!(entries(&restored, 1), (1..=10).map(|i| (i, vec![i as u8; 700])).collect::<Vec<_>>());
    let Err(error) = opened.log.backup(&to, &mut |_, _| {}, &|| Ok(())) else {
        panic!("there is a log already")
    };
    assert!(error.to_string().contains("is there already"), "{error}");
}

/// A log may stop to be usable while its backup is made.
#[test]
fn a_backup_that_must_not_be_used_in_the_end_is_no_log() {
    let disk = FaultDisk::new(4);
    let (mut opened, _) = open_on(&disk);
    opened.log.append([entry(1, 1, b"a")]);
    settle(&mut opened);
    let (backup, copied) = (FaultDisk::new(5), Cell::new(0));
    let refuse = || {
        assert!(copied.get() > 0, "it is asked before the segments are copied");
        Err("the only copy".to_owned())
    };
    let found = opened.log.backup(&backup, &mut |done, _| copied.set(done), &refuse);
    let Err(error) = found else { panic!("copied") };
    assert!(error.to_string().contains("the only copy"), "{error}");
    let to = FaultDisk::new(6);
    assert!(copy(&backup, &to, &mut |_, _| {}).is_err(), "it has no identity");
}

#[test]
fn a_damaged_backup_is_not_restored() {
    let disk = filled();
    let backup = FaultDisk::new(7);
    copy(&disk, &backup, &mut |_, _| {}).expect("copied");
    backup.flip(&SegmentId(2).file(), 200, 0);
    let to = FaultDisk::new(8);
    let Err(error) = restore(&backup, &to, &mut |_, _| {}) else { panic!("restored") };
    assert!(error.to_string().contains("the backup is not whole"), "{error}");
    assert!(files(&to).is_empty());
}

/// The record of the drop is in every copy. A repair does not bring back what was dropped.
#[test]
fn a_dropped_group_is_in_no_copy_and_not_in_a_repaired_log() {
    let disk = FaultDisk::new(9);
    let (mut opened, _) = open_on(&disk);
    for index in 1..=10 {
        opened.log.append([entry(1, index, &[1; 700]), entry(2, index, b"small")]);
        drain(&mut opened);
    }
    opened.log.append([part(1, 3, 9, b"part"), done(1, 9), part(1, 4, 10, b"unfinished")]);
    drain(&mut opened);
    opened.log.drop_group(GroupId(1));
    opened.log.drop_group(GroupId(2));
    opened.log.append([entry(2, 1, b"later")]);
    settle(&mut opened);
    let backup = FaultDisk::new(10);
    opened.log.backup(&backup, &mut |_, _| {}, &|| Ok(())).expect("copied");
    drop(opened);
    let copied = FaultDisk::new(11);
    copy(&disk.kill(), &copied, &mut |_, _| {}).expect("copied");
    // A damaged entry of the dropped group is lost without a loss.
    copied.flip(&SegmentId(1).file(), 300, 0);
    let repaired = FaultDisk::new(12);
    let report = repair(&copied, Arc::new(repaired.clone())).expect("repaired");
    assert!(report.nothing_lost() && report.damage.len() == 1, "{report:?}");
    for disk in [backup, repaired] {
        let report = check(&disk, &mut |_| {}).expect("readable");
        assert!(report.whole(), "{:?}", report.problems);
        let groups = stats(&disk).expect("whole").groups;
        assert_eq!(groups.iter().map(|found| (found.group.0, found.last)).collect::<Vec<_>>(), [(2, 1)]);
        assert_eq!(entries(&open_on(&disk).0, 2), [(1, b"later".to_vec())]);
    }
}
