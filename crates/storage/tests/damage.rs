//! Damage by the disk is noticed. Only damage to the last commit may be taken for a torn commit.

mod support;

use std::time::{Duration, Instant};

use storage::fault::{FaultDisk, FaultPlan};
use storage::{Commit, Error, GroupId, Options, SegmentId, Shortage};
use support::{drain, entries, entry, open_on, options, settle, try_open};

/// Writes commits of two entries each into one segment. Returns where each commit ends.
fn commits(disk: &FaultDisk, count: u64) -> Vec<usize> {
    let (mut opened, _) = open_on(disk);
    let mut ends = vec![];
    let mut end = 64;
    let mut commit = |opened: &mut storage::Opened| {
        let Ok(Commit::Wrote { bytes, .. }) = opened.writer.commit_once() else { panic!("a commit") };
        end += bytes as usize;
        ends.push(end);
    };
    commit(&mut opened);
    for n in 0..count {
        opened.log.append([entry(1, 2 * n + 1, b"first of two"), entry(1, 2 * n + 2, b"second")]);
        commit(&mut opened);
    }
    ends
}

#[test]
fn a_flipped_bit_before_the_last_commit_is_refused_at_every_offset() {
    let disk = FaultDisk::new(1);
    let ends = commits(&disk, 3);
    let disk = disk.kill();
    let name = SegmentId(1).file();
    let bytes = disk.contents(&name).expect("a segment");
    let (before, last) = (ends[ends.len() - 2], ends[ends.len() - 1]);
    // Padding up to the next multiple of 8 belongs to no record.
    let filler = |at: usize| {
        let record = record_at(&bytes, at);
        at >= record
            + 48
            + u32::from_le_bytes(bytes[record + 4..record + 8].try_into().expect("four")) as usize
    };
    for at in 0..last {
        let flipped = disk.kill();
        flipped.flip(&name, at as u64, at as u32);
        let result = try_open(&flipped, &options());
        if at >= 64 && filler(at) {
            assert_eq!(entries(&result.unwrap_or_else(|e| panic!("{at}: {e}")).0, 1).len(), 6, "{at}");
        } else if at < before {
            let Err(error) = result else { panic!("the bit at {at} was not noticed") };
            assert!(error.is_damage(), "{at}: {error}");
        } else {
            let (opened, _) = result.unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(entries(&opened, 1).len(), 4, "the last commit is cut, whole: {at}");
        }
    }
}

/// A commit of one record leaves nothing valid when its record is bad. It is reported all the same, whichever byte
/// is bad.
#[test]
fn a_last_commit_that_is_cut_is_always_reported() {
    for recycled in [0, 0xA5] {
        let disk = FaultDisk::new(1);
        let (mut opened, _) = open_on(&disk);
        let mut end = 64;
        for n in 1..=3 {
            opened.log.append([entry(1, n, b"the only record")]);
            let Ok(Commit::Wrote { bytes, .. }) = opened.writer.commit_once() else { panic!("a commit") };
            end += bytes as usize;
        }
        drop(opened);
        let disk = disk.kill();
        let name = SegmentId(1).file();
        // The bytes are remains of an earlier use of the file.
        for at in (end..end + 64).filter(|_| recycled != 0) {
            (0..8).filter(|bit| recycled >> bit & 1 == 1).for_each(|bit| disk.flip(&name, at as u64, bit));
        }
        let (opened, _) = open_on(&disk.kill());
        assert_eq!(opened.recovery.report.cut_bytes, 0, "nothing is torn");
        let last = 48 + b"the only record".len().next_multiple_of(8);
        for at in end - last..end - last + 48 + b"the only record".len() {
            let flipped = disk.kill();
            flipped.flip(&name, at as u64, at as u32);
            let (opened, _) = open_on(&flipped);
            assert_eq!(entries(&opened, 1).len(), 2, "the last commit is cut: {at}");
            assert!(opened.recovery.report.cut_bytes > 0, "{recycled}: a flip at {at} is not reported");
        }
    }
}

/// Returns the offset of the record that holds the byte at `at`.
fn record_at(bytes: &[u8], at: usize) -> usize {
    let mut record = 64;
    loop {
        let length = u32::from_le_bytes(bytes[record + 4..record + 8].try_into().expect("four")) as usize;
        let next = record + (48 + length).next_multiple_of(8);
        if next > at {
            return record;
        }
        record = next;
    }
}

