//! Members of a shard's group: the next change towards those that the placement asks for.

use std::collections::{BTreeMap, BTreeSet};

use consensus::{Change, Member, ReplicaId, Role, Status};

/// Voters that the group of a shard should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetMembers {
    /// Number of the change that asks for them.
    pub epoch: u64,
    pub voters: BTreeMap<ReplicaId, Member>,
    /// Voters that the placement knows: those before the change.
    pub known: BTreeSet<ReplicaId>,
    /// Members with which the group begins, if this replica is one of them and the group may not exist yet.
    pub founders: BTreeMap<ReplicaId, Member>,
    /// True if the placement knows that the group has these members.
    pub is_settled: bool,
}

/// Next step of a leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Make(Change),
    /// New members have too few entries, or too few of them answer.
    Wait,
    /// The group has exactly these members.
    Reached,
}

/// Number of entries that a new voter may lack.
const BEHIND_MAX: u64 = 1_000;
/// Maximum time in microseconds since the last answer of a voter that is counted on.
const SILENCE_MAX: u64 = 5_000_000;
/// Maximum time in microseconds since a majority answered a leader that reports its members.
const QUORUM_AGE_MAX: u64 = 1_000_000;

impl TargetMembers {
    /// Returns the next step of the replica with this status; `None` if it does not lead.
    pub(crate) fn next(&self, status: &Status) -> Option<Next> {
        if status.role != Role::Leader {
            return None;
        }
        let is_known =
            |replica: &ReplicaId| status.voters.contains(replica) || status.learners.contains(replica);
        if let Some((replica, member)) = self.voters.iter().find(|(replica, _)| !is_known(replica)) {
            return Some(Next::Make(Change::AddLearner(*replica, *member)));
        }
        let target: BTreeSet<ReplicaId> = self.voters.keys().copied().collect();
        if target != status.voters || status.is_changing {
            let may_change = status.is_changing || self.can_agree(status);
            return Some(if may_change { Next::Make(Change::SetVoters(target)) } else { Next::Wait });
        }
        let unwanted = status.learners.iter().find(|replica| !target.contains(replica));
        if let Some(replica) = unwanted {
            return Some(Next::Make(Change::RemoveLearner(*replica)));
        }
        // A leader that is cut off may know old members, and another one may lead already.
        let is_alone = target.len() == 1;
        let leads = is_alone || status.quorum_age.is_some_and(|age| age <= QUORUM_AGE_MAX);
        Some(if leads { Next::Reached } else { Next::Wait })
    }

    /// Returns whether the new voters have nearly all entries, and a majority of all of them answers: everything would
    /// wait for them otherwise.
    ///
    /// A voter that left when a change began, and comes back because the change is given up, may be lost meanwhile. It
    /// counts as one that does not answer. Otherwise the group would never have members that the placement knows, and
    /// nobody would replace it.
    fn can_agree(&self, status: &Status) -> bool {
        let progress = |replica: &ReplicaId| status.progress.iter().find(|known| known.replica == *replica);
        let has_most = |replica: &&ReplicaId| {
            let last = progress(replica).and_then(|progress| progress.last);
            status.voters.contains(replica)
                || last.is_some_and(|last| last + BEHIND_MAX >= status.last.unwrap_or(0))
        };
        let answers = |replica: &&ReplicaId| {
            let silence = progress(replica).and_then(|progress| progress.silence);
            Some(**replica) == status.leader || silence.is_some_and(|silence| silence <= SILENCE_MAX)
        };
        let voters = || self.voters.keys();
        let may_vote =
            |replica: &ReplicaId| has_most(&replica) || self.known.contains(replica) && !answers(&replica);
        voters().all(may_vote) && voters().filter(answers).count() > self.voters.len() / 2
    }
}

#[cfg(test)]
mod tests {
    use consensus::Progress;
    use link::NodeId;

    use super::*;

    fn target(voters: &[u64]) -> TargetMembers {
        let member = |id: &u64| (ReplicaId(*id), Member { node: NodeId(*id) });
        let voters = voters.iter().map(member).collect();
        TargetMembers {
            epoch: 1,
            voters,
            known: BTreeSet::new(),
            founders: BTreeMap::new(),
            is_settled: false,
        }
    }

