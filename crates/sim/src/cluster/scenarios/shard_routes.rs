//! Routes of shards: SUBACKs of durable sessions, and leases. The nodes learn route positions as the scenario lets
//! them.

use broker::ShardId;

use super::*;

const SHARD: ShardId = ShardId(3);

/// Starts three cores and a replicant, which is n3, whose leases have this length.
fn placed(lease: Duration) -> Scenario {
    let mut plan = plan(Duration::ZERO).undecided();
    plan.add(Role::Replicant);
    plan.places_shards = true;
    (plan.config.lease, plan.config.suback_timeout) = (lease, Duration::from_secs(60));
    let mut scenario = Scenario::of(plan);
    scenario.until("all nodes know the shards", |scenario| {
        (0..4).all(|node| scenario.known_of_shard(node) > 0 && scenario.may_acknowledge(node))
    });
    // The cores wait for leases that they may have granted before they started.
    scenario.run_for(10 * SECOND);
    scenario
}

impl Scenario {
    /// Route position of the shard that a node knows.
    fn known_of_shard(&self, node: usize) -> u64 {
        let process = self.cluster.members[node].process.as_ref();
        process.map_or(0, |process| process.shard_routes.known(SHARD))
    }

    /// Lets a node know all changes of shards up to now, and no later ones.
    fn stops_learning(&mut self, node: usize) {
        let now = self.cluster.cx.now();
        self.learns_until(node, Some(now));
        // What it learns now may be older.
        self.run_for(SECOND);
    }

    /// Lets a node learn changes of shards that are made up to a time, from now on.
    fn learns_until(&mut self, node: usize, until: Option<Micros>) {
        let member = &mut self.cluster.members[node];
        member.shards_until = until;
        if let Some(process) = &mut member.process {
            process.shard_routes.until = until;
        }
    }

    /// Announces a SUBACK of a durable session on a node. Returns its number.
    fn subscribes_in_shard(&mut self, node: usize) -> usize {
        let process = self.cluster.members[node].process.as_mut().expect("the node runs");
        process.announce_shard(&self.cluster.cx, SHARD)
    }

    /// Returns whether a SUBACK was sent.
    fn is_sent(&self, node: usize, suback: usize) -> bool {
        let process = self.cluster.members[node].process.as_ref().expect("the node runs");
        let outcome = process.shard_routes.outcome(suback);
        assert_ne!(outcome, Some(false), "the SUBACK has waited for too long");
        outcome.is_some()
    }

    fn wakes(&mut self, node: usize) {
        let process = self.cluster.members[node].process.as_mut().expect("the node runs");
        process.wake(&mut self.cluster.cx, 10);
    }
}

#[test]
fn a_suback_of_a_shard_waits_for_a_node_that_may_acknowledge_and_does_not_know_the_position() {
    for (behind, asker) in [(REPLICANT, 0), (2, 0), (2, REPLICANT), (0, 1)] {
        let mut scenario = placed(Duration::from_secs(20));
        scenario.stops_learning(behind);
        scenario.run_for(2 * SECOND);
        let suback = scenario.subscribes_in_shard(asker);
        scenario.run_for(5 * SECOND);
        assert!(scenario.may_acknowledge(behind));
        assert!(!scenario.is_sent(asker, suback), "n{behind} may acknowledge and does not know it");
        scenario.learns_until(behind, None);
        scenario.run_for(2 * SECOND);
        assert!(scenario.is_sent(asker, suback), "n{behind} knows it");
    }
}

/// Nothing else changes when the position is known to all, so the next SUBACK needs no other report.
#[test]
fn a_suback_for_a_position_that_all_nodes_know_is_sent_at_once() {
    let mut scenario = placed(Duration::from_secs(20));
    (0..4).for_each(|node| scenario.stops_learning(node));
    let now = scenario.cluster.cx.now();
    (0..4).for_each(|node| scenario.learns_until(node, Some(now)));
    scenario.run_for(2 * SECOND);
    for asker in [0, REPLICANT, 0, REPLICANT] {
        let suback = scenario.subscribes_in_shard(asker);
        scenario.wakes(asker);
        scenario.run_for(100 * MILLI);
        assert!(scenario.is_sent(asker, suback));
    }
}

#[cfg_attr(test, test)]
pub(super) fn a_node_that_returns_has_no_lease_before_it_knows_the_routes_of_shards() {
    for behind in [REPLICANT, 2] {
        let mut scenario = placed(Duration::from_secs(2));
        scenario.stops_learning(behind);
        scenario.run_for(SECOND);
        let suback = scenario.subscribes_in_shard(0);
        scenario.run_for(8 * SECOND);
        assert!(scenario.is_sent(0, suback), "the lease of n{behind} has run out");
        assert!(!scenario.may_acknowledge(behind));
        scenario.restart(behind);
        scenario.run_for(10 * SECOND);
        assert!(!scenario.may_acknowledge(behind), "it knows what it knew before");
        let other = scenario.subscribes_in_shard(1);
        scenario.learns_until(behind, None);
        scenario.run_for(5 * SECOND);
        assert!(scenario.may_acknowledge(behind) && scenario.is_sent(1, other));
    }
}

