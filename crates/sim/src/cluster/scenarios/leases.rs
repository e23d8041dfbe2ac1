//! Leases: who may acknowledge, and when.

use super::*;

/// Cores forget a granted lease when they are restarted. Its holder may still acknowledge messages that a subscriber
/// does not get. The lease is longer than the cores need to elect a leader and to suspect its holder.
#[cfg_attr(test, test)]
pub(super) fn restarted_cores_wait_for_the_leases_that_they_have_forgotten() {
    let mut plan = plan(Duration::ZERO);
    (plan.config.lease, plan.config.suback_timeout) = (Duration::from_secs(20), Duration::from_secs(60));
    let mut scenario = Scenario::of(plan);
    scenario.part(2, 0);
    scenario.part(2, 1);
    scenario.restart(0);
    scenario.restart(1);
    scenario.run_for(300 * MILLI);
    scenario.cluster.connect(SUBSCRIBER, 0);
    scenario.run_for(100 * MILLI);
    scenario.subscribes();
    // The lease of the third node began before the cut.
    scenario.run_for(13 * SECOND);
    let held = scenario.publishes();
    scenario.run_for(200 * MILLI);
    assert!(scenario.is_acknowledged(held), "it still has a lease");
    assert!(!scenario.is_subscribed(), "a node that may acknowledge does not know it");
    scenario.run_for(20 * SECOND);
    assert!(scenario.is_subscribed());
    assert!(!scenario.has_arrived(held));
    let late = scenario.publishes();
    scenario.run_for(SECOND);
    assert!(!scenario.is_acknowledged(late), "it has no lease any more");
}

/// A core counts its grant from its own time, and waits for the node no longer than that. So a grant that has been on
/// the way for longer is over.
#[cfg_attr(test, test)]
pub(super) fn a_lease_counts_from_the_request_however_late_its_grant_is() {
    let mut plan = plan(Duration::ZERO).undecided();
    plan.mesh.link.silence_max = Duration::from_secs(60);
    let mut scenario = Scenario::of(plan);
    assert!(scenario.may_acknowledge(PUBLISHER_NODE));
    let now = scenario.cluster.cx.now();
    for core in [0, 1] {
        scenario.cluster.wan.cut(now, core, PUBLISHER_NODE, LONG);
    }
    // Requests arrive, and are granted. Then nothing gets through.
    scenario.run_for(SECOND);
    for core in [0, 1] {
        scenario.cluster.wan.cut(now, PUBLISHER_NODE, core, LONG);
    }
    scenario.run_for(3 * SECOND);
    assert!(!scenario.may_acknowledge(PUBLISHER_NODE));
    let held = scenario.publishes();
    for core in [0, 1] {
        scenario.cluster.wan.mend(&mut scenario.cluster.cx, core, PUBLISHER_NODE);
    }
    for _ in 0..100 {
        scenario.run_for(10 * MILLI);
        assert!(!scenario.may_acknowledge(PUBLISHER_NODE) && !scenario.is_acknowledged(held));
    }
    scenario.release(PUBLISHER_NODE);
    scenario.run_for(5 * SECOND);
    assert!(scenario.is_acknowledged(held));
}

