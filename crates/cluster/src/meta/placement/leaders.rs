//! Preferred leader of each shard: a pure function of the placement, the cores that can lead, the nodes that they
//! reach, and the present leaders.
//!
//! All nodes know these, so all of them find the same leaders and need not agree on anything. The leader of a shard
//! that is not the preferred one transfers its leadership. Nodes that know different rosters or leaders for a moment
//! disagree for that moment. If leaders follow their clients, a core plans for the shards that it leads only
//! ([`LeaderPreference::Same`] for the others).
//!
//! A core that does not reach some node leads no shard that a core with fewer unreached nodes can lead: the clients of
//! that node could not use the shard. This comes before all other preferences.
//!
//! A drain may name nodes that should lead the shards of the drained node. While it is drained, a shard that has a
//! replica there is led by one of these nodes, if it comes from the drained node or is led by one of them already.
//! Without the second part, the balance would move it on.
//!
//! A transfer stops a shard for a moment. So a leader that can lead keeps its shard. A shard without one goes to the
//! voter that leads fewest. Then shards move from a core to one that leads at least two less, directly or by way of
//! other cores, until no such move is left: the greatest number that a core leads is then as small as the placement
//! allows. In the end, shards return to their present leaders where that makes no difference to the balance.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use broker::ShardId;
use link::NodeId;

use super::{CoreLog, Placement, ShardPlacement, ShardReplica};
use crate::mutation::{Mutation, mutated};

/// Leaders of all shards by number. `None` for a shard whose leader is not known, or none of whose voters can lead.
pub type ShardLeaders = Vec<Option<NodeId>>;

/// Nodes that are drained. Each has the nodes that should lead its shards; none: any node may.
pub type DrainedNodes = BTreeMap<NodeId, BTreeSet<NodeId>>;

/// A core that can lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub region: Box<str>,
    /// Number of nodes that it does not reach, although other cores do.
    pub unreached: usize,
}

/// Leaders that a shard may have, of those that can lead it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaderPreference<'a> {
    Any,
    /// Leaders in a region, if there are any.
    In(&'a str),
    /// The present one, if it can go on.
    Same,
}

/// Returns the preferred leaders. `cores` are the logs of the cores that can lead, so no core of `drained` is among
/// them. `present` are the last known leaders.
pub fn preferred_leaders<'a>(
    placement: &Placement,
    cores: &BTreeMap<CoreLog, Candidate>,
    drained: &DrainedNodes,
    preference: impl Fn(ShardId) -> LeaderPreference<'a>,
    present: &[Option<NodeId>],
) -> ShardLeaders {
    let present_of = |id: ShardId| present.get(id.index()).copied().flatten();
    let shards = placement.shards();
    let candidates_of = |(id, shard): (ShardId, &ShardPlacement)| {
        let successors = successors(shard, drained, present_of(id));
        candidates(shard, cores, &successors, preference(id), present_of(id))
    };
    let candidates = shards.map(candidates_of).collect();
    let mut leaders = Leaders::new(candidates, present);
    while leaders.balance() {}
    while leaders.take_back() {}
    leaders.chosen
}

/// Returns the nodes to which drains give a shard. None if any node may lead it.
fn successors(shard: &ShardPlacement, drained: &DrainedNodes, present: Option<NodeId>) -> BTreeSet<NodeId> {
    let drains = shard.voters.iter().filter_map(|voter| Some((voter.node, drained.get(&voter.node)?)));
    let concerns = |(from, to): &(NodeId, &BTreeSet<NodeId>)| {
        present.is_none_or(|present| present == *from || to.contains(&present))
    };
    drains.filter(concerns).flat_map(|(_, to)| to).copied().collect()
}

/// Returns the nodes that can lead a shard.
fn candidates(
    shard: &ShardPlacement,
    cores: &BTreeMap<CoreLog, Candidate>,
    successors: &BTreeSet<NodeId>,
    preference: LeaderPreference<'_>,
    present: Option<NodeId>,
) -> Vec<NodeId> {
    let can_lead = |voter: &&ShardReplica| Some(**voter) != shard.leaving && cores.contains_key(&voter.log());
    let mut able: Vec<&ShardReplica> = shard.voters.iter().filter(can_lead).collect();
    let unreached = |voter: &ShardReplica| cores.get(&voter.log()).map(|core| core.unreached);
    let fewest = able.iter().filter_map(|voter| unreached(voter)).min();
    able.retain(|voter| unreached(voter) == fewest || mutated(Mutation::LeadUnreached));
    if able.iter().any(|voter| successors.contains(&voter.node)) {
        able.retain(|voter| successors.contains(&voter.node));
    }
    let is_preferred = |voter: &&ShardReplica| match preference {
        LeaderPreference::Any => true,
        LeaderPreference::In(region) => cores.get(&voter.log()).is_some_and(|core| *core.region == *region),
        LeaderPreference::Same => present == Some(voter.node),
    };
    if able.iter().any(is_preferred) {
        able.retain(is_preferred);
    }
    able.into_iter().map(|voter| voter.node).collect()
}

