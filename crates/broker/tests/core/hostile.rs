//! Clients that break rules, stop reading, send unexpected answers, or disappear, and the limits of their effects on a
//! node. Each test is named for a former fault.

use broker::Published;
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::ReasonCode;
use mqtt::Version::V5;
use settings::ByteSize;

use crate::net::{self, everywhere, everywhere_with};
use crate::store::Kind;
use testkit::packets::*;

fn kib(count: usize) -> String {
    "x".repeat(count * 1024)
}

/// Packets that waited after a PUBLISH have no effect once the connection is being closed.
#[test]
fn packets_after_the_one_that_ends_a_connection_have_no_effect() {
    everywhere_with(
        |settings| settings.limits.messages_per_second = 1,
        |net| {
            let client = net.connect(0, v3("c"));
            let packets = [
                message("a", 1).into(),
                message("a", 2).into(),
                v3("again").into(), // [MQTT3-3.1.0-2]
                subscribe(1).to("a", AtMostOnce).into(),
            ];
            net.send_all(client, packets);
            net.pass(3000);
            assert_eq!(net.received(client), [Sent::Closed]);
            assert_eq!(net.node.routes.len(), 0);
        },
    );
}

/// [MQTT-3.14.4-3]: a client that is made to wait may send DISCONNECT and close. Its packets count, and its Will is not
/// published.
#[test]
fn a_disconnect_after_a_publish_that_waits_is_handled() {
    everywhere_with(
        |settings| settings.limits.messages_per_second = 1,
        |net| {
            let subscriber = net.connect(1, v5("s"));
            net.subscribe(subscriber, "#", AtMostOnce);
            let client = net.connect(0, v5("c").will(message("will", "")));
            net.send_all(client, [message("a", 1).into(), message("a", 2).into(), goodbye()]);
            assert!(net.client(client).held, "the end of the stream is handled after DISCONNECT");
            net.pass(3000);
            assert_eq!(net.payloads(subscriber), ["1", "2"]);
            assert_eq!(net.received(client), [Sent::Closed]);
        },
    );
}

/// A client that sends packets while it waits does not cause more and more timers: that would continue for ever.
#[test]
fn a_publisher_that_waits_has_one_retry_timer() {
    everywhere_with(
        |settings| settings.limits.messages_per_second = 1,
        |net| {
            let client = net.connect(0, v3("c"));
            net.send_all(client, (0..10).map(|number| message("a", number).into()));
            net.send_all(client, (1..1000).map(pubrel));
            let before = net.counter(|counters| counters.publishers_blocked);
            net.pass(5000);
            let tries = net.counter(|counters| counters.publishers_blocked) - before;
            assert!(tries < 20, "{tries}");
        },
    );
}

/// DUP is set by the client; it does not make a message a known one.
#[test]
fn dup_does_not_lift_the_limit_of_messages_in_flight() {
    everywhere_with(
        |settings| settings.mqtt.receive_max = 2,
        |net| {
            let away = net.connect(1, durable(V5, "away"));
            net.subscribe(away, "#", AtLeastOnce);
            net.lose(away);
            let client = net.connect(0, v3("c"));
            net.store.hold(&[Kind::Append]);
            net.send_all(client, (1..20).map(|id| message("a", id).qos1(id).dup().into()));
            assert_eq!(net.counter(|counters| counters.publish_received()), 2);
            net.store.hold(&[]);
            net.release_held();
            assert_eq!(net.received(client), (1..20).map(puback).collect::<Vec<_>>());
        },
    );
}

