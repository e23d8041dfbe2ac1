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

use crate::manifest::{Manifest, PartInfo};
use crate::raft_types::{Command, Entry, Membership, Payload, SnapshotMeta, StoredMembership, Vote};
use crate::wire::{self, Append, Body, Message, SnapshotForm, SnapshotPiece};
use crate::{
    Change, Committed, Config, Group, Leadership, LogGroup, Member, Replica, ReplicaId, Role, SnapshotError,
    StateMachine, StorageGroups, UnsupportedVersion,
};

mod heartbeats;
mod held;
mod install;
mod jobs;
mod owner;
mod pipeline;
mod segments;
mod writes;

const STORAGE_GROUPS: StorageGroups = StorageGroups { entries: GroupId(1), votes: GroupId(2) };
const GROUP: LogGroup = LogGroup(3);
const OWN: ReplicaId = ReplicaId(1);
const OTHER: ReplicaId = ReplicaId(2);

/// First of the large parts of a snapshot.
const LARGE_PARTS: u32 = 100;

/// State machine that counts its commands. Its snapshot has the eight bytes of the number, each in a part.
#[derive(Default)]
struct Counting {
    count: u64,
    /// True if snapshots have four more parts of 1 MiB.
    is_large: bool,
    checkpoint: Option<(u64, usize)>,
    parts: BTreeMap<u32, u8>,
}

impl StateMachine for Counting {
    type Effect = u64;

    const IS_STREAM: bool = true;

    fn apply(&mut self, committed: &Committed, effects: &mut Vec<u64>) -> Result<(), UnsupportedVersion> {
        self.count += 1;
        effects.push(committed.index);
        Ok(())
    }

    fn begin_checkpoint(&mut self) {
        self.checkpoint = Some((self.count, 0));
    }

    fn write_parts(&mut self, _: usize, out: &mut dyn FnMut(u32, &[u8])) -> bool {
        let Some((count, next)) = &mut self.checkpoint else { return true };
        if let Some(byte) = count.to_le_bytes().get(*next) {
            out(*next as u32, &[*byte]);
        } else {
            out(LARGE_PARTS + *next as u32, &vec![1; 1 << 20]);
        }
        *next += 1;
        *next == if self.is_large { 12 } else { 8 }
    }

    fn begin_restore(&mut self) {
        self.parts.clear();
    }

    /// Takes one part with all bytes, too: earlier versions sent that.
    fn restore_part(&mut self, part: u32, bytes: &[u8]) -> Result<(), SnapshotError> {
        if part < LARGE_PARTS {
            self.parts.extend((part..).zip(bytes.iter().copied()));
        }
        Ok(())
    }

    fn restored(&mut self, _: u64) -> Result<(), SnapshotError> {
        let bytes: Vec<u8> = self.parts.values().copied().collect();
        self.count = u64::from_le_bytes(bytes.try_into().map_err(|_| SnapshotError::Invalid)?);
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
        Self::on_disk(&FaultDisk::new(1), config)
    }

