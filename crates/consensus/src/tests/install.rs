//! Snapshots whose installation takes long: the owner fetches what the new state refers to.

use super::jobs::name;
use super::owner::{Owner, config, vote_of_other};
use super::*;
use crate::wire::Appended;
use crate::{Answer, GivenUp, Job};

/// A follower with entries up to index 5. Its owner does all jobs at once, except to prepare. The leader, which is the
/// test, sends heartbeats.
struct Follower {
    owner: Owner,
    /// Answer that the owner has not given, and the entry of its snapshot.
    prepares: Option<(u64, Answer<Result<(), GivenUp>>)>,
    jobs: Vec<&'static str>,
    /// Term of the leader.
    term: u64,
    turns: usize,
    answers: BTreeMap<u32, Body>,
}

fn entry(index: u64) -> Entry {
    let payload = match index {
        0 => Payload::Membership(membership()),
        _ => Payload::Normal(Command(Arc::new(vec![1]))),
    };
    Entry::new(wire::log_id(1, index), payload)
}

impl Follower {
    fn new() -> Self {
        Self::on(config())
    }

    fn on(config: Config) -> Self {
        let mut owner = Owner::on(config);
        owner.is_answered = false;
        let mut follower =
            Self { owner, prepares: None, jobs: Vec::new(), term: 1, turns: 0, answers: BTreeMap::new() };
        follower.appends(None, 0..=5);
        assert_eq!(follower.state(), (Some(5), None, 5));
        follower
    }

    /// Appends committed entries of the current leader.
    fn appends(&mut self, previous: Option<u64>, indexes: std::ops::RangeInclusive<u64>) {
        let (vote, previous) = (vote_of_other(self.term), previous.map(|last| wire::log_id(1, last)));
        let committed = Some(wire::log_id(1, *indexes.end()));
        let entries = indexes.map(entry).collect();
        self.owner.receives(Body::Append(Append { vote, previous, committed, entries }));
        (0..20).for_each(|_| self.turns_once());
    }

    /// Last entry that is applied, last entry of the snapshot, and number of commands.
    fn state(&self) -> (Option<u64>, Option<u64>, u64) {
        let status = self.owner.status();
        assert_eq!(status.failure, None);
        (status.applied, status.snapshot, self.owner.machine.count)
    }

    fn turns_once(&mut self) {
        self.turns += 1;
        if self.turns.is_multiple_of(50) {
            let vote = vote_of_other(self.term);
            let beat = Append { vote, previous: None, committed: None, entries: Vec::new() };
            self.owner.receives(Body::Append(beat));
        }
        self.owner.turns(1);
        while let Some(job) = self.owner.jobs.pop_front() {
            self.jobs.push(name(&job));
            match job {
                Job::Prepare { last, answer, .. } => self.prepares = Some((last, answer)),
                job => self.owner.does(job),
            }
        }
        for (call, body) in sent(&mut self.owner.replica) {
            assert!(!matches!(body, Body::Vote { .. }), "it stands for election");
            self.answers.insert(call, body);
        }
    }

    /// Sends bytes of a snapshot from an offset on, and returns the answer.
    fn asks(&mut self, of: &Sent, offset: u64) -> Body {
        let (form, vote, meta, size) = (of.form, of.vote, of.meta.clone(), of.size());
        let bytes = of.bytes[offset as usize..].to_vec();
        let call =
            self.owner.receives(Body::Snapshot(SnapshotPiece { form, vote, meta, size, offset, bytes }));
        for _ in 0..1_000 {
            self.turns_once();
            if let Some(answer) = self.answers.remove(&call) {
                return answer;
            }
        }
        panic!("no answer in 10 s");
    }

    /// Sends a whole snapshot, whose installation begins.
    fn gets(&mut self, sent: &Sent) {
        let vote = sent.vote;
        assert_eq!(self.asks(sent, 0), Body::Installing { vote });
        assert!(self.prepares.is_some());
    }

    fn is_prepared(&mut self, prepared: Result<(), GivenUp>) {
        let (_, answer) = self.prepares.take().expect("a snapshot to prepare");
        answer.send(prepared);
    }
}

