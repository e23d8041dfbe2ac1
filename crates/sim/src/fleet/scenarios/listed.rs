//! Clusters whose nodes are a list: what each tells the others, who may acknowledge, and what becomes of that when something is gone.

use super::*;
#[cfg(test)]
use crate::disk::Machine;

/// Cores have granted a lease, and forget that as they begin anew: the node that holds it may still acknowledge what a subscriber does not get.
#[cfg_attr(test, test)]
pub(super) fn cores_that_begin_anew_wait_for_the_leases_that_they_have_forgotten() {
    let mut story = Story::of(plan(Duration::ZERO));
    story.part(2, 0);
    story.part(2, 1);
    story.restart(0);
    story.restart(1);
    // The lease of the third node began before the cut and holds for some time.
    story.passes(300 * MILLI);
    story.fleet.connect(SUBSCRIBER, 0);
    story.passes(100 * MILLI);
    story.subscribes();
    story.passes(600 * MILLI);
    let held = story.publishes();
    story.passes(200 * MILLI);
    assert!(story.is_acknowledged(held), "it has a lease still");
    assert!(!story.is_subscribed(), "a node that may acknowledge does not know it");
    story.passes(12 * SECOND);
    assert!(story.is_subscribed());
    assert!(!story.has_come(held));
    let late = story.publishes();
    story.passes(SECOND);
    assert!(!story.is_acknowledged(late), "it has no lease any more");
}

/// A node that is cut off cannot tell whether it is the others that are gone. What it has sent and nobody has confirmed is lost when it
/// dies before the network is back, so its publishers get no acknowledgement for that, however long the silence lasts.
#[cfg_attr(test, test)]
pub(super) fn a_node_that_is_cut_off_acknowledges_nothing_that_only_it_has() {
    for (lease, qos) in [(1, QoS::AtLeastOnce), (1, QoS::ExactlyOnce), (4, QoS::AtLeastOnce)] {
        let mut plan = plan(Duration::ZERO);
        plan.config.lease = Duration::from_secs(lease);
        (plan.mesh.link.heartbeat, plan.mesh.link.silence_max) =
            (Duration::from_millis(300), Duration::from_millis(2_000));
        let mut story = Story::of(plan);
        story.subscribes();
        story.passes(SECOND);
        assert!(story.is_subscribed());
        story.isolate(PUBLISHER_NODE);
        let number = story.says("t/0", qos, Keeps::Nothing);
        // Beyond the silence that peers are allowed, with and without a lease.
        for _ in 0..8 {
            story.passes(SECOND);
            assert!(!story.is_acknowledged(number), "nobody but the node that is cut off has it");
        }
        story.release(PUBLISHER_NODE);
        story.passes(5 * SECOND);
        assert!(story.is_acknowledged(number) && story.has_come(number), "the network is back");
    }
}

/// The other side of the same cut: a majority answers the node, so it is the subscriber's node that is gone, and publishers go on.
#[test]
fn publishers_do_not_wait_for_a_node_that_is_cut_off_from_the_majority() {
    let mut story = Story::of(plan(Duration::ZERO));
    story.subscribes();
    story.passes(SECOND);
    story.isolate(0);
    let in_flight = story.publishes();
    story.passes(2 * SECOND);
    assert!(story.is_acknowledged(in_flight));
    let later = story.publishes();
    story.passes(100 * MILLI);
    assert!(story.is_acknowledged(later) && !story.has_come(later), "it waits in the link");
    story.release(0);
    story.passes(5 * SECOND);
    assert!(story.has_come(in_flight) && story.has_come(later));
}

/// A node with a durable session loses its power while a message for the session is on its way, and is back before any peer suspects it. The
/// message is lost with the previous incarnation, so its publisher gets no acknowledgement.
#[cfg_attr(test, test)]
pub(super) fn what_a_durable_session_was_to_have_is_not_acknowledged_when_it_is_lost_with_the_node() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        // It dials the others when it is back, as its number is the smallest.
        let home = (0..3).min_by_key(|node| id(*node)).expect("there are some");
        let mut slow = plan(Duration::ZERO);
        slow.latency = 100 * MILLI;
        (slow.mesh.link.heartbeat, slow.mesh.link.silence_max) =
            (Duration::from_secs(1), Duration::from_secs(5));
        let mut story = Story::of(slow);
        let durable = story.fleet.clients.len();
        story.fleet.clients.push(Client::new(durable, Some(home)));
        story.fleet.connect(durable, home);
        story.passes(SECOND);
        let filters = vec![("t/#".to_owned(), QoS::ExactlyOnce)];
        story.with(durable, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
        story.until_granted(durable, "t/#");
        let publisher = story.connects((home + 1) % 3);
        let restarts = story.link((home + 1) % 3, home).1;
        let number = story.says_as(publisher, "t/0", qos, Keeps::Nothing);
        story.passes(50 * MILLI);
        story.fleet.fault(&Fault::Cut { node: home });
        story.fleet.start(home);
        while story.link((home + 1) % 3, home).1 == restarts {
            assert!(story.link((home + 1) % 3, home).0, "nobody has missed it");
            story.passes(MILLI);
        }
        story.passes(5 * SECOND);
        story.fleet.connect(durable, home);
        story.passes(5 * SECOND);
        assert!(!story.came_to(durable, number), "it was lost");
        assert!(!story.is_acknowledged(number));
        assert!(story.fleet.clients[publisher].place().is_none(), "whether anybody has it is not known");
    }
}

