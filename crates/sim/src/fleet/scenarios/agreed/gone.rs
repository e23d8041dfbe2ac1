//! Nodes that do not reach each other, that are gone, and that come back as others.

use super::*;

/// So many cores, and replicants behind them.
fn agreed_with(cores: usize, nodes: usize) -> Story {
    agreed_of(nodes, |plan| plan.nodes[cores..].iter_mut().for_each(|node| node.role = Role::Replicant))
}

/// A core hands on what a node wants that does not reach the one that leads: to be a member, and what its operators want.
#[test]
fn who_does_not_reach_the_core_that_leads_has_another_speak_for_it() {
    // Of the cores one does not, as it is of a version that cannot.
    for old in 0..3 {
        let links = |node| {
            let all = cluster::FEATURES & !cluster::LOG;
            Some(if node == old { all & !cluster::RELAYS } else { all })
        };
        let mut story = agreed_of_links(4, links, |plan| plan.nodes[REPLICANT].role = Role::Replicant);
        let leader = story.leader();
        let life = story.known(leader).members[&id(REPLICANT)].incarnation;
        story.part(leader, REPLICANT);
        story.restart(REPLICANT);
        let joins = |story: &Story| {
            story.members(REPLICANT) == 4 && story.known(leader).members[&id(REPLICANT)].incarnation > life
        };
        if leader == old {
            // It does not read what is handed on.
            story.passes(10 * SECOND);
            assert!(!joins(&story), "n{leader} leads");
            continue;
        }
        story.until("it is a member in its next life", joins);
        story.until("it has all records", |story| story.fleet.copies_are_the_same());
        let revision = story.revisions()[REPLICANT];
        story.fleet.proposes_anew(REPLICANT);
        story.passes(3 * SECOND);
        assert_eq!(story.revisions(), [revision + 1; 4], "n{old} is old, n{leader} leads");
        assert_eq!(story.leader(), leader);
    }
}

/// Two cores do not reach each other, and each reaches a third: all agree as before, whichever of them leads, begins anew, or is asked.
#[cfg_attr(test, test)]
pub(in crate::fleet::scenarios) fn a_core_that_does_not_reach_the_one_that_leads_hears_it_by_way_of_another()
{
    let mut story = agreed_of_links(3, |_| Some(cluster::FEATURES & !cluster::LOG), |_| ());
    let leader = story.leader();
    let far = (leader + 1) % 3;
    story.part(leader, far);
    story.passes(5 * SECOND);
    for asked in [leader, far, (leader + 2) % 3] {
        let revision = story.revisions()[leader];
        story.fleet.proposes_anew(asked);
        story.passes(3 * SECOND);
        assert_eq!(
            story.revisions(),
            [revision + 1; 3],
            "n{asked} was asked, n{leader} leads, n{far} is far"
        );
    }
    let life = story.known(leader).members[&id(far)].incarnation;
    story.restart(far);
    story.until("it is a member in its next life", |story| {
        story.members(far) == 3 && story.known(leader).members[&id(far)].incarnation > life
    });
    story.until("all is well", |story| {
        (0..3).all(|node| story.roster(node) == Some((vec![State::Alive; 3], 3)))
    });
    assert_eq!((story.leader(), story.link(leader, far).0), (leader, false));
    story.until("it acknowledges", |story| story.is_fresh(far));
    // It comes back from the dead, too.
    story.fleet.fault(&Fault::Kill { node: far });
    story.fleet.members[far].is_off = true;
    story.until("it is dead", |story| story.state(leader, far) == Some(State::Dead));
    story.fleet.members[far].is_off = false;
    story.fleet.start(far);
    story.until("it is a member again", |story| story.members(far) == 3 && story.is_fresh(far));
    assert_eq!((story.leader(), story.link(leader, far).0), (leader, false));
    // The far one leads in the end.
    story.orders(far, Letter::Wish(WishId(ORDERS), Command::Lead(id(far))));
    story.until("it leads", |story| {
        (0..3).all(|node| story.meta(node).and_then(Meta::leader) == Some(id(far)))
    });
    let revision = story.revisions()[far];
    story.fleet.proposes_anew(leader);
    story.passes(3 * SECOND);
    assert_eq!(story.revisions(), [revision + 1; 3]);
}

/// Two cores have one vote. Where the other is gone, half of the cores are no majority, and enough to say that it is dead: the other half is none either.
#[test]
fn one_of_two_cores_is_dead_for_the_other_which_leads_and_can_be_removed() {
    let mut story = agreed_of(3, |plan| plan.nodes[2].role = Role::Replicant);
    story.passes(15 * SECOND);
    let leader = story.leader();
    let gone = 1 - leader;
    story.isolate(gone);
    story.until("it is dead", |story| story.state(leader, gone) == Some(State::Dead));
    story.passes(5 * SECOND);
    assert!(!story.is_fresh(leader) && !story.is_fresh(2), "one of two cores is no majority");
    assert!(!story.is_fresh(gone));
    story.removes(leader, gone, WishId(ORDERS));
    story.until("the rest goes on", |story| story.is_fresh(leader) && story.is_fresh(2));
    story.release(gone);
    story.until("it has joined again", |story| (0..3).all(|node| story.members(node) == 3));
}

