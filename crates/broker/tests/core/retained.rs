//! Retained messages: which ones a subscription gets, and very many of them for a slow reader.

use mqtt::QoS::{self, AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::RetainHandling::{DoNotSend, Send, SendIfNew};
use mqtt::Version::{V3_1_1, V5};
use mqtt::{ReasonCode, SubscriptionOptions};

use std::sync::Arc;

use broker::access::AllowAll;

use crate::log::Log;
use crate::net::{Net, Peer, everywhere, everywhere_with, settings};
use crate::store::Kind;
use testkit::packets::*;

/// Retains a message on each of `count` topics; payloads are their numbers.
fn retain(net: &mut Net, count: usize, qos: QoS) {
    let publisher = net.connect(0, v5("publisher"));
    for number in 0..count {
        let id = 1 + (number % 1000) as u16;
        let retained = message(&format!("r/{}/{number}", number % 7), number).retain();
        let retained = Message { packet_id: (qos > AtMostOnce).then_some(id), qos, ..retained };
        net.send(publisher, retained);
        if qos == ExactlyOnce {
            net.send(publisher, pubrel(id));
        }
    }
    net.received(publisher);
    net.lose(publisher);
}

fn numbers(received: Vec<Sent>) -> Vec<usize> {
    let number = |packet: Sent| match packet {
        Sent::Publish(message) => {
            assert!(message.retain, "[MQTT-3.3.1-8]");
            message.payload.parse().ok()
        }
        _ => None,
    };
    received.into_iter().filter_map(number).collect()
}

fn all_of(mut numbers: Vec<usize>, count: usize) {
    numbers.sort_unstable();
    assert_eq!(numbers.len(), count);
    assert!(numbers.into_iter().eq(0..count));
}

/// [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]
#[test]
fn retain_handling_decides_which_subscriptions_get_retained_messages() {
    for connecting in [v5("c"), durable(V5, "c")] {
        everywhere(|net| {
            retain(net, 3, AtLeastOnce);
            let client = net.connect(1, connecting.clone());
            let mut ask = |handling, expected| {
                net.send(client, subscribe(1).retain_handling("r/#", handling));
                let received = net.received(client);
                assert_eq!(received.first(), Some(&suback(1, &[ExactlyOnce])), "[MQTT-3.8.4-1]");
                let numbers = numbers(received);
                assert_eq!(numbers.len(), expected, "{handling:?}");
            };
            ask(DoNotSend, 0);
            ask(SendIfNew, 0);
            ask(Send, 3);
            net.send(client, unsubscribe(2, &["r/#"]));
            net.received(client);
            let mut ask = |handling, expected| {
                net.send(client, subscribe(1).retain_handling("r/#", handling));
                assert_eq!(numbers(net.received(client)).len(), expected);
            };
            ask(SendIfNew, 3);
            ask(SendIfNew, 0);
        });
    }
}

/// [MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-7]
#[test]
fn an_empty_retained_message_removes_the_one_before() {
    everywhere(|net| {
        retain(net, 2, AtLeastOnce);
        let publisher = net.connect(1, v5("p"));
        net.publish(publisher, "r/1/1", "not retained");
        net.send(publisher, message("r/0/0", "").qos1(1).retain());
        let client = net.connect(2, v5("c"));
        net.send(client, subscribe(1).to("r/#", AtMostOnce));
        assert_eq!(net.received(client), [suback(1, &[AtMostOnce]), message("r/1/1", 1).retain().into()]);
        let other = net.connect(0, v5("o"));
        net.send(other, subscribe(1).to("r/0/0", AtMostOnce));
        assert_eq!(net.received(other), [suback(1, &[AtMostOnce])]);
    });
}

/// Shared subscriptions get no retained messages (4.8.2).
#[test]
fn a_shared_subscription_gets_no_retained_messages() {
    everywhere(|net| {
        retain(net, 2, AtLeastOnce);
        for connecting in [v5("c"), durable(V5, "d")] {
            let client = net.connect(1, connecting);
            net.subscribe(client, "$share/g/r/#", AtLeastOnce);
        }
    });
}

/// [MQTT-3.3.1-12] [MQTT-3.3.1-13]
#[test]
fn retain_as_published_applies_to_live_messages() {
    for connecting in [v5("c"), durable(V5, "c")] {
        everywhere(|net| {
            let client = net.connect(0, connecting.clone());
            let with = |retain_as_published| SubscriptionOptions {
                qos: AtLeastOnce,
                retain_as_published,
                ..SubscriptionOptions::default()
            };
            net.send(client, subscribe(1).with("r/a", with(false)).with("r/b", with(true)));
            net.received(client);
            let publisher = net.connect(1, v5("p"));
            net.publish(publisher, "r/a", "unused");
            net.send(publisher, message("r/a", 1).retain());
            net.send(publisher, message("r/b", 2).retain());
            net.send(publisher, message("r/b", 3).qos1(1).retain());
            let expected = [
                message("r/a", "unused"),
                message("r/a", 1),
                message("r/b", 2).retain(),
                message("r/b", 3).qos1(1).retain(),
            ];
            assert_eq!(net.received(client), expected.map(Sent::from));
        });
    }
}

/// A refusal says that no client has the message. There is no room to retain it, so it is delivered to nobody. A
/// message that replaces another one is delivered.
#[test]
fn a_retained_message_without_room_is_delivered_to_no_client() {
    everywhere_with(
        |settings| settings.retained.messages_max = 1,
        |net| {
            let witnesses = [v5("w"), durable(V5, "d"), durable(V5, "e")].map(|witness| {
                let witness = net.connect(1, witness);
                net.subscribe(witness, "r/#", ExactlyOnce);
                witness
            });
            let publishers = [v5("p"), durable(V5, "q")].map(|publisher| net.connect(0, publisher));
            net.send(publishers[0], message("r/1", "first").qos1(1).retain());
            assert_eq!(net.received(publishers[0]), [puback(1)]);
            for publisher in publishers {
                net.send(publisher, message("r/2", "no").qos1(2).retain());
                net.send(publisher, message("r/2", "nor this").qos2(3).retain());
                let refused =
                    [Sent::PubAck(2, ReasonCode::QuotaExceeded), Sent::PubRec(3, ReasonCode::QuotaExceeded)];
                assert_eq!(net.received(publisher), refused);
            }
            let older = net.connect(2, v3("older"));
            net.send(older, message("r/3", "no").qos1(1).retain());
            assert_eq!(net.received(older), [Sent::Closed], "it has no code for it");
            net.send(publishers[1], message("r/1", "last").qos2(3).retain());
            assert_eq!(net.received(publishers[1]), [pubrec(3)]);
            net.send(publishers[1], pubrel(3));
            net.send(publishers[0], message("r/2", "live").qos1(4));
            for witness in witnesses {
                assert_eq!(net.payloads(witness), ["first", "last", "live"]);
            }
            let late = net.connect(2, v5("late"));
            net.send(late, subscribe(1).to("r/#", AtMostOnce));
            let found = net.received(late);
            assert_eq!(found[1..], [message("r/1", "last").retain().into()]);
            net.send(publishers[0], message("r/1", "").qos1(5).retain());
        },
    );
}

#[test]
fn the_number_of_retained_messages_is_bounded() {
    everywhere_with(
        |settings| settings.retained.messages_max = 2,
        |net| {
            let publisher = net.connect(0, v5("p"));
            for id in 1..=2 {
                net.send(publisher, message(&format!("r/{id}"), id).qos1(id).retain());
                let ack = Sent::PubAck(id, ReasonCode::NoMatchingSubscribers);
                assert_eq!(net.received(publisher), [ack]);
            }
            // Workers get each other's figures about once a second.
            net.pass(2_000);
            net.send(publisher, message("r/3", 3).qos1(3).retain());
            assert_eq!(net.received(publisher), [Sent::PubAck(3, ReasonCode::QuotaExceeded)]);
            let older = net.connect(1, v3("older"));
            net.send(older, message("r/3", 3).qos1(3).retain());
            assert_eq!(
                net.received(older),
                [Sent::Closed],
                "a message that was not retained is not acknowledged"
            );
            net.send(publisher, message("r/1", "").qos1(4).retain());
            net.pass(2_000);
            net.send(publisher, message("r/3", 3).qos1(5).retain());
            net.received(publisher);
            let client = net.connect(2, v5("c"));
            net.send(client, subscribe(1).to("r/+", AtMostOnce));
            let mut found = numbers(net.received(client));
            found.sort_unstable();
            assert_eq!(found, [2, 3]);
        },
    );
}

const MANY: usize = 10_000;

/// A QoS 0 reader gets them as fast as its connection allows; none is dropped on the way.
#[test]
fn a_slow_reader_gets_ten_thousand_retained_messages_at_qos_0() {
    everywhere(|net| {
        retain(net, MANY, AtMostOnce);
        let client = net.connect(1, v5("c"));
        net.stop_reading(client);
        net.send(client, subscribe(1).to("r/#", AtMostOnce));
        let mut received = Vec::new();
        while net.unread(client) > 0 {
            assert!(net.unread(client) < 1024 * 1024, "no more than it can have soon");
            net.read(client, 20_000);
            received.extend(net.received(client));
        }
        all_of(numbers(received), MANY);
    });
}

/// A reader that acknowledges a few at a time sets the pace.
#[test]
fn a_reader_with_a_small_window_gets_ten_thousand_retained_messages() {
    for connecting in [v5("c"), durable(V5, "c")] {
        everywhere_with(
            |settings| settings.queue.messages_max = 200,
            |net| {
                retain(net, MANY, AtLeastOnce);
                let client = net.connect(1, connecting.clone().receive_max(10));
                net.send(client, subscribe(1).to("r/#", AtLeastOnce));
                let mut all = Vec::new();
                loop {
                    let received = net.received(client);
                    let id = |packet: &Sent| match packet {
                        Sent::Publish(message) => message.packet_id,
                        _ => None,
                    };
                    let acks: Vec<_> = received.iter().filter_map(id).map(puback).collect();
                    if acks.is_empty() {
                        break;
                    }
                    all.extend(numbers(received));
                    // It is slow: it takes longer in total than `queue.full_wait`.
                    net.pass(10);
                    net.send_all(client, acks);
                    assert!(net.queued_bytes() < 200_000);
                }
                all_of(all, MANY);
            },
        );
    }
}

/// Small queues delay a page of retained messages; they do not drop it.
#[test]
fn a_queue_smaller_than_a_page_loses_no_retained_messages() {
    for connecting in [v5("c"), durable(V5, "c")] {
        everywhere_with(
            |settings| settings.queue.messages_max = 2,
            |net| {
                retain(net, 200, AtLeastOnce);
                let client = net.connect(1, connecting.clone().receive_max(1));
                net.send(client, subscribe(1).to("r/#", AtLeastOnce));
                let mut all = Vec::new();
                for _ in 0..201 {
                    for packet in net.received(client) {
                        if let Sent::Publish(message) = &packet {
                            net.send(client, puback(message.packet_id.expect("QoS 1")));
                            all.extend(numbers(vec![packet]));
                        }
                    }
                }
                all_of(all, 200);
            },
        );
    }
}

/// Messages that are published while retained messages still arrive are delivered too.
#[test]
fn live_messages_are_delivered_between_retained_ones() {
    everywhere(|net| {
        retain(net, 500, AtMostOnce);
        let client = net.connect(1, v5("c"));
        let publisher = net.connect(2, v5("p"));
        net.send_without_running(client, subscribe(1).to("#", AtMostOnce));
        for number in 0..20 {
            net.step(None);
            net.send_without_running(publisher, message("live", number));
        }
        net.run();
        let (retained, live): (Vec<_>, Vec<_>) = net
            .received(client)
            .into_iter()
            .filter(|packet| matches!(packet, Sent::Publish(_)))
            .partition(|packet| matches!(packet, Sent::Publish(message) if message.retain));
        all_of(numbers(retained), 500);
        assert!(!live.is_empty());
    });
}

/// [MQTT-3.3.1-5] [MQTT-4.3.2-4]: an acknowledged message is the retained one whatever happens then.
#[test]
fn a_retained_message_is_acknowledged_when_the_store_has_it() {
    everywhere(|net| {
        let publisher = net.connect(0, v5("p"));
        let unmatched = |id| Sent::PubAck(id, ReasonCode::NoMatchingSubscribers);
        net.store.hold(&[Kind::Retain]);
        net.send(publisher, message("r/0", 0).qos1(1).retain());
        net.send(publisher, message("r/0", "").qos1(2).retain());
        net.send(publisher, message("r/1", 1).qos1(3).retain());
        assert_eq!(net.received(publisher), []);
        net.release_held();
        assert_eq!(net.received(publisher), [unmatched(1), unmatched(2), unmatched(3)]);
        net.store.fail(Kind::Retain, ReasonCode::QuotaExceeded);
        net.send(publisher, message("r/2", 2).qos1(4).retain());
        assert_eq!(net.received(publisher), [Sent::PubAck(4, ReasonCode::QuotaExceeded)]);
        net.store.heal();
        let client = net.connect(1, v5("c"));
        net.send(client, subscribe(1).to("#", AtMostOnce));
        assert_eq!(numbers(net.received(client)), [1]);
    });
}

/// An operator gets the number of deleted messages when the store has deleted them.
#[test]
fn a_deletion_is_answered_when_the_store_has_completed_it() {
    everywhere(|net| {
        retain(net, 20, AtMostOnce);
        let topics: Vec<Box<str>> =
            (0..25).map(|number| format!("r/{}/{number}", number % 7).into()).collect();
        let sum = std::sync::Arc::<std::sync::Mutex<Vec<usize>>>::default();
        let told = sum.clone();
        net.store.hold(&[Kind::DeleteRetained]);
        let admin = net.admin();
        let answers =
            admin.delete_retained(&topics, move |count| told.lock().expect("one thread").push(count));
        net.run();
        assert!(sum.lock().expect("one thread").is_empty());
        net.release_held();
        let counts = sum.lock().expect("one thread").clone();
        assert_eq!((counts.len(), counts.iter().sum::<usize>()), (answers, 20));
        let client = net.connect(1, v5("c"));
        net.send(client, subscribe(1).to("r/#", AtMostOnce));
        assert_eq!(net.received(client), [suback(1, &[AtMostOnce])]);
    });
}

/// Acknowledges the messages that a durable subscriber is sent until none arrives any more, and returns the payloads.
fn take_all(net: &mut Net, log: Option<&Log>, peer: Peer) -> Vec<usize> {
    let mut payloads = Vec::new();
    loop {
        let received = net.received(peer);
        let ids: Vec<u16> = received
            .iter()
            .filter_map(|sent| match sent {
                Sent::Publish(message) => message.packet_id,
                _ => None,
            })
            .collect();
        payloads.extend(numbers(received));
        if ids.is_empty() {
            return payloads;
        }
        net.send_all(peer, ids.into_iter().map(puback));
        if let Some(log) = log {
            net.sync(log);
        }
    }
}

/// A walk over more retained messages than fit into the queue of the session is interrupted by the end of the
/// connection, again and again: each message arrives once.
#[test]
fn the_remaining_retained_messages_of_a_durable_session_arrive_after_a_reconnect() {
    for (messages_max, window) in [(1000, 500), (20, 3)] {
        everywhere_with(
            |settings| settings.queue.messages_max = messages_max,
            |net| {
                retain(net, 1500, AtLeastOnce);
                let connecting = || durable(V5, "c").receive_max(window);
                let client = net.connect(1, connecting());
                net.send(client, subscribe(1).to("r/#", AtLeastOnce));
                let mut found = Vec::new();
                for index in 0..5 {
                    let client = if index == 0 { client } else { net.resume(index, connecting()) };
                    let received = net.received(client);
                    let first: Vec<_> =
                        received.into_iter().filter(|sent| matches!(sent, Sent::Publish(_))).collect();
                    // Some are acknowledged and some are not: these arrive again.
                    let half = first.len() / 2;
                    for sent in &first[..half] {
                        let Sent::Publish(message) = sent else { continue };
                        net.send_without_running(client, puback(message.packet_id.expect("QoS 1")));
                    }
                    found.extend(numbers(first[..half].to_vec()));
                    net.run();
                    // Messages that follow these acknowledgements are not acknowledged.
                    net.received(client);
                    net.lose(client);
                }
                let client = net.resume(2, connecting());
                found.extend(take_all(net, None, client));
                all_of(found, 1500);
                assert!(net.counter(|counters| counters.retained_scans_resumed) > 0);
                // No message is left.
                net.lose(client);
                let client = net.resume(0, connecting());
                assert_eq!(net.received(client), []);
            },
        );
    }
}

/// The progress of the walk is on the disk together with the messages that it queued. So a crash loses none either, and
/// at QoS 1 no message arrives twice that was acknowledged before.
#[test]
fn the_remaining_retained_messages_of_a_durable_session_arrive_after_a_crash() {
    let mut settings = settings();
    settings.queue.messages_max = 100;
    let (mut net, log) = Net::with_log(3, settings, Arc::new(AllowAll));
    retain(&mut net, 1000, AtLeastOnce);
    net.sync(&log);
    let connecting = || durable(V5, "c").receive_max(10);
    let client = net.connecting(1, connecting());
    net.sync(&log);
    net.send(client, subscribe(1).to("r/#", AtLeastOnce));
    net.sync(&log);
    assert_eq!(net.received(client).len(), 2 + 10);
    let (mut net, log) = net.after_crash(&log);
    let client = net.connecting(0, connecting());
    net.sync(&log);
    let mut first = net.received(client);
    assert_eq!(first.remove(0), connack(true));
    let ids: Vec<u16> = (1..=10).collect();
    net.send_all(client, ids.into_iter().map(puback));
    net.sync(&log);
    let mut found = numbers(first);
    found.extend(take_all(&mut net, Some(&log), client));
    all_of(found, 1000);
}

/// [MQTT-3.3.1-9] [MQTT-3.8.4-3]: a SUBSCRIBE that replaces a subscription brings all its retained messages, also if
/// those for the first SUBSCRIBE were still being sent and the connection ends meanwhile.
#[test]
fn a_second_subscribe_brings_all_retained_messages_also_after_a_reconnect() {
    everywhere_with(
        |settings| settings.queue.messages_max = 20,
        |net| {
            retain(net, 200, AtLeastOnce);
            let connecting = || durable(V5, "c").receive_max(5);
            let client = net.connect(1, connecting());
            net.send(client, subscribe(1).to("r/#", AtLeastOnce));
            let acknowledge = |net: &mut Net| {
                let received = net.received(client);
                for sent in &received {
                    if let Sent::Publish(message) = sent {
                        net.send_without_running(client, puback(message.packet_id.expect("QoS 1")));
                    }
                }
                net.run();
                received
            };
            for _ in 0..4 {
                acknowledge(net);
            }
            net.send(client, subscribe(2).to("r/#", AtLeastOnce));
            let mut found = Vec::new();
            for _ in 0..4 {
                found.extend(numbers(acknowledge(net)));
            }
            net.lose(client);
            let client = net.resume(2, connecting());
            found.extend(take_all(net, None, client));
            found.sort_unstable();
            found.dedup();
            all_of(found, 200);
        },
    );
}

/// [MQTT-3.3.1-9]: a message that is sent again after a reconnect is no newer one than the retained message of its
/// topic, which the last SUBSCRIBE still has to bring.
#[test]
fn a_message_that_is_sent_again_replaces_no_retained_one() {
    everywhere_with(
        |settings| settings.queue.messages_max = 20,
        |net| {
            retain(net, 200, AtLeastOnce);
            let connecting = || durable(V5, "c").receive_max(5);
            let client = net.connect(1, connecting());
            net.send(client, subscribe(1).to("r/#", AtLeastOnce));
            take_all(net, None, client);
            let publisher = net.connect(0, v5("publisher"));
            net.send(publisher, message("r/new", 200).retain().qos1(1));
            assert_eq!(net.received(client).len(), 1, "the message, which is not acknowledged");
            net.send(client, subscribe(2).to("r/#", AtLeastOnce));
            net.lose(client);
            let client = net.resume(2, connecting());
            let mut retained = Vec::new();
            loop {
                let mut received = net.received(client);
                received.retain(|sent| matches!(sent, Sent::Publish(_)));
                if received.is_empty() {
                    break;
                }
                for sent in received {
                    let Sent::Publish(message) = sent else { continue };
                    net.send_without_running(client, puback(message.packet_id.expect("QoS 1")));
                    retained
                        .extend(message.retain.then(|| message.payload.parse::<usize>().expect("a number")));
                }
                net.run();
            }
            assert!(retained.contains(&200), "{retained:?}");
        },
    );
}

/// [MQTT-3.10.4-2]: a subscription that has ended gets no more of them, also after a reconnect.
#[test]
fn the_end_of_a_subscription_ends_its_walk() {
    everywhere(|net| {
        retain(net, 800, AtLeastOnce);
        let client = net.connect(1, durable(V5, "c").receive_max(10));
        net.send(client, subscribe(1).to("r/#", AtLeastOnce));
        net.send(client, unsubscribe(2, &["r/#"]));
        net.lose(client);
        let client = net.resume(0, durable(V5, "c").receive_max(10));
        let found = take_all(net, None, client);
        assert!(found.len() < 800, "{}", found.len());
        assert_eq!(net.counter(|counters| counters.retained_scans_resumed), 0);
    });
}

/// `retained.scanned_per_second`: a client with very many matches gets them slowly, and others at once.
#[test]
fn retained_messages_are_looked_at_for_each_client_at_a_bounded_pace() {
    everywhere_with(
        |settings| settings.retained.scanned_per_second = 1000,
        |net| {
            retain(net, 300, AtLeastOnce);
            let greedy = net.connect(1, v5("greedy"));
            let all =
                (0..100).fold(subscribe(1), |all, number| all.to(&format!("r/+/x{number}"), AtMostOnce));
            net.send(greedy, all.to("r/#", AtMostOnce));
            assert!(numbers(net.received(greedy)).is_empty());
            let looked = |net: &Net| net.counter(|counters| counters.retained_scanned);
            let at_once = looked(net);
            assert!(at_once <= 3 * 2048, "a second's worth and what is under way: {at_once}");
            let other = net.connect(1, v5("other"));
            net.send(other, subscribe(1).to("r/#", AtMostOnce));
            all_of(numbers(net.received(other)), 300);
            let before = looked(net);
            net.pass(10_000);
            let in_ten_seconds = looked(net) - before;
            assert!((4000..14_000).contains(&in_ten_seconds), "{in_ten_seconds}");
            net.pass(60_000);
            all_of(numbers(net.received(greedy)), 300);
        },
    );
}

/// A message for many receivers is encoded once for each form that it has: receivers differ by version, QoS and RETAIN.
#[test]
fn each_of_many_receivers_gets_the_message_in_its_own_form() {
    everywhere(|net| {
        let mut receivers = Vec::new();
        for round in 0..2 {
            for (version, retain) in [(V5, false), (V5, true), (V3_1_1, false)] {
                for qos in [AtMostOnce, AtLeastOnce, ExactlyOnce] {
                    let name = format!("{round} {version:?} {retain} {qos:?}");
                    let peer = net.connect(receivers.len(), Connecting { version, ..v5(&name) });
                    let options = SubscriptionOptions {
                        qos,
                        retain_as_published: retain,
                        ..SubscriptionOptions::default()
                    };
                    net.send(peer, subscribe(1).with("t/+", options));
                    assert_eq!(net.received(peer), [suback(1, &[qos])]);
                    receivers.push((peer, retain, qos, name));
                }
            }
        }
        let publisher = net.connect(0, v5("publisher"));
        for payload in ["first", "second"] {
            net.send(publisher, message("t/1", payload).retain().qos2(1));
            net.send(publisher, pubrel(1));
            for (peer, retain, qos, name) in &receivers {
                let received = net.received(*peer);
                let [Sent::Publish(got)] = &received[..] else { panic!("{name}: {received:?}") };
                let packet_id = (*qos > AtMostOnce).then_some(if payload == "first" { 1 } else { 2 });
                let expected = (payload, "t/1", *qos, *retain, packet_id);
                assert_eq!(
                    (&*got.payload, &*got.topic, got.qos, got.retain, got.packet_id),
                    expected,
                    "{name}"
                );
            }
        }
    });
}