    fn on_disk(disk: &FaultDisk, config: Config) -> Self {
        let recorder = EventRecorder::default();
        let options = Options { segment_bytes: 64 << 10, entropy: Some([1; 48]), ..Options::default() };
        let disk = Arc::new(disk.clone());
        let opened = storage::open(disk, options, recorder.listener(), &mut |_| ()).expect("a log");
        let (log, found) = (opened.log.clone(), opened.recovery.groups);
        let group = Group::start(Time(0), config, opened.log, STORAGE_GROUPS, &found, Counting::default());
        Self {
            group: group.expect("nothing is damaged"),
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
        self.answers_call(self.calls, body);
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

    /// Proposes more than a snapshot waits for.
    fn proposes_many(&mut self) {
        for _ in 0..30 {
            self.group.propose(vec![1; 10], std::time::Duration::from_secs(5));
        }
        (0..20).for_each(|_| self.turns_once());
    }

    fn turns_without_the_disk(&mut self) {
        self.now += 10_000;
        handle_events(&mut self.group, &self.recorder);
        self.group.turn(Time(self.now));
        run_reads(&mut self.group, &self.log, self.read_error);
    }

    fn answers(&mut self) -> Vec<Body> {
        self.sent().into_iter().map(|(_, body)| body).collect()
    }

    /// Messages that the replica sends, with the numbers of their calls.
    fn sent(&mut self) -> Vec<(u32, Body)> {
        sent(&mut self.group)
    }

    fn answers_call(&mut self, call: u32, body: Body) {
        receive(&mut self.group, call, body);
    }
}

/// Passes events of the log to a replica.
fn handle_events(replica: &mut Replica, recorder: &EventRecorder) {
    for event in std::mem::take(&mut *sync::lock(&recorder.0)) {
        match event {
            LogEvent::Durable(group, index) => replica.durable(group, index),
            LogEvent::Checkpointed(group, index) => replica.checkpoint_durable(group, index),
            LogEvent::PartsDurable(group, parts) => replica.parts_durable(group, parts),
            LogEvent::Vacate(vacate) => replica.vacate(vacate),
            other => panic!("{other:?}"),
        }
    }
}

/// Runs the reads of a replica, or fails them with a reason.
fn run_reads(replica: &mut Replica, log: &Log, error: Option<&'static str>) {
    while let Some(read) = replica.poll_read() {
        replica.handle_read(match error {
            Some(why) => read.fail(why),
            None => read.run(log),
        });
    }
}

fn sent(replica: &mut Replica) -> Vec<(u32, Body)> {
    let frames = std::iter::from_fn(|| replica.poll_transmit());
    let messages = frames.filter_map(|transmit| wire::decode(&transmit.frame));
    messages.map(|message| (message.call, message.body)).collect()
}

/// Passes a message of the other replica.
fn receive(replica: &mut Replica, call: u32, body: Body) {
    let message = Message { group: GROUP, to: OWN, from: OTHER, call, body };
    replica.receive(node(OTHER), &wire::encode(b"", &message));
}

fn node(replica: ReplicaId) -> NodeId {
    NodeId(replica.0)
}

fn member(replica: ReplicaId) -> Member {
    Member { node: node(replica) }
}

pub(crate) fn membership() -> Membership {
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
    let others =
        (1..=22).map(|at| Entry::new(wire::log_id(1, at), Payload::Normal(Command(Arc::new(vec![1])))));
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
    let form = SnapshotForm::Whole;
    lone.receives(Body::Snapshot(SnapshotPiece { form, vote, meta, size: 8, offset: 0, bytes }));
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

/// A transfer needs no entry that is appended after the start.
#[test]
fn a_replica_that_was_restarted_takes_over_from_the_same_leader() {
    let disk = FaultDisk::new(1);
    let config = || Config::new(GROUP, OWN, member(OWN), 1);
    let mut lone = Lone::on_disk(&disk, config());
    follows(&mut lone, 10, 10, Some(9));
    drop(lone);
    let mut lone = Lone::on_disk(&disk.kill(), config());
    let vote = Vote { leader_id: openraft::impls::leader_id_std::LeaderId::new(1, OTHER), committed: true };
    let mut transfers = |last| {
        lone.receives(Body::Transfer { vote, to: OWN, last: Some(wire::log_id(1, last)) });
        (0..3).for_each(|_| lone.passes());
        lone.answers()
    };
    let is_candidate =
        |bodies: &[Body]| bodies.iter().any(|body| matches!(body, Body::Vote { is_transfer: true, .. }));
    let answers = transfers(10);
    assert!(answers.contains(&Body::Transferred { done: false }), "it lacks an entry: {answers:?}");
    assert!(!is_candidate(&answers));
    let answers = transfers(9);
    assert!(answers.contains(&Body::Transferred { done: true }), "{answers:?}");
    assert!(is_candidate(&answers));
}

/// A follower with a small cache, whose leader is the test. It has these entries, and the leader has committed all of
/// them up to `committed`.
fn follows(lone: &mut Lone, count: u64, size: usize, committed: Option<u64>) {
    let vote = Vote { leader_id: openraft::impls::leader_id_std::LeaderId::new(1, OTHER), committed: true };
    let entry = |index| match index {
        0 => Entry::new(wire::log_id(1, 0), Payload::Membership(membership())),
        _ => Entry::new(wire::log_id(1, index), Payload::Normal(Command(Arc::new(vec![1; size])))),
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

/// The follower's answers, and the leader's own requests.
#[test]
fn only_requests_without_entries_and_their_answers_are_heartbeats() {
    let mut lone = Lone::new();
    let heartbeats = |lone: &mut Lone| -> Vec<(bool, Option<bool>)> {
        let transmits = std::iter::from_fn(|| lone.group.poll_transmit());
        let entries = |body: Body| match body {
            Body::Append(append) => Some(append.entries.is_empty()),
            _ => None,
        };
        transmits
            .map(|sent| (sent.is_heartbeat, wire::decode(&sent.frame).and_then(|m| entries(m.body))))
            .collect()
    };
    follows(&mut lone, 10, 10, None);
    assert_eq!(heartbeats(&mut lone), [(false, None), (true, None)], "entries, and a request without them");

    let mut lone = Lone::new();
    lone.group.initialize(BTreeMap::from([(OWN, member(OWN))]));
    (0..5).for_each(|_| lone.passes());
    let patience = std::time::Duration::from_secs(5);
    lone.group.change_members(Change::AddLearner(OTHER, member(OTHER)), patience);
    lone.passes();
    let sent = heartbeats(&mut lone);
    assert!(sent.contains(&(true, Some(true))), "{sent:?}");
    assert!(sent.iter().all(|(is_heartbeat, is_empty)| Some(*is_heartbeat) == *is_empty), "{sent:?}");
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
    assert_eq!(lone.group.state().count, 0);
    follows(&mut lone, 400, 1_000, Some(399));
    assert_eq!((lone.group.state().count, lone.group.status(Time(lone.now)).failure), (399, None));
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

/// Snapshot of the leader up to an entry, in which the number of commands is 9.
struct Sent {
    form: SnapshotForm,
    vote: Vote,
    meta: SnapshotMeta,
    bytes: Vec<u8>,
}

impl Sent {
    fn new(form: SnapshotForm, term: u64, last: u64) -> Self {
        let vote =
            Vote { leader_id: openraft::impls::leader_id_std::LeaderId::new(term, OTHER), committed: true };
        let meta = SnapshotMeta {
            last_log_id: Some(wire::log_id(1, last)),
            last_membership: StoredMembership::new(Some(wire::log_id(1, 0)), membership()),
        };
        let content = 9_u64.to_le_bytes();
        let parts = (0..8).map(|part: u32| (part, PartInfo::of(&content[part as usize..][..1])));
        let mut bytes = match form {
            SnapshotForm::Parts => Manifest(parts.collect()).encode(),
            SnapshotForm::Whole => Vec::new(),
        };
        bytes.extend(content);
        Self { form, vote, meta, bytes }
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Sends bytes from an offset on. Returns the answer.
    fn send(&self, lone: &mut Lone, offset: u64, bytes: &[u8]) -> Option<(Vote, u64)> {
        let (form, vote, meta) = (self.form, self.vote, self.meta.clone());
        let size = self.size();
        lone.receives(Body::Snapshot(SnapshotPiece { form, vote, meta, size, offset, bytes: bytes.into() }));
        (0..20).for_each(|_| lone.turns_once());
        lone.answers().into_iter().find_map(|answer| match answer {
            Body::Received { vote, offset } => Some((vote, offset)),
            _ => None,
        })
    }

    /// Sends a piece of the snapshot. Returns the offset that is expected next.
    fn sends(&self, lone: &mut Lone, range: std::ops::Range<u64>) -> Option<u64> {
        let bytes = &self.bytes[range.start as usize..range.end as usize];
        self.send(lone, range.start, bytes).map(|(_, offset)| offset)
    }
}

const FORMS: [SnapshotForm; 2] = [SnapshotForm::Whole, SnapshotForm::Parts];

impl Lone {
    /// Next piece of a snapshot that the replica sends, and the number of its call.
    fn sends_piece(&mut self) -> (u32, SnapshotPiece) {
        for _ in 0..3_000 {
            let mut found = None;
            for (call, body) in self.sent() {
                match body {
                    Body::Snapshot(piece) => found = Some((call, piece)),
                    // A heartbeat to a replica without entries conflicts with nothing.
                    Body::Append(Append { previous: None, entries, .. }) if entries.is_empty() => {
                        self.answers_call(call, Body::Appended(crate::wire::Appended::All));
                    }
                    Body::Append(_) => {
                        self.answers_call(call, Body::Appended(crate::wire::Appended::Conflict));
                    }
                    _ => {}
                }
            }
            if let Some(found) = found {
                return found;
            }
            self.turns_once();
        }
        panic!("no snapshot is sent in 30 s");
    }

    /// Last entry of the snapshot, and the number of commands.
    fn snapshot_and_count(&self) -> (Option<u64>, u64) {
        (self.group.status(Time(self.now)).snapshot, self.group.state().count)
    }
}

/// A leader that had no answer to a piece sends the snapshot again. The replica answers what it has already.
#[test]
fn a_snapshot_goes_on_where_it_was_interrupted() {
    for form in FORMS {
        let mut lone = Lone::new();
        let (one, other) = (Sent::new(form, 1, 20), Sent::new(form, 1, 30));
        let size = one.size();
        assert_eq!(one.sends(&mut lone, 0..3), Some(3));
        // Another snapshot begins at its start.
        assert_eq!(other.sends(&mut lone, 3..5), Some(0));
        assert_eq!(other.sends(&mut lone, 0..4), Some(4));
        assert_eq!(other.sends(&mut lone, 0..4), Some(4));
        assert_eq!(other.sends(&mut lone, 4..size - 1), Some(size - 1));
        assert_eq!(lone.snapshot_and_count(), (None, 0));
        assert_eq!(other.sends(&mut lone, size - 1..size), Some(size));
        assert_eq!(lone.snapshot_and_count(), (Some(30), 9));
        // The replica has what is in an older one, and in the same one.
        assert_eq!((one.sends(&mut lone, 0..3), other.sends(&mut lone, 0..4)), (Some(size), Some(size)));
        assert_eq!(lone.group.status(Time(lone.now)).failure, None);
    }
}

/// Bytes of another replica never stop this one, and an incomplete or wrong snapshot changes nothing.
#[test]
fn a_snapshot_that_is_wrong_is_refused() {
    let sent = Sent::new(SnapshotForm::Parts, 1, 30);
    let size = sent.bytes.len();
    for at in 0..size {
        for value in [0, 1, 0x7f, 0xff] {
            if sent.bytes[at] == value {
                continue;
            }
            let mut lone = Lone::new();
            let mut bytes = sent.bytes.clone();
            bytes[at] = value;
            assert_eq!(sent.send(&mut lone, 0, &bytes), None, "byte {at} is {value}");
            assert_eq!(lone.snapshot_and_count(), (None, 0));
            let answer = sent.sends(&mut lone, 0..size as u64);
            let status = lone.group.status(Time(lone.now));
            assert_eq!(answer, Some(size as u64), "byte {at} is {value}: {status:?}");
            assert_eq!(lone.snapshot_and_count(), (Some(30), 9));
        }
    }
    let mut lone = Lone::new();
    let mut longer = sent.bytes.clone();
    longer.push(0);
    assert_eq!(sent.send(&mut lone, 0, &longer), None);
    assert_eq!(sent.sends(&mut lone, 1..5), Some(0), "its start is missing");
    // No entry of a later leader can be in a snapshot, and no snapshot is larger than the limit.
    let mut later = Sent::new(SnapshotForm::Parts, 1, 30);
    later.meta.last_log_id = Some(wire::log_id(2, 30));
    assert_eq!(later.sends(&mut lone, 0..5), None);
    later.meta.last_log_id = None;
    assert_eq!(later.sends(&mut lone, 0..5), None);
    let mut large = Sent::new(SnapshotForm::Whole, 1, 30);
    large.bytes = vec![0; 65];
    let mut small = Lone::on(Config { snapshot_bytes_max: 64, ..Config::new(GROUP, OWN, member(OWN), 1) });
    assert_eq!(large.sends(&mut small, 0..5), None);
    assert_eq!((lone.snapshot_and_count(), lone.group.status(Time(lone.now)).failure), ((None, 0), None));
}

/// A leader that was replaced must not take the place of the next one's snapshot.
#[test]
fn a_snapshot_of_a_later_leader_goes_on() {
    let mut lone = Lone::new();
    let (later, earlier) = (Sent::new(SnapshotForm::Parts, 2, 30), Sent::new(SnapshotForm::Parts, 1, 20));
    assert_eq!(earlier.sends(&mut lone, 0..5), Some(5));
    assert_eq!(later.sends(&mut lone, 0..7), Some(7));
    assert_eq!(earlier.send(&mut lone, 0, &earlier.bytes[..9]), Some((later.vote, 0)));
    assert_eq!(later.sends(&mut lone, 7..later.size()), Some(later.size()));
    assert_eq!(lone.snapshot_and_count(), (Some(30), 9));
}

/// Commits the entries of [`follows`] up to an index, without the disk.
fn commits(lone: &mut Lone, count: u64, last: u64) {
    let vote = Vote { leader_id: openraft::impls::leader_id_std::LeaderId::new(1, OTHER), committed: true };
    let (previous, committed) = (Some(wire::log_id(1, count - 1)), Some(wire::log_id(1, last)));
    lone.receives(Body::Append(Append { vote, previous, committed, entries: Vec::new() }));
    (0..5).for_each(|_| lone.turns_without_the_disk());
}

/// The log has one unfinished checkpoint at a time. A snapshot of this replica waits while another one arrives, not for
/// ever, and not if the log needs a segment.
#[test]
fn an_own_snapshot_waits_for_one_that_arrives() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum End {
        Arrives,
        Stalls,
        SegmentIsWanted,
    }
    for end in [End::Arrives, End::Stalls, End::SegmentIsWanted] {
        let mut lone = Lone::with_snapshots();
        follows(&mut lone, 40, 100, None);
        let sent = Sent::new(SnapshotForm::Parts, 1, 60);
        assert_eq!(sent.sends(&mut lone, 0..sent.size() - 3), Some(sent.size() - 3));
        commits(&mut lone, 40, 39);
        (0..20).for_each(|_| lone.turns_once());
        assert_eq!(lone.snapshot_and_count(), (None, 39), "{end:?}: it waits");
        let rest = sent.size() - 3..sent.size();
        match end {
            End::Arrives => {
                assert_eq!(sent.sends(&mut lone, rest), Some(sent.size()));
                assert_eq!(lone.snapshot_and_count(), (Some(60), 9));
                continue;
            }
            End::Stalls => (0..25).for_each(|_| lone.passes()),
            End::SegmentIsWanted => {
                let segment = SegmentId(1);
                lone.group.vacate(Vacate {
                    group: STORAGE_GROUPS.entries,
                    segment,
                    entries: Some((1, 35)),
                    bodies: Vec::new(),
                });
                (0..20).for_each(|_| lone.turns_once());
            }
        }
        assert_eq!(lone.snapshot_and_count(), (Some(39), 39), "{end:?}");
        // The transfer begins again.
        assert_eq!(sent.sends(&mut lone, rest), Some(0), "{end:?}");
        assert_eq!(sent.sends(&mut lone, 0..sent.size()), Some(sent.size()), "{end:?}");
        assert_eq!(lone.snapshot_and_count(), (Some(60), 9), "{end:?}");
    }
}

/// A snapshot that arrives waits while this replica writes its own.
#[test]
fn a_snapshot_that_arrives_waits_for_an_own_one() {
    let mut lone = Lone::with_snapshots();
    lone.group.state_mut().is_large = true;
    follows(&mut lone, 40, 100, None);
    commits(&mut lone, 40, 39);
    let sent = Sent::new(SnapshotForm::Parts, 1, 60);
    let (form, vote, meta) = (sent.form, sent.vote, sent.meta.clone());
    let size = sent.size();
    let piece = SnapshotPiece { form, vote, meta, size, offset: 0, bytes: sent.bytes[..5].into() };
    lone.receives(Body::Snapshot(piece));
    (0..5).for_each(|_| lone.turns_without_the_disk());
    assert_eq!(lone.answers().iter().filter(|body| matches!(body, Body::Received { .. })).count(), 0);
    (0..20).for_each(|_| lone.turns_once());
    assert!(lone.answers().contains(&Body::Received { vote, offset: 5 }));
    assert_eq!(lone.snapshot_and_count(), (Some(39), 39));
    assert_eq!(sent.sends(&mut lone, 5..size), Some(size));
    assert_eq!(lone.snapshot_and_count(), (Some(60), 9));
}

/// A leader makes no snapshot while one is sent, as long as the transfer advances. Otherwise the transfer would begin
/// again with each snapshot.
#[test]
fn the_next_snapshot_waits_while_a_transfer_advances() {
    let patience = std::time::Duration::from_secs(5);
    for reads_parts in [false, true] {
        let config = Config { snapshot_piece_bytes: 3, ..Config::new(GROUP, OWN, member(OWN), 1) };
        let mut lone = Lone::on(Config { snapshot_after: 20, keep_entries: 0, ..config });
        if reads_parts {
            lone.group.set_part_readers(BTreeSet::from([node(OTHER)]));
        }
        lone.group.initialize(BTreeMap::from([(OWN, member(OWN))]));
        (0..5).for_each(|_| lone.passes());
        lone.proposes_many();
        let first = lone.group.status(Time(lone.now)).snapshot;
        assert!(first >= Some(20), "{first:?}");
        lone.group.change_members(Change::AddLearner(OTHER, member(OTHER)), patience);
        // The learner takes one piece each five seconds.
        let (mut received, mut size, mut forms) = (0, u64::MAX, BTreeSet::new());
        while received < size {
            let (call, piece) = lone.sends_piece();
            lone.proposes_many();
            (0..5).for_each(|_| lone.passes());
            let snapshot = lone.group.status(Time(lone.now)).snapshot;
            assert_eq!(snapshot, first, "after {received} of {size} bytes");
            (received, size) = (piece.offset + piece.bytes.len() as u64, piece.size);
            forms.insert(piece.form == SnapshotForm::Parts);
            lone.answers_call(call, Body::Received { vote: piece.vote, offset: received });
        }
        assert_eq!(forms, BTreeSet::from([reads_parts]));
        (0..20).for_each(|_| lone.turns_once());
        let second = lone.group.status(Time(lone.now)).snapshot;
        assert!(second > first, "{second:?}: the transfer has ended");
    }
}

/// A transfer whose receiver is silent, or begins again and again, holds up no snapshot.
#[test]
fn the_next_snapshot_does_not_wait_for_a_transfer_that_has_stalled() {
    let patience = std::time::Duration::from_secs(5);
    for answers in [false, true] {
        let mut lone = Lone::with_snapshots();
        lone.group.initialize(BTreeMap::from([(OWN, member(OWN))]));
        (0..5).for_each(|_| lone.passes());
        lone.proposes_many();
        let first = lone.group.status(Time(lone.now)).snapshot;
        lone.group.change_members(Change::AddLearner(OTHER, member(OTHER)), patience);
        for _ in 0..10 {
            let (call, piece) = lone.sends_piece();
            lone.proposes_many();
            if answers {
                lone.answers_call(call, Body::Received { vote: piece.vote, offset: 0 });
                lone.passes();
            } else {
                break;
            }
        }
        assert_eq!(lone.group.status(Time(lone.now)).snapshot, first);
        (0..30).for_each(|_| lone.passes());
        let second = lone.group.status(Time(lone.now)).snapshot;
        assert!(second > first, "{second:?}: it has stalled");
    }
}

/// A leader that had no answer asks again while the snapshot is installed. The replica has its entries, but a power cut
/// would take them.
#[test]
fn a_snapshot_is_not_acknowledged_before_it_is_durable() {
    let mut lone = Lone::new();
    let sent = Sent::new(SnapshotForm::Parts, 1, 30);
    assert_eq!(sent.sends(&mut lone, 0..sent.size() - 1), Some(sent.size() - 1));
    let piece = |offset: u64| {
        let bytes = sent.bytes[offset as usize..].into();
        let (form, vote, meta) = (sent.form, sent.vote, sent.meta.clone());
        Body::Snapshot(SnapshotPiece { form, vote, meta, size: sent.size(), offset, bytes })
    };
    lone.receives(piece(sent.size() - 1));
    while lone.group.state().count == 0 {
        lone.turns_without_the_disk();
        if lone.group.state().count == 0 {
            lone.writer.commit_once().expect("the disk works");
        }
    }
    lone.receives(piece(0));
    (0..5).for_each(|_| lone.turns_without_the_disk());
    assert_eq!(lone.group.state().count, 9);
    let is_answer = |body: &Body| matches!(body, Body::Received { .. });
    assert!(!lone.answers().iter().any(is_answer), "it is not durable");
    (0..20).for_each(|_| lone.turns_once());
    assert_eq!(lone.answers().iter().filter(|body| is_answer(body)).count(), 2);
    assert_eq!(lone.snapshot_and_count(), (Some(30), 9));
}

#[test]
fn a_replica_says_when_it_leads_and_when_it_follows() {
    let mut lone = Lone::new();
    let says = |lone: &mut Lone| std::iter::from_fn(|| lone.group.poll_leadership()).collect::<Vec<_>>();
    lone.group.initialize(BTreeMap::from([(OWN, member(OWN))]));
    (0..5).for_each(|_| lone.passes());
    let term = lone.group.status(Time(lone.now)).term;
    assert_eq!(says(&mut lone), [Leadership::Leads(term)]);
    lone.passes();
    assert_eq!(says(&mut lone), []);
    lone.group.fail("the disk has failed");
    lone.passes();
    assert_eq!(says(&mut lone), [Leadership::Follows]);
}

/// Effects come in the order of the commands, and before the outcomes of their proposals.
#[test]
fn effects_precede_the_outcomes_of_proposals() {
    let patience = std::time::Duration::from_secs(5);
    let mut lone = Lone::new();
    lone.group.initialize(BTreeMap::from([(OWN, member(OWN))]));
    (0..5).for_each(|_| lone.passes());
    let mut proposed: Vec<_> = (0..1_000).map(|_| lone.group.propose(vec![1], patience)).collect();
    let (mut effects, mut last) = (Vec::new(), 0);
    while !proposed.is_empty() {
        lone.turns_once();
        effects.extend(lone.group.drain_effects());
        assert!(effects.is_sorted());
        for event in std::iter::from_fn(|| lone.group.poll_event()) {
            let Ok(crate::Outcome::Applied(index)) = event.outcome else { continue };
            assert!(effects.contains(&index) && index > last);
            last = index;
            proposed.retain(|request| *request != event.request);
        }
    }
    assert_eq!((effects.len(), lone.group.state().count), (1_000, 1_000));
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
    // It is the only voter, and leads again at its next tick.
    let follows = (0..10).any(|_| {
        lone.turns_once();
        lone.group.status(Time(lone.now)).role != Role::Leader
    });
    (0..10).for_each(|_| lone.turns_once());
    assert_eq!((follows, lone.group.status(Time(lone.now)).failure), (true, None));
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
    assert_eq!((lone.group.state().count, lone.group.status(Time(lone.now)).snapshot), (39, None));
    lone.group.vacate(Vacate {
        group: STORAGE_GROUPS.entries,
        segment: SegmentId(1),
        entries: Some((1, 35)),
        bodies: Vec::new(),
    });
    (0..5).for_each(|_| lone.turns_without_the_disk());
    (0..20).for_each(|_| lone.turns_once());
    assert_eq!(lone.group.status(Time(lone.now)).snapshot, Some(39));
}
