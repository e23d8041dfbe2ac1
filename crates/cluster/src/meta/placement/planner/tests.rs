//! Tests of the planner against the rules, which are checked by trying every possible step.

use consensus::ReplicaId;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SHARDS: u16 = 6;
const CORES_MAX: u8 = 7;

fn core(node: u8, log: u64, region: u8, standing: Standing) -> Core {
    let log = CoreLog { node: NodeId(u64::from(node) + 1), replica: ReplicaId(log) };
    Core { log, region: format!("r{region}").into(), standing }
}

/// Returns this number of cores in these regions.
fn cores(count: u8, regions: u8) -> Vec<Core> {
    (0..count).map(|node| core(node, 1, node % regions, Standing::Serves)).collect()
}

fn placed(cores: &[Core], replicas: u8) -> Placement {
    found(cores, SHARDS, Replicas::new(replicas).expect("a number of replicas"), [7; 16]).expect("a core")
}

fn logs(replicas: &[ShardReplica]) -> Vec<CoreLog> {
    replicas.iter().map(|replica| replica.log()).collect()
}

/// Cores, a placement with changes that have begun, and the groups of the shards.
#[derive(Debug)]
struct Model {
    cores: Vec<Core>,
    placement: Placement,
    /// Voters that the group of each shard has.
    groups: Vec<Vec<ShardReplica>>,
    /// Epochs of shards that have been changing for too long.
    stalled: BTreeMap<ShardId, u64>,
    index: u64,
    logs: u64,
    regions: u8,
}

impl Model {
    fn new(replicas: u8, regions: u8) -> Self {
        let cores = cores(3, regions);
        Self::of(placed(&cores, replicas), cores, regions)
    }

    fn of(placement: Placement, cores: Vec<Core>, regions: u8) -> Self {
        let groups = placement.shards().map(|(_, shard)| shard.voters.clone()).collect();
        Self { cores, placement, groups, stalled: BTreeMap::new(), index: 1, logs: 1, regions }
    }

    fn stalled(&self) -> BTreeSet<ShardId> {
        let changes = |(id, epoch): &(&ShardId, &u64)| {
            let shard = self.placement.shard(**id).expect("a shard of the cluster");
            !shard.is_settled() && shard.epoch == **epoch
        };
        self.stalled.iter().filter(changes).map(|(id, _)| *id).collect()
    }

    fn standing(&self, log: CoreLog) -> Option<Standing> {
        self.cores.iter().find(|core| core.log == log).map(|core| core.standing)
    }

    fn serves(&self, log: CoreLog) -> bool {
        self.standing(log) == Some(Standing::Serves)
    }

    fn stays(&self, log: CoreLog) -> bool {
        matches!(self.standing(log), Some(Standing::Serves | Standing::Away))
    }

    /// Returns whether a majority of voters answers.
    fn agree(&self, voters: &[ShardReplica]) -> bool {
        let answers = |voter: &&ShardReplica| {
            matches!(self.standing(voter.log()), Some(Standing::Serves | Standing::Leaves))
        };
        2 * voters.iter().filter(answers).count() > voters.len()
    }

    fn can_change(&self, shard: &ShardPlacement) -> bool {
        self.agree(&shard.voters)
    }

    /// Returns whether a majority of the voters is gone, or has been dead for long.
    fn is_lost(&self, shard: &ShardPlacement) -> bool {
        let is_left = |voter: &&ShardReplica| {
            !matches!(self.standing(voter.log()), None | Some(Standing::Lost | Standing::Refused))
        };
        let is_lost = |voters: &[ShardReplica]| 2 * voters.iter().filter(is_left).count() <= voters.len();
        is_lost(&shard.voters) || is_lost(&shard.target())
    }

    /// Returns whether the change of a shard may never end.
    fn is_stuck(&self, id: ShardId) -> bool {
        self.placement.shard(id).is_some_and(|shard| self.is_lost(shard)) || self.stalled().contains(&id)
    }

