//! Messages for durable sessions on other nodes.

use super::*;

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

/// A node with a durable session is cut off, and the buffer of the link to it is full. Messages without room are
/// refused. All acknowledged ones arrive when the node is back, also if it was declared dead meanwhile.
#[test]
fn messages_for_a_durable_session_are_refused_when_the_link_has_no_room() {
    let actions = [RetainAction::Nothing, RetainAction::Message];
    for (retain_action, is_decided) in actions.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let mut tight = plan(Duration::ZERO);
        if !is_decided {
            tight = tight.undecided();
        }
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
        if is_decided {
            assert!(scenario.cluster.clients[durable].location().is_none(), "its client was disconnected");
            scenario.cluster.connect(durable, 0);
        }
        for _ in 0..10 {
            scenario.run_for(SECOND);
            // Its Receive Maximum may be smaller.
            scenario.with(durable, |client, scene| client.answers(scene, usize::MAX));
        }
        for number in acknowledged {
            assert!(scenario.has_arrived_at(durable, number), "{number} was acknowledged, {retain_action:?}");
        }
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
