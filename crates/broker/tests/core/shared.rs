//! Shared subscriptions: one member of a group gets each message, and unfinished messages of a member go to another.

use broker::settings::SharedStrategy;
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::ReasonCode;
use mqtt::Version::V5;
use mqtt::{QoS, SubscriptionOptions};

use crate::net::{Net, Peer, everywhere, everywhere_with};
use crate::store::Kind;
use testkit::packets::*;

const GROUP: &str = "$share/g/t/#";

fn member(net: &mut Net, index: usize, connecting: Connecting, qos: QoS) -> Peer {
    let member = net.connect(index, connecting);
    net.subscribe(member, GROUP, qos);
    member
}

fn publish_qos1(net: &mut Net, publisher: Peer, ids: std::ops::RangeInclusive<u16>) {
    for id in ids {
        net.send(publisher, message("t/x", id).qos1(id));
        assert_eq!(net.received(publisher), [puback(id)]);
    }
}

fn sorted(mut payloads: Vec<String>) -> Vec<String> {
    payloads.sort_by_key(|payload| payload.parse::<u32>().unwrap_or(0));
    payloads
}

/// [MQTT-4.8.2-3] (4.8.2)
#[test]
fn each_message_goes_to_one_member_at_the_lower_qos() {
    for qos in [AtMostOnce, AtLeastOnce, ExactlyOnce] {
        everywhere(|net| {
            let members: Vec<_> = (0..3).map(|n| member(net, n, v5(&format!("m{n}")), qos)).collect();
            let apart = net.connect(0, v5("apart"));
            net.subscribe(apart, "t/#", AtMostOnce);
            let publisher = net.connect(1, v5("p"));
            for id in 1..=6 {
                net.send(publisher, message("t/x", id).qos2(id));
                net.send(publisher, pubrel(id));
            }
            let mut all = Vec::new();
            for member in members {
                let received = net.received(member);
                assert_eq!(received.len(), 2, "each in turn");
                for packet in received {
                    let Sent::Publish(message) = packet else { panic!("{packet:?}") };
                    assert_eq!(message.qos, qos);
                    all.push(message.payload);
                }
            }
            assert_eq!(sorted(all), ["1", "2", "3", "4", "5", "6"]);
            assert_eq!(net.payloads(apart).len(), 6, "subscriptions outside the group get their own copy");
        });
    }
}

/// [MQTT-3.8.3-4]
#[test]
fn no_local_is_a_protocol_error() {
    everywhere(|net| {
        let client = net.connect(0, v5("c"));
        let options = SubscriptionOptions { no_local: true, ..SubscriptionOptions::default() };
        net.send(client, subscribe(1).to("t", AtMostOnce).with(GROUP, options));
        assert_eq!(net.closed(client), Some(Some(ReasonCode::ProtocolError)));
    });
}

/// [MQTT-4.8.2-4] [MQTT-4.8.2-5]: QoS 1 goes to another member; QoS 2 that was sent goes to no other.
#[test]
fn unacknowledged_messages_of_a_leaving_member_go_to_another_except_qos_2_in_flight() {
    everywhere(|net| {
        let leaving = member(net, 0, v5("leaving").receive_max(3), ExactlyOnce);
        let publisher = net.connect(1, v5("p"));
        net.send(publisher, message("t/x", "acknowledged").qos1(1));
        assert_eq!(net.payloads(leaving), ["acknowledged"]);
        net.send(leaving, puback(1));
        net.send(publisher, message("t/x", "one").qos1(2));
        net.send(publisher, message("t/x", "two").qos2(3));
        net.send(publisher, message("t/x", "received").qos2(4));
        net.send(publisher, message("t/x", "waiting").qos2(5));
        let acknowledged = [puback(1), puback(2), pubrec(3), pubrec(4), pubrec(5)];
        assert_eq!(net.received(publisher), acknowledged);
        assert_eq!(net.payloads(leaving), ["one", "two", "received"]);
        net.send(leaving, pubrec(4));
        let staying = member(net, 2, v5("staying"), ExactlyOnce);
        net.lose(leaving);
        assert_eq!(net.payloads(staying), ["one", "waiting"]);
    });
}

/// [MQTT-4.8.2-4]: a message that was sent, that waits in the queue, or that waits for a slot in it.
#[test]
fn messages_that_wait_for_a_slot_of_a_leaving_member_go_to_another() {
    everywhere_with(
        |settings| settings.queue.messages_max = 2,
        |net| {
            let leaving = member(net, 0, v5("leaving").receive_max(1), AtLeastOnce);
            let publisher = net.connect(1, v5("p"));
            for id in 1..=6 {
                net.send(publisher, message("t/x", id).qos1(id));
            }
            assert_eq!(net.received(publisher), [puback(1), puback(2), puback(3)], "the others have no slot");
            assert_eq!(net.payloads(leaving), ["1"]);
            let staying = member(net, 2, v5("staying"), AtLeastOnce);
            net.lose(leaving);
            assert_eq!(net.payloads(staying), ["1", "2", "3", "4", "5", "6"]);
            assert_eq!(net.received(publisher), [puback(4), puback(5), puback(6)]);
        },
    );
}

