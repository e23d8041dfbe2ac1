//! Restarted nodes: messages and links of a previous incarnation.

use super::*;

/// A replicant needs long to store a message. The sending node restarts meanwhile and sends another message, which does
/// not arrive. The confirmation of the first is not one of the second, although each is the first of its lane.
#[cfg_attr(test, test)]
pub(super) fn a_message_of_the_previous_incarnation_is_not_confirmed_to_the_next() {
    // It dials the others when it is back, because its number is the smallest.
    let node = (0..4).min_by_key(|node| id(*node)).expect("there are some");
    let home = (node + 1) % 4;
    let mut slow = plan(Duration::ZERO);
    slow.add(Role::Core);
    slow.nodes[home].role = Role::Replicant;
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
    let loses_power = |scenario: &mut Scenario| {
        let restarts = scenario.link(home, node).1;
        scenario.cluster.fault(&Fault::Cut { node });
        scenario.cluster.start(node);
        scenario.until("the link is there again", |scenario| scenario.is_joined(home, node, restarts + 1));
        scenario.cluster.connect(publisher, node);
        scenario.until("it has a lease", |scenario| scenario.may_acknowledge(node));
    };
    let mut is_told = false;
    // A sync may be complete before the node is back: then the round is repeated.
    while !is_told {
        let first = publishes_on(&mut scenario);
        scenario.run_for(100 * MILLI);
        loses_power(&mut scenario);
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
        // In the next round, each is the first of its lane again.
        loses_power(&mut scenario);
    }
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
