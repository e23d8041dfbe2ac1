//! Unusual arrangements of wildcards: each owner has a share of them, and granted filters are routed.

use broker::peers::{Members, NodeIndex, Wants};
use broker::settings::Settings;
use mqtt::QoS::AtLeastOnce;
use mqtt::Version::V5;
use mqtt::{ReasonCode, TopicFilter};

use crate::net::*;
use crate::peers::joined;
use testkit::packets::*;

const QUOTA: ReasonCode = ReasonCode::QuotaExceeded;
const GRANTED: ReasonCode = ReasonCode::GrantedQoS1;

fn small(settings: &mut Settings) {
    settings.routing.shapes_max = 5;
    settings.routing.shapes_client_max = 2;
    settings.routing.shapes_user_max = 3;
}

/// Subscribes to as many filters, each with another arrangement of wildcards.
fn asks(net: &mut Net, client: Peer, topic: &str, shapes: std::ops::Range<usize>) -> Vec<ReasonCode> {
    let filters = shapes.map(|n| format!("{topic}/{}+/+/+/x", "y/".repeat(n)));
    let packet = filters.fold(subscribe(1), |packet, filter| packet.to(&filter, AtLeastOnce));
    net.send(client, packet);
    let received = net.received(client);
    let [Sent::SubAck(1, reasons)] = received.as_slice() else { panic!("{received:?}") };
    reasons.clone()
}

#[test]
fn a_client_with_its_maximum_of_unusual_wildcards_leaves_others_their_share() {
    for connecting in [v5("greedy"), durable(V5, "greedy")] {
        everywhere_with(small, |net| {
            let greedy = net.connect(0, connecting.clone().username("u1"));
            assert_eq!(asks(net, greedy, "home", 0..4), [GRANTED, GRANTED, QUOTA, QUOTA]);
            assert_eq!(asks(net, greedy, "other", 0..1), [GRANTED], "an existing arrangement does not count");
            let again = net.connect(1, v5("of the same user").username("u1"));
            assert_eq!(asks(net, again, "home", 2..4), [GRANTED, QUOTA]);
            let other = net.connect(2, v5("of another").username("u2"));
            assert_eq!(asks(net, other, "plant", 3..5), [GRANTED, GRANTED]);
            net.publish(other, "plant/y/y/y/1/2/3/x", "seen");
            assert_eq!(net.payloads(other), ["seen"]);
            let late = net.connect(0, v5("of a third").username("u3"));
            assert_eq!(asks(net, late, "late", 6..7), [QUOTA], "the node has no more");
            assert_eq!(asks(net, late, "$share/g/late", 6..7), [QUOTA]);
            let refused = net.counter(|counters| counters.subscribe_shapes_refused);
            assert_eq!(refused, 5);
            net.lose(other);
            assert_eq!(asks(net, late, "$share/g/late", 6..7), [GRANTED]);
        });
    }
}

/// A client that disconnects while its SUBSCRIBE is in progress has used its share.
#[test]
fn subscriptions_on_their_way_to_the_store_count() {
    everywhere_with(small, |net| {
        let client = net.connect(0, durable(V5, "c").username("u"));
        net.store.hold(&[crate::store::Kind::Subscribe]);
        let filter = |n: usize| format!("a/{}+/+/+/x", "y/".repeat(n));
        net.send(client, subscribe(1).to(&filter(0), AtLeastOnce).to(&filter(1), AtLeastOnce));
        net.lose(client);
        let next = net.connect(0, v5("d").username("u"));
        assert_eq!(asks(net, next, "a", 2..4), [GRANTED, QUOTA]);
        net.store.hold(&[]);
        net.release_held();
        assert_eq!(asks(net, next, "a", 3..4), [QUOTA]);
    });
}

#[test]
fn restored_sessions_are_charged_for_their_unusual_wildcards_again() {
    let mut settings = settings();
    small(&mut settings);
    let (mut net, log) = Net::with_log(2, settings, std::sync::Arc::new(broker::access::AllowAll));
    let client = net.connecting(0, durable(V5, "c").username("u"));
    net.sync(&log);
    assert_eq!(net.received(client), [connack(false)]);
    let filter = |n: usize| format!("a/{}+/+/+/x", "y/".repeat(n));
    net.send(client, subscribe(1).to(&filter(0), AtLeastOnce).to(&filter(1), AtLeastOnce));
    net.sync(&log);
    assert_eq!(net.received(client), [Sent::SubAck(1, vec![GRANTED, GRANTED])]);
    let (mut net, log) = net.after_crash(&log);
    net.sync(&log);
    let other = net.connect(0, v5("d").username("u"));
    assert_eq!(asks(&mut net, other, "a", 2..4), [GRANTED, QUOTA]);
    net.sync(&log);
}

/// Filters that another node has granted are routed here, whatever this node's clients have used.
#[test]
fn filters_and_groups_of_other_nodes_are_routed_when_the_node_has_its_maximum() {
    everywhere_with(small, |net| {
        for (number, user) in ["u1", "u2", "u3"].into_iter().enumerate() {
            let client = net.connect(number, v5(user).username(user));
            asks(net, client, "home", number * 2..number * 2 + 2);
        }
        let others = joined(net, 0);
        let (filter, group) = ("plant/+/+/+/+/+/+/+/+/state", "$share/g/line/+/+/+/+/+/+/+/+/+/state");
        net.node
            .routes
            .set_peer(TopicFilter::parse(filter).expect("a filter"), NodeIndex(0), Wants::ALL)
            .expect("room");
        net.node.members_of_peer(group, NodeIndex(0), Members { count: 1, are_connected: true });
        net.run();
        let publisher = net.connect(0, v5("p"));
        for (id, topic) in [(1, "plant/1/2/3/4/5/6/7/8/state"), (2, "line/1/2/3/4/5/6/7/8/9/state")] {
            net.send(publisher, message(topic, "x").qos1(id));
            assert_eq!(net.received(publisher), [], "{topic}: the other node is asked first");
            crate::peers::answer(net, &others, ReasonCode::Success);
            assert_eq!(net.received(publisher), [Sent::PubAck(id, ReasonCode::Success)]);
        }
        assert_eq!(net.node.routes.unrouted(), 0);
        net.node
            .routes
            .set_peer(TopicFilter::parse(filter).expect("a filter"), NodeIndex(0), Wants::NOTHING)
            .expect("room");
        net.node.members_of_peer(group, NodeIndex(0), Members::NONE);
        net.run();
    });
}

#[test]
fn a_filter_that_cannot_be_routed_is_remembered_until_it_is_no_longer_wanted() {
    everywhere_with(
        |_| (),
        |net| {
            let beyond = "/".repeat(routing::LEVELS_MAX);
            let filter = TopicFilter::parse(&beyond).expect("a filter");
            let routes = &net.node.routes;
            assert!(routes.set_peer(filter, NodeIndex(0), Wants::ALL).is_err());
            assert!(routes.set_peer(filter, NodeIndex(1), Wants::ALL).is_err());
            assert_eq!((routes.unrouted(), routes.any_unrouted().as_deref()), (2, Some(&*beyond)));
            routes.set_peer(filter, NodeIndex(0), Wants::NOTHING).expect("nothing to route");
            routes.set_peer(filter, NodeIndex(1), Wants::NOTHING).expect("nothing to route");
            assert_eq!(routes.unrouted(), 0);
        },
    );
}