/// A PUBREL before its PUBREC is answered after it: it does not reduce the number of messages in flight.
#[test]
fn an_early_pubrel_does_not_lift_the_receive_maximum() {
    everywhere_with(
        |settings| settings.mqtt.receive_max = 2,
        |net| {
            let away = net.connect(1, durable(V5, "away"));
            net.subscribe(away, "#", AtLeastOnce);
            net.lose(away);
            for connecting in [v3("c"), v5("c")] {
                net.store.hold(&[Kind::Append]);
                let client = net.connect(0, connecting);
                let before = net.counter(|counters| counters.publish_received());
                let flood = (1..20).flat_map(|_| [message("a", "").qos2(1).into(), pubrel(1)]);
                net.send_all(client, flood);
                assert!(net.counter(|counters| counters.publish_received()) - before <= 2);
                assert_eq!(net.received(client), []);
                net.store.hold(&[]);
                net.release_held();
                let answers = (1..20).flat_map(|_| [pubrec(1), pubcomp(1)]).collect::<Vec<_>>();
                assert_eq!(net.received(client), answers);
            }
        },
    );
}

/// [MQTT-3.3.4-7] counts messages that were sent on this connection (4.9): identifiers of a previous one are not among
/// them.
#[test]
fn unreleased_messages_of_a_previous_connection_do_not_reduce_receive_maximum() {
    everywhere_with(
        |settings| settings.mqtt.receive_max = 2,
        |net| {
            let client = net.connect(0, durable(V5, "c"));
            net.send_all(client, [1, 2].map(|id| message("a", id).qos2(id).into()));
            let no_one = |id| Sent::PubRec(id, ReasonCode::NoMatchingSubscribers);
            assert_eq!(net.received(client), [no_one(1), no_one(2)]);
            net.lose(client);
            let client = net.resume(1, durable(V5, "c"));
            net.send_all(client, [3, 4].map(|id| message("a", id).qos2(id).into()));
            assert_eq!(net.received(client), [no_one(3), no_one(4)]);
            net.send_all(client, [pubrel(1), pubrel(3)]);
            assert_eq!(net.received(client), [pubcomp(1), pubcomp(3)]);
            net.send_all(client, [message("a", 2).qos2(2).dup().into(), message("a", 5).qos2(5).into()]);
            assert_eq!(net.closed(client), Some(Some(ReasonCode::ReceiveMaximumExceeded)));
        },
    );
}

/// The limit is the node's: a publisher waits although all waiting messages are on another worker.
#[test]
fn memory_that_waits_on_another_worker_slows_a_publisher() {
    everywhere_with(
        |settings| settings.limits.memory_queued_max = ByteSize::mib(1),
        |net| {
            let subscriber = net.connect(1, v5("s").receive_max(1));
            net.subscribe(subscriber, "#", AtLeastOnce);
            let client = net.connect(0, v5("c"));
            for id in 1..40 {
                net.send(client, message("a", kib(64)).qos1(id));
            }
            assert!(net.counter(|counters| counters.publishers_blocked) > 0);
            assert!(net.queued_bytes() < 1200 * 1024, "{}", net.queued_bytes());
        },
    );
}

/// Messages for absent clients may wait for days. They are dropped for new ones; no publisher waits for them longer
/// than `queue.full_wait`.
#[test]
fn memory_that_waits_for_absent_clients_does_not_stop_the_node() {
    everywhere_with(
        |settings| settings.limits.memory_queued_max = ByteSize::mib(1),
        |net| {
            for name in ["x", "y", "z"] {
                let away = net.connect(1, durable(V5, name));
                net.subscribe(away, name, AtLeastOnce);
                net.lose(away);
            }
            let client = net.connect(0, v5("c"));
            for id in 1..=60 {
                let topic = ["x", "y", "z"][usize::from(id) % 3];
                net.send(client, message(topic, kib(64)).qos1(id));
            }
            net.pass(6500);
            assert_eq!(net.received(client), (1..=60).map(puback).collect::<Vec<_>>());
            assert!(net.queued_bytes() < 1200 * 1024, "{}", net.queued_bytes());
            let back = net.resume(2, durable(V5, "x"));
            assert!((1..20).contains(&net.received(back).len()));
        },
    );
}

