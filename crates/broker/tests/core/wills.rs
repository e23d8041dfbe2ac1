//! Wills: whether they are published, when, and how.

use broker::Time;
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::ReasonCode;
use mqtt::Version::{V3_1_1, V5};

use crate::net::{Net, Peer, everywhere, everywhere_with};
use crate::store::Kind;
use testkit::packets::*;

fn witness(net: &mut Net) -> Peer {
    let witness = net.connect(2, v5("witness"));
    net.subscribe(witness, "w/#", ExactlyOnce);
    witness
}

fn will() -> Message {
    message("w/c", "gone")
}

/// [MQTT-3.1.2-8] [MQTT3-3.1.2-8]
#[test]
fn a_lost_connection_publishes_its_will_at_its_qos() {
    for version in [V3_1_1, V5] {
        for qos in [AtMostOnce, AtLeastOnce, ExactlyOnce] {
            everywhere(|net| {
                let witness = witness(net);
                for connecting in [Connecting { version, ..v5("c") }, durable(version, "c")] {
                    let client = net.connect(0, connecting.will(will().qos(qos)));
                    assert_eq!(net.received(witness), []);
                    net.lose(client);
                    let received = net.received(witness);
                    assert!(
                        matches!(&received[..], [Sent::Publish(will)] if will.qos == qos && !will.retain)
                    );
                }
            });
        }
    }
}

/// [MQTT-3.14.4-3] [MQTT3-3.14.4-3]
#[test]
fn an_orderly_disconnect_deletes_the_will() {
    for version in [V3_1_1, V5] {
        everywhere(|net| {
            let witness = witness(net);
            let client = net.connect(0, durable(version, "c").will(will()));
            net.send(client, goodbye());
            assert_eq!(net.received(client), [Sent::Closed]);
            net.jump(u64::from(DAY) * 8);
            assert_eq!(net.received(witness), []);
        });
    }
}

/// (3.14.2.1): 0x04 requests it.
#[test]
fn disconnect_with_will_message_publishes_it() {
    everywhere(|net| {
        let witness = witness(net);
        for connecting in [v5("c"), durable(V5, "d")] {
            let client = net.connect(0, connecting.will(will()));
            net.send(client, disconnect(ReasonCode::DisconnectWithWill));
            assert_eq!(net.payloads(witness), ["gone"]);
        }
    });
}

/// [MQTT-3.1.2-8]: a connection that is closed because of its client's error has a Will.
#[test]
fn a_protocol_error_publishes_the_will() {
    everywhere(|net| {
        let witness = witness(net);
        let client = net.connect(0, v5("c").will(will()));
        net.send(client, v5("c"));
        assert_eq!(net.closed(client), Some(Some(ReasonCode::ProtocolError)));
        assert_eq!(net.payloads(witness), ["gone"]);
    });
}

/// (3.1.3.2.2)
#[test]
fn a_will_waits_for_its_delay_and_is_published_once() {
    everywhere(|net| {
        let witness = witness(net);
        let client = net.connect(0, durable(V5, "c").delayed_will(will(), 10));
        net.lose(client);
        net.pass(9_900);
        assert_eq!(net.received(witness), []);
        net.pass(300);
        assert_eq!(net.payloads(witness), ["gone"]);
        net.jump(2 * u64::from(DAY));
        assert_eq!(net.received(witness), [], "not again when the session ends");
    });
}

/// [MQTT-3.1.3-9]: the session ends first.
#[test]
fn a_will_is_not_delayed_beyond_the_end_of_the_session() {
    everywhere(|net| {
        let witness = witness(net);
        let client = net.connect(0, v5("c").expiry(5).delayed_will(will(), 60));
        net.lose(client);
        net.pass(4_900);
        assert_eq!(net.received(witness), []);
        net.pass(300);
        assert_eq!(net.payloads(witness), ["gone"]);
        let client = net.connect(0, v5("c").delayed_will(will(), 60));
        net.lose(client);
        assert_eq!(net.payloads(witness), ["gone"], "a session that ends with its connection delays nothing");
        net.pass(61_000);
        assert_eq!(net.received(witness), []);
    });
}

/// [MQTT-3.1.3-9]
#[test]
fn the_will_of_a_client_that_reconnects_in_time_is_not_published() {
    everywhere(|net| {
        let witness = witness(net);
        let connecting = durable(V5, "c").delayed_will(will(), 10);
        let client = net.connect(0, connecting.clone());
        net.lose(client);
        net.pass(9_000);
        let client = net.resume(1, connecting);
        net.pass(60_000);
        assert_eq!(net.received(witness), []);
        net.lose(client);
        net.pass(10_200);
        assert_eq!(net.payloads(witness), ["gone"], "the Will of the second connection");
    });
}

/// [MQTT-3.1.2-15] [MQTT3-3.1.2-17]; its expiry counts from its publication.
#[test]
fn later_subscribers_get_a_retained_will() {
    everywhere(|net| {
        let retained = will().qos(AtLeastOnce).retain().expiry(100);
        let client = net.connect(0, durable(V5, "c").delayed_will(retained, 50));
        net.lose(client);
        net.pass(80_000);
        let late = net.connect(1, v5("late"));
        net.send(late, subscribe(1).to("w/+", AtLeastOnce));
        let left = will().qos1(1).retain().expiry(70);
        assert_eq!(net.received(late), [suback(1, &[AtLeastOnce]), left.into()]);
    });
}