/// The first core has sent a SUBACK that the third does not know. The second does not know it either after its restart,
/// until it learns the routes: it must not grant the third a lease.
#[cfg_attr(test, test)]
pub(super) fn a_restarted_core_grants_nothing_before_it_knows_the_shards_as_the_others_do() {
    let mut scenario = placed(Duration::from_secs(2));
    let before = scenario.cluster.cx.now();
    scenario.learns_until(2, Some(before));
    [0, 1, REPLICANT].into_iter().for_each(|other| scenario.part(2, other));
    scenario.run_for(4 * SECOND);
    let suback = scenario.subscribes_in_shard(0);
    scenario.run_for(SECOND);
    assert!(scenario.is_sent(0, suback) && !scenario.may_acknowledge(2));
    scenario.learns_until(1, Some(before));
    scenario.restart(1);
    scenario.run_for(4 * SECOND);
    // The first core is cut off, so the other two are a majority.
    scenario.isolate(0);
    scenario.join(2, 1);
    // Longer than a restarted core waits for other nodes, which is three time-outs of SUBACKs. No node says that it
    // leads the shard, and all its replicas exist.
    scenario.run_for(200 * SECOND);
    assert!(!scenario.may_acknowledge(1) && !scenario.may_acknowledge(2), "neither knows the subscription");
    scenario.learns_until(1, None);
    scenario.run_for(10 * SECOND);
    assert!(!scenario.may_acknowledge(2), "the second core knows it, and the third does not");
    scenario.learns_until(2, None);
    scenario.run_for(5 * SECOND);
    assert!(scenario.may_acknowledge(1) && scenario.may_acknowledge(2));
}

/// The others take turns while the shard has no leader.
#[test]
fn a_restarted_node_learns_the_routes_of_a_shard_without_a_leader_from_nodes_that_know_more() {
    for restarted in [1, REPLICANT] {
        let mut scenario = placed(Duration::from_secs(2));
        scenario.stops_learning(restarted);
        scenario.run_for(2 * SECOND);
        scenario.restart(restarted);
        scenario.run_for(20 * SECOND);
        assert!(!scenario.may_acknowledge(restarted));
        let sources = |scenario: &mut Scenario| {
            let process = scenario.cluster.members[restarted].process.as_mut().expect("the node runs");
            std::mem::take(&mut process.shard_routes.sources)
        };
        let others = (0..4).filter(|other| *other != restarted);
        let expected = others.map(|other| (SHARD, NodeId::of_name(&format!("n{other}")).0)).collect();
        let named: std::collections::BTreeSet<_> =
            sources(&mut scenario).into_iter().filter(|(shard, _)| *shard == SHARD).collect();
        assert_eq!(named, expected);
        scenario.learns_until(restarted, None);
        scenario.run_for(5 * SECOND);
        assert!(scenario.may_acknowledge(restarted));
        sources(&mut scenario);
        scenario.run_for(5 * SECOND);
        assert!(sources(&mut scenario).is_empty(), "it knows all");
    }
}

/// A replicant of a version without shards knows no routes of them.
#[test]
fn a_node_without_the_feature_has_no_lease_and_holds_nothing_up() {
    let mut scenario = placed(Duration::from_secs(2));
    scenario.cluster.members[REPLICANT].always = 0;
    scenario.restart(REPLICANT);
    for _ in 0..5 {
        scenario.run_for(2 * SECOND);
        assert!(!scenario.may_acknowledge(REPLICANT));
        let suback = scenario.subscribes_in_shard(0);
        scenario.run_for(3 * SECOND);
        assert!(scenario.is_sent(0, suback));
    }
    assert!((0..3).all(|node| scenario.may_acknowledge(node)));
    scenario.cluster.members[REPLICANT].always = cluster::SHARDS;
    scenario.restart(REPLICANT);
    scenario.run_for(5 * SECOND);
    assert!(scenario.may_acknowledge(REPLICANT), "it was updated");
}

/// A core that restores a state knows its routes up to the index of that state. The others have no change there, and
/// learn the position from the core.
#[test]
fn positions_of_restored_states_keep_no_lease_from_the_others() {
    let mut scenario = placed(Duration::from_secs(2));
    let now = scenario.cluster.cx.now();
    (0..4).for_each(|node| scenario.learns_until(node, Some(now)));
    scenario.run_for(2 * SECOND);
    for restarted in [1, 2] {
        scenario.restart(restarted);
        scenario.run_for(15 * SECOND);
        let known: Vec<u64> = (0..4).map(|node| scenario.known_of_shard(node)).collect();
        assert!(known.iter().all(|at| *at == known[0]), "{known:?}");
        assert!((0..4).all(|node| scenario.may_acknowledge(node)));
        let subacks = [0, REPLICANT].map(|asker| (asker, scenario.subscribes_in_shard(asker)));
        scenario.run_for(SECOND);
        assert!(subacks.iter().all(|(asker, suback)| scenario.is_sent(*asker, *suback)));
    }
}
