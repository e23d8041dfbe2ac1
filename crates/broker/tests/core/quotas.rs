//! Shared resources: one client, one user or one mountpoint gets a part of them, and never all.

use std::time::Duration;

use broker::admin::ResourceUsage;
use broker::settings::Settings;
use mqtt::QoS::{AtLeastOnce, AtMostOnce};
use mqtt::ReasonCode;
use mqtt::Version::V5;
use settings::ByteSize;

use crate::net::{Net, Peer, everywhere_with, settings};
use testkit::packets::*;

#[test]
fn one_user_cannot_use_all_connections() {
    everywhere_with(
        |settings| settings.quota.user_percent = 50,
        |net| {
            net.node.set_connections_max(8);
            let own: Vec<_> = (0..4)
                .map(|number| net.connect(number, v5(&format!("greedy {number}")).username("greedy")))
                .collect();
            let fifth = net.connecting(1, v5("greedy 4").username("greedy"));
            assert_eq!(net.received(fifth), [refused(ReasonCode::QuotaExceeded), Sent::Closed]);
            assert_eq!(net.counter(|counters| counters.quota_connections), 1);
            net.connect(2, v5("other").username("other"));
            net.connect(0, v5("nameless"));
            net.lose(own[0]);
            net.connect(1, durable(V5, "greedy 4").username("greedy"));
        },
    );
}

/// Connects subscribers that acknowledge nothing, each with as much in its queue as publishers can add.
fn hoarders(net: &mut Net, count: usize, connecting: impl Fn(&str) -> Connecting) -> Vec<Peer> {
    let publisher = net.connect(0, v5("publisher of hoarders"));
    let hoarders: Vec<_> = (0..count)
        .map(|number| {
            let name = format!("hoarder {number}");
            let hoarder = net.connect(number, connecting(&name).receive_max(1));
            net.subscribe(hoarder, &name, AtLeastOnce);
            hoarder
        })
        .collect();
    let payload = "x".repeat(16 * 1024);
    for id in 1..=200 {
        net.send(publisher, message(&format!("hoarder {}", usize::from(id) % count), &payload).qos1(id));
    }
    hoarders
}

fn little_memory(settings: &mut Settings) {
    settings.limits.memory_queued_max = ByteSize::mib(1);
    settings.queue.messages_max = 10_000;
}

#[test]
fn clients_that_hoard_queued_messages_stop_no_publishers_of_others() {
    for durable_ones in [false, true] {
        everywhere_with(little_memory, |net| {
            if durable_ones {
                hoarders(net, 8, |name| durable(V5, name));
                // Without a log all of it is in memory: they are closed when they have received nothing for
                // `queue.full_wait`.
                net.pass(12_000);
            } else {
                hoarders(net, 8, v5);
            }
            let reader = net.connect(1, v5("reader"));
            net.subscribe(reader, "others", AtLeastOnce);
            let publisher = net.connect(2, v5("publisher"));
            net.send(publisher, message("others", "not delayed").qos1(1));
            assert_eq!(net.received(publisher), [puback(1)]);
            assert_eq!(net.payloads(reader), ["not delayed"]);
        });
    }
}

#[test]
fn the_clients_of_one_user_have_at_most_three_shares_together() {
    everywhere_with(little_memory, |net| {
        hoarders(net, 20, |name| v5(name).username("hoarder"));
        let of_one = net.queued_bytes();
        assert!(of_one < 900 * 1024, "{of_one}");
    });
}

#[test]
fn full_queues_do_not_prevent_new_connections() {
    let change = |settings: &mut Settings| {
        little_memory(settings);
        settings.overload.queued_percent = 40;
    };
    everywhere_with(change, |net| {
        hoarders(net, 8, v5);
        assert!(net.assess_load(0) > broker::Level::Calm);
        net.connect(1, v5("newcomer"));
        assert_eq!(net.counter(|counters| counters.connects_shed), 0);
    });
}