/// [MQTT-3.1.2-25]: the alias of a message that was too large to be sent has not been introduced.
#[test]
fn a_message_too_large_for_its_client_introduces_no_alias() {
    everywhere(|net| {
        let subscriber = net.connect(1, v5("s").packet_size_max(40).alias_max(4));
        net.subscribe(subscriber, "#", AtLeastOnce);
        let client = net.connect(0, v5("c"));
        for payload in ["x".repeat(50), "fits".into(), "again".into()] {
            net.publish(client, "some/topic", payload);
        }
        assert_eq!(net.payloads(subscriber), ["fits", "again"]);
        // With the alias the message is a little too large, without it is not.
        net.publish(client, "t", "y".repeat(33));
        assert_eq!(net.payloads(subscriber), ["y".repeat(33)]);
        net.publish(client, "t", "short");
        assert_eq!(net.payloads(subscriber), ["short"]);
    });
}

/// The number of waiting bytes is reduced for messages of a shared subscription that are too large for the member.
#[test]
fn a_group_message_too_large_for_its_member_is_not_counted_any_more() {
    everywhere(|net| {
        let subscriber = net.connect(1, v5("s").packet_size_max(40));
        net.subscribe(subscriber, "$share/g/#", ExactlyOnce);
        let client = net.connect(0, v5("c"));
        net.send_all(client, [message("t", kib(1)).qos1(1).into(), message("t", kib(1)).qos2(2).into()]);
        assert_eq!(net.received(client), [puback(1), pubrec(2)]);
        assert_eq!(net.queued_bytes(), 0);
    });
}

/// [MQTT-4.8.2-5]: a QoS 2 message in flight goes to no other member, and does not wait any more when its client has
/// disconnected.
#[test]
fn a_group_message_in_flight_at_qos_2_is_not_counted_for_ever() {
    everywhere(|net| {
        let subscriber = net.connect(1, v5("s"));
        net.subscribe(subscriber, "$share/g/#", ExactlyOnce);
        let client = net.connect(0, v5("c"));
        net.send(client, message("t", kib(1)).qos2(1));
        assert!(net.queued_bytes() > 0);
        net.lose(subscriber);
        net.check_invariants();
        assert_eq!(net.queued_bytes(), 0);
    });
}

/// A reader that frees a slot now and then is slow, not stuck: it stays, and gets everything.
#[test]
fn a_reader_that_continues_to_read_is_not_closed_and_loses_nothing() {
    for subscriber in [v5("s"), durable(V5, "s")] {
        everywhere_with(
            |settings| settings.queue.messages_max = 2,
            |net| {
                let subscriber = net.connect(1, subscriber.clone().receive_max(1));
                net.subscribe(subscriber, "#", AtLeastOnce);
                let client = net.connect(0, v5("c"));
                net.send_all(client, (1..=30).map(|id| message("a", id).qos1(id).into()));
                let mut got = Vec::new();
                for _ in 0..30 {
                    net.pass(2000);
                    for packet in net.received(subscriber) {
                        let Sent::Publish(message) = packet else { panic!("{packet:?}") };
                        net.send(subscriber, puback(message.packet_id.expect("QoS 1")));
                        got.push(message.payload);
                    }
                }
                assert_eq!(got, (1..=30).map(|id| id.to_string()).collect::<Vec<_>>());
                assert_eq!(net.received(client), (1..=30).map(puback).collect::<Vec<_>>());
            },
        );
    }
}

/// A reader that frees none in `queue.full_wait` is closed, however long the queue before it was full.
#[test]
fn a_reader_that_stops_is_closed_after_the_wait() {
    everywhere_with(
        |settings| settings.queue.messages_max = 2,
        |net| {
            let subscriber = net.connect(1, v5("s").receive_max(1));
            net.subscribe(subscriber, "#", AtLeastOnce);
            let client = net.connect(0, v5("c"));
            net.send_all(client, (1..=10).map(|id| message("a", id).qos1(id).into()));
            net.pass(4000);
            net.send(subscriber, puback(1));
            net.pass(4000);
            assert_eq!(net.received(subscriber).len(), 2, "it was closed too early");
            net.pass(1500);
            assert_eq!(net.closed(subscriber), Some(Some(ReasonCode::QuotaExceeded)));
            assert_eq!(net.received(client), (1..=10).map(puback).collect::<Vec<_>>());
        },
    );
}

