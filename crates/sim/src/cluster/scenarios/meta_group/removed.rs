//! Scenarios with unreachable, removed and replaced nodes.

use super::*;

/// Starts this number of cores, and replicants up to this number of nodes.
fn meta_group_with(cores: usize, nodes: usize) -> Scenario {
    meta_group_of(nodes, |plan| plan.nodes[cores..].iter_mut().for_each(|node| node.role = Role::Replicant))
}

/// A core relays for a node that does not reach the leader: requests to join, and commands of operators.
#[test]
fn a_core_relays_for_a_node_that_does_not_reach_the_leader() {
    // One core is of a version that cannot relay.
    for old in 0..3 {
        let links = |node| {
            let all = cluster::FEATURES & !cluster::LOG;
            Some(if node == old { all & !cluster::RELAYS } else { all })
        };
        let mut scenario = meta_group_of_links(4, links, |plan| plan.nodes[REPLICANT].role = Role::Replicant);
        let leader = scenario.leader();
        let incarnation = scenario.known(leader).members[&id(REPLICANT)].incarnation;
        scenario.part(leader, REPLICANT);
        scenario.restart(REPLICANT);
        let joins = |scenario: &Scenario| {
            scenario.members(REPLICANT) == 4
                && scenario.known(leader).members[&id(REPLICANT)].incarnation > incarnation
        };
        if leader == old {
            // This leader cannot read relayed messages.
            scenario.run_for(10 * SECOND);
            assert!(!joins(&scenario), "n{leader} leads");
            continue;
        }
        scenario.until("it is a member in its next incarnation", joins);
        scenario.until("it has all records", |scenario| scenario.cluster.copies_are_the_same());
        let revision = scenario.revisions()[REPLICANT];
        scenario.cluster.propose_new_record(REPLICANT);
        scenario.run_for(3 * SECOND);
        assert_eq!(scenario.revisions(), [revision + 1; 4], "n{old} is old, n{leader} leads");
        assert_eq!(scenario.leader(), leader);
    }
}

/// Two cores do not reach each other, and each reaches a third. The cluster works as before, whichever leads, restarts,
/// or is asked.
#[cfg_attr(test, test)]
pub(in crate::cluster::scenarios) fn a_core_that_does_not_reach_the_leader_is_relayed_by_another() {
    let mut scenario = meta_group_of_links(3, |_| Some(cluster::FEATURES & !cluster::LOG), |_| ());
    let leader = scenario.leader();
    let far = (leader + 1) % 3;
    scenario.part(leader, far);
    scenario.run_for(5 * SECOND);
    for asked in [leader, far, (leader + 2) % 3] {
        let revision = scenario.revisions()[leader];
        scenario.cluster.propose_new_record(asked);
        scenario.run_for(3 * SECOND);
        assert_eq!(
            scenario.revisions(),
            [revision + 1; 3],
            "n{asked} was asked, n{leader} leads, n{far} is far"
        );
    }
    let incarnation = scenario.known(leader).members[&id(far)].incarnation;
    scenario.restart(far);
    scenario.until("it is a member in its next incarnation", |scenario| {
        scenario.members(far) == 3 && scenario.known(leader).members[&id(far)].incarnation > incarnation
    });
    scenario.until("all cores are alive", |scenario| {
        (0..3).all(|node| scenario.roster(node) == Some((vec![State::Alive; 3], 3)))
    });
    assert_eq!((scenario.leader(), scenario.link(leader, far).0), (leader, false));
    scenario.until("it acknowledges", |scenario| scenario.may_acknowledge(far));
    // The node also joins again after it was declared dead.
    scenario.cluster.fault(&Fault::Kill { node: far });
    scenario.cluster.members[far].is_switched_off = true;
    scenario.until("it is dead", |scenario| scenario.state(leader, far) == Some(State::Dead));
    scenario.cluster.members[far].is_switched_off = false;
    scenario.cluster.start(far);
    scenario.until("it is a member again", |scenario| {
        scenario.members(far) == 3 && scenario.may_acknowledge(far)
    });
    assert_eq!((scenario.leader(), scenario.link(leader, far).0), (leader, false));
    // At the end, the unreachable core leads.
    scenario.orders(far, RouterCommand::Proposal(ProposalId(FIRST_OTHER_PROPOSAL), Command::Lead(id(far))));
    scenario.until("it leads", |scenario| {
        (0..3).all(|node| scenario.meta(node).and_then(Meta::leader) == Some(id(far)))
    });
    let revision = scenario.revisions()[far];
    scenario.cluster.propose_new_record(leader);
    scenario.run_for(3 * SECOND);
    assert_eq!(scenario.revisions(), [revision + 1; 3]);
}

/// Two cores have one vote together. Half of the cores is not a majority, but enough to declare the other half dead:
/// the other half is not a majority either.
#[test]
fn one_of_two_cores_can_be_declared_dead_and_removed_by_the_leader() {
    let mut scenario = meta_group_of(3, |plan| plan.nodes[2].role = Role::Replicant);
    scenario.run_for(15 * SECOND);
    let leader = scenario.leader();
    let removed = 1 - leader;
    scenario.isolate(removed);
    scenario.until("it is dead", |scenario| scenario.state(leader, removed) == Some(State::Dead));
    scenario.run_for(5 * SECOND);
    assert!(
        !scenario.may_acknowledge(leader) && !scenario.may_acknowledge(2),
        "one of two cores is no majority"
    );
    assert!(!scenario.may_acknowledge(removed));
    scenario.removes(leader, removed, ProposalId(FIRST_OTHER_PROPOSAL));
    scenario.until("the rest works on", |scenario| {
        scenario.may_acknowledge(leader) && scenario.may_acknowledge(2)
    });
    scenario.release(removed);
    scenario.until("it has joined again", |scenario| (0..3).all(|node| scenario.members(node) == 3));
}

