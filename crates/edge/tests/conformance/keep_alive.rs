//! Keep Alive (3.1.2.10), PINGREQ and PINGRESP (3.12, 3.13).

use std::time::{Duration, Instant};

use crate::harness::*;

/// [MQTT-3.12.4-1] [MQTT3-3.12.4-1]
#[test]
fn pingreq_is_answered() {
    every_version(|b| {
        let mut client = b.connect("a");
        client.send_bytes(&[0xC0, 0]);
        assert_eq!(client.read_bytes(), Some(vec![0xD0, 0]));
        for _ in 0..10 {
            client.send_ping();
        }
        for _ in 0..10 {
            assert_eq!(client.recv(), Received::PingResp);
        }
        client.nothing();
    });
}

/// [MQTT-3.1.2-22] [MQTT3-3.1.2-24]
#[test]
fn a_silent_client_is_closed_after_one_and_a_half_intervals() {
    every_version(|b| {
        let before = Instant::now();
        let (mut client, _) = b.connect_with(b.client("a").keep_alive(1));
        client.closed_for(ReasonCode::KeepAliveTimeout);
        assert_waited(before, Duration::from_millis(1500));
    });
}

/// [MQTT-3.1.2-20] [MQTT3-3.1.2-23]: any packet will do.
#[test]
fn every_packet_keeps_a_client_alive() {
    every_version(|b| {
        let topic = b.topic("t");
        let (mut client, _) = b.connect_with(b.client("a").keep_alive(2));
        let before = Instant::now();
        for n in 0.. {
            std::thread::sleep(Duration::from_millis(600));
            match n % 4 {
                0 => client.ping(),
                1 => client.publish(&topic, "x", QOS_0),
                2 => client.publish(&topic, "x", QOS_1),
                _ => client.subscribe(&b.topic("another"), QOS_0),
            }
            if before.elapsed() > Duration::from_secs(5) {
                break;
            }
        }
        client.nothing();
    });
}

/// 3.1.2.10: 0 turns Keep Alive off. Other clients of the scenario do time out.
#[test]
fn a_silent_client_without_keep_alive_stays_connected() {
    every_version(|b| {
        let (mut silent, _) = b.connect_with(b.client("silent").keep_alive(0));
        let (mut patient, _) = b.connect_with(b.client("patient").keep_alive(60));
        let (mut brief, _) = b.connect_with(b.client("brief").keep_alive(1));
        brief.closed_for(ReasonCode::KeepAliveTimeout);
        silent.nothing();
        patient.nothing();
    });
}

/// [MQTT-3.1.2-22]: only packets of the client count.
#[test]
fn receiving_does_not_keep_a_client_alive() {
    every_version(|b| {
        let topic = b.topic("t");
        let mut publisher = b.connect("publisher");
        let (mut client, _) = b.connect_with(b.client("a").keep_alive(1));
        client.subscribe(&topic, QOS_0);
        loop {
            std::thread::sleep(Duration::from_millis(200));
            publisher.publish(&topic, "are you there", QOS_0);
            match client.recv() {
                Received::Publish(_) => {}
                Received::Disconnect(disconnect) => {
                    assert_eq!(disconnect.reason, ReasonCode::KeepAliveTimeout);
                    break;
                }
                other => {
                    assert_eq!(other, Received::Closed);
                    assert!(b.version != V5 || Broker::is_external());
                    break;
                }
            }
        }
    });
}

/// [MQTT-3.1.2-22] asks for a packet; bytes that never complete one do not count.
#[test]
fn half_a_packet_does_not_keep_a_client_alive() {
    v5_ours(|b| {
        let (mut client, _) = b.connect_with(b.client("a").keep_alive(1));
        // A PUBLISH of 100,000 bytes that arrives byte by byte.
        client.send_bytes(&[0x30, 0xA0, 0x8D, 0x06, 0, 1, b't', 0]);
        let stop = Instant::now() + Duration::from_secs(15);
        client.stream().set_nonblocking(true).expect("a TCP socket");
        let mut probe = [0];
        loop {
            assert!(Instant::now() < stop, "still open");
            match client.stream().peek(&mut probe) {
                Ok(_) => break,
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
            client.send_bytes(b".");
            std::thread::sleep(Duration::from_millis(100));
        }
        client.stream().set_nonblocking(false).expect("a TCP socket");
        client.closed_for(ReasonCode::KeepAliveTimeout);
    });
}

/// [MQTT-3.1.2-21] [MQTT-3.2.2-21]: 3.2.2.3.14
#[test]
fn the_server_may_choose_the_interval() {
    v5_with(
        |settings| settings.mqtt.keep_alive_max = 1,
        |b| {
            for asked in [0, 2, 120] {
                let (mut client, connack) = b.connect_with(b.client("a").keep_alive(asked));
                assert_eq!(
                    connack.properties.as_properties().server_keep_alive(),
                    Some(1),
                    "asked for {asked}"
                );
                client.closed_for(ReasonCode::KeepAliveTimeout);
            }
            // A short interval is not changed.
            let (_client, connack) = b.connect_with(b.client("b").keep_alive(1));
            assert_eq!(connack.properties.as_properties().server_keep_alive(), None);
        },
    );
}

/// "As if the network had failed": the session remains.
#[test]
fn a_session_outlives_a_keep_alive_time_out() {
    every_version(|b| {
        let (mut client, _) = b.connect_with(b.client("a").durable().keep_alive(1));
        client.subscribe(&b.topic("t"), QOS_1);
        client.closed_for(ReasonCode::KeepAliveTimeout);
        let mut publisher = b.connect("publisher");
        publisher.publish(&b.topic("t"), "x", QOS_1);
        let mut client = b.resume("a");
        assert_eq!(client.message().text(), "x");
        client.disconnect();
    });
}
