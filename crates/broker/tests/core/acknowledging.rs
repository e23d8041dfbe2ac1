//! Acknowledgements: nothing is acknowledged before the store has it, or after a failure, and PUBLISH packets are
//! acknowledged in their order.

use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::Version::{V3_1_1, V5};
use mqtt::{QoS, ReasonCode, Version};

use crate::net::{Net, Peer, everywhere};
use crate::store::Kind;
use testkit::packets::*;

/// Connects and disconnects a durable subscriber of `#`, so that only the store receives its messages.
fn absent_subscriber(net: &mut Net, qos: QoS) {
    let subscriber = net.connect(1, durable(V5, "absent"));
    net.subscribe(subscriber, "#", qos);
    net.lose(subscriber);
}

/// Messages that the absent subscriber gets when it reconnects.
fn found(net: &mut Net) -> Vec<String> {
    let subscriber = net.resume(2, durable(V5, "absent"));
    net.payloads(subscriber)
}

/// [MQTT-3.2.0-1]: the store decides whether there is a session before CONNACK says so.
#[test]
fn connack_is_sent_when_the_claim_is_granted() {
    for held in [Kind::Claim, Kind::Claimed] {
        for connecting in [v3("c"), v5("c"), durable(V3_1_1, "c"), durable(V5, "c")] {
            everywhere(|net| {
                net.store.hold(&[held]);
                let client = net.connecting(0, connecting.clone());
                // Packets that follow CONNECT in the same segment wait too.
                net.send(client, Sent::PingReq);
                assert_eq!(net.received(client), []);
                net.release_held();
                assert_eq!(net.received(client), [connack(false), Sent::PingResp]);
            });
        }
    }
}

#[test]
fn a_refused_claim_is_a_connack_with_its_reason_and_a_closed_connection() {
    everywhere(|net| {
        net.store.fail(Kind::Claim, ReasonCode::ServerUnavailable);
        for connecting in [v3("a"), v5("b"), durable(V5, "c").will(message("w", "never"))] {
            let client = net.connecting(0, connecting);
            assert_eq!(net.received(client), [refused(ReasonCode::ServerUnavailable), Sent::Closed]);
        }
        net.store.heal();
        let client = net.connect(0, v5("b"));
        net.subscribe(client, "w", AtMostOnce);
        assert_eq!(net.received(client), [], "a client that was not accepted has no Will");
    });
}

/// [MQTT-3.8.4-1], for a durable session.
#[test]
fn suback_is_sent_when_the_store_has_the_subscriptions() {
    for held in [Kind::Subscribe, Kind::Subscribed] {
        for version in [V3_1_1, V5] {
            everywhere(|net| {
                let client = net.connect(0, durable(version, "c"));
                net.store.hold(&[held]);
                net.send(
                    client,
                    subscribe(7).to("a/+", ExactlyOnce).to("b", AtMostOnce).to("b/+/#", AtLeastOnce),
                );
                net.send(client, Sent::PingReq);
                assert_eq!(net.received(client), [Sent::PingResp]);
                net.release_held();
                assert_eq!(net.received(client), [suback(7, &[ExactlyOnce, AtMostOnce, AtLeastOnce])]);
            });
        }
    }
}

/// A shared group belongs to the shard that its name hashes to, for sessions of either kind.
#[test]
fn suback_is_sent_when_the_group_has_its_member() {
    for held in [Kind::Join, Kind::Joined] {
        for connecting in [v5("c"), durable(V5, "c"), v3("c")] {
            everywhere(|net| {
                let client = net.connect(0, connecting.clone());
                net.store.hold(&[held]);
                net.send(client, subscribe(7).to("$share/g/a", AtLeastOnce).to("a", AtMostOnce));
                assert_eq!(net.received(client), []);
                net.release_held();
                assert_eq!(net.received(client), [suback(7, &[AtLeastOnce, AtMostOnce])]);
            });
        }
    }
}

#[test]
fn unsuback_is_sent_when_the_store_has_removed_the_subscription() {
    for held in [Kind::Unsubscribe, Kind::Unsubscribed, Kind::Leave, Kind::Left] {
        for version in [V3_1_1, V5] {
            everywhere(|net| {
                let client = net.connect(0, durable(version, "c"));
                net.send(client, subscribe(7).to("$share/g/a", AtLeastOnce).to("a", ExactlyOnce));
                net.received(client);
                net.store.hold(&[held]);
                net.send(client, unsubscribe(8, &["$share/g/a", "a", "b"]));
                assert_eq!(net.received(client), []);
                net.release_held();
                let reasons = [ReasonCode::Success, ReasonCode::Success, ReasonCode::NoSubscriptionExisted];
                assert_eq!(net.received(client), [unsuback(version, 8, &reasons)]);
                net.publish(client, "a", "without a receiver");
                assert_eq!(net.received(client), []);
            });
        }
    }
}

