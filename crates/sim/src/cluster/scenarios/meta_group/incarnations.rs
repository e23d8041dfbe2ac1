//! Messages and links of members in several incarnations.

use super::*;

/// Two nodes are removed, and the first comes back first. If the others still had its old slot, retained messages would
/// arrive twice.
#[test]
fn a_removed_node_that_joins_again_gets_every_message_once() {
    let mut scenario = meta_group_of(5, |_| ());
    scenario.run_for(10 * SECOND);
    let removed = [3, 4];
    for node in removed {
        scenario.isolate(node);
    }
    scenario.until("they are dead", |scenario| {
        removed.iter().all(|node| scenario.state(0, *node) == Some(State::Dead))
    });
    for (number, node) in removed.into_iter().enumerate() {
        scenario.removes(0, node, ProposalId(FIRST_OTHER_PROPOSAL + number as u64));
        scenario.until("it is removed", |scenario| (0..3).all(|at| scenario.members(at) == 4 - number));
    }
    for other in 0..3 {
        scenario.join(other, 3);
    }
    scenario.until("it has joined again", |scenario| (0..4).all(|node| scenario.members(node) == 4));
    let reader = scenario.connects(3);
    let filters = vec![(RETAINED.to_owned(), QoS::ExactlyOnce)];
    scenario.with(reader, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    scenario.run_for(3 * SECOND);
    let writer = scenario.connects(0);
    let number = scenario.publishes_as(writer, "r/0", QoS::ExactlyOnce, RetainAction::Message);
    scenario.run_for(3 * SECOND);
    // A message that arrives twice fails the simulation.
    assert!(scenario.has_arrived_at(reader, number) && scenario.is_acknowledged(number));
}

/// A node has written many routes, is declared dead, joins again and writes few. Positions of its previous incarnation
/// that cores have confirmed do not count for the new one.
#[test]
fn subscriptions_of_an_incarnation_that_wrote_less_than_the_previous_one_are_confirmed() {
    let mut scenario = meta_group();
    for _ in 0..3 {
        let client = scenario.connects(0);
        let filters = (0..60).map(|number| (format!("u/{number}"), QoS::AtLeastOnce)).collect();
        scenario.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Local));
        scenario.run_for(SECOND);
        scenario.cluster.fault(&Fault::LoseClientConnection { client });
        scenario.run_for(SECOND);
    }
    scenario.subscribes();
    scenario.run_for(3 * SECOND);
    assert!(scenario.is_subscribed());
    scenario.isolate(0);
    scenario.until("it is dead", |scenario| scenario.state(1, 0) == Some(State::Dead));
    scenario.release(0);
    scenario.until("it joins again", |scenario| scenario.state(1, 0) == Some(State::Alive));
    scenario.run_for(5 * SECOND);
    scenario.cluster.connect(SUBSCRIBER, 0);
    scenario.run_for(SECOND);
    scenario.subscribes();
    scenario.run_for(5 * SECOND);
    assert!(scenario.is_subscribed());
    scenario.assert_serves();
}

