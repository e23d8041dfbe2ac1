//! Planner of the placement: pure functions from the cores and the present placement to the next step, or none.
//!
//! A shard is changed for one of four reasons, in this order:
//!
//! 1. A voter is lost, or its core leaves or is refused. Another core replaces it. Without another core, only a voter
//!    whose core is no member any more, leaves or is refused is removed, and only if a majority of the others answers.
//!    A core that leaves keeps its replicas while another one may take them later, because it is away for a short time
//!    or its disk is full: with a copy less, the next disk that is lost could take the majority of a shard along.
//! 2. The shard has fewer replicas than wanted, and another core can take one.
//! 3. One region has at least two replicas more than another one that can take one of them.
//! 4. One core has at least two replicas more than another core that can take one of them. The replicas of the shard
//!    are then in different regions as before.
//!
//! The last two reduce a difference of two or more and never increase one that comes before, so planning ends while
//! the cores stay as they are.
//!
//! One shard changes at a time. A change that may never end does not hold up the others. It goes on, or is replaced:
//!
//! - A learner whose core is lost or leaves is removed. Another core gets a replica once the group has reported that.
//! - A voter that leaves without a replacement gets one, if the other voters cannot agree without it.

use std::collections::{BTreeMap, BTreeSet};

use broker::ShardId;
use link::NodeId;

use super::{CoreLog, Placement, ShardMove, ShardPlacement, ShardReplica};
use crate::config::Replicas;
use crate::mutation::{Mutation, mutated};

/// A core that is a member, as the planner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Log with its replicas.
    pub log: CoreLog,
    pub region: Box<str>,
    pub standing: Standing,
}

/// State of a core, for the planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The core can take replicas.
    Serves,
    /// The core may be unreachable, or has been dead for a short time. It keeps its replicas and gets none.
    Away,
    /// The core leaves the cluster: it still answers, and its replicas go.
    Leaves,
    /// The core takes no part in the shards, because it has sessions of its own. A replica that was placed there does
    /// not answer, and goes.
    Refused,
    /// The core has been dead for so long that its replicas are replaced. It is still a member.
    Lost,
}

/// Returns the first placement of this number of shards, if there is a core. Its version is 0.
pub fn found(cores: &[Core], shards: u16, replicas: Replicas, owner_key: [u8; 16]) -> Option<Placement> {
    let shards = vec![ShardPlacement::default(); usize::from(shards)];
    let mut placement = Placement { version: 0, replicas, owner_key, shards };
    for shard in 0..placement.shards.len() {
        for _ in 0..replicas.get() {
            let added =
                Planner::new(cores, &placement, &BTreeSet::new()).candidate(&placement.shards[shard], None);
            placement.shards[shard].voters.extend(added.map(|log| log.replica_since(0)));
        }
        if placement.shards[shard].voters.is_empty() {
            return None;
        }
    }
    while let Some(step) = next_move(cores, &placement, &BTreeSet::new()) {
        let shard = placement.shards.get_mut(usize::from(step.shard.0))?;
        *shard = shard.after(0, &step)?;
        shard.settle();
    }
    Some(placement)
}

/// Returns the next step, or `None` while there is nothing to do or a shard is changing. `stalled` are shards that have
/// been changing for too long.
pub fn next_move(cores: &[Core], placement: &Placement, stalled: &BTreeSet<ShardId>) -> Option<ShardMove> {
    let planner = Planner::new(cores, placement, stalled);
    let changing = || placement.shards().filter(|(_, shard)| !shard.is_settled());
    if let Some(step) = changing().find_map(|(id, shard)| planner.another(id, shard)) {
        return Some(step);
    }
    let is_busy = changing().any(|(id, shard)| !planner.may_never_end(id, shard));
    if is_busy && !mutated(Mutation::MoveManyShards) {
        return None;
    }
    let mut shards: Vec<_> = placement.shards().filter(|(_, shard)| shard.is_settled()).collect();
    shards.sort_by_key(|(id, shard)| (planner.count(shard, |standing| standing == Standing::Serves), *id));
    let first = |plan: &dyn Fn(ShardId, &ShardPlacement) -> Option<ShardMove>| {
        shards.iter().find_map(|(id, shard)| plan(*id, shard))
    };
    first(&|id, shard| planner.repair(id, shard))
        .or_else(|| first(&|id, shard| planner.growth(id, shard)))
        .or_else(|| first(&|id, shard| planner.spread(id, shard)))
        .or_else(|| planner.balance(&shards))
}

/// Cores and their loads.
struct Planner<'a> {
    placement: &'a Placement,
    stalled: &'a BTreeSet<ShardId>,
    cores: BTreeMap<CoreLog, &'a Core>,
    /// Number of replicas that each core has, or will have after the changes that have begun.
    loads: BTreeMap<CoreLog, usize>,
}

