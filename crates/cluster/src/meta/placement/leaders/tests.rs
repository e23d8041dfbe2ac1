use std::collections::BTreeSet;

use consensus::ReplicaId;
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::ShardReplica;
use super::super::planner::{Core, Standing, found, next_move};
use super::*;
use crate::config::Replicas;

const SHARDS: u16 = 16;

fn log(number: u64) -> CoreLog {
    CoreLog { node: NodeId(number + 1), replica: ReplicaId(number + 100) }
}

/// Cores with these regions that serve, as the planner sees them.
fn cores(regions: &[u8]) -> Vec<Core> {
    let core = |(number, region): (usize, &u8)| Core {
        log: log(number as u64),
        region: format!("r{region}").into(),
        standing: Standing::Serves,
    };
    regions.iter().enumerate().map(core).collect()
}

fn serving(cores: &[Core]) -> BTreeMap<CoreLog, Box<str>> {
    let serving = cores.iter().filter(|core| core.standing == Standing::Serves);
    serving.map(|core| (core.log, core.region.clone())).collect()
}

fn placed(cores: &[Core], shards: u16, replicas: u8) -> Placement {
    found(cores, shards, Replicas::new(replicas).expect("a number of replicas"), [7; 16]).expect("a core")
}

fn spread(placement: &Placement, cores: &[Core]) -> PreferredLeaders {
    preferred_leaders(placement, &serving(cores), &LeaderPolicy::Spread)
}

/// Number of shards that each core leads.
fn loads(cores: &[Core], leaders: &PreferredLeaders) -> Vec<usize> {
    let led = |core: &Core| leaders.iter().filter(|leader| **leader == Some(core.log.node)).count();
    cores.iter().map(led).collect()
}

fn difference(loads: &[usize]) -> usize {
    loads.iter().max().unwrap_or(&0) - loads.iter().min().unwrap_or(&0)
}

/// Number of shards that have another leader, of those whose leader could go on.
fn needless_moves(before: &PreferredLeaders, after: &PreferredLeaders, gone: &[NodeId]) -> usize {
    let moved = before.iter().zip(after).filter(|(before, after)| before != after);
    moved.filter(|(before, _)| before.is_some_and(|node| !gone.contains(&node))).count()
}

/// Makes all moves that the planner wants.
fn settle(cores: &[Core], placement: &mut Placement) {
    while let Some(step) = next_move(cores, placement, &BTreeSet::new()) {
        placement.version += 1;
        let shard = placement.shards.get_mut(usize::from(step.shard.0)).expect("a shard");
        *shard = shard.after(placement.version, &step).expect("a step that fits");
        shard.settle();
    }
}

#[test]
fn each_core_leads_as_many_shards_as_the_others_and_a_dead_one_none() {
    let mut cores = cores(&[0, 0, 0]);
    let placement = placed(&cores, SHARDS, 3);
    let all = spread(&placement, &cores);
    assert_eq!(loads(&cores, &all), [6, 5, 5]);
    cores[0].standing = Standing::Away;
    let two = spread(&placement, &cores);
    assert_eq!(loads(&cores, &two), [0, 8, 8]);
    assert_eq!(needless_moves(&all, &two, &[log(0).node]), 0);
    cores[0].standing = Standing::Serves;
    assert_eq!(spread(&placement, &cores), all, "it gets its own shards back");
    cores.iter_mut().for_each(|core| core.standing = Standing::Away);
    assert_eq!(spread(&placement, &cores), vec![None; usize::from(SHARDS)]);
}

/// Neither a learner nor a voter that goes leads, and another log of the same node is not the voter.
#[test]
fn only_a_voter_that_stays_leads() {
    let cores = cores(&[0, 0, 0, 0]);
    let (first, second) = (log(0).replica_since(5), log(1).replica_since(5));
    let learner = log(2).replica_since(6);
    let shard = ShardPlacement {
        epoch: 6,
        voters: vec![first, second],
        learner: Some(learner),
        leaving: Some(first),
    };
    let one = Placement { shards: vec![shard], ..placed(&cores, 1, 3) };
    assert_eq!(spread(&one, &cores), [Some(second.node)]);
    let other = ShardReplica { replica: ReplicaId(9), ..second };
    let mut wiped = one.clone();
    wiped.shards[0].voters[1] = other;
    assert_eq!(spread(&wiped, &cores), [None]);
}

