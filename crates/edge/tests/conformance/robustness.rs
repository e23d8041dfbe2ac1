//! Misbehaving clients, and other clients that must not be affected by them.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crate::harness::wire::{packet, string};
use crate::harness::*;

/// 2.1: packets may be split in any way.
#[test]
fn packets_may_come_byte_by_byte() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut client = b.open();
        let mut bytes = b.client("a").encode();
        let no_properties: &[u8] = if b.version == V5 { &[0] } else { &[] };
        bytes.extend(packet(0x82, &[&[0, 1], no_properties, &string(&topic), &[2]]));
        for (n, qos) in EVERY_QOS.into_iter().enumerate() {
            let message = Message::new(&topic, "x".repeat(150), qos);
            bytes.extend(if qos == QOS_0 { message } else { message.packet_id(n as u16) }.encode(b.version));
        }
        bytes.extend(packet(0x62, &[&[0, 2]]));
        for byte in &bytes {
            client.send_bytes(&[*byte]);
        }
        assert!(matches!(client.recv(), Received::ConnAck(_)));
        assert_eq!(client.suback().reasons, [2]);
        assert_eq!(client.puback().packet_id, 1);
        assert_eq!(client.pubcomp().packet_id, 2);
        assert_eq!(client.pubrec().packet_id, 2);
        let mut qos: Vec<QoS> = (0..3).map(|_| client.message().qos).collect();
        qos.sort();
        assert_eq!(qos, EVERY_QOS);
    });
}

/// A split at any byte, with a pause in which the broker reads the first part.
#[test]
fn packets_may_come_in_two_parts() {
    from_3_1_1(|b| {
        let topic = b.topic("t");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_0);
        let mut client = b.connect("a");
        let bytes = Message::new(&topic, "payload", QOS_1).packet_id(3).encode(b.version);
        for cut in 1..bytes.len() {
            client.send_bytes(&bytes[..cut]);
            // The broker has read the first part when it answers later packets of another client.
            subscriber.ping();
            client.send_bytes(&bytes[cut..]);
            assert_eq!(client.puback().packet_id, 3);
            assert_eq!(subscriber.message().text(), "payload");
        }
    });
}

/// Many packets in one segment, and a last packet that arrives in parts.
#[test]
fn many_packets_may_come_at_once() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut client = b.connect("a");
        client.subscribe(&topic, QOS_0);
        let mut bytes = Vec::new();
        for n in 0..1000 {
            bytes.extend(Message::new(&topic, n.to_string(), QOS_0).encode(b.version));
        }
        let (first, rest) = bytes.split_at(bytes.len() - 5);
        client.send_bytes(first);
        client.send_bytes(rest);
        for n in 0..1000 {
            assert_eq!(client.message().text(), n.to_string());
        }
    });
}

/// Large packets in both directions at the same time.
#[test]
fn large_messages_do_not_block_each_other() {
    from_3_1_1(|b| {
        let topic = b.topic("t");
        let payload: Vec<u8> = (0..200_000u32).map(|n| n as u8).collect();
        let mut clients: Vec<Client> = (0..3).map(|n| b.connect(&format!("c{n}"))).collect();
        for client in &mut clients {
            client.subscribe(&topic, QOS_1);
        }
        for client in &mut clients {
            let id = client.packet_id();
            client.send_message(&Message::new(&topic, &payload, QOS_1).packet_id(id));
        }
        for client in &mut clients {
            client.puback();
            for _ in 0..3 {
                assert_eq!(client.message().payload, payload);
            }
        }
    });
}