impl<'a> Planner<'a> {
    fn new(cores: &'a [Core], placement: &'a Placement, stalled: &'a BTreeSet<ShardId>) -> Self {
        let cores: BTreeMap<CoreLog, &Core> = cores.iter().map(|core| (core.log, core)).collect();
        let mut loads: BTreeMap<CoreLog, usize> = cores.keys().map(|log| (*log, 0)).collect();
        for replica in placement.shards.iter().flat_map(ShardPlacement::target) {
            if let Some(load) = loads.get_mut(&replica.log()) {
                *load += 1;
            }
        }
        Self { placement, stalled, cores, loads }
    }

    fn step(&self, shard: ShardId, add: Option<CoreLog>, remove: Option<ShardReplica>) -> ShardMove {
        ShardMove { version: self.placement.version, shard, add, remove }
    }

    /// Returns the state of a log's core; `None` if that is no member, has another log, or has died while it left.
    fn standing(&self, log: CoreLog) -> Option<Standing> {
        self.cores.get(&log).map(|core| core.standing)
    }

    fn serves(&self, log: CoreLog) -> bool {
        self.standing(log) == Some(Standing::Serves)
    }

    /// Returns whether a log's core is expected to serve in the future.
    fn stays(&self, log: CoreLog) -> bool {
        matches!(self.standing(log), Some(Standing::Serves | Standing::Away))
    }

    fn load(&self, log: CoreLog) -> usize {
        self.loads.get(&log).copied().unwrap_or(0)
    }

    fn region(&self, log: CoreLog) -> Option<&str> {
        self.cores.get(&log).map(|core| &*core.region)
    }

    /// Number of voters whose core has such a standing.
    fn count(&self, shard: &ShardPlacement, is_so: impl Fn(Standing) -> bool) -> usize {
        shard.voters.iter().filter(|voter| self.standing(voter.log()).is_some_and(&is_so)).count()
    }

    /// Number of voters that answer now.
    fn answering(&self, shard: &ShardPlacement) -> usize {
        self.count(shard, |standing| matches!(standing, Standing::Serves | Standing::Leaves))
    }

    /// Returns whether a majority of the voters answers now. Without one, the shard cannot change.
    fn has_majority(&self, shard: &ShardPlacement) -> bool {
        self.answering(shard) > shard.voters.len() / 2
    }

    /// Returns whether a majority answers now without one of the voters.
    fn has_majority_without(&self, shard: &ShardPlacement, voter: ShardReplica) -> bool {
        let answers = self.standing(voter.log()) == Some(Standing::Leaves);
        self.answering(shard) - usize::from(answers) > (shard.voters.len() - 1) / 2
    }

    /// Returns whether a majority of the voters is lost, of the present ones or of those that the shard should have.
    fn has_lost_majority(&self, shard: &ShardPlacement) -> bool {
        let is_left = |replica: &&ShardReplica| {
            let standing = self.standing(replica.log());
            standing.is_some_and(|standing| !matches!(standing, Standing::Lost | Standing::Refused))
        };
        let is_lost = |voters: &[ShardReplica]| voters.iter().filter(is_left).count() <= voters.len() / 2;
        is_lost(&shard.voters) || is_lost(&shard.target())
    }

    /// Returns whether the change of a shard may never be reported.
    fn may_never_end(&self, id: ShardId, shard: &ShardPlacement) -> bool {
        self.has_lost_majority(shard) || self.stalled.contains(&id)
    }

    /// Returns whether a core should get no further replicas: a shard with a majority has waited too long for its
    /// learner there. The disk of the core may be full.
    fn has_stalled(&self, log: CoreLog) -> bool {
        let waits = |shard: &&ShardPlacement| self.has_majority(shard) && !self.has_lost_majority(shard);
        let mut shards = self.stalled.iter().filter_map(|id| self.placement.shard(*id)).filter(waits);
        shards.any(|shard| shard.learner.is_some_and(|learner| learner.log() == log))
    }

    /// Replaces a change that may never end.
    fn another(&self, id: ShardId, shard: &ShardPlacement) -> Option<ShardMove> {
        if let Some(learner) = shard.learner {
            if self.stays(learner.log()) {
                return None;
            }
            // The group may have the learner as a voter already. So its removal has to be reported, too, before
            // anything else is done.
            return Some(self.step(id, None, Some(learner)));
        }
        let leaving = shard.leaving.filter(|leaving| shard.voters.contains(leaving))?;
        let add = self.candidate(shard, Some(leaving))?;
        let is_needed = self.may_never_end(id, shard) && self.has_majority(shard);
        is_needed.then(|| self.step(id, Some(add), Some(leaving)))
    }

    /// Number of voters in a region, without one of them.
    fn in_region(&self, shard: &ShardPlacement, region: &str, without: Option<ShardReplica>) -> usize {
        let others = shard.voters.iter().filter(|voter| Some(**voter) != without);
        others.filter(|voter| self.region(voter.log()) == Some(region)).count()
    }

