//! Tests of one replica, whose peers are the test.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use link::{NodeId, Time};
use openraft::entry::RaftEntry as _;
use openraft::vote::RaftLeaderId as _;
use storage::fault::FaultDisk;
use storage::{
    Commit, ForEachEvent, GroupId, Log, LogEvent, LogListener, Options, SegmentId, Vacate, Writer,
};

use crate::raft_types::{Command, Entry, Membership, Payload, SnapshotMeta, StoredMembership, Vote};
use crate::wire::{self, Append, Body, Message};
use crate::{
    Change, Config, Group, LogGroup, Member, ReplicaId, Role, SnapshotError, StateMachine, StorageGroups,
    UnsupportedVersion,
};

const STORAGE_GROUPS: StorageGroups = StorageGroups { entries: GroupId(1), votes: GroupId(2) };
const GROUP: LogGroup = LogGroup(3);
const OWN: ReplicaId = ReplicaId(1);
const OTHER: ReplicaId = ReplicaId(2);

/// State machine that counts its commands.
#[derive(Default)]
struct Counting(u64);

impl StateMachine for Counting {
    fn apply(&mut self, _: u64, _: &[u8]) -> Result<Vec<u8>, UnsupportedVersion> {
        self.0 += 1;
        Ok(Vec::new())
    }

    fn snapshot(&self) -> Vec<u8> {
        self.0.to_le_bytes().into()
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), SnapshotError> {
        self.0 = u64::from_le_bytes(snapshot.try_into().map_err(|_| SnapshotError::Invalid)?);
        Ok(())
    }
}

/// Events of the log that the replica has not handled yet.
#[derive(Clone, Default)]
pub(crate) struct EventRecorder(pub Arc<Mutex<Vec<LogEvent>>>);

impl EventRecorder {
    pub fn listener(&self) -> Box<dyn LogListener> {
        let events = self.0.clone();
        Box::new(ForEachEvent(move |event| sync::lock(&events).push(event)))
    }
}

struct Lone {
    group: Group<Counting>,
    writer: Writer,
    recorder: EventRecorder,
    log: Log,
    /// Reason why reads of the log fail.
    read_error: Option<&'static str>,
    now: u64,
    calls: u32,
}

impl Lone {
    fn new() -> Self {
        Self::with(4 << 20)
    }

    fn with(entry_cache_bytes: usize) -> Self {
        Self::on(Config { entry_cache_bytes, ..Config::new(GROUP, OWN, member(OWN), 1) })
    }

    /// A replica that makes a snapshot each 20 entries and keeps none of them.
    fn with_snapshots() -> Self {
        Self::on(Config { snapshot_after: 20, keep_entries: 0, ..Config::new(GROUP, OWN, member(OWN), 1) })
    }

    fn on(config: Config) -> Self {
        let recorder = EventRecorder::default();
        let options = Options { segment_bytes: 64 << 10, entropy: Some([1; 48]), ..Options::default() };
        let disk = Arc::new(FaultDisk::new(1));
        let opened = storage::open(disk, options, recorder.listener(), &mut |_| ()).expect("a new log");
        let log = opened.log.clone();
        let group = Group::start(Time(0), config, opened.log, STORAGE_GROUPS, &[], Counting::default());
        Self {
            group: group.expect("nothing is there yet"),
            writer: opened.writer,
            recorder,
            log,
            read_error: None,
            now: 0,
            calls: 0,
        }
    }

    fn receives(&mut self, body: Body) {
        self.calls += 1;
        let message = Message { group: GROUP, to: OWN, from: OTHER, call: self.calls, body };
        self.group.receive(node(OTHER), &wire::encode(&message));
    }

    /// Runs one second, in 100 turns.
    fn passes(&mut self) {
        (0..100).for_each(|_| self.turns_once());
    }

    /// Writes what waits, and makes a turn.
    fn turns_once(&mut self) {
        while let Ok(Commit::Wrote { .. }) = self.writer.commit_once() {}
        self.turns_without_the_disk();
    }

