//! A node that is asked to stop ends in time, and disconnects its clients.

use std::time::{Duration, Instant};

use mqtt::{QoS, ReasonCode};

use crate::client::{Client, Got};
use crate::{Node, PATIENCE, with_1_and_3_workers};

/// A client that does not react gets the reason, and does not delay the stop.
#[test]
fn clients_that_do_not_close_get_a_reason_and_do_not_delay_the_stop() {
    with_1_and_3_workers(|workers| {
        let node = Node::start(workers);
        let mut clients: Vec<_> = (0..20).map(|_| node.client("")).collect();
        let begin = Instant::now();
        let stopped = node.stop(PATIENCE);
        assert!(begin.elapsed() < PATIENCE / 4, "{:?}", begin.elapsed());
        assert_eq!((stopped.connections, stopped.forced), (20, 0));
        for client in &mut clients {
            assert_eq!(client.rest(), [Got::Disconnect(ReasonCode::ServerShuttingDown)]);
        }
    });
}

/// Data on its way to a client that reads, however slowly, arrives before the end.
#[test]
fn written_data_arrives_before_the_end() {
    with_1_and_3_workers(|workers| {
        let node = Node::start(workers);
        let mut subscriber = node.client("s");
        subscriber.subscribe("#", QoS::AtMostOnce);
        let mut publisher = node.client("p");
        for number in 0..50_u8 {
            publisher.publish("t", &vec![number; 10_000]);
        }
        publisher.ping();
        // The worker has handled the last message when this arrives.
        while subscriber.next() != (Got::Message { payload: vec![49; 10_000], packet_id: None }) {}
        for number in 50..100_u8 {
            publisher.publish("t", &vec![number; 10_000]);
        }
        publisher.ping();
        let reader = std::thread::spawn(move || subscriber.rest());
        node.stop(PATIENCE);
        let got = reader.join().expect("it reads to the end");
        assert_eq!(got.last(), Some(&Got::Disconnect(ReasonCode::ServerShuttingDown)));
        let messages = |number: u8| Got::Message { payload: vec![number; 10_000], packet_id: None };
        assert!(got[..got.len() - 1].iter().zip(50..).all(|(got, number)| *got == messages(number)));
        // With more workers the last messages may still be on their way between two of them.
        assert!(workers > 1 || got.len() == 51, "{} of 50 messages", got.len() - 1);
    });
}

/// A client that reads nothing is cut off within the bound.
#[test]
fn clients_that_do_not_read_are_cut_off() {
    with_1_and_3_workers(|workers| {
        let node = Node::start(workers);
        let mut stuck: Vec<Client> = (0..3).map(|_| node.client("")).collect();
        for client in &mut stuck {
            client.subscribe("#", QoS::AtMostOnce);
        }
        let mut publisher = node.client("p");
        let payload = vec![0; 500_000];
        for _ in 0..40 {
            publisher.publish("t", &payload);
        }
        publisher.ping();
        // The same during a flood: no client can keep a node from stopping.
        let mut flood = node.client("flood");
        let flooding = std::thread::spawn(move || {
            let piece = crate::client::publish("u", b"x", None).repeat(1000);
            while std::io::Write::write_all(&mut flood.stream, &piece).is_ok() {}
        });
        let begin = Instant::now();
        let stopped = node.stop(Duration::from_millis(600));
        assert!(begin.elapsed() < PATIENCE / 4, "{:?}", begin.elapsed());
        assert_eq!(stopped.connections, 5);
        assert!(stopped.forced >= 3, "{stopped:?}");
        flooding.join().expect("it ends with the connection");
    });
}

#[test]
fn thousands_of_clients_get_a_reason() {
    let node = Node::start(3);
    let mut clients: Vec<_> = (0..2000).map(|_| node.client("")).collect();
    let begin = Instant::now();
    let stopped = node.stop(PATIENCE);
    assert!(begin.elapsed() < PATIENCE / 2, "{:?}", begin.elapsed());
    assert_eq!((stopped.connections, stopped.forced), (2000, 0));
    for client in &mut clients {
        assert_eq!(client.rest(), [Got::Disconnect(ReasonCode::ServerShuttingDown)]);
    }
}

/// A node that closes has no clients any more, and gets no others. Its workers go on until it stops.
#[test]
fn a_node_that_closes_goes_on_without_clients() {
    with_1_and_3_workers(|workers| {
        let node = Node::start(workers);
        let mut clients: Vec<_> = (0..20).map(|_| node.client("")).collect();
        let mut stuck = node.client("");
        stuck.subscribe("#", QoS::AtMostOnce);
        let mut publisher = node.client("p");
        for _ in 0..40 {
            publisher.publish("t", &vec![0; 500_000]);
        }
        publisher.ping();
        let address = node.address();
        node.close(Duration::from_millis(600));
        for client in &mut clients {
            assert_eq!(client.rest(), [Got::Disconnect(ReasonCode::ServerShuttingDown)]);
        }
        // The last worker closes the listener soon.
        while std::net::TcpStream::connect(address).is_ok() {}
        let admin = node.0.admin();
        let ask = || {
            let (reply, answer) = std::sync::mpsc::channel();
            let reply = move |message: Option<_>| reply.send(message.is_some()).expect("the test waits");
            admin.retained_message("t", Box::new(reply));
            answer.recv_timeout(PATIENCE)
        };
        assert_eq!(ask(), Ok(false), "its workers answer");
        while node.0.listeners()[0].connections() > 0 {
            assert_eq!(ask(), Ok(false), "its workers answer while a client does not read");
        }
        let stopped = node.stop(PATIENCE);
        assert_eq!(stopped.connections, 22);
        assert!(stopped.forced >= 1, "{stopped:?}");
    });
}