/// [MQTT-4.8.2-6]: a refusal is final.
#[test]
fn a_message_that_a_member_refuses_goes_to_no_other() {
    for connecting in [v5("refusing"), durable(V5, "refusing")] {
        everywhere(|net| {
            let refusing = member(net, 0, connecting.clone(), ExactlyOnce);
            let publisher = net.connect(1, v5("p"));
            net.send(publisher, message("t/x", "1").qos1(1));
            net.send(publisher, message("t/x", "2").qos2(2));
            assert_eq!(net.payloads(refusing), ["1", "2"]);
            let other = member(net, 2, v5("other"), ExactlyOnce);
            net.send(refusing, Sent::PubAck(1, ReasonCode::ImplementationSpecificError));
            net.send(refusing, Sent::PubRec(2, ReasonCode::ImplementationSpecificError));
            net.send(refusing, goodbye());
            assert_eq!(net.payloads(other), [""; 0]);
        });
    }
}

#[test]
fn an_absent_durable_member_gets_messages_only_when_no_member_is_connected() {
    everywhere(|net| {
        let absent = member(net, 0, durable(V5, "absent"), AtLeastOnce);
        let present = member(net, 1, v5("present"), AtLeastOnce);
        net.lose(absent);
        let publisher = net.connect(2, v5("p"));
        publish_qos1(net, publisher, 1..=4);
        assert_eq!(net.payloads(present), ["1", "2", "3", "4"]);
        for id in 1..=4 {
            net.send(present, puback(id));
        }
        net.send(present, goodbye());
        publish_qos1(net, publisher, 5..=6);
        net.publish(publisher, "t/x", "QoS 0 does not wait");
        let absent = net.resume(2, durable(V5, "absent"));
        assert_eq!(net.payloads(absent), ["5", "6"]);
        publish_qos1(net, publisher, 7..=7);
        assert_eq!(net.payloads(absent), ["7"], "it is a member again");
    });
}

/// The session of a durable member ends, with its messages in flight and those that waited.
#[test]
fn messages_of_an_absent_member_go_to_another_when_its_session_ends() {
    everywhere(|net| {
        let absent = member(net, 0, durable(V5, "absent").expiry(10).receive_max(1), ExactlyOnce);
        let publisher = net.connect(2, v5("p"));
        publish_qos1(net, publisher, 1..=3);
        assert_eq!(net.payloads(absent), ["1"]);
        net.lose(absent);
        let other = member(net, 1, v5("other"), AtLeastOnce);
        net.pass(9_000);
        assert_eq!(net.payloads(other), [""; 0]);
        net.pass(2_000);
        assert_eq!(net.payloads(other), ["1", "2", "3"]);
    });
}

/// Clean Start ends a session too.
#[test]
fn messages_of_a_member_go_to_another_when_clean_start_ends_its_session() {
    everywhere(|net| {
        let absent = member(net, 0, durable(V5, "absent"), AtLeastOnce);
        net.lose(absent);
        let publisher = net.connect(2, v5("p"));
        publish_qos1(net, publisher, 1..=2);
        let other = member(net, 1, v5("other"), AtLeastOnce);
        let fresh = net.connect(1, v5("absent"));
        assert_eq!(net.payloads(other), ["1", "2"]);
        publish_qos1(net, publisher, 3..=3);
        assert_eq!(net.payloads(other), ["3"]);
        assert_eq!(net.received(fresh), []);
    });
}

/// A message on its way to a member that disconnects meanwhile is returned and finds another.
#[test]
fn a_message_for_a_member_that_has_gone_is_returned_and_goes_to_another() {
    for connecting in [v5("going"), durable(V5, "going")] {
        everywhere(|net| {
            let going = member(net, 0, connecting.clone(), AtLeastOnce);
            let publisher = net.connect(1, v5("p"));
            // The publisher's worker has sent it when the member disconnects.
            net.send_without_running(publisher, message("t/x", "QoS 0"));
            net.send_without_running(publisher, message("t/x", "QoS 1").qos1(1));
            net.step(None);
            net.lose_without_running(going);
            net.run();
            let reached = net.received(going).len() - 1;
            assert_eq!(net.received(publisher), [puback(1)]);
            let staying = member(net, 2, v5("staying"), AtLeastOnce);
            net.send(publisher, message("t/x", "later").qos1(2));
            let payloads = net.payloads(staying);
            assert_eq!(payloads.last().map(String::as_str), Some("later"));
            assert!(reached + payloads.len() <= 3);
        });
    }
}