/// A client that disappears within a packet.
#[test]
fn a_partial_packet_of_a_client_that_disappears_is_discarded() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut witness = b.connect("witness");
        witness.subscribe(&b.topic("#"), QOS_1);
        for cut in [1, 3, 10] {
            let will = Message::new(&b.topic("will"), "gone", QOS_1);
            let (mut client, _) = b.connect_with(b.client("a").will(will));
            client.send_bytes(&Message::new(&topic, "never", QOS_1).packet_id(1).encode(b.version)[..cut]);
            client.fail();
            assert_eq!(witness.message().text(), "gone");
        }
        // Within CONNECT too.
        let connect = b.client("b").will(Message::new(&topic, "never", QOS_1)).encode();
        for cut in [1, 5, connect.len() - 1] {
            let mut client = b.open();
            client.send_bytes(&connect[..cut]);
            client.fail();
        }
        let mut publisher = b.connect("publisher");
        witness.nothing_from(&mut publisher);
    });
}

/// A client that has stopped sending still gets its messages until the broker closes the connection.
#[test]
fn a_half_closed_connection_is_closed() {
    every_version(|b| {
        let mut client = b.connect("a");
        client.send_ping();
        client.shut_down_sending();
        assert_eq!(client.recv(), Received::PingResp);
        client.closed();
    });
}

/// A reset instead of an orderly end.
#[test]
fn a_reset_connection_is_a_failed_one() {
    every_version(|b| {
        let mut witness = b.connect("witness");
        witness.subscribe(&b.topic("#"), QOS_1);
        let topic = b.topic("t");
        let (mut client, _) =
            b.connect_with(b.client("a").will(Message::new(&b.topic("will"), "gone", QOS_1)));
        client.subscribe(&topic, QOS_0);
        // Closing with unread bytes makes the system send RST.
        witness.publish(&topic, "unread", QOS_0);
        assert_eq!(witness.message().text(), "unread");
        wait_until_readable(&client);
        drop(client);
        assert_eq!(witness.message().text(), "gone");
    });
}

fn wait_until_readable(client: &Client) {
    client.stream().set_read_timeout(Some(Duration::from_secs(20))).expect("a TCP socket");
    client.stream().peek(&mut [0]).expect("something comes");
}

/// Garbage of any kind ends the connection of its sender and affects no other client.
#[test]
fn garbage_does_not_affect_other_clients() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_1);
        // Each run sends the same bytes.
        let mut random = random::Random::new(0);
        for n in 0..150 {
            let mut bytes: Vec<u8> = (0..random.below(60)).map(|_| random.byte()).collect();
            let mut client = if n % 3 == 0 {
                b.open()
            } else {
                let client = b.connect("g");
                // Mostly valid packets, so that they get further.
                let mut packet = Message::new(&topic, "garbage", QOS_2).packet_id(n).encode(b.version);
                if n % 3 == 1 {
                    packet = packet_with_wrong_byte(packet, random.draw());
                }
                packet.extend(bytes);
                bytes = packet;
                client
            };
            client.send_bytes(&bytes);
            // The connection ends unread; the broker may have closed it earlier.
            drop(client);
        }
        publisher.publish(&topic, "fine", QOS_1);
        while subscriber.message().payload != b"fine" {}
    });
}

fn packet_with_wrong_byte(mut packet: Vec<u8>, random: u64) -> Vec<u8> {
    let at = random as usize % packet.len();
    packet[at] = (random >> 32) as u8;
    // The packet must not reach the topics of other clients.
    if let Some(at) = packet.windows(7).position(|seven| seven == b"garbage") {
        packet[at..at + 7].copy_from_slice(b"GARBAGE");
    }
    packet
}