    /// Iterates over the cores that have no replica of a shard, and could get one when one of its voters goes.
    fn others(
        &self,
        shard: &ShardPlacement,
        without: Option<ShardReplica>,
    ) -> impl Iterator<Item = &'a Core> {
        let has_node = move |node: NodeId| {
            shard.voters.iter().any(|voter| voter.node == node && Some(*voter) != without)
        };
        let has_none = move |core: &&Core| {
            let has_log = shard.voters.iter().any(|voter| voter.log() == core.log);
            !has_log && !has_node(core.log.node)
        };
        self.cores.values().copied().filter(has_none)
    }

    /// Iterates over the cores that can take a replica of a shard when one of its voters goes, with their regions.
    fn candidates(
        &self,
        shard: &ShardPlacement,
        without: Option<ShardReplica>,
    ) -> impl Iterator<Item = (CoreLog, &str)> {
        let can_take = |core: &&Core| {
            let serves = core.standing == Standing::Serves || mutated(Mutation::PlaceOnDead);
            serves && !self.has_stalled(core.log)
        };
        self.others(shard, without).filter(can_take).map(|core| (core.log, &*core.region))
    }

    /// Returns the core that gets a replica of a shard when one of its voters goes: in the region with the fewest
    /// others, the core with the fewest replicas.
    fn candidate(&self, shard: &ShardPlacement, without: Option<ShardReplica>) -> Option<CoreLog> {
        let all = self.candidates(shard, without);
        let best =
            all.min_by_key(|(log, region)| (self.in_region(shard, region, without), self.load(*log), *log));
        best.map(|(log, _)| log)
    }

    /// Replaces or removes a voter that is lost or leaves.
    fn repair(&self, id: ShardId, shard: &ShardPlacement) -> Option<ShardMove> {
        if !self.has_majority(shard) {
            return None;
        }
        let mut going: Vec<ShardReplica> =
            shard.voters.iter().copied().filter(|voter| !self.stays(voter.log())).collect();
        going.sort_by_key(|voter| self.standing(voter.log()).map(|standing| standing == Standing::Leaves));
        going.into_iter().find_map(|voter| {
            let add = self.candidate(shard, Some(voter));
            let is_over = match self.standing(voter.log()) {
                None | Some(Standing::Refused) => true,
                Some(Standing::Leaves) => !self.others(shard, Some(voter)).any(|core| self.stays(core.log)),
                Some(Standing::Serves | Standing::Away | Standing::Lost) => false,
            };
            let may_go = add.is_some() || is_over && self.has_majority_without(shard, voter);
            may_go.then(|| self.step(id, add, Some(voter)))
        })
    }

    /// Adds a replica to a shard that has too few.
    fn growth(&self, id: ShardId, shard: &ShardPlacement) -> Option<ShardMove> {
        let is_small = shard.voters.len() < usize::from(self.placement.replicas.get());
        let add = self.candidate(shard, None).filter(|_| is_small && self.has_majority(shard))?;
        Some(self.step(id, Some(add), None))
    }

    /// Returns whether a shard can be changed without need.
    fn is_healthy(&self, shard: &ShardPlacement) -> bool {
        shard.voters.iter().all(|voter| self.serves(voter.log()))
    }

    /// Moves a replica to a region that has at least two less of the shard.
    fn spread(&self, id: ShardId, shard: &ShardPlacement) -> Option<ShardMove> {
        if !self.is_healthy(shard) {
            return None;
        }
        let of_region =
            |log: CoreLog| self.region(log).map_or(0, |region| self.in_region(shard, region, None));
        let from = *shard
            .voters
            .iter()
            .max_by_key(|voter| (of_region(voter.log()), self.load(voter.log()), **voter))?;
        let to = self.candidate(shard, Some(from))?;
        let is_better =
            of_region(from.log()) >= of_region(to) + 2 && self.region(from.log()) != self.region(to);
        is_better.then(|| self.step(id, Some(to), Some(from)))
    }

    /// Moves a replica from a core to one that has at least two less.
    fn balance(&self, shards: &[(ShardId, &ShardPlacement)]) -> Option<ShardMove> {
        let mut serving: Vec<CoreLog> = self.cores.keys().copied().filter(|log| self.serves(*log)).collect();
        serving.sort_by_key(|log| (self.load(*log), *log));
        for from in serving.iter().rev() {
            let emptier = serving.iter().take_while(|to| self.load(**to) + 2 <= self.load(*from));
            for to in emptier.filter(|to| !self.has_stalled(**to)) {
                let movable = shards.iter().filter_map(|(id, shard)| {
                    let voter = *shard.voters.iter().find(|voter| voter.log() == *from)?;
                    let may_move = self.is_healthy(shard) && self.keeps_regions(shard, *from, *to);
                    may_move.then_some((*id, voter))
                });
                if let Some((id, voter)) = movable.min_by_key(|(id, _)| *id) {
                    return Some(self.step(id, Some(*to), Some(voter)));
                }
            }
        }
        None
    }

    /// Returns whether a shard's replicas are in as many regions after a replica has moved.
    fn keeps_regions(&self, shard: &ShardPlacement, from: CoreLog, to: CoreLog) -> bool {
        let (Some(left), Some(entered)) = (self.region(from), self.region(to)) else { return false };
        let is_new = shard.voters.iter().all(|voter| voter.node != to.node);
        let is_not_worse =
            left == entered || self.in_region(shard, entered, None) < self.in_region(shard, left, None);
        is_new && is_not_worse
    }
}

#[cfg(test)]
mod tests;
