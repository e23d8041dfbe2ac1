//! Full queues that refuse messages: the publisher gets Quota exceeded instead of a drop.

use broker::access::INTERNAL_LISTENER;
use broker::internal::{QUEUE_BYTES_MAX, QUEUE_FULL, QUEUE_MESSAGES_MAX};
use mqtt::QoS::AtLeastOnce;
use mqtt::ReasonCode::QuotaExceeded;
use mqtt::Version::{V3_1_1, V5};
use testkit::packets::*;

use crate::net::{Net, Peer, everywhere};

/// Connects a client of the process whose queue has room for one message after the one in flight, and fills it.
fn full(net: &mut Net, name: &str, filter: &str) -> Peer {
    net.node.name_listeners(vec!["tcp".into(), INTERNAL_LISTENER.into()]);
    let peer = net.open(1, V5);
    net.came_in_by(peer, 1);
    let connecting = durable(V5, name)
        .user_property(QUEUE_MESSAGES_MAX, "1")
        .user_property(QUEUE_BYTES_MAX, "1000000")
        .user_property(QUEUE_FULL, "refuse")
        .receive_max(1);
    net.send(peer, connecting);
    net.received(peer);
    net.subscribe(peer, filter, AtLeastOnce);
    let filler = net.connect(0, v5("filler"));
    for id in [1, 2] {
        net.send(filler, message("t", "filler").qos1(id));
        assert_eq!(net.received(filler), [puback(id)]);
    }
    net.lose(filler);
    peer
}

/// Acknowledges the messages that are in flight, and returns their payloads.
fn acknowledge(net: &mut Net, peer: Peer) -> Vec<String> {
    let messages = net.received(peer);
    let acknowledge = |sent: Sent| {
        let Sent::Publish(message) = sent else { panic!("not a message: {sent:?}") };
        net.send(peer, puback(message.packet_id.expect("of QoS 1")));
        message.payload
    };
    messages.into_iter().map(acknowledge).collect()
}

fn acknowledge_all(net: &mut Net, peer: Peer) -> Vec<String> {
    let mut payloads = Vec::new();
    loop {
        let some = acknowledge(net, peer);
        if some.is_empty() {
            return payloads;
        }
        payloads.extend(some);
    }
}

/// [MQTT-3.4.2-1] [MQTT-3.5.2-1]
#[test]
fn a_publisher_is_told_that_the_queue_is_full() {
    everywhere(|net| {
        let action = full(net, "$action/a", "t");
        let publisher = net.connect(2, v5("p"));
        net.send(publisher, message("t", "1").qos1(1));
        assert_eq!(net.received(publisher), [Sent::PubAck(1, QuotaExceeded)]);
        net.send(publisher, message("t", "2").qos2(2));
        assert_eq!(net.received(publisher), [Sent::PubRec(2, QuotaExceeded)]);
        // The refusal has ended the exchange [MQTT-4.3.3-9].
        assert_eq!(acknowledge(net, action), ["filler"]);
        net.send(publisher, message("t", "3").qos2(2));
        assert_eq!(net.received(publisher), [pubrec(2)]);
        net.send(publisher, pubrel(2));
        assert_eq!(net.received(publisher), [pubcomp(2)]);
        assert_eq!(acknowledge_all(net, action), ["filler", "3"]);
        assert_eq!(net.counter(|counters| counters.publish_refused), 2);
        assert_eq!(net.counter(|counters| counters.dropped_queue_full), 0, "the publishers know");
    });
}