/// Hundreds of clients that connect, subscribe and leave at the same time.
#[test]
fn the_broker_survives_a_burst_of_connections() {
    v5(|b| {
        const CLIENTS: usize = 500;
        let topic = b.topic("t");
        let mut steady = b.connect("steady");
        let mut streams: Vec<Client> = (0..CLIENTS)
            .map(|_| {
                Client::new(TcpStream::connect(b.address()).expect("the broker accepts connections"), V5)
            })
            .collect();
        for (n, client) in streams.iter_mut().enumerate() {
            client.send_connect(&b.client(&format!("c{n}")));
            client.send_subscribe(1, &[(&topic, at(QOS_1))], &[]);
        }
        for client in &mut streams {
            assert!(matches!(client.recv(), Received::ConnAck(connack) if !connack.reason.is_error()));
            assert_eq!(client.suback().reasons, [1]);
        }
        steady.publish(&topic, "to all", QOS_1);
        for client in &mut streams {
            assert_eq!(client.message().text(), "to all");
        }
        // Half leave in order, half do not.
        for (n, mut client) in streams.into_iter().enumerate() {
            if n % 2 == 0 {
                client.send_disconnect(ReasonCode::Success, &PropertiesBuf::default());
            }
        }
        steady.subscribe(&topic, QOS_1);
        steady.publish(&topic, "still here", QOS_1);
        assert_eq!(steady.message().text(), "still here");
    });
}

/// A few Client Identifiers, reused over and over in quick succession.
#[test]
fn connections_may_come_and_go_quickly() {
    every_version(|b| {
        let mut witness = b.connect("witness");
        witness.subscribe(&b.topic("#"), QOS_1);
        for n in 0..100 {
            let mut client = b.connect(&format!("c{}", n % 3));
            // The message is acknowledged, because the next connection with this identifier may overtake unacknowledged
            // ones.
            client.publish(&b.topic(&n.to_string()), "x", QOS_1);
            client.send_disconnect(ReasonCode::Success, &PropertiesBuf::default());
        }
        let mut seen: Vec<String> = (0..100).map(|_| witness.message().topic).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 100);
    });
}

/// A subscriber that does not read loses QoS 0 messages. Other subscribers lose none, and the publisher is not slowed
/// down.
#[test]
fn a_slow_reader_loses_qos_0() {
    v5_with(
        |settings| settings.queue.unsent_bytes_max = settings::ByteSize::kib(64),
        |b| {
            const COUNT: u32 = 6000;
            let topic = b.topic("t");
            let mut publisher = b.connect("publisher");
            let mut slow = b.connect("slow");
            let mut quick = b.connect("quick");
            slow.subscribe(&topic, QOS_0);
            quick.subscribe(&topic, QOS_0);
            let payload = |n: u32| [&n.to_be_bytes()[..], &[0; 4096]].concat();
            for n in 0..COUNT {
                publisher.publish(&topic, payload(n), QOS_0);
                assert_eq!(quick.message().payload[..4], n.to_be_bytes());
            }
            // The subscriber reads now. It gets a part of the messages, in order. Its connection stays open and is
            // served as before.
            let end = b.topic("end");
            slow.subscribe(&end, QOS_1);
            publisher.publish(&end, "", QOS_1);
            let mut last = None;
            let mut count = 0;
            loop {
                let message = slow.message();
                if message.topic == end {
                    break;
                }
                let n = u32::from_be_bytes(message.payload[..4].try_into().expect("4 bytes"));
                assert!(last < Some(n));
                last = Some(n);
                count += 1;
            }
            assert!(count < COUNT, "the sockets hold {COUNT} messages");
            slow.nothing_from(&mut publisher);
        },
    );
}

/// QoS 1 to a subscriber that reads slowly: the publisher waits for it, and no message is lost.
#[test]
fn a_slow_reader_of_qos_1_sets_the_pace() {
    v5_with(
        |settings| {
            settings.queue.messages_max = 50;
            settings.mqtt.inflight_max = 10;
        },
        |b| {
            const COUNT: u16 = 400;
            let topic = b.topic("t");
            let mut subscriber = b.connect("subscriber");
            subscriber.subscribe(&topic, QOS_1);
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    let mut publisher = b.connect("publisher");
                    for n in 1..=COUNT {
                        publisher.send_message(&Message::new(&topic, n.to_string(), QOS_1).packet_id(n));
                    }
                    for n in 1..=COUNT {
                        let puback = publisher.puback();
                        assert_eq!((puback.packet_id, puback.reason.is_error()), (n, false));
                    }
                });
                for n in 1..=COUNT {
                    if n % 40 == 0 {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    assert_eq!(subscriber.message().text(), n.to_string());
                }
            });
            subscriber.nothing();
        },
    );
}