/// No publisher waits for a slot in these queues, so no wait ends: the memory is missing all the same.
#[test]
fn a_client_with_more_than_an_equal_share_that_acknowledges_nothing_is_closed() {
    let change = |settings: &mut Settings| {
        little_memory(settings);
        settings.queue.full_wait = Duration::from_secs(5);
    };
    everywhere_with(change, |net| {
        let readers: Vec<_> = (0..4)
            .map(|number| net.connect(number, v5(&format!("reader {number}")).receive_max(1)))
            .collect();
        let publisher = net.connect(0, v5("publisher"));
        let payload = "x".repeat(16 * 1024);
        for (number, reader) in readers.iter().enumerate() {
            net.subscribe(*reader, &number.to_string(), AtLeastOnce);
            let count = if number == 0 { 2 } else { 12 };
            for id in 1..=count {
                net.send(publisher, message(&number.to_string(), &payload).qos1(id));
            }
            assert_eq!(net.received(publisher).len(), usize::from(count), "no publisher waits");
        }
        assert!(net.queued_bytes() > 512 * 1024);
        net.pass(4_000);
        // One of them acknowledges.
        net.send(readers[1], puback(1));
        net.pass(4_000);
        assert_eq!(net.closed(readers[0]), None, "it has less than its share");
        assert_eq!(net.closed(readers[1]), None, "it acknowledges");
        let closed = [readers[2], readers[3]].map(|reader| net.closed(reader));
        assert!(closed.contains(&Some(Some(ReasonCode::QuotaExceeded))), "{closed:?}");
        assert!(net.queued_bytes() <= 512 * 1024);
    });
}

/// The order of one client's messages is kept even where there is room for only one message [MQTT-4.6.0-6].
#[test]
fn a_client_of_a_user_beyond_its_share_continues_with_one_message_at_a_time() {
    everywhere_with(little_memory, |net| {
        hoarders(net, 20, |name| v5(name).username("user"));
        let reader = net.connect(1, v5("reader").username("user").receive_max(1));
        net.subscribe(reader, "t", AtLeastOnce);
        let publisher = net.connect(2, v5("publisher"));
        let mut read = Vec::new();
        for id in 1..=5 {
            net.send(publisher, message("t", id.to_string()).qos1(id));
        }
        for _ in 0..5 {
            for packet in net.received(reader) {
                if let Sent::Publish(message) = packet {
                    net.send(reader, puback(message.packet_id.expect("QoS 1")));
                    read.push(message.payload);
                }
            }
        }
        assert_eq!(read, ["1", "2", "3", "4", "5"]);
        assert_eq!(net.received(publisher).len(), 5);
    });
}

/// An acknowledgement now and then is not enough to keep memory that others need.
#[test]
fn a_client_with_more_than_an_equal_share_that_acknowledges_now_and_then_is_closed() {
    let change = |settings: &mut Settings| {
        little_memory(settings);
        settings.queue.full_wait = Duration::from_secs(5);
        settings.queue.full_wait_total = Duration::from_secs(10);
    };
    everywhere_with(change, |net| {
        let readers: Vec<_> = (0..3)
            .map(|number| net.connect(number, v5(&format!("reader {number}")).receive_max(1)))
            .collect();
        let publisher = net.connect(0, v5("publisher"));
        let payload = "x".repeat(16 * 1024);
        for (number, reader) in readers.iter().enumerate() {
            net.subscribe(*reader, &number.to_string(), AtLeastOnce);
            for id in 1..=15 {
                net.send(publisher, message(&number.to_string(), &payload).qos1(id));
            }
            assert_eq!(net.received(publisher).len(), 15, "no publisher waits");
        }
        assert!(net.queued_bytes() > 640 * 1024);
        let mut closed = 0;
        for _ in 0..4 {
            net.pass(4_000);
            for reader in &readers {
                for packet in net.received(*reader) {
                    match packet {
                        Sent::Publish(message) => {
                            net.send(*reader, puback(message.packet_id.expect("QoS 1")))
                        }
                        Sent::Disconnect { reason, .. } => {
                            assert_eq!(reason, ReasonCode::QuotaExceeded);
                            closed += 1;
                        }
                        _ => {}
                    }
                }
            }
        }
        assert!(closed > 0);
        assert!(net.queued_bytes() <= 512 * 1024);
    });
}