struct Leaders {
    /// Nodes that can lead each shard.
    candidates: Vec<Vec<NodeId>>,
    /// Present leaders that can go on.
    present: ShardLeaders,
    chosen: ShardLeaders,
    /// Number of shards that each core leads, for all cores that can lead some shard.
    loads: BTreeMap<NodeId, usize>,
}

impl Leaders {
    fn new(candidates: Vec<Vec<NodeId>>, present: &[Option<NodeId>]) -> Self {
        let mut loads: BTreeMap<NodeId, usize> = candidates.iter().flatten().map(|node| (*node, 0)).collect();
        let known = present.iter().copied().chain(std::iter::repeat(None));
        let goes_on =
            |(nodes, leader): (&Vec<NodeId>, Option<NodeId>)| leader.filter(|it| nodes.contains(it));
        let present: ShardLeaders = candidates.iter().zip(known).map(goes_on).collect();
        present.iter().flatten().for_each(|node| *loads.entry(*node).or_default() += 1);
        let mut chosen = present.clone();
        for (nodes, chosen) in candidates.iter().zip(&mut chosen).filter(|(_, chosen)| chosen.is_none()) {
            // The first of those with equal loads.
            *chosen = nodes.iter().copied().min_by_key(|node| loads.get(node).copied());
            chosen.iter().for_each(|node| *loads.entry(*node).or_default() += 1);
        }
        Self { candidates, present, chosen, loads }
    }

    /// Makes the greatest difference of two or more between two cores smaller. Returns false if there is none.
    fn balance(&mut self) -> bool {
        let mut from: Vec<(usize, NodeId)> = self.loads.iter().map(|(node, load)| (*load, *node)).collect();
        from.sort_by(|a, b| b.cmp(a));
        for (load, node) in from {
            if let Some(path) = self.path(node, load) {
                for (shard, to) in path {
                    if let Some(from) = self.chosen[shard].replace(to) {
                        *self.loads.entry(from).or_default() -= 1;
                    }
                    *self.loads.entry(to).or_default() += 1;
                }
                return true;
            }
        }
        false
    }

    /// Returns the shortest series of moves, each from the core that the previous one goes to, from a core to one that
    /// leads at least two less. Of the cores at that distance, it goes to the one that leads the fewest: so the plan
    /// stays the same while it is carried out. Shards whose present leader cannot go on move first.
    fn path(&self, from: NodeId, load: usize) -> Option<Vec<(usize, NodeId)>> {
        let mut shards: Vec<usize> = (0..self.chosen.len()).collect();
        shards.sort_by_key(|at| (self.stays(*at), *at));
        // For each core that was reached: the shard that moves there, and the core that it comes from.
        let mut reached: BTreeMap<NodeId, Option<(usize, NodeId)>> = [(from, None)].into();
        let mut nearest = vec![from];
        while !nearest.is_empty() {
            let mut next = Vec::new();
            for node in nearest {
                let movable = shards.iter().filter(|at| self.chosen[**at] == Some(node));
                for (at, to) in movable.flat_map(|at| self.candidates[*at].iter().map(move |to| (*at, *to))) {
                    if let Entry::Vacant(vacant) = reached.entry(to) {
                        vacant.insert(Some((at, node)));
                        next.push(to);
                    }
                }
            }
            let load_of = |to: &NodeId| self.loads.get(to).copied().unwrap_or(0);
            let free = next.iter().filter(|to| load_of(to) + 2 <= load);
            if let Some(to) = free.min_by_key(|to| (load_of(to), **to)) {
                let (mut moves, mut end) = (Vec::new(), *to);
                while let Some(Some((at, before))) = reached.get(&end) {
                    moves.push((*at, end));
                    end = *before;
                }
                return Some(moves);
            }
            nearest = next;
        }
        None
    }

    /// Returns a shard to its present leader where the loads are then as balanced as before. Returns false if there is
    /// none.
    fn take_back(&mut self) -> bool {
        let load = |node: &NodeId| self.loads.get(node).copied().unwrap_or(0);
        let moved = self.present.iter().zip(&self.chosen).position(|(present, chosen)| {
            let nodes = present.as_ref().zip(chosen.as_ref());
            nodes.is_some_and(|(present, to)| load(present) < load(to))
        });
        let Some(shard) = moved else { return false };
        let (from, to) = (self.chosen[shard], self.present[shard]);
        self.chosen[shard] = to;
        from.iter().for_each(|node| *self.loads.entry(*node).or_default() -= 1);
        to.iter().for_each(|node| *self.loads.entry(*node).or_default() += 1);
        true
    }

    /// Returns whether a shard keeps its present leader.
    fn stays(&self, at: usize) -> bool {
        self.present[at].is_some() && self.chosen[at] == self.present[at]
    }
}

#[cfg(test)]
mod tests;
