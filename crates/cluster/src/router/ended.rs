//! Incarnations of nodes that are over, for the workers of this node.

use std::collections::BTreeMap;

use broker::peers::NodeIncarnation;
use link::NodeId;

use super::ClusterRouter;
use crate::meta::{Roster, State};

/// Incarnations of the members in the last roster, and whether each was over.
#[derive(Debug, Default)]
pub(super) struct EndedIncarnations {
    known: BTreeMap<NodeId, (u64, bool)>,
}

impl EndedIncarnations {
    /// Returns the incarnations that are over by a roster, and were not by the one before.
    fn update(&mut self, roster: &Roster) -> Vec<NodeIncarnation> {
        let members = roster.members.iter();
        let now: BTreeMap<NodeId, (u64, bool)> =
            members.map(|(id, member)| (*id, (member.incarnation.0, member.state == State::Dead))).collect();
        let is_replaced = |(id, (incarnation, _)): &(&NodeId, &(u64, bool))| {
            now.get(id).is_none_or(|it| it.0 != *incarnation)
        };
        let gone = self.known.iter().filter(|(_, (_, is_over))| !is_over).filter(is_replaced);
        let dead = now.iter().filter(|(id, (incarnation, is_over))| {
            *is_over && self.known.get(id) != Some(&(*incarnation, true))
        });
        let ended = gone.chain(dead);
        let ended =
            ended.map(|(id, (incarnation, _))| NodeIncarnation { node: id.0, incarnation: *incarnation });
        let ended = ended.collect();
        self.known = now;
        ended
    }
}

impl ClusterRouter {
    /// Passes the incarnations that are over by a new roster to the workers.
    pub(super) fn tell_ended(&mut self, roster: &Roster) {
        if !self.has_shards() {
            return;
        }
        let ended = self.ended.update(roster);
        if !ended.is_empty() {
            self.inbound.end(&ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use replog::Incarnation;

    use super::*;
    use crate::config::{NodeInfo, Role};
    use crate::meta::Member;

    fn roster(members: &[(u64, u64, State)]) -> Roster {
        let info = NodeInfo { name: "n".into(), role: Role::Core, region: "r".into(), address: "a".into() };
        let member = |(id, incarnation, state): &(u64, u64, State)| {
            let incarnation = Incarnation(*incarnation);
            let member =
                Member { info: info.clone(), incarnation, state: *state, leaves: false, replica: None };
            (NodeId(*id), member)
        };
        Roster { members: members.iter().map(member).collect(), ..Roster::default() }
    }

    #[test]
    fn each_incarnation_that_is_over_is_reported_once() {
        let mut ended = EndedIncarnations::default();
        let mut update = |members: &[(u64, u64, State)]| -> Vec<(u64, u64)> {
            let found = ended.update(&roster(members));
            found.into_iter().map(|it| (it.node, it.incarnation)).collect()
        };
        assert_eq!(update(&[(1, 5, State::Alive), (2, 6, State::Dead)]), [(2, 6)], "known from the start");
        assert!(update(&[(1, 5, State::Suspect(3)), (2, 6, State::Dead)]).is_empty());
        assert_eq!(update(&[(1, 5, State::Dead), (2, 7, State::Alive)]), [(1, 5)]);
        assert!(update(&[(2, 7, State::Alive)]).is_empty(), "a dead node was removed");
        assert_eq!(update(&[(2, 8, State::Alive)]), [(2, 7)], "it came back before it was declared dead");
        assert_eq!(update(&[]), [(2, 8)], "it has left");
    }
}
