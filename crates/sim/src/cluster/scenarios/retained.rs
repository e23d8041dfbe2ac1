//! Retained messages of all nodes.

use super::*;
#[cfg(test)]
use crate::disk::Machine;

/// Data on its way to a restarted node is lost with the link, and that node has had its copies already.
#[test]
fn retained_messages_for_the_previous_incarnation_are_sent_to_the_next() {
    let mut scenario = Scenario::of(plan(Duration::ZERO));
    let before = scenario.publishes_on("r/1", QoS::AtMostOnce, RetainAction::Message);
    scenario.run_for(SECOND);
    scenario.part(2, 1);
    scenario.restart(1);
    scenario.run_for(2 * SECOND);
    let written = scenario.publishes_on("r/0", QoS::AtMostOnce, RetainAction::Message);
    scenario.publishes_on("r/1", QoS::AtMostOnce, RetainAction::Deletion);
    scenario.run_for(SECOND);
    assert_eq!(scenario.retained(1), [before]);
    scenario.join(2, 1);
    scenario.run_for(5 * SECOND);
    for node in 0..3 {
        assert_eq!(scenario.retained(node), [written], "n{node}");
    }
}

/// A core deletes a retained message, sends that to another core and not to an unreachable replicant, and restarts. The
/// other core sends it back what it has forgotten. No other node tells the replicant: it gets routes from that other
/// core, and has had its copies.
#[test]
fn retained_changes_of_a_previous_incarnation_are_sent_to_nodes_that_missed_them() {
    let mut mixed = plan(Duration::ZERO);
    mixed.nodes[1].role = Role::Replicant;
    let mut scenario = Scenario::of(mixed);
    // Attaches the replicant to the first node.
    scenario.part(2, 1);
    scenario.run_for(2 * SECOND);
    scenario.join(2, 1);
    scenario.run_for(2 * SECOND);
    let before = scenario.publishes_on("r/1", QoS::AtMostOnce, RetainAction::Message);
    scenario.run_for(SECOND);
    scenario.part(2, 1);
    scenario.publishes_on("r/1", QoS::AtMostOnce, RetainAction::Deletion);
    scenario.run_for(SECOND);
    assert!(scenario.retained(0).is_empty());
    assert_eq!(scenario.retained(1), [before]);
    scenario.restart(2);
    scenario.join(2, 1);
    scenario.run_for(10 * SECOND);
    for node in 0..3 {
        assert!(scenario.retained(node).is_empty(), "n{node}");
    }
}

/// A replicant deletes a retained message, sends that to one core only, and restarts. It gets routes from the other
/// core, which does not know of the deletion. The first core sends it back to the replicant, and the replicant to all
/// others.
#[test]
fn retained_changes_of_a_previous_incarnation_are_sent_back_to_the_node() {
    let mut mixed = plan(Duration::ZERO);
    mixed.nodes[2].role = Role::Replicant;
    let mut scenario = Scenario::of(mixed);
    let writer = scenario.connects(0);
    let before = scenario.publishes_as(writer, "r/1", QoS::AtMostOnce, RetainAction::Message);
    scenario.run_for(SECOND);
    scenario.part(2, 0);
    scenario.run_for(2 * SECOND);
    scenario.publishes_on("r/1", QoS::AtMostOnce, RetainAction::Deletion);
    scenario.run_for(SECOND);
    assert_eq!(scenario.retained(0), [before]);
    assert!(scenario.retained(1).is_empty());
    scenario.part(2, 1);
    scenario.restart(2);
    scenario.join(2, 0);
    scenario.run_for(5 * SECOND);
    scenario.join(2, 1);
    scenario.run_for(5 * SECOND);
    for node in 0..3 {
        assert!(scenario.retained(node).is_empty(), "n{node}");
    }
}

/// A node that was away brings back messages that the others have deleted, if all of these were restarted meanwhile
/// (docs/clustering.md). Such a message may be older than the deleted one, although that had been acknowledged.
#[test]
fn a_node_that_was_away_may_bring_back_a_message_older_than_the_deleted_one() {
    let mut scenario = Scenario::of(plan(Duration::ZERO));
    let old = scenario.publishes_on("r/0", QoS::AtLeastOnce, RetainAction::Message);
    scenario.run_for(SECOND);
    scenario.part(1, 0);
    scenario.part(1, 2);
    scenario.run_for(2 * SECOND);
    let new = scenario.publishes_on("r/0", QoS::AtLeastOnce, RetainAction::Message);
    scenario.run_for(2 * SECOND);
    assert!(scenario.is_acknowledged(old) && scenario.is_acknowledged(new));
    scenario.publishes_on("r/0", QoS::AtMostOnce, RetainAction::Deletion);
    scenario.run_for(SECOND);
    scenario.restart(0);
    scenario.restart(2);
    scenario.run_for(5 * SECOND);
    scenario.join(1, 0);
    scenario.join(1, 2);
    scenario.run_for(10 * SECOND);
    let readers: Vec<usize> = (0..3).map(|node| scenario.reads(node)).collect();
    for reader in &readers {
        let found = &scenario.cluster.oracle.view(*reader).retained;
        assert_eq!(found.values().collect::<Vec<_>>(), [&old]);
    }
    scenario.cluster.oracle.check_retained(&mut scenario.cluster.cx, &readers);
}

