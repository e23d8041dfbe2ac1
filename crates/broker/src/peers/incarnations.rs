use std::collections::BTreeMap;

use shard::NodeIncarnation;

/// Last incarnation of each member of the cluster, by the last roster of the cores that this node knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberIncarnations(BTreeMap<u64, LastIncarnation>);

/// Last incarnation of a member that has joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastIncarnation {
    pub incarnation: u64,
    /// True if the cores have declared it dead.
    pub is_dead: bool,
}

/// State of an incarnation of a node, by one roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncarnationState {
    /// The incarnation is a member, or may join after this roster.
    MayRun,
    /// The incarnation was declared dead, or a later one of the node has joined.
    Ended,
    /// The node is no member: it was removed before this roster, or joins after it.
    Absent,
}

impl MemberIncarnations {
    /// Returns the state of an incarnation. Those of one node are ordered by their numbers, whatever happens to the
    /// node, so a lower one than that of the roster is over.
    pub fn state(&self, NodeIncarnation { node, incarnation }: NodeIncarnation) -> IncarnationState {
        match self.0.get(&node) {
            None => IncarnationState::Absent,
            Some(last) if incarnation > last.incarnation => IncarnationState::MayRun,
            Some(last) if incarnation == last.incarnation && !last.is_dead => IncarnationState::MayRun,
            Some(_) => IncarnationState::Ended,
        }
    }

    /// Returns whether an incarnation is certainly over, whether this roster is the newest or not.
    pub fn has_ended(&self, owner: NodeIncarnation) -> bool {
        self.state(owner) == IncarnationState::Ended
    }
}

impl FromIterator<(u64, LastIncarnation)> for MemberIncarnations {
    fn from_iter<I: IntoIterator<Item = (u64, LastIncarnation)>>(members: I) -> Self {
        Self(members.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incarnation_is_over_when_it_is_dead_or_a_later_one_has_joined() {
        let last = |incarnation, is_dead| LastIncarnation { incarnation, is_dead };
        let members: MemberIncarnations = [(1, last(5, false)), (2, last(6, true))].into_iter().collect();
        let state = |node, incarnation| members.state(NodeIncarnation { node, incarnation });
        let (may_run, ended) = (IncarnationState::MayRun, IncarnationState::Ended);
        assert_eq!([4, 5, 6].map(|incarnation| state(1, incarnation)), [ended, may_run, may_run]);
        assert_eq!([5, 6, 7].map(|incarnation| state(2, incarnation)), [ended, ended, may_run]);
        assert_eq!(state(3, 1), IncarnationState::Absent, "it may join after this roster");
    }
}