/// A node that is cut off cannot tell whether the others have failed. Messages that it has sent without confirmation
/// are lost if it dies before the network is back. So their publishers get no acknowledgement, however long the silence
/// lasts, and whether or not the cores declare the node dead meanwhile.
#[cfg_attr(test, test)]
pub(super) fn a_node_that_is_cut_off_acknowledges_nothing_that_only_it_has() {
    let qos = [(1, QoS::AtLeastOnce), (1, QoS::ExactlyOnce), (4, QoS::AtLeastOnce)];
    for ((lease, qos), is_decided) in qos.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let mut plan = plan(Duration::ZERO);
        if !is_decided {
            plan = plan.undecided();
        }
        plan.config.lease = Duration::from_secs(lease);
        (plan.mesh.link.heartbeat, plan.mesh.link.silence_max) =
            (Duration::from_millis(300), Duration::from_millis(2_000));
        let mut scenario = Scenario::of(plan);
        scenario.subscribes();
        scenario.run_for(SECOND);
        assert!(scenario.is_subscribed());
        scenario.isolate(PUBLISHER_NODE);
        let number = scenario.publishes_on("t/0", qos, RetainAction::Nothing);
        // Longer than the maximum silence of peers, with and without a lease.
        for _ in 0..8 {
            scenario.run_for(SECOND);
            assert!(!scenario.is_acknowledged(number), "nobody but the node that is cut off has it");
        }
        scenario.release(PUBLISHER_NODE);
        scenario.run_for(5 * SECOND);
        if is_decided {
            let is_closed = scenario.cluster.clients[PUBLISHER].location().is_none();
            assert!(is_closed && !scenario.is_acknowledged(number), "its clients do not know the outcome");
        } else {
            assert!(scenario.is_acknowledged(number) && scenario.has_arrived(number), "the network is back");
        }
    }
}

/// The other side of that cut: a majority answers the node, so the subscriber's node has failed, and publishers
/// continue. If the cores declare that node dead, its subscriber is disconnected, because it has missed messages.
#[test]
fn publishers_do_not_wait_for_a_node_that_is_cut_off_from_the_majority() {
    for is_decided in [false, true] {
        let mut plan = plan(Duration::ZERO);
        if !is_decided {
            plan = plan.undecided();
        }
        let mut scenario = Scenario::of(plan);
        scenario.subscribes();
        scenario.run_for(SECOND);
        scenario.isolate(0);
        let in_flight = scenario.publishes();
        scenario.run_for(2 * SECOND);
        assert!(scenario.is_acknowledged(in_flight));
        let later = scenario.publishes();
        scenario.run_for(100 * MILLI);
        assert!(scenario.is_acknowledged(later) && !scenario.has_arrived(later), "it waits in the link");
        if is_decided {
            scenario.run_for(5 * SECOND);
        }
        scenario.release(0);
        scenario.run_for(5 * SECOND);
        if is_decided {
            assert!(scenario.cluster.clients[SUBSCRIBER].location().is_none());
        } else {
            assert!(scenario.has_arrived(in_flight) && scenario.has_arrived(later));
        }
    }
}

/// A restarted core does not know a subscription that it once confirmed. It grants no lease before it knows it again.
#[cfg_attr(test, test)]
pub(super) fn a_restarted_core_gets_the_routes_of_every_node_before_it_grants_a_lease() {
    let mut scenario = Scenario::of(plan(Duration::ZERO).undecided());
    scenario.part(2, 0);
    scenario.part(2, 1);
    scenario.run_for(4 * SECOND);
    scenario.subscribes();
    scenario.run_for(SECOND);
    assert!(scenario.is_subscribed(), "a node that does not know it may not acknowledge");
    scenario.part(0, 1);
    scenario.restart(1);
    scenario.join(2, 1);
    scenario.run_for(2 * SECOND);
    let number = scenario.publishes();
    scenario.run_for(3 * SECOND);
    assert!(!scenario.is_acknowledged(number), "neither of the two knows the subscription");
    scenario.join(0, 1);
    scenario.run_for(5 * SECOND);
    assert!(scenario.is_acknowledged(number));
    // It now knows the subscription, and keeps the message for a node that it does not reach.
    scenario.join(2, 0);
    scenario.run_for(10 * SECOND);
    assert!(scenario.has_arrived(number));
}

/// The others confirm subscriptions that a node without a lease does not know. The node gets no new lease with its old
/// knowledge.
#[test]
fn a_node_whose_lease_has_lapsed_gets_all_routes_before_the_next_lease() {
    // Changes of routes are slow, so that a lease could arrive before them.
    let mut scenario = Scenario::of(plan(Duration::from_millis(1_500)).undecided());
    scenario.part(2, 0);
    scenario.part(2, 1);
    scenario.run_for(4 * SECOND);
    scenario.subscribes();
    scenario.run_for(4 * SECOND);
    assert!(scenario.is_subscribed(), "a node that does not know it may not acknowledge");
    scenario.join(2, 0);
    scenario.join(2, 1);
    let number = scenario.publishes();
    let mut waited = 0;
    while !scenario.is_acknowledged(number) {
        scenario.run_for(10 * MILLI);
        waited += 1;
        assert!(waited < 2_000, "it never has a lease again");
    }
    scenario.run_for(SECOND);
    assert!(
        scenario.has_arrived(number),
        "it was acknowledged, and the subscriber had a SUBACK before it was sent"
    );
}

