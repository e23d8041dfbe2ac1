//! Tests of the data that a replica finds after a crash at any commit of the log: it finds what was reported as
//! flushed, and only entries that follow each other. And tests of reads: the entries in memory and those in the log are
//! one list.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use openraft::RaftLogReader as _;
use openraft::entry::RaftEntry as _;
use openraft::storage::RaftLogStorage as _;
use openraft::type_config::TypeConfigExt as _;
use random::Random;
use storage::fault::FaultDisk;
use storage::{Commit, Keeper, LogEvent, Options, Writer};

use super::*;
use crate::machine::{Restore, SnapshotError};
use crate::manifest::PartInfo;
use crate::raft_types::{Command, Membership, Payload, StoredMembership, Types};
use crate::tests::{EventRecorder, membership};
use crate::wire::{SnapshotForm, log_id};
use crate::{Member, ReplicaId};

const STORAGE_GROUPS: StorageGroups = StorageGroups { entries: GroupId(1), votes: GroupId(2) };

type TermAndIndex = (u64, u64);

/// A store on a log that writes one record of each priority in a commit. It keeps no durable entries in memory.
struct Bench {
    disk: FaultDisk,
    log: Log,
    writer: Writer,
    keeper: Keeper,
    recorder: EventRecorder,
    store: Store,
    /// Parts of the snapshot that was found.
    parts: BTreeMap<u32, Vec<u8>>,
}

/// State machine that keeps the parts of a snapshot.
#[derive(Default)]
struct Parts(BTreeMap<u32, Vec<u8>>);

impl Restore for Parts {
    fn needs_order(&self) -> bool {
        self.0.len().is_multiple_of(2)
    }

    fn begin_restore(&mut self) {
        self.0.clear();
    }

    fn restore_part(&mut self, part: u32, bytes: &[u8]) -> Result<(), SnapshotError> {
        assert_eq!(self.0.insert(part, bytes.into()), None);
        Ok(())
    }

    fn restored(&mut self, _: u64) -> Result<(), SnapshotError> {
        Ok(())
    }
}

/// Writes a snapshot of another replica.
async fn save(store: Store, meta: SnapshotMeta, parts: Vec<(u32, Vec<u8>)>) -> io::Result<()> {
    let index = meta.last_log_id.as_ref().map_or(0, in_log);
    let writer = store.begin_received(index).map_err(|error| io::Error::other(format!("{error:?}")))?;
    for (part, bytes) in parts {
        writer.put(part, &bytes)?;
        writer.room().await?;
    }
    writer.finish(meta).await
}

/// Writes a snapshot of this replica, which has these changes.
async fn save_changes(store: Store, meta: SnapshotMeta, parts: Vec<(u32, Vec<u8>)>) -> io::Result<()> {
    let index = meta.last_log_id.as_ref().map_or(0, in_log);
    let writer = store.begin_checkpoint(index).map_err(|error| io::Error::other(format!("{error:?}")))?;
    for (part, bytes) in parts {
        writer.put(part, &bytes)?;
    }
    writer.finish(meta).await
}

impl Bench {
    fn new() -> Self {
        Self::with(64 << 10, 0)
    }

    fn with(segment_bytes: u64, cache_bytes: usize) -> Self {
        let mut bench = Self::on(FaultDisk::new(1), segment_bytes, cache_bytes);
        bench.commit_all();
        bench
    }

    fn on(disk: FaultDisk, segment_bytes: u64, cache_bytes: usize) -> Self {
        let options = Options {
            segment_bytes,
            reserve_bytes: 2 * segment_bytes,
            commit_bytes_max: 1,
            low_bytes_per_commit: 1,
            entropy: Some([1; 48]),
            ..Options::default()
        };
        let recorder = EventRecorder::default();
        let opened = storage::open(Arc::new(disk.clone()), options, recorder.listener(), &mut |_| ())
            .unwrap_or_else(|error| panic!("the log does not open: {error}"));
        let log = opened.log.clone();
        let mut parts = Parts::default();
        let store =
            Store::recover(opened.log, STORAGE_GROUPS, &opened.recovery.groups, cache_bytes, &mut parts)
                .expect("a replica's");
        Self { disk, log, writer: opened.writer, keeper: opened.keeper, recorder, store, parts: parts.0 }
    }

    fn after_a_power_cut(self) -> Self {
        Self::on(self.disk.crash(), 64 << 10, 0)
    }

    /// Makes one commit and notifies the store. Returns false if there was nothing to write.
    fn commit(&mut self) -> bool {
        let committed = self.writer.commit_once().expect("the disk works");
        for event in std::mem::take(&mut *sync::lock(&self.recorder.0)) {
            let mut raft_log = self.store.lock();
            match event {
                LogEvent::Durable(group, index) => raft_log.durable(group, index),
                LogEvent::Checkpointed(group, index) => raft_log.checkpointed(group, index),
                LogEvent::PartsDurable(group, parts) => raft_log.parts_durable(group, parts),
                LogEvent::Vacate(vacate) => raft_log.vacate(vacate),
                LogEvent::BodiesDurable(..) => {}
                other => panic!("{other:?}"),
            }
        }
        committed != Commit::Idle
    }

