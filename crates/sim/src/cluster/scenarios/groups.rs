//! Groups of shared subscriptions with members on several nodes.

use super::*;

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
    for _ in 0..10 {
        scenario.run_for(300 * MILLI);
        // Its Receive Maximum may be smaller.
        scenario.with(SUBSCRIBER, |client, scene| client.answers(scene, usize::MAX));
    }
    for number in numbers {
        assert_eq!(scenario.got_in_group(number), 2, "{number} goes to the subscriber now");
    }
}
