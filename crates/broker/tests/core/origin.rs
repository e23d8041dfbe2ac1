//! Messages with an origin: only actions get it.

use std::collections::BTreeSet;

use broker::access::INTERNAL_LISTENER;
use mqtt::QoS::{AtLeastOnce, AtMostOnce};
use mqtt::Version::{V3_1_1, V5};
use testkit::packets::*;

use crate::net::{Net, Peer, everywhere};
use crate::peers::{forwarded_properties, joined, leave};

/// Selects the origins of a filter, as an action does.
fn select(net: &Net, filter: &str) {
    let filters: BTreeSet<Box<str>> = [filter.into()].into();
    net.admin().select_origins(&filters, "n1", 7).expect("the index has room");
}

fn connect_action(net: &mut Net) -> Peer {
    net.node.name_listeners(vec!["tcp".into(), INTERNAL_LISTENER.into()]);
    let peer = net.open(1, V5);
    net.came_in_by(peer, 1);
    net.send(peer, durable(V5, "$action/a"));
    assert_eq!(net.received(peer), [connack(false)]);
    peer
}

/// An origin in a packet of another client would be a property that MQTT does not know, and the client of the test
/// would fail.
#[test]
fn subscribers_get_messages_as_they_were_published() {
    for is_selected_first in [true, false] {
        everywhere(|net| {
            if is_selected_first {
                select(net, "t/#");
            }
            let action = connect_action(net);
            net.subscribe(action, "t/#", AtLeastOnce);
            let new = net.connect(0, v5("new"));
            let old = net.connect(2, durable(V3_1_1, "old"));
            let kept = net.connect(1, durable(V5, "kept"));
            for (peer, filter) in [(new, "t/+"), (old, "t/x"), (kept, "t/#")] {
                net.subscribe(peer, filter, AtLeastOnce);
            }
            let member = net.connect(2, v5("member"));
            net.subscribe(member, "$share/g/t/#", AtLeastOnce);
            select(net, "t/#");
            let publisher = net.connect(0, v5("p"));
            net.send(publisher, message("t/x", "1").qos1(1).retain());
            net.publish(publisher, "t/x", "2");
            for peer in [new, old, kept, member, action] {
                assert_eq!(net.payloads(peer), ["1", "2"], "{peer:?}");
            }
            let late = net.connect(1, v5("late"));
            net.send(late, subscribe(9).to("t/x", AtMostOnce));
            let retained = net.received(late);
            let is_retained =
                |packet: &Sent| matches!(packet, Sent::Publish(message) if message.payload == "1");
            assert!(retained.iter().any(is_retained), "{retained:?}");
            let retained = net.ask(|admin, reply| admin.retained_message("t/x", reply)).flatten();
            assert!(retained.expect("is retained").user_properties.is_empty());
            net.admin().select_origins(&BTreeSet::new(), "n1", 7).expect("nothing is selected");
        });
    }
}

/// A node of an earlier version would send an origin to its clients.
#[test]
fn messages_of_a_cluster_have_origins_while_all_nodes_understand_them() {
    everywhere(|net| {
        select(net, "a/#");
        let action = connect_action(net);
        net.subscribe(action, "a/#", AtLeastOnce);
        let publisher = net.connect(0, v5("the publisher"));
        let others = joined(net, 1);
        for is_understood in [false, true, false] {
            net.node.read_origins(is_understood);
            net.publish(publisher, "a/1", "1");
            assert_eq!(net.payloads(action), ["1"]);
            let seen = String::from_utf8_lossy(&net.client(action).last).into_owned();
            assert_eq!(seen.contains("the publisher"), is_understood, "{seen}");
            let [properties] = &forwarded_properties(net, &others)[..] else { panic!("one message") };
            assert_eq!(!properties.is_empty(), is_understood, "{properties:02x?}");
        }
        leave(net, 1);
        net.admin().select_origins(&BTreeSet::new(), "n1", 7).expect("nothing is selected");
    });
}