    fn commit_all(&mut self) {
        while self.commit() {}
    }

    /// Appends entries of a term. The returned function tells whether they are durable.
    fn append(&mut self, term: u64, indexes: std::ops::RangeInclusive<u64>) -> impl FnMut() -> bool + use<> {
        let entry =
            |index| Entry::new(log_id(term, index), Payload::Normal(Command(Arc::new(vec![term as u8]))));
        self.append_entries(indexes.map(entry).collect())
    }

    fn append_entries(&mut self, entries: Vec<Entry>) -> impl FnMut() -> bool + use<> {
        let (sender, mut receiver) = Types::oneshot();
        let appended = pin!(self.store.append(entries, IoFlushed::signal(sender)));
        assert!(matches!(poll(appended), Poll::Ready(Ok(()))));
        move || matches!(poll(Pin::new(&mut receiver)), Poll::Ready(Ok(Ok(()))))
    }

    /// Last entry of the snapshot, and the entries after it.
    fn found(&self) -> (Option<TermAndIndex>, Vec<TermAndIndex>) {
        let purged = self.store.lock().purged.map(|id| plain(&id));
        let mut store = self.store.clone();
        let found = match poll(pin!(store.try_get_log_entries(..))) {
            Poll::Ready(entries) => entries.expect("the entries can be read"),
            Poll::Pending => panic!("a replica that starts reads at once"),
        };
        (purged, found.iter().map(|entry| plain(&entry.log_id)).collect())
    }

    /// Runs the oldest read that waits. Returns false if there is none.
    fn read_once(&mut self) -> bool {
        let read = self.store.lock().poll_read();
        let Some(read) = read else { return false };
        let result = read.run(&self.log);
        self.store.lock().handle_read(result).expect("the entries are there");
        true
    }
}

