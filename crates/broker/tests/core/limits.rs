//! Limits of time and size: Keep Alive, CONNECT timeout, packet sizes, message expiry, aliases; and the end of the
//! node.

use std::time::Duration;

use broker::settings::Settings;
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::ReasonCode;
use mqtt::Version::{V3_1_1, V5};
use settings::ByteSize;

use crate::net::{everywhere, everywhere_with};
use crate::store::Kind;
use testkit::packets::*;

/// [MQTT-3.1.2-22] [MQTT3-3.1.2-24]
#[test]
fn silence_of_one_and_a_half_keep_alives_ends_the_connection() {
    everywhere(|net| {
        let client = net.connect(0, v5("c").keep_alive(10));
        let older = net.connect(1, v3("d").keep_alive(10));
        let forever = net.connect(2, v5("e"));
        for _ in 0..3 {
            net.pass(14_000);
            net.send(client, Sent::PingReq);
            net.send(older, message("t", "anything counts"));
        }
        assert_eq!(net.received(client), [Sent::PingResp, Sent::PingResp, Sent::PingResp]);
        net.pass(14_900);
        assert_eq!((net.received(client), net.received(older)), (vec![], vec![]));
        net.pass(300);
        assert_eq!(net.received(client), [disconnect(ReasonCode::KeepAliveTimeout), Sent::Closed]);
        assert_eq!(net.received(older), [Sent::Closed]);
        net.jump(100_000);
        net.send(forever, Sent::PingReq);
        assert_eq!(net.received(forever), [Sent::PingResp]);
    });
}

/// A silence that is shorter than the time for CONNECT counts from the first packet on, and still after that time.
#[test]
fn a_keep_alive_shorter_than_the_connect_timeout_applies_at_once() {
    everywhere_with(
        |settings| settings.mqtt.connect_timeout = Duration::from_secs(10),
        |net| {
            let (soon, late) = (net.connect(0, v5("c").keep_alive(4)), net.connect(1, v5("d").keep_alive(4)));
            net.pass(5_900);
            net.send(late, Sent::PingReq);
            assert_eq!(net.received(soon), []);
            net.pass(300);
            assert_eq!(net.received(soon), [disconnect(ReasonCode::KeepAliveTimeout), Sent::Closed]);
            net.pass(5_400);
            net.send(late, Sent::PingReq);
            net.pass(5_900);
            assert_eq!(net.received(late), [Sent::PingResp, Sent::PingResp]);
            net.pass(300);
            assert_eq!(net.received(late), [disconnect(ReasonCode::KeepAliveTimeout), Sent::Closed]);
        },
    );
}

/// An incomplete packet does not count.
#[test]
fn an_incomplete_packet_does_not_keep_a_connection_alive() {
    everywhere(|net| {
        let client = net.connect(0, v5("c").keep_alive(10));
        let mut bytes = Vec::new();
        Sent::from(message("t", "0123456789")).encode(V5, &mut bytes);
        for byte in bytes.chunks(1).take(14) {
            net.send_bytes(client, byte);
            net.pass(1_000);
        }
        assert_eq!(net.received(client), []);
        net.pass(1_200);
        assert_eq!(net.closed(client), Some(Some(ReasonCode::KeepAliveTimeout)));
    });
}

/// [MQTT-3.1.2-21]: the server's Keep Alive takes precedence for clients that can be notified of it.
#[test]
fn the_servers_keep_alive_applies_to_clients_of_5() {
    everywhere_with(
        |settings| settings.mqtt.keep_alive_max = 10,
        |net| {
            let (client, older) = (net.connect(0, v5("c").keep_alive(100)), net.connect(1, v3("d")));
            net.pass(15_200);
            assert_eq!(net.closed(client), Some(Some(ReasonCode::KeepAliveTimeout)));
            assert_eq!(net.closed(older), None);
        },
    );
}