#[test]
fn the_error_names_location_damage_and_remedy() {
    let disk = FaultDisk::new(1);
    let ends = commits(&disk, 3);
    let disk = disk.kill();
    disk.flip(&SegmentId(1).file(), ends[1] as u64 - 20, 3);
    let Err(error) = try_open(&disk, &options()) else { panic!("it was not noticed") };
    let text = error.to_string();
    assert!(text.starts_with("00000000000000000001.seg is damaged at offset 1"), "{text}");
    assert!(text.contains("affected: entry 2 of group 1; "), "{text}");
    assert!(text.contains("meridian storage repair"), "{text}");
}

/// The log fills several segments. Damage in a full one is noticed by the reader, and a damaged index loses
/// nothing.
#[test]
fn damage_in_full_segments_is_noticed_when_it_is_read() {
    let disk = FaultDisk::new(2);
    let (mut opened, _) = open_on(&disk);
    for index in 1..=20 {
        opened.log.append([entry(1, index, &[index as u8; 800])]);
        drain(&mut opened);
    }
    let disk = disk.kill();
    let damaged = disk.kill();
    damaged.flip(&SegmentId(2).file(), 600, 0);
    let (opened, _) = open_on(&damaged);
    let found: Vec<_> = opened.recovery.groups[0].entries().collect();
    assert_eq!(found.iter().filter(|entry| matches!(entry, Err(Error::Corrupt(_)))).count(), 1);
    assert!((1..=20).any(|index| matches!(opened.log.read(GroupId(1), index), Err(Error::Corrupt(_)))));
    let damaged = disk.kill();
    damaged.flip(&SegmentId(2).file(), 4096 - 30, 0);
    let (opened, _) = open_on(&damaged);
    assert_eq!(entries(&opened, 1).len(), 20);
    assert_eq!(opened.recovery.report.indexes_rebuilt, 1);
}

#[test]
fn missing_short_and_foreign_files_are_refused() {
    let disk = FaultDisk::new(3);
    let (mut opened, _) = open_on(&disk);
    for index in 1..=20 {
        opened.log.append([entry(1, index, &[index as u8; 800])]);
        drain(&mut opened);
    }
    let disk = disk.kill();
    let refuse = |change: &dyn Fn(&FaultDisk)| {
        let disk = disk.kill();
        change(&disk);
        let Err(error) = try_open(&disk, &options()) else { panic!("it opens") };
        error
    };
    let name = |n| SegmentId(n).file();
    assert!(matches!(refuse(&|d| d.lose(&name(3))), Error::Missing { file, .. } if file == name(3)));
    assert!(matches!(refuse(&|d| d.lose(&name(1))), Error::Missing { file, .. } if file == name(1)));
    assert!(matches!(refuse(&|d| d.lose("identity")), Error::Missing { .. }));
    let short = |d: &FaultDisk| d.put(&name(2), &d.contents(&name(2)).expect("a segment")[..2048]);
    assert!(matches!(refuse(&short), Error::Corrupt(_)));
    assert!(matches!(refuse(&|d| d.put(&name(2), b"hello")), Error::Foreign { .. }));
    let renamed = |d: &FaultDisk| d.put(&name(2), &d.contents(&name(3)).expect("a segment"));
    assert!(matches!(refuse(&renamed), Error::Foreign { .. }));
    let other = FaultDisk::new(4);
    drop(try_open(&other, &Options { entropy: Some([9; 48]), ..options() }).map(|_| ()));
    let swapped = |d: &FaultDisk| d.put("identity", &other.contents("identity").expect("a file"));
    assert!(matches!(refuse(&swapped), Error::Foreign { .. }));
}

#[test]
fn nothing_is_reported_durable_after_a_failed_sync() {
    let disk = FaultDisk::new(5);
    let (mut opened, recorder) = open_on(&disk);
    drain(&mut opened);
    opened.log.append([entry(1, 1, b"one")]);
    disk.set_plan(FaultPlan { sync_fails_at: Some(0), ..FaultPlan::default() });
    assert!(matches!(opened.writer.commit_once(), Err(Error::Io { .. })));
    opened.log.append([entry(1, 2, b"two")]);
    assert!(matches!(opened.writer.commit_once(), Err(Error::Failed(_))));
    assert_eq!((recorder.durable(1), recorder.0.lock().expect("news").failed), (0, 1));
    assert!(opened.log.stats().failed.is_some_and(|why| why.contains("sync")));
}

