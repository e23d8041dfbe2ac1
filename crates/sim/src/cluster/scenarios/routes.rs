//! Routes: copies from other nodes, and confirmed subscriptions.

use super::*;

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

/// A core has begun to send another one the routes of a replicant as a full copy. Then the core and the replicant's
/// link to it are lost. The core to which the replicant moves has sent the same routes, which were refused because of
/// the first copy.
#[test]
fn a_copy_of_routes_whose_source_is_lost_does_not_block_another() {
    let mut mixed = plan(Duration::ZERO).undecided();
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
    let mut mixed = plan(Duration::ZERO).undecided();
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
    let long = "x".repeat(60);
    let all = (0..300).map(|number| (format!("u/{long}/{number}"), QoS::AtLeastOnce)).collect();
    scenario.with(subscriber, |client, scene| client.subscribes_to(scene, all, Level::Core));
    scenario.run_for(SECOND);
    let deleted = format!("u/{long}/7");
    scenario.with(subscriber, |client, scene| client.leaves(scene, &deleted));
    scenario.run_for(SECOND);
    scenario.part(replicant, relay);
    scenario.run_for(22 * SECOND);
    for source in [replicant, relay] {
        scenario.join(source, reader);
        let now = scenario.cluster.cx.now();
        scenario.cluster.wan.slow(now, source, reader, 2_000, LONG);
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
    let mut mixed = plan(Duration::ZERO).undecided();
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

/// A replicant is away and not declared dead, and the core to which it was attached was restarted: others announce its
/// routes to that core.
#[cfg_attr(test, test)]
pub(super) fn routes_of_an_absent_replicant_reach_its_restarted_core() {
    let mut plan = plan(Duration::ZERO).undecided();
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