/// QoS 1 to a subscriber that never acknowledges: after `queue.full_wait` it is closed, and the publisher continues.
#[test]
fn a_stuck_reader_of_qos_1_is_closed() {
    v5_with(
        |settings| {
            settings.queue.messages_max = 5;
            settings.mqtt.inflight_max = 5;
            settings.queue.full_wait = Duration::from_secs(1);
        },
        |b| {
            const COUNT: u16 = 40;
            let topic = b.topic("t");
            let mut stuck = b.connect("stuck");
            stuck.subscribe(&topic, QOS_1);
            let mut other = b.connect("other");
            other.subscribe(&topic, QOS_1);
            let before = Instant::now();
            let mut publisher = b.connect("publisher");
            for n in 1..=COUNT {
                publisher.send_message(&Message::new(&topic, n.to_string(), QOS_1).packet_id(n));
            }
            std::thread::scope(|threads| {
                // The other subscriber must continue to read, or it would be stuck too.
                threads.spawn(|| (1..=COUNT).for_each(|n| assert_eq!(other.message().text(), n.to_string())));
                for n in 1..=COUNT {
                    assert_eq!(publisher.puback().packet_id, n);
                }
            });
            assert_waited(before, Duration::from_secs(1));
            loop {
                match stuck.recv() {
                    Received::Publish(_) => {}
                    Received::Disconnect(disconnect) => {
                        assert!(disconnect.reason.is_error());
                        stuck.closed();
                        break;
                    }
                    other => panic!("{other:?} instead of DISCONNECT"),
                }
            }
        },
    );
}

/// A client that sends without reading the answers.
#[test]
fn a_client_that_never_reads_cannot_stop_the_broker() {
    every_version(|b| {
        let mut steady = b.connect("steady");
        let flood = b.connect("flood");
        let mut stream = flood.stream().try_clone().expect("a TCP socket");
        stream.set_write_timeout(Some(Duration::from_millis(500))).expect("a TCP socket");
        let pings = [0xC0, 0].repeat(8 << 10);
        // As much as the broker reads, up to 16 MB of PINGREQ.
        for _ in 0..1000 {
            match stream.write_all(&pings) {
                Ok(()) => {}
                Err(error) => {
                    let full = [
                        ErrorKind::WouldBlock,
                        ErrorKind::TimedOut,
                        ErrorKind::BrokenPipe,
                        ErrorKind::ConnectionReset,
                    ];
                    assert!(full.contains(&error.kind()), "{error}");
                    break;
                }
            }
        }
        steady.nothing();
        steady.subscribe(&b.topic("t"), QOS_1);
        steady.publish(&b.topic("t"), "x", QOS_1);
        assert_eq!(steady.message().text(), "x");
    });
}

/// A browser, a TLS client and a port scanner on the MQTT port.
#[test]
fn other_protocols_are_refused() {
    every_version(|b| {
        let hello: [&[u8]; 4] = [
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"SSH-2.0-OpenSSH_9.0\r\n",
            b"\r\n\r\n",
        ];
        for bytes in hello {
            let mut stream = TcpStream::connect(b.address()).expect("the broker accepts connections");
            stream.write_all(bytes).expect("a fresh connection");
            stream.shutdown(Shutdown::Write).expect("a TCP socket");
            stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a TCP socket");
            let mut answer = Vec::new();
            match stream.read_to_end(&mut answer) {
                // A browser may get an HTTP answer that names MQTT.
                Ok(_) if bytes.starts_with(b"GET") => {
                    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400 "), "{answer:?}");
                }
                Ok(_) => assert_eq!(answer, b"", "after {bytes:?}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            }
        }
        b.connect("a").nothing();
    });
}
