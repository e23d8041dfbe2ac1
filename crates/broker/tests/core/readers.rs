//! Slow readers: they set the pace of exactly those clients that publish to them, for as long as they read at all.

use std::sync::Arc;
use std::time::Duration;

use broker::access::INTERNAL_LISTENER;
use broker::internal::{QUEUE_BYTES_MAX, QUEUE_MESSAGES_MAX};
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::ReasonCode;
use mqtt::Version::V5;
use settings::ByteSize;

use crate::log::Log;
use crate::net::{Net, Peer, everywhere, everywhere_with, settings};
use testkit::packets::*;

/// Publishes `count` messages at QoS 1; returns how many are acknowledged.
fn publish(net: &mut Net, publisher: Peer, count: u16) -> usize {
    let messages = (1..=count).map(|id| message("t", id).qos1(id).into());
    net.send_all(publisher, messages);
    net.received(publisher).len()
}

fn acknowledged(net: &mut Net, publisher: Peer) -> Vec<Sent> {
    net.received(publisher)
}

/// Messages fill the slots in flight and in the queue. Beyond them publishers wait, and only those that publish to this
/// reader.
#[test]
fn only_publishers_to_a_full_queue_wait_for_a_slot() {
    for reader in [v5("reader"), durable(V5, "reader")] {
        everywhere_with(
            |settings| settings.queue.messages_max = 3,
            |net| {
                let reader = net.connect(0, reader.clone().receive_max(2));
                net.subscribe(reader, "t", AtLeastOnce);
                let quick = net.connect(1, v5("quick"));
                net.subscribe(quick, "u", AtLeastOnce);
                for index in 0..3 {
                    let publisher = net.connect(index, v5(&format!("p{index}")));
                    let receivers = if index == 0 { 5 } else { 0 };
                    assert_eq!(publish(net, publisher, 6), receivers);
                    net.send(publisher, message("u", "elsewhere").qos1(9));
                    // [MQTT-4.6.0-2]: it is delivered, its PUBACK waits for the earlier ones.
                    assert_eq!(net.payloads(quick), ["elsewhere"]);
                    net.send(quick, puback(index as u16 + 1));
                }
                let other = net.connect(2, v5("other"));
                net.send(other, message("u", "not slowed").qos1(1));
                assert_eq!(net.received(other), [puback(1)]);
            },
        );
    }
}

/// Each acknowledgement of the reader frees one publish, in the order of their arrival, whatever worker they came from.
#[test]
fn each_acknowledgement_of_the_reader_frees_one_publish() {
    for reader in [v5("reader"), durable(V5, "reader")] {
        everywhere_with(
            |settings| settings.queue.messages_max = 1,
            |net| {
                let reader = net.connect(0, reader.clone().receive_max(1));
                net.subscribe(reader, "t", ExactlyOnce);
                let publisher = net.connect(1, v5("p"));
                assert_eq!(publish(net, publisher, 5), 2);
                for id in 1..=5 {
                    assert_eq!(net.payloads(reader), [id.to_string()]);
                    net.send(reader, puback(id));
                    let freed = (id + 2 <= 5).then(|| puback(id + 2));
                    assert_eq!(acknowledged(net, publisher), freed.into_iter().collect::<Vec<_>>());
                }
            },
        );
    }
}

/// The slowest of several receivers sets the pace.
#[test]
fn a_publish_is_acknowledged_when_its_last_receiver_has_a_slot() {
    everywhere_with(
        |settings| settings.queue.messages_max = 1,
        |net| {
            let connecting = [v5("a"), v5("b"), durable(V5, "c"), v5("d")];
            let readers: Vec<_> =
                (0..).zip(connecting).map(|(at, reader)| net.connect(at, reader.receive_max(1))).collect();
            for reader in &readers {
                net.subscribe(*reader, "t", AtLeastOnce);
            }
            let publisher = net.connect(1, v5("p"));
            assert_eq!(publish(net, publisher, 3), 2);
            for reader in &readers {
                assert_eq!(acknowledged(net, publisher), []);
                net.send(*reader, puback(1));
            }
            assert_eq!(acknowledged(net, publisher), [puback(3)]);
        },
    );
}

/// A reader that is slower than its publishers but continues to read is never closed and loses nothing.
#[test]
fn a_reader_that_frees_slots_now_and_then_stays() {
    for reader in [v5("reader"), durable(V5, "reader")] {
        everywhere_with(
            |settings| {
                settings.queue.messages_max = 1;
                settings.queue.full_wait = Duration::from_secs(5);
            },
            |net| {
                let reader = net.connect(0, reader.clone().receive_max(1));
                net.subscribe(reader, "t", AtLeastOnce);
                let publisher = net.connect(1, v5("p"));
                publish(net, publisher, 12);
                for id in 1..=12 {
                    net.pass(4_000);
                    assert_eq!(net.payloads(reader), [id.to_string()]);
                    net.send(reader, puback(id));
                }
                assert_eq!(acknowledged(net, publisher).len(), 10);
            },
        );
    }
}

