//! Too much at once, in pieces that are too small, or read too slowly.

use std::io::{self, Write};
use std::time::Duration;

use mqtt::QoS;
use settings::ByteSize;

use crate::client::{Client, Got, PINGREQ, publish};
use crate::{Node, PATIENCE, with_1_and_3_workers};

#[test]
fn a_large_packet_arrives_in_tiny_pieces() {
    with_1_and_3_workers(|workers| {
        let node = Node::start(workers);
        let mut subscriber = node.client("s");
        subscriber.subscribe("#", QoS::AtMostOnce);
        let mut publisher = node.client("p");
        for (size, piece) in [(6_000, 1), (1_000_000, 257)] {
            let payload: Vec<u8> = (0..size).map(|at: usize| at as u8).collect();
            let packet = publish("t", &payload, None);
            for piece in packet.chunks(piece) {
                publisher.send(piece);
            }
            assert_eq!(subscriber.next(), Got::Message { payload, packet_id: None });
        }
        node.stop(PATIENCE);
    });
}

/// A client that does not read its answers is not read from, and gets all of them once it reads. Other clients are not
/// affected.
#[test]
fn a_flood_with_unread_answers_is_throttled() {
    with_1_and_3_workers(|workers| {
        let node = Node::with(workers, |settings, _| settings.queue.unsent_bytes_max = ByteSize::kib(64));
        let mut flood = node.client("flood");
        let mut other = node.client("other");
        flood.stream.set_nonblocking(true).expect("a socket");
        let piece = PINGREQ.repeat(10_000);
        let (mut sent, mut refusals) = (0, 0);
        // The node has stopped reading when no byte is accepted for as long as it takes to serve another client many
        // times.
        while refusals < 100 {
            match flood.stream.write(&piece[sent % 2..]) {
                Ok(count) => (sent, refusals) = (sent + count, 0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    refusals += 1;
                    other.ping();
                }
                Err(error) => panic!("{error}"),
            }
        }
        flood.stream.set_nonblocking(false).expect("a socket");
        if sent % 2 == 1 {
            let mut writer = Client::over(flood.stream.try_clone().expect("a descriptor")).expect("a socket");
            let last = std::thread::spawn(move || writer.send(&PINGREQ[1..]));
            for _ in 0..sent / 2 + 1 {
                assert_eq!(flood.next(), Got::PingResp);
            }
            last.join().expect("it is read again");
        } else {
            for _ in 0..sent / 2 {
                assert_eq!(flood.next(), Got::PingResp);
            }
        }
        flood.ping();
        node.stop(PATIENCE);
    });
}

/// A slow reader of QoS 1 slows its publisher down, and gets everything in order.
#[test]
fn a_slow_reader_of_large_messages_loses_nothing() {
    with_1_and_3_workers(|workers| {
        let node = Node::with(workers, |settings, _| settings.queue.messages_max = 8);
        let mut subscriber = node.client("s");
        subscriber.subscribe("#", QoS::AtLeastOnce);
        let mut publisher = node.client("p");
        const COUNT: u16 = 300;
        let publishing = std::thread::spawn(move || {
            for id in 1..=COUNT {
                let mut payload = vec![0; 64 * 1024];
                payload[..2].copy_from_slice(&id.to_be_bytes());
                publisher.publish_qos1("t", &payload, id);
            }
            for id in 1..=COUNT {
                assert_eq!(publisher.next(), Got::PubAck(id));
            }
        });
        for id in 1..=COUNT {
            let Got::Message { payload, packet_id: Some(packet_id) } = subscriber.next() else {
                panic!("not a message")
            };
            assert_eq!((payload.len(), &payload[..2]), (64 * 1024, &id.to_be_bytes()[..]));
            subscriber.pub_ack(packet_id);
        }
        publishing.join().expect("everything is acknowledged");
        node.stop(PATIENCE);
    });
}

/// Subscribers that read nothing get a bounded part of the messages.
#[test]
fn large_messages_for_readers_that_do_not_read_are_dropped() {
    with_1_and_3_workers(|workers| {
        let node = Node::with(workers, |settings, _| settings.queue.unsent_bytes_max = ByteSize::mib(1));
        let mut stuck: Vec<Client> = (0..10).map(|_| node.client("")).collect();
        for client in &mut stuck {
            client.subscribe("#", QoS::AtMostOnce);
        }
        let mut publisher = node.client("p");
        let payload = vec![7; 256 * 1024];
        const COUNT: usize = 300;
        for _ in 0..COUNT {
            publisher.publish("t", &payload);
        }
        publisher.ping();
        publisher.publish("end", b"end");
        for client in &mut stuck {
            let mut got = 0;
            // The last, small message may have been dropped with the others. A PINGRESP follows all messages that were
            // kept.
            client.send(&PINGREQ);
            while client.next() != Got::PingResp {
                got += 1;
            }
            // The buffers of both sockets, and the limit.
            assert!(got * payload.len() < 40 << 20, "{got} of {COUNT} were kept");
        }
        node.stop(PATIENCE);
    });
}

/// Reactors that always have commands still poll their sockets.
#[test]
fn a_flood_between_reactors_does_not_starve_other_clients() {
    let node = Node::start(3);
    let mut subscribers: Vec<Client> = (0..6).map(|_| node.client("")).collect();
    for client in &mut subscribers {
        client.subscribe("flood", QoS::AtMostOnce);
    }
    let floods: Vec<_> = (0..3)
        .map(|_| {
            let mut client = node.client("");
            let control = client.stream.try_clone().expect("a descriptor");
            let piece = publish("flood", &[0; 20], None).repeat(2000);
            (control, std::thread::spawn(move || while client.stream.write_all(&piece).is_ok() {}))
        })
        .collect();
    for _ in 0..30 {
        let mut client = node.client("");
        client.subscribe("t", QoS::AtMostOnce);
        client.ping();
    }
    for (control, flood) in floods {
        control.shutdown(std::net::Shutdown::Both).expect("it was connected");
        flood.join().expect("it ends with the connection");
    }
    node.stop(Duration::from_secs(1));
}
