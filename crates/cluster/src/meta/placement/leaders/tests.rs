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

fn serving(cores: &[Core]) -> BTreeMap<CoreLog, Candidate> {
    let serving = cores.iter().filter(|core| core.standing == Standing::Serves);
    serving.map(|core| (core.log, Candidate { region: core.region.clone(), unreached: 0 })).collect()
}

fn placed(cores: &[Core], shards: u16, replicas: u8) -> Placement {
    found(cores, shards, Replicas::new(replicas).expect("a number of replicas"), [7; 16]).expect("a core")
}

/// Returns the preferred leaders while no shard has a leader.
fn spread(placement: &Placement, cores: &[Core]) -> ShardLeaders {
    spread_from(placement, cores, &[])
}

fn spread_from(placement: &Placement, cores: &[Core], present: &[Option<NodeId>]) -> ShardLeaders {
    preferred_leaders(placement, &serving(cores), &DrainedNodes::new(), |_| LeaderPreference::Any, present)
}

/// Number of shards that have another leader.
fn moves(before: &[Option<NodeId>], after: &[Option<NodeId>]) -> usize {
    before.iter().zip(after).filter(|(before, after)| before != after).count()
}

/// Least number of shards that cores with these loads have to give up, if each core can lead every shard.
fn moves_min(loads: &[usize], shards: usize) -> usize {
    let (each, rest) = (shards / loads.len(), shards % loads.len());
    let mut loads = loads.to_vec();
    loads.sort_by(|a, b| b.cmp(a));
    let surplus = |(at, load): (usize, &usize)| load.saturating_sub(each + usize::from(at < rest));
    loads.iter().enumerate().map(surplus).sum()
}

/// Number of shards that each core leads.
fn loads(cores: &[Core], leaders: &ShardLeaders) -> Vec<usize> {
    let led = |core: &Core| leaders.iter().filter(|leader| **leader == Some(core.log.node)).count();
    cores.iter().map(led).collect()
}

fn difference(loads: &[usize]) -> usize {
    loads.iter().max().unwrap_or(&0) - loads.iter().min().unwrap_or(&0)
}

/// Number of shards that have another leader, of those whose leader could go on.
fn needless_moves(before: &ShardLeaders, after: &ShardLeaders, gone: &[NodeId]) -> usize {
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
    let two = spread_from(&placement, &cores, &all);
    assert_eq!(loads(&cores, &two), [0, 8, 8]);
    assert_eq!(needless_moves(&all, &two, &[log(0).node]), 0);
    cores[0].standing = Standing::Serves;
    let back = spread_from(&placement, &cores, &two);
    assert_eq!((loads(&cores, &back), moves(&two, &back)), (vec![5, 6, 5], 5));
    assert_eq!(spread_from(&placement, &cores, &back), back);
    cores.iter_mut().for_each(|core| core.standing = Standing::Away);
    assert_eq!(spread(&placement, &cores), vec![None; usize::from(SHARDS)]);
}

/// A core waits before each transfer, and again when its plan has changed.
#[test]
fn the_plan_stays_the_same_while_it_is_carried_out() {
    for count in 3..=5 {
        let cores = cores(&vec![0; count]);
        let placement = placed(&cores, SHARDS, count as u8);
        let mut present = vec![Some(log(0).node); usize::from(SHARDS)];
        let plan = spread_from(&placement, &cores, &present);
        assert!(difference(&loads(&cores, &plan)) <= 1);
        for shard in 0..present.len() {
            present[shard] = plan[shard];
            assert_eq!(spread_from(&placement, &cores, &present), plan, "{count} cores, shard {shard}");
        }
    }
}

/// Returns the preferred leaders while the first core is drained to others.
fn handed_over(placement: &Placement, cores: &[Core], to: &[u64], present: &ShardLeaders) -> ShardLeaders {
    let to = to.iter().map(|number| log(*number).node).collect();
    let drained = DrainedNodes::from([(log(0).node, to)]);
    let mut serving = serving(cores);
    serving.remove(&log(0));
    preferred_leaders(placement, &serving, &drained, |_| LeaderPreference::Any, present)
}

