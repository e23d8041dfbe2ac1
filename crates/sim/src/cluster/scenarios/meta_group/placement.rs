//! Placement of shards: every node knows it, and it follows the cores.

use std::collections::BTreeMap;

use cluster::meta::Placement;

use super::*;
#[cfg(test)]
use crate::cluster::member::own_key;

/// Number of shards, and of replicas of each.
const SHARDS: usize = 16;
const REPLICAS: usize = 3;

/// Starts three cores and a replicant, which is n3. Further cores are not started yet.
fn placed(further: usize, change: impl FnOnce(&mut Plan)) -> Scenario {
    let mut plan = plan(Duration::from_millis(5));
    plan.add(Role::Replicant);
    (0..further).for_each(|_| plan.add(Role::Core));
    let count = plan.nodes.len();
    plan.join_lists = vec![vec![0, 1, 2]; count];
    plan.places_shards = true;
    plan.replace_after = Duration::from_secs(5);
    change(&mut plan);
    let mut scenario = Scenario::of_first(SEED, plan, |_| None, further);
    scenario.until("shards are placed", |scenario| {
        (0..4).all(|node| scenario.meta(node).is_some_and(|meta| meta.placement().is_some()))
    });
    scenario
}

impl Scenario {
    fn placement(&self, node: usize) -> &Placement {
        self.meta(node).expect("the node runs").placement().expect("shards are placed")
    }

    /// Number of shards that each of the first three cores should lead, as a node knows it.
    fn preferred(&self, node: usize) -> [usize; 3] {
        let process = self.cluster.members[node].process.as_ref().expect("the node runs");
        let leaders = process.router.preferred_leaders().expect("shards are placed");
        [0, 1, 2].map(|core| leaders.iter().filter(|leader| **leader == Some(id(core))).count())
    }

    /// Runs until each of these cores has its share of all replicas, and nothing changes any more. Asserts that one
    /// shard at a time changes, and that all keep their number of voters.
    fn until_shared_by(&mut self, cores: &[usize], others: &[usize]) {
        let share = SHARDS * REPLICAS / cores.len();
        let mut waited = 0;
        loop {
            self.run_for(20 * MILLI);
            let known = |node: &usize| self.meta(*node).and_then(Meta::placement);
            for placement in cores.iter().chain(others).filter_map(known) {
                let changing = placement.shards().filter(|(_, shard)| !shard.is_settled()).count();
                assert!(changing <= 1, "{changing} shards change at once");
                assert!(placement.shards().all(|(_, shard)| shard.voters.len() == REPLICAS));
            }
            let first = self.placement(cores[0]);
            let loads = loads(first);
            let is_shared = first.shards().all(|(_, shard)| shard.is_settled())
                && loads.len() == cores.len()
                && cores
                    .iter()
                    .all(|core| loads.get(&id(*core)).is_some_and(|load| (share..=share + 1).contains(load)));
            if is_shared
                && cores.iter().chain(others).all(|node| known(node).is_some_and(|it| **it == *first))
            {
                return;
            }
            waited += 1;
            assert!(waited < 6_000, "after two minutes: {loads:?}");
        }
    }
}

impl Scenario {
    /// Asserts that a core votes, and says that its sessions are not those of the shards.
    #[cfg(test)]
    fn assert_refused(&self, core: usize) {
        let process = self.cluster.members[core].process.as_ref().expect("the node runs");
        let meta = process.router.meta();
        assert!(meta.has_vote(process.time(&self.cluster.cx)) && meta.has_other_state());
        assert!(meta.waits_for().is_some_and(|why| why.contains("cannot be merged")));
    }
}

/// Number of replicas of each node.
fn loads(placement: &Placement) -> BTreeMap<NodeId, usize> {
    let mut loads = BTreeMap::new();
    for replica in placement.shards().flat_map(|(_, shard)| shard.replicas()) {
        *loads.entry(replica.node).or_default() += 1;
    }
    loads
}