/// One core of three is gone for good and removed, and then another one: what is left goes on each time.
#[test]
fn of_three_cores_two_are_removed_one_after_the_other() {
    let mut story = agreed();
    story.passes(15 * SECOND);
    let leader = story.leader();
    for gone in [(leader + 1) % 3, (leader + 2) % 3] {
        story.fleet.fault(&Fault::Kill { node: gone });
        story.isolate(gone);
        story.until("it is dead", |story| story.state(leader, gone) == Some(State::Dead));
        story.removes(leader, gone, WishId(ORDERS));
        story.until("the rest goes on", |story| {
            story.is_fresh(leader) && story.roster(leader).is_some_and(|it| it.1 == 1)
        });
        story.passes(15 * SECOND);
    }
    assert_eq!(story.roster(leader), Some((vec![State::Alive], 1)));
}

/// The clock of a node was ahead. It has left, and is back without its disk, with a clock that is right.
#[cfg_attr(test, test)]
pub(in crate::fleet::scenarios) fn a_node_that_left_and_joins_with_a_smaller_number_is_heard_as_any_other() {
    let mut story = agreed_with(2, 4);
    story.fleet.members[REPLICANT].incarnation = 50;
    story.restart(REPLICANT);
    story.until("it is a member in a great life", |story| {
        story.known(0).members[&id(REPLICANT)].incarnation.0 > 50_000 && story.members(REPLICANT) == 4
    });
    let client = story.connects(REPLICANT);
    let filters = vec![("s/#".to_owned(), QoS::AtLeastOnce)];
    story.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    story.until("all know that", |story| (0..3).all(|node| story.knows_route(node, "s/#")));
    story.orders(REPLICANT, Letter::Leave(WishId(ORDERS)));
    story.until("it has left", |story| (0..3).all(|node| story.members(node) == 3));
    story.is_replaced(REPLICANT, 0);
    story.until("it is back", |story| (0..4).all(|node| story.members(node) == 4));
    assert!(story.known(0).members[&id(REPLICANT)].incarnation.0 < 50_000);
    story.assert_settles(REPLICANT);
}

/// A node tells others what it wants in a life that never joins, as there is no majority, and is removed before it comes back with a smaller number.
#[cfg_attr(test, test)]
pub(in crate::fleet::scenarios) fn a_life_that_never_joined_is_no_reason_not_to_hear_one_with_a_smaller_number()
 {
    let mut story = agreed_with(2, 4);
    story.part(0, 1);
    story.passes(5 * SECOND);
    story.fleet.members[REPLICANT].incarnation = 50;
    story.restart(REPLICANT);
    story.passes(5 * SECOND);
    let client = story.connects(REPLICANT);
    let filters = vec![("s/#".to_owned(), QoS::AtLeastOnce)];
    story.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Local));
    story.until("a core knows", |story| (0..2).any(|node| story.knows_route(node, "s/#")));
    story.fleet.fault(&Fault::Kill { node: REPLICANT });
    story.fleet.members[REPLICANT].is_off = true;
    story.join(0, 1);
    story.until("it is dead", |story| story.state(0, REPLICANT) == Some(State::Dead));
    story.removes(0, REPLICANT, WishId(ORDERS));
    story.until("it is removed", |story| (0..3).all(|node| story.members(node) == 3));
    // One core alone has heard of that life, and lets those acknowledge who have not. The other one was dead for it, if it leads, and has let its clients go.
    story.passes(5 * SECOND);
    if story.fleet.clients[SUBSCRIBER].place().is_none() {
        story.fleet.connect(SUBSCRIBER, 0);
        story.passes(SECOND);
    }
    story.subscribes();
    story.passes(5 * SECOND);
    assert!(story.is_subscribed());
    story.assert_serves();
    story.fleet.members[REPLICANT].is_off = false;
    story.is_replaced(REPLICANT, 1);
    story.until("it is back", |story| (0..4).all(|node| story.members(node) == 4));
    assert!(story.known(0).members[&id(REPLICANT)].incarnation.0 < 50_000);
    story.assert_settles(REPLICANT);
}