    fn load(&self, log: CoreLog) -> usize {
        let has_it = |shard: &ShardPlacement| shard.target().iter().any(|replica| replica.log() == log);
        self.placement.shards().filter(|(_, shard)| has_it(shard)).count()
    }

    fn region(&self, log: CoreLog) -> Option<&str> {
        self.cores.iter().find(|core| core.log == log).map(|core| &*core.region)
    }

    /// Sum of the squares of the shard's replicas in each region.
    fn concentration(&self, voters: &[CoreLog]) -> usize {
        let alike =
            |one: &CoreLog| voters.iter().filter(|other| self.region(**other) == self.region(*one)).count();
        voters.iter().map(alike).sum()
    }

    /// Cores that have no replica of a shard, and could get one in place of one of its voters.
    fn others(&self, shard: &ShardPlacement, removed: Option<ShardReplica>) -> impl Iterator<Item = CoreLog> {
        let others: Vec<NodeId> =
            shard.voters.iter().filter(|voter| Some(**voter) != removed).map(|voter| voter.node).collect();
        let has_log = |log: &CoreLog| shard.voters.iter().any(|voter| voter.log() == *log);
        let logs = self.cores.iter().map(|core| core.log);
        logs.filter(move |log| !has_log(log) && !others.contains(&log.node))
    }

    /// Cores that can take a replica of a shard in place of one of its voters.
    fn free(&self, shard: &ShardPlacement, removed: Option<ShardReplica>) -> Vec<CoreLog> {
        let stalled = self.stalled();
        let waiting = stalled.iter().filter_map(|id| self.placement.shard(*id));
        let waiting = waiting.filter(|shard| self.agree(&shard.voters) && !self.is_lost(shard));
        let stalled: Vec<CoreLog> = waiting.filter_map(|shard| Some(shard.learner?.log())).collect();
        let can_take = |log: &CoreLog| self.serves(*log) && !stalled.contains(log);
        self.others(shard, removed).filter(can_take).collect()
    }

    /// Returns whether another core may take a replica of a shard later, in place of a voter whose core leaves.
    fn is_awaited(&self, shard: &ShardPlacement, removed: ShardReplica) -> bool {
        let leaves = self.standing(removed.log()) == Some(Standing::Leaves);
        leaves && self.others(shard, Some(removed)).any(|log| self.stays(log))
    }

    /// Returns whether a voter of a shard should be moved to another core, although nothing is wrong.
    fn is_better(&self, shard: &ShardPlacement, removed: CoreLog, added: CoreLog) -> bool {
        let before = logs(&shard.voters);
        let mut after = before.clone();
        after.iter_mut().filter(|log| **log == removed).for_each(|log| *log = added);
        let (now, then) = (self.concentration(&before), self.concentration(&after));
        before.iter().all(|log| self.serves(*log))
            && (then < now || then == now && self.load(removed) >= self.load(added) + 2)
    }

    /// Asserts that the rules allow a step.
    fn check(&self, step: &ShardMove) {
        let shard = self.placement.shard(step.shard).expect("a shard of the cluster");
        assert_eq!(step.version, self.placement.version);
        for (id, other) in self.placement.shards() {
            // A change that is replaced has begun before.
            let may_change = !shard.is_settled() || other.is_settled() || self.is_stuck(id);
            assert!(id == step.shard || may_change, "two shards change");
        }
        assert!(step.add.is_none_or(|added| self.free(shard, step.remove).contains(&added)), "{step:?}");
        let changed = shard.after(2, step).expect("it can be applied");
        let (before, after) = (shard.voters.len(), changed.target().len());
        assert!(after <= before.max(usize::from(self.placement.replicas.get())), "too many replicas");
        if let Some(learner) = shard.learner {
            assert!(!self.stays(learner.log()), "the change goes on");
            assert_eq!((step.add, step.remove), (None, Some(learner)), "the learner may be a voter");
            return;
        }
        assert!(self.can_change(shard) && self.agree(&changed.target()), "no majority answers");
        if !shard.is_settled() {
            assert!(self.is_stuck(step.shard) && step.add.is_some(), "the change goes on");
            assert_eq!(step.remove, shard.leaving);
            return;
        }
        match step.remove {
            None => assert!(before < after),
            Some(removed) if self.stays(removed.log()) => {
                let added = step.add.expect("a replica is moved");
                assert!(self.is_better(shard, removed.log(), added), "{step:?} is no improvement");
            }
            Some(removed) if step.add.is_none() => {
                assert!(
                    matches!(self.standing(removed.log()), None | Some(Standing::Leaves | Standing::Refused)),
                    "it may come back"
                );
                assert!(self.free(shard, Some(removed)).is_empty(), "another core can replace it");
                assert!(!self.is_awaited(shard, removed), "another core may come back and replace it");
            }
            Some(_) => {}
        }
    }