fn plain(id: &LogId) -> TermAndIndex {
    (term_of(id), id.index)
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn snapshot_up_to(last: LogId) -> SnapshotMeta {
    let all = BTreeMap::from([(ReplicaId(1), Member { node: link::NodeId(1) })]);
    let voters = vec![all.keys().copied().collect::<BTreeSet<_>>()];
    let membership = Membership::new(voters, all).expect("voters are members");
    SnapshotMeta {
        last_log_id: Some(last),
        last_membership: StoredMembership::new(Some(log_id(1, 0)), membership),
    }
}

/// Indexes of the log are used again when entries are replaced: durable old entries prove nothing about the new ones.
#[test]
fn entries_that_replace_pending_ones_are_not_reported_durable_with_them() {
    let mut bench = Bench::new();
    let _ = bench.append(1, 0..=5);
    {
        let mut store = bench.store.clone();
        let mut truncated = pin!(store.truncate_after(Some(log_id(1, 2))));
        while poll(truncated.as_mut()).is_pending() {
            assert!(bench.commit(), "it waits for pending writes");
        }
    }
    let mut is_flushed = bench.append(2, 3..=4);
    while !is_flushed() {
        assert!(bench.commit());
    }
    let found = bench.after_a_power_cut().found();
    assert_eq!(found, (None, vec![(1, 0), (1, 1), (1, 2), (2, 3), (2, 4)]));
}

/// A sync for each commit would double the number of syncs.
#[test]
fn the_committed_index_is_written_with_later_entries() {
    let mut bench = Bench::new();
    bench.store.set_save_committed_after(3);
    let found = |bench: &Bench| bench.store.lock().hard.committed.map(|last| last.index);
    for index in 0..6 {
        let _ = bench.append(1, index..=index);
        bench.commit_all();
        assert!(matches!(
            poll(pin!(bench.store.save_committed(Some(log_id(1, index))))),
            Poll::Ready(Ok(()))
        ));
        assert!(!bench.commit(), "nothing is written for a commit alone");
        assert_eq!(found(&bench), Some(index));
    }
    // Entry 3 was written when 0 to 2 were committed.
    let bench = bench.after_a_power_cut();
    assert_eq!(found(&bench), Some(2));
    assert_eq!(bench.store.lock().saved_committed, Some(2));

    let mut bench = Bench::new();
    let _ = bench.append(1, 0..=0);
    assert!(matches!(poll(pin!(bench.store.save_committed(Some(log_id(1, 0))))), Poll::Ready(Ok(()))));
    bench.commit_all();
    assert_eq!(found(&bench.after_a_power_cut()), Some(0), "written at once");
}

/// Raft never truncates a committed membership, and `openraft` takes the last but one for committed.
#[test]
fn all_memberships_but_the_last_one_are_committed() {
    for (saved, memberships, committed) in [
        (None, vec![], None),
        (None, vec![0], None),
        (None, vec![0, 3], Some(0)),
        (Some(1), vec![0, 3, 5], Some(3)),
        (Some(4), vec![0, 3, 5], Some(4)),
    ] {
        let mut bench = Bench::new();
        let entry = |index| {
            let payload = match memberships.contains(&index) {
                true => Payload::Membership(membership()),
                false => Payload::Normal(Command(Arc::new(vec![1]))),
            };
            Entry::new(log_id(1, index), payload)
        };
        let _ = bench.append_entries((0..=6).map(entry).collect());
        if let Some(saved) = saved {
            let saving = poll(pin!(bench.store.save_committed(Some(log_id(1, saved)))));
            assert!(matches!(saving, Poll::Ready(Ok(()))));
        }
        bench.commit_all();
        let bench = bench.after_a_power_cut();
        let found = bench.store.lock().hard.committed.map(|last| last.index);
        assert_eq!(found, committed, "memberships at {memberships:?}, {saved:?} saved");
        assert_eq!(bench.store.lock().saved_committed, saved);
    }
}

/// A leader has one log, so an entry of its term is in it with all before.
#[test]
fn entries_up_to_the_last_one_of_a_leader_are_those_of_its_snapshot() {
    let mut bench = Bench::new();
    assert_eq!(bench.store.lock().entries_as_of(Some(2)), (0, 0));
    let _ = bench.append(1, 0..=3);
    let _ = bench.append(2, 4..=6);
    assert!(matches!(poll(pin!(bench.store.save_committed(Some(log_id(1, 1))))), Poll::Ready(Ok(()))));
    assert_eq!(bench.store.lock().entries_as_of(Some(2)), (7, 7));
    assert_eq!(bench.store.lock().entries_as_of(Some(3)), (2, 7), "the leader of term 3 may have others");
    assert_eq!(bench.store.lock().entries_as_of(None), (2, 7), "so may another one");
}

/// Nobody may ask which commands a majority has.
#[test]
fn a_leader_forgets_commands_that_are_committed() {
    let mut bench = Bench::new();
    bench.store.lock().held_mut().set_term(Some(1));
    let _ = bench.append(1, 0..=8);
    let pending = |bench: &Bench| bench.store.lock().held_mut().pending();
    assert_eq!(pending(&bench), 9);
    for (committed, left) in [(3, 5), (3, 5), (8, 0)] {
        let saved = poll(pin!(bench.store.save_committed(Some(log_id(1, committed)))));
        assert!(matches!(saved, Poll::Ready(Ok(()))));
        assert_eq!(pending(&bench), left);
    }
    assert_eq!(bench.store.lock().held_mut().advance(None), 9);
}

/// Entries written before the snapshot would leave a gap, and the log would not open.
#[test]
fn entries_after_a_snapshot_are_not_written_before_it() {
    let mut reached = BTreeSet::new();
    for commits in 0..12 {
        let mut bench = Bench::new();
        let _ = bench.append(1, 0..=2);
        bench.commit_all();
        let store = bench.store.clone();
        let mut saved = pin!(save(store.clone(), snapshot_up_to(log_id(1, 10)), vec![(0, vec![7; 100])]));
        assert!(poll(saved.as_mut()).is_pending());
        let purged = bench.store.purge(log_id(1, 10));
        assert!(matches!(poll(pin!(purged)), Poll::Ready(Ok(()))));
        let mut is_flushed = bench.append(1, 11..=12);
        for _ in 0..commits {
            bench.commit();
        }
        let (is_saved, is_flushed) = (poll(saved.as_mut()).is_ready(), is_flushed());
        let (snapshot, entries) = bench.after_a_power_cut().found();
        assert_eq!(snapshot, is_saved.then_some((1, 10)), "after {commits} commits");
        let all = if is_saved { [(1, 11), (1, 12)].as_slice() } else { &[(1, 0), (1, 1), (1, 2)] };
        assert!(all.starts_with(&entries), "after {commits} commits: {entries:?}");
        assert!(!is_flushed || entries == [(1, 11), (1, 12)], "after {commits} commits: {entries:?}");
        reached.insert((is_saved, is_flushed));
    }
    assert_eq!(reached, BTreeSet::from([(false, false), (true, false), (true, true)]));
}

/// The leader of a snapshot may have other entries before its end than this replica. Then the replica's entries after
/// it do not follow.
#[test]
fn entries_after_a_snapshot_are_kept_only_if_they_follow_it() {
    for (term, behind) in [(2, vec![]), (1, vec![(1, 11), (1, 12)])] {
        let mut bench = Bench::new();
        let _ = bench.append(1, 0..=12);
        bench.commit_all();
        let store = bench.store.clone();
        let mut saved = pin!(save(store.clone(), snapshot_up_to(log_id(term, 10)), vec![(0, vec![7; 100])]));
        while poll(saved.as_mut()).is_pending() {
            assert!(bench.commit());
        }
        let mut bench = bench.after_a_power_cut();
        assert_eq!(bench.found(), (Some((term, 10)), behind.clone()));
        let next = behind.last().map_or(11, |(_, last)| last + 1);
        let mut is_flushed = bench.append(2, next..=next);
        bench.commit_all();
        assert!(is_flushed());
        let entries = behind.into_iter().chain([(2, next)]).collect();
        assert_eq!(bench.after_a_power_cut().found(), (Some((term, 10)), entries));
    }
}

/// Entries of a test of reads: ids, and the payload that follows from them.
#[derive(Default)]
struct Model {
    purged: Option<u64>,
    /// Last entry of the snapshot.
    snapshot: Option<u64>,
    entries: Vec<Entry>,
}

impl Model {
    fn next(&self) -> u64 {
        self.first() + self.entries.len() as u64
    }

    fn first(&self) -> u64 {
        self.purged.map_or(0, |purged| purged + 1)
    }

    fn range(&self, range: &Range<u64>) -> &[Entry] {
        let at = |index: u64| index.clamp(self.first(), self.next()) - self.first();
        let (begin, end) = (at(range.start) as usize, at(range.end) as usize);
        &self.entries[begin..end.max(begin)]
    }
}

/// A read in progress, and its range. It returns the first entries of the range only, if `is_limited`.
struct PendingRead {
    range: Range<u64>,
    is_limited: bool,
    future: Pin<Box<dyn Future<Output = io::Result<Vec<Entry>>>>>,
}

impl PendingRead {
    fn new(store: &Store, range: Range<u64>, is_limited: bool) -> Self {
        let (mut store, wanted) = (store.clone(), range.clone());
        let future = Box::pin(async move {
            match is_limited {
                true => store.limited_get_log_entries(wanted.start, wanted.end).await,
                false => store.try_get_log_entries(wanted).await,
            }
        });
        Self { range, is_limited, future }
    }

    /// Checks the read against the entries of the log now, if it has ended.
    fn has_ended(&mut self, model: &Model) -> bool {
        let Poll::Ready(found) = poll(self.future.as_mut()) else { return false };
        let found = found.expect("the log can be read");
        let expected = model.range(&self.range);
        if self.is_limited {
            let is_purged = self.range.start < model.first();
            assert!(expected.starts_with(&found), "{:?}", self.range);
            assert_eq!(found.is_empty(), is_purged || expected.is_empty(), "{:?}", self.range);
        } else {
            // Entries that were purged during the read may be there.
            let purged = found.iter().take_while(|entry| entry.log_id.index < model.first()).count();
            assert_eq!(&found[purged..], expected, "{:?}", self.range);
            assert!(found.is_sorted_by(|one, next| one.log_id.index + 1 == next.log_id.index));
        }
        true
    }
}

fn append(bench: &mut Bench, model: &mut Model, term: u64, count: u64) {
    let entry = |index| {
        Entry::new(log_id(term, index), Payload::Normal(Command(Arc::new(vec![(term + index) as u8; 150]))))
    };
    let (sender, _) = Types::oneshot();
    let entries: Vec<Entry> = (model.next()..model.next() + count).map(entry).collect();
    let appended = poll(pin!(bench.store.append(entries.clone(), IoFlushed::signal(sender))));
    assert!(matches!(appended, Poll::Ready(Ok(()))));
    model.entries.extend(entries);
}

/// Appends, truncates, purges and reads in a random order, on a log that frees segments. What is read is what a list
/// has, whether it is in memory, on the disk, or on its way there. So is what is found after a power cut.
#[test]
fn entries_in_memory_and_in_the_log_are_one_list() {
    let mut figures = (0, 0, 0, 0);
    for seed in 0..120 {
        let mut random = Random::new(seed);
        let (segment_bytes, cache_bytes) =
            (*random.pick(&[8 << 10, 64 << 10]), *random.pick(&[0, 700, 5_000]));
        let mut bench = Bench::with(segment_bytes, cache_bytes);
        bench.store.lock().started();
        let (mut model, mut term, mut reads) = (Model::default(), 1, Vec::<PendingRead>::new());
        for _ in 0..250 {
            match random.below(12) {
                0..=3 => {
                    append(&mut bench, &mut model, term, 1 + random.below(6) as u64);
                }
                4 if random.percent(30) => {
                    // Entries in a snapshot are committed.
                    let least = model.snapshot.map_or(0, |last| last + 1);
                    let next = least + random.below_u64(model.next() - least + 1);
                    let mut store = bench.store.clone();
                    let last = next.checked_sub(1).and_then(|last| bench.store.lock().terms.get(last));
                    let last = last.or(bench.store.lock().purged);
                    let mut truncated = pin!(store.truncate_after(last));
                    while poll(truncated.as_mut()).is_pending() {
                        assert!(bench.commit(), "it waits for pending writes");
                    }
                    model.entries.truncate((next - model.first()) as usize);
                    term += 1;
                }
                5 if random.percent(30) && !model.entries.is_empty() => {
                    let last = model.entries[random.below(model.entries.len())].log_id;
                    model.snapshot = model.snapshot.max(Some(last.index));
                    let saved = bench.store.clone();
                    let mut saved = pin!(save(saved, snapshot_up_to(last), vec![(0, vec![7; 10])]));
                    while poll(saved.as_mut()).is_pending() {
                        assert!(bench.commit());
                    }
                    let last = last.index.saturating_sub(random.below(20) as u64);
                    let last = bench.store.lock().wanted_purge().max(Some(last));
                    let last = last.and_then(|last| bench.store.lock().terms.get(last));
                    if let Some(last) = last {
                        assert!(matches!(poll(pin!(bench.store.purge(last))), Poll::Ready(Ok(()))));
                        model.entries.drain(..(last.index + 1 - model.first()) as usize);
                        model.purged = Some(last.index);
                    }
                }
                6..=8 => {
                    let start =
                        model.first().saturating_sub(2) + random.below(model.entries.len() + 4) as u64;
                    let range = start..start + random.below(30) as u64;
                    reads.push(PendingRead::new(&bench.store, range, random.percent(50)));
                }
                9 => {
                    bench.read_once();
                }
                _ => {
                    bench.commit();
                    bench.keeper.keep();
                }
            }
            reads.retain_mut(|read| !read.has_ended(&model));
            let raft_log = bench.store.lock();
            // More than the maximum is kept only of what is not durable.
            let can_evict = raft_log.cache.first() < raft_log.durable;
            assert!(raft_log.cache.bytes() <= cache_bytes || !can_evict);
        }
        while bench.read_once() {
            reads.retain_mut(|read| !read.has_ended(&model));
        }
        assert!(reads.is_empty(), "all reads have ended");
        let counters = bench.store.lock().read_counters();
        figures.0 += counters.cached;
        figures.1 += counters.stored;
        figures.2 += u64::from(term > 1);
        figures.3 += bench.log.stats().freed;
        // Entries that were truncated are in the log until others replace them.
        append(&mut bench, &mut model, term, 1);
        bench.commit_all();
        let (snapshot, entries) = bench.after_a_power_cut().found();
        let snapshot = snapshot.map_or(0, |(_, index)| index + 1);
        let left = model.range(&(snapshot..u64::MAX)).iter().map(|entry| plain(&entry.log_id));
        assert_eq!(entries, left.collect::<Vec<_>>(), "seed {seed}");
    }
    let (cached, stored, truncated, freed) = figures;
    assert!(cached > 1_000 && stored > 1_000 && truncated > 50 && freed > 50, "{figures:?}");
}

/// Entries of a segment that is free are not in the log: they could not leave memory.
#[test]
fn memory_is_bounded_when_segments_are_freed_whose_entries_are_all_in_memory() {
    let cache_bytes = 64 << 10;
    let mut bench = Bench::with(8 << 10, cache_bytes);
    bench.store.lock().started();
    let mut model = Model::default();
    append(&mut bench, &mut model, 1, 100);
    let store = bench.store.clone();
    let mut saved =
        pin!(save(store.clone(), snapshot_up_to(model.entries[90].log_id), vec![(0, vec![7; 10])]));
    while poll(saved.as_mut()).is_pending() {
        assert!(bench.commit());
    }
    assert_eq!(bench.store.lock().cache.first(), 0, "all entries are in memory");
    for _ in 0..50 {
        bench.keeper.keep();
        bench.commit_all();
        append(&mut bench, &mut model, 1, 20);
        bench.commit_all();
        assert!(bench.store.lock().cached_bytes() <= cache_bytes);
    }
    assert_eq!(bench.log.stats().freed, 0, "entries in the segments may have to be read");
    let wanted = bench.store.lock().wanted_purge().expect("segments that are to be freed");
    let purged = bench.store.purge(model.entries[wanted as usize].log_id);
    assert!(matches!(poll(pin!(purged)), Poll::Ready(Ok(()))));
    for _ in 0..20 {
        bench.keeper.keep();
        bench.commit_all();
    }
    assert!(bench.log.stats().freed > 0);
}

/// A replica that has failed purges nothing any more. It does not keep the segments of the node.
#[test]
fn a_failed_replica_frees_the_segments_that_its_snapshot_covers() {
    let mut bench = Bench::with(8 << 10, 0);
    let mut model = Model::default();
    for _ in 0..20 {
        append(&mut bench, &mut model, 1, 20);
        bench.commit_all();
    }
    let store = bench.store.clone();
    let last = model.entries[300].log_id;
    let mut saved = pin!(save(store.clone(), snapshot_up_to(last), vec![(0, vec![7; 10])]));
    while poll(saved.as_mut()).is_pending() {
        assert!(bench.commit());
    }
    let work = |bench: &mut Bench| {
        for _ in 0..20 {
            bench.keeper.keep();
            bench.commit_all();
        }
    };
    work(&mut bench);
    assert_eq!(bench.log.stats().freed, 0, "entries in them may have to be read");
    bench.store.lock().fail("bytes 5 to 9 are bad");
    work(&mut bench);
    let freed = bench.log.stats().freed;
    assert!(freed > 0);
    let (snapshot, entries) = bench.after_a_power_cut().found();
    assert_eq!((snapshot, entries.len()), (Some((1, 300)), 99), "{freed} segments are free");
}

/// Entries that were to be durable are not after a failure.
#[test]
fn a_failed_replica_waits_for_no_entry_to_become_durable() {
    let mut bench = Bench::new();
    let _ = bench.append(1, 0..=5);
    bench.store.lock().fail("the disk has failed");
    let store = bench.store.clone();
    let waited = poll(pin!(store.wait_durable()));
    assert!(matches!(waited, Poll::Ready(Err(_))), "{waited:?}");
}

fn finishes<F: Future>(bench: &mut Bench, future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = poll(future.as_mut()) {
            return output;
        }
        let has_read = bench.read_once();
        assert!(bench.commit() || has_read, "it waits for something that does not come");
    }
}