#[test]
fn a_connect_that_does_not_arrive_in_time_closes_the_connection() {
    everywhere_with(
        |settings| settings.mqtt.connect_timeout = Duration::from_secs(3),
        |net| {
            let silent = net.open(0, V5);
            let half = net.open(1, V5);
            let mut bytes = Vec::new();
            Sent::from(v5("half")).encode(V5, &mut bytes);
            net.send_bytes(half, &bytes[..bytes.len() - 1]);
            net.store.hold(&[Kind::Claimed]);
            let claiming = net.connecting(2, durable(V5, "claiming"));
            net.pass(2_900);
            net.send_bytes(half, &[]);
            for client in [silent, half, claiming] {
                assert_eq!(net.received(client), []);
            }
            net.pass(300);
            for client in [silent, half] {
                assert_eq!(net.received(client), [Sent::Closed]);
            }
            let (session_present, reason) = (false, ReasonCode::ServerUnavailable);
            assert_eq!(net.received(claiming), [Sent::ConnAck { session_present, reason }, Sent::Closed]);
            assert_eq!(net.counter(|counters| counters.connect_timeouts), 3);
            net.release_held();
            // The claim that was granted too late was released.
            net.resume(0, durable(V5, "claiming"));
        },
    );
}

/// A client's bytes may arrive one by one.
#[test]
fn packets_are_put_together_from_any_pieces() {
    everywhere(|net| {
        let client = net.open(0, V5);
        let mut bytes = Vec::new();
        let packets: [Sent; 4] = [
            durable(V5, "c").into(),
            subscribe(1).to("t", ExactlyOnce).into(),
            message("t", "x".repeat(300)).qos2(1).into(),
            pubrel(1),
        ];
        for packet in packets {
            packet.encode(V5, &mut bytes);
        }
        for byte in bytes.chunks(1) {
            net.send_bytes(client, byte);
        }
        let received = net.received(client);
        assert_eq!(received.len(), 5, "{received:?}");
        assert_eq!(received[0], connack(false));
        assert!(received.contains(&message("t", "x".repeat(300)).qos2(1).into()));
        assert!(received.contains(&pubcomp(1)));
    });
}

/// [MQTT-3.1.2-24] [MQTT-3.1.2-25]: the message is dropped for this client and counts as delivered; others get it.
#[test]
fn a_message_larger_than_the_client_accepts_is_not_sent_and_delays_no_other() {
    for connecting in [v5("c"), durable(V5, "c")] {
        for filter in ["t", "$share/g/t"] {
            everywhere(|net| {
                let client = net.connect(0, connecting.clone().packet_size_max(100).receive_max(1));
                net.subscribe(client, filter, ExactlyOnce);
                let publisher = net.connect(1, v5("p"));
                let (long, short) = ("x".repeat(100), "y".repeat(50));
                net.send(publisher, message("t", &long).qos1(1));
                net.send(publisher, message("t", &long).qos2(2));
                net.publish(publisher, "t", &long);
                assert_eq!(net.received(publisher), [puback(1), pubrec(2)]);
                net.send(publisher, message("t", &short).qos1(3));
                net.send(publisher, message("t", &long).qos1(4));
                net.send(publisher, message("t", &short).qos1(5));
                assert_eq!(net.received(client), [message("t", &short).qos1(3).into()]);
                net.send(client, puback(3));
                assert_eq!(net.received(client), [message("t", &short).qos1(5).into()]);
                net.send(client, puback(5));
                assert_eq!(net.counter(|counters| counters.dropped_packet_size), 4);
            });
        }
    }
}

/// [MQTT-3.1.2-26] [MQTT-3.1.2-27]; the client of these tests knows no alias that did not arrive.
#[test]
fn aliases_are_introduced_by_packets_that_arrive() {
    for qos in [AtMostOnce, AtLeastOnce] {
        for connecting in [v5("c"), durable(V5, "c")] {
            everywhere(|net| {
                let client = net.connect(0, connecting.clone().packet_size_max(100).alias_max(2));
                net.subscribe(client, "topic/#", qos);
                let publisher = net.connect(1, v5("p"));
                let too_long = "x".repeat(100);
                let payloads = ["a", &too_long, "b"];
                let mut id = 0;
                for payload in payloads {
                    for topic in ["topic/one", "topic/two", "topic/three"] {
                        id += 1;
                        // The first packets that name a topic are too long.
                        let payload = if id == 1 { &too_long } else { payload };
                        net.send(publisher, message(topic, payload).qos1(id));
                    }
                }
                let messages = net.received(client).into_iter().map(|packet| match packet {
                    Sent::Publish(message) => (message.topic, message.payload),
                    other => panic!("{other:?}"),
                });
                let expected = [("two", "a"), ("three", "a"), ("one", "b"), ("two", "b"), ("three", "b")];
                let expected =
                    expected.map(|(topic, payload)| (format!("topic/{topic}"), payload.to_owned()));
                assert_eq!(messages.collect::<Vec<_>>(), expected);
            });
        }
    }
}