    /// Asserts that no possible step is wanted.
    fn check_final(&self) {
        for (id, shard) in self.placement.shards() {
            let group = &self.groups[usize::from(id.0)];
            if !shard.is_settled() {
                let can_end = self.agree(group) && self.agree(&shard.target());
                assert!(!can_end && self.is_stuck(id), "{id:?} changes for ever");
                continue;
            }
            assert_eq!(*group, shard.voters);
            if !self.can_change(shard) {
                continue;
            }
            let wanted = usize::from(self.placement.replicas.get());
            assert!(shard.voters.len() >= wanted || self.free(shard, None).is_empty(), "{id:?} is small");
            for voter in &shard.voters {
                let free = self.free(shard, Some(*voter));
                assert!(self.stays(voter.log()) || free.is_empty(), "{id:?} keeps {voter:?}");
                let is_over =
                    matches!(self.standing(voter.log()), None | Some(Standing::Leaves | Standing::Refused));
                let others: Vec<_> = shard.voters.iter().copied().filter(|it| it != voter).collect();
                let is_awaited = self.is_awaited(shard, *voter);
                assert!(!is_over || is_awaited || !self.agree(&others), "{id:?} keeps {voter:?}");
                for added in free {
                    assert!(
                        !self.is_better(shard, voter.log(), added),
                        "{id:?} could move {voter:?} to {added:?}"
                    );
                }
            }
        }
    }

    /// Plans a step. The order of the cores makes no difference.
    fn plan(&mut self) -> Option<ShardMove> {
        let stalled = self.stalled();
        let step = next_move(&self.cores, &self.placement, &stalled);
        let reversed: Vec<Core> = self.cores.iter().rev().cloned().collect();
        assert_eq!(next_move(&reversed, &self.placement, &stalled), step);
        step.inspect(|step| self.check(step))
    }

    fn begin(&mut self, step: &ShardMove) {
        self.index += 1;
        let index = self.index;
        let shard = &mut self.placement.shards[usize::from(step.shard.0)];
        *shard = shard.after(index, step).expect("it can be applied");
        self.placement.version = index;
        self.check_groups();
    }

    /// Asserts that each core keeps the replicas that are voters of their groups.
    fn check_groups(&self) {
        for (group, (id, shard)) in self.groups.iter().zip(self.placement.shards()) {
            let has_role = |voter: &ShardReplica| shard.replicas().any(|replica| replica == *voter);
            assert!(group.iter().all(has_role), "{id:?} may lose a voter: {group:?}, {shard:?}");
        }
    }

    /// Lets the groups of these shards get the voters that they should have, if majorities of the voters before and
    /// after the change answer.
    fn change_groups(&mut self, may_change: impl Fn(ShardId) -> bool) -> bool {
        let can_change = |(id, shard): &(ShardId, &ShardPlacement)| {
            let (group, target) = (&self.groups[usize::from(id.0)], shard.target());
            may_change(*id) && *group != target && self.agree(group) && self.agree(&target)
        };
        let changes: Vec<_> =
            self.placement.shards().filter(can_change).map(|(id, shard)| (id, shard.target())).collect();
        for (id, target) in &changes {
            self.groups[usize::from(id.0)].clone_from(target);
        }
        self.check_groups();
        !changes.is_empty()
    }