    fn turns_without_the_disk(&mut self) {
        self.now += 10_000;
        for event in std::mem::take(&mut *sync::lock(&self.recorder.0)) {
            match event {
                LogEvent::Durable(group, index) => self.group.durable(group, index),
                LogEvent::Checkpointed(group, index) => self.group.checkpoint_durable(group, index),
                LogEvent::Vacate(vacate) => self.group.vacate(vacate),
                other => panic!("{other:?}"),
            }
        }
        self.group.turn(Time(self.now));
        while let Some(read) = self.group.poll_read() {
            let result = match self.read_error {
                Some(why) => read.fail(why),
                None => read.run(&self.log),
            };
            self.group.handle_read(result);
        }
    }

    fn answers(&mut self) -> Vec<Body> {
        self.sent().into_iter().map(|(_, body)| body).collect()
    }

    /// Messages that the replica sends, with the numbers of their calls.
    fn sent(&mut self) -> Vec<(u32, Body)> {
        let frames = std::iter::from_fn(|| self.group.poll_transmit());
        let messages = frames.filter_map(|transmit| wire::decode(&transmit.frame));
        messages.map(|message| (message.call, message.body)).collect()
    }

    fn answers_call(&mut self, call: u32, body: Body) {
        let message = Message { group: GROUP, to: OWN, from: OTHER, call, body };
        self.group.receive(node(OTHER), &wire::encode(&message));
    }
}

fn node(replica: ReplicaId) -> NodeId {
    NodeId(replica.0)
}

fn member(replica: ReplicaId) -> Member {
    Member { node: node(replica) }
}

fn membership() -> Membership {
    let all = [OWN, OTHER];
    let members: BTreeMap<_, _> = all.map(|replica| (replica, member(replica))).into();
    Membership::new(vec![BTreeSet::from(all)], members).expect("voters are members")
}

/// A replica that was stopped for a while finds entries and an older snapshot of the same leader in one turn. When it
/// looks for the last entry of the snapshot, the entries are not in its log yet. `openraft` would assume that its log
/// is shorter than it is.
#[test]
fn a_snapshot_that_arrives_with_later_entries_is_not_installed() {
    let vote = Vote { leader_id: openraft::impls::leader_id_std::LeaderId::new(1, OTHER), committed: true };
    let first = Entry::new(wire::log_id(1, 0), Payload::Membership(membership()));
    let others = (1..=22).map(|at| Entry::new(wire::log_id(1, at), Payload::Normal(Command(vec![1]))));
    let all: Vec<Entry> = std::iter::once(first).chain(others).collect();
    let append = |from: usize, to: usize| {
        let previous = from.checked_sub(1).map(|at| wire::log_id(1, at as u64));
        Body::Append(Append { vote, previous, committed: None, entries: all[from..to].to_vec() })
    };
    let mut lone = Lone::new();
    lone.receives(append(0, 10));
    lone.passes();
    lone.receives(append(10, 23));
    let meta = SnapshotMeta {
        last_log_id: Some(wire::log_id(1, 15)),
        last_membership: StoredMembership::new(Some(wire::log_id(1, 0)), membership()),
    };
    let bytes = 15_u64.to_le_bytes().to_vec();
    lone.receives(Body::Snapshot { vote, meta, size: 8, offset: 0, bytes });
    lone.passes();
    let status = lone.group.status(Time(lone.now));
    assert_eq!((status.failure, status.last, status.snapshot), (None, Some(22), None));
    let answers = lone.answers();
    assert!(
        answers.contains(&Body::Received { vote, offset: 8 }),
        "the leader assumes that it is installed: {answers:?}"
    );
}

/// Nothing waits for the log when it fails. Without [`Group::fail`], the failure would go unnoticed until the next
/// proposal.
#[test]
fn a_leader_whose_log_has_failed_stops_leading() {
    let mut lone = Lone::new();
    lone.group.initialize(BTreeMap::from([(OWN, member(OWN))]));
    (0..5).for_each(|_| lone.passes());
    assert_eq!(lone.group.status(Time(lone.now)).role, Role::Leader);
    let patience = std::time::Duration::from_secs(5);
    lone.group.change_members(Change::AddLearner(OTHER, member(OTHER)), patience);
    lone.passes();
    lone.answers();
    lone.passes();
    assert_ne!(lone.answers(), [], "the leader sends the change");
    lone.group.fail("the disk has failed");
    let status = lone.group.status(Time(lone.now));
    assert_eq!((status.role, status.failure.as_deref()), (Role::Stopped, Some("the disk has failed")));
    lone.answers();
    (0..5).for_each(|_| lone.passes());
    assert_eq!(lone.answers(), [], "it sends nothing any more");
    let asked = lone.group.propose(vec![1], patience);
    (0..6).for_each(|_| lone.passes());
    let event = std::iter::from_fn(|| lone.group.poll_event()).find(|event| event.request == asked);
    assert!(event.is_some_and(|event| event.outcome.is_err()));
}