/// The new incarnation of a node is the same process, to which the link already exists. Messages that the previous
/// incarnation has received are not sent to the new one.
#[test]
fn messages_that_an_incarnation_received_are_not_sent_to_the_next_one_in_the_same_process() {
    let mut scenario = meta_group_of(4, |plan| plan.nodes[REPLICANT].role = Role::Replicant);
    let publisher = scenario.connects(REPLICANT);
    let keeper = scenario.cluster.clients.len();
    scenario.cluster.clients.push(Client::new(keeper, Some(0)));
    scenario.cluster.connect(keeper, 0);
    scenario.run_for(SECOND);
    let filters = vec![("t/#".to_owned(), QoS::ExactlyOnce)];
    scenario.with(keeper, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    scenario.run_for(3 * SECOND);
    let incarnation = scenario.incarnations()[0];
    scenario.isolate(0);
    scenario.until("it is dead", |scenario| scenario.state(1, 0) == Some(State::Dead));
    scenario.join(0, 1);
    scenario.join(0, 2);
    scenario.until("it has joined again", |scenario| {
        scenario.incarnations()[0] > incarnation && (0..4).all(|node| scenario.members(node) == 4)
    });
    scenario.run_for(3 * SECOND);
    scenario.join(0, REPLICANT);
    scenario.run_for(5 * SECOND);
    assert_eq!(scenario.link(REPLICANT, 0), (true, 0), "the process is the same");
    scenario.cluster.connect(keeper, 0);
    scenario.run_for(2 * SECOND);
    // The message is not acknowledged before the process ends, and the next process does not know it when the link is
    // back.
    let now = scenario.cluster.cx.now();
    scenario.cluster.wan.cut(now, 0, REPLICANT, LONG);
    let number = scenario.publishes_as(publisher, "t/0", QoS::ExactlyOnce, RetainAction::Nothing);
    let mut waited = 0;
    while !scenario.has_arrived_at(keeper, number) {
        // The message is on the disk first, which may take a second.
        scenario.run_for(10 * MILLI);
        waited += 1;
        assert!(waited < 200, "the message arrives");
    }
    scenario.part(0, REPLICANT);
    scenario.restart(0);
    scenario.run_for(2 * SECOND);
    scenario.cluster.connect(keeper, 0);
    scenario.run_for(5 * SECOND);
    scenario.join(0, REPLICANT);
    // A message that arrives twice fails the simulation.
    scenario.run_for(5 * SECOND);
    assert_eq!(scenario.link(REPLICANT, 0), (true, 1));
    assert!(scenario.is_acknowledged(number));
}

/// A node that was declared dead does not know whether an unreachable peer is still the same process. It meets the same
/// process, which receives data and dies before any of it is confirmed. Queued messages wait for the next process, and
/// arrive there only.
#[test]
fn messages_for_the_next_incarnation_are_not_given_to_one_that_dies_before_it_answers() {
    let mut scenario = meta_group_of(4, |plan| {
        plan.nodes[REPLICANT].role = Role::Replicant;
        // With one connection, messages use the connection that comes first.
        plan.mesh.connections = 1;
    });
    scenario.run_for(10 * SECOND);
    let keeper = scenario.cluster.clients.len();
    scenario.cluster.clients.push(Client::new(keeper, Some(0)));
    scenario.cluster.connect(keeper, 0);
    scenario.run_for(SECOND);
    let filters = vec![("t/#".to_owned(), QoS::ExactlyOnce)];
    scenario.with(keeper, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    scenario.run_for(3 * SECOND);
    scenario.isolate(REPLICANT);
    scenario.until("it is dead", |scenario| scenario.state(1, REPLICANT) == Some(State::Dead));
    scenario.join(1, REPLICANT);
    scenario.join(2, REPLICANT);
    scenario.until("it has joined again", |scenario| {
        scenario.state(REPLICANT, REPLICANT) == Some(State::Alive) && scenario.may_acknowledge(REPLICANT)
    });
    scenario.run_for(3 * SECOND);
    let publisher = scenario.connects(REPLICANT);
    let number = scenario.publishes_as(publisher, "t/0", QoS::ExactlyOnce, RetainAction::Nothing);
    scenario.run_for(SECOND);
    assert!(!scenario.link(REPLICANT, 0).0);
    scenario.join(0, REPLICANT);
    let mut waited = 0;
    while scenario.link(REPLICANT, 0) != (true, 0) {
        scenario.run_for(20);
        waited += 1;
        assert!(waited < 100_000, "the link comes back, and is the same");
    }
    let now = scenario.cluster.cx.now();
    scenario.cluster.wan.cut(now, 0, REPLICANT, LONG);
    scenario.run_for(100 * MILLI);
    assert!(!scenario.has_arrived_at(keeper, number));
    // All answers of the process are lost with its connections. With any of them, the queued messages would belong to
    // that process.
    for wire in scenario.cluster.wan.between(0, REPLICANT) {
        scenario.cluster.wan.swallow(&mut scenario.cluster.cx, wire);
    }
    scenario.restart(0);
    scenario.join(0, REPLICANT);
    scenario.run_for(5 * SECOND);
    assert_eq!(scenario.link(REPLICANT, 0), (true, 1));
    scenario.cluster.connect(keeper, 0);
    // A message that arrives twice fails the simulation.
    scenario.run_for(5 * SECOND);
    assert!(scenario.is_acknowledged(number) && scenario.has_arrived_at(keeper, number));
}

/// The nodes that removed a node while it was cut off have dropped their links to it. The removed node still has its
/// own.
#[test]
fn messages_of_a_removed_node_that_is_back_are_not_lost_with_the_old_links() {
    let mut scenario = meta_group_of(4, |plan| plan.nodes[REPLICANT].role = Role::Replicant);
    scenario.subscribes();
    scenario.run_for(3 * SECOND);
    scenario.isolate(REPLICANT);
    scenario.until("it is dead", |scenario| scenario.state(0, REPLICANT) == Some(State::Dead));
    scenario.removes(0, REPLICANT, ProposalId(FIRST_OTHER_PROPOSAL));
    scenario.until("it is removed", |scenario| (0..3).all(|node| scenario.members(node) == 3));
    scenario.run_for(5 * SECOND);
    scenario.join(1, REPLICANT);
    scenario.join(2, REPLICANT);
    scenario.until("it has joined again", |scenario| (0..4).all(|node| scenario.members(node) == 4));
    let publisher = scenario.connects(REPLICANT);
    scenario.run_for(3 * SECOND);
    assert!(scenario.is_subscribed());
    scenario.assert_waits_for_the_first_node(publisher);
}

/// Another node stops being a member and becomes one again, over the same link. Its answers belong to the requests
/// after that, and not to those before.
#[test]
fn a_node_that_is_a_member_again_over_the_same_link_answers_the_new_requests() {
    let mut scenario = meta_group_of(5, |plan| plan.config.tombstones_max = 0);
    let removed = [3, 4];
    for node in removed {
        scenario.isolate(node);
    }
    scenario.until("they are dead", |scenario| {
        removed.iter().all(|node| scenario.state(0, *node) == Some(State::Dead))
    });
    scenario.removes(0, 4, ProposalId(FIRST_OTHER_PROPOSAL));
    scenario.until("it is removed", |scenario| (0..3).all(|node| scenario.members(node) == 4));
    // The two do not know of the removal, and exchange requests as members do.
    scenario.join(3, 4);
    scenario.run_for(5 * SECOND);
    for other in 0..3 {
        scenario.join(3, other);
    }
    scenario.until("the one has joined again", |scenario| scenario.members(3) == 4);
    scenario.release(4);
    scenario.until("the other has joined again", |scenario| (0..5).all(|node| scenario.members(node) == 5));
    assert_eq!(scenario.link(3, 4), (true, 0), "the link has stayed");
    let [stays, goes] = [("s/#", 4), ("t/#", 4)].map(|(filter, node)| {
        let client = scenario.connects(node);
        let filters = vec![(filter.to_owned(), QoS::AtLeastOnce)];
        scenario.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Local));
        scenario.until("the other knows", |scenario| scenario.knows_route(3, filter));
        client
    });
    // The removed route becomes known by a list of all remaining ones.
    scenario.with(goes, |client, scene| client.leaves(scene, "t/#"));
    scenario.until("the other knows that, too", |scenario| !scenario.knows_route(3, "t/#"));
    assert!(scenario.knows_route(3, "s/#"), "{stays}");
}