/// Parts of a test: numbers, and the byte and size of their content.
fn parts(of: &[(u32, u8, usize)]) -> Vec<(u32, Vec<u8>)> {
    of.iter().map(|(number, byte, size)| (*number, vec![*byte; *size])).collect()
}

/// A snapshot is sent from the log, with one part in memory, until another one replaces it.
#[test]
fn a_snapshot_is_read_from_the_log_until_another_one_replaces_it() {
    const MIB: usize = 1 << 20;
    for form in [SnapshotForm::Parts, SnapshotForm::Whole] {
        let all = parts(&[(0, 1, MIB), (7, 2, MIB), (0x1_0007, 3, MIB / 2)]);
        let mut bench = Bench::with(64 << 10, 0);
        bench.store.lock().started();
        let _ = bench.append(1, 0..=20);
        let saved = save(bench.store.clone(), snapshot_up_to(log_id(1, 10)), all.clone());
        finishes(&mut bench, saved).expect("the disk works");
        let Some(Snapshot { snapshot: SnapshotData::Stored(stored), .. }) = bench.store.lock().snapshot()
        else {
            panic!("a snapshot")
        };
        let mut expected = if form == SnapshotForm::Parts { stored.parts.encode() } else { Vec::new() };
        all.iter().for_each(|(_, bytes)| expected.extend(bytes));
        let mut reader = SnapshotReader::new(bench.store.clone(), &stored, form);
        assert_eq!(reader.size(), expected.len() as u64);
        let mut found = Vec::new();
        while found.len() < expected.len() {
            let piece = finishes(&mut bench, reader.read(found.len() as u64, 100_000));
            let piece = piece.expect("the snapshot is there");
            assert!((1..=100_000).contains(&piece.len()));
            found.extend(piece);
        }
        assert!(found == expected, "other bytes were read");
        for offset in [0, 1, 33, 44, 45, MIB, 2 * MIB + 7] {
            let piece = finishes(&mut bench, reader.read(offset as u64, 9)).expect("the snapshot is there");
            assert!(expected[offset..].starts_with(&piece) && !piece.is_empty(), "from {offset}");
        }
        assert_eq!(
            finishes(&mut bench, reader.read(found.len() as u64, 9)).expect("the end"),
            Vec::<u8>::new()
        );
        let saved = save(bench.store.clone(), snapshot_up_to(log_id(1, 15)), parts(&[(0, 9, 10)]));
        finishes(&mut bench, saved).expect("the disk works");
        let read = finishes(&mut bench, reader.read(100, 9));
        assert!(read.is_err(), "another snapshot has replaced it");
    }
}