/// A node leaves, and does not hear that it is no member any more. While its lease runs it acknowledges messages without knowing of new
/// subscriptions, so no SUBACK of level `cluster` leaves meanwhile.
#[cfg_attr(test, test)]
pub(in crate::fleet::scenarios) fn who_has_left_is_waited_for_as_long_as_its_lease_runs() {
    let mut story = agreed_with(3, 4);
    story.passes(5 * SECOND);
    let publisher = story.connects(REPLICANT);
    assert!(story.is_fresh(REPLICANT));
    story.orders(REPLICANT, Letter::Leave(WishId(ORDERS)));
    let leader = story.leader();
    while !story.known(leader).members[&id(REPLICANT)].leaves {
        story.passes(MILLI / 10);
    }
    let now = story.fleet.cx.now();
    (0..3).for_each(|core| story.fleet.wan.cut(now, core, REPLICANT, LONG));
    story.until("it is no member for the cores", |story| (0..3).all(|node| story.members(node) == 3));
    assert!(story.is_fresh(REPLICANT), "it has not heard of that");
    story.subscribes();
    let mut held = Vec::new();
    while story.is_fresh(REPLICANT) {
        assert!(!story.is_subscribed(), "a node that may acknowledge does not know it");
        held.push(story.says_as(publisher, "t/0", QoS::AtLeastOnce, Keeps::Nothing));
        story.passes(20 * MILLI);
    }
    assert!(held.iter().any(|number| story.is_acknowledged(*number)), "it had a lease still");
    story.passes(5 * SECOND);
    assert!(story.is_subscribed());
}

/// A core is cut off while a node joins in a great life, leaves, and is back with a smaller number. The link to that core has kept what was told of the great one
/// (seed 2003065).
#[test]
fn what_a_link_has_kept_of_a_life_that_is_over_is_old_news() {
    let mut story = agreed_with(3, 4);
    let far = (story.leader() + 1) % 3;
    story.isolate(far);
    story.fleet.members[REPLICANT].incarnation = 50;
    story.restart(REPLICANT);
    let near = (far + 1) % 3;
    let life = |story: &Story| story.known(near).members.get(&id(REPLICANT)).map(|it| it.incarnation.0);
    story.until("it is a member in a great life", |story| life(story) > Some(50_000));
    let client = story.connects(REPLICANT);
    let filters = vec![("s/#".to_owned(), QoS::AtLeastOnce)];
    story.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Core));
    story.until("those that are there know that", |story| story.knows_route(near, "s/#"));
    story.orders(REPLICANT, Letter::Leave(WishId(ORDERS)));
    story.until("it has left", |story| life(story).is_none());
    story.is_replaced(REPLICANT, 1);
    story.until("it is back", |story| life(story).is_some_and(|life| life < 50_000));
    story.passes(SECOND);
    story.release(far);
    for _ in 0..5_000 {
        story.passes(MILLI);
        assert!(!story.knows_route(far, "s/#"), "nobody is there who wants it");
    }
    story.until("all are members", |story| (0..4).all(|node| story.members(node) == 4));
    story.passes(3 * SECOND);
    assert_eq!([0, 1, 2, 3].map(|node| story.is_fresh(node)), [true; 4]);
    story.assert_settles(REPLICANT);
}

/// A node leaves, and is back with a smaller number. A core that does not reach it has kept its link to the great life, to tell that it is no member: what is for the
/// node's clients waits for the life that they are connected to (seed 614377).
#[cfg_attr(test, test)]
pub(in crate::fleet::scenarios) fn what_is_for_a_life_with_a_smaller_number_is_not_lost_with_the_link_to_a_greater_one()
 {
    let mut story = agreed_with(3, 4);
    story.fleet.members[REPLICANT].incarnation = 50;
    story.restart(REPLICANT);
    let life = |story: &Story, node| story.known(node).members.get(&id(REPLICANT)).map(|it| it.incarnation.0);
    story.until("all know its great life", |story| (0..4).all(|node| life(story, node) > Some(50_000)));
    story.passes(5 * SECOND);
    // It is told its roster by the core that it hears from.
    let core = (story.attached(REPLICANT) + 1) % 3;
    let publisher = story.connects(core);
    story.orders(REPLICANT, Letter::Leave(WishId(ORDERS)));
    story.until("it has left", |story| life(story, core).is_none());
    let restarts = story.link(core, REPLICANT).1;
    story.part(core, REPLICANT);
    story.is_replaced(REPLICANT, 1);
    story.until("it is back", |story| (0..4).all(|node| story.members(node) == 4));
    assert!(life(&story, core) < Some(50_000));
    story.passes(SECOND);
    assert_waits_for_the_life_that_goes_on(&mut story, publisher, core, restarts);
}

