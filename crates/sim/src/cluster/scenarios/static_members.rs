//! Scenarios with a fixed list of nodes: exchanged routes, leases, and failures.

use super::*;
#[cfg(test)]
use crate::disk::Machine;

/// Cores forget a granted lease when they are restarted. Its holder may still acknowledge messages that a subscriber
/// does not get.
#[cfg_attr(test, test)]
pub(super) fn restarted_cores_wait_for_the_leases_that_they_have_forgotten() {
    let mut scenario = Scenario::of(plan(Duration::ZERO));
    scenario.part(2, 0);
    scenario.part(2, 1);
    scenario.restart(0);
    scenario.restart(1);
    // The lease of the third node began before the cut and lasts for some time.
    scenario.run_for(300 * MILLI);
    scenario.cluster.connect(SUBSCRIBER, 0);
    scenario.run_for(100 * MILLI);
    scenario.subscribes();
    scenario.run_for(600 * MILLI);
    let held = scenario.publishes();
    scenario.run_for(200 * MILLI);
    assert!(scenario.is_acknowledged(held), "it still has a lease");
    assert!(!scenario.is_subscribed(), "a node that may acknowledge does not know it");
    scenario.run_for(12 * SECOND);
    assert!(scenario.is_subscribed());
    assert!(!scenario.has_arrived(held));
    let late = scenario.publishes();
    scenario.run_for(SECOND);
    assert!(!scenario.is_acknowledged(late), "it has no lease any more");
}

/// A node that is cut off cannot tell whether the others have failed. Messages that it has sent without confirmation
/// are lost if it dies before the network is back. So their publishers get no acknowledgement, however long the silence
/// lasts.
#[cfg_attr(test, test)]
pub(super) fn a_node_that_is_cut_off_acknowledges_nothing_that_only_it_has() {
    for (lease, qos) in [(1, QoS::AtLeastOnce), (1, QoS::ExactlyOnce), (4, QoS::AtLeastOnce)] {
        let mut plan = plan(Duration::ZERO);
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
        assert!(scenario.is_acknowledged(number) && scenario.has_arrived(number), "the network is back");
    }
}

/// The other side of that cut: a majority answers the node, so the subscriber's node has failed, and publishers
/// continue.
#[test]
fn publishers_do_not_wait_for_a_node_that_is_cut_off_from_the_majority() {
    let mut scenario = Scenario::of(plan(Duration::ZERO));
    scenario.subscribes();
    scenario.run_for(SECOND);
    scenario.isolate(0);
    let in_flight = scenario.publishes();
    scenario.run_for(2 * SECOND);
    assert!(scenario.is_acknowledged(in_flight));
    let later = scenario.publishes();
    scenario.run_for(100 * MILLI);
    assert!(scenario.is_acknowledged(later) && !scenario.has_arrived(later), "it waits in the link");
    scenario.release(0);
    scenario.run_for(5 * SECOND);
    assert!(scenario.has_arrived(in_flight) && scenario.has_arrived(later));
}

/// A node with a durable session loses its power while a message for the session is on its way, and is back before any
/// peer suspects it. The message is lost with the previous incarnation, so its publisher gets no acknowledgement.
#[cfg_attr(test, test)]
pub(super) fn a_message_for_a_durable_session_that_is_lost_with_its_node_is_not_acknowledged() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        // It dials the others when it is back, because its number is the smallest.
        let home = (0..3).min_by_key(|node| id(*node)).expect("there are some");
        let mut slow = plan(Duration::ZERO);
        slow.latency = 100 * MILLI;
        (slow.mesh.link.heartbeat, slow.mesh.link.silence_max) =
            (Duration::from_secs(1), Duration::from_secs(5));
        let mut scenario = Scenario::of(slow);
        let durable = scenario.cluster.clients.len();
        scenario.cluster.clients.push(Client::new(durable, Some(home)));
        scenario.cluster.connect(durable, home);
        scenario.run_for(SECOND);
        let filters = vec![("t/#".to_owned(), QoS::ExactlyOnce)];
        scenario.with(durable, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
        scenario.until_granted(durable, "t/#");
        let publisher = scenario.connects((home + 1) % 3);
        let restarts = scenario.link((home + 1) % 3, home).1;
        let number = scenario.publishes_as(publisher, "t/0", qos, RetainAction::Nothing);
        scenario.run_for(50 * MILLI);
        scenario.cluster.fault(&Fault::Cut { node: home });
        scenario.cluster.start(home);
        while scenario.link((home + 1) % 3, home).1 == restarts {
            assert!(scenario.link((home + 1) % 3, home).0, "no node suspects it");
            scenario.run_for(MILLI);
        }
        scenario.run_for(5 * SECOND);
        scenario.cluster.connect(durable, home);
        scenario.run_for(5 * SECOND);
        assert!(!scenario.has_arrived_at(durable, number), "it was lost");
        assert!(!scenario.is_acknowledged(number));
        assert!(
            scenario.cluster.clients[publisher].location().is_none(),
            "the outcome is unknown, so the connection is closed"
        );
    }
}