#[test]
fn a_client_that_was_closed_for_a_full_queue_delays_no_publisher_after_it_reconnects() {
    let change = |settings: &mut Settings| {
        settings.queue.messages_max = 2;
        settings.queue.full_wait = Duration::from_secs(5);
        settings.queue.full_penalty = Duration::from_secs(600);
    };
    everywhere_with(change, |net| {
        let publisher = net.connect(0, v5("publisher"));
        let mut id = 0;
        let mut publish = |net: &mut Net| {
            net.send_all(
                publisher,
                (0..5).map(|_| {
                    id += 1;
                    message("t", id).qos1(id).into()
                }),
            );
            net.received(publisher).len()
        };
        let reader = net.connect(1, v5("reader").receive_max(1));
        net.subscribe(reader, "t", AtLeastOnce);
        assert_eq!(publish(net), 3, "one in flight, two in the queue");
        net.pass(5_200);
        assert_eq!(net.closed(reader), Some(Some(ReasonCode::QuotaExceeded)));
        assert_eq!(net.received(publisher).len(), 2);

        let reader = net.connect(2, v5("reader").receive_max(1));
        net.subscribe(reader, "t", AtLeastOnce);
        assert_eq!(publish(net), 5, "no publisher waits for it again");
        assert_eq!(net.counter(|counters| counters.dropped_queue_full), 2);
        assert_eq!(net.closed(reader), None);
        net.lose(reader);

        net.pass(600_000);
        let reader = net.connect(0, v5("reader").receive_max(1));
        net.subscribe(reader, "t", AtLeastOnce);
        assert_eq!(publish(net), 3, "it is forgotten");
    });
}

#[test]
fn a_durable_reader_whose_queue_was_full_for_too_long_delays_no_publisher_again() {
    let change = |settings: &mut Settings| {
        settings.queue.messages_max = 2;
        settings.queue.full_wait = Duration::from_secs(5);
    };
    everywhere_with(change, |net| {
        let publisher = net.connect(0, v5("publisher"));
        let mut id = 0;
        let mut publish = |net: &mut Net| {
            net.send_all(
                publisher,
                (0..5).map(|_| {
                    id += 1;
                    message("t", id).qos1(id).into()
                }),
            );
            net.pass(100);
            net.received(publisher).len()
        };
        let reader = net.connect(1, durable(V5, "reader").receive_max(1));
        net.subscribe(reader, "t", AtLeastOnce);
        assert_eq!(publish(net), 3, "one in flight, two in the queue");
        net.pass(5_200);
        assert_eq!(net.received(publisher).len(), 2);
        assert_eq!(publish(net), 5, "no publisher waits for it again");
        net.lose(reader);
        net.resume(2, durable(V5, "reader").receive_max(1));
        assert_eq!(publish(net), 5, "no publisher waits after it reconnects");
    });
}

/// A subscriber that receives a message now and then does not slow publishers down without end.
#[test]
fn publishers_stop_waiting_for_a_reader_that_acknowledges_only_now_and_then() {
    let change = |settings: &mut Settings| {
        settings.queue.messages_max = 50;
        settings.queue.full_wait_total = Duration::from_secs(10);
    };
    for connecting in [v5("reader"), durable(V5, "reader")] {
        let is_durable = connecting != v5("reader");
        everywhere_with(change, |net| {
            let reader = net.connect(0, connecting.clone().receive_max(1));
            net.subscribe(reader, "t", AtLeastOnce);
            let publisher = net.connect(1, v5("publisher"));
            net.send_all(publisher, (1..=100).map(|id| message("t", id).qos1(id).into()));
            let mut acknowledged = net.received(publisher).len();
            assert_eq!(acknowledged, 51);
            let mut closed = None;
            for _ in 0..16 {
                net.pass(1_000);
                for packet in net.received(reader) {
                    match packet {
                        Sent::Publish(message) => net.send(reader, puback(message.packet_id.expect("QoS 1"))),
                        Sent::Disconnect { reason, .. } => closed = Some(reason),
                        _ => {}
                    }
                }
                acknowledged += net.received(publisher).len();
            }
            assert_eq!(acknowledged, 100, "publishers wait for ten seconds, and not for a hundred");
            assert_eq!(closed, (!is_durable).then_some(ReasonCode::QuotaExceeded));
        });
    }
}