/// A client that acknowledges messages that it was not sent yet makes no room for more of them.
#[test]
fn a_message_that_is_acknowledged_before_it_was_sent_is_not_sent() {
    everywhere_with(
        |settings| settings.mqtt.inflight_max = 10,
        |net| {
            let subscriber = net.connect(1, durable(V5, "s"));
            net.subscribe(subscriber, "#", ExactlyOnce);
            net.stop_reading(subscriber);
            let client = net.connect(0, v5("c"));
            for id in 1..=100 {
                net.send(client, message("a", format!("{id} {}", kib(64))).qos1(id));
            }
            net.send_all(subscriber, (6..=10).map(puback));
            net.send_all(subscriber, (11..=15).map(puback));
            net.go_on_reading(subscriber);
            let sent = |packet: Sent| {
                let Sent::Publish(message) = packet else { panic!("{packet:?}") };
                message.packet_id.expect("QoS 1")
            };
            let sent: Vec<_> = net.received(subscriber).into_iter().map(sent).collect();
            assert_eq!(sent, [1, 2, 3, 4, 5, 16, 17, 18, 19, 20]);
        },
    );
}

#[test]
fn a_client_that_acknowledges_an_unsent_message_is_closed() {
    everywhere_with(
        |settings| settings.mqtt.inflight_max = 10,
        |net| {
            let subscriber = net.connect(1, durable(V5, "s"));
            net.subscribe(subscriber, "#", ExactlyOnce);
            net.stop_reading(subscriber);
            let client = net.connect(0, v5("c"));
            for id in 1..=100 {
                net.send(client, message("a", format!("{id} {}", kib(64))).qos1(id));
            }
            net.send_all(subscriber, (6..=100).map(puback));
            net.go_on_reading(subscriber);
            assert_eq!(net.closed(subscriber), Some(Some(ReasonCode::ProtocolError)));
        },
    );
}

/// Filters of one SUBSCRIBE are distinguished beyond the 65,536th.
#[test]
fn a_subscribe_with_many_filters_gets_as_many_reason_codes() {
    const COUNT: usize = 70_000;
    for subscriber in [v5("s"), durable(V5, "s")] {
        everywhere_with(
            |settings| settings.session.subscriptions_max = COUNT as u32 - 2,
            |net| {
                let client = net.connect(0, subscriber.clone());
                let mut packet = subscribe(1);
                for number in 0..COUNT {
                    packet = packet.to(&format!("f/{number}"), AtLeastOnce);
                }
                net.send(client, packet);
                net.pass(300);
                let received = net.received(client);
                let [Sent::SubAck(1, reasons)] = received.as_slice() else { panic!("one SUBACK") };
                assert_eq!(reasons.len(), COUNT);
                assert!(reasons[..COUNT - 2].iter().all(|reason| *reason == ReasonCode::GrantedQoS1));
                assert_eq!(reasons[COUNT - 2..], [ReasonCode::QuotaExceeded; 2]);
            },
        );
    }
}

/// [MQTT-2.2.1-3]: the answers of two SUBSCRIBEs under one Packet Identifier would be confused.
#[test]
fn a_packet_identifier_in_use_ends_the_connection() {
    everywhere_with(
        |settings| settings.session.subscriptions_max = 1,
        |net| {
            let client = net.connect(0, durable(V5, "c"));
            net.send_all(
                client,
                [
                    subscribe(5).to("$share/g/a", AtLeastOnce).into(),
                    subscribe(5).to("$share/g/b", AtLeastOnce).into(),
                ],
            );
            assert_eq!(net.closed(client), Some(Some(ReasonCode::ProtocolError)));
        },
    );
}