/// [MQTT-3.2.2-15] (0x95)
#[test]
fn a_packet_larger_than_the_node_accepts_is_refused_before_it_has_arrived() {
    everywhere_with(
        |settings| settings.mqtt.packet_size_max = ByteSize::kib(1),
        |net| {
            let client = net.connect(0, v5("c"));
            let mut bytes = Vec::new();
            Sent::from(message("t", "x".repeat(2_000))).encode(V5, &mut bytes);
            net.send_bytes(client, &bytes[..4]);
            assert_eq!(net.closed(client), Some(Some(ReasonCode::PacketTooLarge)));
        },
    );
}

/// [MQTT-3.3.2-5] in the queue of a connected reader.
#[test]
fn messages_expire_in_the_queue_of_a_slow_reader() {
    // In a durable session an expired message had a number too.
    for (connecting, next) in [(v5("c"), 2), (durable(V5, "c"), 3)] {
        everywhere(|net| {
            let client = net.connect(0, connecting.clone().receive_max(1));
            net.subscribe(client, "t", AtLeastOnce);
            let publisher = net.connect(1, v5("p"));
            for (id, seconds) in [(1, 100), (2, 5), (3, 100)] {
                net.send(publisher, message("t", id).qos1(id).expiry(seconds));
            }
            net.pass(6_000);
            assert_eq!(net.received(client), [message("t", 1).qos1(1).expiry(100).into()]);
            net.send(client, puback(1));
            assert_eq!(net.received(client), [message("t", 3).qos1(next).expiry(94).into()]);
        });
    }
}

/// [MQTT-4.13.1-1] (0x8B): every client is notified, Wills are not published, sessions stay.
#[test]
fn a_node_that_stops_notifies_its_clients() {
    everywhere(|net| {
        let will = message("w", "stopped");
        let client = net.connect(0, v5("c").will(will.clone()));
        let older = net.connect(1, v3("d").will(will.clone()));
        let witness = net.connect(2, durable(V5, "witness"));
        net.subscribe(witness, "#", AtLeastOnce);
        let silent = net.open(1, V3_1_1);
        let unread = net.connect(0, v5("unread"));
        net.subscribe(unread, "t", AtLeastOnce);
        net.stop_reading(unread);
        net.send(client, message("t", "on its way").qos1(1));
        assert_eq!(net.received(client), [puback(1)]);
        assert_eq!(net.payloads(witness), ["on its way"]);
        net.stop();
        let told = [disconnect(ReasonCode::ServerShuttingDown), Sent::Closed];
        assert_eq!(net.received(client), told);
        assert_eq!(net.received(older), [Sent::Closed]);
        assert_eq!(net.received(silent), [Sent::Closed]);
        assert_eq!(net.received(witness), told, "no Will is published");
        net.go_on_reading(unread);
        assert_eq!(net.client(unread).next(), Some(message("t", "on its way").qos1(1).into()));
        assert_eq!(net.received(unread), told);
        let late = net.connecting(0, v5("late"));
        assert_eq!(net.received(late), [refused(ReasonCode::ServerUnavailable), Sent::Closed]);
    });
}

/// A connection that is closed does not wait for a reader that never reads its last bytes.
#[test]
fn the_last_bytes_of_a_closed_connection_may_take_two_seconds() {
    everywhere(|net| {
        let client = net.connect(0, v5("c"));
        net.stop_reading(client);
        net.send(client, v5("again"));
        assert!(net.unread(client) > 0);
        net.pass(2_200);
        assert_eq!(net.received(client), [Sent::Closed]);
    });
}