/// The Packet Identifiers of a session outlive the connection, and so do the identities of its messages.
#[test]
fn a_durable_publisher_uses_the_packet_identifier_of_a_refused_message_again() {
    everywhere(|net| {
        let action = full(net, "$action/a", "t");
        let publisher = net.connect(2, durable(V5, "p"));
        for round in 0..3 {
            net.send(publisher, message("t", format!("refused {round}")).qos2(7));
            assert_eq!(net.received(publisher), [Sent::PubRec(7, QuotaExceeded)]);
        }
        for round in 0..3 {
            acknowledge(net, action);
            net.send(publisher, message("t", round).qos2(7));
            assert_eq!(net.received(publisher), [pubrec(7)], "{round}");
            net.send(publisher, pubrel(7));
            assert_eq!(net.received(publisher), [pubcomp(7)]);
            net.send(publisher, message("t", "refused").qos2(7));
            assert_eq!(net.received(publisher), [Sent::PubRec(7, QuotaExceeded)]);
        }
        assert_eq!(acknowledge_all(net, action)[..], ["1", "2"]);
    });
}

/// Other sessions may be in other shards, which know nothing of the refusal.
#[test]
fn other_subscribers_may_get_a_refused_message_and_its_publisher_stays_connected() {
    everywhere(|net| {
        full(net, "$action/a", "t");
        let others: Vec<_> = (0..8)
            .map(|number| {
                let other = net.connect(number, durable(V5, &format!("other {number}")));
                net.subscribe(other, "t", AtLeastOnce);
                other
            })
            .collect();
        let plain = net.connect(0, v5("plain"));
        net.subscribe(plain, "t", AtLeastOnce);
        let publisher = net.connect(2, v5("p"));
        net.send(publisher, message("t", "1").qos1(1));
        assert_eq!(net.received(publisher), [Sent::PubAck(1, QuotaExceeded)]);
        assert_eq!(net.payloads(plain), ["1"]);
        let with_it = others.into_iter().filter(|other| net.payloads(*other) == ["1"]).count();
        assert!(with_it > 0, "those of other shards");
    });
}

/// MQTT 3.1.1 cannot refuse a PUBLISH [MQTT3-3.3.5-2].
#[test]
fn the_connection_of_an_earlier_publisher_is_closed_and_it_sends_the_message_again() {
    everywhere(|net| {
        let action = full(net, "$action/a", "t");
        let publisher = net.connect(2, durable(V3_1_1, "p"));
        net.send(publisher, message("t", "1").qos2(1));
        assert_eq!(net.closed(publisher), Some(None));
        acknowledge(net, action);
        let publisher = net.resume(2, durable(V3_1_1, "p"));
        net.send(publisher, message("t", "1").qos2(1).dup());
        assert_eq!(net.received(publisher), [pubrec(1)]);
        net.send(publisher, pubrel(1));
        net.received(publisher);
        assert_eq!(acknowledge_all(net, action), ["filler", "1"]);
    });
}

#[test]
fn another_member_of_a_shared_group_gets_a_refused_message() {
    everywhere(|net| {
        let action = full(net, "$action/a", "$share/g/t");
        let publisher = net.connect(2, v5("p"));
        net.send(publisher, message("t", "1").qos1(1));
        assert_eq!(net.received(publisher), [Sent::PubAck(1, QuotaExceeded)], "it is the only member");
        let other = net.connect(0, v5("other"));
        net.subscribe(other, "$share/g/t", AtLeastOnce);
        for id in 2..=4 {
            net.send(publisher, message("t", id).qos1(id));
            assert_eq!(net.received(publisher), [puback(id)]);
        }
        assert_eq!(net.payloads(other), ["2", "3", "4"]);
        assert_eq!(acknowledge_all(net, action), ["filler", "filler"]);
    });
}

/// A Will has no publisher that could send it again.
#[test]
fn a_will_is_dropped_for_the_full_session_only() {
    everywhere(|net| {
        let action = full(net, "$action/a", "t");
        let watcher = net.connect(0, durable(V5, "watcher"));
        net.subscribe(watcher, "t", AtLeastOnce);
        let dying =
            net.connect(2, durable(V5, "dying").will(Message { qos: AtLeastOnce, ..message("t", "will") }));
        net.lose(dying);
        net.pass(1_000);
        assert_eq!(net.payloads(watcher), ["will"]);
        assert_eq!(acknowledge_all(net, action), ["filler", "filler"]);
    });
}
