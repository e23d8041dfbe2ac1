//! Tests of the data that a replica finds after a crash at any commit of the log. It finds what was reported as
//! flushed, and only entries that follow each other.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use openraft::entry::RaftEntry as _;
use openraft::type_config::TypeConfigExt as _;
use storage::fault::FaultDisk;
use storage::{Commit, Options, Writer};

use super::*;
use crate::raft_types::{Command, Membership, Payload, StoredMembership};
use crate::tests::EventRecorder;
use crate::{Member, ReplicaId};

const STORAGE_GROUPS: StorageGroups = StorageGroups { entries: GroupId(1), votes: GroupId(2) };

type TermAndIndex = (u64, u64);

/// A store on a log that writes one record of each priority in a commit.
struct Bench {
    disk: FaultDisk,
    writer: Writer,
    recorder: EventRecorder,
    store: Store,
}

impl Bench {
    fn new() -> Self {
        let mut bench = Self::on(FaultDisk::new(1));
        bench.commit_all();
        bench
    }

    fn on(disk: FaultDisk) -> Self {
        let options = Options {
            segment_bytes: 64 << 10,
            commit_bytes_max: 1,
            low_bytes_per_commit: 1,
            entropy: Some([1; 48]),
            ..Options::default()
        };
        let recorder = EventRecorder::default();
        let opened = storage::open(Arc::new(disk.clone()), options, Box::new(recorder.clone()), &mut |_| ())
            .unwrap_or_else(|error| panic!("the log does not open: {error}"));
        let store = Store::recover(opened.log, STORAGE_GROUPS, &opened.recovery.groups).expect("a replica's");
        Self { disk, writer: opened.writer, recorder, store }
    }

    fn after_a_power_cut(self) -> Self {
        Self::on(self.disk.crash())
    }

    /// Makes one commit and notifies the store. Returns false if there was nothing to write.
    fn commit(&mut self) -> bool {
        let committed = self.writer.commit_once().expect("the disk works");
        for (group, index, is_checkpoint) in std::mem::take(&mut *sync::lock(&self.recorder.0)) {
            let mut raft_log = self.store.lock();
            if is_checkpoint { raft_log.checkpointed(group, index) } else { raft_log.durable(group, index) }
        }
        committed != Commit::Idle
    }

    fn commit_all(&mut self) {
        while self.commit() {}
    }

    /// Appends entries of a term. The returned function tells whether they are durable.
    fn append(&mut self, term: u64, indexes: std::ops::RangeInclusive<u64>) -> impl FnMut() -> bool + use<> {
        let entry = |index| Entry::new(log_id(term, index), Payload::Normal(Command(vec![term as u8])));
        let (sender, mut receiver) = Types::oneshot();
        let appended = pin!(self.store.append(indexes.map(entry), IoFlushed::signal(sender)));
        assert!(matches!(poll(appended), Poll::Ready(Ok(()))));
        move || matches!(poll(Pin::new(&mut receiver)), Poll::Ready(Ok(Ok(()))))
    }

    /// Last entry of the snapshot, and the entries after it.
    fn found(&self) -> (Option<TermAndIndex>, Vec<TermAndIndex>) {
        let plain = |id: LogId| (term_of(&id), id.index);
        let raft_log = self.store.lock();
        (raft_log.purged.map(plain), raft_log.entries.iter().map(|entry| plain(entry.log_id)).collect())
    }
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
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

/// Entries written before the snapshot would leave a gap, and the log would not open.
#[test]
fn entries_after_a_snapshot_are_not_written_before_it() {
    let mut reached = BTreeSet::new();
    for commits in 0..12 {
        let mut bench = Bench::new();
        let _ = bench.append(1, 0..=2);
        bench.commit_all();
        let store = bench.store.clone();
        let mut saved = pin!(store.save_snapshot(snapshot_up_to(log_id(1, 10)), vec![7; 100].into()));
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
        let mut saved = pin!(store.save_snapshot(snapshot_up_to(log_id(term, 10)), vec![7; 100].into()));
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