/// Reads back all parts of the snapshot that this store has.
fn stored(bench: &mut Bench) -> BTreeMap<u32, Vec<u8>> {
    let Some(Snapshot { snapshot: SnapshotData::Stored(stored), .. }) = bench.store.lock().snapshot() else {
        return BTreeMap::new();
    };
    let numbers: Vec<u32> = stored.parts.0.keys().copied().collect();
    let mut found = BTreeMap::new();
    for number in numbers {
        let store = bench.store.clone();
        let read = store.read_part(PartOf::Checkpoint(stored.checkpoint), number + 1);
        let bytes = finishes(bench, read).expect("the part is there");
        assert_eq!(stored.parts.0[&number], PartInfo::of(&bytes));
        found.insert(number, bytes.to_vec());
    }
    found
}

/// Writes of snapshots in a random order: own ones and those of other replicas, complete, given up, and interrupted by
/// a power cut. A map says what has to be found, in the log that runs and in the one that is opened again.
#[test]
fn the_parts_of_the_last_complete_snapshot_are_found() {
    let mut figures = (0, 0, 0, 0);
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let mut bench = Bench::with(8 << 10, 0);
        bench.store.lock().started();
        let (mut model, mut index) = (BTreeMap::<u32, Vec<u8>>::new(), 0);
        for _ in 0..25 {
            // Another leader may send a snapshot up to the same index as one that was given up.
            index += random.below_u64(3);
            let meta = snapshot_up_to(log_id(1, index));
            let is_own = random.percent(50);
            let begun = if is_own {
                bench.store.begin_checkpoint(index + 1)
            } else {
                bench.store.begin_received(index + 1)
            };
            let Ok(writer) = begun else {
                assert!(bench.store.lock().checkpoint.written > index, "seed {seed}");
                continue;
            };
            let mut next = if is_own { model.clone() } else { BTreeMap::new() };
            for _ in 0..random.below(12) {
                let (number, size) = (random.below(9) as u32, random.below(600));
                let bytes = vec![random.draw() as u8; if is_own { size } else { size + 1 }];
                if !is_own && next.contains_key(&number) {
                    continue;
                }
                writer.put(number, &bytes).expect("the log works");
                if bytes.is_empty() {
                    next.remove(&number)
                } else {
                    next.insert(number, bytes)
                };
                if random.percent(30) {
                    bench.commit();
                    bench.keeper.keep();
                }
                assert!(matches!(bench.store.begin_received(index + 9), Err(NotBegun::Busy)));
            }
            match random.below(10) {
                0..=5 => {
                    if !is_own {
                        finishes(&mut bench, writer.all_durable()).expect("the disk works");
                        for (number, bytes) in &next {
                            let read = finishes(&mut bench, writer.read(*number)).expect("it is written");
                            assert!(read[..] == bytes[..], "seed {seed}");
                        }
                    }
                    finishes(&mut bench, writer.finish(meta)).expect("the disk works");
                    model = next;
                    figures.0 += 1;
                }
                6 | 7 => {
                    drop(writer);
                    figures.1 += 1;
                }
                _ => {
                    std::mem::forget(writer);
                    for _ in 0..random.below(9) {
                        bench.commit();
                    }
                    bench = bench.after_a_power_cut();
                    assert!(bench.parts == model, "seed {seed}");
                    bench.store.lock().started();
                    figures.2 += 1;
                }
            }
            assert!(stored(&mut bench) == model, "seed {seed}");
        }
        bench.commit_all();
        assert!(bench.after_a_power_cut().parts == model, "seed {seed}");
        figures.3 += u64::from(index > 10);
    }
    assert!(figures.0 > 500 && figures.1 > 200 && figures.2 > 200 && figures.3 > 100, "{figures:?}");
}