/// The same where the great life has never joined, and the core that it heard from has forgotten it: whoever else was linked to it knows of it.
#[test]
fn what_is_for_a_life_with_a_smaller_number_is_not_lost_with_the_link_to_one_that_never_joined() {
    // Where the core that leads is the one that does not reach the node, another hands on that it wants to join.
    let links = |_| Some(cluster::FEATURES & !cluster::LOG);
    let mut story = agreed_of_links(4, links, |plan| plan.nodes[REPLICANT].role = Role::Replicant);
    let cores = [(0, 1), (0, 2), (1, 2)];
    cores.into_iter().for_each(|(one, other)| story.part(one, other));
    story.passes(10 * SECOND);
    story.fleet.members[REPLICANT].incarnation = 50;
    story.restart(REPLICANT);
    story.passes(5 * SECOND);
    let attached = story.attached(REPLICANT);
    let core = (attached + 1) % 3;
    assert!(story.link(core, REPLICANT).0);
    let restarts = story.link(core, REPLICANT).1;
    story.part(core, REPLICANT);
    story.is_replaced(REPLICANT, 1);
    story.restart(attached);
    story.passes(SECOND);
    cores.into_iter().for_each(|(one, other)| story.join(one, other));
    let life = |story: &Story| story.known(core).members[&id(REPLICANT)].incarnation.0;
    story.until("it is a member again", |story| {
        (0..4).all(|node| story.members(node) == 4) && life(story) > 1_000
    });
    assert!(life(&story) < 50_000);
    let publisher = story.connects(core);
    assert_waits_for_the_life_that_goes_on(&mut story, publisher, core, restarts);
}

/// Publishes on a core that does not reach the node, and checks that a client there gets the message after the two are linked. The link has
/// restarted `restarts` times.
fn assert_waits_for_the_life_that_goes_on(story: &mut Story, publisher: usize, core: usize, restarts: u64) {
    let subscriber = story.has_subscriber(REPLICANT);
    assert_eq!(story.link(core, REPLICANT), (false, restarts), "the core has not noticed");
    let number = story.says_as(publisher, "t/0", QoS::AtLeastOnce, Keeps::Nothing);
    story.passes(SECOND);
    assert!(story.is_acknowledged(number) && !story.came_to(subscriber, number));
    story.join(core, REPLICANT);
    story.passes(10 * SECOND);
    assert_eq!(story.link(core, REPLICANT), (true, restarts + 1));
    assert!(story.came_to(subscriber, number));
}

/// A core that is cut off from the others, and not from one that begins anew, tells that one of a life that is over.
#[test]
fn who_was_told_of_a_life_that_is_over_hears_so_of_whoever_told_it() {
    const READER: usize = 4;
    let mut story = agreed_of(5, |plan| {
        plan.nodes[REPLICANT..].iter_mut().for_each(|node| node.role = Role::Replicant);
        [2, READER].into_iter().for_each(|node| plan.nodes[node].region = "far".into());
        // It is not dead before all of this is over.
        plan.config.lease = Duration::from_secs(20);
    });
    let far = 2;
    if story.leader() == far {
        story.orders(far, Letter::Wish(WishId(ORDERS), Command::Lead(id(0))));
        let leads = |story: &Story| story.meta(0).is_some_and(|meta| meta.leader() == Some(id(0)));
        story.until("another leads", leads);
    }
    story.fleet.members[REPLICANT].incarnation = 50;
    story.restart(REPLICANT);
    let life = |story: &Story, node| story.known(node).members.get(&id(REPLICANT)).map(|it| it.incarnation.0);
    story.until("all know its great life", |story| (0..5).all(|node| life(story, node) > Some(50_000)));
    story.passes(SECOND);
    [0, 1, REPLICANT].into_iter().for_each(|other| story.part(far, other));
    story.orders(REPLICANT, Letter::Leave(WishId(ORDERS)));
    story.until("it has left", |story| life(story, 0).is_none());
    story.is_replaced(REPLICANT, 1);
    story.until("it is back", |story| life(story, 0).is_some_and(|life| life < 50_000));
    story.restart(READER);
    story.until("the other one has begun anew", |story| {
        story.members(READER) == 5 && life(story, READER) < Some(50_000)
    });
    story.until("it hears from that core", |story| story.attached(READER) == far);
    story.passes(SECOND);
    assert!(life(&story, far) > Some(50_000));
    [0, 1, REPLICANT].into_iter().for_each(|other| story.join(far, other));
    story.until("all know the life that goes on", |story| {
        (0..5).all(|node| life(story, node).is_some_and(|life| life < 50_000))
    });
    // What was granted before holds for a lease, and lets nobody know more meanwhile.
    story.passes(25 * SECOND);
    story.assert_settles(REPLICANT);
}