/// [MQTT-3.1.2-24]: the process or the machine stood still, and the packets that clients sent meanwhile are in their
/// sockets.
#[test]
fn packets_are_read_after_a_pause_before_clients_are_judged() {
    let change = |settings: &mut Settings| {
        settings.queue.messages_max = 1;
        settings.queue.full_wait = Duration::from_secs(5);
    };
    for reading in [v5("reader"), durable(V5, "reader")] {
        everywhere_with(change, |net| {
            let client = net.connect(0, v5("client").keep_alive(10));
            let reader = net.connect(1, reading.clone().receive_max(1));
            net.subscribe(reader, "t", AtLeastOnce);
            let connecting = net.open(2, V5);
            let publisher = net.connect(0, v5("publisher"));
            net.send_all(publisher, (1..=3).map(|id| message("t", id).qos1(id).into()));
            assert_eq!(net.received(publisher), [puback(1), puback(2)]);
            net.has_read_until_now();
            net.jump(60);
            for peer in [client, reader, connecting] {
                assert_eq!(net.closed(peer), None);
            }
            assert_eq!(net.received(publisher), [], "no message was dropped");
            net.send(client, Sent::PingReq);
            net.send(reader, puback(1));
            net.send(connecting, v5("late"));
            net.has_read_until_now();
            net.pass(1_000);
            net.has_read_until_now();
            net.pass(200);
            assert_eq!(net.received(client), [Sent::PingResp]);
            assert_eq!(net.received(connecting), [connack(false)]);
            assert_eq!(net.received(publisher), [puback(3)]);
            assert_eq!(net.closed(reader), None);
            net.pass(20_000);
            net.has_read_until_now();
            net.pass(200);
            assert_eq!(net.closed(client), Some(Some(ReasonCode::KeepAliveTimeout)), "it was silent since");
        });
    }
}

/// `mqtt.topic_len_max` and `mqtt.client_id_len_max` are 4 KiB by default. A Client Identifier beyond it gets 0x85, a
/// Will 0x90, a filter 0x8F. `$share` and the group's name count too, because they are kept like the rest.
#[test]
fn topics_and_client_identifiers_may_have_four_kibibytes_by_default() {
    everywhere(|net| {
        let (longest, longer) = ("x".repeat(4096), "x".repeat(4097));
        let client = net.connect(0, v5(&longest));
        let invalid = refused(ReasonCode::ClientIdentifierNotValid);
        for connecting in [v5(&longer), v3(&longer)] {
            let peer = net.connecting(1, connecting);
            assert_eq!(net.received(peer), [invalid.clone(), Sent::Closed]);
        }
        let mortal = net.connecting(1, v5("mortal").will(message(&longer, "")));
        assert_eq!(net.received(mortal), [refused(ReasonCode::TopicNameInvalid), Sent::Closed]);
        let shared = format!("$share/{}/t", "g".repeat(4088));
        net.subscribe(client, &longest, AtLeastOnce);
        net.subscribe(client, &shared[1..], AtLeastOnce);
        for filter in [&longer, &shared] {
            net.send(client, subscribe(1).to(filter, AtLeastOnce));
            assert_eq!(net.received(client), [Sent::SubAck(1, vec![ReasonCode::TopicFilterInvalid])]);
            let older = net.connect(2, v3("older"));
            net.send(older, subscribe(1).to(filter, AtLeastOnce));
            assert_eq!(net.received(older), [Sent::SubAck(1, vec![ReasonCode::UnspecifiedError])]);
        }
        net.publish(client, &longest, "x");
        assert_eq!(net.payloads(client), ["x"]);
    });
    let as_specified = |settings: &mut Settings| {
        (settings.mqtt.topic_len_max, settings.mqtt.client_id_len_max) = (65_535, 65_535);
        // A CONNECT with such an identifier is larger than 64 KiB.
        settings.mqtt.packet_size_before_login_max = ByteSize::kib(128);
    };
    everywhere_with(as_specified, |net| {
        let longest = "x".repeat(65_535);
        let client = net.connect(0, v5(&longest));
        net.subscribe(client, &longest, AtLeastOnce);
    });
}