/// The leader is notified of the installation. Its heartbeats keep the replica from standing for election.
#[test]
fn an_installation_may_take_a_minute() {
    let mut follower = Follower::new();
    let sent = Sent::new(SnapshotForm::Parts, 1, 30);
    let (vote, size) = (sent.vote, sent.size());
    let begin = follower.owner.now;
    follower.gets(&sent);
    let mut asked = 0;
    while follower.owner.now < begin + 60_000_000 {
        assert_eq!(follower.asks(&sent, size), Body::Installing { vote });
        asked += 1;
    }
    assert!((8..=15).contains(&asked), "{asked} questions in a minute");
    let heartbeats = follower.answers.values().filter(|body| **body == Body::Appended(Appended::All));
    assert!(heartbeats.count() > 100);
    assert_eq!(follower.state(), (Some(5), None, 5));
    assert_eq!(follower.owner.status().leader, Some(OTHER));
    follower.is_prepared(Ok(()));
    assert_eq!(follower.asks(&sent, size), Body::Received { vote, offset: size });
    assert_eq!(follower.state(), (Some(30), Some(30), 9));
    // A leader that begins again has nothing to send.
    assert_eq!(follower.asks(&sent, 0), Body::Received { vote, offset: size });
    follower.appends(Some(30), 31..=31);
    assert_eq!(follower.state(), (Some(31), Some(30), 10));
    assert!(!follower.jobs.contains(&"abandon"));
}

/// Nothing changes when the owner gives up, and the leader does not send the snapshot again at once.
#[test]
fn an_owner_may_give_an_installation_up() {
    let mut follower = Follower::new();
    let sent = Sent::new(SnapshotForm::Parts, 1, 30);
    let (vote, size) = (sent.vote, sent.size());
    follower.gets(&sent);
    follower.is_prepared(Err(GivenUp));
    let begin = follower.owner.now;
    let answer = follower.asks(&sent, size);
    assert!(answer == Body::Refused && follower.owner.now - begin > 3_000_000, "{answer:?}");
    assert_eq!(follower.state(), (Some(5), None, 5));
    assert_eq!(follower.jobs.last(), Some(&"abandon"));
    assert_eq!(follower.asks(&sent, size), Body::Received { vote, offset: 0 }, "it begins again");
    follower.gets(&sent);
    follower.is_prepared(Ok(()));
    assert_eq!(follower.asks(&sent, size), Body::Received { vote, offset: size });
    assert_eq!(follower.state(), (Some(30), Some(30), 9));
}

/// The next leader has a snapshot of its own. Only that one can be confirmed to it.
#[test]
fn the_snapshot_of_the_next_leader_replaces_one_that_is_being_installed() {
    let mut follower = Follower::new();
    let (first, next) = (Sent::new(SnapshotForm::Parts, 1, 30), Sent::new(SnapshotForm::Parts, 2, 40));
    follower.gets(&first);
    let (_, answer) = follower.prepares.take().expect("a snapshot to prepare");
    follower.term = 2;
    follower.gets(&next);
    assert!(answer.is_closed());
    answer.send(Ok(()));
    let restores = ["begin to restore", "abandon"].map(|job| {
        let those = follower.jobs.iter().enumerate().filter(|(_, known)| **known == job);
        those.map(|(at, _)| at).collect::<Vec<_>>()
    });
    let [begun, abandoned] = &restores;
    assert!(begun.len() == 2 && abandoned.len() == 1 && abandoned[0] < begun[1], "{:?}", follower.jobs);
    assert_eq!(follower.asks(&first, 0), Body::Received { vote: next.vote, offset: 0 });
    assert_eq!(follower.prepares.as_ref().map(|(last, _)| *last), Some(40));
    follower.is_prepared(Ok(()));
    assert_eq!(follower.asks(&next, next.size()), Body::Received { vote: next.vote, offset: next.size() });
    assert_eq!(follower.state(), (Some(40), Some(40), 9));
}

/// The next leader has the entries that the replica lacks, so no snapshot is needed.
#[test]
fn an_installation_ends_when_its_entries_arrive() {
    let mut follower = Follower::new();
    let sent = Sent::new(SnapshotForm::Parts, 1, 30);
    follower.gets(&sent);
    follower.term = 2;
    follower.appends(Some(5), 6..=29);
    assert!(follower.prepares.as_ref().is_some_and(|(_, answer)| !answer.is_closed()));
    follower.appends(Some(29), 30..=32);
    assert!(follower.prepares.as_ref().is_some_and(|(_, answer)| answer.is_closed()));
    assert_eq!((follower.jobs.last(), follower.state()), (Some(&"abandon"), (Some(32), None, 32)));
    // A snapshot of the previous leader is not installed either.
    let mut follower = Follower::new();
    follower.gets(&sent);
    follower.term = 2;
    follower.appends(Some(5), 6..=29);
    follower.is_prepared(Ok(()));
    (0..100).for_each(|_| follower.turns_once());
    assert_eq!((follower.jobs.last(), follower.state()), (Some(&"abandon"), (Some(29), None, 29)));
}