/// A follower with a small cache, whose leader is the test. It has these entries, and the leader has committed all of
/// them up to `committed`.
fn follows(lone: &mut Lone, count: u64, size: usize, committed: Option<u64>) {
    let vote = Vote { leader_id: openraft::impls::leader_id_std::LeaderId::new(1, OTHER), committed: true };
    let entry = |index| match index {
        0 => Entry::new(wire::log_id(1, 0), Payload::Membership(membership())),
        _ => Entry::new(wire::log_id(1, index), Payload::Normal(Command(vec![1; size]))),
    };
    for first in (0..count).step_by(50) {
        let previous = first.checked_sub(1).map(|last| wire::log_id(1, last));
        let entries = (first..(first + 50).min(count)).map(entry).collect();
        lone.receives(Body::Append(Append { vote, previous, committed: None, entries }));
        lone.passes();
    }
    let (previous, committed) =
        (Some(wire::log_id(1, count - 1)), committed.map(|last| wire::log_id(1, last)));
    lone.receives(Body::Append(Append { vote, previous, committed, entries: Vec::new() }));
    lone.passes();
}

/// Entries that are committed late are no longer in memory, and are read back to be applied.
#[test]
fn memory_for_entries_is_bounded_and_older_ones_are_read_from_the_log() {
    let mut lone = Lone::with(16 << 10);
    follows(&mut lone, 400, 1_000, None);
    let cached = lone.group.cached_bytes();
    assert!(
        (10_000..=16 << 10).contains(&cached),
        "of 400 entries of 1,000 bytes, {cached} bytes are in memory"
    );
    assert_eq!(lone.group.state().0, 0);
    follows(&mut lone, 400, 1_000, Some(399));
    assert_eq!((lone.group.state().0, lone.group.status(Time(lone.now)).failure), (399, None));
    let counters = lone.group.counters();
    assert!(counters.stored_reads > 0 && counters.cached_reads > 0, "{counters:?}");
    assert!(lone.group.cached_bytes() <= 16 << 10);
}

/// A replica that cannot read its log does not vote.
#[test]
fn a_replica_that_cannot_read_its_entries_stops_and_says_so() {
    let mut lone = Lone::with(0);
    follows(&mut lone, 100, 1_000, None);
    lone.read_error = Some("bytes 5 to 9 are bad");
    follows(&mut lone, 100, 1_000, Some(99));
    let status = lone.group.status(Time(lone.now));
    assert_eq!((status.role, status.failure.as_deref()), (Role::Stopped, Some("bytes 5 to 9 are bad")));
    lone.answers();
    let vote = Vote { leader_id: openraft::impls::leader_id_std::LeaderId::new(9, OTHER), committed: false };
    let last = Some(wire::log_id(8, 1_000));
    lone.receives(Body::Vote { vote, last, is_pre_vote: false, is_transfer: true });
    lone.passes();
    let granted = |body: &Body| matches!(body, Body::Voted { granted: true, .. });
    assert!(!lone.answers().iter().any(granted));
}