/// A group without members is no receiver.
#[test]
fn a_group_without_members_gets_no_messages() {
    everywhere(|net| {
        let client = member(net, 0, v5("c"), AtLeastOnce);
        net.send(client, unsubscribe(2, &[GROUP]));
        assert_eq!(net.received(client), [unsuback(V5, 2, &[ReasonCode::Success])]);
        net.send(client, message("t/x", "x").qos1(1));
        assert_eq!(net.received(client), [Sent::PubAck(1, ReasonCode::NoMatchingSubscribers)]);
    });
}

/// Subscription Identifiers, and RETAIN as published, apply to members of either kind.
#[test]
fn members_get_the_identifier_and_retain_flag_of_their_subscription() {
    for connecting in [v5("c"), durable(V5, "c")] {
        for qos in [AtMostOnce, AtLeastOnce] {
            everywhere(|net| {
                let client = net.connect(0, connecting.clone());
                let options =
                    SubscriptionOptions { qos, retain_as_published: true, ..SubscriptionOptions::default() };
                net.send(client, subscribe(1).with(GROUP, options).identifier(77));
                net.received(client);
                let publisher = net.connect(1, v5("p"));
                net.send(publisher, message("t/x", "x").qos1(1).retain());
                let mut expected = message("t/x", "x").qos(qos).retain().ids(&[77]);
                expected.packet_id = (qos > AtMostOnce).then_some(1);
                assert_eq!(net.received(client), [expected.into()]);
                net.send(publisher, message("t/x", "").retain());
            });
        }
    }
}

/// The store's notices to a group arrive late; no message is delivered twice or lost for that.
#[test]
fn groups_that_learn_late_of_members_lose_no_messages() {
    for held in [Kind::Join, Kind::Leave, Kind::Bounce, Kind::Accepted, Kind::Enqueue] {
        everywhere(|net| {
            let first = member(net, 0, durable(V5, "first"), AtLeastOnce);
            let second = member(net, 1, v5("second"), AtLeastOnce);
            let publisher = net.connect(2, v5("p"));
            net.store.hold(&[held]);
            for id in 1..=6 {
                net.send(publisher, message("t/x", id).qos1(id));
            }
            let mut all = net.payloads(second);
            net.lose(second);
            net.release_held();
            assert_eq!(net.received(publisher), (1..=6).map(puback).collect::<Vec<_>>());
            net.lose(first);
            let first = net.resume(2, durable(V5, "first"));
            all.extend(net.payloads(first));
            all = sorted(all);
            all.dedup();
            assert_eq!(all, ["1", "2", "3", "4", "5", "6"]);
        });
    }
}

#[test]
fn every_strategy_reaches_a_member() {
    use SharedStrategy::{HashClientId, HashTopic, Local, Random, RoundRobin, Sticky};
    for strategy in [RoundRobin, Random, Sticky, HashClientId, HashTopic, Local] {
        everywhere_with(
            |settings| settings.shared.strategy = strategy,
            |net| {
                let members = [
                    member(net, 0, v5("a"), AtLeastOnce),
                    member(net, 1, durable(V5, "b"), AtLeastOnce),
                    member(net, 2, v5("c"), AtMostOnce),
                ];
                let publisher = net.connect(1, v5("p"));
                publish_qos1(net, publisher, 1..=9);
                let mut all = Vec::new();
                for member in members {
                    all.extend(net.payloads(member));
                }
                assert_eq!(sorted(all), ["1", "2", "3", "4", "5", "6", "7", "8", "9"]);
            },
        );
    }
}

/// The messages of a member of a slow group go to another whose queue is full: they wait there and are not dropped.
#[test]
fn an_orphan_waits_for_a_slot_in_the_queue_of_another_member() {
    everywhere_with(
        |settings| settings.queue.messages_max = 2,
        |net| {
            let leaving = member(net, 0, v5("leaving").receive_max(3), AtLeastOnce);
            let publisher = net.connect(1, v5("p"));
            publish_qos1(net, publisher, 1..=5);
            assert_eq!(net.payloads(leaving), ["1", "2", "3"]);
            let staying = member(net, 2, v5("staying").receive_max(1), AtLeastOnce);
            net.lose(leaving);
            for id in 1..=5 {
                assert_eq!(net.payloads(staying), [id.to_string()]);
                net.send(staying, puback(id));
            }
        },
    );
}