/// One of three cores is lost and removed, and then another. The rest works each time.
#[test]
fn two_of_three_cores_can_be_removed_one_after_the_other() {
    let mut scenario = meta_group();
    scenario.run_for(15 * SECOND);
    let leader = scenario.leader();
    for removed in [(leader + 1) % 3, (leader + 2) % 3] {
        scenario.cluster.fault(&Fault::Kill { node: removed });
        scenario.isolate(removed);
        scenario.until("it is dead", |scenario| scenario.state(leader, removed) == Some(State::Dead));
        scenario.removes(leader, removed, ProposalId(FIRST_OTHER_PROPOSAL));
        scenario.until("the rest works on", |scenario| {
            scenario.may_acknowledge(leader) && scenario.roster(leader).is_some_and(|it| it.1 == 1)
        });
        scenario.run_for(15 * SECOND);
    }
    assert_eq!(scenario.roster(leader), Some((vec![State::Alive], 1)));
}

/// A node whose clock was ahead has left. It comes back without its disk, and its clock is right.
#[cfg_attr(test, test)]
pub(in crate::cluster::scenarios) fn routes_of_a_node_that_left_and_joins_with_a_smaller_incarnation_are_accepted()
 {
    let mut scenario = meta_group_with(2, 4);
    scenario.cluster.members[REPLICANT].incarnation = 50;
    scenario.restart(REPLICANT);
    scenario.until("it is a member with a great number", |scenario| {
        scenario.known(0).members[&id(REPLICANT)].incarnation.0 > 50_000 && scenario.members(REPLICANT) == 4
    });
    let client = scenario.connects(REPLICANT);
    let filters = vec![("s/#".to_owned(), QoS::AtLeastOnce)];
    scenario.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    scenario
        .until("all nodes know the route", |scenario| (0..3).all(|node| scenario.knows_route(node, "s/#")));
    scenario.orders(REPLICANT, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
    scenario.until("it has left", |scenario| (0..3).all(|node| scenario.members(node) == 3));
    scenario.is_replaced(REPLICANT, 0);
    scenario.until("it is back", |scenario| (0..4).all(|node| scenario.members(node) == 4));
    assert!(scenario.known(0).members[&id(REPLICANT)].incarnation.0 < 50_000);
    scenario.assert_settles(REPLICANT);
}

/// A node announces routes in an incarnation that never joins, because there is no majority. It is removed, and comes
/// back with a smaller incarnation number.
#[cfg_attr(test, test)]
pub(in crate::cluster::scenarios) fn an_incarnation_that_never_joined_does_not_block_a_smaller_one() {
    let mut scenario = meta_group_with(2, 4);
    scenario.part(0, 1);
    scenario.run_for(5 * SECOND);
    scenario.cluster.members[REPLICANT].incarnation = 50;
    scenario.restart(REPLICANT);
    scenario.run_for(5 * SECOND);
    let client = scenario.connects(REPLICANT);
    let filters = vec![("s/#".to_owned(), QoS::AtLeastOnce)];
    scenario.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Local));
    scenario.until("a core knows the route", |scenario| (0..2).any(|node| scenario.knows_route(node, "s/#")));
    scenario.cluster.fault(&Fault::Kill { node: REPLICANT });
    scenario.cluster.members[REPLICANT].is_switched_off = true;
    scenario.join(0, 1);
    scenario.until("it is dead", |scenario| scenario.state(0, REPLICANT) == Some(State::Dead));
    scenario.removes(0, REPLICANT, ProposalId(FIRST_OTHER_PROPOSAL));
    scenario.until("it is removed", |scenario| (0..3).all(|node| scenario.members(node) == 3));
    // One core alone knows that incarnation. It must still grant leases to nodes that do not know it. If that core
    // leads, the other core was dead for it and has disconnected its clients.
    scenario.run_for(5 * SECOND);
    if scenario.cluster.clients[SUBSCRIBER].location().is_none() {
        scenario.cluster.connect(SUBSCRIBER, 0);
        scenario.run_for(SECOND);
    }
    scenario.subscribes();
    scenario.run_for(5 * SECOND);
    assert!(scenario.is_subscribed());
    scenario.assert_serves();
    scenario.cluster.members[REPLICANT].is_switched_off = false;
    scenario.is_replaced(REPLICANT, 1);
    scenario.until("it is back", |scenario| (0..4).all(|node| scenario.members(node) == 4));
    assert!(scenario.known(0).members[&id(REPLICANT)].incarnation.0 < 50_000);
    scenario.assert_settles(REPLICANT);
}