/// A node needs long to store a message. The sending node restarts meanwhile and sends another message, which does not
/// arrive. The confirmation of the first is not one of the second, although each is the first of its lane.
#[cfg_attr(test, test)]
pub(super) fn a_message_of_the_previous_incarnation_is_not_confirmed_to_the_next() {
    // It dials the others when it is back, because its number is the smallest.
    let node = (0..3).min_by_key(|node| id(*node)).expect("there are some");
    let home = (node + 1) % 3;
    let mut slow = plan(Duration::ZERO);
    slow.setups[home].sync_max = 3 * SECOND;
    (slow.mesh.link.heartbeat, slow.mesh.link.silence_max) =
        (Duration::from_millis(100), Duration::from_secs(200));
    let mut scenario = Scenario::of(slow);
    let durable = scenario.cluster.clients.len();
    scenario.cluster.clients.push(Client::new(durable, Some(home)));
    scenario.cluster.connect(durable, home);
    scenario.until("the session is there", |scenario| scenario.cluster.clients[durable].location().is_some());
    let filters = vec![("t/#".to_owned(), QoS::AtLeastOnce)];
    scenario.with(durable, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    scenario.until_granted(durable, "t/#");
    let publisher = scenario.connects(node);
    let publishes_on = |scenario: &mut Scenario| {
        scenario.publishes_as(publisher, "t/0", QoS::AtLeastOnce, RetainAction::Nothing)
    };
    let mut is_told = false;
    // A sync may be complete before the node is back: then the round is repeated.
    while !is_told {
        let first = publishes_on(&mut scenario);
        scenario.run_for(100 * MILLI);
        let restarts = scenario.link(home, node).1;
        scenario.cluster.fault(&Fault::Cut { node });
        scenario.cluster.start(node);
        scenario.until("the link is there again", |scenario| scenario.is_joined(home, node, restarts + 1));
        scenario.cluster.connect(publisher, node);
        scenario.until("it has a lease", |scenario| scenario.may_acknowledge(node));
        let now = scenario.cluster.cx.now();
        scenario.cluster.wan.cut(now, node, home, LONG);
        is_told = !scenario.has_arrived_at(durable, first);
        let second = publishes_on(&mut scenario);
        scenario.with(durable, |client, scene| client.answers(scene, usize::MAX));
        scenario.until("the first is stored", |scenario| scenario.has_arrived_at(durable, first));
        scenario.run_for(SECOND);
        assert!(!scenario.is_acknowledged(second), "it has not arrived");
        scenario.join(node, home);
        scenario.until("the second is stored", |scenario| scenario.has_arrived_at(durable, second));
        scenario.until("its publisher gets the acknowledgement", |scenario| scenario.is_acknowledged(second));
    }
}

/// A node with a durable session is cut off, and the buffer of the link to it is full. Messages without room are
/// refused. All acknowledged ones arrive when the node is back.
#[test]
fn messages_for_a_durable_session_are_refused_when_the_link_has_no_room() {
    for retain_action in [RetainAction::Nothing, RetainAction::Message] {
        let mut tight = plan(Duration::ZERO);
        tight.mesh.link.buffer_max.assured = 200;
        let mut scenario = Scenario::of(tight);
        let durable = scenario.cluster.clients.len();
        scenario.cluster.clients.push(Client::new(durable, Some(0)));
        scenario.cluster.connect(durable, 0);
        scenario.run_for(SECOND);
        let filters = vec![("r/#".to_owned(), QoS::AtLeastOnce)];
        scenario.with(durable, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
        scenario.until_granted(durable, "r/#");
        scenario.isolate(0);
        scenario.run_for(2 * SECOND);
        let mut acknowledged = Vec::new();
        for number in 0..12 {
            let publisher = scenario.connects(PUBLISHER_NODE);
            let number =
                scenario.publishes_as(publisher, &format!("r/{number}"), QoS::AtLeastOnce, retain_action);
            scenario.run_for(SECOND);
            acknowledged.extend(scenario.is_acknowledged(number).then_some(number));
        }
        assert!((1..12).contains(&acknowledged.len()), "some find room: {acknowledged:?}");
        scenario.release(0);
        scenario.run_for(10 * SECOND);
        for number in acknowledged {
            assert!(scenario.has_arrived_at(durable, number), "{number} was acknowledged, {retain_action:?}");
        }
    }
}

/// A restarted core does not know a subscription that it once confirmed. It grants no lease before it knows it again.
#[cfg_attr(test, test)]
pub(super) fn a_restarted_core_gets_the_routes_of_every_node_before_it_grants_a_lease() {
    let mut scenario = Scenario::of(plan(Duration::ZERO));
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

/// Two nodes each accept the last unusual shape that they allow, before they know of the other's. Both filters are
/// routed on both.
#[cfg_attr(test, test)]
pub(super) fn a_filter_granted_by_another_node_is_routed_beyond_the_limit_of_shapes() {
    let (unusual, other) = ("t/+/+/+/+/levels", "x/+/+/+/y");
    let mut plan = plan(Duration::ZERO);
    plan.setups.iter_mut().for_each(|setup| setup.settings.routing.shapes_max = 1);
    let mut scenario = Scenario::of(plan);
    let neighbour = scenario.connects(PUBLISHER_NODE);
    scenario.part(PUBLISHER_NODE, 0);
    scenario.part(PUBLISHER_NODE, 1);
    let filters = |text: &str| vec![(text.to_owned(), QoS::AtLeastOnce)];
    scenario.with(neighbour, |client, scene| client.subscribes_to(scene, filters(other), Level::Local));
    scenario.with(SUBSCRIBER, |client, scene| client.subscribes_to(scene, filters(unusual), Level::Cluster));
    scenario.run_for(200 * MILLI);
    scenario.join(PUBLISHER_NODE, 0);
    scenario.join(PUBLISHER_NODE, 1);
    scenario.until_granted(SUBSCRIBER, unusual);
    let number =
        scenario.publishes_on("t/long/topic/of/many/levels", QoS::AtLeastOnce, RetainAction::Nothing);
    scenario.run_for(5 * SECOND);
    assert!(scenario.is_acknowledged(number));
    assert!(
        scenario.has_arrived(number),
        "its filter was granted, and is known to all nodes that may acknowledge"
    );
}

/// Seed 504 of `--cluster`: other nodes announce the routes of a restarted peer while the own link still belongs to its
/// previous incarnation.
#[cfg_attr(test, test)]
pub(super) fn messages_for_routes_of_a_new_incarnation_learned_from_others_arrive_there() {
    let mut plan = plan(Duration::ZERO);
    plan.add(Role::Replicant);
    let mut scenario = Scenario::of(plan);
    let publisher = scenario.connects(3);
    scenario.part(0, 3);
    scenario.run_for(4 * SECOND);
    scenario.restart(0);
    scenario.cluster.connect(SUBSCRIBER, 0);
    scenario.run_for(100 * MILLI);
    scenario.subscribes();
    scenario.run_for(5 * SECOND);
    assert!(scenario.is_subscribed(), "the replicant knows it from another core");
    let number = scenario.publishes_as(publisher, "t/0", QoS::AtLeastOnce, RetainAction::Nothing);
    scenario.run_for(SECOND);
    assert!(scenario.is_acknowledged(number));
    scenario.join(0, 3);
    scenario.run_for(5 * SECOND);
    assert!(scenario.has_arrived(number));
}

/// The others confirm subscriptions that a node without a lease does not know. The node gets no new lease with its old
/// knowledge.
#[test]
fn a_node_whose_lease_has_lapsed_gets_all_routes_before_the_next_lease() {
    // Changes of routes are slow, so that a lease could arrive before them.
    let mut scenario = Scenario::of(plan(Duration::from_millis(1_500)));
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

/// A strategy that prefers one node offers a message there. It is refused because the member has left, and is not
/// offered there again.
#[test]
fn a_group_whose_preferred_member_has_left_offers_the_message_to_another_node() {
    let mut slow = plan(Duration::from_secs(5));
    for setup in &mut slow.setups {
        setup.settings.shared.strategy = broker::settings::SharedStrategy::HashTopic;
    }
    let mut scenario = Scenario::of(slow);
    let other = scenario.connects(1);
    scenario.joins_group(SUBSCRIBER);
    scenario.joins_group(other);
    scenario.run_for(20 * SECOND);
    let first = scenario.publishes_on("g/0", QoS::AtLeastOnce, RetainAction::Nothing);
    scenario.run_for(SECOND);
    assert_eq!(scenario.got_in_group(first), 1);
    let location = |scenario: &Scenario, client: usize| {
        scenario.cluster.clients[client].location().map(|(.., view)| view)
    };
    let chosen = scenario.cluster.oracle.last_in_group(first, GROUPS[0]);
    let leaver = if location(&scenario, other) == chosen { other } else { SUBSCRIBER };
    scenario.with(leaver, |client, scene| client.leaves(scene, GROUPS[0]));
    // Others do not know yet that it left.
    scenario.run_for(100 * MILLI);
    let second = scenario.publishes_on("g/0", QoS::AtLeastOnce, RetainAction::Nothing);
    scenario.run_for(SECOND);
    assert!(scenario.is_acknowledged(second));
    assert_eq!(scenario.got_in_group(second), 1, "the other member gets it");
}

/// A group whose only member is on a node that is cut off keeps its messages for that member, like other subscriptions.
#[test]
fn messages_for_a_group_wait_for_its_only_member_on_a_node_that_is_cut_off() {
    let mut scenario = Scenario::of(plan(Duration::ZERO));
    scenario.joins_group(SUBSCRIBER);
    scenario.run_for(2 * SECOND);
    scenario.part(2, 0);
    scenario.run_for(2 * SECOND);
    let number = scenario.publishes_on("g/0", QoS::AtLeastOnce, RetainAction::Nothing);
    scenario.run_for(SECOND);
    assert!(scenario.is_acknowledged(number), "the other two cores are enough");
    assert_eq!(scenario.got_in_group(number), 0);
    scenario.join(2, 0);
    scenario.run_for(5 * SECOND);
    assert_eq!(scenario.got_in_group(number), 1);
}

/// The same as before, but the member that the message waits for leaves. There is another one, on a node that was cut
/// off, too.
#[test]
fn messages_that_waited_for_a_member_that_left_go_to_another() {
    let mut ours = plan(Duration::ZERO);
    ours.config.without_quorum = WithoutQuorum::Serve;
    let mut scenario = Scenario::of(ours);
    let other = scenario.connects(1);
    scenario.joins_group(SUBSCRIBER);
    scenario.joins_group(other);
    scenario.run_for(2 * SECOND);
    scenario.isolate(2);
    scenario.run_for(2 * SECOND);
    let numbers: Vec<usize> =
        (0..8).map(|_| scenario.publishes_on("g/0", QoS::AtLeastOnce, RetainAction::Nothing)).collect();
    scenario.run_for(SECOND);
    assert!(numbers.iter().all(|number| scenario.is_acknowledged(*number)));
    scenario.with(other, |client, scene| client.leaves(scene, GROUPS[0]));
    scenario.run_for(SECOND);
    scenario.release(2);
    for _ in 0..10 {
        scenario.run_for(SECOND);
        // Its Receive Maximum may be smaller.
        scenario.with(SUBSCRIBER, |client, scene| client.answers(scene, usize::MAX));
    }
    let given: Vec<u32> = numbers.iter().map(|number| scenario.got_in_group(*number)).collect();
    assert_eq!(given, [1; 8]);
}

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

/// A node that is away for long is dialed more and more rarely. When it turns out to run in a new incarnation, it has
/// to be dialed once more, with a link id for that incarnation. This happens at once: during a pause, neither would
/// know the routes of the other.
#[test]
fn a_restarted_node_that_was_away_for_long_is_joined_at_once() {
    let mut patient = plan(Duration::ZERO);
    patient.mesh.dial_max = Duration::from_secs(30);
    let mut scenario = Scenario::of(patient);
    scenario.part(1, 0);
    scenario.part(2, 0);
    scenario.restart(0);
    scenario.run_for(120 * SECOND);
    assert_eq!(scenario.link(1, 0), (false, 0), "no node knows its new incarnation");
    scenario.join(1, 0);
    scenario.join(2, 0);
    let mut waited = 0;
    while scenario.link(1, 0).1 == 0 {
        scenario.run_for(10 * MILLI);
        waited += 1;
        assert!(waited < 4_000, "no node dials it");
    }
    scenario.run_for(SECOND);
    assert_eq!(scenario.link(1, 0), (true, 1));
}

/// A member has acknowledged messages when its connection is lost. Its node passes them to nodes that have other
/// members, as far as it knows. A node without a member returns them, and another member gets them.
#[test]
fn messages_of_a_lost_member_find_another_although_a_node_has_none_any_more() {
    let mut slow = plan(Duration::from_secs(5));
    for setup in &mut slow.setups {
        setup.settings.shared.strategy = broker::settings::SharedStrategy::Local;
    }
    let mut scenario = Scenario::of(slow);
    let (near, leaver, other) = (scenario.connects(2), scenario.connects(1), scenario.connects(1));
    for member in [SUBSCRIBER, near, leaver] {
        scenario.joins_group(member);
    }
    scenario.run_for(20 * SECOND);
    let numbers: Vec<usize> =
        (0..6).map(|_| scenario.publishes_on("g/0", QoS::AtLeastOnce, RetainAction::Nothing)).collect();
    scenario.run_for(SECOND);
    for number in &numbers {
        assert!(
            scenario.is_acknowledged(*number) && scenario.got_in_group(*number) == 1,
            "the nearest member has it"
        );
    }
    // Later changes are announced after five seconds.
    let filters = vec![("t/1".to_owned(), QoS::AtLeastOnce)];
    scenario.with(other, |client, scene| client.subscribes_to(scene, filters, Level::Local));
    scenario.run_for(100 * MILLI);
    scenario.with(leaver, |client, scene| client.leaves(scene, GROUPS[0]));
    scenario.run_for(100 * MILLI);
    scenario.cluster.fault(&Fault::LoseClientConnection { client: near });
    scenario.run_for(3 * SECOND);
    for number in numbers {
        assert_eq!(scenario.got_in_group(number), 2, "{number} goes to the subscriber now");
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
    assert!(scenario.cluster.members[1].machine.disk.counts().full > 0 && copies_requested(&scenario) == 0);
    scenario.cluster.members[1].machine.disk.set_capacity(None);
    scenario.run_for(10 * SECOND);
    assert_eq!(copies_requested(&scenario), 1);
    for node in 0..3 {
        assert_eq!(scenario.retained(node), [last, new, own], "n{node}");
    }
}

/// A node with an empty disk refuses copies, because the sync of a reserve segment failed (seed 2004349 of
/// `--cluster`). It requests the copies again when it has a reserve. In such plans, all nodes offer to answer these
/// requests, whatever else they offer.
#[test]
fn retained_messages_that_a_log_without_a_reserve_refused_are_copied_later() {
    let failing = Fault::FailSync { node: 1, after: 0 };
    let plan = Plan { faults: vec![(LONG, failing)], ..plan(Duration::ZERO) };
    let mut scenario = Scenario::of_links(plan, |_| Some(0));
    let old = scenario.publishes_on("r/0", QoS::AtLeastOnce, RetainAction::Message);
    scenario.run_for(SECOND);
    assert_eq!(scenario.retained(1), [old]);
    // The number of the operation that syncs an empty segment depends on other writes.
    for after in 0.. {
        assert!(after < 100, "a sync of an empty segment fails at some time");
        scenario.cluster.kill(1, false);
        scenario.cluster.members[1].machine = Machine::new(after);
        scenario.cluster.fault(&Fault::FailSync { node: 1, after });
        scenario.cluster.start(1);
        scenario.run_for(100 * MILLI);
        let member = &scenario.cluster.members[1];
        let has_failed = member.process.as_ref().is_none_or(|process| process.node.failed().is_some());
        if member.lacks_room && !has_failed {
            break;
        }
    }
    scenario.run_for(10 * SECOND);
    let process = scenario.cluster.members[1].process.as_ref().expect("the node runs");
    assert_eq!(
        (process.router.counters().copies_requested, scenario.cluster.members[1].lacks_room),
        (1, false)
    );
    for node in 0..3 {
        assert_eq!(scenario.retained(node), [old], "n{node}");
    }
}

/// A core has begun to send another one the routes of a replicant as a full copy. Then the core and the replicant's
/// link to it are lost. The core to which the replicant moves has sent the same routes, which were refused because of
/// the first copy.
#[test]
fn a_copy_of_routes_whose_source_is_lost_does_not_block_another() {
    let mut mixed = plan(Duration::ZERO);
    mixed.add(Role::Replicant);
    mixed.config.tombstones_max = 0;
    (mixed.config.batching.bytes_max, mixed.config.batching.in_flight_max) = (40, 200);
    let (near, source, reader, replicant) = (0, 1, PUBLISHER_NODE, 3);
    let mut scenario = Scenario::of(mixed);
    let subscriber = scenario.connects(replicant);
    // Attaches the replicant to the source.
    scenario.part(replicant, near);
    scenario.part(replicant, reader);
    scenario.run_for(2 * SECOND);
    // The reader misses a deletion.
    scenario.part(reader, near);
    scenario.part(reader, source);
    scenario.run_for(2 * SECOND);
    let all = (0..60).map(|number| (format!("u/{number}"), QoS::AtLeastOnce));
    let all = all.chain([("t/#".to_owned(), QoS::AtLeastOnce)]).collect();
    scenario.with(subscriber, |client, scene| client.subscribes_to(scene, all, Level::Core));
    scenario.run_for(SECOND);
    scenario.with(subscriber, |client, scene| client.leaves(scene, "u/7"));
    scenario.run_for(SECOND);
    let now = scenario.cluster.cx.now();
    scenario.join(reader, source);
    scenario.cluster.wan.slow(now, source, reader, 4_000, LONG);
    let mut waited = 0;
    while scenario.routes_known(reader) < 10 {
        scenario.run_for(10 * MILLI);
        waited += 1;
        assert!(waited < 500, "no copy begins");
    }
    assert!(scenario.routes_known(reader) < 40, "the copy is not complete");
    for node in [near, reader, replicant] {
        scenario.part(source, node);
    }
    scenario.join(reader, near);
    scenario.join(replicant, near);
    scenario.run_for(5 * SECOND);
    scenario.join(replicant, reader);
    scenario.run_for(5 * SECOND);
    let number = scenario.publishes();
    scenario.run_for(5 * SECOND);
    assert!(scenario.is_acknowledged(number), "two of three cores are there, and both know all routes");
    assert!(scenario.has_arrived_at(subscriber, number));
}

/// A replicant sends its core its routes as a full copy. Another core does the same, starts later and knows less, and
/// the replicant's updates find no room meanwhile. SUBACK of level `core` waits until they are applied.
#[test]
fn a_core_that_copies_routes_of_a_replicant_from_another_core_confirms_only_applied_ones() {
    let mut mixed = plan(Duration::ZERO);
    mixed.add(Role::Replicant);
    mixed.config.tombstones_max = 0;
    (mixed.config.batching.bytes_max, mixed.config.batching.in_flight_max) = (40, 200);
    (mixed.mesh.link.heartbeat, mixed.mesh.link.silence_max) =
        (Duration::from_secs(1), Duration::from_secs(20));
    mixed.config.suback_timeout = Duration::from_secs(100);
    let (away, relay, reader, replicant) = (0, 1, PUBLISHER_NODE, 3);
    let mut scenario = Scenario::of(mixed);
    let subscriber = scenario.connects(replicant);
    // Attaches the replicant to the relay.
    scenario.part(replicant, away);
    scenario.part(replicant, reader);
    scenario.run_for(22 * SECOND);
    // The reader misses a deletion.
    scenario.part(reader, away);
    scenario.part(reader, relay);
    scenario.run_for(22 * SECOND);
    let all = (0..300).map(|number| (format!("u/{number}"), QoS::AtLeastOnce)).collect();
    scenario.with(subscriber, |client, scene| client.subscribes_to(scene, all, Level::Core));
    scenario.run_for(SECOND);
    scenario.with(subscriber, |client, scene| client.leaves(scene, "u/7"));
    scenario.run_for(SECOND);
    scenario.part(replicant, relay);
    scenario.run_for(22 * SECOND);
    for source in [replicant, relay] {
        scenario.join(source, reader);
        let now = scenario.cluster.cx.now();
        scenario.cluster.wan.slow(now, source, reader, 500, LONG);
        scenario.until("a copy begins", |scenario| scenario.routes_known(reader) > 0);
    }
    let filters = vec![("t/#".to_owned(), QoS::AtLeastOnce)];
    scenario.with(subscriber, |client, scene| client.subscribes_to(scene, filters, Level::Core));
    scenario.until_granted(subscriber, "t/#");
    assert!(scenario.knows_route(reader, "t/#"));
}

/// The link between a replicant and its core is lost again and again, with the data on it. Both repeat what they need
/// from each other, and older data arrives later. SUBACK of level `core` is sent when the data is applied, not when it
/// arrives.
#[test]
fn a_core_knows_a_route_sent_during_a_reconnect_when_the_suback_is_sent() {
    // It is dialed, and sends its data before it receives anything.
    let replicant = (0..3).max_by_key(|node| id(*node)).expect("there are some");
    let (core, other) = ((replicant + 1) % 3, (replicant + 2) % 3);
    let mut mixed = plan(Duration::ZERO);
    (mixed.nodes[replicant].role, mixed.latency) = (Role::Replicant, 50 * MILLI);
    let mut scenario = Scenario::of(mixed);
    scenario.part(replicant, other);
    scenario.run_for(2 * SECOND);
    let subscriber = scenario.connects(replicant);
    for round in 0..100 {
        for wire in scenario.cluster.wan.between(core, replicant) {
            scenario.cluster.wan.lose(&mut scenario.cluster.cx, wire);
        }
        scenario.run_for(round * 7 * MILLI);
        let filter = format!("u/{round}");
        let filters = vec![(filter.clone(), QoS::AtLeastOnce)];
        scenario.with(subscriber, |client, scene| client.subscribes_to(scene, filters, Level::Core));
        scenario.until_granted(subscriber, &filter);
        assert!(scenario.knows_route(core, &filter), "round {round}");
        scenario.run_for(SECOND);
    }
}

/// Durable sessions get QoS 2 messages in order, although one waits for a group's member on another node, and the next
/// one for a local member.
#[test]
fn messages_keep_their_order_although_groups_accept_them_at_different_times() {
    let mut slow = plan(Duration::ZERO);
    slow.latency = 50 * MILLI;
    let mut scenario = Scenario::of(slow);
    let mut readers = Vec::new();
    // One of them belongs to the shard of the group.
    for _ in 0..40 {
        let reader = scenario.cluster.clients.len();
        scenario.cluster.clients.push(Client::new(reader, Some(PUBLISHER_NODE)));
        scenario.cluster.connect(reader, PUBLISHER_NODE);
        scenario.run_for(100 * MILLI);
        let filters = vec![("g/0".to_owned(), QoS::ExactlyOnce)];
        scenario.with(reader, |client, scene| client.subscribes_to(scene, filters, Level::Local));
        readers.push(reader);
    }
    let near = scenario.connects(PUBLISHER_NODE);
    scenario.joins_group(SUBSCRIBER);
    scenario.joins_group(near);
    scenario.run_for(3 * SECOND);
    // Its session is durable, so it may repeat its messages.
    let writer = readers[0];
    let said: Vec<usize> = (0..8)
        .map(|_| scenario.publishes_as(writer, "g/0", QoS::ExactlyOnce, RetainAction::Nothing))
        .collect();
    // A message that arrives after a later one fails the simulation. Not all readers receive everything at once.
    scenario.run_for(5 * SECOND);
    assert!(
        said.iter().all(|message| scenario.is_acknowledged(*message) && scenario.got_in_group(*message) == 1)
    );
    assert!(readers.into_iter().all(|reader| scenario.has_arrived_at(reader, said[0])));
}

/// A node whose sessions have many routes restarts. Others receive these little by little, and keep the old ones
/// meanwhile.
#[cfg_attr(test, test)]
pub(super) fn routes_of_sessions_are_kept_while_their_restarted_node_announces_them_again() {
    let mut many = plan(Duration::ZERO);
    (many.config.batching.bytes_max, many.config.batching.in_flight_max) = (40, 200);
    many.latency = 50 * MILLI;
    let mut scenario = Scenario::of(many);
    let (number, home) = (scenario.cluster.clients.len(), 0);
    scenario.cluster.clients.push(Client::new(number, Some(home)));
    scenario.cluster.connect(number, home);
    scenario.run_for(SECOND);
    let filters: Vec<_> = (0..60).map(|number| (format!("u/{number}"), QoS::AtLeastOnce)).collect();
    scenario.with(number, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    scenario.until("all is known", |scenario| scenario.routes_known(PUBLISHER_NODE) == 60);
    scenario.restart(home);
    for _ in 0..6_000 {
        scenario.run_for(MILLI);
        assert_eq!(scenario.routes_known(PUBLISHER_NODE), 60, "a message would miss an existing session");
    }
    assert_eq!(scenario.link(PUBLISHER_NODE, home), (true, 1));
    // A later incarnation may have fewer routes.
    scenario.cluster.connect(number, home);
    scenario.run_for(SECOND);
    scenario.with(number, |client, scene| client.leaves(scene, "u/7"));
    scenario.until("it is known", |scenario| scenario.routes_known(PUBLISHER_NODE) == 59);
}

/// A node died before its hello over a new link: the link belongs to no known incarnation.
#[test]
fn messages_sent_over_a_link_to_an_incarnation_without_hello_go_to_the_next() {
    let mut plan = plan(Duration::ZERO);
    plan.add(Role::Replicant);
    let mut scenario = Scenario::of(plan);
    let publisher = scenario.connects(REPLICANT);
    scenario.restart(0);
    let mut waited = 0;
    while scenario.link(REPLICANT, 0) != (true, 1) {
        scenario.run_for(20);
        waited += 1;
        assert!(waited < 100_000, "the link comes back");
    }
    scenario.cluster.fault(&Fault::Kill { node: 0 });
    scenario.part(0, REPLICANT);
    scenario.cluster.start(0);
    scenario.run_for(4 * SECOND);
    scenario.cluster.connect(SUBSCRIBER, 0);
    scenario.run_for(SECOND);
    scenario.subscribes();
    scenario.run_for(5 * SECOND);
    assert!(scenario.is_subscribed(), "the replicant knows it from another core");
    scenario.assert_waits_for_the_first_node(publisher);
}

/// A core dies when one of the others knows a route of it and the rest do not. The one that knows it grants no lease to
/// the others before it has sent them the route.
#[cfg_attr(test, test)]
pub(super) fn a_route_of_a_dead_core_that_one_core_alone_knows_reaches_the_others() {
    for reached in 0..3 {
        let mut plan = plan(Duration::ZERO);
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

/// A replicant is away, and the core to which it was attached was restarted: others announce its routes to that core.
#[cfg_attr(test, test)]
pub(super) fn routes_of_an_absent_replicant_reach_its_restarted_core() {
    let mut plan = plan(Duration::ZERO);
    plan.add(Role::Replicant);
    // The batches are small, so that the first node alone cannot announce everything.
    (plan.config.batching.bytes_max, plan.config.batching.in_flight_max) = (200, 400);
    let mut scenario = Scenario::of(plan);
    let client = scenario.connects(REPLICANT);
    let long = "x".repeat(100);
    let filters = (0..200).map(|number| (format!("u/{long}/{number}"), QoS::AtLeastOnce));
    let filters = filters.chain([("s/#".to_owned(), QoS::AtLeastOnce)]).collect();
    scenario.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    scenario.until("all know", |scenario| (0..3).all(|node| scenario.knows_route(node, "s/#")));
    let core = scenario.attached(REPLICANT);
    scenario.shuts_down(REPLICANT);
    scenario.run_for(5 * SECOND);
    scenario.restart(core);
    scenario.run_for(20 * SECOND);
    assert!(scenario.knows_route(core, "s/#"));
    let publisher = scenario.connects(core);
    let number = scenario.publishes_as(publisher, "t/0", QoS::AtLeastOnce, RetainAction::Nothing);
    scenario.run_for(SECOND);
    assert!(scenario.is_acknowledged(number));
}

/// A restarted core is linked to a node that needs long to announce its routes. Until then it grants no lease to nodes
/// that do not know them either.
#[cfg_attr(test, test)]
pub(super) fn a_restarted_core_waits_for_the_routes_of_a_linked_node_without_a_limit() {
    let mut plan = plan(Duration::ZERO);
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

/// The QoS 0 interest of a durable session stays known to other nodes for a time after its client disconnects. A
/// message that is published on another node right after CONNACK arrives.
#[test]
fn a_durable_session_that_comes_back_soon_misses_no_qos_0_message() {
    for (linger, away, comes) in [(60, 10, true), (60, 90, false), (0, 10, false)] {
        let mut far = plan(Duration::ZERO);
        far.latency = 200 * MILLI;
        far.config.qos0_linger = Duration::from_secs(linger);
        let mut scenario = Scenario::of(far);
        let durable = scenario.cluster.clients.len();
        scenario.cluster.clients.push(Client::new(durable, Some(0)));
        scenario.cluster.connect(durable, 0);
        scenario.run_for(SECOND);
        let filters = vec![("t/#".to_owned(), QoS::AtMostOnce)];
        scenario.with(durable, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
        scenario.until_granted(durable, "t/#");
        scenario.with(durable, Client::drop_connection);
        scenario.run_for(away * SECOND);
        scenario.cluster.connect(durable, 0);
        scenario.until("the client is connected", |scenario| {
            scenario.cluster.clients[durable].location().is_some()
        });
        let number = scenario.publishes_on("t/0", QoS::AtMostOnce, RetainAction::Nothing);
        scenario.run_for(5 * SECOND);
        assert_eq!(scenario.has_arrived_at(durable, number), comes, "away for {away} s of {linger}");
    }
}

/// A filter that a durable session has unsubscribed from is no longer known to other nodes, however long QoS 0 interest
/// lingers.
#[test]
fn a_filter_that_a_durable_session_unsubscribes_from_does_not_linger() {
    let mut plan = plan(Duration::ZERO);
    plan.config.qos0_linger = Duration::from_secs(60);
    let mut scenario = Scenario::of(plan);
    let durable = scenario.cluster.clients.len();
    scenario.cluster.clients.push(Client::new(durable, Some(0)));
    scenario.cluster.connect(durable, 0);
    scenario.run_for(SECOND);
    let filters = vec![("t/#".to_owned(), QoS::AtMostOnce), ("u/1".to_owned(), QoS::AtMostOnce)];
    scenario.with(durable, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    scenario.until_granted(durable, "t/#");
    scenario.with(durable, |client, scene| client.leaves(scene, "t/#"));
    scenario.run_for(5 * SECOND);
    assert!(!scenario.knows_route(PUBLISHER_NODE, "t/#"), "the filter does not linger");
    scenario.with(durable, Client::drop_connection);
    scenario.run_for(5 * SECOND);
    assert!(scenario.knows_route(PUBLISHER_NODE, "u/1"));
}