/// 0x80 is the only refusal in 3.1.1 [MQTT3-3.9.3-2].
#[test]
fn a_subscription_that_the_store_does_not_keep_is_refused_and_delivers_nothing() {
    for version in [V3_1_1, V5] {
        everywhere(|net| {
            let client = net.connect(0, durable(version, "c"));
            net.store.fail(Kind::Subscribe, ReasonCode::QuotaExceeded);
            net.send(client, subscribe(7).to("a", AtLeastOnce).to("$share/g/a", AtLeastOnce));
            let refused =
                if version == V5 { ReasonCode::QuotaExceeded } else { ReasonCode::UnspecifiedError };
            assert_eq!(net.received(client), [Sent::SubAck(7, vec![refused, refused])]);
            net.store.heal();
            net.publish(client, "a", "0");
            net.send(client, message("a", "1").qos1(1));
            let reason = if version == V5 { ReasonCode::NoMatchingSubscribers } else { ReasonCode::Success };
            assert_eq!(net.received(client), [Sent::PubAck(1, reason)]);
        });
    }
}

#[test]
fn an_unsubscribe_that_the_store_refuses_is_answered_with_an_error_and_changes_nothing() {
    everywhere(|net| {
        let client = net.connect(0, durable(V5, "c"));
        net.subscribe(client, "a", AtMostOnce);
        net.store.fail(Kind::Unsubscribe, ReasonCode::UnspecifiedError);
        net.send(client, unsubscribe(7, &["a"]));
        assert_eq!(net.received(client), [Sent::UnsubAck(7, vec![ReasonCode::UnspecifiedError])]);
        net.store.heal();
        net.publish(client, "a", "still");
        assert_eq!(net.payloads(client), ["still"]);
    });
}

/// Publishes 1 to 3 and returns the answers while something is held, and after that.
fn publishes_wait_for(net: &mut Net, publisher: Peer, held: Kind) -> (Vec<Sent>, Vec<Sent>) {
    net.store.hold(&[held]);
    for id in 1..=3 {
        net.send(publisher, message("t", id).qos1(id));
    }
    let before = net.received(publisher);
    net.release_held();
    (before, net.received(publisher))
}

#[test]
fn puback_is_sent_when_the_store_has_the_message() {
    for held in [Kind::Append, Kind::Acknowledged] {
        for version in [V3_1_1, V5] {
            everywhere(|net| {
                absent_subscriber(net, AtLeastOnce);
                let publisher = net.connect(0, Connecting { version, ..v5("p") });
                let (before, after) = publishes_wait_for(net, publisher, held);
                assert_eq!(before, []);
                assert_eq!(after, [puback(1), puback(2), puback(3)]);
                assert_eq!(found(net), ["1", "2", "3"]);
            });
        }
    }
}

/// [MQTT-4.6.0-2]
#[test]
fn pubacks_are_sent_in_the_order_of_the_publishes_whatever_completes_first() {
    everywhere(|net| {
        absent_subscriber(net, AtLeastOnce);
        let publisher = net.connect(0, v5("p"));
        net.store.hold(&[Kind::Acknowledged]);
        net.send(publisher, message("t", "slow").qos1(9));
        net.send(publisher, message("t", "next").qos1(3));
        net.send(publisher, message("t", "last").qos2(7));
        net.release_last_first();
        assert_eq!(net.received(publisher), [puback(9), puback(3), pubrec(7)]);
    });
}

/// [MQTT-4.3.3-8] [MQTT-4.3.3-11]: the identifier is remembered before PUBREC and forgotten before PUBCOMP.
#[test]
fn pubrec_and_pubcomp_are_sent_when_the_store_remembers_and_forgets_the_identifier() {
    for version in [V3_1_1, V5] {
        everywhere(|net| {
            let publisher = net.connect(0, durable(version, "p"));
            net.subscribe(publisher, "other", AtLeastOnce);
            net.store.hold(&[Kind::Receive]);
            net.send(publisher, message("t", "x").qos2(5));
            assert_eq!(net.received(publisher), []);
            net.release_held();
            let reason = if version == V5 { ReasonCode::NoMatchingSubscribers } else { ReasonCode::Success };
            assert_eq!(net.received(publisher), [Sent::PubRec(5, reason)]);
            net.store.hold(&[Kind::PubComp]);
            net.send(publisher, pubrel(5));
            assert_eq!(net.received(publisher), []);
            net.release_held();
            assert_eq!(net.received(publisher), [pubcomp(5)]);
        });
    }
}

