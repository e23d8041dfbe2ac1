//! Preferred leader of each shard: a pure function of the placement and the cores that serve.
//!
//! All nodes know both, so all of them find the same leaders and need not agree on anything. The leader of a shard that
//! is not the preferred one transfers its leadership. Nodes that know different rosters for a moment disagree for that
//! moment.
//!
//! Each shard has a home: one of its voters, by the number of the shard. The home leads if it can. The shards of homes
//! that cannot lead go to the voters that lead fewest. Then shards move from a core to one that leads at least two
//! less, directly or by way of other cores, until no such move is left: the greatest number that a core leads is then
//! as small as the placement allows.

use std::collections::{BTreeMap, VecDeque};

use broker::ShardId;
use link::NodeId;

use super::{CoreLog, Placement, ShardPlacement};
use crate::config::LeaderPolicy;

/// Preferred leaders of all shards by number; `None` for a shard none of whose voters can lead.
pub type PreferredLeaders = Vec<Option<NodeId>>;

/// Returns the preferred leaders. `cores` are the logs of the cores that can lead, with their regions.
pub fn preferred_leaders(
    placement: &Placement,
    cores: &BTreeMap<CoreLog, Box<str>>,
    policy: &LeaderPolicy,
) -> PreferredLeaders {
    let candidates = placement.shards().map(|(id, shard)| Candidates::of(id, shard, cores, policy));
    let mut leaders = Leaders::new(candidates.collect());
    while leaders.balance() {}
    leaders.chosen
}

/// Cores that can lead a shard.
struct Candidates {
    /// Nodes in the order of preference: the home comes first, if it can lead.
    nodes: Vec<NodeId>,
    has_home: bool,
}

impl Candidates {
    fn of(
        id: ShardId,
        shard: &ShardPlacement,
        cores: &BTreeMap<CoreLog, Box<str>>,
        policy: &LeaderPolicy,
    ) -> Self {
        // The voters of all shards may be in the same order.
        let home = usize::from(id.0) % shard.voters.len().max(1);
        let (before, after) = shard.voters.split_at(home);
        let can_lead =
            |voter: &&super::ShardReplica| Some(**voter) != shard.leaving && cores.contains_key(&voter.log());
        let mut able: Vec<_> = after.iter().chain(before).filter(can_lead).collect();
        if let LeaderPolicy::Region(region) = policy {
            let is_there = |voter: &super::ShardReplica| cores.get(&voter.log()) == Some(region);
            if able.iter().any(|voter| is_there(voter)) {
                able.retain(|voter| is_there(voter));
            }
        }
        let has_home = able.first().is_some_and(|first| after.first() == Some(*first));
        Self { nodes: able.into_iter().map(|voter| voter.node).collect(), has_home }
    }
}

struct Leaders {
    candidates: Vec<Candidates>,
    chosen: PreferredLeaders,
    /// Number of shards that each core leads, for all cores that can lead some shard.
    loads: BTreeMap<NodeId, usize>,
}

impl Leaders {
    fn new(candidates: Vec<Candidates>) -> Self {
        let mut loads: BTreeMap<NodeId, usize> =
            candidates.iter().flat_map(|shard| &shard.nodes).map(|node| (*node, 0)).collect();
        let mut chosen: PreferredLeaders =
            candidates.iter().map(|shard| shard.nodes.first().copied().filter(|_| shard.has_home)).collect();
        chosen.iter().flatten().for_each(|node| *loads.entry(*node).or_default() += 1);
        for (shard, chosen) in candidates.iter().zip(&mut chosen).filter(|(_, chosen)| chosen.is_none()) {
            // The first of those with equal loads.
            *chosen = shard.nodes.iter().copied().min_by_key(|node| loads.get(node).copied());
            chosen.iter().for_each(|node| *loads.entry(*node).or_default() += 1);
        }
        Self { candidates, chosen, loads }
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
    /// leads at least two less. Shards that are not at home move first.
    fn path(&self, from: NodeId, load: usize) -> Option<Vec<(usize, NodeId)>> {
        let mut shards: Vec<usize> = (0..self.chosen.len()).collect();
        shards.sort_by_key(|at| (self.is_at_home(*at), *at));
        // For each core that was reached: the shard that moves there, and the core that it comes from.
        let mut reached: BTreeMap<NodeId, Option<(usize, NodeId)>> = [(from, None)].into();
        let mut queue = VecDeque::from([from]);
        while let Some(node) = queue.pop_front() {
            let movable = shards.iter().filter(|at| self.chosen[**at] == Some(node));
            for (at, to) in movable.flat_map(|at| self.candidates[*at].nodes.iter().map(move |to| (*at, *to)))
            {
                if reached.contains_key(&to) {
                    continue;
                }
                reached.insert(to, Some((at, node)));
                if self.loads.get(&to).is_some_and(|other| other + 2 <= load) {
                    let (mut moves, mut end) = (Vec::new(), to);
                    while let Some(Some((at, before))) = reached.get(&end) {
                        moves.push((*at, end));
                        end = *before;
                    }
                    return Some(moves);
                }
                queue.push_back(to);
            }
        }
        None
    }

    fn is_at_home(&self, at: usize) -> bool {
        self.candidates[at].has_home && self.chosen[at] == self.candidates[at].nodes.first().copied()
    }
}

#[cfg(test)]
mod tests;
