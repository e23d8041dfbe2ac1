//! Clusters that are founded, and nodes that join again.

use super::*;

#[cfg_attr(test, test)]
pub(in super::super) fn nodes_that_know_only_addresses_form_one_cluster() {
    let mut scenario = meta_group();
    scenario.assert_whole();
    scenario.subscribes();
    scenario.run_for(3 * SECOND);
    assert!(scenario.is_subscribed());
    scenario.assert_serves();
}

#[test]
fn a_killed_node_joins_again_in_a_new_incarnation() {
    let mut scenario = meta_group();
    scenario.subscribes();
    for killed in [1, 2, 1] {
        scenario.run_for(3 * SECOND);
        let incarnations = scenario.incarnations();
        scenario.cluster.fault(&Fault::Kill { node: killed });
        scenario.run_for(30 * SECOND);
        scenario.assert_whole();
        let grown: Vec<bool> =
            scenario.incarnations().iter().zip(&incarnations).map(|(now, then)| now > then).collect();
        assert_eq!(grown, (0..3).map(|node| node == killed).collect::<Vec<_>>());
    }
}

#[test]
fn a_cluster_that_loses_all_processes_comes_back_with_the_same_members() {
    let mut scenario = meta_group();
    let founded = scenario.founded();
    scenario.cluster.fault(&Fault::KillMany { nodes: vec![0, 1, 2] });
    scenario.run_for(40 * SECOND);
    scenario.assert_whole();
    assert_eq!(scenario.founded(), founded);
}

#[cfg_attr(test, test)]
pub(in super::super) fn a_node_that_has_lost_its_incarnation_number_takes_a_greater_one() {
    let mut scenario = meta_group();
    scenario.restart(0);
    scenario.run_for(10 * SECOND);
    let incarnations = scenario.incarnations();
    scenario.cluster.members[0].incarnation = 0;
    scenario.restart(0);
    scenario.run_for(10 * SECOND);
    scenario.assert_whole();
    scenario.cluster.connect(SUBSCRIBER, 0);
    scenario.run_for(SECOND);
    scenario.subscribes();
    scenario.run_for(3 * SECOND);
    assert!(scenario.is_subscribed());
    scenario.assert_serves();
    assert!(scenario.incarnations()[0] > incarnations[0]);
}

/// Cores that found a cluster exchange the addresses of the cores that they know.
#[test]
fn a_core_with_one_address_founds_the_cluster_with_all_cores() {
    for told_of in [0, 1] {
        let mut scenario =
            meta_group_of(3, |plan| plan.join_lists = vec![vec![0, 1], vec![0, 1], vec![told_of]]);
        scenario.run_for(10 * SECOND);
        scenario.assert_whole();
    }
}