/// A publisher with one message at a time finds a free slot after each of them: the queue has been full all the time.
#[test]
fn a_publisher_with_one_message_at_a_time_does_not_wait_without_end() {
    let change = |settings: &mut Settings| {
        settings.queue.messages_max = 50;
        settings.queue.full_wait_total = Duration::from_secs(10);
    };
    for connecting in [v5("reader"), durable(V5, "reader")] {
        let is_durable = connecting != v5("reader");
        everywhere_with(change, |net| {
            let reader = net.connect(0, connecting.clone().receive_max(1));
            net.subscribe(reader, "t", AtLeastOnce);
            let publisher = net.connect(1, v5("publisher"));
            let (mut sent, mut closed) = (0, None);
            for tenth in 0..160 {
                while net.received(publisher).len() == usize::from(sent > 0) && sent < 100 {
                    sent += 1;
                    net.send(publisher, message("t", sent.to_string()).qos1(sent));
                }
                net.pass(100);
                if tenth % 10 > 0 {
                    continue;
                }
                for packet in net.received(reader) {
                    match packet {
                        Sent::Publish(message) => net.send(reader, puback(message.packet_id.expect("QoS 1"))),
                        Sent::Disconnect { reason, .. } => closed = Some(reason),
                        _ => {}
                    }
                }
            }
            assert_eq!(
                sent, 100,
                "the publisher waits for ten seconds in all, and not a second for each message"
            );
            assert_eq!(closed, (!is_durable).then_some(ReasonCode::QuotaExceeded));
        });
    }
}

/// A reader that receives as much as its queue holds within `queue.full_wait_total` works, however long its queue is
/// full.
#[test]
fn a_slow_reader_that_receives_its_queue_in_time_stays() {
    let change = |settings: &mut Settings| {
        settings.queue.messages_max = 8;
        settings.queue.full_wait_total = Duration::from_secs(10);
    };
    for connecting in [v5("reader"), durable(V5, "reader")] {
        for at_a_time in [1, 60] {
            everywhere_with(change, |net| {
                let reader = net.connect(0, connecting.clone().receive_max(1));
                net.subscribe(reader, "t", AtLeastOnce);
                let publisher = net.connect(1, v5("publisher"));
                let (mut sent, mut acknowledged, mut read) = (0, 0, Vec::new());
                for _ in 0..80 {
                    loop {
                        acknowledged += net.received(publisher).len();
                        if sent == 60 || usize::from(sent) >= acknowledged + at_a_time {
                            break;
                        }
                        sent += 1;
                        net.send(publisher, message("t", sent.to_string()).qos1(sent));
                    }
                    net.pass(1_000);
                    for packet in net.received(reader) {
                        let Sent::Publish(message) = packet else { panic!("{packet:?}") };
                        net.send(reader, puback(message.packet_id.expect("QoS 1")));
                        read.push(message.payload);
                    }
                }
                let all: Vec<_> = (1..=60).map(|number: u16| number.to_string()).collect();
                assert_eq!(read, all);
                assert_eq!(net.counter(|counters| counters.dropped_queue_full), 0);
            });
        }
    }
}

/// A client is charged for the time for which publishers wait, and not for pauses between bursts.
#[test]
fn a_reader_is_not_charged_for_time_in_which_no_publisher_waits() {
    let change = |settings: &mut Settings| {
        settings.queue.messages_max = 20;
        settings.queue.full_wait_total = Duration::from_secs(10);
    };
    for connecting in [v5("reader"), durable(V5, "reader")] {
        everywhere_with(change, |net| {
            let reader = net.connect(0, connecting.clone().receive_max(1));
            net.subscribe(reader, "t", AtLeastOnce);
            let publisher = net.connect(1, v5("publisher"));
            // One in flight, 20 in the queue, one more that waits; and another one when the queue is full again 18
            // seconds later.
            net.send_all(publisher, (1..=22).map(|id| message("t", id).qos1(id).into()));
            for second in 0..60 {
                if second == 18 {
                    net.send_all(publisher, (23..=40).map(|id| message("t", id).qos1(id).into()));
                }
                net.pass(1_000);
                for packet in net.received(reader) {
                    let Sent::Publish(message) = packet else { panic!("{packet:?}") };
                    net.send(reader, puback(message.packet_id.expect("QoS 1")));
                }
            }
            assert_eq!(net.received(publisher).len(), 40);
            assert_eq!(net.counter(|counters| counters.dropped_queue_full), 0);
        });
    }
}