/// The parts of a snapshot that was given up would keep their segments, and those after them.
#[test]
fn a_snapshot_that_was_given_up_keeps_no_segment() {
    let mut bench = Bench::with(8 << 10, 0);
    bench.store.lock().started();
    let writer = bench.store.begin_received(50).expect("nothing is written");
    writer.put(3, &[7; 3_000]).expect("the log works");
    bench.commit_all();
    let mut model = Model::default();
    for _ in 0..30 {
        append(&mut bench, &mut model, 1, 20);
        bench.commit_all();
    }
    let purge = |bench: &mut Bench, model: &Model| {
        for _ in 0..30 {
            bench.keeper.keep();
            bench.commit_all();
        }
        let wanted = bench.store.lock().wanted_purge();
        if let Some(last) = wanted {
            let last = model.entries[last as usize].log_id;
            assert!(matches!(poll(pin!(bench.store.clone().purge(last))), Poll::Ready(Ok(()))));
        }
        for _ in 0..30 {
            bench.keeper.keep();
            bench.commit_all();
        }
    };
    purge(&mut bench, &model);
    assert_eq!(bench.log.stats().freed, 0, "a part of a snapshot is there");
    drop(writer);
    bench.commit_all();
    assert_eq!(bench.store.lock().snapshot_meta(), None);
    let last = model.entries[500].log_id;
    let saved = save_changes(bench.store.clone(), snapshot_up_to(last), parts(&[(1, 1, 100)]));
    finishes(&mut bench, saved).expect("the disk works");
    purge(&mut bench, &model);
    assert!(bench.log.stats().freed > 0);
    let bench = bench.after_a_power_cut();
    assert_eq!(bench.parts, parts(&[(1, 1, 100)]).into_iter().collect());
}