/// A node tells others what it wants in a life that never joins, and comes back with a smaller number, though nobody has removed it.
#[test]
fn a_node_says_itself_that_a_life_that_never_joined_is_over() {
    // In the second it is not the core that the node hears from, which has been told of that life; in the third the node says so before that core hears that it is
    // a member.
    for seed in [super::super::SEED, 3, 22] {
        let replicant = |plan: &mut Plan| plan.nodes[REPLICANT].role = Role::Replicant;
        let mut story = agreed_of_seed(seed, 4, |_| None, replicant);
        let cores = [(0, 1), (0, 2), (1, 2)];
        cores.into_iter().for_each(|(one, other)| story.part(one, other));
        story.passes(10 * SECOND);
        story.fleet.members[REPLICANT].incarnation = 50;
        story.restart(REPLICANT);
        story.passes(5 * SECOND);
        let client = story.connects(REPLICANT);
        let filters = vec![("s/#".to_owned(), QoS::AtLeastOnce)];
        story.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Local));
        story.until("a core knows", |story| (0..3).any(|node| story.knows_route(node, "s/#")));
        story.is_replaced(REPLICANT, 1);
        story.passes(SECOND);
        cores.into_iter().for_each(|(one, other)| story.join(one, other));
        story.until("it is a member again", |story| {
            (0..4).all(|node| story.members(node) == 4)
                && story.known(0).members[&id(REPLICANT)].incarnation.0 > 1_000
        });
        assert!(story.known(0).members[&id(REPLICANT)].incarnation.0 < 50_000);
        story.passes(5 * SECOND);
        for client in [SUBSCRIBER, PUBLISHER] {
            if story.fleet.clients[client].place().is_none() {
                story.fleet.connect(client, client * PUBLISHER_NODE);
            }
        }
        story.passes(SECOND);
        story.assert_settles(REPLICANT);
    }
}

/// A core is cut off from the others and dead for them, and a replicant reaches all. What its clients want is known to those that count, and what others' clients
/// want to it.
#[cfg_attr(test, test)]
pub(in crate::fleet::scenarios) fn a_replicant_leaves_a_core_that_is_dead_for_the_others() {
    let mut story = agreed_of(4, |plan| plan.nodes[REPLICANT].role = Role::Replicant);
    story.passes(8 * SECOND);
    let core = story.attached(REPLICANT);
    let others: Vec<usize> = (0..3).filter(|node| *node != core).collect();
    for other in &others {
        story.part(core, *other);
    }
    story.until("it is dead", |story| story.state(others[0], core) == Some(State::Dead));
    story.passes(3 * SECOND);
    assert!(story.link(REPLICANT, core).0, "the replicant reaches it");
    assert!(others.contains(&story.attached(REPLICANT)));
    let [writer, reader] = [others[0], REPLICANT].map(|node| story.connects(node));
    let filters = vec![("t/#".to_owned(), QoS::AtLeastOnce)];
    story.with(reader, |client, scene| client.subscribes_to(scene, filters, Level::Local));
    story.passes(3 * SECOND);
    let number = story.says_as(writer, "t/0", QoS::AtLeastOnce, Keeps::Nothing);
    story.passes(3 * SECOND);
    assert!(story.is_acknowledged(number) && story.came_to(reader, number));
}

/// A node that is dead and no longer there is no reason not to let others acknowledge, whenever their lives began.
#[test]
fn who_begins_anew_while_another_is_dead_acknowledges_as_before() {
    for (gone, anew) in [(4, 3), (4, 1), (1, 3), (1, 2)] {
        let mut story = agreed_with(3, 5);
        story.passes(15 * SECOND);
        story.fleet.fault(&Fault::Kill { node: gone });
        story.fleet.members[gone].is_off = true;
        story.until("it is dead", |story| story.state(0, gone) == Some(State::Dead));
        story.passes(5 * SECOND);
        story.restart(anew);
        story.passes(20 * SECOND);
        let fresh: Vec<bool> = (0..5).map(|node| node == gone || story.is_fresh(node)).collect();
        assert_eq!(fresh, [true; 5], "n{gone} is gone, n{anew} began anew");
    }
}

/// Of three cores one is dead, and the one that leads leaves: the vote of the third is all that counts then. Had the dead one kept its own, nothing
/// would be agreed upon any more until it is back (seed 3409).
#[cfg_attr(test, test)]
pub(in crate::fleet::scenarios) fn a_core_that_leads_and_leaves_while_another_is_dead_waits_for_nobody() {
    for (dead, stays) in [(1, 2), (2, 1)] {
        let mut story = agreed();
        let leader = story.leader();
        let [dead, stays] = [dead, stays].map(|other| (leader + other) % 3);
        story.goes_away(dead);
        story.until("it is dead", |story| story.state(leader, dead) == Some(State::Dead));
        story.orders(leader, Letter::Leave(WishId(ORDERS)));
        story.until("it has left", |story| {
            !story.known(stays).members.contains_key(&id(leader)) && story.leader() == stays
        });
        story.fleet.members[leader].is_off = true;
        story.fleet.fault(&Fault::Kill { node: leader });
        let revision = story.revisions()[stays];
        story.fleet.proposes_anew(stays);
        story.passes(3 * SECOND);
        assert_eq!(story.revisions()[stays], revision + 1);
        story.fleet.members[dead].is_off = false;
        story.fleet.start(dead);
        story.until("it is a member again", |story| story.members(dead) == 2 && story.is_fresh(dead));
    }
}