/// Links have small buffers. One retained message fits while a node is cut off, and one of the copies for a restarted
/// node fits. The others are sent when there is room, and all nodes have the same.
#[test]
fn retained_messages_that_do_not_fit_into_a_link_are_sent_when_there_is_room() {
    for begins_anew in [false, true] {
        let mut tight = plan(Duration::ZERO);
        tight.mesh.link.buffer_max.assured = 50;
        let mut scenario = Scenario::of(tight);
        scenario.part(2, 1);
        scenario.part(0, 1);
        scenario.run_for(2 * SECOND);
        let written = ["r/0", "r/1", "r/a/b", "r/a/c"].map(|topic| {
            let number = scenario.publishes_on(topic, QoS::AtLeastOnce, RetainAction::Message);
            scenario.run_for(SECOND);
            assert!(scenario.is_acknowledged(number));
            number
        });
        assert!(scenario.retained(1).is_empty());
        if begins_anew {
            scenario.restart(1);
            scenario.run_for(SECOND);
        }
        scenario.join(2, 1);
        scenario.join(0, 1);
        scenario.run_for(10 * SECOND);
        for node in 0..3 {
            assert_eq!(scenario.retained(node), written, "n{node}, restarted: {begins_anew}");
        }
    }
}

/// A node whose disk is full stores no retained messages and deletions of other nodes. It does not store QoS 0 messages
/// of its own clients either, which others retain (seed 75153 of `--cluster`). It requests copies when there is room,
/// and ends up like the others.
#[cfg_attr(test, test)]
pub(super) fn retained_messages_missed_on_a_full_disk_are_copied_when_there_is_room() {
    let mut scenario = Scenario::of_links(plan(Duration::ZERO), |_| Some(cluster::FEATURES));
    let old = scenario.publishes_on("r/0", QoS::AtLeastOnce, RetainAction::Message);
    scenario.run_for(SECOND);
    assert_eq!(scenario.retained(1), [old]);
    scenario.cluster.fault(&Fault::Full { node: 1, room: 0, time: LONG });
    // Repeats until the log needs more room than it has.
    for _ in 0..3_000 {
        scenario.publishes_on("r/1", QoS::AtMostOnce, RetainAction::Message);
        scenario.run_for(MILLI);
    }
    scenario.run_for(SECOND);
    let new = scenario.publishes_on("r/a/b", QoS::AtMostOnce, RetainAction::Message);
    let last = scenario.publishes_on("r/1", QoS::AtMostOnce, RetainAction::Message);
    scenario.publishes_on("r/0", QoS::AtMostOnce, RetainAction::Deletion);
    let there = scenario.connects(1);
    let own = scenario.publishes_as(there, "r/a/c", QoS::AtMostOnce, RetainAction::Message);
    scenario.run_for(5 * SECOND);
    assert_eq!(scenario.retained(0), [last, new, own]);
    let copies_requested = |scenario: &Scenario| {
        let process = scenario.cluster.members[1].process.as_ref().expect("the node runs");
        process.router.counters().copies_requested
    };
    assert!(scenario.cluster.members[1].machine.disk.counts().full > 0, "its disk has refused data");
    // The log may have freed a segment meanwhile.
    let has_room = !scenario.cluster.members[1].lacks_room;
    assert_eq!(copies_requested(&scenario), u64::from(has_room));
    scenario.cluster.members[1].machine.disk.set_capacity(None);
    scenario.run_for(10 * SECOND);
    assert_eq!(copies_requested(&scenario), 1);
    for node in 0..3 {
        assert_eq!(scenario.retained(node), [last, new, own], "n{node}");
    }
}

/// A replicant with an empty disk refuses copies, because the sync of a reserve segment failed (seed 2004349 of
/// `--cluster`). It requests the copies again when it has a reserve. In such plans, all nodes offer to answer these
/// requests, whatever else they offer.
#[test]
fn retained_messages_that_a_log_without_a_reserve_refused_are_copied_later() {
    let failing = Fault::FailSync { node: REPLICANT, after: 0 };
    let mut plan = Plan { faults: vec![(LONG, failing)], ..plan(Duration::ZERO) };
    plan.add(Role::Replicant);
    let mut scenario = Scenario::of_links(plan, |_| Some(0));
    let old = scenario.publishes_on("r/0", QoS::AtLeastOnce, RetainAction::Message);
    scenario.run_for(SECOND);
    assert_eq!(scenario.retained(REPLICANT), [old]);
    // The number of the operation that syncs an empty segment depends on other writes.
    for after in 0.. {
        assert!(after < 100, "a sync of an empty segment fails at some time");
        scenario.cluster.kill(REPLICANT, false);
        scenario.cluster.members[REPLICANT].machine = Machine::new(after);
        scenario.cluster.fault(&Fault::FailSync { node: REPLICANT, after });
        scenario.cluster.start(REPLICANT);
        scenario.run_for(100 * MILLI);
        let member = &scenario.cluster.members[REPLICANT];
        let has_failed = member.process.as_ref().is_none_or(|process| process.node.failed().is_some());
        if member.lacks_room && !has_failed {
            break;
        }
    }
    scenario.run_for(10 * SECOND);
    let process = scenario.cluster.members[REPLICANT].process.as_ref().expect("the node runs");
    assert_eq!(
        (process.router.counters().copies_requested, scenario.cluster.members[REPLICANT].lacks_room),
        (1, false)
    );
    for node in 0..4 {
        assert_eq!(scenario.retained(node), [old], "n{node}");
    }
}
