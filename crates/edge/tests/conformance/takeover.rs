//! A second connection with the same Client Identifier (3.1.4).

use crate::harness::*;

/// [MQTT-3.1.4-3] [MQTT3-3.1.4-2]
#[test]
fn the_older_connection_is_closed() {
    every_version(|b| {
        for durable in [false, true] {
            let connect = if durable { b.client("a").durable() } else { b.client("a") };
            let (mut old, _) = b.connect_with(connect.clone());
            let (mut new, connack) = b.connect_with(connect);
            assert_eq!(connack.session_present, durable && b.version != V3_1);
            old.closed_for(ReasonCode::SessionTakenOver);
            new.nothing();
            new.disconnect();
        }
    });
}

/// The versions of the two connections do not matter; only 5.0 gets a DISCONNECT.
#[test]
fn a_connection_is_taken_over_by_any_version() {
    every_version(|b| {
        for version in Version::ALL {
            let mut old = b.connect("a");
            let mut new = b.connect_as(version, "a");
            old.closed_for(ReasonCode::SessionTakenOver);
            new.nothing();
        }
    });
}

/// [MQTT-3.1.2-5] [MQTT-4.4.0-1]
#[test]
fn the_new_connection_resumes_the_deliveries_of_the_old_one() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut old = b.durable("subscriber");
        old.subscribe(&topic, QOS_2);
        for n in 0..20 {
            publisher.publish(&topic, n.to_string(), QOS_1);
        }
        let sent: Vec<Message> = (0..20).map(|_| old.message_unacknowledged()).collect();
        let mut new = b.resume("subscriber");
        for message in &sent {
            let again = new.message();
            assert_eq!((again.text(), again.dup, again.packet_id), (message.text(), true, message.packet_id));
        }
        publisher.publish(&topic, "more", QOS_2);
        assert_eq!(new.message().text(), "more");
        new.nothing_from(&mut publisher);
        old.closed_for(ReasonCode::SessionTakenOver);
        new.disconnect();
    });
}

/// [MQTT-3.1.2-4]: a clean start takes the identifier over and discards the session.
#[test]
fn a_clean_start_takes_over_without_the_session() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut old = b.durable("subscriber");
        old.subscribe(&topic, QOS_1);
        let mut new = b.connect("subscriber");
        old.closed_for(ReasonCode::SessionTakenOver);
        publisher.publish(&topic, "x", QOS_1);
        new.nothing_from(&mut publisher);
    });
}

/// The identifier is taken over repeatedly. Each connection but the last is closed, and the session exists once.
#[test]
fn a_name_may_be_taken_over_many_times() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut client = b.durable("subscriber");
        client.subscribe(&topic, QOS_1);
        for n in 0..30 {
            publisher.publish(&topic, n.to_string(), QOS_1);
            let mut next = b.resume("subscriber");
            assert_eq!(next.message().text(), n.to_string());
            // The broker has seen the acknowledgement before the next takeover.
            next.ping();
            client = next;
        }
        client.nothing_from(&mut publisher);
        client.disconnect();
    });
}

/// Simultaneous connections from several threads: exactly one remains.
#[test]
fn one_of_many_simultaneous_connections_remains() {
    every_version(|b| {
        let (finished, results) = std::sync::mpsc::channel();
        std::thread::scope(|threads| {
            for _ in 0..8 {
                let finished = finished.clone();
                threads.spawn(move || {
                    for _ in 0..5 {
                        let mut client = b.open();
                        client.send_connect(&b.client("contested").durable());
                        let received = client.recv();
                        // A connection may be taken over before its CONNACK is written.
                        let answered = matches!(received, Received::Closed | Received::ConnAck(_));
                        assert!(answered, "{received:?}");
                        finished.send(client).expect("the scenario waits");
                    }
                });
            }
        });
        drop(finished);
        let mut last = b.resume("contested");
        for mut client in results {
            match client.recv() {
                Received::Disconnect(disconnect) => {
                    assert_eq!(disconnect.reason, ReasonCode::SessionTakenOver)
                }
                other => assert_eq!(other, Received::Closed),
            }
        }
        last.nothing();
        last.disconnect();
    });
}

/// Packets of the old connection after the takeover are ignored.
#[test]
fn packets_of_a_connection_that_was_taken_over_are_ignored() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut witness = b.connect("witness");
        witness.subscribe(&topic, QOS_1);
        let mut old = b.connect("a");
        let mut new = b.connect("a");
        // The broker may still read what arrives before this client has closed its end.
        old.send_message(&Message::new(&topic, "from the grave", QOS_1).packet_id(1));
        old.closed_for(ReasonCode::SessionTakenOver);
        witness.nothing_from(&mut new);
    });
}
