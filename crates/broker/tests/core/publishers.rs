//! Publishers that have to wait: beyond the Receive Maximum, beyond their rate, or for a node short of memory.

use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::ReasonCode;
use mqtt::Version::{V3_1_1, V5};
use settings::ByteSize;

use crate::net::{Net, everywhere, everywhere_with};
use crate::store::Kind;
use testkit::packets::*;

/// Makes an absent durable subscriber of `#`, so that only the store receives messages.
fn absent_subscriber(net: &mut Net) {
    let subscriber = net.connect(1, durable(V5, "absent"));
    net.subscribe(subscriber, "#", ExactlyOnce);
    net.lose(subscriber);
}

fn found(net: &mut Net) -> Vec<String> {
    let subscriber = net.resume(2, durable(V5, "absent"));
    net.payloads(subscriber)
}

/// [MQTT-3.3.4-7] [MQTT-3.3.4-9] (0x93)
#[test]
fn more_than_receive_maximum_is_a_protocol_error_in_5() {
    for qos in [AtLeastOnce, ExactlyOnce] {
        everywhere_with(
            |settings| settings.mqtt.receive_max = 2,
            |net| {
                absent_subscriber(net);
                let publisher = net.connect(0, v5("p"));
                net.store.hold(&[Kind::Append]);
                for id in 1..=3 {
                    net.send(publisher, Message { packet_id: Some(id), qos, ..message("t", id) });
                }
                assert_eq!(net.closed(publisher), Some(Some(ReasonCode::ReceiveMaximumExceeded)));
            },
        );
    }
}

/// 3.1.1 has no Receive Maximum. Packets beyond it, and those after them, are not read until there is room, except for
/// acknowledgements and PINGREQ.
#[test]
fn an_older_client_waits_beyond_receive_maximum_and_its_acknowledgements_do_not() {
    everywhere_with(
        |settings| settings.mqtt.receive_max = 2,
        |net| {
            absent_subscriber(net);
            let client = net.connect(0, v3("c"));
            net.subscribe(client, "own", ExactlyOnce);
            let other = net.connect(1, v5("other"));
            net.send(other, message("own", "two").qos2(1));
            net.send(other, message("own", "one").qos1(2));
            assert_eq!(net.payloads(client), ["two", "one"]);
            net.store.hold(&[Kind::Append]);
            let publishes = [1, 2, 3, 4].map(|id| message("t", id).qos1(id).into());
            net.send_all(client, publishes.into_iter().chain([subscribe(9).to("x", AtMostOnce).into()]));
            net.send_all(client, [puback(2), pubrec(1), pubcomp(1), Sent::PingReq]);
            assert_eq!(net.received(client), [pubrel(1), Sent::PingResp]);
            net.release_held();
            let mut answers = net.received(client);
            assert!(answers.contains(&suback(9, &[AtMostOnce])));
            answers.retain(|packet| matches!(packet, Sent::PubAck(..)));
            assert_eq!(answers, [puback(1), puback(2), puback(3), puback(4)]);
            assert!(net.counter(|counters| counters.publishers_blocked) > 0);
            assert_eq!(found(net), ["two", "one", "1", "2", "3", "4"]);
        },
    );
}

/// The PUBREL of an earlier message makes room for QoS 2.
#[test]
fn a_pubrel_makes_room_for_an_older_client() {
    everywhere_with(
        |settings| settings.mqtt.receive_max = 1,
        |net| {
            absent_subscriber(net);
            let client = net.connect(0, v3("c"));
            net.send_all(client, [1, 2, 3].map(|id| message("t", id).qos2(id).into()));
            for id in 1..=3 {
                assert_eq!(net.received(client), [pubrec(id)]);
                net.send(client, pubrel(id));
                // PUBCOMP, and PUBREC of the next: in this order or the other.
                assert_eq!(net.client(client).next(), Some(pubcomp(id)));
            }
            assert_eq!(found(net), ["1", "2", "3"]);
        },
    );
}

/// 64 KiB of packets are kept after one that waits; the rest stays in the socket.
#[test]
fn packets_kept_after_a_publish_that_waits_are_bounded() {
    everywhere_with(
        |settings| settings.mqtt.receive_max = 1,
        |net| {
            absent_subscriber(net);
            let client = net.connect(0, v3("c"));
            net.store.hold(&[Kind::Append]);
            let payload = "x".repeat(10_000);
            net.send_all(client, (1..=50).map(|id| message("t", &payload).qos1(id).into()));
            assert!(net.client(client).held);
            let kept = net.client(client).unsent.len();
            assert!((500_000 - 100_000..500_000).contains(&kept), "{kept}");
            net.release_held();
            assert!(net.received(client).into_iter().eq((1..=50).map(puback)));
            assert!(!net.client(client).held);
            assert_eq!(found(net).len(), 50);
        },
    );
}