#[test]
fn a_full_disk_stops_nothing_permanently() {
    let disk = FaultDisk::new(6);
    let (mut opened, recorder) = open_on(&disk);
    settle(&mut opened);
    disk.set_capacity(Some(disk.used()));
    let mut index = 0;
    // The entries go into the reserve until that is used up too.
    let stuck = loop {
        index += 1;
        opened.log.append([entry(1, index, &[1; 900])]);
        match opened.writer.commit_once().expect("no failure") {
            Commit::NoRoom => break index,
            _ => opened.keeper.keep(),
        };
        assert!(index < 100, "the disk is never full");
    };
    let news = |what: &dyn Fn(&support::RecordedEvents) -> usize| what(&recorder.0.lock().expect("news"));
    assert_eq!((news(&|n| n.full), news(&|n| n.room)), (1, 0));
    assert!(stuck > 8, "two spares were there: {stuck}");
    assert_eq!(recorder.durable(1), stuck - 1);
    disk.set_capacity(None);
    settle(&mut opened);
    assert_eq!(recorder.durable(1), stuck);
    assert_eq!((news(&|n| n.full), news(&|n| n.room)), (1, 1));
    assert_eq!(entries(&open_on(&disk.crash()).0, 1).len() as u64, stuck);
}

/// A log that frees a segment now and then and fills it again is on a full disk all the time.
#[test]
fn operators_see_that_there_is_room_again_once_that_has_lasted() {
    let disk = FaultDisk::new(6);
    let (mut opened, _) = open_on(&disk);
    settle(&mut opened);
    let began = Instant::now();
    let after = |seconds| began + Duration::from_secs(seconds);
    opened.keeper.report(began);
    assert_eq!(opened.log.reported_full(), None);
    let mut index = 0;
    let fill = |opened: &mut storage::Opened, index: &mut u64| {
        disk.set_capacity(Some(disk.used()));
        while opened.log.stats().full.is_none() {
            *index += 1;
            opened.log.append([entry(1, *index, &[1; 900])]);
            opened.writer.commit_once().expect("no failure");
            opened.keeper.keep();
        }
        disk.set_capacity(None);
        settle(opened);
        assert_eq!(opened.log.stats().full, None, "there is room");
    };
    fill(&mut opened, &mut index);
    opened.keeper.report(after(1));
    assert_eq!(opened.log.reported_full(), Some(Shortage::Room));
    opened.keeper.report(after(20));
    // The disk is full again for a shorter time than the keeper's interval.
    fill(&mut opened, &mut index);
    opened.keeper.report(after(21));
    opened.keeper.report(after(50));
    assert_eq!(opened.log.reported_full(), Some(Shortage::Room), "29 s of room");
    opened.keeper.report(after(51));
    assert_eq!(opened.log.reported_full(), None);
}

#[test]
fn a_record_larger_than_a_segment_uses_the_room_of_the_reserve() {
    let disk = FaultDisk::new(7);
    let (mut opened, recorder) = open_on(&disk);
    settle(&mut opened);
    disk.set_capacity(Some(disk.used()));
    let large = vec![5; 7000];
    opened.log.append([entry(1, 1, &large), entry(1, 2, &large)]);
    while opened.writer.commit_once().expect("no failure") != Commit::NoRoom {}
    assert_eq!(recorder.durable(1), 1);
    assert_eq!(entries(&open_on(&disk.crash()).0, 1), [(1, large)]);
}

