//! Scenarios with several regions: conditions of a SUBACK of level `region`.

use super::*;

/// Node of the far region.
const FAR: usize = 1;

/// Starts two cores and a replicant in one region, and a core in another.
fn two_regions() -> Scenario {
    let mut plan = plan(Duration::ZERO);
    plan.add(Role::Replicant);
    plan.nodes[FAR].region = "far".into();
    let mut scenario = Scenario::of(plan);
    scenario.run_for(5 * SECOND);
    scenario
}

/// Adds a client of MQTT 5, in which a SUBSCRIBE can request a level, to a node.
fn connects(scenario: &mut Scenario, node: usize) -> usize {
    let number = scenario.cluster.clients.len();
    scenario.cluster.clients.push(Client::member(number));
    scenario.cluster.connect(number, node);
    scenario.run_for(SECOND);
    number
}

/// Subscribes a client with level `region`.
fn subscribes(scenario: &mut Scenario, client: usize) {
    let filters = vec![("t/#".to_owned(), QoS::AtLeastOnce)];
    scenario.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Region));
}

fn is_subscribed(scenario: &mut Scenario, client: usize) -> bool {
    let (.., view) = scenario.cluster.clients[client].location().expect("the client is connected");
    scenario.cluster.oracle.view(view).granted.contains_key("t/#")
}

#[test]
fn a_suback_of_level_region_waits_for_all_nodes_of_the_region_and_for_no_other() {
    for node in [0, REPLICANT] {
        let mut scenario = two_regions();
        let client = connects(&mut scenario, node);
        scenario.isolate(FAR);
        subscribes(&mut scenario, client);
        scenario.until_granted(client, "t/#");
        for near in (0..4).filter(|near| *near != FAR && *near != node) {
            assert!(scenario.knows_route(near, "t/#"), "n{near} does not know a route of n{node}");
        }
        assert!(!scenario.knows_route(FAR, "t/#"), "n{FAR} is cut off");
    }
}

#[test]
fn a_suback_of_level_region_waits_for_the_lease_of_a_node_of_the_region_that_is_cut_off() {
    for (node, away) in [(0, PUBLISHER_NODE), (0, REPLICANT), (REPLICANT, PUBLISHER_NODE)] {
        let mut scenario = two_regions();
        let client = connects(&mut scenario, node);
        scenario.isolate(away);
        subscribes(&mut scenario, client);
        scenario.run_for(SECOND);
        assert!(
            !is_subscribed(&mut scenario, client),
            "n{away} may acknowledge messages that n{node} does not get"
        );
        scenario.run_for(4 * SECOND);
        assert!(is_subscribed(&mut scenario, client), "n{away} may not acknowledge any more");
    }
}

#[test]
fn in_a_cluster_of_one_region_level_region_is_level_cluster() {
    let mut scenario = Scenario::of(plan(Duration::ZERO));
    scenario.part(PUBLISHER_NODE, 0);
    subscribes(&mut scenario, SUBSCRIBER);
    scenario.run_for(SECOND);
    assert!(!is_subscribed(&mut scenario, SUBSCRIBER), "a node that may acknowledge does not know it");
    scenario.join(PUBLISHER_NODE, 0);
    scenario.until_granted(SUBSCRIBER, "t/#");
    let number = scenario.publishes();
    scenario.run_for(SECOND);
    assert!(scenario.has_arrived(number));
}
