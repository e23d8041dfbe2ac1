//! Tests of one replica, whose peers are the test.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use link::{NodeId, Time};
use openraft::entry::RaftEntry as _;
use openraft::vote::RaftLeaderId as _;
use storage::fault::FaultDisk;
use storage::{Commit, GroupId, LogListener, Options, Vacate, Writer};

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

/// Events of the log: group and index, and whether the event is about a checkpoint.
#[derive(Clone, Default)]
pub(crate) struct EventRecorder(pub Arc<Mutex<Vec<(GroupId, u64, bool)>>>);

impl LogListener for EventRecorder {
    fn durable(&mut self, groups: &[(GroupId, u64)]) {
        sync::lock(&self.0).extend(groups.iter().map(|(group, index)| (*group, *index, false)));
    }

    fn checkpoint_durable(&mut self, group: GroupId, index: u64) {
        sync::lock(&self.0).push((group, index, true));
    }

    fn vacate(&mut self, _: Vacate) {}

    fn full(&mut self, _: storage::Shortage) {}

    fn room(&mut self) {}

    fn failed(&mut self, _: &storage::Error) {}
}

struct Lone {
    group: Group<Counting>,
    writer: Writer,
    recorder: EventRecorder,
    now: u64,
    calls: u32,
}

impl Lone {
    fn new() -> Self {
        let recorder = EventRecorder::default();
        let options = Options { segment_bytes: 64 << 10, entropy: Some([1; 48]), ..Options::default() };
        let disk = Arc::new(FaultDisk::new(1));
        let opened =
            storage::open(disk, options, Box::new(recorder.clone()), &mut |_| ()).expect("a new log");
        let config = Config::new(GROUP, OWN, member(OWN), 1);
        let group = Group::start(Time(0), config, opened.log, STORAGE_GROUPS, &[], Counting::default());
        Self {
            group: group.expect("nothing is there yet"),
            writer: opened.writer,
            recorder,
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
        for _ in 0..100 {
            self.now += 10_000;
            while let Ok(Commit::Wrote { .. }) = self.writer.commit_once() {}
            for (group, index, is_checkpoint) in std::mem::take(&mut *sync::lock(&self.recorder.0)) {
                match is_checkpoint {
                    true => self.group.checkpoint_durable(group, index),
                    false => self.group.durable(group, index),
                }
            }
            self.group.turn(Time(self.now));
        }
    }

    fn answers(&mut self) -> Vec<Body> {
        let frames = std::iter::from_fn(|| self.group.poll_transmit());
        frames.filter_map(|transmit| wire::decode(&transmit.frame)).map(|message| message.body).collect()
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