/// Other nodes wait for an urgent group: other entries leave it a segment, and wait for it.
#[test]
fn an_urgent_group_continues_when_a_full_disk_has_stopped_the_others() {
    let disk = FaultDisk::new(10);
    let options = Options { urgent: &[GroupId(7)], ..options() };
    let (mut opened, recorder) = try_open(&disk, &options).expect("a new log");
    settle(&mut opened);
    disk.set_capacity(Some(disk.used()));
    let mut index = 0;
    let mut append = |opened: &mut storage::Opened| {
        index += 1;
        opened.log.append([entry(1, index, &[1; 900])]);
        index
    };
    let stuck = loop {
        let index = append(&mut opened);
        if opened.writer.commit_once().expect("no failure") == Commit::NoRoom {
            break index;
        }
        opened.keeper.keep();
        assert!(index < 100, "the disk is never full");
    };
    // The size is larger than the rest of the open segment, and smaller than a segment.
    for urgent in 1..=20 {
        append(&mut opened);
        opened.log.append([entry(7, urgent, &[7; 100])]);
        for _ in 0..3 {
            opened.writer.commit_once().expect("no failure");
            opened.keeper.keep();
        }
        assert_eq!((recorder.durable(7), recorder.durable(1)), (urgent, stuck - 1));
    }
    disk.set_capacity(None);
    settle(&mut opened);
    assert_eq!((recorder.durable(7), recorder.durable(1)), (20, stuck + 20));
    let again = try_open(&disk.crash(), &options).expect("what it wrote").0;
    assert_eq!((entries(&again, 7).len(), entries(&again, 1).len() as u64), (20, stuck + 20));
}

/// A checkpoint may be larger than all the room that is left. Urgent entries have room all the same.
#[test]
fn an_urgent_group_continues_when_checkpoints_have_filled_a_full_disk() {
    let disk = FaultDisk::new(11);
    let options = Options { urgent: &[GroupId(7)], ..options() };
    let (mut opened, recorder) = try_open(&disk, &options).expect("a new log");
    settle(&mut opened);
    opened.log.append([entry(1, 1, &[1; 900])]);
    settle(&mut opened);
    disk.set_capacity(Some(disk.used()));
    let parts = (0..100).map(|part| support::part(1, part, 1, &[1; 300]));
    opened.log.append(parts.chain([support::done(1, 1)]));
    while opened.writer.commit_once().expect("no failure") != Commit::NoRoom {
        opened.keeper.keep();
    }
    for urgent in 1..=5 {
        opened.log.append([entry(7, urgent, &[7; 100])]);
        opened.writer.commit_once().expect("no failure");
        assert_eq!(recorder.durable(7), urgent);
    }
    disk.set_capacity(None);
    settle(&mut opened);
    let again = try_open(&disk.crash(), &options).expect("what it wrote").0;
    assert_eq!((entries(&again, 7).len(), entries(&again, 1).len()), (5, 0));
}

/// The record of a start is written first. It must not wait for room that only later checkpoints make.
#[test]
fn a_start_on_a_full_disk_with_a_full_segment_does_not_delay_checkpoints() {
    let mut disk = FaultDisk::new(13);
    let options = Options { urgent: &[GroupId(7)], ..options() };
    let (mut opened, _) = try_open(&disk, &options).expect("a new log");
    settle(&mut opened);
    disk.set_capacity(Some(disk.used()));
    let mut last = 0;
    loop {
        opened.log.append([entry(1, last + 1, &[1; 900])]);
        if opened.writer.commit_once().expect("no failure") == Commit::NoRoom {
            break;
        }
        last += 1;
        opened.keeper.keep();
    }
    // Each start uses a part of the rest of the segment.
    for _ in 0..60 {
        disk = disk.kill();
        let (mut again, recorder) = try_open(&disk, &options).expect("what it wrote");
        again.keeper.keep();
        assert_eq!(again.log.stats().full, Some(Shortage::Room));
        let committed = again.writer.commit_once().expect("no failure");
        if committed != Commit::NoRoom && again.log.stats().spares > 0 {
            continue;
        }
        again.log.append([support::part(1, 0, last, b"part"), support::done(1, last)]);
        again.writer.commit_once().expect("no failure");
        assert_eq!(recorder.checkpoint(1), Some(last));
        return;
    }
    panic!("the segment is never full");
}