/// Devices of many people share the address of one router or proxy. Without a user, only the address is known.
#[test]
fn slow_clients_without_a_user_do_not_affect_others_of_their_address() {
    let change = |settings: &mut Settings| {
        settings.queue.messages_max = 2;
        settings.queue.full_wait = Duration::from_secs(5);
    };
    for user in [None, Some("devices")] {
        everywhere_with(change, |net| {
            let address = "192.0.2.1:1883".parse().expect("an address");
            let publisher = net.connect(0, v5("publisher"));
            let mut id = 0;
            let mut publish = |net: &mut Net| {
                net.send_all(
                    publisher,
                    (0..5).map(|_| {
                        id += 1;
                        message("t", id).qos1(id).into()
                    }),
                );
                net.received(publisher).len()
            };
            let connecting = |name: &str| match user {
                Some(user) => v5(name).username(user).receive_max(1),
                None => v5(name).receive_max(1),
            };
            for name in ["slow 1", "slow 2", "slow 3"] {
                let reader = net.connect_from(1, address, connecting(name));
                net.subscribe(reader, "t", AtLeastOnce);
                publish(net);
                net.pass(5_200);
                assert_eq!(net.closed(reader), Some(Some(ReasonCode::QuotaExceeded)));
                net.received(publisher);
            }
            let reader = net.connect_from(2, address, connecting("another"));
            net.subscribe(reader, "t", AtLeastOnce);
            let expected = if user.is_some() { 5 } else { 3 };
            assert_eq!(publish(net), expected, "publishers wait for a client that is not remembered");
        });
    }
}

fn store_counter(net: &mut Net, counter: impl Fn(&broker::StoreCounters) -> u64) -> u64 {
    // They are published about once a second.
    net.pass(1_100);
    let (_, store, _) = net.admin().figures().counters();
    counter(&store)
}

/// Resources of a client's user.
fn user_usage(net: &mut Net, client: &str) -> ResourceUsage {
    let client = client.to_owned();
    let shown = net.ask(move |admin, reply| admin.client(&client, reply)).flatten().expect("it is connected");
    shown.connection.expect("connected").user_usage.expect("it has a user")
}

/// Limit for sessions that outlive their connection: `quota.user_percent` of `session.sessions_max`.
#[test]
fn one_user_cannot_use_all_sessions() {
    let change = |settings: &mut Settings| {
        settings.session.sessions_max = 8;
        settings.quota.user_percent = 50;
    };
    everywhere_with(change, |net| {
        let greedy = |name: &str| durable(V5, name).username("greedy");
        let own: Vec<_> =
            (0..4).map(|number| net.connect(number, greedy(&format!("greedy {number}")))).collect();
        assert_eq!(user_usage(net, "greedy 0").sessions, 4);
        // They count whether their clients are connected or not.
        for away in [false, true] {
            if away {
                net.lose(own[0]);
            }
            let fifth = net.connecting(1, greedy("greedy 4"));
            assert_eq!(net.received(fifth), [refused(ReasonCode::QuotaExceeded), Sent::Closed]);
        }
        assert_eq!(store_counter(net, |counters| counters.quota_sessions), 2);
        assert_eq!(store_counter(net, |counters| counters.sessions_refused), 0);
        // Existing sessions continue, a session that ends with its connection does not count, and others have room.
        net.resume(2, greedy("greedy 0"));
        net.connect(1, v5("greedy 5").username("greedy"));
        net.connect(2, durable(V5, "other").username("other"));
        net.connect(0, durable(V5, "nameless"));
        // A session with Clean Start replaces the previous one.
        net.connect(1, greedy("greedy 1").starts_clean());
        assert_eq!(user_usage(net, "greedy 1").sessions, 4);
        // One that ends makes room.
        let last = net.connect(0, v5("greedy 1").username("greedy").starts_clean());
        net.lose(last);
        net.connect(1, greedy("greedy 4"));
    });
}

/// Sessions that a restart finds are charged, and never refused.
#[test]
fn sessions_are_charged_to_their_users_after_a_restart() {
    let mut settings = settings();
    settings.session.sessions_max = 8;
    settings.quota.user_percent = 50;
    let (mut net, log) = Net::with_log(2, settings, std::sync::Arc::new(broker::access::AllowAll));
    let greedy = |name: &str| durable(V5, name).username("greedy");
    for number in 0..4 {
        net.connecting(number, greedy(&format!("greedy {number}")));
        net.sync(&log);
    }
    let (mut net, log) = net.after_crash(&log);
    let fifth = net.connecting(1, greedy("greedy 4"));
    net.sync(&log);
    assert_eq!(net.received(fifth), [refused(ReasonCode::QuotaExceeded), Sent::Closed]);
    for number in 0..4 {
        let known = net.connecting(number, greedy(&format!("greedy {number}")));
        net.sync(&log);
        assert_eq!(net.received(known), [connack(true)]);
    }
    assert_eq!(user_usage(&mut net, "greedy 0").sessions, 4);
    let other = net.connecting(1, durable(V5, "other").username("other"));
    net.sync(&log);
    assert_eq!(net.received(other), [connack(false)]);
}