/// A snapshot of this replica frees the segment, and the other one would keep it for minutes.
#[test]
fn an_installation_is_given_up_for_a_segment_that_the_log_needs() {
    let mut follower = Follower::new();
    follower.gets(&Sent::new(SnapshotForm::Parts, 1, 30));
    let (group, segment) = (STORAGE_GROUPS.entries, SegmentId(1));
    follower.owner.replica.vacate(Vacate { group, segment, entries: Some((1, 4)), bodies: Vec::new() });
    (0..50).for_each(|_| follower.turns_once());
    assert_eq!(follower.state(), (Some(5), Some(5), 5));
    assert!(follower.prepares.as_ref().is_some_and(|(_, answer)| answer.is_closed()));
}

/// The log has one unfinished checkpoint. A snapshot of this replica waits until the owner is ready.
#[test]
fn a_snapshot_of_this_replica_waits_for_an_installation() {
    let mut follower = Follower::on(Config { snapshot_after: 20, keep_entries: 0, ..config() });
    let sent = Sent::new(SnapshotForm::Parts, 1, 40);
    follower.gets(&sent);
    follower.term = 2;
    follower.appends(Some(5), 6..=35);
    for _ in 0..3_000 {
        follower.turns_once();
    }
    assert_eq!(follower.state(), (Some(35), None, 35));
    follower.is_prepared(Err(GivenUp));
    for _ in 0..100 {
        follower.turns_once();
    }
    assert_eq!(follower.state(), (Some(35), Some(35), 35));
}

#[test]
fn a_snapshot_that_the_owner_cannot_read_stops_the_replica() {
    use crate::machine::{INVALID_SNAPSHOT, UNSUPPORTED_VERSION};
    let cases = [
        (SnapshotError::Invalid, INVALID_SNAPSHOT),
        (SnapshotError::UnsupportedVersion, UNSUPPORTED_VERSION),
    ];
    for (error, why) in cases {
        let mut owner = Owner::on(config());
        let Sent { form, vote, meta, bytes } = Sent::new(SnapshotForm::Parts, 1, 30);
        let size = bytes.len() as u64;
        owner.receives(Body::Snapshot(SnapshotPiece { form, vote, meta, size, offset: 0, bytes }));
        let begin = owner.next_job();
        owner.does(begin);
        let Job::RestorePart { answer, .. } = owner.next_job() else { panic!("a part") };
        answer.send(Err(error));
        owner.works(20);
        let status = owner.status();
        assert_eq!((status.role, status.failure.as_deref()), (Role::Stopped, Some(why)));
        assert_eq!((status.snapshot, owner.machine.count), (None, 0));
    }
}

/// A leader that makes a snapshot each 20 entries, keeps no entries, and has sent a whole snapshot to a learner, which
/// is the test.
struct Leader {
    lone: Lone,
    /// The snapshot that the learner has, and its size.
    last: u64,
    size: u64,
    vote: Vote,
}

/// Next message to the learner that is no heartbeat.
#[derive(Debug)]
enum Next {
    Piece(u32, SnapshotPiece),
    Entries(u32, Append),
}

impl Leader {
    fn new() -> Self {
        let mut lone = Lone::with_snapshots();
        lone.group.set_part_readers(BTreeSet::from([node(OTHER)]));
        lone.group.initialize(BTreeMap::from([(OWN, member(OWN))]));
        (0..5).for_each(|_| lone.passes());
        lone.proposes_many();
        let limit = std::time::Duration::from_secs(5);
        lone.group.change_members(Change::AddLearner(OTHER, member(OTHER)), limit);
        let mut leader = Self { lone, last: 0, size: 0, vote: vote_of_other(1) };
        loop {
            let (call, piece) = leader.piece();
            let (end, vote) = (piece.offset + piece.bytes.len() as u64, piece.vote);
            if end == piece.size {
                let last = piece.meta.last_log_id.expect("entries").index;
                (leader.last, leader.size, leader.vote) = (last, piece.size, vote);
                leader.lone.answers_call(call, Body::Installing { vote });
                return leader;
            }
            leader.lone.answers_call(call, Body::Received { vote, offset: end });
        }
    }

    /// Answers heartbeats until there is something else.
    fn next(&mut self) -> Next {
        for _ in 0..6_000 {
            for (call, body) in self.lone.sent() {
                match body {
                    Body::Snapshot(piece) => return Next::Piece(call, piece),
                    Body::Append(append) if !append.entries.is_empty() => return Next::Entries(call, append),
                    Body::Append(append) => {
                        let is_here = append.previous.is_none_or(|previous| previous.index <= self.last);
                        let answer = if is_here { Appended::All } else { Appended::Conflict };
                        self.lone.answers_call(call, Body::Appended(answer));
                    }
                    _ => {}
                }
            }
            self.lone.turns_once();
        }
        panic!("nothing is sent in a minute");
    }