/// Records that free space on a full disk go into the reserve. The reserve would be used up if a short log were
/// never freed.
#[test]
fn a_full_disk_frees_a_short_log_with_little_live_data() {
    let disk = FaultDisk::new(9);
    let (mut opened, recorder) = open_on(&disk);
    settle(&mut opened);
    disk.set_capacity(Some(disk.used()));
    let (mut asked, mut rounds) = (vec![], 0);
    for index in 1..=100 {
        opened.log.append([entry(1, index, &[1; 900])]);
        while recorder.durable(1) < index {
            rounds += 1;
            assert!(rounds < 1000, "entry {index} finds no room: {:?}", opened.log.stats());
            opened.writer.commit_once().expect("no failure");
            opened.keeper.keep();
            for vacate in recorder.vacates() {
                let checkpoint = recorder.durable(1);
                opened.log.append([support::part(1, 1, checkpoint, b"all"), support::done(1, checkpoint)]);
                asked.push(vacate);
            }
            asked.retain(|vacate| opened.log.vacated(vacate.group, vacate.segment).is_err());
        }
    }
}

/// A checkpoint, a move and the record of a freed segment are small: they do not wait for a record that does not
/// fit.
#[test]
fn a_full_disk_frees_itself_although_a_large_entry_waits() {
    let disk = FaultDisk::new(8);
    let (mut opened, recorder) = open_on(&disk);
    for index in 1..=30 {
        opened.log.append([entry(1, index, &[1; 800])]);
        drain(&mut opened);
    }
    disk.set_capacity(Some(disk.used()));
    opened.log.append([entry(1, 31, &[1; 14_000])]);
    while opened.writer.commit_once().expect("no failure") != Commit::NoRoom {}
    for _ in 0..100 {
        opened.keeper.keep();
        for vacate in recorder.vacates() {
            opened.log.append([support::part(1, 1, 30, b"all"), support::done(1, 30)]);
            while opened.writer.commit_once().expect("no failure") != Commit::NoRoom {
                if recorder.durable(1) == 31 {
                    break;
                }
            }
            opened.log.vacated(vacate.group, vacate.segment).expect("a checkpoint");
        }
        opened.writer.commit_once().expect("no failure");
    }
    assert_eq!(recorder.durable(1), 31, "{:?}", opened.log.stats());
}

/// Clients may use all descriptors of the process. Records go into segments that are ready, and wait when there are
/// none; nothing fails.
#[test]
fn a_lack_of_descriptors_delays_and_loses_nothing() {
    let disk = FaultDisk::new(12);
    let (mut opened, recorder) = open_on(&disk);
    settle(&mut opened);
    let news = || {
        let news = recorder.0.lock().expect("news");
        (news.full, news.room, news.failed)
    };
    disk.set_no_descriptors(true);
    let mut last = 0;
    // Two segments are ready in addition to the open one.
    while recorder.durable(1) == last {
        last += 1;
        opened.log.append([entry(1, last, &[1; 1000])]);
        opened.keeper.keep();
        opened.writer.commit_once().expect("no failure");
        assert!(last < 30, "it does not wait");
    }
    assert!(last > 6 && news().2 == 0, "{last} entries, {:?}", news());
    opened.keeper.keep();
    opened.writer.commit_once().expect("no failure");
    assert_eq!(news(), (1, 0, 0));
    disk.set_no_descriptors(false);
    settle(&mut opened);
    assert_eq!((news(), recorder.durable(1)), ((1, 1, 0), last));
    assert_eq!(entries(&try_open(&disk.crash(), &options()).expect("what it wrote").0, 1).len() as u64, last);
}

#[test]
fn a_disk_that_fails_to_create_a_segment_is_not_reported_as_full() {
    let disk = FaultDisk::new(13);
    let (mut opened, recorder) = open_on(&disk);
    settle(&mut opened);
    let segments = opened.log.stats().segments;
    let mut index = 0;
    while opened.log.stats().segments == segments {
        index += 1;
        opened.log.append([entry(1, index, &[1; 1000])]);
        opened.writer.commit_once().expect("no failure");
        assert!(index < 30, "no segment is taken");
    }
    disk.set_plan(FaultPlan { sync_fails_at: Some(disk.operations()), ..FaultPlan::default() });
    opened.keeper.keep();
    let full = opened.log.stats().full;
    assert_eq!(full, Some(Shortage::Segment));
    assert!(!full.expect("a lack").to_string().contains("full"), "the error names the actual cause");
    settle(&mut opened);
    assert_eq!((opened.log.stats().full, recorder.durable(1)), (None, index));
}