/// A connection that ends while packets wait after a PUBLISH handles none of them.
#[test]
fn packets_after_the_end_of_a_connection_are_not_handled() {
    for end in [goodbye(), pubrec(7)] {
        everywhere_with(
            |settings| settings.mqtt.receive_max = 1,
            |net| {
                absent_subscriber(net);
                let witness = net.connect(1, v5("witness"));
                net.subscribe(witness, "never", AtMostOnce);
                let client = net.connect(0, v3("c"));
                net.store.hold(&[Kind::Append]);
                let packets = [
                    message("t", 1).qos1(1).into(),
                    message("t", 2).qos1(2).into(),
                    end.clone(),
                    v3("second CONNECT").into(),
                    subscribe(9).to("leak/+", AtLeastOnce).to("$share/g/leak", AtLeastOnce).into(),
                    message("never", "published").into(),
                ];
                net.send_all(client, packets);
                let goes = net.received(client);
                net.release_held();
                let received = net.received(client);
                assert!(goes.iter().chain(&received).any(|packet| *packet == Sent::Closed), "{received:?}");
                assert_eq!(net.received(witness), []);
            },
        );
    }
}

#[test]
fn a_client_beyond_its_messages_per_second_is_slowed_and_loses_nothing() {
    for connecting in [v3("c"), v5("c")] {
        everywhere_with(
            |settings| settings.limits.messages_per_second = 10,
            |net| {
                let reader = net.connect(1, v5("reader"));
                net.subscribe(reader, "t", AtMostOnce);
                let client = net.connect(0, connecting.clone());
                let mixed = |number: u16| match number % 3 {
                    0 => message("t", number),
                    1 => message("t", number).qos1(number),
                    _ => message("t", number).qos2(number),
                };
                net.send_all(client, (1..=35).map(|number| mixed(number).into()));
                net.send(client, Sent::PingReq);
                for seconds in 1..=4 {
                    let payloads = net.payloads(reader);
                    assert_eq!(payloads.len(), if seconds < 4 { 10 } else { 5 });
                    net.pass(1_000);
                }
                assert_eq!(net.received(client).len(), 25, "24 acknowledged, one PINGRESP");
            },
        );
    }
}

#[test]
fn a_client_beyond_its_bytes_per_second_is_slowed() {
    everywhere_with(
        |settings| settings.limits.bytes_per_second = ByteSize::kib(10),
        |net| {
            let client = net.connect(0, v5("c"));
            let payload = "x".repeat(2_000);
            net.send_all(client, (1..=12).map(|id| message("t", &payload).qos1(id).into()));
            assert_eq!(net.received(client).len(), 6);
            net.pass(1_400);
            assert_eq!(net.received(client).len(), 6);
        },
    );
}

/// The silence of a client is not its fault while a publish waits for its rate.
#[test]
fn a_client_that_is_kept_waiting_is_not_closed_for_its_silence() {
    everywhere_with(
        |settings| settings.limits.messages_per_second = 1,
        |net| {
            let client = net.connect(0, v5("c").keep_alive(1));
            net.send_all(client, (1..=5).map(|id| message("t", id).qos1(id).into()));
            net.pass(4_200);
            assert_eq!(net.received(client).len(), 5);
            net.pass(4_000);
            assert_eq!(net.closed(client), Some(Some(ReasonCode::KeepAliveTimeout)));
        },
    );
}

/// Messages for absent readers count as much as those for connected ones.
#[test]
fn a_node_with_too_many_queued_bytes_slows_publishers_of_qos_1_and_2() {
    for away in [true, false] {
        everywhere_with(
            |settings| {
                settings.limits.memory_queued_max = ByteSize::mib(1);
                settings.queue.messages_max = 10_000;
            },
            |net| {
                let reader = net.connect(1, durable(V5, "reader").receive_max(1));
                net.subscribe(reader, "t", AtLeastOnce);
                if away {
                    net.lose(reader);
                }
                let publisher = net.connect(0, v5("p"));
                let payload = "x".repeat(10_000);
                for id in 1..=200 {
                    net.send(publisher, message("t", &payload).qos1(id));
                }
                let taken = net.received(publisher).len();
                assert!((100..=120).contains(&taken), "{taken} of 200");
                net.publish(publisher, "u", "QoS 0 messages wait after them");
                net.pass(1_000);
                assert_eq!(net.received(publisher), []);
                // The queue becomes empty: publishers continue.
                let reader = if away { net.resume(2, durable(V5, "reader")) } else { reader };
                let mut got = 0;
                for _ in 0..400 {
                    for packet in net.received(reader) {
                        if let Sent::Publish(message) = packet {
                            got += 1;
                            net.send(reader, puback(message.packet_id.expect("QoS 1")));
                        }
                    }
                    net.pass(100);
                }
                assert_eq!(got, 200);
                assert_eq!(taken + net.received(publisher).len(), 200);
            },
        );
    }
}

/// Each QoS 2 message is published once, however often the client repeats it.
#[test]
fn a_repeated_qos_2_publish_is_answered_and_not_published_again() {
    for connecting in [v3("c"), v5("c"), durable(V3_1_1, "c"), durable(V5, "c")] {
        everywhere(|net| {
            absent_subscriber(net);
            let client = net.connect(0, connecting.clone());
            net.store.hold(&[Kind::Append]);
            net.send(client, message("t", "once").qos2(1));
            net.send(client, message("t", "once").qos2(1).dup());
            assert_eq!(net.received(client), [], "the first PUBREC answers both");
            net.release_held();
            assert_eq!(net.received(client), [pubrec(1)]);
            net.send(client, message("t", "once").qos2(1).dup());
            assert_eq!(net.received(client), [pubrec(1)]);
            net.send(client, pubrel(1));
            assert_eq!(net.received(client), [pubcomp(1)]);
            assert_eq!(found(net), ["once"]);
        });
    }
}