/// A node leaves, and does not learn that it is no longer a member. While it has a lease, it acknowledges messages
/// without knowing new subscriptions. So SUBACK of level `cluster` has to wait.
#[cfg_attr(test, test)]
pub(in crate::cluster::scenarios) fn subacks_wait_for_the_lease_of_a_node_that_has_left() {
    let mut scenario = meta_group_with(3, 4);
    scenario.run_for(5 * SECOND);
    let publisher = scenario.connects(REPLICANT);
    assert!(scenario.may_acknowledge(REPLICANT));
    scenario.orders(REPLICANT, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
    let leader = scenario.leader();
    while !scenario.known(leader).members[&id(REPLICANT)].leaves {
        scenario.run_for(MILLI / 10);
    }
    let now = scenario.cluster.cx.now();
    (0..3).for_each(|core| scenario.cluster.wan.cut(now, core, REPLICANT, LONG));
    scenario
        .until("it is no member for the cores", |scenario| (0..3).all(|node| scenario.members(node) == 3));
    assert!(scenario.may_acknowledge(REPLICANT), "it does not know of that");
    scenario.subscribes();
    let mut held = Vec::new();
    while scenario.may_acknowledge(REPLICANT) {
        assert!(!scenario.is_subscribed(), "a node that may acknowledge does not know it");
        held.push(scenario.publishes_as(publisher, "t/0", QoS::AtLeastOnce, RetainAction::Nothing));
        scenario.run_for(20 * MILLI);
    }
    assert!(held.iter().any(|number| scenario.is_acknowledged(*number)), "it still had a lease");
    scenario.run_for(5 * SECOND);
    assert!(scenario.is_subscribed());
}

/// A core is cut off while a node joins with a great incarnation number, leaves, and comes back with a smaller one. The
/// link to that core still holds messages about the great one (seed 2003065).
#[test]
fn old_messages_in_a_link_about_a_past_incarnation_are_ignored() {
    let mut scenario = meta_group_with(3, 4);
    let far = (scenario.leader() + 1) % 3;
    scenario.isolate(far);
    scenario.cluster.members[REPLICANT].incarnation = 50;
    scenario.restart(REPLICANT);
    let near = (far + 1) % 3;
    let incarnation =
        |scenario: &Scenario| scenario.known(near).members.get(&id(REPLICANT)).map(|it| it.incarnation.0);
    scenario.until("it is a member with a great number", |scenario| incarnation(scenario) > Some(50_000));
    let client = scenario.connects(REPLICANT);
    let filters = vec![("s/#".to_owned(), QoS::AtLeastOnce)];
    scenario.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Core));
    scenario.until("the reachable nodes know the route", |scenario| scenario.knows_route(near, "s/#"));
    scenario.orders(REPLICANT, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
    scenario.until("it has left", |scenario| incarnation(scenario).is_none());
    scenario.is_replaced(REPLICANT, 1);
    scenario.until("it is back", |scenario| {
        incarnation(scenario).is_some_and(|incarnation| incarnation < 50_000)
    });
    scenario.run_for(SECOND);
    scenario.release(far);
    for _ in 0..5_000 {
        scenario.run_for(MILLI);
        assert!(!scenario.knows_route(far, "s/#"), "no client has that route");
    }
    scenario.until("all are members", |scenario| (0..4).all(|node| scenario.members(node) == 4));
    scenario.run_for(3 * SECOND);
    assert_eq!([0, 1, 2, 3].map(|node| scenario.may_acknowledge(node)), [true; 4]);
    scenario.assert_settles(REPLICANT);
}