/// Of three cores one has just died when another leaves: that goes when the cores agree that the other is dead. The third alone is half of two, and would
/// not be asked whether it may say so (seeds 705705, 1000521).
#[test]
fn a_core_that_leaves_when_another_has_just_died_is_waited_for() {
    for (dead, leaves, silence_max) in [(1, 2, 500), (2, 0, 500), (1, 0, 500), (1, 2, 5_000), (2, 0, 5_000)] {
        let mut story = agreed_of(3, |plan| plan.mesh.link.silence_max = Duration::from_millis(silence_max));
        let leader = story.leader();
        let [dead, leaves] = [dead, leaves].map(|other| (leader + other) % 3);
        let stays = 3 - dead - leaves;
        // Its machine is switched off: nobody hears that its connections end.
        story.isolate(dead);
        story.goes_away(dead);
        story.orders(leaves, Letter::Leave(WishId(ORDERS)));
        story.until("it has left", |story| !story.known(stays).members.contains_key(&id(leaves)));
        assert_eq!(story.state(stays, dead), Some(State::Dead), "n{leaves} leaves, n{leader} led");
        story.restart(leaves);
        story.until("it is a member again", |story| story.members(leaves) == 3 && story.is_fresh(leaves));
    }
}

/// A node tells one other what it has retained, and not the third, and dies: the third hears it, and does not wait until that node is back.
#[cfg_attr(test, test)]
pub(in crate::fleet::scenarios) fn what_a_dead_node_had_told_some_only_the_others_hear_from_them() {
    let mut story = agreed();
    let before = story.says("r/1", QoS::AtMostOnce, Keeps::Message);
    story.passes(SECOND);
    story.part(PUBLISHER_NODE, 1);
    let written = story.says("r/0", QoS::AtMostOnce, Keeps::Message);
    story.says("r/1", QoS::AtMostOnce, Keeps::Deletion);
    story.passes(SECOND);
    assert_eq!(story.retained(0), [written]);
    assert_eq!(story.retained(1), [before]);
    story.goes_away(PUBLISHER_NODE);
    story.until("it is dead", |story| story.state(0, PUBLISHER_NODE) == Some(State::Dead));
    story.passes(2 * SECOND);
    for node in 0..2 {
        assert_eq!(story.retained(node), [written], "n{node}");
    }
}

/// A core is cut off, and told to lead when it is suspected: that it is there nobody else says then, and it would acknowledge nothing (seed 1533).
#[cfg_attr(test, test)]
pub(in crate::fleet::scenarios) fn a_core_that_is_to_lead_while_it_is_suspected_says_that_it_is_there() {
    let mut led = 0;
    for (seed, time) in (super::super::SEED..).zip((0..2_000).step_by(50)) {
        if led == 2 {
            break;
        }
        let lease = |plan: &mut Plan| plan.config.lease = Duration::from_secs(10);
        let mut story = agreed_of_seed(seed, 3, |_| None, lease);
        let leader = story.leader();
        let next = (leader + 1) % 3;
        story.isolate(next);
        let is_suspected = |story: &Story, at| matches!(story.state(at, next), Some(State::Suspect(_)));
        story.until("it is suspected", |story| is_suspected(story, leader));
        story.passes(time * MILLI);
        story.orders(leader, Letter::Wish(WishId(ORDERS), Command::Lead(id(next))));
        story.passes(MILLI);
        story.release(next);
        // Whom the word does not reach in time does not lead.
        let leads = |story: &Story| story.leaders(0..3) == [Some(id(next)); 3];
        let mut waited = 0;
        while !leads(&story) && waited < 300 {
            story.passes(10 * MILLI);
            waited += 1;
        }
        led += u32::from(leads(&story) && is_suspected(&story, next));
        story.passes(10 * SECOND);
        assert_eq!(story.roster(next), Some((vec![State::Alive; 3], 3)));
        assert!(story.is_fresh(next));
    }
    assert_eq!(led, 2, "it has led while it was suspected");
}