/// A node was killed before it became a member, and its next incarnation is one. A core still has a link to the first,
/// which looks intact. Messages for the node's clients wait for the incarnation that the clients are connected to.
#[test]
fn messages_for_a_member_are_not_lost_with_a_link_to_an_incarnation_that_never_joined() {
    let mut scenario = meta_group_of(4, |plan| plan.nodes[REPLICANT].role = Role::Replicant);
    let leader = scenario.leader();
    let core = (0..3).find(|node| *node != leader).expect("there are three");
    let publisher = scenario.connects(core);
    scenario.isolate(REPLICANT);
    scenario.until("it is dead", |scenario| scenario.state(leader, REPLICANT) == Some(State::Dead));
    scenario.removes(leader, REPLICANT, ProposalId(FIRST_OTHER_PROPOSAL));
    scenario.until("it is removed", |scenario| (0..3).all(|node| scenario.members(node) == 3));
    // It ends before it knows of a cluster, and sends nothing to members.
    scenario.restart(REPLICANT);
    scenario.join(core, REPLICANT);
    let is_linked = |scenario: &mut Scenario| {
        let process = scenario.cluster.members[core].process.as_mut().expect("the node runs");
        process.router.mesh().peer(id(REPLICANT)).is_some_and(|peer| peer.is_up)
    };
    while !is_linked(&mut scenario) {
        scenario.run_for(MILLI);
    }
    scenario.part(core, REPLICANT);
    scenario.restart(REPLICANT);
    for other in (0..3).filter(|node| *node != core) {
        scenario.join(other, REPLICANT);
    }
    scenario.until("it has joined", |scenario| (0..4).all(|node| scenario.members(node) == 4));
    let subscriber = scenario.has_subscriber(REPLICANT);
    assert_eq!(scenario.link(core, REPLICANT), (true, 0), "the core has not noticed");
    let number = scenario.publishes_as(publisher, "t/0", QoS::AtLeastOnce, RetainAction::Nothing);
    scenario.run_for(100 * MILLI);
    scenario.join(core, REPLICANT);
    scenario.run_for(10 * SECOND);
    assert!(scenario.is_acknowledged(number));
    assert!(scenario.has_arrived_at(subscriber, number));
}
