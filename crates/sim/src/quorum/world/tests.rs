//! What few seeds come to: a few replicas, and nothing by chance.

use super::*;

const STEP: Micros = MILLI / 4;

impl Quorum {
    /// All places vote, on a network that works.
    fn calm() -> Self {
        let mut quorum = Self::new(1, Trace::default());
        (quorum.latency, quorum.jitter, quorum.wanted) = (MILLI, 50, (0..quorum.places.len()).collect());
        for place in 0..quorum.places.len() {
            quorum.start(place);
        }
        let voters =
            quorum.places.iter().enumerate().map(|(at, place)| (place.id, Member { node: node(at) }));
        let voters = voters.collect();
        quorum.ask(0, Asked::Change, |replica| replica.group.initialize(voters));
        quorum
    }

    fn until(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let end = self.cx.now() + 60 * SECOND;
        while !is_so(self) {
            self.pass(self.cx.now() + STEP);
            assert!(self.cx.now() < end, "not in a minute: {what}");
        }
    }

    fn status(&self, place: usize) -> consensus::Status {
        let replica = self.places[place].replica.as_ref().expect("the replica runs");
        replica.group.status(Time(self.cx.now()))
    }
}

/// `openraft` asserts that nobody without a vote changes the members, and ends the replica of whoever does.
#[test]
fn a_leader_that_has_given_up_its_vote_changes_no_members_and_goes_on() {
    let mut quorum = Quorum::calm();
    quorum.until("somebody leads", |quorum| quorum.leader().is_some());
    quorum.pass(quorum.cx.now() + 5 * SECOND);
    let leader = quorum.leader().expect("somebody leads");
    let own = quorum.places[leader].id;
    let before = quorum.cx.report.quorum_changes;
    let others = quorum.places.iter().map(|place| place.id).filter(|id| *id != own).collect();
    quorum
        .ask(leader, Asked::Change, |replica| replica.group.change_members(Change::SetVoters(others), LIMIT));
    quorum.until("that is agreed upon", |quorum| quorum.cx.report.quorum_changes > before);
    let status = quorum.status(leader);
    assert!(status.role == Role::Leader && !status.voters.contains(&own), "{status:?}");
    let new = ReplicaId(99);
    let changes = [
        Change::AddLearner(new, Member { node: node(leader) }),
        Change::SetVoters(quorum.places.iter().map(|place| place.id).collect()),
        Change::RemoveLearner(own),
    ];
    for change in changes {
        quorum.ask(leader, Asked::Change, |replica| replica.group.change_members(change, LIMIT));
    }
    quorum.until("another leads", |quorum| quorum.leader().is_some_and(|now| now != leader));
    assert_eq!(quorum.status(leader).failure, None);
}