/// A Will is kept for an absent durable subscriber, like any message.
#[test]
fn a_will_waits_for_absent_subscribers() {
    everywhere(|net| {
        let subscriber = net.connect(1, durable(V3_1_1, "s"));
        net.subscribe(subscriber, "w/#", AtLeastOnce);
        net.lose(subscriber);
        let client = net.connect(0, v3("c").will(will().qos(ExactlyOnce)));
        net.lose(client);
        let subscriber = net.resume(2, durable(V3_1_1, "s"));
        assert_eq!(net.received(subscriber), [will().qos1(1).into()]);
    });
}

/// [MQTT-3.1.2-8]: the store has the Will of a durable session from the CONNECT on, and knows it until all receivers
/// have it.
#[test]
fn a_will_is_kept_until_all_receivers_have_it() {
    everywhere(|net| {
        let absent = ["a", "b", "c", "d"];
        for name in absent {
            let subscriber = net.connect(1, durable(V5, name));
            net.subscribe(subscriber, "w/#", ExactlyOnce);
            net.lose(subscriber);
        }
        let witness = witness(net);
        for late in [Kind::Append, Kind::WillDispatched, Kind::Accepted] {
            let client = net.connect(0, durable(V5, "client").will(will().qos(ExactlyOnce).retain()));
            net.store.hold(&[late]);
            net.lose(client);
            net.release_held();
            assert_eq!(net.payloads(witness), ["gone"], "{late:?}");
            assert_eq!(net.identities(), 0, "{late:?}");
            net.resume(2, durable(V5, "client"));
            let client = net.connect(1, v5("client"));
            net.lose(client);
        }
        for name in absent {
            let subscriber = net.resume(2, durable(V5, name));
            assert_eq!(net.payloads(subscriber), ["gone", "gone", "gone"]);
        }
    });
}

/// Subscriptions of other nodes are unknown at the start of a node of a cluster. A Will that was due before is for
/// them, too.
#[test]
fn a_will_of_a_durable_session_waits_until_the_node_knows_the_routes_of_others() {
    everywhere(|net| {
        let witness = witness(net);
        net.node.set_fresh_until(Time::default());
        let count = 250;
        for number in 0..count {
            let client = net.connect(0, durable(V5, &format!("c{number}")).will(will()));
            net.lose(client);
        }
        net.jump(10);
        assert_eq!(net.received(witness), []);
        net.node.set_fresh_until(Time::NEVER);
        net.jump(1);
        assert_eq!(net.payloads(witness).len(), count);
        let client = net.connect(0, durable(V5, "late").will(will()));
        net.lose(client);
        assert_eq!(net.payloads(witness), ["gone"]);
        assert_eq!(net.identities(), 0);
    });
}

/// The Will of a durable session is also for a reader whose queue is full: it waits for a slot there as any message
/// does.
#[test]
fn a_will_waits_for_a_slot_in_a_full_queue() {
    for reader in [v5("reader"), durable(V5, "reader")] {
        everywhere_with(
            |settings| settings.queue.messages_max = 1,
            |net| {
                let reader = net.connect(2, reader.clone().receive_max(1));
                net.subscribe(reader, "w/#", AtLeastOnce);
                let publisher = net.connect(1, v5("p"));
                for id in 1..=2 {
                    net.send(publisher, message("w/p", id).qos1(id));
                }
                let client = net.connect(0, durable(V5, "c").will(will().qos(AtLeastOnce)));
                net.lose(client);
                let mut found = Vec::new();
                for id in 1..=3 {
                    found.extend(net.payloads(reader));
                    net.send(reader, puback(id));
                }
                assert_eq!(found, ["1", "2", "gone"]);
                assert_eq!(net.identities(), 0);
            },
        );
    }
}

/// A group's member that receives nothing delays the Wills that it is to get, and no others.
#[test]
fn wills_of_different_clients_do_not_wait_for_each_other() {
    const CLIENTS: usize = 40;
    everywhere_with(
        |settings| settings.queue.messages_max = 1,
        |net| {
            let member = net.connect(2, v5("member").receive_max(1));
            net.subscribe(member, "$share/g/w/group", AtLeastOnce);
            let publisher = net.connect(1, v5("p"));
            for id in 1..=2 {
                net.send(publisher, message("w/group", id).qos1(id));
            }
            // One of them belongs to the group's shard.
            let readers: Vec<Peer> =
                (0..CLIENTS).map(|at| net.connect(at % 3, durable(V5, &format!("reader {at}")))).collect();
            for reader in &readers {
                net.subscribe(*reader, "w/reader", AtLeastOnce);
            }
            for topic in ["w/group", "w/reader"] {
                for at in 0..CLIENTS {
                    let connecting = durable(V5, &format!("{topic} {at}"));
                    let client = net.connect(0, connecting.will(message(topic, at).qos(AtLeastOnce)));
                    net.lose(client);
                }
            }
            for reader in readers {
                assert_eq!(net.payloads(reader).len(), CLIENTS);
            }
            assert_eq!(net.payloads(member), ["1"]);
        },
    );
}

/// [MQTT-3.1.3-9]: the last CONNECT decides, also when it had no Will.
#[test]
fn a_resumed_session_has_the_will_of_its_last_connection() {
    everywhere(|net| {
        let witness = witness(net);
        let client = net.connect(0, durable(V5, "c").will(message("w/c", "first")));
        let client = {
            let second = net.resume(1, durable(V5, "c").will(message("w/c", "second")));
            assert_eq!(net.closed(client), Some(Some(ReasonCode::SessionTakenOver)));
            second
        };
        assert_eq!(net.payloads(witness), ["first"], "its connection is gone");
        net.lose(client);
        assert_eq!(net.payloads(witness), ["second"]);
        let client = net.resume(2, durable(V5, "c"));
        net.lose(client);
        net.jump(2 * u64::from(DAY));
        assert_eq!(net.received(witness), []);
    });
}