/// A replica whose only checkpoint is the end of one that was given up has no snapshot.
#[test]
fn a_replica_starts_after_its_first_snapshot_was_given_up() {
    let mut bench = Bench::new();
    let _ = bench.append(1, 0..=2);
    let writer = bench.store.begin_received(50).expect("nothing is written");
    writer.put(3, &[7; 30]).expect("the log works");
    drop(writer);
    bench.commit_all();
    let mut bench = bench.after_a_power_cut();
    assert_eq!(bench.found(), (None, vec![(1, 0), (1, 1), (1, 2)]));
    // The same snapshot comes again, with other parts.
    let saved = save(bench.store.clone(), snapshot_up_to(log_id(1, 49)), parts(&[(4, 1, 10)]));
    finishes(&mut bench, saved).expect("the disk works");
    assert_eq!(bench.after_a_power_cut().parts, parts(&[(4, 1, 10)]).into_iter().collect());
}

/// Versions before parts wrote these records.
#[test]
fn a_snapshot_of_an_earlier_version_is_found() {
    let mut bench = Bench::new();
    let group = STORAGE_GROUPS.entries;
    let meta = crate::wire::encode_meta(&snapshot_up_to(log_id(3, 9)));
    let hex: String = meta.iter().map(|byte| format!("{byte:02x}")).collect();
    let golden = "0103000000000000000900000000000000010100000000000000000000000000000\
                  01d0000000101000100000000000000010001000000000000000100000000000000";
    assert_eq!(hex, golden);
    let part = |part, bytes: &[u8]| Record::Part { group, part, checkpoint: 10, payload: bytes.into() };
    bench.log.append([
        part(0, &meta),
        part(1, b"abc"),
        part(2, b"de"),
        Record::Done { group, checkpoint: 10 },
    ]);
    bench.commit_all();
    let bench = bench.after_a_power_cut();
    assert_eq!(bench.found(), (Some((3, 9)), vec![]));
    assert_eq!(bench.parts, BTreeMap::from([(0, b"abc".to_vec()), (1, b"de".to_vec())]));
}

