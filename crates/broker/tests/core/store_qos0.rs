//! Messages of QoS 0 that are stored for durable sessions of the process itself.

use std::sync::Arc;

use broker::access::{AllowAll, INTERNAL_LISTENER};
use broker::internal::{QUEUE_BYTES_MAX, QUEUE_MESSAGES_MAX, STORE_QOS0};
use broker::{Condition, settings::Settings};
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::Version::V5;
use mqtt::{QoS, SubscriptionOptions};
use settings::ByteSize;
use testkit::packets::*;

use crate::log::Log;
use crate::net::{Net, Peer, Travel, everywhere, settings};
use crate::peers::{Others, joined, pass_on};

/// A client of the process whose session stores QoS 0.
fn action() -> Connecting {
    durable(V5, "$action/a").user_property(STORE_QOS0, "true").receive_max(1)
}

/// Opens a connection of the process itself and sends CONNECT.
fn connect_internally(net: &mut Net, connecting: Connecting) -> Peer {
    net.node.name_listeners(vec!["tcp".into(), INTERNAL_LISTENER.into()]);
    let peer = net.open(1, V5);
    net.came_in_by(peer, 1);
    net.send(peer, connecting);
    peer
}

fn connected(net: &mut Net, connecting: Connecting) -> Peer {
    let peer = connect_internally(net, connecting);
    assert_eq!(net.received(peer), [connack(false)]);
    peer
}

/// Acknowledges each message that arrives until no more come, and returns them.
fn acknowledge_all(net: &mut Net, peer: Peer) -> Vec<Message> {
    acknowledge_all_after(net, peer, |_| {})
}

fn acknowledge_all_after(net: &mut Net, peer: Peer, settle: impl Fn(&mut Net)) -> Vec<Message> {
    let mut messages = Vec::new();
    loop {
        settle(net);
        let received = net.received(peer);
        if received.is_empty() {
            return messages;
        }
        for packet in received {
            let Sent::Publish(message) = packet else { panic!("not a message: {packet:?}") };
            if let Some(id) = message.packet_id {
                net.send(peer, puback(id));
            }
            messages.push(*message);
        }
    }
}

fn payloads(messages: &[Message]) -> Vec<(QoS, &str)> {
    messages.iter().map(|message| (message.qos, &*message.payload)).collect()
}

#[test]
fn messages_of_qos_0_wait_in_the_session_and_arrive_as_qos_1_in_order() {
    everywhere(|net| {
        let peer = connected(net, action());
        net.subscribe(peer, "t/#", AtLeastOnce);
        let publisher = net.connect(0, v5("p"));
        for payload in ["1", "2", "3"] {
            net.publish(publisher, "t/x", payload);
        }
        assert_eq!(net.client(peer).arrived(), 1, "Receive Maximum is 1");
        let expected = [(AtLeastOnce, "1"), (AtLeastOnce, "2"), (AtLeastOnce, "3")];
        assert_eq!(payloads(&acknowledge_all(net, peer)), expected);
    });
}

#[test]
fn subscriptions_of_qos_0_and_other_clients_get_qos_0() {
    everywhere(|net| {
        let peer = connected(net, action());
        net.subscribe(peer, "low", AtMostOnce);
        net.subscribe(peer, "high", ExactlyOnce);
        let plain = durable(V5, "outsider").user_property(STORE_QOS0, "true");
        let outsider = net.connect(2, plain);
        net.subscribe(outsider, "high", AtLeastOnce);
        let publisher = net.connect(0, v5("p"));
        net.publish(publisher, "low", "0");
        net.publish(publisher, "high", "1");
        let mut messages = acknowledge_all(net, peer);
        messages.sort_by(|a, b| a.payload.cmp(&b.payload));
        assert_eq!(payloads(&messages), [(AtMostOnce, "0"), (AtLeastOnce, "1")]);
        assert_eq!(payloads(&acknowledge_all(net, outsider)), [(AtMostOnce, "1")]);
    });
}

/// [MQTT-3.3.1-13] [MQTT-3.3.2-5] [MQTT-3.3.2-6] [MQTT-3.3.4-3]
#[test]
fn retain_expiry_and_subscription_identifiers_are_kept() {
    everywhere(|net| {
        let peer = connected(net, action());
        let options = SubscriptionOptions {
            qos: AtLeastOnce,
            retain_as_published: true,
            ..SubscriptionOptions::default()
        };
        net.send(peer, subscribe(1).with("t", options).identifier(7));
        net.send(peer, subscribe(2).with("+", options).identifier(8));
        net.client(peer).received();
        let publisher = net.connect(0, v5("p"));
        net.send(publisher, message("t", "first"));
        net.send(publisher, message("t", "short").expiry(1));
        net.send(publisher, message("t", "long").expiry(100).retain());
        net.pass(5_000);
        let messages = acknowledge_all(net, peer);
        assert_eq!(payloads(&messages), [(AtLeastOnce, "first"), (AtLeastOnce, "long")]);
        for message in &messages {
            let mut ids = message.subscription_ids.clone();
            ids.sort_unstable();
            assert_eq!(ids, [7, 8], "one delivery for both subscriptions");
        }
        assert_eq!((messages[1].retain, messages[1].expiry), (true, Some(95)));
        net.send(publisher, message("t", "").retain());
        acknowledge_all(net, peer);
    });
}

