//! Clients that leave in unusual ways.

use std::time::Duration;

use mqtt::QoS;

use crate::client::{Client, Got, With, subscribe};
use crate::listening::until_accepted;
use crate::{Node, PATIENCE, argument, child, with_1_and_3_workers};

fn message(payload: &[u8]) -> Got {
    Got::Message { payload: payload.to_vec(), packet_id: None }
}

const WILL: With = With { will: Some("will"), keep_alive: 0 };

/// Bytes before the end are handled. Then the client has left, without DISCONNECT.
#[test]
fn a_client_that_shuts_down_its_sending_side_has_left() {
    with_1_and_3_workers(|workers| {
        let node = Node::start(workers);
        let mut watcher = node.client("watcher");
        watcher.subscribe("#", QoS::AtMostOnce);
        let mut client = Client::connect_with(node.address(), "c", WILL);
        let mut bytes = subscribe("never", QoS::AtMostOnce);
        bytes.extend(crate::client::publish("t", b"last words", None));
        client.send(&bytes);
        client.shut_down_writing();
        assert_eq!(watcher.next(), message(b"last words"));
        assert_eq!(watcher.next(), message(b"gone"));
        let rest = client.rest();
        assert!(rest.is_empty() || rest == [Got::SubAck], "{rest:?}");
        node.stop(PATIENCE);
    });
}

/// [MQTT-3.14.4-3]: DISCONNECT counts even when the client does not read, and its system answers sent data with a
/// reset.
#[test]
fn a_disconnect_behind_unread_messages_is_processed() {
    with_1_and_3_workers(|workers| {
        let node = Node::with(workers, |_, listener| listener.connections_max = 3);
        let mut watcher = node.client("watcher");
        watcher.subscribe("will", QoS::AtMostOnce);
        let mut publisher = node.client("p");
        for _ in 0..60 {
            // A client has left when its slot accepts the next one.
            let mut client = until_accepted(&node, "c", WILL);
            client.subscribe("flood", QoS::AtMostOnce);
            for _ in 0..20 {
                publisher.publish("flood", &[0; 2000]);
            }
            client.disconnect();
            for _ in 0..20 {
                publisher.publish("flood", &[0; 2000]);
            }
            drop(client);
        }
        until_accepted(&node, "c", With::default());
        publisher.publish("will", b"none before this");
        assert_eq!(watcher.next(), message(b"none before this"));
        node.stop(PATIENCE);
    });
}

/// A client that neither reads nor closes keeps its slot only as long as its last bytes may take to leave.
#[test]
fn a_client_that_was_closed_does_not_keep_its_slot() {
    with_1_and_3_workers(|workers| {
        let node = Node::with(workers, |_, listener| listener.connections_max = 3);
        let mut stuck = node.client("c");
        stuck.subscribe("#", QoS::AtMostOnce);
        let mut publisher = node.client("p");
        let payload = vec![0; 500_000];
        for _ in 0..40 {
            publisher.publish("t", &payload);
        }
        publisher.ping();
        let mut heir = node.client("c");
        heir.ping();
        // All slots are taken, one of them by a connection that is being closed and does not read.
        until_accepted(&node, "", With::default()).ping();
        heir.ping();
        drop(stuck);
        node.stop(PATIENCE);
    });
}

/// A stopped process keeps its sockets open and sends nothing. Keep Alive detects it, and no other client waits
/// meanwhile.
#[test]
fn keep_alive_detects_a_stopped_process() {
    const NAME: &str = "gone::keep_alive_detects_a_stopped_process";
    if let Some(address) = argument() {
        // The process that will be stopped.
        let with = With { will: Some("will"), keep_alive: 1 };
        let mut client = Client::connect_with(address.parse().expect("an address"), "stopped", with);
        client.subscribe("t", QoS::AtLeastOnce);
        client.publish("ready", b"ready");
        loop {
            match client.next() {
                Got::End => return,
                Got::Message { packet_id: Some(id), .. } => client.pub_ack(id),
                _ => {}
            }
        }
    }
    with_1_and_3_workers(|workers| {
        let node = Node::start(workers);
        let mut watcher = node.client("watcher");
        watcher.subscribe("#", QoS::AtMostOnce);
        let mut process = child(NAME, &node.address().to_string());
        assert_eq!(watcher.next(), message(b"ready"));
        let signal = |signal| {
            // SAFETY: the process is a child of this one and has not been waited for.
            assert_eq!(unsafe { libc::kill(process.id() as i32, signal) }, 0);
        };
        signal(libc::SIGSTOP);
        let mut publisher = node.client("p");
        for id in 1..=100 {
            publisher.publish_qos1("t", &[0; 1000], id);
        }
        for id in 1..=100 {
            assert_eq!(publisher.next(), Got::PubAck(id));
        }
        for _ in 0..100 {
            assert_eq!(watcher.next(), message(&[0; 1000]));
        }
        assert_eq!(watcher.next(), message(b"gone"));
        signal(libc::SIGCONT);
        assert!(process.wait().expect("it ends").success());
        node.stop(PATIENCE);
    });
}

/// An incomplete packet counts as silence [MQTT-3.1.2-22], and so do incomplete bytes before CONNECT.
#[test]
fn an_incomplete_packet_counts_as_silence() {
    with_1_and_3_workers(|workers| {
        let node =
            Node::with(workers, |settings, _| settings.mqtt.connect_timeout = Duration::from_millis(300));
        let mut mute = Client::open(node.address()).expect("a connection");
        let mut stutters = Client::open(node.address()).expect("a connection");
        stutters.send(&[0x10, 40, 0, 4, b'M']);
        let with = With { will: None, keep_alive: 1 };
        let mut dribbles = Client::connect_with(node.address(), "c", with);
        dribbles.send(&[0x30, 100, 0, 1]);
        assert_eq!(mute.next(), Got::End);
        assert_eq!(stutters.next(), Got::End);
        // One byte after the other, without completing a packet.
        dribbles.stream.set_read_timeout(Some(Duration::from_millis(100))).expect("a time-out");
        let closed = (0..97).any(|_| {
            std::io::Write::write_all(&mut dribbles.stream, b"x").is_err()
                || std::io::Read::read(&mut dribbles.stream, &mut [0]).is_ok()
        });
        assert!(closed, "it is still there after nine seconds");
        node.stop(PATIENCE);
    });
}