/// A node takes long to store a message. The node that sent it restarts meanwhile, and sends another one, which does not arrive: that the first is
/// stored now says nothing of the second, though each is the first of its lane.
#[cfg_attr(test, test)]
pub(super) fn what_the_previous_incarnation_of_a_node_sent_is_not_confirmed_to_the_next() {
    // It dials the others when it is back, as its number is the smallest.
    let node = (0..3).min_by_key(|node| id(*node)).expect("there are some");
    let home = (node + 1) % 3;
    let mut slow = plan(Duration::ZERO);
    slow.setups[home].sync_max = 3 * SECOND;
    (slow.mesh.link.heartbeat, slow.mesh.link.silence_max) =
        (Duration::from_millis(100), Duration::from_secs(200));
    let mut story = Story::of(slow);
    let durable = story.fleet.clients.len();
    story.fleet.clients.push(Client::new(durable, Some(home)));
    story.fleet.connect(durable, home);
    story.until("the session is there", |story| story.fleet.clients[durable].place().is_some());
    let filters = vec![("t/#".to_owned(), QoS::AtLeastOnce)];
    story.with(durable, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    story.until_granted(durable, "t/#");
    let publisher = story.connects(node);
    let says = |story: &mut Story| story.says_as(publisher, "t/0", QoS::AtLeastOnce, Keeps::Nothing);
    let mut is_told = false;
    // A sync may be over before the node is back.
    while !is_told {
        let first = says(&mut story);
        story.passes(100 * MILLI);
        let restarts = story.link(home, node).1;
        story.fleet.fault(&Fault::Cut { node });
        story.fleet.start(node);
        story.until("the link is there again", |story| story.is_joined(home, node, restarts + 1));
        story.fleet.connect(publisher, node);
        story.until("it has a lease", |story| story.is_fresh(node));
        let now = story.fleet.cx.now();
        story.fleet.wan.cut(now, node, home, LONG);
        is_told = !story.came_to(durable, first);
        let second = says(&mut story);
        story.with(durable, |client, scene| client.answers(scene, usize::MAX));
        story.until("the first is stored", |story| story.came_to(durable, first));
        story.passes(SECOND);
        assert!(!story.is_acknowledged(second), "it has not arrived");
        story.join(node, home);
        story.until("the second is stored", |story| story.came_to(durable, second));
        story.until("its publisher hears that", |story| story.is_acknowledged(second));
    }
}

/// A node with a durable session is cut off, and the buffer of the link to it is full. What finds no room there is refused: everything that
/// is acknowledged comes when the node is back.
#[test]
fn what_a_durable_session_is_to_have_is_refused_where_a_link_has_no_room() {
    for keeps in [Keeps::Nothing, Keeps::Message] {
        let mut tight = plan(Duration::ZERO);
        tight.mesh.link.buffer_max.assured = 200;
        let mut story = Story::of(tight);
        let durable = story.fleet.clients.len();
        story.fleet.clients.push(Client::new(durable, Some(0)));
        story.fleet.connect(durable, 0);
        story.passes(SECOND);
        let filters = vec![("r/#".to_owned(), QoS::AtLeastOnce)];
        story.with(durable, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
        story.until_granted(durable, "r/#");
        story.isolate(0);
        story.passes(2 * SECOND);
        let mut acknowledged = Vec::new();
        for number in 0..12 {
            let publisher = story.connects(PUBLISHER_NODE);
            let number = story.says_as(publisher, &format!("r/{number}"), QoS::AtLeastOnce, keeps);
            story.passes(SECOND);
            acknowledged.extend(story.is_acknowledged(number).then_some(number));
        }
        assert!((1..12).contains(&acknowledged.len()), "some find room: {acknowledged:?}");
        story.release(0);
        story.passes(10 * SECOND);
        for number in acknowledged {
            assert!(story.came_to(durable, number), "{number} was acknowledged, {keeps:?}");
        }
    }
}

/// A core that begins anew does not know a subscription that it once helped to settle: it lets nobody acknowledge before it has heard of it.
#[cfg_attr(test, test)]
pub(super) fn a_core_that_begins_anew_hears_of_every_node_before_it_grants_anything() {
    let mut story = Story::of(plan(Duration::ZERO));
    story.part(2, 0);
    story.part(2, 1);
    story.passes(4 * SECOND);
    story.subscribes();
    story.passes(SECOND);
    assert!(story.is_subscribed(), "who does not know it may not acknowledge");
    story.part(0, 1);
    story.restart(1);
    story.join(2, 1);
    story.passes(2 * SECOND);
    let number = story.publishes();
    story.passes(3 * SECOND);
    assert!(!story.is_acknowledged(number), "neither of the two has heard of the subscription");
    story.join(0, 1);
    story.passes(5 * SECOND);
    assert!(story.is_acknowledged(number));
    // It knows now who wants it, and keeps it for a node that it does not reach.
    story.join(2, 0);
    story.passes(10 * SECOND);
    assert!(story.has_come(number));
}

/// Two nodes grant the last unusual shape that each of them takes, before they hear of the other's. Both filters are routed on both.
#[cfg_attr(test, test)]
pub(super) fn what_another_node_has_granted_is_routed_however_many_shapes_there_are() {
    let (unusual, other) = ("t/+/+/+/+/levels", "x/+/+/+/y");
    let mut plan = plan(Duration::ZERO);
    plan.setups.iter_mut().for_each(|setup| setup.settings.routing.shapes_max = 1);
    let mut story = Story::of(plan);
    let neighbour = story.connects(PUBLISHER_NODE);
    story.part(PUBLISHER_NODE, 0);
    story.part(PUBLISHER_NODE, 1);
    let filters = |text: &str| vec![(text.to_owned(), QoS::AtLeastOnce)];
    story.with(neighbour, |client, scene| client.subscribes_to(scene, filters(other), Level::Local));
    story.with(SUBSCRIBER, |client, scene| client.subscribes_to(scene, filters(unusual), Level::Cluster));
    story.passes(200 * MILLI);
    story.join(PUBLISHER_NODE, 0);
    story.join(PUBLISHER_NODE, 1);
    story.until_granted(SUBSCRIBER, unusual);
    let number = story.says("t/long/topic/of/many/levels", QoS::AtLeastOnce, Keeps::Nothing);
    story.passes(5 * SECOND);
    assert!(story.is_acknowledged(number));
    assert!(story.has_come(number), "its filter was granted, and known by everybody who may acknowledge");
}

/// Seed 504 of `--cluster`: a node hears from others what a peer wants that has begun anew, when its own link is about the life before.
#[cfg_attr(test, test)]
pub(super) fn what_others_say_that_a_new_life_wants_goes_there() {
    let mut plan = plan(Duration::ZERO);
    plan.add(Role::Replicant);
    let mut story = Story::of(plan);
    let publisher = story.connects(3);
    story.part(0, 3);
    story.passes(4 * SECOND);
    story.restart(0);
    story.fleet.connect(SUBSCRIBER, 0);
    story.passes(100 * MILLI);
    story.subscribes();
    story.passes(5 * SECOND);
    assert!(story.is_subscribed(), "it is known to the replicant by way of another core");
    let number = story.says_as(publisher, "t/0", QoS::AtLeastOnce, Keeps::Nothing);
    story.passes(SECOND);
    assert!(story.is_acknowledged(number));
    story.join(0, 3);
    story.passes(5 * SECOND);
    assert!(story.has_come(number));
}

/// While a node has no lease others are told that all know what it does not. It is not let in with what was known a lease ago.
#[test]
fn a_node_whose_lease_has_lapsed_hears_all_before_it_has_another() {
    // Changes of routes take their time, so that a lease could be there before them.
    let mut story = Story::of(plan(Duration::from_millis(1_500)));
    story.part(2, 0);
    story.part(2, 1);
    story.passes(4 * SECOND);
    story.subscribes();
    story.passes(4 * SECOND);
    assert!(story.is_subscribed(), "who does not know it may not acknowledge");
    story.join(2, 0);
    story.join(2, 1);
    let number = story.publishes();
    let mut waited = 0;
    while !story.is_acknowledged(number) {
        story.passes(10 * MILLI);
        waited += 1;
        assert!(waited < 2_000, "it never has a lease again");
    }
    story.passes(SECOND);
    assert!(
        story.has_come(number),
        "it was acknowledged, and the subscriber had a SUBACK before it was sent"
    );
}

/// A strategy that likes one node best offers a message there, hears that nobody is there any more, and does not offer it there again.
#[test]
fn a_group_whose_favourite_has_left_gives_the_message_to_another_node() {
    let mut slow = plan(Duration::from_secs(5));
    for setup in &mut slow.setups {
        setup.settings.shared.strategy = broker::settings::SharedStrategy::HashTopic;
    }
    let mut story = Story::of(slow);
    let other = story.connects(1);
    story.joins_group(SUBSCRIBER);
    story.joins_group(other);
    story.passes(20 * SECOND);
    let first = story.says("g/0", QoS::AtLeastOnce, Keeps::Nothing);
    story.passes(SECOND);
    assert_eq!(story.got_in_group(first), 1);
    let place = |story: &Story, client: usize| story.fleet.clients[client].place().map(|(.., view)| view);
    let chosen = story.fleet.oracle.last_in_group(first, GROUPS[0]);
    let leaver = if place(&story, other) == chosen { other } else { SUBSCRIBER };
    story.with(leaver, |client, scene| client.leaves(scene, GROUPS[0]));
    // Others have not heard of it.
    story.passes(100 * MILLI);
    let second = story.says("g/0", QoS::AtLeastOnce, Keeps::Nothing);
    story.passes(SECOND);
    assert!(story.is_acknowledged(second));
    assert_eq!(story.got_in_group(second), 1, "the other member is there");
}

/// A group whose only member is on a node that is cut off keeps its messages for it, as they are kept for other subscribers.
#[test]
fn what_is_for_a_group_waits_for_a_node_that_is_cut_off_when_nobody_else_is_there() {
    let mut story = Story::of(plan(Duration::ZERO));
    story.joins_group(SUBSCRIBER);
    story.passes(2 * SECOND);
    story.part(2, 0);
    story.passes(2 * SECOND);
    let number = story.says("g/0", QoS::AtLeastOnce, Keeps::Nothing);
    story.passes(SECOND);
    assert!(story.is_acknowledged(number), "the other two cores are enough");
    assert_eq!(story.got_in_group(number), 0);
    story.join(2, 0);
    story.passes(5 * SECOND);
    assert_eq!(story.got_in_group(number), 1);
}

/// The same, and the member that the message waits for leaves meanwhile: another one is there, on a node that was cut off, too.
#[test]
fn what_waited_for_a_member_that_has_left_is_given_to_another() {
    let mut ours = plan(Duration::ZERO);
    ours.config.without_quorum = WithoutQuorum::Serve;
    let mut story = Story::of(ours);
    let other = story.connects(1);
    story.joins_group(SUBSCRIBER);
    story.joins_group(other);
    story.passes(2 * SECOND);
    story.isolate(2);
    story.passes(2 * SECOND);
    let numbers: Vec<usize> = (0..8).map(|_| story.says("g/0", QoS::AtLeastOnce, Keeps::Nothing)).collect();
    story.passes(SECOND);
    assert!(numbers.iter().all(|number| story.is_acknowledged(*number)));
    story.with(other, |client, scene| client.leaves(scene, GROUPS[0]));
    story.passes(SECOND);
    story.release(2);
    for _ in 0..10 {
        story.passes(SECOND);
        // It may have asked for fewer at a time.
        story.with(SUBSCRIBER, |client, scene| client.answers(scene, usize::MAX));
    }
    let given: Vec<u32> = numbers.iter().map(|number| story.got_in_group(*number)).collect();
    assert_eq!(given, [1; 8]);
}

/// What is on its way to a node that begins anew is lost with the link, and that node has had its copies already.
#[test]
fn what_is_retained_for_the_earlier_life_of_a_node_is_told_to_the_next() {
    let mut story = Story::of(plan(Duration::ZERO));
    let before = story.says("r/1", QoS::AtMostOnce, Keeps::Message);
    story.passes(SECOND);
    story.part(2, 1);
    story.restart(1);
    story.passes(2 * SECOND);
    let written = story.says("r/0", QoS::AtMostOnce, Keeps::Message);
    story.says("r/1", QoS::AtMostOnce, Keeps::Deletion);
    story.passes(SECOND);
    assert_eq!(story.retained(1), [before]);
    story.join(2, 1);
    story.passes(5 * SECOND);
    for node in 0..3 {
        assert_eq!(story.retained(node), [written], "n{node}");
    }
}

/// A node that is away for long is dialed more and more rarely. When it proves to be there, in a new life, it has to be dialed once more, with an id
/// of the link that stands for that life: at once, and not after such a pause, in which neither of the two would know what the other wants.
#[test]
fn a_node_that_was_away_for_long_and_began_anew_is_joined_at_once() {
    let mut patient = plan(Duration::ZERO);
    patient.mesh.dial_max = Duration::from_secs(30);
    let mut story = Story::of(patient);
    story.part(1, 0);
    story.part(2, 0);
    story.restart(0);
    story.passes(120 * SECOND);
    assert_eq!(story.link(1, 0), (false, 0), "nobody has heard of its new life");
    story.join(1, 0);
    story.join(2, 0);
    let mut waited = 0;
    while story.link(1, 0).1 == 0 {
        story.passes(10 * MILLI);
        waited += 1;
        assert!(waited < 4_000, "nobody dials it");
    }
    story.passes(SECOND);
    assert_eq!(story.link(1, 0), (true, 1));
}

/// A member has messages that were acknowledged to their publisher, and its connection is lost. Its node gives them to the nodes that have other
/// members, as far as it has heard: where there is none any more, they come back and go to somebody else.
#[test]
fn what_a_member_leaves_behind_finds_another_though_a_node_has_none_any_more() {
    let mut slow = plan(Duration::from_secs(5));
    for setup in &mut slow.setups {
        setup.settings.shared.strategy = broker::settings::SharedStrategy::Local;
    }
    let mut story = Story::of(slow);
    let (near, leaver, other) = (story.connects(2), story.connects(1), story.connects(1));
    for member in [SUBSCRIBER, near, leaver] {
        story.joins_group(member);
    }
    story.passes(20 * SECOND);
    let numbers: Vec<usize> = (0..6).map(|_| story.says("g/0", QoS::AtLeastOnce, Keeps::Nothing)).collect();
    story.passes(SECOND);
    for number in &numbers {
        assert!(
            story.is_acknowledged(*number) && story.got_in_group(*number) == 1,
            "the nearest member has it"
        );
    }
    // What changes after this is told after five seconds.
    let filters = vec![("t/1".to_owned(), QoS::AtLeastOnce)];
    story.with(other, |client, scene| client.subscribes_to(scene, filters, Level::Local));
    story.passes(100 * MILLI);
    story.with(leaver, |client, scene| client.leaves(scene, GROUPS[0]));
    story.passes(100 * MILLI);
    story.fleet.fault(&Fault::LoseClient { client: near });
    story.passes(3 * SECOND);
    for number in numbers {
        assert_eq!(story.got_in_group(number), 2, "{number} is for the subscriber now");
    }
}

/// A core deletes, tells another core and not the replicant, which it does not reach, and begins anew. The other core tells it what it has
/// forgotten; the replicant hears of that from nobody else, for it asks that other core for routes and has had its copies.
#[test]
fn what_a_node_retained_in_an_earlier_life_is_told_to_those_who_missed_it() {
    let mut mixed = plan(Duration::ZERO);
    mixed.nodes[1].role = Role::Replicant;
    let mut story = Story::of(mixed);
    // So that the replicant is attached to the first node.
    story.part(2, 1);
    story.passes(2 * SECOND);
    story.join(2, 1);
    story.passes(2 * SECOND);
    let before = story.says("r/1", QoS::AtMostOnce, Keeps::Message);
    story.passes(SECOND);
    story.part(2, 1);
    story.says("r/1", QoS::AtMostOnce, Keeps::Deletion);
    story.passes(SECOND);
    assert!(story.retained(0).is_empty());
    assert_eq!(story.retained(1), [before]);
    story.restart(2);
    story.join(2, 1);
    story.passes(10 * SECOND);
    for node in 0..3 {
        assert!(story.retained(node).is_empty(), "n{node}");
    }
}

/// A replicant deletes, tells one core only, and begins anew. It hears of routes from the other core, which does not know of that: the one that does
/// tells the replicant what it had done, and the replicant all others.
#[test]
fn what_a_node_retained_in_an_earlier_life_is_told_to_it() {
    let mut mixed = plan(Duration::ZERO);
    mixed.nodes[2].role = Role::Replicant;
    let mut story = Story::of(mixed);
    let writer = story.connects(0);
    let before = story.says_as(writer, "r/1", QoS::AtMostOnce, Keeps::Message);
    story.passes(SECOND);
    story.part(2, 0);
    story.passes(2 * SECOND);
    story.says("r/1", QoS::AtMostOnce, Keeps::Deletion);
    story.passes(SECOND);
    assert_eq!(story.retained(0), [before]);
    assert!(story.retained(1).is_empty());
    story.part(2, 1);
    story.restart(2);
    story.join(2, 0);
    story.passes(5 * SECOND);
    story.join(2, 1);
    story.passes(5 * SECOND);
    for node in 0..3 {
        assert!(story.retained(node).is_empty(), "n{node}");
    }
}

/// As documented: a node that was away brings back what the others have deleted when all of them have begun anew meanwhile. What comes back may be
/// older than what was deleted, though that had been acknowledged.
#[test]
fn what_comes_back_from_a_node_that_was_away_may_be_older_than_what_was_deleted() {
    let mut story = Story::of(plan(Duration::ZERO));
    let old = story.says("r/0", QoS::AtLeastOnce, Keeps::Message);
    story.passes(SECOND);
    story.part(1, 0);
    story.part(1, 2);
    story.passes(2 * SECOND);
    let new = story.says("r/0", QoS::AtLeastOnce, Keeps::Message);
    story.passes(2 * SECOND);
    assert!(story.is_acknowledged(old) && story.is_acknowledged(new));
    story.says("r/0", QoS::AtMostOnce, Keeps::Deletion);
    story.passes(SECOND);
    story.restart(0);
    story.restart(2);
    story.passes(5 * SECOND);
    story.join(1, 0);
    story.join(1, 2);
    story.passes(10 * SECOND);
    let readers: Vec<usize> = (0..3).map(|node| story.reads(node)).collect();
    for reader in &readers {
        let found = &story.fleet.oracle.view(*reader).retained;
        assert_eq!(found.values().collect::<Vec<_>>(), [&old]);
    }
    story.fleet.oracle.check_retained(&mut story.fleet.cx, &readers);
}

/// Links hold little: of what is retained while a node is cut off one message finds a place, and so does one of what it is sent when it begins anew. The
/// others are sent when there is room, and all nodes have the same.
#[test]
fn what_is_retained_and_finds_no_place_in_a_link_is_sent_when_there_is_room() {
    for begins_anew in [false, true] {
        let mut tight = plan(Duration::ZERO);
        tight.mesh.link.buffer_max.assured = 50;
        let mut story = Story::of(tight);
        story.part(2, 1);
        story.part(0, 1);
        story.passes(2 * SECOND);
        let written = ["r/0", "r/1", "r/a/b", "r/a/c"].map(|topic| {
            let number = story.says(topic, QoS::AtLeastOnce, Keeps::Message);
            story.passes(SECOND);
            assert!(story.is_acknowledged(number));
            number
        });
        assert!(story.retained(1).is_empty());
        if begins_anew {
            story.restart(1);
            story.passes(SECOND);
        }
        story.join(2, 1);
        story.join(0, 1);
        story.passes(10 * SECOND);
        for node in 0..3 {
            assert_eq!(story.retained(node), written, "n{node}, which began anew: {begins_anew}");
        }
    }
}

/// A node whose disk is full keeps nothing of what is retained and deleted elsewhere, nor of what its own clients say at QoS 0 and others retain (seed
/// 75153 of `--cluster`): it asks for that when there is room, and has the same as the others.
#[cfg_attr(test, test)]
pub(super) fn what_is_retained_while_a_disk_is_full_is_kept_there_when_there_is_room() {
    let mut story = Story::of_links(plan(Duration::ZERO), |_| Some(cluster::FEATURES));
    let old = story.says("r/0", QoS::AtLeastOnce, Keeps::Message);
    story.passes(SECOND);
    assert_eq!(story.retained(1), [old]);
    story.fleet.fault(&Fault::Full { node: 1, room: 0, time: LONG });
    // Until its log needs more than it has.
    for _ in 0..3_000 {
        story.says("r/1", QoS::AtMostOnce, Keeps::Message);
        story.passes(MILLI);
    }
    story.passes(SECOND);
    let new = story.says("r/a/b", QoS::AtMostOnce, Keeps::Message);
    let last = story.says("r/1", QoS::AtMostOnce, Keeps::Message);
    story.says("r/0", QoS::AtMostOnce, Keeps::Deletion);
    let there = story.connects(1);
    let own = story.says_as(there, "r/a/c", QoS::AtMostOnce, Keeps::Message);
    story.passes(5 * SECOND);
    assert_eq!(story.retained(0), [last, new, own]);
    let lacked = |story: &Story| {
        let process = story.fleet.members[1].process.as_ref().expect("the node runs");
        process.fabric.counters().lacked
    };
    assert!(story.fleet.members[1].machine.disk.counts().full > 0 && lacked(&story) == 0);
    story.fleet.members[1].machine.disk.set_capacity(None);
    story.passes(10 * SECOND);
    assert_eq!(lacked(&story), 1);
    for node in 0..3 {
        assert_eq!(story.retained(node), [last, new, own], "n{node}");
    }
}

/// A node that begins with an empty disk refuses what others copy to it, as a sync has failed when it made a segment of its reserve (seed 2004349 of
/// `--cluster`): it asks for that when it has one, of whoever can be asked. Everybody can where such a thing happens, whatever else nodes offer.
#[test]
fn what_is_retained_while_no_reserve_can_be_made_is_kept_there_when_it_can() {
    let failing = Fault::FailSync { node: 1, after: 0 };
    let plan = Plan { faults: vec![(LONG, failing)], ..plan(Duration::ZERO) };
    let mut story = Story::of_links(plan, |_| Some(0));
    let old = story.says("r/0", QoS::AtLeastOnce, Keeps::Message);
    story.passes(SECOND);
    assert_eq!(story.retained(1), [old]);
    // Which of its operations is the sync of an empty segment depends on what else it writes.
    for after in 0.. {
        assert!(after < 100, "a sync of an empty segment fails at some time");
        story.fleet.kill(1, false);
        story.fleet.members[1].machine = Machine::new(after);
        story.fleet.fault(&Fault::FailSync { node: 1, after });
        story.fleet.start(1);
        story.passes(100 * MILLI);
        let member = &story.fleet.members[1];
        let has_failed = member.process.as_ref().is_none_or(|process| process.node.failed().is_some());
        if member.lacks_room && !has_failed {
            break;
        }
    }
    story.passes(10 * SECOND);
    let process = story.fleet.members[1].process.as_ref().expect("the node runs");
    assert_eq!((process.fabric.counters().lacked, story.fleet.members[1].lacks_room), (1, false));
    for node in 0..3 {
        assert_eq!(story.retained(node), [old], "n{node}");
    }
}

/// A core has begun to tell another one what the clients of a replicant want, in a whole copy, and both it and the replicant's link to it are
/// lost. The core that the replicant moves to has told the same meanwhile, which was refused for the first copy's sake.
#[test]
fn a_copy_of_routes_whose_source_is_lost_keeps_no_other_out() {
    let mut mixed = plan(Duration::ZERO);
    mixed.add(Role::Replicant);
    mixed.config.tombstones_max = 0;
    (mixed.config.batching.bytes_max, mixed.config.batching.in_flight_max) = (40, 200);
    let (near, source, reader, replicant) = (0, 1, PUBLISHER_NODE, 3);
    let mut story = Story::of(mixed);
    let subscriber = story.connects(replicant);
    // So that the replicant is attached to the source.
    story.part(replicant, near);
    story.part(replicant, reader);
    story.passes(2 * SECOND);
    // The reader misses a deletion.
    story.part(reader, near);
    story.part(reader, source);
    story.passes(2 * SECOND);
    let all = (0..60).map(|number| (format!("u/{number}"), QoS::AtLeastOnce));
    let all = all.chain([("t/#".to_owned(), QoS::AtLeastOnce)]).collect();
    story.with(subscriber, |client, scene| client.subscribes_to(scene, all, Level::Core));
    story.passes(SECOND);
    story.with(subscriber, |client, scene| client.leaves(scene, "u/7"));
    story.passes(SECOND);
    let now = story.fleet.cx.now();
    story.join(reader, source);
    story.fleet.wan.slow(now, source, reader, 4_000, LONG);
    let mut waited = 0;
    while story.routes_known(reader) < 10 {
        story.passes(10 * MILLI);
        waited += 1;
        assert!(waited < 500, "no copy begins");
    }
    assert!(story.routes_known(reader) < 40, "it goes on");
    for node in [near, reader, replicant] {
        story.part(source, node);
    }
    story.join(reader, near);
    story.join(replicant, near);
    story.passes(5 * SECOND);
    story.join(replicant, reader);
    story.passes(5 * SECOND);
    let number = story.publishes();
    story.passes(5 * SECOND);
    assert!(story.is_acknowledged(number), "two of three cores are there, and both know all routes");
    assert!(story.came_to(subscriber, number));
}

/// A replicant tells its core what its clients want, in a whole copy, and so does another core, which begins later and knows less: what the replicant says
/// finds no place meanwhile. SUBACK of level `core` waits until it has one.
#[test]
fn a_core_that_hears_of_a_replicant_by_another_core_does_not_know_what_it_has_not_taken_in() {
    let mut mixed = plan(Duration::ZERO);
    mixed.add(Role::Replicant);
    mixed.config.tombstones_max = 0;
    (mixed.config.batching.bytes_max, mixed.config.batching.in_flight_max) = (40, 200);
    (mixed.mesh.link.heartbeat, mixed.mesh.link.silence_max) =
        (Duration::from_secs(1), Duration::from_secs(20));
    mixed.config.suback_wait = Duration::from_secs(100);
    let (away, relay, reader, replicant) = (0, 1, PUBLISHER_NODE, 3);
    let mut story = Story::of(mixed);
    let subscriber = story.connects(replicant);
    // So that the replicant is attached to the relay.
    story.part(replicant, away);
    story.part(replicant, reader);
    story.passes(22 * SECOND);
    // The reader misses a deletion.
    story.part(reader, away);
    story.part(reader, relay);
    story.passes(22 * SECOND);
    let all = (0..300).map(|number| (format!("u/{number}"), QoS::AtLeastOnce)).collect();
    story.with(subscriber, |client, scene| client.subscribes_to(scene, all, Level::Core));
    story.passes(SECOND);
    story.with(subscriber, |client, scene| client.leaves(scene, "u/7"));
    story.passes(SECOND);
    story.part(replicant, relay);
    story.passes(22 * SECOND);
    for source in [replicant, relay] {
        story.join(source, reader);
        let now = story.fleet.cx.now();
        story.fleet.wan.slow(now, source, reader, 500, LONG);
        story.until("a copy begins", |story| story.routes_known(reader) > 0);
    }
    let filters = vec![("t/#".to_owned(), QoS::AtLeastOnce)];
    story.with(subscriber, |client, scene| client.subscribes_to(scene, filters, Level::Core));
    story.until_granted(subscriber, "t/#");
    assert!(story.knows_route(reader, "t/#"));
}

/// The link between a replicant and its core is lost again and again, with what was on it. Both say anew what they hear from each other, and what was sent
/// before that arrives after it: SUBACK of level `core` leaves when it has been taken in, not when it has arrived.
#[test]
fn what_a_core_is_told_while_the_link_comes_back_is_known_to_it_when_the_suback_leaves() {
    // It is dialed, and sends what it has before it hears anything.
    let replicant = (0..3).max_by_key(|node| id(*node)).expect("there are some");
    let (core, other) = ((replicant + 1) % 3, (replicant + 2) % 3);
    let mut mixed = plan(Duration::ZERO);
    (mixed.nodes[replicant].role, mixed.latency) = (Role::Replicant, 50 * MILLI);
    let mut story = Story::of(mixed);
    story.part(replicant, other);
    story.passes(2 * SECOND);
    let subscriber = story.connects(replicant);
    for round in 0..100 {
        for wire in story.fleet.wan.between(core, replicant) {
            story.fleet.wan.lose(&mut story.fleet.cx, wire);
        }
        story.passes(round * 7 * MILLI);
        let filter = format!("u/{round}");
        let filters = vec![(filter.clone(), QoS::AtLeastOnce)];
        story.with(subscriber, |client, scene| client.subscribes_to(scene, filters, Level::Core));
        story.until_granted(subscriber, &filter);
        assert!(story.knows_route(core, &filter), "round {round}");
        story.passes(SECOND);
    }
}

/// Durable sessions get messages of QoS 2 in their order, though one of them waits for a group's member on another node, and the next one for a member here.
#[test]
fn messages_keep_their_order_though_groups_take_them_at_different_times() {
    let mut slow = plan(Duration::ZERO);
    slow.latency = 50 * MILLI;
    let mut story = Story::of(slow);
    let mut readers = Vec::new();
    // One of them is of the group's shard.
    for _ in 0..40 {
        let reader = story.fleet.clients.len();
        story.fleet.clients.push(Client::new(reader, Some(PUBLISHER_NODE)));
        story.fleet.connect(reader, PUBLISHER_NODE);
        story.passes(100 * MILLI);
        let filters = vec![("g/0".to_owned(), QoS::ExactlyOnce)];
        story.with(reader, |client, scene| client.subscribes_to(scene, filters, Level::Local));
        readers.push(reader);
    }
    let near = story.connects(PUBLISHER_NODE);
    story.joins_group(SUBSCRIBER);
    story.joins_group(near);
    story.passes(3 * SECOND);
    // What it sends may be sent again, as its session lasts.
    let writer = readers[0];
    let said: Vec<usize> =
        (0..8).map(|_| story.says_as(writer, "g/0", QoS::ExactlyOnce, Keeps::Nothing)).collect();
    // Whatever comes behind a later one ends the simulation. Not all of them take all at once.
    story.passes(5 * SECOND);
    assert!(said.iter().all(|message| story.is_acknowledged(*message) && story.got_in_group(*message) == 1));
    assert!(readers.into_iter().all(|reader| story.came_to(reader, said[0])));
}

/// A node whose sessions want much begins anew. Others hear of that little by little, and know all the time that its sessions want what they wanted.
#[cfg_attr(test, test)]
pub(super) fn what_sessions_want_holds_while_their_node_tells_it_anew() {
    let mut many = plan(Duration::ZERO);
    (many.config.batching.bytes_max, many.config.batching.in_flight_max) = (40, 200);
    many.latency = 50 * MILLI;
    let mut story = Story::of(many);
    let (number, home) = (story.fleet.clients.len(), 0);
    story.fleet.clients.push(Client::new(number, Some(home)));
    story.fleet.connect(number, home);
    story.passes(SECOND);
    let filters: Vec<_> = (0..60).map(|number| (format!("u/{number}"), QoS::AtLeastOnce)).collect();
    story.with(number, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    story.until("all is known", |story| story.routes_known(PUBLISHER_NODE) == 60);
    story.restart(home);
    for _ in 0..6_000 {
        story.passes(MILLI);
        assert_eq!(story.routes_known(PUBLISHER_NODE), 60, "a message would miss a session that is there");
    }
    assert_eq!(story.link(PUBLISHER_NODE, home), (true, 1));
    // A later life may want less.
    story.fleet.connect(number, home);
    story.passes(SECOND);
    story.with(number, |client, scene| client.leaves(scene, "u/7"));
    story.until("it is known", |story| story.routes_known(PUBLISHER_NODE) == 59);
}

/// A node has died before it said hello over a link that had just been made: nobody said whom that is about.
#[test]
fn what_is_sent_over_a_link_to_a_life_that_said_nothing_is_for_the_next() {
    let mut plan = plan(Duration::ZERO);
    plan.add(Role::Replicant);
    let mut story = Story::of(plan);
    let publisher = story.connects(REPLICANT);
    story.restart(0);
    let mut waited = 0;
    while story.link(REPLICANT, 0) != (true, 1) {
        story.passes(20);
        waited += 1;
        assert!(waited < 100_000, "the link comes back");
    }
    story.fleet.fault(&Fault::Kill { node: 0 });
    story.part(0, REPLICANT);
    story.fleet.start(0);
    story.passes(4 * SECOND);
    story.fleet.connect(SUBSCRIBER, 0);
    story.passes(SECOND);
    story.subscribes();
    story.passes(5 * SECOND);
    assert!(story.is_subscribed(), "it is known to the replicant by way of another core");
    story.assert_waits_for_the_first_node(publisher);
}

/// A core dies in the moment in which one of the others has heard what a client of it wants, and the rest has not. Who has heard lets nobody acknowledge
/// who has not: it tells.
#[cfg_attr(test, test)]
pub(super) fn what_one_core_alone_has_heard_of_one_that_is_gone_it_tells_the_others() {
    for heard in 0..3 {
        let mut plan = plan(Duration::ZERO);
        plan.add(Role::Core);
        let mut story = Story::of(plan);
        let client = story.connects(3);
        let now = story.fleet.cx.now();
        for other in (0..3).filter(|other| *other != heard) {
            story.fleet.wan.cut(now, 3, other, LONG);
        }
        let filters = vec![("s/#".to_owned(), QoS::AtLeastOnce)];
        story.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Local));
        story.passes(100 * MILLI);
        let known: Vec<usize> = (0..3).filter(|node| story.knows_route(*node, "s/#")).collect();
        assert_eq!(known, [heard]);
        story.goes_away(3);
        story.passes(15 * SECOND);
        for node in 0..3 {
            let publisher = story.connects(node);
            let number = story.says_as(publisher, "t/0", QoS::AtLeastOnce, Keeps::Nothing);
            story.passes(SECOND);
            assert!(story.is_acknowledged(number), "n{node} has no lease, and n{heard} has heard of n3");
        }
    }
}

/// A replicant is away, and the core that it was attached to has begun anew: others tell that of it.
#[cfg_attr(test, test)]
pub(super) fn what_a_replicant_wants_that_is_away_is_told_to_the_core_that_it_was_attached_to() {
    let mut plan = plan(Duration::ZERO);
    plan.add(Role::Replicant);
    // It is not told all in the moments in which the first of the others is there alone.
    (plan.config.batching.bytes_max, plan.config.batching.in_flight_max) = (200, 400);
    let mut story = Story::of(plan);
    let client = story.connects(REPLICANT);
    let long = "x".repeat(100);
    let filters = (0..200).map(|number| (format!("u/{long}/{number}"), QoS::AtLeastOnce));
    let filters = filters.chain([("s/#".to_owned(), QoS::AtLeastOnce)]).collect();
    story.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    story.until("all know", |story| (0..3).all(|node| story.knows_route(node, "s/#")));
    let core = story.attached(REPLICANT);
    story.goes_away(REPLICANT);
    story.passes(5 * SECOND);
    story.restart(core);
    story.passes(20 * SECOND);
    assert!(story.knows_route(core, "s/#"));
    let publisher = story.connects(core);
    let number = story.says_as(publisher, "t/0", QoS::AtLeastOnce, Keeps::Nothing);
    story.passes(SECOND);
    assert!(story.is_acknowledged(number));
}

/// A core has begun anew and is linked to a node that takes long to tell what its clients want: as long as that takes it lets nobody acknowledge who does
/// not know it either.
#[cfg_attr(test, test)]
pub(super) fn a_core_that_begins_anew_waits_for_a_node_that_is_there_however_long_it_takes() {
    let mut plan = plan(Duration::ZERO);
    plan.mesh.link.silence_max = Duration::from_secs(3);
    plan.config.batching.bytes_max = 400;
    plan.config.batching.in_flight_max = 800;
    let mut story = Story::of(plan);
    let client = story.connects(0);
    let long = "x".repeat(100);
    let filters = (0..200).map(|number| (format!("u/{long}/{number}"), QoS::AtLeastOnce)).collect();
    story.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Local));
    story.passes(SECOND);
    story.part(2, 0);
    story.part(2, 1);
    story.passes(6 * SECOND);
    story.subscribes();
    story.passes(SECOND);
    assert!(story.is_subscribed(), "who does not know it may not acknowledge");
    story.fleet.fault(&Fault::Kill { node: 1 });
    let now = story.fleet.cx.now();
    story.fleet.wan.slow(now, 0, 1, 700, LONG);
    story.fleet.start(1);
    // The third knows most of it, and would have told it in a moment, had it been heard first.
    story.until("a copy begins", |story| story.routes_known(1) > 0);
    story.join(2, 1);
    story.passes(15 * SECOND);
    assert!(story.link(1, 0).0 && !story.knows_route(1, "t/#"), "it hears of it slowly");
    let number = story.publishes();
    story.passes(SECOND);
    assert!(!story.is_acknowledged(number), "neither of the two has heard of the subscription");
    story.join(2, 0);
    story.passes(5 * SECOND);
    assert!(story.is_acknowledged(number) && story.has_come(number));
}