    fn piece(&mut self) -> (u32, SnapshotPiece) {
        loop {
            match self.next() {
                Next::Piece(call, piece) => return (call, piece),
                Next::Entries(call, _) => {
                    self.lone.answers_call(call, Body::Appended(Appended::Conflict));
                }
            }
        }
    }

    /// Takes the next question whether the snapshot is installed.
    fn is_asked(&mut self) -> u32 {
        let (call, piece) = self.piece();
        let last = piece.meta.last_log_id.map(|last| last.index);
        assert_eq!((piece.offset, piece.bytes.len()), (self.size, 0), "{last:?}");
        assert_eq!(last, Some(self.last));
        call
    }

    /// The learner says for a minute that it installs the snapshot. The leader makes further ones.
    fn waits_a_minute(&mut self) {
        let begin = self.lone.now;
        while self.lone.now < begin + 60_000_000 {
            let call = self.is_asked();
            self.lone.proposes_many();
            (0..4).for_each(|_| self.lone.passes());
            let vote = self.vote;
            self.lone.answers_call(call, Body::Installing { vote });
        }
        let snapshot = self.lone.group.status(Time(self.lone.now)).snapshot;
        assert!(snapshot > Some(self.last + 100), "{snapshot:?}");
    }

    fn has_installed(&mut self) {
        let call = self.is_asked();
        let (vote, offset) = (self.vote, self.size);
        self.lone.answers_call(call, Body::Received { vote, offset });
    }
}

/// The learner gets the entries after its snapshot, although the leader has newer snapshots.
#[test]
fn a_leader_keeps_the_entries_after_a_snapshot_that_is_being_installed() {
    let mut leader = Leader::new();
    leader.waits_a_minute();
    leader.has_installed();
    match leader.next() {
        Next::Entries(_, append) => {
            let first = append.entries[0].log_id.index;
            assert_eq!((append.previous.map(|id| id.index), first), (Some(leader.last), leader.last + 1));
        }
        other => panic!("{other:?}"),
    }
    // They are purged when the learner does not need them any more.
    assert!(leader.lone.group.cached_bytes() > 10_000);
    (0..60).for_each(|_| leader.lone.passes());
    assert!(leader.lone.group.cached_bytes() < 5_000);
}

/// The log does not wait for a learner. The next snapshot has what is missing.
#[test]
fn the_log_gets_a_segment_although_a_replica_installs_a_snapshot() {
    let mut leader = Leader::new();
    leader.waits_a_minute();
    let (group, segment) = (STORAGE_GROUPS.entries, SegmentId(1));
    let entries = Some((1, leader.last + 20));
    leader.lone.group.vacate(Vacate { group, segment, entries, bodies: Vec::new() });
    leader.lone.passes();
    leader.has_installed();
    match leader.next() {
        Next::Piece(_, piece) => {
            assert!(
                piece.offset == 0 && piece.meta.last_log_id.is_some_and(|id| id.index > leader.last + 20)
            );
        }
        other => panic!("{other:?}"),
    }
}

/// An answer that is lost, or a link that is cut off for a moment, does not cost the installation.
#[test]
fn a_leader_asks_again_whether_a_snapshot_is_installed() {
    let mut leader = Leader::new();
    let vote = leader.vote;
    leader.is_asked();
    (0..12).for_each(|_| leader.lone.passes());
    let call = leader.is_asked();
    leader.lone.answers_call(call, Body::Installing { vote });
    leader.is_asked();
    leader.lone.group.lost(node(OTHER));
    leader.lone.proposes_many();
    (0..2).for_each(|_| leader.lone.passes());
    leader.has_installed();
    assert!(matches!(leader.next(), Next::Entries(..)));
}

#[test]
fn a_leader_sends_the_next_snapshot_when_the_installation_is_given_up() {
    for is_silent in [false, true] {
        let mut leader = Leader::new();
        let call = leader.is_asked();
        leader.lone.proposes_many();
        leader.lone.proposes_many();
        if is_silent {
            (0..40).for_each(|_| leader.lone.passes());
        } else {
            leader.lone.answers_call(call, Body::Refused);
        }
        let begins = (0..20).any(|_| leader.piece().1.offset == 0);
        assert!(begins, "silent: {is_silent}");
    }
}