fn retained_by_user(settings: &mut Settings) {
    settings.retained.messages_max = 8;
    settings.quota.user_percent = 50;
}

/// Limit for retained messages: `quota.user_percent` of `retained.messages_max`.
#[test]
fn one_user_cannot_use_all_retained_messages() {
    everywhere_with(retained_by_user, |net| {
        let greedy = net.connect(0, v5("greedy").username("greedy"));
        let other = net.connect(1, v5("other").username("other"));
        let retain = |net: &mut Net, client: Peer, topic: &str, payload: &str| {
            net.send(client, message(topic, payload).retain().qos1(1));
            let [Sent::PubAck(1, reason)] = net.received(client)[..] else { panic!("no PUBACK") };
            reason
        };
        let full = ReasonCode::QuotaExceeded;
        for topic in ["a", "b", "c", "d"] {
            assert!(!retain(net, greedy, topic, "one").is_error());
        }
        assert_eq!(user_usage(net, "greedy").retained_messages, 4);
        assert_eq!(retain(net, greedy, "e", "one"), full);
        // At QoS 0 it cannot be refused: it is not retained.
        net.send(greedy, message("e", "one").retain());
        assert_eq!(store_counter(net, |counters| counters.quota_retained), 2);
        assert_eq!(store_counter(net, |counters| counters.retained_refused), 0);
        // An existing message is replaced, and counts once.
        assert!(!retain(net, greedy, "a", "another").is_error());
        assert_eq!(user_usage(net, "greedy").retained_messages, 4);
        // A client that replaces another's message pays for it.
        assert!(!retain(net, other, "b", "one").is_error());
        assert_eq!(
            (user_usage(net, "greedy").retained_messages, user_usage(net, "other").retained_messages),
            (3, 1)
        );
        assert!(!retain(net, greedy, "e", "one").is_error());
        assert_eq!(retain(net, greedy, "b", "one"), full, "it is another's");
        // A deleted message counts no more, also when an operator deletes it.
        assert!(!retain(net, greedy, "a", "").is_error());
        assert!(!retain(net, greedy, "f", "one").is_error());
        net.admin().delete_retained(&["f".into()], |_| {});
        net.run();
        assert_eq!(user_usage(net, "greedy").retained_messages, 3);
        let nameless = net.connect(2, v5("nameless"));
        for topic in ["g", "h"] {
            assert!(!retain(net, nameless, topic, "one").is_error());
        }
        // A Will, too, is paid for by the user of its client.
        let leaving = net.connect(2, v5("leaving").username("greedy").will(message("w", "gone").retain()));
        net.lose(leaving);
        assert_eq!(user_usage(net, "greedy").retained_messages, 4);
        for topic in ["w", "c", "d", "e"] {
            assert!(!retain(net, greedy, topic, "").is_error());
        }
        let none = user_usage(net, "greedy");
        assert_eq!((none.retained_messages, none.retained_bytes), (0, 0));
    });
}

#[test]
fn a_retained_message_that_expires_is_charged_to_nobody() {
    everywhere_with(retained_by_user, |net| {
        let user = net.connect(0, v5("c").username("user"));
        net.send(user, message("t", "for a minute").retain().qos1(1).expiry(60));
        net.received(user);
        assert_eq!(user_usage(net, "c").retained_messages, 1);
        net.pass(61_000);
        let none = user_usage(net, "c");
        assert_eq!((none.retained_messages, none.retained_bytes), (0, 0));
    });
}

/// Limit for bytes of retained messages: `quota.user_percent` of `retained.bytes_max`.
#[test]
fn one_user_cannot_use_all_bytes_of_retained_messages() {
    let change = |settings: &mut Settings| {
        settings.retained.bytes_max = ByteSize::kib(8);
        settings.quota.user_percent = 50;
    };
    everywhere_with(change, |net| {
        let greedy = net.connect(0, v5("greedy").username("greedy"));
        let other = net.connect(1, v5("other").username("other"));
        let large = "x".repeat(3000);
        let reason = |net: &mut Net, client: Peer, topic: &str, payload: &str| {
            net.send(client, message(topic, payload).retain().qos1(1));
            let [Sent::PubAck(1, reason)] = net.received(client)[..] else { panic!("no PUBACK") };
            reason
        };
        assert!(!reason(net, greedy, "a", &large).is_error());
        assert_eq!(reason(net, greedy, "b", &large), ReasonCode::QuotaExceeded);
        assert!(!reason(net, greedy, "a", &large).is_error(), "it replaces the previous one");
        assert!(!reason(net, other, "b", &large).is_error());
        assert!(!reason(net, greedy, "a", "small").is_error());
        assert!(!reason(net, greedy, "c", &large).is_error());
    });
}