#[test]
fn retained_messages_of_qos_0_are_stored_too() {
    everywhere(|net| {
        let publisher = net.connect(0, v5("p"));
        net.send(publisher, message("t/1", "1").retain());
        net.send(publisher, message("t/2", "2").retain());
        let peer = connected(net, action());
        net.send(peer, subscribe(1).to("t/+", AtLeastOnce));
        assert_eq!(net.client(peer).next(), Some(suback(1, &[AtLeastOnce])));
        let mut messages = acknowledge_all(net, peer);
        messages.sort_by(|a, b| a.payload.cmp(&b.payload));
        assert_eq!(payloads(&messages), [(AtLeastOnce, "1"), (AtLeastOnce, "2")]);
        for topic in ["t/1", "t/2"] {
            net.send(publisher, message(topic, "").retain());
        }
        acknowledge_all(net, peer);
    });
}

#[test]
fn the_limits_of_the_session_hold_for_them_too() {
    everywhere(|net| {
        let limited =
            action().user_property(QUEUE_MESSAGES_MAX, "2").user_property(QUEUE_BYTES_MAX, "1000000");
        let peer = connected(net, limited);
        net.subscribe(peer, "t", AtLeastOnce);
        let publisher = net.connect(0, v5("p"));
        for payload in 0..6 {
            net.publish(publisher, "t", payload);
        }
        net.pass(60_000);
        let messages = acknowledge_all(net, peer);
        assert_eq!(
            payloads(&messages),
            [(AtLeastOnce, "0"), (AtLeastOnce, "4"), (AtLeastOnce, "5")],
            "one in flight, and the newest two"
        );
    });
}

fn with_log(settings: &Settings, scenario: impl Fn(Net, Arc<Log>)) {
    for workers in [1, 3] {
        let (net, log) = Net::with_log(workers, settings.clone(), Arc::new(AllowAll));
        scenario(net, log);
    }
}

/// Connects an action and a publisher to a node with a log.
fn with_action(net: &mut Net, log: &Log) -> (Peer, Peer) {
    let peer = connect_internally(net, action());
    net.sync(log);
    net.send(peer, subscribe(1).to("t", AtLeastOnce));
    net.sync(log);
    assert_eq!(net.received(peer), [connack(false), suback(1, &[AtLeastOnce])]);
    let publisher = net.connecting(0, v5("p"));
    net.sync(log);
    assert_eq!(net.received(publisher), [connack(false)]);
    (peer, publisher)
}

#[test]
fn what_is_on_the_disk_survives_a_crash() {
    with_log(&settings(), |mut net, log| {
        let (peer, publisher) = with_action(&mut net, &log);
        net.publish(publisher, "t", "1");
        net.publish(publisher, "t", "2");
        assert_eq!(net.received(peer), [], "a message leaves when it is on the disk");
        net.sync(&log);
        assert_eq!(net.client(peer).arrived(), 1);
        net.publish(publisher, "t", "lost");
        let (mut net, log) = net.after_crash(&log);
        let peer = connect_internally(&mut net, action());
        net.sync(&log);
        assert_eq!(net.client(peer).next(), Some(connack(true)));
        let messages = acknowledge_all_after(&mut net, peer, |net| net.sync(&log));
        assert_eq!(payloads(&messages), [(AtLeastOnce, "1"), (AtLeastOnce, "2")]);
    });
}

#[test]
fn a_disk_that_is_too_slow_or_full_drops_and_counts_them() {
    let mut settings = settings();
    // Each of 16 shards has 1 KiB.
    settings.limits.memory_unsynced_max = ByteSize::kib(16);
    with_log(&settings, |mut net, log| {
        let (peer, publisher) = with_action(&mut net, &log);
        let large = "x".repeat(5_000);
        net.publish(publisher, "t", &large);
        net.publish(publisher, "t", "too much");
        net.sync(&log);
        net.publish(publisher, "t", "later");
        log.becomes(Condition::Full);
        net.publish(publisher, "t", "full");
        assert_eq!(net.counter(|counters| counters.dropped_not_stored), 1);
        log.becomes(Condition::Good);
        net.publish(publisher, "t", "last");
        let messages = acknowledge_all_after(&mut net, peer, |net| net.sync(&log));
        let expected = [(AtLeastOnce, &*large), (AtLeastOnce, "later"), (AtLeastOnce, "last")];
        assert_eq!(payloads(&messages), expected);
    });
}

/// The publisher's node sends the message to the node of the connection, which stores it.
#[test]
fn messages_of_other_nodes_are_stored_where_the_connection_is() {
    everywhere(|net| {
        let peer = connected(net, action());
        net.subscribe(peer, "a/#", AtLeastOnce);
        net.node.join_cluster(Arc::<Others>::default(), broker::Instant::now()).expect("joined");
        let mut other = Net::of(1, Travel::InOrder, settings(), Arc::new(AllowAll));
        let others = joined(&other, 1);
        let publisher = other.connect(0, v5("p"));
        for payload in ["1", "2"] {
            other.publish(publisher, "a/1", payload);
            pass_on(&mut other, &others, net);
        }
        let expected = [(AtLeastOnce, "1"), (AtLeastOnce, "2")];
        assert_eq!(payloads(&acknowledge_all(net, peer)), expected);
    });
}