/// Its log asks for nothing, as its disk is a new one.
#[test]
fn a_core_of_too_old_a_version_is_named_by_the_one_that_does_not_let_it_in() {
    let mut story = agreed_of(4, |_| ());
    story.until("all understand it", |story| story.adopted(0) == cluster::LOG);
    let leader = story.leader();
    let old = if leader == REPLICANT { 1 } else { REPLICANT };
    story.goes_away(old);
    story.until("it is dead", |story| story.state(leader, old) == Some(State::Dead));
    (story.fleet.members[old].log, story.fleet.members[old].is_off) = (Some(cluster::RECORDS), false);
    let lives = story.fleet.members[old].incarnation;
    story.is_replaced(old, lives);
    let told = format!("n{old}: it runs too old a version");
    story.until("it is named", |story| story.not_joined(leader).iter().any(|it| it.starts_with(&told)));
    story.until("it says so itself", |story| {
        story.meta(old).and_then(Meta::waits_for).is_some_and(|why| why.contains("update it"))
    });
    assert_eq!(story.members(old), 0);
    story.fleet.members[old].log = Some(cluster::LOG);
    story.restart(old);
    story.until("it is a member", |story| story.members(old) == 4);
    story.until("it is named no more", |story| {
        !story.not_joined(leader).iter().any(|it| it.starts_with(&told))
    });
}

/// Nodes look for others until they are members. Where nobody is at one of the addresses, nobody is missed then.
#[test]
fn an_address_that_nobody_has_any_more_is_no_trouble_of_a_node_that_is_joined_to_all() {
    let mut story = agreed_of(4, |_| ());
    let leader = story.leader();
    let gone = (leader + 1) % 4;
    story.goes_away(gone);
    story.until("it is dead", |story| story.state(leader, gone) == Some(State::Dead));
    story.removes(leader, gone, WishId(ORDERS));
    story.until("it is removed", |story| story.members(leader) == 3);
    let back = (leader + 2) % 4;
    story.restart(back);
    story.until("it is a member", |story| story.members(back) == 3);
    story.passes(5 * SECOND);
    let there = format!("{gone}: ");
    let told = story.not_joined(back).into_iter().find(|it| it.starts_with(&there)).expect("it is told of");
    assert!(told.contains("take the address out of cluster.join"), "{told}");
    story.passes(200 * SECOND);
    assert!(!story.not_joined(back).iter().any(|it| it.starts_with(&there)), "it is forgotten");
}

/// It has replicants, and no core to hear.
#[test]
fn the_only_core_that_is_left_looks_for_no_other() {
    let mut story = agreed_with(2, 4);
    story.passes(15 * SECOND);
    let leader = story.leader();
    let gone = 1 - leader;
    story.goes_away(gone);
    story.until("it is dead", |story| story.state(leader, gone) == Some(State::Dead));
    story.removes(leader, gone, WishId(ORDERS));
    story.until("the rest goes on", |story| story.members(leader) == 3 && story.is_fresh(leader));
    story.passes(200 * SECOND);
    let there = format!("{gone}: ");
    assert!(!story.not_joined(leader).iter().any(|it| it.starts_with(&there)));
}

/// A replicant stays in its region while that has a core, whichever cores have less to do, and goes to another when it has none.
#[test]
fn a_replicant_hears_from_a_core_of_its_region_while_there_is_one() {
    let (east, west, near, far) = ([0, 1], [2, 3, 4], [5, 6, 7, 8], 9);
    let mut story = agreed_of(10, |plan| {
        for node in east.into_iter().chain(near) {
            plan.nodes[node].region = "east".into();
        }
        for node in west.into_iter().chain([far]) {
            plan.nodes[node].region = "west".into();
        }
        plan.nodes[5..].iter_mut().for_each(|node| node.role = Role::Replicant);
    });
    story.passes(15 * SECOND);
    let cores = |story: &Story| near.map(|node| story.attached(node));
    for core in east {
        assert_eq!(cores(&story).iter().filter(|it| **it == core).count(), 2, "two hear from n{core}");
    }
    let busy = story.attached(far);
    assert!(west.contains(&busy));
    // They say when they are linked how many hear from them: now nobody.
    for anew in west.into_iter().chain([east[1]]).filter(|core| *core != busy) {
        story.restart(anew);
        story.passes(10 * SECOND);
    }
    assert_eq!(cores(&story), [east[0]; 4], "they stay in the east, and with the core that they have");
    story.goes_away(east[0]);
    story.passes(10 * SECOND);
    assert_eq!(cores(&story), [east[1]; 4], "it is the only one left in the east");
    story.goes_away(east[1]);
    story.passes(10 * SECOND);
    assert!(cores(&story).iter().all(|core| west.contains(core) && *core != busy), "{:?}", cores(&story));
    let moved = cores(&story);
    story.fleet.members[east[0]].is_off = false;
    story.fleet.start(east[0]);
    story.passes(20 * SECOND);
    assert_eq!(cores(&story), moved, "nothing is moved without need");
    story.orders(busy, Letter::Balance);
    story.passes(SECOND);
    assert_eq!(cores(&story), [east[0]; 4]);
    assert_eq!(story.attached(far), busy);
}

