//! Jobs of a state machine that its owner does itself.

use super::owner::{Owner, config};
use super::*;
use crate::Job;

/// Description of a job.
pub(super) fn name(job: &Job) -> &'static str {
    match job {
        Job::Apply { .. } => "apply",
        Job::BeginCheckpoint { .. } => "begin a checkpoint",
        Job::WriteParts(_) => "write parts",
        Job::BeginRestore { .. } => "begin to restore",
        Job::RestorePart { .. } => "restore a part",
        Job::Prepare { .. } => "prepare",
        Job::Restored { .. } => "restored",
        Job::AbandonRestore => "abandon",
    }
}

/// Many turns pass until the owner answers. Raft knows the commands as applied only then.
#[test]
fn a_command_is_applied_when_the_owner_says_so() {
    let mut owner = Owner::leads_alone(config());
    let before = owner.status().applied;
    assert_eq!(owner.applied, before, "the owner also knows of entries without a command");
    let asked = owner.replica.propose(vec![1], std::time::Duration::from_secs(5));
    owner.turns(100);
    assert_eq!((owner.jobs.len(), owner.status().applied), (1, before));
    assert!(owner.replica.poll_event().is_none());
    let now = Time(owner.now);
    assert!(owner.replica.timeout() > now, "nothing can be done until the owner answers");
    owner.does_jobs();
    assert_eq!(owner.replica.timeout(), now, "the answer has to be handled");
    owner.turns(1);
    let event = owner.replica.poll_event().expect("the outcome");
    let index = before.map_or(0, |before| before + 1);
    assert_eq!((event.request, event.outcome), (asked, Ok(crate::Outcome::Applied(index))));
    assert_eq!((owner.status().applied, &owner.effects[..]), (Some(index), &[index][..]));
}

/// A snapshot that begins while an owner is slow is of the state whose commands it has applied.
#[test]
fn a_snapshot_is_of_the_state_of_the_last_answer() {
    let mut owner = Owner::leads_alone(Config { snapshot_after: 20, keep_entries: 0, ..config() });
    let (mut next, mut begun) = (0, 0);
    for round in 0..2_000 {
        if round % 3 == 0 {
            assert!(owner.writes(next));
            next += 1;
        }
        owner.turns(1);
        // `Owner::does` compares the index of a snapshot with the last answer.
        if round % 7 == 0
            && let Some(job) = owner.jobs.pop_front()
        {
            begun += u32::from(matches!(job, Job::BeginCheckpoint { .. }));
            owner.does(job);
        }
    }
    // Entries that were committed one by one are applied one by one.
    owner.works(1_000);
    assert!(begun > 2, "{begun}");
    assert_eq!(owner.status().failure, None);
    assert_eq!((owner.machine.count, owner.replica.writes_waiting()), (u64::from(next), 0));
    assert_eq!((owner.status().failure, owner.applied), (None, owner.status().applied));
}

/// Runs jobs until the one with this name, and drops it.
fn drops(owner: &mut Owner, dropped: &str) {
    for _ in 0..50 {
        let job = owner.next_job();
        if name(&job) == dropped {
            return;
        }
        owner.does(job);
    }
    panic!("no job to {dropped}");
}

#[test]
fn a_job_that_is_dropped_stops_the_replica() {
    let own = ["apply", "begin a checkpoint", "write parts"];
    let restoring = ["begin to restore", "restore a part", "prepare", "restored"];
    for dropped in own.into_iter().chain(restoring) {
        let mut owner = if own.contains(&dropped) {
            let mut owner = Owner::leads_alone(Config { snapshot_after: 5, ..config() });
            (0..10).for_each(|number| assert!(owner.writes(number)));
            owner
        } else {
            let mut owner = Owner::on(config());
            let Sent { form, vote, meta, bytes } = Sent::new(SnapshotForm::Parts, 1, 30);
            let size = bytes.len() as u64;
            owner.receives(Body::Snapshot(SnapshotPiece { form, vote, meta, size, offset: 0, bytes }));
            owner
        };
        drops(&mut owner, dropped);
        assert_eq!(owner.replica.timeout(), Time(owner.now), "{dropped}");
        owner.turns(5);
        let status = owner.status();
        let failure = status.failure.as_deref();
        assert_eq!((status.role, failure), (Role::Stopped, Some(crate::jobs::DROPPED)), "{dropped}");
        owner.turns(500);
        assert!(!owner.writes(1) && owner.replica.timeout() > Time(owner.now), "{dropped}");
    }
}

/// The owner holds the answer when the replica ends.
#[test]
fn an_answer_to_a_replica_that_has_ended_does_nothing() {
    let mut owner = Owner::leads_alone(config());
    assert!(owner.writes(1));
    let Job::Apply { answer, .. } = owner.next_job() else { panic!("a job to apply") };
    assert!(!answer.is_closed());
    let Owner { replica, .. } = owner;
    drop(replica);
    assert!(answer.is_closed());
    answer.send(Ok(()));
}

/// The state machine of a snapshot in parts, whose jobs come one at a time.
#[test]
fn an_owner_restores_a_snapshot_of_another_replica() {
    let mut owner = Owner::on(config());
    let sent = Sent::new(SnapshotForm::Parts, 1, 30);
    let Sent { form, vote, meta, bytes } = sent;
    let size = bytes.len() as u64;
    owner.receives(Body::Snapshot(SnapshotPiece { form, vote, meta, size, offset: 0, bytes }));
    let mut names = Vec::new();
    while owner.applied.is_none() {
        let job = owner.next_job();
        assert!(owner.jobs.is_empty());
        names.push(name(&job));
        owner.does(job);
    }
    let parts = std::iter::repeat_n("restore a part", 8);
    let expected = std::iter::once("begin to restore").chain(parts).chain(["prepare", "restored"]);
    assert_eq!(names, expected.collect::<Vec<_>>());
    owner.works(10);
    assert_eq!((owner.applied, owner.machine.count, owner.status().applied), (Some(30), 9, Some(30)));
}