/// The QoS 0 interest of a durable session stays known to other nodes while its client is away, for a time: a message that is published on
/// another node right after CONNACK comes.
#[test]
fn a_durable_session_that_comes_back_soon_misses_no_message_of_qos_0() {
    for (linger, away, comes) in [(60, 10, true), (60, 90, false), (0, 10, false)] {
        let mut far = plan(Duration::ZERO);
        far.latency = 200 * MILLI;
        far.config.qos0_linger = Duration::from_secs(linger);
        let mut story = Story::of(far);
        let durable = story.fleet.clients.len();
        story.fleet.clients.push(Client::new(durable, Some(0)));
        story.fleet.connect(durable, 0);
        story.passes(SECOND);
        let filters = vec![("t/#".to_owned(), QoS::AtMostOnce)];
        story.with(durable, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
        story.until_granted(durable, "t/#");
        story.with(durable, Client::hangs_up);
        story.passes(away * SECOND);
        story.fleet.connect(durable, 0);
        story.until("the client is connected", |story| story.fleet.clients[durable].place().is_some());
        let number = story.says("t/0", QoS::AtMostOnce, Keeps::Nothing);
        story.passes(5 * SECOND);
        assert_eq!(story.came_to(durable, number), comes, "away for {away} s of {linger}");
    }
}

/// What a durable session has unsubscribed from is no longer known to other nodes, however long interest in QoS 0 outlasts a connection.
#[test]
fn a_filter_that_a_durable_session_unsubscribes_from_does_not_linger() {
    let mut plan = plan(Duration::ZERO);
    plan.config.qos0_linger = Duration::from_secs(60);
    let mut story = Story::of(plan);
    let durable = story.fleet.clients.len();
    story.fleet.clients.push(Client::new(durable, Some(0)));
    story.fleet.connect(durable, 0);
    story.passes(SECOND);
    let filters = vec![("t/#".to_owned(), QoS::AtMostOnce), ("u/1".to_owned(), QoS::AtMostOnce)];
    story.with(durable, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    story.until_granted(durable, "t/#");
    story.with(durable, |client, scene| client.leaves(scene, "t/#"));
    story.passes(5 * SECOND);
    assert!(!story.knows_route(PUBLISHER_NODE, "t/#"), "nobody comes back for it");
    story.with(durable, Client::hangs_up);
    story.passes(5 * SECOND);
    assert!(story.knows_route(PUBLISHER_NODE, "u/1"));
}