/// The balance does not move the shards on, and a core that is not drained keeps its own.
#[test]
fn the_nodes_that_a_drain_names_get_the_shards_and_keep_them() {
    let mut three = cores(&[0, 0, 0]);
    let placement = placed(&three, SHARDS, 3);
    let before = spread(&placement, &three);
    let after = handed_over(&placement, &three, &[2], &before);
    assert_eq!((loads(&three, &before), loads(&three, &after)), (vec![6, 5, 5], vec![0, 5, 11]));
    assert_eq!(needless_moves(&before, &after, &[log(0).node]), 0);
    let mut present = before;
    for shard in 0..present.len() {
        present[shard] = after[shard];
        assert_eq!(handed_over(&placement, &three, &[2], &present), after, "shard {shard}");
    }
    // Without the drain, the shards are spread again.
    assert_eq!(difference(&loads(&three, &spread_from(&placement, &three, &after))), 1);
    // A named core that cannot lead, or has no replica, gets none.
    three[2].standing = Standing::Away;
    assert_eq!(loads(&three, &handed_over(&placement, &three, &[2], &after)), [0, 16, 0]);
    assert_eq!(loads(&three, &handed_over(&placement, &three, &[7], &after)), [0, 16, 0]);
}

#[test]
fn the_shards_of_a_drained_core_go_to_named_cores_with_a_replica_and_else_to_others() {
    let five = cores(&[0; 5]);
    let placement = placed(&five, SHARDS, 3);
    let before = spread(&placement, &five);
    let after = handed_over(&placement, &five, &[1, 2], &before);
    for ((id, shard), leader) in placement.shards().zip(&after) {
        let leader = leader.expect("each shard is led");
        let has = |number: u64| shard.voters.iter().any(|voter| voter.log() == log(number));
        let was_drained = before[id.index()] == Some(log(0).node);
        if was_drained && (has(1) || has(2)) {
            assert!([log(1).node, log(2).node].contains(&leader), "{id:?}");
        }
        assert_ne!(leader, log(0).node);
    }
    assert_eq!(handed_over(&placement, &five, &[1, 2], &after), after, "it stays");
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
    let led = |cores: &[Core]| {
        let leaders = preferred_leaders(
            &placement,
            &serving(cores),
            &DrainedNodes::new(),
            |_| LeaderPreference::In("r0"),
            &[],
        );
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

/// A core that does not reach another node leads only shards that no core with fewer unreached nodes can lead.
#[test]
fn shards_are_led_by_cores_that_reach_all_others() {
    let preferred =
        |cores: &[Core], placement: &Placement, unreached: &[usize], preference, present: &ShardLeaders| {
            let mut serving = serving(cores);
            for (core, unreached) in cores.iter().zip(unreached) {
                serving.get_mut(&core.log).expect("it serves").unreached = *unreached;
            }
            preferred_leaders(placement, &serving, &DrainedNodes::new(), |_| preference, present)
        };
    let three = cores(&[0, 1, 1]);
    let placement = placed(&three, SHARDS, 3);
    let present = spread(&placement, &three);
    for preference in [LeaderPreference::Any, LeaderPreference::In("r0"), LeaderPreference::Same] {
        let cut = preferred(&three, &placement, &[1, 0, 1], preference, &present);
        assert_eq!(loads(&three, &cut), [0, 16, 0], "{preference:?}");
    }
    let equal = preferred(&three, &placement, &[1, 1, 1], LeaderPreference::Any, &present);
    assert_eq!(equal, present, "no core is better");
    let cut = preferred(&three, &placement, &[1, 0, 1], LeaderPreference::Any, &present);
    let restored = preferred(&three, &placement, &[0, 0, 0], LeaderPreference::Any, &cut);
    assert_eq!(difference(&loads(&three, &restored)), 1);
    // Two of five do not reach each other. Each shard is led where both are reached, and the others share the shards.
    let five = cores(&[0; 5]);
    let placement = placed(&five, SHARDS, 3);
    let cut =
        preferred(&five, &placement, &[1, 1, 0, 0, 0], LeaderPreference::Any, &spread(&placement, &five));
    let led = loads(&five, &cut);
    assert_eq!((led[..2].iter().sum::<usize>(), led.iter().sum::<usize>()), (0, 16));
    assert!(difference(&led[2..]) <= 1, "{led:?}");
}

/// A core loses its disk and gets its replicas again, one shard after the other. It is the last voter of each then.
/// Leaders of the other cores keep their shards, except those that the new replica is to lead.
#[test]
fn a_core_that_is_replaced_gets_its_share_once_and_no_leader_moves_back_and_forth() {
    let cores = cores(&[0, 0, 0]);
    let mut placement = placed(&cores, SHARDS, 3);
    let mut leaders = spread(&placement, &cores);
    assert_eq!(loads(&cores, &leaders), [6, 5, 5]);
    let lost = log(2);
    let alive: Vec<Core> = cores.iter().filter(|core| core.log != lost).cloned().collect();
    // The elections after the death of the core have given its shards to one of the others.
    leaders.iter_mut().filter(|leader| **leader == Some(lost.node)).for_each(|it| *it = Some(log(0).node));
    let mut transfers = 0;
    let mut follow = |placement: &Placement, cores: &[Core], leaders: &mut ShardLeaders| {
        let preferred = spread_from(placement, cores, leaders);
        transfers += moves(leaders, &preferred);
        *leaders = preferred;
    };
    follow(&placement, &alive, &mut leaders);
    let replacement = CoreLog { replica: ReplicaId(200), ..lost };
    let replaced = Core { log: replacement, ..cores[2].clone() };
    let cores: Vec<Core> = alive.into_iter().chain([replaced]).collect();
    for shard in 0..usize::from(SHARDS) {
        let voters = &mut placement.shards[shard].voters;
        voters.retain(|voter| voter.log() != lost);
        voters.push(replacement.replica_since(9));
        follow(&placement, &cores, &mut leaders);
    }
    assert!(difference(&loads(&cores, &leaders)) <= 1);
    // At least 3 share the shards of the lost core, and 5 go to the replaced core.
    assert!((8..=10).contains(&transfers), "{transfers}");
}

/// Lets each core move one of the shards that it leads towards the region of its clients, all at the same time, until
/// no core has a reason to. Returns the number of rounds.
fn follow_clients(
    cores: &[Core],
    placement: &Placement,
    leaders: &mut ShardLeaders,
    regions_of_clients: &[Box<str>],
) -> usize {
    const ROUNDS_MAX: usize = 200;
    for round in 0..ROUNDS_MAX {
        let known = leaders.clone();
        for core in cores {
            let own = Some(core.log.node);
            let preference = |shard: ShardId| {
                let is_own = known[shard.index()] == own;
                if is_own {
                    LeaderPreference::In(&regions_of_clients[shard.index()])
                } else {
                    LeaderPreference::Same
                }
            };
            let preferred =
                preferred_leaders(placement, &serving(cores), &DrainedNodes::new(), preference, &known);
            let moved = (0..known.len()).find(|at| known[*at] == own && preferred[*at] != own);
            if let Some(at) = moved {
                leaders[at] = preferred[at];
            }
        }
        if *leaders == known {
            return round;
        }
    }
    ROUNDS_MAX
}

proptest! {
    /// Each core knows only from where the clients of its own shards come.
    #[test]
    fn leaders_follow_clients_and_come_to_rest(
        regions in vec(0..3_u8, 1..9),
        replicas in 1..=7_u8,
        regions_of_clients in vec(0..4_u8, 1..40),
        is_one_region in any::<bool>(),
        present in vec(0..9_u64, 40),
    ) {
        let cores = cores(&regions);
        let placement = placed(&cores, regions_of_clients.len() as u16, replicas);
        let regions_of_clients: Vec<Box<str>> =
            regions_of_clients.iter().map(|at| format!("r{}", if is_one_region { regions_of_clients[0] } else { *at }).into()).collect();
        let led_by = |((_, shard), at): ((ShardId, &ShardPlacement), &u64)| {
            Some(shard.voters[*at as usize % shard.voters.len()].node)
        };
        let mut leaders: ShardLeaders = placement.shards().zip(&present).map(led_by).collect();
        let rounds = follow_clients(&cores, &placement, &mut leaders, &regions_of_clients);
        prop_assert!(rounds < 60, "{rounds} rounds");
        let region = |node: NodeId| cores.iter().find(|core| core.log.node == node).map(|core| &core.region);
        let led = loads(&cores, &leaders);
        for ((id, shard), leader) in placement.shards().zip(&leaders) {
            let regions_of_clients = &regions_of_clients[id.index()];
            let able: Vec<NodeId> = shard.voters.iter().map(|voter| voter.node).collect();
            let near: Vec<NodeId> = able.iter().copied().filter(|node| region(*node) == Some(regions_of_clients)).collect();
            let Some(leader) = *leader else { panic!("each shard is led") };
            prop_assert!(near.is_empty() || near.contains(&leader));
            let load = |node: NodeId| led[node.0 as usize - 1];
            let others = if near.is_empty() { &able } else { &near };
            prop_assert!(others.iter().all(|node| load(leader) < load(*node) + 2), "{:?}", led);
        }
    }

    /// Each core has a replica of every shard. Whatever the present leaders are, the fewest possible move.
    #[test]
    fn as_few_leaders_move_as_possible(
        count in 1..6_usize,
        present in vec(proptest::option::of(0..6_u64), 1..40),
    ) {
        let cores = cores(&vec![0; count]);
        let shards = present.len() as u16;
        let placement = placed(&cores, shards, count as u8);
        let present: Vec<_> = present.iter().map(|at| at.map(|at| log(at).node)).collect();
        let after = spread_from(&placement, &cores, &present);
        let led = loads(&cores, &after);
        prop_assert_eq!(led.iter().sum::<usize>(), usize::from(shards));
        prop_assert!(difference(&led) <= 1, "{:?}", led);
        let can_stay: Vec<_> = present.iter().map(|it| it.filter(|node| node.0 <= count as u64)).collect();
        let moved = can_stay.iter().zip(&after).filter(|(before, after)| before.is_some() && before != after).count();
        // Shards without a leader fill the cores that lead few.
        prop_assert_eq!(moved, moves_min(&loads(&cores, &can_stay), usize::from(shards)));
        prop_assert_eq!(spread_from(&placement, &cores, &after), after);
    }

    /// One voter of each shard is replaced, from a balanced assignment. A leader that can go on moves only if its core
    /// would lead at least two more than the new leader's core otherwise.
    #[test]
    fn no_leader_moves_without_need_when_voters_are_replaced(
        count in 2..8_usize,
        replicas in 1..=5_u8,
        shards in 1..40_u16,
        lost in 0..8_usize,
        replaced in vec((0..5_usize, 0..8_u64), 40),
        is_one_core in any::<bool>(),
    ) {
        let mut cores = cores(&vec![0; count]);
        let mut placement = placed(&cores, shards, replicas);
        let before = spread(&placement, &cores);
        if is_one_core {
            let lost = lost % count;
            let old = std::mem::replace(&mut cores[lost].log.replica, ReplicaId(200));
            let node = cores[lost].log.node;
            for shard in &mut placement.shards {
                let (gone, mut voters): (Vec<_>, Vec<_>) =
                    shard.voters.iter().partition(|voter| (voter.node, voter.replica) == (node, old));
                voters.extend(gone.iter().map(|_| cores[lost].log.replica_since(9)));
                shard.voters = voters;
            }
        } else {
            for (shard, (at, by)) in placement.shards.iter_mut().zip(replaced) {
                let by = log(by % count as u64);
                if shard.voters.iter().all(|voter| voter.log() != by) {
                    shard.voters.remove(at % shard.voters.len());
                    shard.voters.push(by.replica_since(9));
                }
            }
        }
        let after = spread_from(&placement, &cores, &before);
        let led = loads(&cores, &after);
        let load = |node: NodeId| led[node.0 as usize - 1];
        for (((_, shard), before), after) in placement.shards().zip(&before).zip(&after) {
            let (Some(before), Some(after)) = (*before, *after) else { panic!("each shard can be led") };
            let able = || shard.voters.iter().map(|voter| voter.node);
            prop_assert!(able().any(|node| node == after));
            prop_assert!(able().all(|node| load(after) < load(node) + 2), "{:?}", led);
            let can_stay = able().any(|node| node == before);
            prop_assert!(before == after || !can_stay || load(before) >= load(after), "{:?}", led);
        }
        if is_one_core {
            prop_assert_eq!(after, before, "the same core has the same shards");
        }
    }

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
        let after = spread_from(&placement, &cores, &before);
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
