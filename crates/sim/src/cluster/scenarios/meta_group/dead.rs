//! Suspected nodes, nodes that are declared dead, and those that were cut off.

use super::*;

#[cfg_attr(test, test)]
pub(in super::super) fn a_node_that_is_cut_off_is_declared_dead_acknowledges_nothing_and_joins_again() {
    let mut scenario = meta_group();
    scenario.subscribes();
    scenario.run_for(3 * SECOND);
    let incarnations = scenario.incarnations();
    scenario.isolate(2);
    scenario.run_for(10 * SECOND);
    assert_eq!(scenario.roster(0), Some((vec![State::Alive, State::Alive, State::Dead], 3)));
    let number = scenario.publishes();
    scenario.run_for(5 * SECOND);
    assert!(!scenario.is_acknowledged(number), "the node is in no majority");
    scenario.release(2);
    scenario.run_for(10 * SECOND);
    scenario.assert_whole();
    let now = scenario.incarnations();
    assert!(now[2] > incarnations[2] && now[..2] == incarnations[..2], "{incarnations:?} {now:?}");
    assert!(scenario.cluster.clients[PUBLISHER].location().is_none(), "its clients were disconnected");
}

/// The node's lease may last longer than the others need to notice its silence.
#[cfg_attr(test, test)]
pub(in super::super) fn a_node_with_a_lease_is_not_declared_dead() {
    let mut scenario = meta_group();
    scenario.run_for(5 * SECOND);
    let (leader, checked) = (scenario.leader(), scenario.cluster.cx.report.cluster_check_dead);
    let cut_off = (leader + 1) % 3;
    scenario.isolate(cut_off);
    scenario.until("it is dead", |scenario| scenario.state(leader, cut_off) == Some(State::Dead));
    scenario.run_for(3 * SECOND);
    assert!(scenario.cluster.cx.report.cluster_check_dead > checked);
}

/// One clock runs at 0.96 of its speed and the others at 1.04, which leases allow for.
#[cfg_attr(test, test)]
pub(in super::super) fn a_node_with_a_lease_by_a_slow_clock_is_not_declared_dead() {
    let mut scenario = meta_group_of(3, |plan| {
        plan.rates = vec![1_040, 1_040, 960];
        plan.config.lease = Duration::from_secs(10);
    });
    scenario.run_for(5 * SECOND);
    let checked = scenario.cluster.cx.report.cluster_check_dead;
    scenario.isolate(2);
    scenario.until("it is dead", |scenario| scenario.state(0, 2) == Some(State::Dead));
    scenario.run_for(3 * SECOND);
    assert!(scenario.cluster.cx.report.cluster_check_dead > checked);
}

#[test]
fn a_replicant_that_was_cut_off_gets_the_changes_that_it_missed() {
    let mut scenario = meta_group_of(3, |plan| plan.nodes[2].role = Role::Replicant);
    // Fewer changes than the cores keep, and more.
    for count in [3, 40] {
        scenario.part(2, 0);
        scenario.part(2, 1);
        scenario.run_for(2 * SECOND);
        let before = scenario.cluster.members[2].copy.position();
        for number in 0..count {
            scenario.cluster.propose_new_record(number % 2);
            scenario.run_for(SECOND / 4);
        }
        assert_eq!(scenario.cluster.members[2].copy.position(), before);
        assert!(!scenario.cluster.copies_are_the_same());
        // A proposal without a majority is not executed, now or later.
        scenario.cluster.propose_record(2);
        scenario.run_for(6 * SECOND);
        scenario.join(2, 0);
        scenario.join(2, 1);
        scenario.run_for(15 * SECOND);
        assert!(scenario.cluster.copies_are_the_same());
        assert!(scenario.cluster.members[2].copy.position() > before);
        scenario.cluster.check_records();
    }
    assert!(scenario.cluster.report().cluster_records_full > 0);
}

/// Others acknowledge messages that its subscribers would have received. So no connection may continue as if it had
/// missed nothing.
#[cfg_attr(test, test)]
pub(in super::super) fn a_client_connected_to_a_node_that_was_declared_dead_misses_nothing() {
    let mut scenario = meta_group();
    scenario.subscribes();
    scenario.run_for(3 * SECOND);
    assert!(scenario.is_subscribed());
    scenario.isolate(0);
    scenario.until("it is dead", |scenario| scenario.state(1, 0) == Some(State::Dead));
    let number = scenario.publishes();
    scenario.run_for(3 * SECOND);
    assert!(scenario.is_acknowledged(number), "the receiver's node is dead");
    scenario.release(0);
    scenario.until("it joins again", |scenario| scenario.state(1, 0) == Some(State::Alive));
    scenario.run_for(5 * SECOND);
    assert!(scenario.cluster.clients[SUBSCRIBER].location().is_none() || scenario.has_arrived(number));
}

/// A suspicion may be wrong: it removes nothing.
#[cfg_attr(test, test)]
pub(in super::super) fn a_suspected_node_that_is_reachable_again_keeps_its_routes() {
    let mut scenario = meta_group_of(3, |plan| plan.config.lease = Duration::from_secs(10));
    scenario.subscribes();
    scenario.run_for(15 * SECOND);
    assert!(scenario.is_subscribed());
    let incarnations = scenario.incarnations();
    scenario.isolate(0);
    scenario.until("it is suspected", |scenario| matches!(scenario.state(1, 0), Some(State::Suspect(_))));
    scenario.release(0);
    scenario.until("it is alive again", |scenario| scenario.state(1, 0) == Some(State::Alive));
    scenario.run_for(5 * SECOND);
    assert_eq!(scenario.incarnations(), incarnations);
    scenario.assert_serves();
}

/// A core receives from a suspected node again, and its report to the leader is late. The leader declares the node
/// dead. If the core had granted the node a lease, a dead node would have one.
#[cfg_attr(test, test)]
pub(in super::super) fn a_suspected_node_gets_no_lease_from_a_core_that_reaches_it_again() {
    let mut deaths = 0;
    for late in [0, 500, 1_000] {
        let mut scenario = meta_group_of(3, |plan| {
            plan.config.lease = Duration::from_secs(6);
            plan.mesh.link.silence_max = Duration::from_millis(1_500);
        });
        scenario.run_for(10 * SECOND);
        let leader = scenario.leader();
        let (first, cut_off) = ((leader + 1) % 3, (leader + 2) % 3);
        scenario.part(cut_off, first);
        scenario.run_for(2_500 * MILLI);
        scenario.part(cut_off, leader);
        scenario.run_for((4_700 + late) * MILLI);
        let now = scenario.cluster.cx.now();
        scenario.cluster.wan.cut(now, first, leader, 1_300 * MILLI);
        scenario.join(cut_off, first);
        scenario.run_for(5 * SECOND);
        deaths += scenario.cluster.cx.report.cluster_nodes_declared_dead;
    }
    assert!(deaths > 0, "no node was declared dead while it was reachable again");
}
