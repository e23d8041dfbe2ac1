//! Clusters of several regions: what SUBACK of level `region` waits for.

use super::*;

/// The far region.
const FAR: usize = 1;

/// Two cores and a replicant in one region, and a core in another.
fn two_regions() -> Story {
    let mut plan = plan(Duration::ZERO);
    plan.add(Role::Replicant);
    plan.nodes[FAR].region = "far".into();
    let mut story = Story::of(plan);
    story.passes(5 * SECOND);
    story
}

/// A client subscribes on a node, and it is known before SUBACK in its region.
fn subscribes(story: &mut Story, client: usize) {
    let filters = vec![("t/#".to_owned(), QoS::AtLeastOnce)];
    story.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Region));
}

fn is_subscribed(story: &mut Story, client: usize) -> bool {
    let (.., view) = story.fleet.clients[client].place().expect("the client is connected");
    story.fleet.oracle.view(view).granted.contains_key("t/#")
}

#[test]
fn a_suback_of_level_region_waits_for_all_nodes_of_the_region_and_for_no_other() {
    for node in [0, REPLICANT] {
        let mut story = two_regions();
        let client = story.connects(node);
        story.isolate(FAR);
        subscribes(&mut story, client);
        story.until_granted(client, "t/#");
        for near in (0..4).filter(|near| *near != FAR && *near != node) {
            assert!(story.knows_route(near, "t/#"), "n{near} does not know what a client of n{node} wants");
        }
        assert!(!story.knows_route(FAR, "t/#"), "n{FAR} is cut off");
    }
}

#[test]
fn a_suback_of_level_region_waits_for_the_lease_of_a_node_of_the_region_that_is_cut_off() {
    for (node, away) in [(0, PUBLISHER_NODE), (0, REPLICANT), (REPLICANT, PUBLISHER_NODE)] {
        let mut story = two_regions();
        let client = story.connects(node);
        story.isolate(away);
        subscribes(&mut story, client);
        story.passes(SECOND);
        assert!(!is_subscribed(&mut story, client), "n{away} may acknowledge what n{node} does not get");
        story.passes(4 * SECOND);
        assert!(is_subscribed(&mut story, client), "n{away} may acknowledge no more");
    }
}

#[test]
fn in_a_cluster_of_one_region_level_region_is_level_cluster() {
    let mut story = Story::of(plan(Duration::ZERO));
    story.part(PUBLISHER_NODE, 0);
    subscribes(&mut story, SUBSCRIBER);
    story.passes(SECOND);
    assert!(!is_subscribed(&mut story, SUBSCRIBER), "a node that may acknowledge does not know it");
    story.join(PUBLISHER_NODE, 0);
    story.until_granted(SUBSCRIBER, "t/#");
    let number = story.publishes();
    story.passes(SECOND);
    assert!(story.has_come(number));
}