/// A leader that had no answer to a piece sends the snapshot again. The replica answers what it has already.
#[test]
fn a_snapshot_goes_on_where_it_was_interrupted() {
    let vote = Vote { leader_id: openraft::impls::leader_id_std::LeaderId::new(1, OTHER), committed: true };
    let meta = |last| SnapshotMeta {
        last_log_id: Some(wire::log_id(1, last)),
        last_membership: StoredMembership::new(Some(wire::log_id(1, 0)), membership()),
    };
    let mut lone = Lone::new();
    let mut sends = |last: u64, offset: u64, bytes: &[u8]| {
        lone.receives(Body::Snapshot { vote, meta: meta(last), size: 8, offset, bytes: bytes.into() });
        lone.passes();
        let received = lone.answers().into_iter().find_map(|answer| match answer {
            Body::Received { offset, .. } => Some(offset),
            _ => None,
        });
        (received, lone.group.status(Time(lone.now)).snapshot, lone.group.state().0)
    };
    assert_eq!(sends(20, 0, &[1, 1, 1]), (Some(3), None, 0));
    // Another snapshot begins at its start.
    assert_eq!(sends(30, 3, &[9, 9]), (Some(0), None, 0));
    assert_eq!(sends(30, 0, &[9, 0, 0, 0]), (Some(4), None, 0));
    assert_eq!(sends(30, 0, &[9, 0, 0, 0]), (Some(4), None, 0));
    assert_eq!(sends(30, 4, &[0, 0, 0, 0]), (Some(8), Some(30), 9));
    assert_eq!(lone.group.snapshot_bytes(), 0, "it is durable");
}

/// The leader does not purge entries that it may be sending. When another replica leads, it sends none.
#[test]
fn a_purge_that_a_leader_postponed_is_made_when_another_replica_leads() {
    let mut lone = Lone::with_snapshots();
    let patience = std::time::Duration::from_secs(5);
    lone.group.initialize(BTreeMap::from([(OWN, member(OWN))]));
    (0..5).for_each(|_| lone.passes());
    lone.group.change_members(Change::AddLearner(OTHER, member(OTHER)), patience);
    (0..20).for_each(|_| lone.turns_once());
    // The learner has all entries so far, and does not answer any more.
    let mut answered = 0;
    while answered < 5 {
        for (call, body) in lone.sent() {
            if let Body::Append(_) = body {
                lone.answers_call(call, Body::Appended(crate::wire::Appended::All));
                answered += 1;
            }
        }
        lone.turns_once();
    }
    (0..30).for_each(|_| {
        lone.group.propose(vec![1; 1_000], patience);
    });
    (0..10).for_each(|_| lone.turns_once());
    let status = lone.group.status(Time(lone.now));
    assert!(status.role == Role::Leader && status.snapshot >= Some(20), "{status:?}");
    assert!(lone.group.cached_bytes() > 30_000, "the learner may need them");
    let vote = Vote { leader_id: openraft::impls::leader_id_std::LeaderId::new(9, OTHER), committed: true };
    lone.receives(Body::Append(Append { vote, previous: None, committed: None, entries: Vec::new() }));
    (0..10).for_each(|_| lone.turns_once());
    let status = lone.group.status(Time(lone.now));
    assert!(status.role != Role::Leader && status.failure.is_none(), "{status:?}");
    let cached = lone.group.cached_bytes();
    assert!(cached < 15_000, "{cached} bytes are in memory");
}

/// `openraft` makes one snapshot at a time, and ignores other requests meanwhile. A group whose entries all are applied
/// has no other reason to ask again.
#[test]
fn a_segment_is_freed_although_a_snapshot_was_being_made_when_the_log_asked_for_it() {
    let mut lone = Lone::with_snapshots();
    follows(&mut lone, 40, 100, None);
    let vote = Vote { leader_id: openraft::impls::leader_id_std::LeaderId::new(1, OTHER), committed: true };
    let previous = Some(wire::log_id(1, 39));
    let commits = |lone: &mut Lone, last: u64| {
        let committed = Some(wire::log_id(1, last));
        lone.receives(Body::Append(Append { vote, previous, committed, entries: Vec::new() }));
        (0..5).for_each(|_| lone.turns_without_the_disk());
    };
    commits(&mut lone, 25);
    commits(&mut lone, 39);
    assert_eq!((lone.group.state().0, lone.group.status(Time(lone.now)).snapshot), (39, None));
    lone.group.vacate(Vacate { group: STORAGE_GROUPS.entries, segment: SegmentId(1), first: 1, last: 35 });
    (0..5).for_each(|_| lone.turns_without_the_disk());
    (0..20).for_each(|_| lone.turns_once());
    assert_eq!(lone.group.status(Time(lone.now)).snapshot, Some(39));
}