/// A node leaves, and comes back with a smaller incarnation number. A core that does not reach it has kept its link to
/// the great incarnation, to report the removal. Messages for the node's clients wait for the incarnation that the
/// clients are connected to (seed 614377).
#[cfg_attr(test, test)]
pub(in crate::cluster::scenarios) fn messages_for_a_smaller_incarnation_are_not_lost_with_the_link_to_a_greater_one()
 {
    let mut scenario = meta_group_with(3, 4);
    scenario.cluster.members[REPLICANT].incarnation = 50;
    scenario.restart(REPLICANT);
    let incarnation = |scenario: &Scenario, node| {
        scenario.known(node).members.get(&id(REPLICANT)).map(|it| it.incarnation.0)
    };
    scenario.until("all know its great number", |scenario| {
        (0..4).all(|node| incarnation(scenario, node) > Some(50_000))
    });
    scenario.run_for(5 * SECOND);
    // The node gets its roster from the core to which it is attached.
    let core = (scenario.attached(REPLICANT) + 1) % 3;
    let publisher = scenario.connects(core);
    scenario.orders(REPLICANT, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
    scenario.until("it has left", |scenario| incarnation(scenario, core).is_none());
    let restarts = scenario.link(core, REPLICANT).1;
    scenario.part(core, REPLICANT);
    scenario.is_replaced(REPLICANT, 1);
    scenario.until("it is back", |scenario| (0..4).all(|node| scenario.members(node) == 4));
    assert!(incarnation(&scenario, core) < Some(50_000));
    scenario.run_for(SECOND);
    assert_waits_for_the_current_incarnation(&mut scenario, publisher, core, restarts);
}

/// The same as before, but the great incarnation has never joined, and the core to which it was attached has forgotten
/// it. Other nodes that were linked to it still know it.
#[test]
fn messages_for_a_smaller_incarnation_are_not_lost_with_the_link_to_one_that_never_joined() {
    // If the leader is the core that does not reach the node, another core relays the request to join.
    let links = |_| Some(cluster::FEATURES & !cluster::LOG);
    let mut scenario = meta_group_of_links(4, links, |plan| plan.nodes[REPLICANT].role = Role::Replicant);
    let cores = [(0, 1), (0, 2), (1, 2)];
    cores.into_iter().for_each(|(one, other)| scenario.part(one, other));
    scenario.run_for(10 * SECOND);
    scenario.cluster.members[REPLICANT].incarnation = 50;
    scenario.restart(REPLICANT);
    scenario.run_for(5 * SECOND);
    let attached = scenario.attached(REPLICANT);
    let core = (attached + 1) % 3;
    assert!(scenario.link(core, REPLICANT).0);
    let restarts = scenario.link(core, REPLICANT).1;
    scenario.part(core, REPLICANT);
    scenario.is_replaced(REPLICANT, 1);
    scenario.restart(attached);
    scenario.run_for(SECOND);
    cores.into_iter().for_each(|(one, other)| scenario.join(one, other));
    let incarnation = |scenario: &Scenario| scenario.known(core).members[&id(REPLICANT)].incarnation.0;
    scenario.until("it is a member again", |scenario| {
        (0..4).all(|node| scenario.members(node) == 4) && incarnation(scenario) > 1_000
    });
    assert!(incarnation(&scenario) < 50_000);
    let publisher = scenario.connects(core);
    assert_waits_for_the_current_incarnation(&mut scenario, publisher, core, restarts);
}

/// Publishes on a core that does not reach the node, and checks that a client there gets the message after the two are
/// linked. The link has restarted `restarts` times.
fn assert_waits_for_the_current_incarnation(
    scenario: &mut Scenario,
    publisher: usize,
    core: usize,
    restarts: u64,
) {
    let subscriber = scenario.has_subscriber(REPLICANT);
    assert_eq!(scenario.link(core, REPLICANT), (false, restarts), "the core has not noticed");
    let number = scenario.publishes_as(publisher, "t/0", QoS::AtLeastOnce, RetainAction::Nothing);
    scenario.run_for(SECOND);
    assert!(scenario.is_acknowledged(number) && !scenario.has_arrived_at(subscriber, number));
    scenario.join(core, REPLICANT);
    scenario.run_for(10 * SECOND);
    assert_eq!(scenario.link(core, REPLICANT), (true, restarts + 1));
    assert!(scenario.has_arrived_at(subscriber, number));
}

/// A core is cut off from all others except a restarted node, and tells that node about an incarnation that is over.
#[test]
fn a_node_that_was_told_of_a_past_incarnation_is_corrected_by_the_same_core() {
    const READER: usize = 4;
    let mut scenario = meta_group_of(5, |plan| {
        plan.nodes[REPLICANT..].iter_mut().for_each(|node| node.role = Role::Replicant);
        [2, READER].into_iter().for_each(|node| plan.nodes[node].region = "far".into());
        // The lease is longer than the scenario: the core is not declared dead.
        plan.config.lease = Duration::from_secs(20);
    });
    let far = 2;
    if scenario.leader() == far {
        scenario.orders(far, RouterCommand::Proposal(ProposalId(FIRST_OTHER_PROPOSAL), Command::Lead(id(0))));
        let leads = |scenario: &Scenario| scenario.meta(0).is_some_and(|meta| meta.leader() == Some(id(0)));
        scenario.until("another leads", leads);
    }
    scenario.cluster.members[REPLICANT].incarnation = 50;
    scenario.restart(REPLICANT);
    let incarnation = |scenario: &Scenario, node| {
        scenario.known(node).members.get(&id(REPLICANT)).map(|it| it.incarnation.0)
    };
    scenario.until("all know its great number", |scenario| {
        (0..5).all(|node| incarnation(scenario, node) > Some(50_000))
    });
    scenario.run_for(SECOND);
    [0, 1, REPLICANT].into_iter().for_each(|other| scenario.part(far, other));
    scenario.orders(REPLICANT, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
    scenario.until("it has left", |scenario| incarnation(scenario, 0).is_none());
    scenario.is_replaced(REPLICANT, 1);
    scenario.until("it is back", |scenario| {
        incarnation(scenario, 0).is_some_and(|incarnation| incarnation < 50_000)
    });
    scenario.restart(READER);
    scenario.until("the other one is restarted", |scenario| {
        scenario.members(READER) == 5 && incarnation(scenario, READER) < Some(50_000)
    });
    scenario.until("it is attached to that core", |scenario| scenario.attached(READER) == far);
    scenario.run_for(SECOND);
    assert!(incarnation(&scenario, far) > Some(50_000));
    [0, 1, REPLICANT].into_iter().for_each(|other| scenario.join(far, other));
    scenario.until("all know the current incarnation", |scenario| {
        (0..5).all(|node| incarnation(scenario, node).is_some_and(|incarnation| incarnation < 50_000))
    });
    // Old grants last for a lease, and prevent new information meanwhile.
    scenario.run_for(25 * SECOND);
    scenario.assert_settles(REPLICANT);
}

/// A node announces routes in an incarnation that never joins. It comes back with a smaller number, and nobody has
/// removed it.
#[test]
fn a_node_itself_reports_that_an_incarnation_that_never_joined_is_over() {
    // With the second seed, another core knows that incarnation than the one to which the node is attached. With the
    // third, the node reports before that core knows that it is a member.
    for seed in [super::super::SEED, 3, 22] {
        let replicant = |plan: &mut Plan| plan.nodes[REPLICANT].role = Role::Replicant;
        let mut scenario = meta_group_of_seed(seed, 4, |_| None, replicant);
        let cores = [(0, 1), (0, 2), (1, 2)];
        cores.into_iter().for_each(|(one, other)| scenario.part(one, other));
        scenario.run_for(10 * SECOND);
        scenario.cluster.members[REPLICANT].incarnation = 50;
        scenario.restart(REPLICANT);
        scenario.run_for(5 * SECOND);
        let client = scenario.connects(REPLICANT);
        let filters = vec![("s/#".to_owned(), QoS::AtLeastOnce)];
        scenario.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Local));
        scenario
            .until("a core knows the route", |scenario| (0..3).any(|node| scenario.knows_route(node, "s/#")));
        scenario.is_replaced(REPLICANT, 1);
        scenario.run_for(SECOND);
        cores.into_iter().for_each(|(one, other)| scenario.join(one, other));
        scenario.until("it is a member again", |scenario| {
            (0..4).all(|node| scenario.members(node) == 4)
                && scenario.known(0).members[&id(REPLICANT)].incarnation.0 > 1_000
        });
        assert!(scenario.known(0).members[&id(REPLICANT)].incarnation.0 < 50_000);
        scenario.run_for(5 * SECOND);
        for client in [SUBSCRIBER, PUBLISHER] {
            if scenario.cluster.clients[client].location().is_none() {
                scenario.cluster.connect(client, client * PUBLISHER_NODE);
            }
        }
        scenario.run_for(SECOND);
        scenario.assert_settles(REPLICANT);
    }
}

