//! Behaviour of a stopping server towards its clients (4.13, 3.14.2.1).

use crate::harness::*;

/// 5.0 clients get 0x8B; for others the connection just ends [MQTT-3.14.4-2].
#[test]
fn a_stopping_server_sends_disconnect() {
    v5_ours(|b| {
        let mut newer: Vec<Client> = (0..4).map(|n| b.connect(&format!("n{n}"))).collect();
        let mut older: Vec<Client> = (0..4).map(|n| b.connect_as(V3_1_1, &format!("o{n}"))).collect();
        let mut silent = b.open();
        silent.send_bytes(b"\x10");
        for client in newer.iter_mut().chain(&mut older) {
            client.subscribe(&b.topic("t"), QOS_1);
        }
        b.stop();
        for client in &mut newer {
            client.closed_for(ReasonCode::ServerShuttingDown);
        }
        for client in &mut older {
            client.closed();
        }
        silent.closed();
        assert!(std::net::TcpStream::connect(b.address()).is_err(), "the port is closed");
    });
}

/// A message that was acknowledged before the stop is also delivered.
#[test]
fn a_stopping_server_delivers_acknowledged_messages() {
    v5_ours(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let mut subscriber = b.connect("subscriber");
        subscriber.subscribe(&topic, QOS_1);
        for n in 0..50 {
            publisher.publish(&topic, n.to_string(), QOS_1);
        }
        b.stop();
        for n in 0..50 {
            assert_eq!(subscriber.message_unacknowledged().text(), n.to_string());
        }
        subscriber.closed_for(ReasonCode::ServerShuttingDown);
    });
}