/// A client cannot accumulate SUBSCRIBEs while the store is late.
#[test]
fn a_flood_of_subscribes_waits_for_the_store() {
    everywhere(|net| {
        let client = net.connect(0, durable(V5, "c"));
        net.store.hold(&[Kind::Subscribe]);
        net.send_all(client, (1..=1000).map(|id| subscribe(id).to("a", AtMostOnce).into()));
        assert!(net.client(client).held);
        assert!(net.client(client).unsent.len() > 9 * 800);
        net.store.hold(&[]);
        net.release_held();
        assert_eq!(net.received(client).len(), 1000);
    });
}

/// A Will is a message like any other: it may not be on the broker's own topics, and the limits of topics apply.
#[test]
fn a_will_may_not_be_published_where_its_client_may_not() {
    everywhere(|net| {
        for connecting in [v3("c"), v5("c")] {
            let client = net.connecting(0, connecting.will(message("$SYS/broker/uptime", 0).retain()));
            assert_eq!(net.received(client), [refused(ReasonCode::NotAuthorized), Sent::Closed]);
        }
        let client = net.connecting(0, v5("c").will(message(&"/".repeat(200), 0)));
        assert_eq!(net.received(client), [refused(ReasonCode::TopicNameInvalid), Sent::Closed]);
    });
}

/// The limit is for the bytes that are stored, however they came to be.
#[test]
fn retained_messages_stay_within_their_limit_when_they_are_replaced() {
    everywhere_with(
        |settings| settings.retained.bytes_max = ByteSize::kib(64),
        |net| {
            let client = net.connect(0, v5("c"));
            let mut refused = 0;
            for (payload, first) in [("x".to_owned(), 1), (kib(10), 101)] {
                for number in 0..100 {
                    net.send(client, message(&format!("t/{number}"), &payload).retain().qos1(first + number));
                    net.pass(50);
                }
                net.pass(1000);
                for packet in net.received(client) {
                    let Sent::PubAck(_, reason) = packet else { panic!("{packet:?}") };
                    refused += usize::from(reason == ReasonCode::QuotaExceeded);
                }
            }
            net.pass(1000);
            let bytes: u64 =
                net.node.published.iter().map(|worker| Published::get(&worker.retained_bytes)).sum();
            // Each worker knows what the others held a second ago.
            assert!(bytes <= 64 * 1024 + 3 * 20 * 10 * 1024, "{bytes}");
            assert!(refused > 30, "{refused}");
            // Smaller ones and removals always fit.
            net.send(client, message("t/0", "").retain().qos1(500));
            assert_eq!(net.received(client).len(), 1);
        },
    );
}

/// [MQTT-3.1.2-24]: an answer that does not fit into a packet that the client accepts ends the connection.
#[test]
fn no_packet_is_larger_than_its_client_accepts() {
    everywhere(|net| {
        let client = net.connecting(0, v5("c").packet_size_max(8));
        assert_eq!(net.closed(client), Some(None));
        let client = net.connect(0, v5("c").packet_size_max(30));
        let filters = (0..40).fold(subscribe(1), |packet, number| packet.to(&number.to_string(), AtMostOnce));
        net.send(client, filters);
        assert_eq!(net.closed(client), Some(Some(ReasonCode::PacketTooLarge)));
    });
}

/// [MQTT-3.3.1-9]: pages of retained messages are requested one by one; a small queue loses none of them.
#[test]
fn a_small_queue_does_not_lose_retained_messages() {
    for subscriber in [v5("s"), durable(V5, "s")] {
        everywhere_with(
            |settings| {
                settings.queue.messages_max = 4;
                settings.queue.bytes_max = ByteSize::kib(1);
            },
            |net| {
                let client = net.connect(0, v5("c"));
                for number in 1..=100 {
                    net.send(client, message(&format!("t/{number}"), number).retain().qos1(number));
                }
                let subscriber = net.connect(1, subscriber.clone().receive_max(1));
                net.subscribe_silently(subscriber, "t/#", AtLeastOnce);
                let mut got = std::collections::BTreeSet::new();
                while let Some(packet) = net.client(subscriber).next() {
                    let Sent::Publish(message) = packet else { panic!("{packet:?}") };
                    net.send(subscriber, puback(message.packet_id.expect("QoS 1")));
                    got.insert(message.topic);
                }
                assert_eq!(got.len(), 100);
            },
        );
    }
}