fn long(number: u32) -> String {
    format!("{number}/{}", "x".repeat(434))
}

/// `quota.client_bytes_max`: the state of the session counts, whether it outlives its connection or not.
#[test]
fn the_bytes_that_one_client_makes_the_node_hold_are_bounded() {
    everywhere_with(
        |settings| settings.quota.client_bytes_max = ByteSize::kib(2),
        |net| {
            for connecting in [v5("c"), durable(V5, "d")] {
                let client = net.connect(1, connecting.clone());
                // 500 bytes each, as they count.
                let all = (0..5).fold(subscribe(1), |all, number| all.to(&long(number), AtLeastOnce));
                net.send(client, all);
                let granted = ReasonCode::GrantedQoS1;
                let reasons = vec![granted, granted, granted, granted, ReasonCode::QuotaExceeded];
                assert_eq!(net.received(client), [Sent::SubAck(1, reasons)]);
                net.send(client, subscribe(2).to(&long(5), AtLeastOnce));
                assert_eq!(net.received(client), [Sent::SubAck(2, vec![ReasonCode::QuotaExceeded])]);
                // One that is replaced takes no more.
                net.subscribe(client, &long(0), AtMostOnce);
                net.send(client, unsubscribe(3, &[&long(0)]));
                net.received(client);
                net.subscribe(client, &long(5), AtLeastOnce);
                let other = net.connect(2, v5("other"));
                net.subscribe(other, &long(0), AtLeastOnce);
                net.lose(client);
            }
            let client = net.resume(0, durable(V5, "d"));
            let shown = net.ask(|admin, reply| admin.client("d", reply)).flatten().expect("it is connected");
            assert_eq!(shown.connection.expect("connected").session_bytes, 4 * 500 + 1);
            net.send(client, subscribe(4).to(&long(6), AtLeastOnce));
            assert_eq!(net.received(client), [Sent::SubAck(4, vec![ReasonCode::QuotaExceeded])]);
            assert_eq!(net.counter(|counters| counters.quota_session_bytes), 5);
        },
    );
}

/// `quota.user_bytes_max`
#[test]
fn the_bytes_that_the_clients_of_one_user_make_the_node_hold_are_bounded() {
    everywhere_with(
        |settings| settings.quota.user_bytes_max = ByteSize::kib(1),
        |net| {
            let first = net.connect(0, v5("first").username("greedy"));
            let second = net.connect(1, durable(V5, "second").username("greedy"));
            net.subscribe(first, &long(1), AtLeastOnce);
            net.subscribe(second, &long(2), AtLeastOnce);
            for client in [first, second] {
                net.send(client, subscribe(1).to(&long(3), AtLeastOnce));
                assert_eq!(net.received(client), [Sent::SubAck(1, vec![ReasonCode::QuotaExceeded])]);
            }
            let other = net.connect(2, v5("other").username("other"));
            net.subscribe(other, &long(3), AtLeastOnce);
            net.lose(first);
            net.subscribe(second, &long(3), AtLeastOnce);
        },
    );
}

/// `mqtt.will_size_max`
#[test]
fn a_will_has_a_maximum_size() {
    everywhere_with(
        |settings| settings.mqtt.will_size_max = ByteSize::kib(1),
        |net| {
            let client = net.connecting(0, v5("c").will(message("will", "x".repeat(1024))));
            assert_eq!(net.received(client), [refused(ReasonCode::QuotaExceeded), Sent::Closed]);
            net.connect(1, v5("d").will(message("will", "x".repeat(500))));
            let older = net.connecting(2, v3("e").will(message("will", "x".repeat(1024))));
            let received = net.received(older);
            assert!(
                matches!(&received[..], [Sent::ConnAck { reason, .. }, Sent::Closed] if reason.is_error())
            );
            assert_eq!(net.counter(|counters| counters.quota_will_bytes), 2);
        },
    );
}