/// A node was removed, and is a member again. Another one that has not heard yet what its sessions want passes on a message to a third that is slow to confirm it, so
/// its publisher has the acknowledgement when all have heard: that message they miss, and the next one comes (seed 2000637).
#[test]
fn what_is_sent_before_all_know_again_what_sessions_want_that_were_removed_is_not_owed_to_them() {
    let publisher_node = 4;
    let mut story = agreed_of(5, |plan| {
        plan.nodes[REPLICANT..].iter_mut().for_each(|node| node.role = Role::Replicant);
        // Nobody is cut off for as long as the way to the publisher's node is.
        plan.mesh.link.silence_max = Duration::from_secs(8);
        plan.config.lease = Duration::from_secs(10);
    });
    let keeper = story.fleet.clients.len();
    story.fleet.clients.push(Client::new(keeper, Some(REPLICANT)));
    story.fleet.connect(keeper, REPLICANT);
    story.passes(15 * SECOND);
    let filters = vec![("t/+".to_owned(), QoS::AtLeastOnce)];
    story.with(keeper, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    story.until_granted(keeper, "t/+");
    // One core tells the publisher's node of routes, and at another one there is a subscriber.
    let teller = story.attached(publisher_node);
    let slow = (teller + 1) % 3;
    let reader = story.fleet.clients.len();
    // It says its level: without that it is owed nothing.
    story.fleet.clients.push(Client::member(reader));
    story.fleet.connect(reader, slow);
    story.passes(SECOND);
    let filters = vec![("t/#".to_owned(), QoS::AtLeastOnce)];
    story.with(reader, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    story.until_granted(reader, "t/#");
    let publisher = story.connects(publisher_node);

    story.goes_away(REPLICANT);
    story.until("it is dead", |story| story.state(0, REPLICANT) == Some(State::Dead));
    story.removes(0, REPLICANT, WishId(ORDERS));
    let others = [0, 1, 2, publisher_node];
    story.until("it is removed", |story| others.iter().all(|node| story.members(*node) == 4));
    story.fleet.members[REPLICANT].owed_from = usize::MAX;
    story.passes(5 * SECOND);

    let now = story.fleet.cx.now();
    story.fleet.wan.cut(now, teller, publisher_node, LONG);
    story.fleet.members[REPLICANT].is_off = false;
    story.fleet.start(REPLICANT);
    story.until("all cores know", |story| (0..3).all(|node| story.knows_route(node, "t/+")));
    story.until("it is a member for all", |story| others.iter().all(|node| story.members(*node) == 5));
    story.until("the publisher's node reaches it", |story| {
        let process = story.fleet.members[publisher_node].process.as_ref().expect("the node runs");
        let view = process.fabric.view(process.time(&story.fleet.cx));
        view.links.iter().any(|link| *link.peer.name == *format!("n{REPLICANT}") && link.is_up)
    });
    assert!(!story.knows_route(publisher_node, "t/+"));
    let now = story.fleet.cx.now();
    story.fleet.wan.cut(now, slow, publisher_node, LONG);
    story.fleet.note_known_again();
    let missed = story.says_as(publisher, "t/0", QoS::AtLeastOnce, Keeps::Nothing);
    story.passes(SECOND);
    assert!(story.came_to(reader, missed) && !story.is_acknowledged(missed));
    story.join(teller, publisher_node);
    story.until("the publisher's node knows", |story| story.knows_route(publisher_node, "t/+"));
    story.fleet.note_known_again();
    let number = story.says_as(publisher, "t/0", QoS::AtLeastOnce, Keeps::Nothing);
    story.join(slow, publisher_node);
    story.passes(SECOND);
    assert!(story.is_acknowledged(missed) && story.is_acknowledged(number));

    story.fleet.connect(keeper, REPLICANT);
    story.passes(2 * SECOND);
    assert!(!story.came_to(keeper, missed) && story.came_to(keeper, number));
    story.fleet.oracle.check_all_arrived();
    // It was owed to both.
    assert_eq!(story.fleet.report().fleet_check_delivered_across, 3);
}

/// Two of three cores were killed, and one of them is back. It has forgotten what it knew, and hears it from the others; the one that is
/// still gone is agreed to be dead, so nobody waits for what it could tell.
#[test]
fn two_of_three_cores_acknowledge_again_soon_after_the_second_is_back() {
    let mut slowest = 0;
    for seed in 1..=8 {
        // The default times of a node.
        let mut story = agreed_of_seed(seed, 3, |_| None, |plan| plan.mesh.link = link::Config::default());
        story.goes_away(1);
        story.goes_away(2);
        story.passes(30 * SECOND);
        assert!(!story.is_fresh(0), "one of three cores is no majority");
        story.fleet.members[1].is_off = false;
        story.fleet.start(1);
        let began = story.fleet.cx.now();
        story.until("both acknowledge", |story| story.is_fresh(0) && story.is_fresh(1));
        slowest = slowest.max(story.fleet.cx.now() - began);
    }
    assert!(slowest <= 5 * SECOND, "{} ms", slowest / MILLI);
}