/// A reader that frees no slot in `queue.full_wait` is closed, and its publishers continue.
#[test]
fn a_reader_that_frees_no_slot_is_closed_and_its_publishers_continue() {
    everywhere_with(
        |settings| {
            settings.queue.messages_max = 1;
            settings.queue.full_wait = Duration::from_secs(5);
        },
        |net| {
            let reader = net.connect(0, v5("reader").receive_max(1));
            net.subscribe(reader, "t", AtLeastOnce);
            let publisher = net.connect(1, v5("p"));
            publish(net, publisher, 5);
            net.pass(4_900);
            assert_eq!(acknowledged(net, publisher), []);
            net.pass(300);
            assert_eq!(acknowledged(net, publisher), [puback(3), puback(4), puback(5)]);
            assert_eq!(net.closed(reader), Some(Some(ReasonCode::QuotaExceeded)));
            assert_eq!(net.counter(|counters| counters.slow_readers_closed), 1);
        },
    );
}

/// A durable session is not closed for it: the rule for full queues makes room for messages that waited too long.
#[test]
fn a_durable_reader_that_frees_no_slot_loses_its_oldest_messages() {
    everywhere_with(
        |settings| {
            settings.queue.messages_max = 2;
            settings.queue.full_wait = Duration::from_secs(5);
        },
        |net| {
            let reader = net.connect(0, durable(V5, "reader").receive_max(1));
            net.subscribe(reader, "t", AtLeastOnce);
            let publisher = net.connect(1, v5("p"));
            assert_eq!(publish(net, publisher, 5), 3);
            net.pass(4_900);
            assert_eq!(acknowledged(net, publisher), []);
            net.pass(300);
            assert_eq!(acknowledged(net, publisher), [puback(4), puback(5)]);
            // The dropped messages had numbers too.
            for (id, payload) in [(1, "1"), (4, "4"), (5, "5")] {
                assert_eq!(net.payloads(reader), [payload]);
                net.send(reader, puback(id));
            }
        },
    );
}

/// The reader disconnects while publishers wait: without a reader no publisher waits.
#[test]
fn publishers_continue_when_the_reader_they_wait_for_disconnects() {
    for reader in [v5("reader"), durable(V5, "reader")] {
        everywhere_with(
            |settings| settings.queue.messages_max = 1,
            |net| {
                let reader = net.connect(0, reader.clone().receive_max(1));
                net.subscribe(reader, "t", AtLeastOnce);
                let publisher = net.connect(1, v5("p"));
                assert_eq!(publish(net, publisher, 4), 2);
                net.lose(reader);
                assert_eq!(acknowledged(net, publisher), [puback(3), puback(4)]);
            },
        );
    }
}

/// The publisher disconnects while its messages wait. They were not acknowledged, and are delivered if there is a slot.
#[test]
fn a_publisher_that_disconnects_while_it_waits_disturbs_no_other_client() {
    for reader in [v5("reader"), durable(V5, "reader")] {
        everywhere_with(
            |settings| settings.queue.messages_max = 1,
            |net| {
                let reader = net.connect(0, reader.clone().receive_max(1));
                net.subscribe(reader, "t", AtLeastOnce);
                let publisher = net.connect(1, v5("p"));
                publish(net, publisher, 4);
                net.lose(publisher);
                // The next client in its slot gets nothing that was meant for it.
                let next = net.connect(1, v5("next"));
                for id in 1..=4 {
                    assert_eq!(net.payloads(reader), [id.to_string()]);
                    net.send(reader, puback(id));
                }
                assert_eq!(net.received(next), []);
            },
        );
    }
}

/// Messages that expire in a full queue make room for those that wait.
#[test]
fn messages_that_expire_in_the_queue_do_not_delay_later_ones() {
    // In a durable session the expired messages had numbers too.
    for (reader, second) in [(v5("reader"), 2), (durable(V5, "reader"), 4)] {
        everywhere_with(
            |settings| settings.queue.messages_max = 2,
            |net| {
                let reader = net.connect(0, reader.clone().receive_max(1));
                net.subscribe(reader, "t", AtLeastOnce);
                let publisher = net.connect(1, v5("p"));
                for id in 1..=5 {
                    let short = message("t", id).qos1(id).expiry(1);
                    net.send(publisher, if id < 4 { short } else { message("t", id).qos1(id) });
                }
                assert_eq!(net.payloads(reader), ["1"]);
                net.pass(1_100);
                net.send(reader, puback(1));
                assert_eq!(net.payloads(reader), ["4"]);
                net.send(reader, puback(second));
                assert_eq!(net.payloads(reader), ["5"]);
                assert_eq!(acknowledged(net, publisher).len(), 5);
            },
        );
    }
}

