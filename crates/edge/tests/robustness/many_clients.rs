//! Many simultaneous clients.

use std::io::Read as _;

use mqtt::QoS;

use crate::client::{Client, Got, With, connect, subscribe};
use crate::{Node, PATIENCE, with_1_and_3_workers};

/// Two thousand clients connect, subscribe and leave, some in order and some not. Afterwards the node is as before.
#[test]
fn the_node_recovers_after_a_burst_of_connections() {
    with_1_and_3_workers(|workers| {
        let node = Node::start(workers);
        let mut witness = node.client("witness");
        let storm = |from: usize| {
            let open = |_| {
                let mut client = Client::open(node.address()).expect("the system accepts it");
                client.send_connect("", With::default());
                client.send(&subscribe("storm/#", QoS::AtLeastOnce));
                client
            };
            let mut clients: Vec<_> = (from..from + 1000).map(open).collect();
            for (number, client) in clients.iter_mut().enumerate() {
                match number % 4 {
                    // Closed before the answer was read.
                    0 => {}
                    1 => assert_eq!((client.next(), client.next()), (Got::ConnAck, Got::SubAck)),
                    2 => client.disconnect(),
                    _ => client.shut_down_writing(),
                }
            }
        };
        std::thread::scope(|threads| {
            for half in 0..2 {
                threads.spawn(move || storm(half * 1000));
            }
            for _ in 0..50 {
                witness.ping();
            }
        });
        let mut late = node.client("late");
        late.subscribe("storm/over", QoS::AtMostOnce);
        witness.publish("storm/over", b"calm");
        assert_eq!(late.next(), Got::Message { payload: b"calm".to_vec(), packet_id: None });
        node.stop(PATIENCE);
    });
}

/// A client that does not wait for CONNACK gets both answers in one piece.
#[test]
fn the_answers_to_packets_that_arrive_together_leave_together() {
    with_1_and_3_workers(|workers| {
        let node = Node::start(workers);
        for number in 0..20 {
            let mut client = Client::open(node.address()).expect("a connection");
            let mut packets = connect("", With::default());
            packets.extend(subscribe(&format!("together/{number}"), QoS::AtLeastOnce));
            client.send(&packets);
            let mut answer = [0; 1024];
            let len = client.stream.read(&mut answer).expect("an answer");
            let connack = 2 + usize::from(answer[1]);
            assert_eq!((answer[0], answer[connack]), (0x20, 0x90), "{:?}", &answer[..len]);
        }
        node.stop(PATIENCE);
    });
}

/// Many connections claim one Client Identifier: at the end one has it, and all others were closed.
#[test]
fn one_of_many_claims_of_a_client_identifier_remains() {
    with_1_and_3_workers(|workers| {
        let node = Node::start(workers);
        let mut clients: Vec<_> = (0..100)
            .map(|_| {
                let mut client = Client::open(node.address()).expect("a connection");
                client.send_connect("one", With::default());
                client
            })
            .collect();
        // When each connection has an answer, no claim is left.
        for client in &mut clients {
            client.await_answer();
        }
        let mut last = node.client("one");
        last.ping();
        for client in &mut clients {
            client.drain();
        }
        last.ping();
        node.stop(PATIENCE);
    });
}