/// [MQTT-3.10.4-2]: no new message is sent for a filter that was removed, including retained ones.
#[test]
fn unsubscribing_ends_the_retained_messages_of_the_filter() {
    everywhere(|net| {
        let client = net.connect(0, v5("c"));
        for number in 1..=500 {
            net.publish_retained(client, &format!("t/{number}"));
        }
        let subscriber = net.connect(1, v5("s"));
        net.stop_reading(subscriber);
        net.send(subscriber, subscribe(1).to("t/#", AtMostOnce));
        net.send(subscriber, unsubscribe(2, &["t/#"]));
        net.go_on_reading(subscriber);
        let received = net.received(subscriber);
        assert!(received.len() < 400, "{}", received.len());
    });
}

/// [MQTT-3.1.2-23]: an expired session has ended, also when a client connects before the node has noticed.
#[test]
fn a_session_ends_at_its_time_with_or_without_a_tick() {
    use broker::{Node, Time};
    let access = std::sync::Arc::new(broker::access::AllowAll);
    let node = Node::new(net::settings(), access, "test".into(), 1, [0; 16]);
    let mut worker = node.build_workers().remove(0);
    let mut connected = |now: Time| {
        let slot = worker.open(now, None).slot;
        let mut bytes = Vec::new();
        Sent::from(v5("c").resumes().expiry(10)).encode(V5, &mut bytes);
        worker.receive(now, slot, &bytes);
        worker.settle(now);
        let answer = worker.output(slot).expect("it is open").pending().to_vec();
        worker.lost(now, slot);
        worker.settle(now);
        worker.vacate(slot);
        let Ok(mqtt::Packet::ConnAck(ack)) = mqtt::decode(V5, &answer) else { panic!("{answer:?}") };
        ack.session_present
    };
    assert!(!connected(Time(0)));
    assert!(connected(Time(9_999)));
    assert!(!connected(Time(19_999)));
}

impl net::Net {
    fn subscribe_silently(&mut self, peer: net::Peer, filter: &str, qos: mqtt::QoS) {
        self.send(peer, subscribe(1000).to(filter, qos));
        assert_eq!(self.client(peer).next(), Some(suback(1000, &[qos])));
    }

    fn publish_retained(&mut self, peer: net::Peer, topic: &str) {
        self.send(peer, message(topic, kib(4)).retain());
    }
}

/// The first `count` bytes of a PUBLISH of 100,000 bytes at QoS 0.
fn beginning_of_a_large_message(count: usize) -> Vec<u8> {
    let mut packet = b"\x30\xA0\x8D\x06\0\x01t\0".to_vec();
    packet.resize(count, b'x');
    packet
}

/// `mqtt.packet_timeout`: it needs no Keep Alive, and closes for lack of progress, not for low speed.
#[test]
fn a_packet_that_is_never_finished_ends_its_connection_and_a_slow_one_arrives() {
    everywhere(|net| {
        let hoarder = net.connect(0, v5("hoarder"));
        let slow = net.connect(1, v5("slow"));
        let pinging = net.connect(2, v5("pinging"));
        net.send_bytes(hoarder, &beginning_of_a_large_message(90_000));
        let small = net.connect(1, v3("small"));
        net.send_bytes(small, &[0xC0]);
        net.send_bytes(slow, &beginning_of_a_large_message(1024));
        // One kilobyte in 20 s: half an hour for the packet.
        for _ in 0..96 {
            net.pass(20_000);
            net.send_bytes(slow, &[b'x'; 1024]);
            // A packet that has arrived completely leaves no timer with an effect.
            net.send_bytes(pinging, &[0xC0]);
            net.send_bytes(pinging, &[0x00, 0xC0]);
            net.send_bytes(pinging, &[0x00]);
        }
        let timeout = disconnect(ReasonCode::ImplementationSpecificError);
        assert_eq!(net.received(hoarder), [timeout, Sent::Closed]);
        assert_eq!(net.received(small), [Sent::Closed]);
        assert_eq!(net.counter(|counters| counters.packet_timeouts), 2);
        assert_eq!(net.received(pinging).len(), 192);
        let rest = 4 + 100_000 - 97 * 1024;
        net.send_bytes(slow, &vec![b'x'; rest]);
        assert_eq!(net.counter(|counters| counters.received_qos0), 1);
        net.pass(100_000);
        assert_eq!(net.received(slow), []);
    });
}