    /// Lets the groups report changes that they have made.
    fn report(&mut self) -> bool {
        let has_changed = |(id, shard): &(ShardId, &ShardPlacement)| {
            let group = &self.groups[usize::from(id.0)];
            !shard.is_settled() && *group == shard.target() && self.agree(group)
        };
        let done: Vec<_> =
            self.placement.shards().filter(has_changed).map(|(id, shard)| (id, shard.epoch)).collect();
        self.index += 1;
        self.placement.version = self.index;
        let ended = done.iter().filter(|(id, epoch)| self.placement.finish(*id, *epoch)).count();
        self.check_groups();
        ended > 0
    }

    /// Ends the changes of all shards that can change.
    fn finish(&mut self) -> bool {
        self.change_groups(|_| true) | self.report()
    }

    /// Waits until the changes that have begun have taken too long. Returns whether there are such.
    fn wait(&mut self) -> bool {
        let before = self.stalled();
        let changing = self.placement.shards().filter(|(_, shard)| !shard.is_settled());
        self.stalled = changing.map(|(id, shard)| (id, shard.epoch)).collect();
        self.stalled() != before
    }

    /// Lets something happen to one of the cores, or to the shards.
    fn event(&mut self, kind: u8, which: u8) {
        let at = usize::from(which) % self.cores.len();
        let serving = self.cores.iter().filter(|core| core.standing == Standing::Serves).count();
        match kind {
            0 => {
                let is_used =
                    |node: &u8| self.cores.iter().any(|it| it.log.node == NodeId(u64::from(*node) + 1));
                if let Some(node) = (0..CORES_MAX).find(|node| !is_used(node)) {
                    self.logs += 1;
                    self.cores.push(core(node, self.logs, which % self.regions, Standing::Serves));
                }
            }
            1 if serving > 1 => drop(self.cores.remove(at)),
            2 => {
                // It has lost its disk.
                self.logs += 1;
                self.cores[at].log.replica = ReplicaId(self.logs);
                self.cores[at].standing = Standing::Serves;
            }
            3 => self.cores[at].standing = Standing::Away,
            4 => self.cores[at].standing = Standing::Lost,
            5 if serving > 1 => self.cores[at].standing = Standing::Leaves,
            6 | 7 => self.cores[at].standing = Standing::Serves,
            8 => drop(self.finish()),
            9 => drop(self.change_groups(|_| true)),
            10 => drop(self.report()),
            11 => drop(self.wait()),
            12 if serving > 1 => self.cores[at].standing = Standing::Refused,
            _ => {
                if let Some(step) = self.plan() {
                    self.begin(&step);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_step_follows_the_rules_and_the_steps_end(
        events in vec((0..18_u8, any::<u8>()), 0..80),
        replicas in 1..=5_u8,
        regions in 1..=3_u8,
    ) {
        let mut model = Model::new(replicas, regions);
        for (kind, which) in events {
            model.event(kind, which);
            // A leader plans after each change, but its command may be lost.
            model.plan();
        }
        for core in &mut model.cores {
            if core.standing == Standing::Away {
                core.standing = Standing::Serves;
            }
        }
        let mut steps = 0;
        loop {
            match model.plan() {
                Some(step) => model.begin(&step),
                None if model.finish() || model.wait() => {}
                None => break,
            }
            steps += 1;
            prop_assert!(steps < 400, "no end");
        }
        model.check_final();
    }
}

#[test]
fn the_first_placement_uses_all_cores_evenly_and_nothing_moves_after_it() {
    for (count, regions) in (1..=CORES_MAX).flat_map(|count| (1..=4).map(move |regions| (count, regions))) {
        for replicas in Replicas::MIN..=Replicas::MAX {
            let mut cores = cores(count, regions);
            let placement = placed(&cores, replicas);
            assert_eq!(placement.shards().len(), usize::from(SHARDS));
            assert!(
                placement.shards().all(|(_, shard)| shard.voters.len() == usize::from(replicas.min(count)))
            );
            assert_eq!(
                next_move(&cores, &placement, &BTreeSet::new()),
                None,
                "{count} cores in {regions} regions"
            );
            cores.reverse();
            assert_eq!(placed(&cores, replicas), placement);
            let model = Model::of(placement, cores, regions);
            model.check_final();
            let loads: Vec<usize> = model.cores.iter().map(|core| model.load(core.log)).collect();
            let difference = loads.iter().max().expect("a core") - loads.iter().min().expect("a core");
            assert!(difference < 2 || regions > 1, "{loads:?}");
        }
    }
    assert_eq!(found(&[], 1, Replicas::default(), [0; 16]), None);
    assert_eq!(found(&[core(0, 1, 0, Standing::Away)], 1, Replicas::default(), [0; 16]), None);
}

/// Runs the planner to its end, and returns the number of steps.
fn settle(model: &mut Model) -> usize {
    let mut steps = 0;
    while let Some(step) = model.plan() {
        model.begin(&step);
        assert_eq!(model.plan(), None, "one shard at a time");
        assert!(model.finish());
        steps += 1;
    }
    steps
}

#[test]
fn a_core_that_joins_gets_its_share_and_no_more_is_moved() {
    let mut model = Model::new(3, 1);
    assert_eq!(settle(&mut model), 0);
    model.event(0, 0);
    // Four cores have 18 replicas: the new one gets 4.
    assert_eq!(settle(&mut model), 4);
    model.event(0, 0);
    assert_eq!(settle(&mut model), 3);
}

#[test]
fn a_core_that_is_away_keeps_its_replicas_until_it_counts_as_lost() {
    let mut model = Model::new(3, 1);
    model.event(0, 0);
    settle(&mut model);
    let moved = model.load(model.cores[0].log);
    model.cores[0].standing = Standing::Away;
    assert_eq!(settle(&mut model), 0);
    model.cores[0].standing = Standing::Lost;
    assert_eq!(settle(&mut model), moved);
    assert_eq!(model.load(model.cores[0].log), 0);
}

#[test]
fn a_lost_core_without_a_replacement_is_kept_and_a_removed_one_is_not() {
    let mut model = Model::new(3, 1);
    model.cores[1].standing = Standing::Lost;
    assert_eq!(settle(&mut model), 0);
    model.cores.remove(1);
    assert_eq!(settle(&mut model), usize::from(SHARDS));
    assert!(model.placement.shards().all(|(_, shard)| shard.voters.len() == 2));
    // One of two voters is no majority: the shards wait.
    model.cores.pop();
    assert_eq!(settle(&mut model), 0);
}

#[test]
fn a_core_that_leaves_hands_over_its_shards_even_to_a_single_other_one() {
    let mut model = Model::new(3, 1);
    for left in [2, 1] {
        model.cores[left].standing = Standing::Leaves;
        assert_eq!(settle(&mut model), usize::from(SHARDS));
        assert!(model.placement.shards().all(|(_, shard)| shard.voters.len() == left));
        model.cores.pop();
    }
}

/// The shards would have two replicas, so that one lost disk would be enough to lose their majority.
#[test]
fn a_core_that_leaves_keeps_its_replicas_while_another_one_that_is_away_may_take_them() {
    let mut model = Model::new(3, 1);
    model.event(0, 0);
    settle(&mut model);
    model.cores[3].standing = Standing::Away;
    model.cores[2].standing = Standing::Leaves;
    settle(&mut model);
    let is_three = |model: &Model| model.placement.shards().all(|(_, shard)| shard.voters.len() == 3);
    assert!(is_three(&model));
    model.cores[3].standing = Standing::Serves;
    settle(&mut model);
    assert!(is_three(&model));
    assert_eq!(model.load(model.cores[2].log), 0);
    model.cores[2].standing = Standing::Serves;
    settle(&mut model);
    model.cores[3].standing = Standing::Lost;
    model.cores[2].standing = Standing::Leaves;
    settle(&mut model);
    assert_eq!(model.load(model.cores[2].log), 0, "nobody comes back soon");
}

/// One of three cores leaves while another one is dead: the last one alone would be no majority.
#[test]
fn a_core_that_leaves_keeps_the_shards_that_need_it() {
    let mut model = Model::new(3, 1);
    model.cores[1].standing = Standing::Lost;
    model.cores[2].standing = Standing::Leaves;
    assert_eq!(settle(&mut model), 0);
    model.cores.remove(1);
    assert_eq!(settle(&mut model), 2 * usize::from(SHARDS));
    assert!(model.placement.shards().all(|(_, shard)| logs(&shard.voters) == [model.cores[0].log]));
}

#[test]
fn a_core_that_has_lost_its_disk_gets_its_replicas_back() {
    let mut model = Model::new(3, 1);
    let before = model.placement.clone();
    model.event(2, 0);
    assert_eq!(settle(&mut model), usize::from(SHARDS));
    for ((_, old), (_, new)) in before.shards().zip(model.placement.shards()) {
        let nodes = |shard: &ShardPlacement| shard.voters.iter().map(|voter| voter.node).collect::<Vec<_>>();
        assert_eq!(nodes(old), nodes(new), "a replacement takes the slot of the one before");
        assert_ne!(old.voters, new.voters);
    }
}

#[test]
fn a_learner_that_is_lost_is_removed() {
    let mut model = Model::new(3, 1);
    model.event(0, 0);
    let step = model.plan().expect("a core has joined");
    model.begin(&step);
    let at = model.cores.iter().position(|core| Some(core.log) == step.add).expect("it is the new core");
    model.cores[at].standing = Standing::Lost;
    let undo = model.plan().expect("the learner is lost");
    assert_eq!((undo.shard, undo.add, undo.remove.map(ShardReplica::log)), (step.shard, None, step.add));
    model.begin(&undo);
    assert_eq!(model.plan(), None, "the group has to report that it is without the learner");
    assert!(model.finish());
    assert_eq!(settle(&mut model), 0);
}

#[test]
fn a_region_without_replicas_gets_one_of_each_shard() {
    // Two cores are in the first region, and one in the second.
    let mut all: Vec<Core> =
        [0, 0, 1].iter().zip(0..).map(|(region, node)| core(node, 1, *region, Standing::Serves)).collect();
    let placement = placed(&all, 3);
    all.push(core(3, 1, 2, Standing::Serves));
    let mut model = Model::of(placement, all, 3);
    assert_eq!(settle(&mut model), usize::from(SHARDS));
    for (_, shard) in model.placement.shards() {
        assert_eq!(model.concentration(&logs(&shard.voters)), 3, "one in each region");
    }
}

/// A majority of a shard's voters is lost while the shard changes. The other shards are repaired.
#[test]
fn a_shard_that_cannot_change_does_not_hold_up_the_others() {
    let mut model = Model::new(3, 1);
    (0..3).for_each(|_| model.event(0, 0));
    settle(&mut model);
    model.event(0, 0);
    let step = model.plan().expect("a core has joined");
    model.begin(&step);
    let voters = model.placement.shard(step.shard).expect("a shard").voters.clone();
    for voter in voters.iter().filter(|voter| Some(**voter) != step.remove) {
        let core = model.cores.iter_mut().find(|core| core.log == voter.log()).expect("a core");
        core.standing = Standing::Lost;
    }
    assert!(!model.finish());
    let mut repaired = 0;
    while let Some(step) = model.plan() {
        model.begin(&step);
        assert!(model.finish());
        repaired += 1;
    }
    assert!(repaired > 0);
    model.check_final();
    // The two cores return.
    model.cores.iter_mut().for_each(|core| core.standing = Standing::Serves);
    assert_eq!(model.plan(), None, "the first change goes on");
    assert!(model.finish());
    settle(&mut model);
    model.check_final();
}

/// The group of a shard has made the learner a voter when the core of the learner is lost. The replica has a role until
/// the group has reported that it is without it, and only then another core gets one.
#[test]
fn a_learner_that_may_be_a_voter_is_removed_before_another_one_is_added() {
    let mut model = Model::new(3, 1);
    model.event(0, 0);
    let step = model.plan().expect("a core has joined");
    model.begin(&step);
    assert!(model.change_groups(|_| true));
    let added = step.add.expect("it is added");
    model.cores.iter_mut().filter(|core| core.log == added).for_each(|core| core.standing = Standing::Lost);
    model.event(0, 0);
    let undo = model.plan().expect("the learner is lost");
    assert_eq!((undo.shard, undo.add, undo.remove.map(ShardReplica::log)), (step.shard, None, Some(added)));
    let shard = model.placement.shard(step.shard).expect("a shard");
    let other = model.cores.last().expect("another core has joined").log;
    let replace = ShardMove { add: Some(other), ..step };
    assert_eq!(shard.after(9, &replace), None, "the learner would have no role");
    model.begin(&undo);
    assert!(model.placement.has_node(added.node));
    assert_eq!(model.plan(), None, "the group has not reported it");
    assert!(model.finish() && !model.placement.has_node(added.node));
    settle(&mut model);
    model.check_final();
}

/// A new core cannot take a replica, because its disk is full, for example.
#[test]
fn a_change_that_takes_too_long_does_not_hold_up_the_others() {
    let mut model = Model::new(3, 1);
    model.event(0, 0);
    let first = model.plan().expect("a core has joined");
    model.begin(&first);
    model.event(0, 0);
    assert_eq!(model.plan(), None, "the change may end soon");
    assert!(model.wait());
    let mut moved = 0;
    while let Some(step) = model.plan() {
        assert!(step.shard != first.shard && step.add != first.add, "{step:?}");
        model.begin(&step);
        assert_eq!(model.plan(), None, "one more shard at a time");
        assert!(model.change_groups(|shard| shard == step.shard) && model.report());
        moved += 1;
    }
    assert!(moved > 0);
    assert!(model.finish(), "there is room");
    settle(&mut model);
    model.check_final();
}

/// A core leaves. The two others cannot change a shard without it, because one of them has died meanwhile.
#[test]
fn a_core_that_leaves_is_replaced_when_the_others_cannot_agree_without_it() {
    let mut model = Model::new(3, 1);
    model.cores[2].standing = Standing::Leaves;
    let step = model.plan().expect("a core leaves");
    assert_eq!(step.add, None);
    model.begin(&step);
    model.cores[1].standing = Standing::Away;
    assert!(!model.finish());
    assert_eq!(model.plan(), None);
    model.cores[1].standing = Standing::Lost;
    assert_eq!(model.plan(), None, "no other core can take the replica");
    model.event(0, 0);
    let joined = model.cores.last().map(|core| core.log);
    let again = model.plan().expect("a core has joined");
    assert_eq!((again.shard, again.add, again.remove), (step.shard, joined, step.remove));
    model.begin(&again);
    assert!(model.finish());
}

/// The replicas of a refused core do not answer. So the shard does not change without a majority of the others.
#[test]
fn a_refused_core_loses_its_replicas_if_a_majority_answers_without_it() {
    let mut model = Model::new(3, 1);
    model.cores[2].standing = Standing::Refused;
    let step = model.plan().expect("two of three answer");
    assert_eq!((step.add, step.remove.map(|removed| removed.log())), (None, Some(model.cores[2].log)));
    model.cores[1].standing = Standing::Refused;
    assert_eq!(model.plan(), None, "one of three answers");
}