/// A core is cut off from the others and dead for them, and a replicant reaches all cores. Routes of the replicant and
/// of the others are still exchanged.
#[cfg_attr(test, test)]
pub(in crate::cluster::scenarios) fn a_replicant_leaves_a_core_that_is_dead_for_the_others() {
    let mut scenario = meta_group_of(4, |plan| plan.nodes[REPLICANT].role = Role::Replicant);
    scenario.run_for(8 * SECOND);
    let core = scenario.attached(REPLICANT);
    let others: Vec<usize> = (0..3).filter(|node| *node != core).collect();
    for other in &others {
        scenario.part(core, *other);
    }
    scenario.until("it is dead", |scenario| scenario.state(others[0], core) == Some(State::Dead));
    scenario.run_for(3 * SECOND);
    assert!(scenario.link(REPLICANT, core).0, "the replicant reaches it");
    assert!(others.contains(&scenario.attached(REPLICANT)));
    let [writer, reader] = [others[0], REPLICANT].map(|node| scenario.connects(node));
    let filters = vec![("t/#".to_owned(), QoS::AtLeastOnce)];
    scenario.with(reader, |client, scene| client.subscribes_to(scene, filters, Level::Local));
    scenario.run_for(3 * SECOND);
    let number = scenario.publishes_as(writer, "t/0", QoS::AtLeastOnce, RetainAction::Nothing);
    scenario.run_for(3 * SECOND);
    assert!(scenario.is_acknowledged(number) && scenario.has_arrived_at(reader, number));
}

/// A dead node must not prevent others from acknowledging, in whatever order their incarnations began.
#[test]
fn a_node_that_restarts_while_another_is_dead_acknowledges_as_before() {
    for (removed, returning) in [(4, 3), (4, 1), (1, 3), (1, 2)] {
        let mut scenario = meta_group_with(3, 5);
        scenario.run_for(15 * SECOND);
        scenario.cluster.fault(&Fault::Kill { node: removed });
        scenario.cluster.members[removed].is_switched_off = true;
        scenario.until("it is dead", |scenario| scenario.state(0, removed) == Some(State::Dead));
        scenario.run_for(5 * SECOND);
        scenario.restart(returning);
        scenario.run_for(20 * SECOND);
        let fresh: Vec<bool> = (0..5).map(|node| node == removed || scenario.may_acknowledge(node)).collect();
        assert_eq!(fresh, [true; 5], "n{removed} is dead, another node was restarted");
    }
}

