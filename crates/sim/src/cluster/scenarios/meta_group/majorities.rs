//! Votes and versions of cores, proposals and elections.

use super::*;

#[test]
fn a_proposal_reaches_all_nodes_within_a_second_and_the_delay_of_a_link() {
    for latency in [MILLI, 100 * MILLI] {
        let mut scenario = meta_group_of(5, |plan| {
            plan.nodes[3..].iter_mut().for_each(|node| node.role = Role::Replicant);
            plan.latency = latency;
        });
        scenario.run_for(15 * SECOND);
        let mut revision = scenario.revisions()[0];
        for node in [3, 0, 1, 2, 4, 3] {
            scenario.cluster.propose_new_record(node);
            scenario.run_for(SECOND + latency);
            revision += 1;
            assert_eq!(scenario.revisions(), [revision; 5], "by n{node}, {latency} us away");
        }
    }
}

/// One of four cores is removed, and one of the remaining three is lost.
#[cfg_attr(test, test)]
pub(in super::super) fn a_removed_core_does_not_count_for_majorities() {
    let mut scenario = meta_group_of(4, |_| ());
    scenario.run_for(8 * SECOND);
    scenario.isolate(3);
    scenario.until("it is dead", |scenario| scenario.state(0, 3) == Some(State::Dead));
    scenario.removes(0, 3, ProposalId(FIRST_OTHER_PROPOSAL));
    scenario.until("it is removed", |scenario| (0..3).all(|node| scenario.members(node) == 3));
    scenario.run_for(5 * SECOND);
    scenario.isolate(2);
    scenario.run_for(5 * SECOND);
    let writer = scenario.connects(1);
    let number = scenario.publishes_as(writer, "t/0", QoS::AtLeastOnce, RetainAction::Nothing);
    scenario.run_for(10 * SECOND);
    assert!(scenario.is_acknowledged(number), "two of three cores are a majority");
}

/// Two of five cores are dead, and are removed at the same time. With one change for both, there could be two
/// majorities: one of the cores that know it, and one of those that do not.
#[cfg_attr(test, test)]
pub(in super::super) fn cores_are_removed_one_after_the_other() {
    let mut scenario = meta_group_of(5, |_| ());
    scenario.run_for(10 * SECOND);
    let leader = scenario.leader();
    let removed = [(leader + 1) % 5, (leader + 2) % 5];
    for node in removed {
        scenario.isolate(node);
    }
    scenario.until("they are dead", |scenario| {
        removed.iter().all(|node| scenario.state(leader, *node) == Some(State::Dead))
    });
    for (number, node) in removed.into_iter().enumerate() {
        scenario.removes(leader, node, ProposalId(FIRST_OTHER_PROPOSAL + number as u64));
    }
    scenario.until("both are removed", |scenario| scenario.members(leader) == 3);
}

/// One of three cores cannot read records. They are refused until it is updated. After that, no core of the older
/// version can take part.
#[cfg_attr(test, test)]
pub(in super::super) fn a_command_that_one_core_cannot_read_is_committed_after_its_update() {
    let mut scenario = meta_group_of(3, |plan| plan.old = vec![1]);
    scenario.run_for(20 * SECOND);
    for node in [0, 2] {
        scenario.cluster.propose_new_record(node);
    }
    scenario.run_for(5 * SECOND);
    assert_eq!((scenario.adopted(0), scenario.cluster.operators.unread), (0, 2));
    assert_eq!(scenario.revisions(), [0; 3]);
    scenario.cluster.members[1].log = Some(cluster::LOG);
    scenario.restart(1);
    scenario.until("all cores understand it", |scenario| scenario.adopted(0) == cluster::LOG);
    scenario.cluster.propose_new_record(0);
    scenario.run_for(3 * SECOND);
    assert_eq!(scenario.revisions(), [1; 3]);
    scenario.cluster.members[0].log = Some(0);
    scenario.restart(0);
    assert_eq!(scenario.cluster.report().cluster_outdated, 1, "its log is of a later version");
    scenario.run_for(20 * SECOND);
    scenario.assert_whole();
    scenario.cluster.check_records();
}

/// The removal uses a form that all versions understand.
#[test]
fn the_version_of_a_dead_core_counts_until_it_is_removed() {
    let mut scenario = meta_group_of(4, |plan| plan.old = vec![3]);
    scenario.run_for(20 * SECOND);
    scenario.isolate(3);
    scenario.until("it is dead", |scenario| scenario.state(0, 3) == Some(State::Dead));
    scenario.cluster.propose_new_record(0);
    scenario.run_for(5 * SECOND);
    assert_eq!((scenario.adopted(0), scenario.cluster.operators.unread), (0, 1));
    scenario.removes(0, 3, ProposalId(FIRST_OTHER_PROPOSAL));
    scenario.until("it is removed", |scenario| (0..3).all(|node| scenario.members(node) == 3));
    scenario.until("all remaining cores understand it", |scenario| scenario.adopted(0) == cluster::LOG);
    assert_eq!(scenario.outcome(), Some(Ok(Answer::Done)));
    scenario.cluster.propose_new_record(1);
    scenario.run_for(3 * SECOND);
    assert_eq!(scenario.revisions()[..3], [1; 3]);
}

/// Starts three cores with a round trip of 200 ms.
fn far_apart(seed: u64, time: Micros) -> Scenario {
    let change = |plan: &mut Plan| {
        plan.latency = 100 * MILLI;
        plan.mesh.link.silence_max = Duration::from_secs(5);
    };
    let mut scenario = meta_group_of_seed(seed, 3, |_| None, change);
    scenario.until("all vote", |scenario| {
        (0..3).all(|node| scenario.roster(node) == Some((vec![State::Alive; 3], 3)))
    });
    scenario.run_for(time);
    scenario
}

/// One election in four has a split vote, and four in a row happen once in 256.
#[test]
fn another_core_leads_soon_after_the_leader_falls_silent() {
    let mut times: Vec<Micros> = (0..40)
        .map(|round| {
            let mut scenario = far_apart(SEED + round, 5 * SECOND + round * 170 * MILLI);
            let (leader, now) = (scenario.leader(), scenario.cluster.cx.now());
            scenario.isolate(leader);
            scenario.until("another leads", |scenario| {
                let others = (0..3).filter(|node| *node != leader);
                let known: Vec<_> = others.filter_map(|node| scenario.meta(node)?.leader()).collect();
                known.len() == 2 && known[0] == known[1] && known[0] != id(leader)
            });
            scenario.cluster.cx.now() - now
        })
        .collect();
    times.sort_unstable();
    let bounds = [(20, 4), (35, 7), (39, 10)];
    assert!(bounds.iter().all(|(at, seconds)| times[*at] < seconds * SECOND), "{times:?}");
}

/// Both links of the leader may stall at the same time.
#[test]
fn a_link_that_stalls_for_a_second_causes_no_election() {
    let mut scenario = far_apart(SEED, 5 * SECOND);
    let term = |scenario: &Scenario| {
        let process = scenario.cluster.members[0].process.as_ref().expect("runs");
        scenario
            .meta(0)
            .and_then(|meta| meta.status(process.time(&scenario.cluster.cx)))
            .expect("a core")
            .term
    };
    let (leader, before) = (scenario.leader(), term(&scenario));
    for round in 0..20 {
        let now = scenario.cluster.cx.now();
        for other in (0..3).filter(|node| *node != leader) {
            scenario.cluster.wan.cut(now, leader, other, SECOND);
        }
        scenario.run_for(3 * SECOND + round * 70 * MILLI);
    }
    assert_eq!((scenario.leader(), term(&scenario)), (leader, before));
}