/// A client is not late while the node reads nothing from it.
#[test]
fn a_packet_that_waits_for_the_node_is_not_late() {
    everywhere_with(
        |settings| settings.limits.messages_per_second = 1,
        |net| {
            let client = net.connect(0, v5("c"));
            let large = message("t", kib(40));
            let packets: Vec<Sent> = (0..60).map(|_| large.clone().into()).collect();
            net.send_all(client, packets);
            net.send_bytes(client, &[0xC0]);
            net.pass(75_000);
            assert_eq!(net.received(client), []);
            net.send_bytes(client, &[0x00]);
            assert_eq!(net.received(client).len(), 1);
        },
    );
}

/// `mqtt.packet_size_before_login_max`: a CONNECT that is too large is refused before its body arrives, and a client
/// that has logged in may send more.
#[test]
fn a_packet_that_is_too_large_before_login_is_refused_at_its_fixed_header() {
    everywhere(|net| {
        // 64 KiB and one byte; the packet itself is never sent.
        let unauthenticated = net.open(0, V5);
        net.send_bytes(unauthenticated, &[0x10, 0xFD, 0xFF, 0x03]);
        assert_eq!(net.received(unauthenticated), [Sent::Closed]);
        let named = net.open(1, V5);
        net.send_bytes(named, b"\x10\xFD\xFF\x03\0\x04MQTT\x05");
        assert_eq!(net.received(named), [refused(ReasonCode::PacketTooLarge), Sent::Closed]);
        let unauthenticated = net.open(1, V5);
        net.send_bytes(unauthenticated, b"\x10\xFC\xFF\x03\0\x04MQTT\x05");
        assert_eq!(net.received(unauthenticated), [], "64 KiB may arrive");
        let client = net.connect(2, v5("c"));
        net.subscribe(client, "a", AtMostOnce);
        net.publish(client, "a", kib(100));
        assert_eq!(net.payloads(client), [kib(100)]);
    });
}

/// The effects of one segment of small packets are bounded: a publisher whose messages go to very many receivers has
/// its turn, and other clients have theirs.
#[test]
fn a_publisher_with_very_many_receivers_is_read_in_parts() {
    everywhere(|net| {
        let readers: Vec<_> = (0..50).map(|number| net.connect(number, v5(&format!("r{number}")))).collect();
        for reader in &readers {
            net.subscribe(*reader, "wide", AtMostOnce);
        }
        let client = net.connect(0, v5("publisher"));
        net.send_all(client, (0..2000).map(|number| message("wide", number).into()));
        // 65,536 deliveries to 50 receivers.
        assert_eq!(net.counter(|counters| counters.received_qos0), 1311);
        assert_eq!(net.counter(|counters| counters.fan_out_pauses), 1);
        let other = net.connect(0, v5("other"));
        net.publish(other, "wide", "between");
        net.pass(1);
        let all: Vec<String> = (0..1311).chain(1311..2000).map(|number| number.to_string()).collect();
        for reader in readers {
            let mut read = net.payloads(reader);
            let between = read.iter().position(|payload| payload == "between");
            read.remove(between.expect("the other publisher is not kept waiting"));
            assert_eq!(between, Some(1311));
            assert_eq!(read, all);
        }
    });
}