#[test]
fn leaders_are_in_a_region_while_it_has_a_voter_that_can_lead() {
    let mut cores = cores(&[0, 0, 1, 1, 1]);
    let placement = placed(&cores, SHARDS, 3);
    let policy = LeaderPolicy::Region("r0".into());
    let led = |cores: &[Core]| {
        let leaders = preferred_leaders(&placement, &serving(cores), &policy);
        assert!(leaders.iter().all(Option::is_some));
        loads(cores, &leaders)
    };
    assert_eq!(led(&cores), [8, 8, 0, 0, 0]);
    cores[0].standing = Standing::Leaves;
    let left = led(&cores);
    assert_eq!(left[0], 0);
    assert!(left[1] >= 8, "{left:?}");
    cores[1].standing = Standing::Leaves;
    let left = led(&cores);
    assert_eq!(left[..2], [0, 0]);
    assert!(difference(&left[2..]) <= 1, "{left:?}");
}

proptest! {
    /// All cores serve: their numbers of shards differ by one at most, whatever happened to the placement before.
    #[test]
    fn leaders_are_balanced(
        regions in vec(0..3_u8, 1..9),
        replicas in 1..=5_u8,
        shards in 1..40_u16,
        lost in vec(0..8_usize, 0..3),
    ) {
        let mut cores = cores(&regions);
        let mut placement = placed(&cores, shards, replicas);
        for lost in lost {
            let at = lost % cores.len();
            cores[at].standing = Standing::Lost;
            settle(&cores, &mut placement);
            cores[at].standing = Standing::Serves;
            settle(&cores, &mut placement);
        }
        let leaders = spread(&placement, &cores);
        let loads = loads(&cores, &leaders);
        prop_assert_eq!(loads.iter().sum::<usize>(), usize::from(shards));
        // A core can lead what it has replicas of.
        let has_all = loads.iter().zip(&cores).all(|(_, core)| {
            placement.shards().filter(|(_, shard)| shard.voters.iter().any(|it| it.log() == core.log)).count()
                >= usize::from(shards) / cores.len()
        });
        if has_all {
            prop_assert!(difference(&loads) <= 1, "{:?}", loads);
        }
    }

    /// Each leader is a voter that can lead. No single move makes the difference between two cores smaller. Cores that
    /// stay keep their shards, if each has a replica of every shard.
    #[test]
    fn a_lost_core_moves_its_own_shards(
        count in 2..8_usize,
        replicas in 2..=7_u8,
        shards in 1..40_u16,
        gone in vec(0..8_usize, 1..3),
    ) {
        let mut cores = cores(&vec![0; count]);
        let placement = placed(&cores, shards, replicas);
        let before = spread(&placement, &cores);
        let gone: Vec<usize> = gone.into_iter().map(|at| at % count).collect();
        gone.iter().for_each(|at| cores[*at].standing = Standing::Away);
        let after = spread(&placement, &cores);
        let nodes: Vec<NodeId> = gone.iter().map(|at| cores[*at].log.node).collect();
        let led = loads(&cores, &after);
        let load = |node: NodeId| led[node.0 as usize - 1];
        for ((_, shard), leader) in placement.shards().zip(&after) {
            let able = || shard.voters.iter().map(|voter| voter.node).filter(|node| !nodes.contains(node));
            prop_assert_eq!(leader.is_some(), able().next().is_some());
            if let Some(leader) = leader {
                prop_assert!(able().any(|node| node == *leader));
                prop_assert!(able().all(|node| load(*leader) < load(node) + 2), "{:?}", led);
            }
        }
        let needless = needless_moves(&before, &after, &nodes);
        if usize::from(replicas) >= count {
            prop_assert_eq!(needless, 0);
        }
    }
}