/// [MQTT-4.3.3-4]: a durable session must remember that it may not send the message again.
#[test]
fn pubrel_is_sent_when_the_store_remembers_the_pubrec() {
    for held in [Kind::Acknowledge, Kind::PubRel] {
        everywhere(|net| {
            let client = net.connect(0, durable(V5, "c"));
            net.subscribe(client, "t", ExactlyOnce);
            let publisher = net.connect(1, v5("p"));
            net.send(publisher, message("t", "x").qos2(1));
            assert_eq!(net.received(client), [message("t", "x").qos2(1).into()]);
            net.store.hold(&[held]);
            net.send(client, pubrec(1));
            assert_eq!(net.received(client), []);
            net.release_held();
            assert_eq!(net.received(client), [pubrel(1)]);
            net.send(client, pubcomp(1));
        });
    }
}

#[test]
fn a_message_that_the_store_cannot_keep_is_refused_in_5_and_closes_the_connection_in_3_1_1() {
    for kind in [Kind::Append, Kind::Receive] {
        for qos in [AtLeastOnce, ExactlyOnce] {
            if kind == Kind::Receive && qos == AtLeastOnce {
                continue;
            }
            everywhere(|net| {
                absent_subscriber(net, ExactlyOnce);
                let publisher = net.connect(0, durable(V5, "p5"));
                let older = net.connect(1, durable(V3_1_1, "p3"));
                net.store.fail(kind, ReasonCode::QuotaExceeded);
                net.send(publisher, Message { packet_id: Some(1), qos, ..message("t", "lost") });
                net.send(older, Message { packet_id: Some(1), qos, ..message("t", "lost") });
                let refused = match qos {
                    ExactlyOnce => Sent::PubRec(1, ReasonCode::QuotaExceeded),
                    _ => Sent::PubAck(1, ReasonCode::QuotaExceeded),
                };
                assert_eq!(net.received(publisher), [refused]);
                // [MQTT3-3.3.5-2]
                assert_eq!(net.received(older), [Sent::Closed]);
                net.store.heal();
                // The identifier is free again [MQTT-4.3.3-9].
                net.send(publisher, Message { packet_id: Some(1), qos, ..message("t", "kept") });
                let kept = if qos == ExactlyOnce { pubrec(1) } else { puback(1) };
                assert_eq!(net.received(publisher), [kept]);
                net.send(publisher, pubrel(1));
            });
        }
    }
}

/// [MQTT3-3.3.5-2]: a message after a failure is not acknowledged either; the client sends it again.
#[test]
fn no_message_after_a_failure_is_acknowledged_in_3_1_1() {
    everywhere(|net| {
        absent_subscriber(net, AtLeastOnce);
        let publisher = net.connect(0, v3("p"));
        net.store.fail(Kind::Append, ReasonCode::UnspecifiedError);
        net.send_without_running(publisher, message("t", "1").qos1(1));
        net.send_without_running(publisher, message("u", "2").qos1(2));
        net.run();
        assert_eq!(net.received(publisher), [Sent::Closed]);
    });
}

/// Requests of two clients are answered in the opposite order.
#[test]
fn completions_of_different_sessions_arrive_in_any_order() {
    everywhere(|net| {
        net.store.hold(&[Kind::Claimed, Kind::Subscribed]);
        let names: Vec<String> = (0..8).map(|n| format!("client {n}")).collect();
        let clients: Vec<_> = (0..8).map(|n| net.connecting(n, durable(Version::V5, &names[n]))).collect();
        net.release_last_first();
        for client in &clients {
            assert_eq!(net.received(*client), [connack(false)]);
        }
        net.store.hold(&[Kind::Subscribed]);
        for client in &clients {
            net.send(*client, subscribe(1).to("t", AtLeastOnce));
        }
        net.release_last_first();
        for client in &clients {
            assert_eq!(net.received(*client), [suback(1, &[AtLeastOnce])]);
        }
        net.send(clients[0], message("t", "all").qos1(1));
        assert_eq!(net.client(clients[0]).received().len(), 2);
        for client in &clients[1..] {
            assert_eq!(net.payloads(*client), ["all"]);
        }
    });
}

/// Packets are handled in the order of their arrival, however long the store takes.
#[test]
fn an_unsubscribe_right_after_its_subscribe_ends_the_subscription() {
    for filter in ["a", "$share/g/a"] {
        everywhere(|net| {
            let client = net.connect(0, durable(V5, "c"));
            let subscription = subscribe(1).to(filter, AtLeastOnce).into();
            net.send_all(client, [subscription, unsubscribe(2, &[filter])]);
            let unsubscribed = unsuback(V5, 2, &[ReasonCode::Success]);
            let mut received = net.received(client);
            received.sort_by_key(|packet| matches!(packet, Sent::UnsubAck(..)));
            assert_eq!(received, [suback(1, &[AtLeastOnce]), unsubscribed]);
            net.publish(client, "a", "0");
            net.send(client, message("a", "1").qos1(1));
            assert_eq!(net.received(client), [Sent::PubAck(1, ReasonCode::NoMatchingSubscribers)]);
        });
    }
}