/// The bound also applies to shared groups, which cost more, and to packets that were kept after a PUBLISH that had to
/// wait.
#[test]
fn a_publisher_to_very_many_shared_groups_is_read_in_parts() {
    everywhere_with(
        |settings| settings.mqtt.receive_max = 1,
        |net| {
            let reader = net.connect(1, v5("r"));
            for group in 0..400 {
                net.subscribe(reader, &format!("$share/g{group}/wide"), AtMostOnce);
            }
            let away = net.connect(1, durable(V5, "away"));
            net.subscribe(away, "slow", AtLeastOnce);
            net.lose(away);
            let before = net.counter(|counters| counters.fan_out_pauses);
            // The second PUBLISH of QoS 1 waits for the first, and the rest waits too.
            net.store.hold(&[Kind::Append]);
            let client = net.connect(0, v3("publisher"));
            let slow = [1, 2].map(|id| message("slow", id).qos1(id).into());
            net.send_all(
                client,
                slow.into_iter().chain((0..200).map(|number| message("wide", number).into())),
            );
            assert_eq!(net.counter(|counters| counters.received_qos0), 0);
            net.store.hold(&[]);
            net.release_held();
            let sent = net.counter(|counters| counters.received_qos0);
            assert!((10..100).contains(&sent), "{sent} messages to 400 groups");
            net.pass(20);
            assert_eq!(net.counter(|counters| counters.received_qos0), 200);
            assert_eq!(net.received(client), [puback(1), puback(2)]);
            assert!(net.counter(|counters| counters.fan_out_pauses) > before + 2);
            assert_eq!(net.payloads(reader).len(), 400 * 200);
            // A group that has left is not charged for.
            let filters: Vec<String> = (0..400).map(|group| format!("$share/g{group}/wide")).collect();
            let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
            net.send(reader, unsubscribe(9, &filters));
            net.pass(5);
            let pauses = net.counter(|counters| counters.fan_out_pauses);
            net.send_all(client, (0..2000).map(|number| message("wide", number).into()));
            assert_eq!(net.counter(|counters| counters.received_qos0), 2200);
            assert_eq!(net.counter(|counters| counters.fan_out_pauses), pauses);
        },
    );
}

/// `session.shared_subscriptions_max`, also for subscriptions on their way to the store.
#[test]
fn the_number_of_shared_subscriptions_of_a_client_is_bounded() {
    everywhere_with(
        |settings| settings.session.shared_subscriptions_max = 20,
        |net| {
            for connecting in [v5("c"), durable(V5, "d")] {
                net.store.hold(&[Kind::Subscribe]);
                let client = net.connect(1, connecting.clone());
                for packet in 0..3 {
                    let filter = |number| format!("$share/g{}/t", packet * 10 + number);
                    let all = (0..10).fold(subscribe(packet + 1), |all, number| {
                        all.to(&filter(number), AtLeastOnce).to(&filter(number)[8..], AtMostOnce)
                    });
                    net.send(client, all);
                }
                net.store.hold(&[]);
                net.release_held();
                let granted = [ReasonCode::GrantedQoS1, ReasonCode::Success].repeat(10);
                let refused = [ReasonCode::QuotaExceeded, ReasonCode::Success].repeat(10);
                let answers = [(1, granted.clone()), (2, granted), (3, refused)];
                let answers = answers.map(|(id, reasons)| Sent::SubAck(id, reasons));
                let mut received = net.received(client);
                received.sort_by_key(|packet| if let Sent::SubAck(id, _) = packet { *id } else { 0 });
                assert_eq!(received, answers);
                // An existing one is replaced, and one that has left makes room.
                net.subscribe(client, "$share/g0/t", AtMostOnce);
                net.send(client, unsubscribe(9, &["$share/g0/t"]));
                net.received(client);
                net.subscribe(client, "$share/h/t", AtLeastOnce);
                net.send(client, goodbye());
            }
            assert_eq!(net.counter(|counters| counters.subscribe_shared_refused), 20);
            let client = net.resume(0, durable(V5, "d"));
            net.send(client, subscribe(4).to("$share/i/t", AtLeastOnce));
            assert_eq!(net.received(client), [Sent::SubAck(4, vec![ReasonCode::QuotaExceeded])]);
        },
    );
}