    /// Status of replica 1, which leads a group and has 5,000 entries. Replicas have answered just now if they are
    /// among `progress`, with the number of entries.
    fn status(voters: &[u64], learners: &[u64], progress: &[(u64, u64)]) -> Status {
        let ids = |ids: &[u64]| ids.iter().copied().map(ReplicaId).collect();
        let progress = progress.iter().map(|(id, last)| Progress {
            replica: ReplicaId(*id),
            last: Some(*last),
            silence: Some(0),
        });
        Status {
            role: Role::Leader,
            term: 1,
            leader: Some(ReplicaId(1)),
            voters: ids(voters),
            learners: ids(learners),
            members: Vec::new(),
            is_changing: false,
            last: Some(5_000),
            applied: None,
            snapshot: None,
            quorum_age: Some(0),
            progress: progress.collect(),
            failure: None,
        }
    }

    fn voters(ids: &[u64]) -> Next {
        Next::Make(Change::SetVoters(ids.iter().copied().map(ReplicaId).collect()))
    }

    #[test]
    fn a_replacement_learns_becomes_a_voter_and_the_other_goes() {
        let target = target(&[1, 2, 4]);
        let add = Change::AddLearner(ReplicaId(4), Member { node: NodeId(4) });
        assert_eq!(target.next(&status(&[1, 2, 3], &[], &[(2, 5_000)])), Some(Next::Make(add)));
        let behind = status(&[1, 2, 3], &[4], &[(2, 5_000), (4, 3_999)]);
        assert_eq!(target.next(&behind), Some(Next::Wait));
        assert_eq!(target.next(&status(&[1, 2, 3], &[4], &[(4, 4_000)])), Some(voters(&[1, 2, 4])));
        let left = status(&[1, 2, 4], &[3], &[(2, 5_000), (4, 5_000)]);
        assert_eq!(target.next(&left), Some(Next::Make(Change::RemoveLearner(ReplicaId(3)))));
        assert_eq!(target.next(&status(&[1, 2, 4], &[], &[])), Some(Next::Reached));
        let cut_off = Status { quorum_age: Some(QUORUM_AGE_MAX + 1), ..status(&[1, 2, 4], &[], &[]) };
        assert_eq!(target.next(&cut_off), Some(Next::Wait), "another one may lead");
    }

    #[test]
    fn a_change_waits_for_a_majority_of_the_new_voters_and_one_that_has_begun_goes_on() {
        let target = target(&[1, 2, 3]);
        let mut alone = status(&[1], &[2, 3], &[(2, 5_000), (3, 5_000)]);
        alone.progress.iter_mut().for_each(|progress| progress.silence = None);
        assert_eq!(target.next(&alone), Some(Next::Wait));
        alone.progress[0].silence = Some(SILENCE_MAX);
        assert_eq!(target.next(&alone), Some(voters(&[1, 2, 3])));
        let begun = Status { is_changing: true, ..status(&[1, 2, 3], &[], &[]) };
        assert_eq!(target.next(&begun), Some(voters(&[1, 2, 3])));
        let follows = Status { role: Role::Follower, ..status(&[1], &[], &[]) };
        assert_eq!(target.next(&follows), None);
    }

    /// Replica 4 took the place of replica 3, and the placement has given that up before it knew.
    #[test]
    fn a_lost_voter_comes_back_when_its_replacement_is_given_up() {
        let known = [1, 2, 3].map(ReplicaId).into_iter().collect();
        let target = TargetMembers { known, ..target(&[1, 2, 3]) };
        let lost = status(&[1, 2, 4], &[3], &[(2, 5_000), (4, 5_000)]);
        assert_eq!(target.next(&lost), Some(voters(&[1, 2, 3])));
        let is_new = TargetMembers { known: BTreeSet::new(), ..target.clone() };
        assert_eq!(is_new.next(&lost), Some(Next::Wait));
        let behind = status(&[1, 2, 4], &[3], &[(2, 5_000), (3, 100), (4, 5_000)]);
        assert_eq!(target.next(&behind), Some(Next::Wait), "it runs and learns");
        let mut alone = lost;
        alone.progress[0].silence = None;
        assert_eq!(target.next(&alone), Some(Next::Wait), "no majority would answer");
    }
}