/// QoS 0 waits for nobody: beyond `queue.unsent_bytes_max` unsent bytes it is dropped and counted.
#[test]
fn qos_0_is_dropped_for_a_reader_that_does_not_read() {
    everywhere_with(
        |settings| settings.queue.unsent_bytes_max = ByteSize::kib(10),
        |net| {
            let reader = net.connect(0, v5("reader"));
            net.subscribe(reader, "t", AtMostOnce);
            net.stop_reading(reader);
            let publisher = net.connect(1, v5("p"));
            for number in 0..100 {
                net.publish(publisher, "t", format!("{number:01000}"));
            }
            assert!(net.unread(reader) < 12 * 1024);
            let dropped = net.counter(|counters| counters.dropped_slow_qos0);
            net.go_on_reading(reader);
            let arrived = net.payloads(reader).len();
            assert_eq!(arrived as u64 + dropped, 100);
            assert!((10..=11).contains(&arrived));
            net.publish(publisher, "t", "again");
            assert_eq!(net.payloads(reader), ["again"]);
        },
    );
}

/// QoS 1 stops filling the output and waits in the queue instead.
#[test]
fn qos_1_waits_in_the_queue_of_a_reader_that_does_not_read() {
    for reader in [v5("reader"), durable(V5, "reader")] {
        everywhere(|net| {
            let reader = net.connect(0, reader.clone());
            net.subscribe(reader, "t", AtLeastOnce);
            net.stop_reading(reader);
            let publisher = net.connect(1, v5("p"));
            for id in 1..=600 {
                net.send(publisher, message("t", format!("{id:01000}")).qos1(id));
            }
            assert!(net.unread(reader) < 300 * 1024);
            assert_eq!(acknowledged(net, publisher).len(), 600);
            let mut received = Vec::new();
            while net.unread(reader) > 0 {
                net.read(reader, 10_000);
                received.extend(net.payloads(reader));
            }
            let numbers: Vec<u16> =
                received.iter().map(|payload| payload.parse().expect("a number")).collect();
            assert!(numbers.into_iter().eq(1..=600));
        });
    }
}

/// A message that leaves the queue for the output frees its slot, also when it fills the output.
#[test]
fn a_slot_that_the_output_frees_goes_to_a_waiting_publisher() {
    everywhere_with(
        |settings| settings.queue.messages_max = 2,
        |net| {
            let reader = net.connect(0, v5("reader"));
            net.subscribe(reader, "t", AtLeastOnce);
            net.stop_reading(reader);
            let publisher = net.connect(1, v5("p"));
            let large = "x".repeat(100_000);
            for id in 1..=7 {
                net.send(publisher, message("t", &large).qos1(id));
            }
            // Three messages fill the output and two the queue.
            assert_eq!(acknowledged(net, publisher).len(), 5);
            for id in [6, 7] {
                net.read(reader, 100_100);
                assert_eq!(acknowledged(net, publisher), [puback(id)]);
            }
        },
    );
}

/// The broker stops reading from a client that does not read, so that its answers do not accumulate.
#[test]
fn a_client_that_reads_no_answers_is_not_read_from() {
    everywhere_with(
        |settings| settings.queue.unsent_bytes_max = ByteSize::kib(1),
        |net| {
            let client = net.connect(0, v5("c"));
            net.stop_reading(client);
            for _ in 0..100 {
                net.send_all(client, (0..1000).map(|_| Sent::PingReq));
            }
            assert!(net.unread(client) < 70 * 1024);
            net.go_on_reading(client);
            assert_eq!(net.received(client).len(), 100_000, "and then all are answered");
        },
    );
}

/// The window of an action is as large as its queue. What it does not acknowledge waits on disk, so that it does not
/// use the memory of all clients.
#[test]
fn an_action_that_acknowledges_nothing_keeps_a_queue_of_common_size_in_memory() {
    let log = Arc::new(Log::default());
    log.keep_nothing_ahead();
    let mut settings = settings();
    settings.queue.bytes_max = ByteSize::mib(1);
    let (mut net, log) = Net::with_this_log(2, settings, log);
    net.node.name_listeners(vec!["tcp".into(), INTERNAL_LISTENER.into()]);
    let action = net.open(1, V5);
    net.came_in_by(action, 1);
    let connecting = durable(V5, "$action/a").receive_max(1024);
    let connecting =
        connecting.user_property(QUEUE_MESSAGES_MAX, "1000").user_property(QUEUE_BYTES_MAX, "1000000000");
    net.send(action, connecting);
    net.sync(&log);
    net.send(action, subscribe(1).to("t", AtLeastOnce));
    net.sync(&log);
    net.received(action);
    let publisher = net.connecting(0, v5("p"));
    for id in 1..=64 {
        net.send(publisher, message("t", format!("{id} {}", "x".repeat(64 * 1024))).qos1(id));
        net.sync(&log);
    }
    net.pass(1000);
    assert!(net.queued_bytes() < 1200 * 1024, "{}", net.queued_bytes());
    let mut numbers = Vec::new();
    loop {
        let received = net.received(action);
        if received.is_empty() {
            break;
        }
        for sent in received {
            let Sent::Publish(message) = sent else { panic!("not a message: {sent:?}") };
            numbers.extend(message.payload.split(' ').next().map(str::to_owned));
            net.send(action, puback(message.packet_id.expect("of QoS 1")));
        }
        // Acknowledgements are stored together.
        net.pass(100);
        net.sync(&log);
    }
    assert_eq!(numbers, (1..=64).map(|id| id.to_string()).collect::<Vec<_>>());
}
