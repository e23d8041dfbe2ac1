//! Scenarios that few seeds reach: a few replicas, and no random faults.

use super::*;

const STEP: Micros = MILLI / 4;

impl Quorum {
    /// Starts a group in which all hosts vote, on a network without faults.
    fn calm() -> Self {
        let mut quorum = Self::new(1, Trace::default());
        (quorum.latency, quorum.jitter, quorum.wanted_voters) =
            (MILLI, 50, (0..quorum.hosts.len()).collect());
        for host in 0..quorum.hosts.len() {
            quorum.start(host);
        }
        let voters = quorum.hosts.iter().enumerate().map(|(at, host)| (host.id, Member { node: node(at) }));
        let voters = voters.collect();
        quorum.ask(0, PendingRequest::Change, |replica| replica.group.initialize(voters));
        quorum
    }

    fn until(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let end = self.cx.now() + 60 * SECOND;
        while !is_so(self) {
            self.pass(self.cx.now() + STEP);
            assert!(self.cx.now() < end, "not in a minute: {what}");
        }
    }

    fn status(&self, host: usize) -> consensus::Status {
        let replica = self.hosts[host].replica.as_ref().expect("the replica runs");
        replica.group.status(Time(self.cx.now()))
    }
}

/// `openraft` asserts that only a voter changes the members, and stops the replica of any other.
#[test]
fn a_leader_without_a_vote_changes_no_members_and_does_not_stop() {
    let mut quorum = Quorum::calm();
    quorum.until("a replica leads", |quorum| quorum.leader().is_some());
    quorum.pass(quorum.cx.now() + 5 * SECOND);
    let leader = quorum.leader().expect("a replica leads");
    let own = quorum.hosts[leader].id;
    let before = quorum.cx.report.quorum_changes;
    let others = quorum.hosts.iter().map(|host| host.id).filter(|id| *id != own).collect();
    quorum.ask(leader, PendingRequest::Change, |replica| {
        replica.group.change_members(Change::SetVoters(others), LIMIT)
    });
    quorum.until("the change is committed", |quorum| quorum.cx.report.quorum_changes > before);
    let status = quorum.status(leader);
    assert!(status.role == Role::Leader && !status.voters.contains(&own), "{status:?}");
    let new = ReplicaId(99);
    let changes = [
        Change::AddLearner(new, Member { node: node(leader) }),
        Change::SetVoters(quorum.hosts.iter().map(|host| host.id).collect()),
        Change::RemoveLearner(own),
    ];
    for change in changes {
        quorum.ask(leader, PendingRequest::Change, |replica| replica.group.change_members(change, LIMIT));
    }
    quorum.until("another leads", |quorum| quorum.leader().is_some_and(|now| now != leader));
    assert_eq!(quorum.status(leader).failure, None);
}

/// A leader has died half-way through a change of the voters, and the next one loses its vote by that change.
/// `openraft` would drop it from the requested change instead, and assert that it is a voter (seed 3421 of clusters).
#[test]
fn a_leader_that_loses_its_vote_by_the_pending_change_completes_it() {
    let mut quorum = Quorum::calm();
    quorum.until("a replica leads", |quorum| quorum.leader().is_some());
    quorum.pass(quorum.cx.now() + 5 * SECOND);
    let first = quorum.leader().expect("a replica leads");
    let count = quorum.hosts.len();
    let [stays, next] = [1, 2].map(|other| (first + other) % count);
    let id = |quorum: &Quorum, host: usize| quorum.hosts[host].id;
    let target = BTreeSet::from([id(&quorum, stays)]);
    let change = Change::SetVoters(target.clone());
    quorum.ask(first, PendingRequest::Change, |replica| replica.group.change_members(change, LIMIT));
    quorum.until("it is under way", |quorum| quorum.status(next).is_changing);
    quorum.kill(first, 1_000 * SECOND);
    quorum.until("another leads", |quorum| quorum.leader().is_some());
    let to = id(&quorum, next);
    let leader = quorum.leader().expect("a replica leads");
    quorum.ask(leader, PendingRequest::Transfer, |replica| replica.group.transfer(to));
    quorum.until("the next one leads", |quorum| quorum.leader() == Some(next));
    assert!(quorum.status(next).is_changing, "the change is not complete");
    let other = BTreeSet::from([id(&quorum, first)]);
    // A new leader refuses changes at first.
    for _ in 0..5 {
        let change = Change::SetVoters(other.clone());
        quorum.ask(next, PendingRequest::Change, |replica| replica.group.change_members(change, LIMIT));
        quorum.pass(quorum.cx.now() + SECOND);
    }
    let status = quorum.status(stays);
    assert!(status.voters == target && !status.is_changing && quorum.leader() == Some(stays), "{status:?}");
    assert_eq!(quorum.status(next).failure, None);
}