/// One of three cores is dead, and the leader leaves: then only the third one votes. If the dead one kept its vote,
/// nothing could be committed until it is back (seed 3409).
#[cfg_attr(test, test)]
pub(in crate::cluster::scenarios) fn a_leader_that_leaves_while_another_core_is_dead_waits_for_no_vote_of_it()
{
    for (dead, stays) in [(1, 2), (2, 1)] {
        let mut scenario = meta_group();
        let leader = scenario.leader();
        let [dead, stays] = [dead, stays].map(|other| (leader + other) % 3);
        scenario.shuts_down(dead);
        scenario.until("it is dead", |scenario| scenario.state(leader, dead) == Some(State::Dead));
        scenario.orders(leader, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
        scenario.until("it has left", |scenario| {
            !scenario.known(stays).members.contains_key(&id(leader)) && scenario.leader() == stays
        });
        scenario.cluster.members[leader].is_switched_off = true;
        scenario.cluster.fault(&Fault::Kill { node: leader });
        let revision = scenario.revisions()[stays];
        scenario.cluster.propose_new_record(stays);
        scenario.run_for(3 * SECOND);
        assert_eq!(scenario.revisions()[stays], revision + 1);
        scenario.cluster.members[dead].is_switched_off = false;
        scenario.cluster.start(dead);
        scenario.until("it is a member again", |scenario| {
            scenario.members(dead) == 2 && scenario.may_acknowledge(dead)
        });
    }
}

/// One of three cores has just died when another leaves. The leave waits until the cores have declared the other dead.
/// The third core alone is half of two, and could not do that (seeds 705705, 1000521).
#[test]
fn a_core_that_leaves_when_another_has_just_died_is_waited_for() {
    for (dead, leaves, silence_max) in [(1, 2, 500), (2, 0, 500), (1, 0, 500), (1, 2, 5_000), (2, 0, 5_000)] {
        let mut scenario =
            meta_group_of(3, |plan| plan.mesh.link.silence_max = Duration::from_millis(silence_max));
        let leader = scenario.leader();
        let [dead, leaves] = [dead, leaves].map(|other| (leader + other) % 3);
        let stays = 3 - dead - leaves;
        // Its machine is switched off: the others do not see its connections end.
        scenario.isolate(dead);
        scenario.shuts_down(dead);
        scenario.orders(leaves, RouterCommand::Leave(ProposalId(FIRST_OTHER_PROPOSAL)));
        scenario.until("it has left", |scenario| !scenario.known(stays).members.contains_key(&id(leaves)));
        assert_eq!(scenario.state(stays, dead), Some(State::Dead), "n{leaves} leaves, n{leader} led");
        scenario.restart(leaves);
        scenario.until("it is a member again", |scenario| {
            scenario.members(leaves) == 3 && scenario.may_acknowledge(leaves)
        });
    }
}

/// A node sends a retained message to only one of two others, and dies. The third gets it without waiting for that
/// node.
#[cfg_attr(test, test)]
pub(in crate::cluster::scenarios) fn retained_messages_that_a_dead_node_sent_to_some_nodes_reach_the_others()
{
    let mut scenario = meta_group();
    let before = scenario.publishes_on("r/1", QoS::AtMostOnce, RetainAction::Message);
    scenario.run_for(SECOND);
    scenario.part(PUBLISHER_NODE, 1);
    let written = scenario.publishes_on("r/0", QoS::AtMostOnce, RetainAction::Message);
    scenario.publishes_on("r/1", QoS::AtMostOnce, RetainAction::Deletion);
    scenario.run_for(SECOND);
    assert_eq!(scenario.retained(0), [written]);
    assert_eq!(scenario.retained(1), [before]);
    scenario.shuts_down(PUBLISHER_NODE);
    scenario.until("it is dead", |scenario| scenario.state(0, PUBLISHER_NODE) == Some(State::Dead));
    scenario.run_for(2 * SECOND);
    for node in 0..2 {
        assert_eq!(scenario.retained(node), [written], "n{node}");
    }
}

/// A core is made the leader while it is suspected: the command that suspects it is the last one of the leader before.
/// No other node reports then that it is alive, and it would acknowledge nothing (seed 1533).
#[cfg_attr(test, test)]
pub(in crate::cluster::scenarios) fn a_core_that_leads_while_it_is_suspected_reports_itself_alive() {
    for seed in super::super::SEED..super::super::SEED + 4 {
        let mut scenario = meta_group_of_seed(seed, 3, |_| None, |_| ());
        let leader = scenario.leader();
        let next = (leader + 1) % 3;
        let incarnation = Incarnation(scenario.incarnations()[next]);
        let commands = [Command::Suspect(id(next), incarnation), Command::Lead(id(next))];
        for (proposal, command) in (FIRST_OTHER_PROPOSAL..).zip(commands) {
            scenario.orders(leader, RouterCommand::Proposal(ProposalId(proposal), command));
        }
        scenario.until("it leads", |scenario| scenario.leaders(next..next + 1) == [Some(id(next))]);
        scenario.run_for(10 * SECOND);
        assert_eq!(scenario.leaders(0..3), [Some(id(next)); 3]);
        assert_eq!(scenario.roster(next), Some((vec![State::Alive; 3], 3)));
        assert!(scenario.may_acknowledge(next));
    }
}

/// The log of its new disk requires no version.
#[test]
fn a_core_of_too_old_a_version_is_reported_by_the_leader_that_refuses_it() {
    let mut scenario = meta_group_of(4, |_| ());
    scenario.until("all cores understand it", |scenario| scenario.adopted(0) == cluster::LOG);
    let leader = scenario.leader();
    let old = if leader == REPLICANT { 1 } else { REPLICANT };
    scenario.shuts_down(old);
    scenario.until("it is dead", |scenario| scenario.state(leader, old) == Some(State::Dead));
    (scenario.cluster.members[old].log, scenario.cluster.members[old].is_switched_off) =
        (Some(cluster::RECORDS), false);
    let incarnations = scenario.cluster.members[old].incarnation;
    scenario.is_replaced(old, incarnations);
    let reason = format!("n{old}: its version is too old for the cluster");
    scenario.until("it is reported", |scenario| {
        scenario.not_joined(leader).iter().any(|it| it.starts_with(&reason))
    });
    scenario.until("the node reports it itself", |scenario| {
        scenario.meta(old).and_then(Meta::waits_for).is_some_and(|why| why.contains("update it"))
    });
    assert_eq!(scenario.members(old), 0);
    scenario.cluster.members[old].log = Some(cluster::LOG);
    scenario.restart(old);
    scenario.until("it is a member", |scenario| scenario.members(old) == 4);
    scenario.until("it is no longer reported", |scenario| {
        !scenario.not_joined(leader).iter().any(|it| it.starts_with(&reason))
    });
}

/// Nodes dial all configured addresses until they are members. After that, an address without a node is not reported.
#[test]
fn a_node_that_is_joined_to_all_stops_reporting_an_unused_address() {
    let mut scenario = meta_group_of(4, |_| ());
    let leader = scenario.leader();
    let removed = (leader + 1) % 4;
    scenario.shuts_down(removed);
    scenario.until("it is dead", |scenario| scenario.state(leader, removed) == Some(State::Dead));
    scenario.removes(leader, removed, ProposalId(FIRST_OTHER_PROPOSAL));
    scenario.until("it is removed", |scenario| scenario.members(leader) == 3);
    let back = (leader + 2) % 4;
    scenario.restart(back);
    scenario.until("it is a member", |scenario| scenario.members(back) == 3);
    scenario.run_for(5 * SECOND);
    let prefix = format!("{removed}: ");
    let reason =
        scenario.not_joined(back).into_iter().find(|it| it.starts_with(&prefix)).expect("it is reported");
    assert!(reason.contains("remove the address from cluster.join"), "{reason}");
    scenario.run_for(200 * SECOND);
    assert!(
        !scenario.not_joined(back).iter().any(|it| it.starts_with(&prefix)),
        "the address is no longer reported"
    );
}

/// The last core has replicants, but no other core.
#[test]
fn the_last_core_looks_for_no_other() {
    let mut scenario = meta_group_with(2, 4);
    scenario.run_for(15 * SECOND);
    let leader = scenario.leader();
    let removed = 1 - leader;
    scenario.shuts_down(removed);
    scenario.until("it is dead", |scenario| scenario.state(leader, removed) == Some(State::Dead));
    scenario.removes(leader, removed, ProposalId(FIRST_OTHER_PROPOSAL));
    scenario.until("the rest works on", |scenario| {
        scenario.members(leader) == 3 && scenario.may_acknowledge(leader)
    });
    scenario.run_for(200 * SECOND);
    let prefix = format!("{removed}: ");
    assert!(!scenario.not_joined(leader).iter().any(|it| it.starts_with(&prefix)));
}

/// A replicant stays in its region while that has a core, even if other cores have less load. It moves to another
/// region otherwise.
#[test]
fn a_replicant_is_attached_to_a_core_of_its_region_while_there_is_one() {
    let (east, west, near, far) = ([0, 1], [2, 3, 4], [5, 6, 7, 8], 9);
    let mut scenario = meta_group_of(10, |plan| {
        for node in east.into_iter().chain(near) {
            plan.nodes[node].region = "east".into();
        }
        for node in west.into_iter().chain([far]) {
            plan.nodes[node].region = "west".into();
        }
        plan.nodes[5..].iter_mut().for_each(|node| node.role = Role::Replicant);
    });
    scenario.run_for(15 * SECOND);
    let cores = |scenario: &Scenario| near.map(|node| scenario.attached(node));
    for core in east {
        assert_eq!(
            cores(&scenario).iter().filter(|it| **it == core).count(),
            2,
            "two are attached to n{core}"
        );
    }
    let busy = scenario.attached(far);
    assert!(west.contains(&busy));
    // Restarted cores report on each new link that no replicant is attached to them.
    for returning in west.into_iter().chain([east[1]]).filter(|core| *core != busy) {
        scenario.restart(returning);
        scenario.run_for(10 * SECOND);
    }
    assert_eq!(cores(&scenario), [east[0]; 4], "they stay in the east, with their core");
    scenario.shuts_down(east[0]);
    scenario.run_for(10 * SECOND);
    assert_eq!(cores(&scenario), [east[1]; 4], "it is the only one left in the east");
    scenario.shuts_down(east[1]);
    scenario.run_for(10 * SECOND);
    assert!(
        cores(&scenario).iter().all(|core| west.contains(core) && *core != busy),
        "{:?}",
        cores(&scenario)
    );
    let moved = cores(&scenario);
    scenario.cluster.members[east[0]].is_switched_off = false;
    scenario.cluster.start(east[0]);
    scenario.run_for(20 * SECOND);
    assert_eq!(cores(&scenario), moved, "no replicant moves without need");
    scenario.orders(busy, RouterCommand::Balance);
    scenario.run_for(SECOND);
    assert_eq!(cores(&scenario), [east[0]; 4]);
    assert_eq!(scenario.attached(far), busy);
}

/// A node was removed, and is a member again. Another node does not know the routes of its sessions yet. That node
/// relays a message to a third, which is slow to confirm it. So the publisher gets its acknowledgement when all know
/// the routes: the sessions miss that message, and get the next one (seed 2000637).
#[test]
fn messages_sent_before_all_know_the_routes_of_a_removed_node_again_are_not_owed_to_its_sessions() {
    let publisher_node = 4;
    let mut scenario = meta_group_of(5, |plan| {
        plan.nodes[REPLICANT..].iter_mut().for_each(|node| node.role = Role::Replicant);
        // No link fails in the time for which the publisher's node is unreachable.
        plan.mesh.link.silence_max = Duration::from_secs(8);
        plan.config.lease = Duration::from_secs(10);
    });
    let keeper = scenario.cluster.clients.len();
    scenario.cluster.clients.push(Client::new(keeper, Some(REPLICANT)));
    scenario.cluster.connect(keeper, REPLICANT);
    scenario.run_for(15 * SECOND);
    let filters = vec![("t/+".to_owned(), QoS::AtLeastOnce)];
    scenario.with(keeper, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    scenario.until_granted(keeper, "t/+");
    // The core `teller` sends routes to the publisher's node, and the core `slow` has a subscriber.
    let teller = scenario.attached(publisher_node);
    let slow = (teller + 1) % 3;
    let reader = scenario.cluster.clients.len();
    // A member requests a level: without one, it is owed nothing.
    scenario.cluster.clients.push(Client::member(reader));
    scenario.cluster.connect(reader, slow);
    scenario.run_for(SECOND);
    let filters = vec![("t/#".to_owned(), QoS::AtLeastOnce)];
    scenario.with(reader, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    scenario.until_granted(reader, "t/#");
    let publisher = scenario.connects(publisher_node);

    scenario.shuts_down(REPLICANT);
    scenario.until("it is dead", |scenario| scenario.state(0, REPLICANT) == Some(State::Dead));
    scenario.removes(0, REPLICANT, ProposalId(FIRST_OTHER_PROPOSAL));
    let others = [0, 1, 2, publisher_node];
    scenario.until("it is removed", |scenario| others.iter().all(|node| scenario.members(*node) == 4));
    scenario.cluster.members[REPLICANT].owed_from = usize::MAX;
    scenario.run_for(5 * SECOND);

    let now = scenario.cluster.cx.now();
    scenario.cluster.wan.cut(now, teller, publisher_node, LONG);
    scenario.cluster.members[REPLICANT].is_switched_off = false;
    scenario.cluster.start(REPLICANT);
    scenario.until("all cores know", |scenario| (0..3).all(|node| scenario.knows_route(node, "t/+")));
    scenario
        .until("it is a member for all", |scenario| others.iter().all(|node| scenario.members(*node) == 5));
    scenario.until("the publisher's node reaches it", |scenario| {
        let process = scenario.cluster.members[publisher_node].process.as_ref().expect("the node runs");
        let view = process.router.view(process.time(&scenario.cluster.cx));
        view.links.iter().any(|link| *link.peer.name == *format!("n{REPLICANT}") && link.is_up)
    });
    assert!(!scenario.knows_route(publisher_node, "t/+"));
    let now = scenario.cluster.cx.now();
    scenario.cluster.wan.cut(now, slow, publisher_node, LONG);
    scenario.cluster.note_known_again();
    let missed = scenario.publishes_as(publisher, "t/0", QoS::AtLeastOnce, RetainAction::Nothing);
    scenario.run_for(SECOND);
    assert!(scenario.has_arrived_at(reader, missed) && !scenario.is_acknowledged(missed));
    scenario.join(teller, publisher_node);
    scenario.until("the publisher's node knows", |scenario| scenario.knows_route(publisher_node, "t/+"));
    scenario.cluster.note_known_again();
    let number = scenario.publishes_as(publisher, "t/0", QoS::AtLeastOnce, RetainAction::Nothing);
    scenario.join(slow, publisher_node);
    scenario.run_for(SECOND);
    assert!(scenario.is_acknowledged(missed) && scenario.is_acknowledged(number));

    scenario.cluster.connect(keeper, REPLICANT);
    scenario.run_for(2 * SECOND);
    assert!(!scenario.has_arrived_at(keeper, missed) && scenario.has_arrived_at(keeper, number));
    scenario.cluster.oracle.check_all_arrived();
    // The second message was owed to both subscribers.
    assert_eq!(scenario.cluster.report().cluster_check_delivered_across, 3);
}

/// Two of three cores were killed, and one of them is back. It has forgotten its routes, and gets them from the others.
/// The other killed core has been declared dead, so nobody waits for its data.
#[test]
fn two_of_three_cores_acknowledge_again_soon_after_the_second_is_back() {
    let mut slowest = 0;
    for seed in 1..=8 {
        // The default link settings of a node.
        let mut scenario =
            meta_group_of_seed(seed, 3, |_| None, |plan| plan.mesh.link = link::Config::default());
        scenario.shuts_down(1);
        scenario.shuts_down(2);
        scenario.run_for(30 * SECOND);
        assert!(!scenario.may_acknowledge(0), "one of three cores is no majority");
        scenario.cluster.members[1].is_switched_off = false;
        scenario.cluster.start(1);
        let began = scenario.cluster.cx.now();
        scenario
            .until("both acknowledge", |scenario| scenario.may_acknowledge(0) && scenario.may_acknowledge(1));
        slowest = slowest.max(scenario.cluster.cx.now() - began);
    }
    assert!(slowest <= 5 * SECOND, "{} ms", slowest / MILLI);
}
