//! Groups of the shards. They stand in for their Raft groups: they have voters, which change when majorities of the
//! voters before and after the change answer.

use broker::ShardId;
use cluster::meta::{Placement, ShardPlacement, ShardReplica, StoredReplica};

use super::world::SimCluster;

/// Groups of all shards, once they are placed.
#[derive(Debug, Default)]
pub(super) struct ShardGroups {
    by_shard: Vec<ShardGroup>,
    /// Latest version of the placement by which the groups were changed or checked.
    version: u64,
}

/// Group of one shard.
#[derive(Clone, Debug)]
struct ShardGroup {
    /// Epoch of the shard's placement that asked for these voters. A group does not return to those of an earlier one.
    epoch: u64,
    voters: Vec<ShardReplica>,
}

impl ShardGroups {
    /// Returns whether a replica is a voter of the group of a shard.
    #[cfg(test)]
    pub fn has_voter(&self, shard: ShardId, replica: ShardReplica) -> bool {
        self.by_shard.get(usize::from(shard.0)).is_some_and(|group| group.voters.contains(&replica))
    }

    fn found(placement: &Placement) -> Vec<ShardGroup> {
        let group = |shard: &ShardPlacement| ShardGroup { epoch: 0, voters: shard.voters.clone() };
        placement.shards().map(|(_, shard)| group(shard)).collect()
    }
}

impl SimCluster {
    /// Changes the groups of shards with a voter on this node, as the node knows their placement, and reports changes
    /// that are done. Some reports are late or wrong.
    pub(super) fn change_shards(&mut self, node: usize) {
        let Some(process) = &self.members[node].process else { return };
        let (Some(placement), Some(log)) = (process.router.placement().cloned(), process.router.core_log())
        else {
            return;
        };
        self.check_shard_groups(&placement);
        for (id, shard) in placement.shards().filter(|(_, shard)| !shard.is_settled()) {
            let group = &self.shard_groups.by_shard[usize::from(id.0)];
            let has_vote = group.voters.iter().any(|voter| voter.log() == log);
            if !has_vote || !self.cx.random.percent(5) || !self.agrees(id, &group.voters) {
                continue;
            }
            if group.epoch < shard.epoch {
                let target = shard.target();
                if self.agrees(id, &target) {
                    self.shard_groups.version = self.shard_groups.version.max(placement.version);
                    let changed = ShardGroup { epoch: shard.epoch, voters: target };
                    self.shard_groups.by_shard[usize::from(id.0)] = changed;
                }
            } else if group.epoch == shard.epoch {
                let epoch = shard.epoch - u64::from(self.cx.random.percent(20));
                if let Some(process) = &mut self.members[node].process {
                    process.router.shard_changed(id, epoch);
                    process.wake(&mut self.cx, 10);
                }
                self.cx.report.cluster_shards_changed += 1;
            }
        }
    }

    /// Asserts that each voter of a group has a role in the latest placement: a core deletes replicas without a role.
    fn check_shard_groups(&mut self, placement: &Placement) {
        let groups = &mut self.shard_groups;
        if groups.by_shard.is_empty() {
            groups.by_shard = ShardGroups::found(placement);
        }
        if placement.version < groups.version {
            return;
        }
        groups.version = placement.version;
        for (group, (id, shard)) in groups.by_shard.iter().zip(placement.shards()) {
            let has_role = |voter: &ShardReplica| shard.replicas().any(|replica| replica == *voter);
            assert!(group.voters.iter().all(has_role), "{id:?} may lose a voter: {group:?}, {shard:?}");
        }
    }

    /// Returns whether a majority of these replicas answers.
    fn agrees(&self, shard: ShardId, replicas: &[ShardReplica]) -> bool {
        let answers = |replica: &&ShardReplica| {
            self.members.iter().any(|member| {
                let process = member.process.as_ref().filter(|_| member.stopped <= self.cx.now());
                process.is_some_and(|process| {
                    let stored =
                        |placement: &Placement| placement.stored(replica.log(), shard, replica.since);
                    let role = process.router.placement().map(|placement| stored(placement));
                    process.router.core_log() == Some(replica.log())
                        && matches!(role, Some(StoredReplica::Current(_)))
                })
            })
        };
        replicas.iter().filter(answers).count() > replicas.len() / 2
    }

    /// Returns whether a shard can change: majorities of the voters that its group has, and of those that it should
    /// have, answer.
    pub(super) fn can_change_shard(&self, id: ShardId, shard: &ShardPlacement) -> bool {
        let group = self.shard_groups.by_shard.get(usize::from(id.0));
        group.is_some_and(|group| self.agrees(id, &group.voters)) && self.agrees(id, &shard.target())
    }
}