/// A core dies when one of the others knows a route of it and the rest do not. Until the cores have declared it dead,
/// the one that knows the route grants no lease to the others before it has sent them the route.
#[cfg_attr(test, test)]
pub(super) fn a_route_of_a_dead_core_that_one_core_alone_knows_reaches_the_others() {
    for reached in 0..3 {
        let mut plan = plan(Duration::ZERO).undecided();
        plan.add(Role::Core);
        let mut scenario = Scenario::of(plan);
        let client = scenario.connects(3);
        let now = scenario.cluster.cx.now();
        for other in (0..3).filter(|other| *other != reached) {
            scenario.cluster.wan.cut(now, 3, other, LONG);
        }
        let filters = vec![("s/#".to_owned(), QoS::AtLeastOnce)];
        scenario.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Local));
        scenario.run_for(100 * MILLI);
        let known: Vec<usize> = (0..3).filter(|node| scenario.knows_route(*node, "s/#")).collect();
        assert_eq!(known, [reached]);
        scenario.shuts_down(3);
        scenario.run_for(15 * SECOND);
        for node in 0..3 {
            assert!(scenario.knows_route(node, "s/#"), "n{node} does not know the route of n3");
            let publisher = scenario.connects(node);
            let number = scenario.publishes_as(publisher, "t/0", QoS::AtLeastOnce, RetainAction::Nothing);
            scenario.run_for(SECOND);
            assert!(
                scenario.is_acknowledged(number),
                "n{node} has no lease, and another core knows the route of n3"
            );
        }
    }
}

/// A restarted core is linked to a node that needs long to announce its routes. Until then it grants no lease to nodes
/// that do not know them either.
#[cfg_attr(test, test)]
pub(super) fn a_restarted_core_waits_for_the_routes_of_a_linked_node_without_a_limit() {
    let mut plan = plan(Duration::ZERO).undecided();
    plan.mesh.link.silence_max = Duration::from_secs(3);
    plan.config.batching.bytes_max = 400;
    plan.config.batching.in_flight_max = 800;
    let mut scenario = Scenario::of(plan);
    let client = scenario.connects(0);
    let long = "x".repeat(100);
    let filters = (0..200).map(|number| (format!("u/{long}/{number}"), QoS::AtLeastOnce)).collect();
    scenario.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Local));
    scenario.run_for(SECOND);
    scenario.part(2, 0);
    scenario.part(2, 1);
    scenario.run_for(6 * SECOND);
    scenario.subscribes();
    scenario.run_for(SECOND);
    assert!(scenario.is_subscribed(), "a node that does not know it may not acknowledge");
    scenario.cluster.fault(&Fault::Kill { node: 1 });
    let now = scenario.cluster.cx.now();
    scenario.cluster.wan.slow(now, 0, 1, 700, LONG);
    scenario.cluster.start(1);
    // The third node knows most of the routes, and would have announced them faster if it had been first.
    scenario.until("a copy begins", |scenario| scenario.routes_known(1) > 0);
    scenario.join(2, 1);
    scenario.run_for(15 * SECOND);
    assert!(scenario.link(1, 0).0 && !scenario.knows_route(1, "t/#"), "the copy is slow");
    let number = scenario.publishes();
    scenario.run_for(SECOND);
    assert!(!scenario.is_acknowledged(number), "neither of the two knows the subscription");
    scenario.join(2, 0);
    scenario.run_for(5 * SECOND);
    assert!(scenario.is_acknowledged(number) && scenario.has_arrived(number));
}