/// Two cores join one after the other. Then one dies, and another one leaves. A replicant and all cores know each
/// placement.
#[cfg_attr(test, test)]
pub(in super::super) fn replicas_of_shards_follow_the_cores() {
    let mut scenario = placed(2, |_| ());
    scenario.until_shared_by(&[0, 1, 2], &[REPLICANT]);
    let key = scenario.placement(0).owner_key;
    scenario.cluster.start(4);
    scenario.until_shared_by(&[0, 1, 2, 4], &[REPLICANT]);
    scenario.cluster.start(5);
    scenario.until_shared_by(&[0, 1, 2, 4, 5], &[REPLICANT]);
    scenario.shuts_down(4);
    scenario.until_shared_by(&[0, 1, 2, 5], &[REPLICANT]);
    scenario.removes(0, 4, ProposalId(FIRST_OTHER_PROPOSAL));
    scenario.until("it is removed", |scenario| scenario.members(0) == 5);
    scenario.orders(5, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
    let leaves =
        |scenario: &Scenario| scenario.known(0).members.get(&id(5)).is_some_and(|member| member.leaves);
    scenario.until("it leaves", leaves);
    scenario.until_shared_by(&[0, 1, 2], &[REPLICANT]);
    scenario.until("it has left", |scenario| scenario.members(0) == 4);
    assert_eq!(scenario.placement(REPLICANT).owner_key, key);
    // Operators see the same by names.
    let process = scenario.cluster.members[REPLICANT].process.as_ref().expect("the node runs");
    let view = process.router.view(process.time(&scenario.cluster.cx)).membership.placement;
    let view = view.expect("shards are placed");
    assert_eq!((view.version, view.shards.len()), (scenario.placement(0).version, SHARDS));
    let mut voters = view.shards[7].voters.clone();
    voters.sort();
    assert_eq!(voters, ["n0".into(), "n1".into(), "n2".into()]);
}

/// Two cores, or a core and a replicant, do not reach each other. All cores know that, and agree on leaders that reach
/// all nodes. Afterwards leaders are spread again.
#[cfg_attr(test, test)]
pub(in super::super) fn shards_are_led_by_a_core_that_reaches_all_nodes() {
    let mut scenario = placed(0, |_| ());
    scenario.until_shared_by(&[0, 1, 2], &[REPLICANT]);
    let spread = scenario.preferred(0);
    assert!(spread.iter().all(|led| (5..=6).contains(led)), "{spread:?}");
    for (one, other, led) in [(0, 2, [0, 16, 0]), (0, 1, [0, 0, 16]), (1, REPLICANT, [8, 0, 8])] {
        for _ in 0..10 {
            // A short cut changes nothing.
            scenario.part(one, other);
            scenario.run_for(SECOND / 10);
            scenario.join(one, other);
            scenario.run_for(6 * SECOND);
            (0..3).for_each(|node| assert_eq!(scenario.preferred(node), spread, "n{node}"));
        }
        scenario.part(one, other);
        scenario.run_for(15 * SECOND);
        (0..3).for_each(|node| assert_eq!(scenario.preferred(node), led, "n{node}"));
        let alive = |node: usize| (0..4).all(|of| scenario.state(node, of) == Some(State::Alive));
        assert!((0..3).all(alive));
        scenario.join(one, other);
        scenario.run_for(15 * SECOND);
        (0..3).for_each(|node| assert_eq!(scenario.preferred(node), spread, "n{node}"));
    }
    // A dead node is no reason.
    scenario.shuts_down(REPLICANT);
    scenario.run_for(15 * SECOND);
    (0..3).for_each(|node| assert_eq!(scenario.preferred(node), spread, "n{node}"));
}

/// One of the cores has durable sessions of its own, whichever leads. It founds the shards alone, and the others get
/// replicas later.
#[test]
fn shards_begin_on_the_core_that_has_sessions() {
    for own in 0..3 {
        let mut scenario = placed(0, |plan| plan.own_states = vec![own]);
        let first = scenario.placement(own).clone();
        assert_eq!(first.owner_key, own_key(own), "the others find its owners");
        assert!(first.shards().all(|(_, shard)| shard.voters[0].node == id(own)));
        let is_whole = |scenario: &Scenario| {
            let is_whole = |shard: &cluster::meta::ShardPlacement| {
                shard.is_settled() && shard.voters.len() == REPLICAS && shard.voters[0].node == id(own)
            };
            (0..4).all(|node| scenario.placement(node).shards().all(|(_, shard)| is_whole(shard)))
        };
        for _ in 0..600 {
            scenario.run_for(200 * MILLI);
            if is_whole(&scenario) {
                break;
            }
        }
        assert!(is_whole(&scenario), "each shard has three replicas, and the first one is there");
    }
}

/// Starts three cores that cannot place shards, one of them with durable sessions. They all can in the end, and the
/// last one of them has not reported that to the others yet.
#[cfg(test)]
fn before_shards_are_placed(own: usize) -> Scenario {
    let mut plan = plan(Duration::from_millis(5));
    plan.own_states = vec![own];
    let mut scenario = Scenario::of_first(SEED, plan, |_| None, 0);
    for node in [own, (own + 1) % 3, (own + 2) % 3] {
        // Longer than a leader waits for the sessions.
        scenario.run_for(40 * SECOND);
        let state = if node == own { cluster::OWN_STATE } else { cluster::EMPTY_SHARDS };
        scenario.cluster.members[node].always |= cluster::SHARDS | state;
        scenario.restart(node);
    }
    scenario
}

/// The cores have run without shards for long when the last one of them allows it.
#[test]
fn shards_begin_with_the_sessions_of_a_core_when_an_old_cluster_places_them() {
    let mut led_by_another = 0;
    for own in 0..3 {
        let mut scenario = before_shards_are_placed(own);
        let other = (own + 1) % 3;
        let leader = scenario.leaders(other..other + 1)[0];
        scenario.run_for(20 * SECOND);
        led_by_another +=
            u32::from(leader == Some(id(other)) && scenario.leaders(other..other + 1)[0] == leader);
        assert_eq!(scenario.placement(other).owner_key, own_key(own));
    }
    assert!(led_by_another > 0, "another core that can place shards never leads");
}

/// A core with durable sessions dies when the cores can place shards, before it knows that. Another one leads.
#[cfg(test)]
fn without_the_core_that_has_sessions() -> (Scenario, usize) {
    for own in 0..3 {
        let mut scenario = before_shards_are_placed(own);
        let can_place = |scenario: &Scenario, node: usize| {
            scenario.meta(node).and_then(Meta::adopted).is_some_and(|adopted| adopted & cluster::SHARDS != 0)
        };
        let mut steps = 0;
        while (0..3).all(|node| !can_place(&scenario, node)) {
            scenario.run_for(MILLI / 4);
            steps += 1;
            assert!(steps < 240_000, "not in a minute");
        }
        if scenario.leader() != own {
            scenario.shuts_down(own);
            let other = (own + 1) % 3;
            scenario.until("it is dead", |scenario| scenario.state(other, own) == Some(State::Dead));
            return (scenario, own);
        }
    }
    panic!("a core with sessions always leads")
}

#[test]
fn shards_wait_for_a_core_with_sessions_that_has_died() {
    let (mut scenario, own) = without_the_core_that_has_sessions();
    let other = (own + 1) % 3;
    let is_placed = |scenario: &Scenario| scenario.meta(other).is_some_and(|meta| meta.placement().is_some());
    scenario.run_for(3 * SECOND);
    assert!(!is_placed(&scenario), "others have begun");
    scenario.cluster.members[own].is_switched_off = false;
    scenario.cluster.start(own);
    scenario.until("shards are placed", is_placed);
    assert_eq!(scenario.placement(other).owner_key, own_key(own));
}

/// A core that returns too late has a vote and no shards.
#[test]
fn shards_begin_without_a_core_with_sessions_that_stays_dead() {
    let (mut scenario, own) = without_the_core_that_has_sessions();
    let others = [(own + 1) % 3, (own + 2) % 3];
    scenario.until("shards are placed", |scenario| {
        scenario.meta(others[0]).is_some_and(|meta| meta.placement().is_some())
    });
    scenario.cluster.members[own].is_switched_off = false;
    scenario.cluster.start(own);
    scenario.run_for(60 * SECOND);
    assert_eq!(loads(scenario.placement(others[0])), others.map(|other| (id(other), SHARDS)).into());
    scenario.assert_refused(own);
    assert!(scenario.meta(own).is_some_and(Meta::is_member));
}

/// Two cores have durable sessions. The shards begin with those of one of them. The other one gets no replicas,
/// whichever core leads, and its vote still counts.
#[test]
fn the_sessions_of_two_cores_are_not_mixed() {
    for (one, two) in [(0, 1), (1, 2)] {
        let mut scenario = placed(0, |plan| plan.own_states = vec![one, two]);
        let first = scenario.placement(one);
        let (founder, refused) = if first.owner_key == own_key(one) { (one, two) } else { (two, one) };
        assert_eq!(first.owner_key, own_key(founder));
        assert!(first.shards().all(|(_, shard)| shard.voters[0].node == id(founder)));
        let other = 3 - one - two;
        for leader in [founder, refused, other] {
            let lead = RouterCommand::Proposal(ProposalId(FIRST_OTHER_PROPOSAL), Command::Lead(id(leader)));
            scenario.orders(leader, lead);
            scenario.until("it leads", |scenario| scenario.leaders(0..3) == [Some(id(leader)); 3]);
            scenario.run_for(60 * SECOND);
            let placement = scenario.placement(founder);
            assert!(placement.shards().all(|(_, shard)| shard.is_settled()), "{placement:?}");
            assert_eq!(loads(placement), [(id(founder), SHARDS), (id(other), SHARDS)].into(), "n{leader}");
            scenario.assert_refused(refused);
            scenario.restart(refused);
            // Before the others have answered.
            scenario.run_for(1);
            scenario.assert_refused(refused);
            scenario.until("it is back", |scenario| scenario.meta(refused).is_some_and(Meta::is_member));
        }
        scenario.orders(refused, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
        scenario.until("it has left", |scenario| scenario.members(other) == 3);
    }
}

/// A core with sessions answers, and does not found the shards. They wait, and the leader says for which core. It is
/// the same when the two reach each other only by a relay.
#[test]
fn shards_wait_without_end_for_a_core_with_sessions_that_answers() {
    for is_relayed in [false, true] {
        let mut scenario = Scenario::of_first(SEED, plan(Duration::from_millis(5)), |_| None, 0);
        let of_node = |node| if node == 2 { cluster::OWN_STATE } else { cluster::EMPTY_SHARDS };
        let update = |scenario: &mut Scenario, node: usize| {
            scenario.cluster.members[node].always |= cluster::SHARDS | cluster::RELAYS | of_node(node);
            scenario.restart(node);
            scenario.run_for(10 * SECOND);
        };
        (0..2).for_each(|node| update(&mut scenario, node));
        let placed = |scenario: &Scenario| {
            (0..3).filter(|node| scenario.meta(*node).is_some_and(|meta| meta.placement().is_some())).count()
        };
        // Without a key for its sessions, the third core would found the shards without them.
        let lead = RouterCommand::Proposal(ProposalId(FIRST_OTHER_PROPOSAL), Command::Lead(id(0)));
        scenario.orders(0, lead);
        scenario.until("it leads", |scenario| scenario.leaders(0..3) == [Some(id(0)); 3]);
        update(&mut scenario, 2);
        if is_relayed {
            scenario.part(0, 2);
        }
        scenario.run_for(10 * SECOND);
        let waits = |scenario: &Scenario| scenario.meta(0).and_then(Meta::waits_for);
        assert_eq!((placed(&scenario), waits(&scenario)), (0, None), "it says so only after a while");
        scenario.run_for(100 * SECOND);
        assert_eq!((scenario.leader(), scenario.link(0, 2).0), (0, !is_relayed));
        assert_eq!(placed(&scenario), 0);
        let why = waits(&scenario).expect("it says why the shards have not begun");
        assert!(why.contains("messages of n2:") && why.contains("empty data"), "{why}");
        // A restart is no reason to begin without it.
        scenario.restart(2);
        scenario.run_for(10 * SECOND);
        assert_eq!(placed(&scenario), 0);
        // It loses its sessions.
        scenario.cluster.members[2].always ^= cluster::OWN_STATE | cluster::EMPTY_SHARDS;
        scenario.restart(2);
        scenario.until("shards are placed", |scenario| placed(scenario) == 3);
        assert_eq!(waits(&scenario), None);
    }
}

/// A core is a voter of shards, and has got sessions of its own meanwhile. It refuses the shards, and is replaced.
#[test]
fn a_voter_of_shards_whose_sessions_are_refused_does_not_count_as_serving() {
    let mut scenario = placed(1, |_| ());
    scenario.until_shared_by(&[0, 1, 2], &[REPLICANT]);
    // The core itself does not know in this test that it has sessions. So it must not lead.
    let lead = RouterCommand::Proposal(ProposalId(FIRST_OTHER_PROPOSAL), Command::Lead(id(0)));
    scenario.orders(0, lead);
    scenario.until("it leads", |scenario| scenario.leaders(0..3) == [Some(id(0)); 3]);
    scenario.cluster.members[2].always ^= cluster::OWN_STATE | cluster::EMPTY_SHARDS;
    scenario.restart(2);
    scenario.cluster.start(4);
    scenario.until_shared_by(&[0, 1, 4], &[REPLICANT]);
}

/// A core is dead, and has no replicas any more. When a second one dies, the first is not chosen, although it has the
/// fewest replicas.
#[cfg_attr(test, test)]
pub(in super::super) fn a_dead_core_gets_no_replicas_of_another_one() {
    let mut scenario = placed(2, |_| ());
    scenario.cluster.start(4);
    scenario.cluster.start(5);
    scenario.until_shared_by(&[0, 1, 2, 4, 5], &[REPLICANT]);
    scenario.shuts_down(4);
    scenario.until_shared_by(&[0, 1, 2, 5], &[REPLICANT]);
    scenario.shuts_down(5);
    scenario.until_shared_by(&[0, 1, 2], &[REPLICANT]);
}

/// A core is dead, and another one replaces it in a shard. The group of the shard has the other one as a voter when
/// that one dies, too, before it is reported. Its replica has a role until the group is without it.
#[test]
fn a_learner_that_is_a_voter_already_is_removed_before_another_one_is_added() {
    let mut scenario = placed(2, |_| ());
    scenario.cluster.start(4);
    scenario.cluster.start(5);
    scenario.until_shared_by(&[0, 1, 2, 4, 5], &[REPLICANT]);
    scenario.shuts_down(2);
    let mut waited = 0;
    loop {
        scenario.run_for(10 * MILLI);
        let is_voter = scenario.placement(0).shards().any(|(shard, replicas)| {
            let learner = replicas.learner.filter(|learner| learner.node == id(4));
            learner.is_some_and(|learner| scenario.cluster.shard_groups.has_voter(shard, learner))
        });
        if is_voter {
            break;
        }
        waited += 1;
        assert!(waited < 6_000, "core 4 replaces nobody");
    }
    scenario.shuts_down(4);
    // A shard with voters on both of them has no majority.
    let is_over = |(_, shard): (_, &cluster::meta::ShardPlacement)| {
        let dead = shard.voters.iter().filter(|voter| [id(2), id(4)].contains(&voter.node)).count();
        shard.is_settled() && dead == 0 || dead > 1
    };
    waited = 0;
    while !scenario.placement(0).shards().all(is_over) {
        scenario.run_for(200 * MILLI);
        waited += 1;
        assert!(waited < 600, "after two minutes: {:?}", scenario.placement(0));
    }
}

/// A core dies while it leaves. Shards with two replicas have no majority without it, so it stays a member with these
/// shards. It returns with its disk.
#[test]
fn a_core_that_dies_while_it_leaves_keeps_the_shards_that_need_it() {
    let mut scenario =
        placed(0, |plan| plan.replicas = cluster::Replicas::new(2).expect("a number of replicas"));
    scenario.orders(2, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
    let leaves =
        |scenario: &Scenario| scenario.known(0).members.get(&id(2)).is_some_and(|member| member.leaves);
    scenario.until("it leaves", leaves);
    scenario.shuts_down(2);
    scenario.until("it is dead", |scenario| scenario.state(0, 2) == Some(State::Dead));
    scenario.run_for(60 * SECOND);
    assert_eq!(scenario.state(0, 2), Some(State::Dead));
    assert!(loads(scenario.placement(0)).get(&id(2)).is_some_and(|load| *load > 0));
    scenario.cluster.members[2].is_switched_off = false;
    scenario.cluster.start(2);
    scenario.until("all replicas are there", |scenario| {
        let placement = scenario.placement(0);
        let loads = loads(placement);
        placement.shards().all(|(_, shard)| shard.is_settled() && shard.voters.len() == 2)
            && loads.len() == 3
            && loads.values().all(|load| (10..=11).contains(load))
    });
}

/// All cores restart from snapshots of the meta group.
#[cfg_attr(test, test)]
pub(in super::super) fn a_placement_outlasts_a_restart_of_all_cores() {
    let mut scenario = placed(0, |plan| plan.snapshot_after = 10);
    for _ in 0..30 {
        scenario.cluster.propose_new_record(0);
        scenario.run_for(SECOND);
    }
    let before = scenario.placement(0).clone();
    for node in 0..4 {
        scenario.cluster.fault(&Fault::Kill { node });
    }
    (0..4).for_each(|node| scenario.cluster.start(node));
    scenario.until("all belong to it", |scenario| (0..4).all(|node| scenario.members(node) == 4));
    scenario.run_for(5 * SECOND);
    for node in 0..4 {
        assert_eq!(*scenario.placement(node), before, "n{node}");
    }
}

/// A core that does not know the feature keeps the cores from placing shards, and its update allows it.
#[test]
fn shards_are_placed_once_all_cores_can_read_it() {
    let mut plan = plan(Duration::from_millis(5));
    plan.add(Role::Replicant);
    let mut scenario = Scenario::of_first(SEED, plan, |_| None, 0);
    let offer = |scenario: &mut Scenario, nodes: &[usize]| {
        for node in nodes {
            scenario.cluster.members[*node].always |= cluster::SHARDS;
            scenario.restart(*node);
            scenario.run_for(5 * SECOND);
        }
    };
    offer(&mut scenario, &[0, 1]);
    scenario.run_for(20 * SECOND);
    assert_eq!(scenario.adopted(0), cluster::LOG);
    assert!((0..4).all(|node| scenario.meta(node).is_some_and(|meta| meta.placement().is_none())));
    offer(&mut scenario, &[2]);
    scenario.until("the cores know it", |scenario| {
        (0..3).all(|node| scenario.meta(node).is_some_and(|meta| meta.placement().is_some()))
    });
    scenario.run_for(5 * SECOND);
    assert_eq!(scenario.adopted(0), cluster::LOG | cluster::SHARDS);
    let replicant = scenario.meta(REPLICANT).expect("the node runs");
    assert!(replicant.placement().is_none() && replicant.is_member(), "it is of an older version");
    offer(&mut scenario, &[REPLICANT]);
    scenario.until("the replicant knows it", |scenario| {
        scenario.meta(REPLICANT).and_then(Meta::placement).is_some()
    });
    assert_eq!(scenario.placement(REPLICANT), scenario.placement(0));
    for node in 0..4 {
        let process = scenario.cluster.members[node].process.as_ref().expect("runs");
        assert_eq!(process.router.counters().malformed, 0, "n{node}");
    }
}