impl Bench {
    /// Writes what waits, and frees the segments that can be freed.
    fn keep(&mut self) {
        for _ in 0..20 {
            self.keeper.keep();
            self.commit_all();
        }
    }

    /// Takes a snapshot of another replica, and purges the entries before it.
    fn covers(&mut self, last: LogId) {
        let saved = save(self.store.clone(), snapshot_up_to(last), parts(&[(0, 7, 10)]));
        finishes(self, saved).expect("the disk works");
        assert!(matches!(poll(pin!(self.store.purge(last))), Poll::Ready(Ok(()))));
    }

    /// Takes the segments that the owner is asked for.
    fn asked(&mut self) -> Vec<Vacate> {
        let mut raft_log = self.store.lock();
        std::iter::from_fn(|| raft_log.poll_vacate()).collect()
    }
}

/// An owner of bodies is asked for each segment: also if a snapshot of another replica has replaced its entries, and if
/// the replica has failed.
#[test]
fn a_segment_is_freed_when_a_snapshot_covers_it_and_the_owner_has_kept_its_bodies() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum First {
        Snapshot,
        LaterSnapshot,
        Bodies,
        Failure,
    }
    for first in [First::Snapshot, First::LaterSnapshot, First::Bodies, First::Failure] {
        let mut bench = Bench::with(8 << 10, 0);
        bench.store.set_keeps_bodies(true);
        bench.store.lock().started();
        let mut model = Model::default();
        for _ in 0..20 {
            append(&mut bench, &mut model, 1, 20);
            bench.commit_all();
        }
        bench.keep();
        let asked = bench.asked();
        let entries: Vec<_> = asked.iter().map(|vacate| vacate.entries.expect("entries")).collect();
        assert!(entries.len() > 1 && entries[0].0 == 1 && bench.asked().is_empty(), "{entries:?}");
        let covered = if first == First::LaterSnapshot { 1_000 } else { 399 };
        if first != First::Bodies {
            bench.covers(log_id(1, covered));
        }
        if first == First::Failure {
            bench.store.lock().fail("bytes 5 to 9 are bad");
        }
        if first != First::Bodies {
            bench.keep();
            assert_eq!(bench.log.stats().freed, 0, "{first:?}");
        }
        for vacate in &asked {
            bench.store.lock().bodies_kept(vacate.segment);
        }
        if first == First::Bodies {
            bench.keep();
            assert_eq!(bench.log.stats().freed, 0, "entries may have to be read");
            bench.covers(log_id(1, covered));
        }
        bench.keep();
        assert_eq!(bench.log.stats().freed, asked.len() as u64, "{first:?}");
        assert_ne!(bench.asked(), [], "{first:?}: the next ones");
    }
}

/// Bodies that were kept are in segments, too. These have no entries of the group in the end.
#[test]
fn the_owner_is_asked_for_a_segment_that_has_only_its_bodies() {
    let mut bench = Bench::with(8 << 10, 0);
    bench.store.set_keeps_bodies(true);
    bench.store.lock().started();
    let mut model = Model::default();
    for _ in 0..20 {
        append(&mut bench, &mut model, 1, 20);
        bench.commit_all();
    }
    bench.covers(log_id(1, 399));
    let group = STORAGE_GROUPS.entries;
    let body: Arc<[u8]> = [9; 50].into();
    let keeps = |bench: &mut Bench, vacate: &Vacate| {
        let is_in = vacate.entries.is_some_and(|(first, last)| (first..=last).contains(&4));
        if is_in || vacate.bodies.contains(&4) {
            bench.log.append_bodies(group, vec![(4, body.clone())]);
        }
        bench.commit_all();
        bench.store.lock().bodies_kept(vacate.segment);
    };
    let (mut only_bodies, mut freed) = (0, 0);
    for _ in 0..300 {
        // Votes fill the log.
        for _ in 0..20 {
            bench.store.lock().write_hard_state();
        }
        bench.commit_all();
        bench.keep();
        for vacate in bench.asked() {
            if vacate.entries.is_none() {
                assert_eq!(vacate.bodies, [4]);
                freed = bench.log.stats().freed;
                bench.keep();
                assert!(bench.log.stats().freed <= freed, "the owner has not answered");
                only_bodies += 1;
            }
            keeps(&mut bench, &vacate);
            let read = bench.log.read_bodies(group, 4).expect("it is kept");
            assert!(
                matches!(read, storage::Bodies::InEntry(_)) || read == storage::Bodies::Kept(body.clone())
            );
        }
    }
    assert!(only_bodies > 2 && bench.log.stats().freed > freed, "{only_bodies}");
}
