//! Reports of mqload about connections: refused, cut, silent, lost and resumed.

use crate::broker::{Behaviour, Broker, canned};
use crate::mqload;
use serde_json::json;
use std::net::TcpListener;

#[test]
fn a_refusal_is_named_in_the_words_of_its_version() {
    for (version, answer, reason) in [
        (4, b"\x20\x02\0\x05" as &[u8], "connack refused: 5 not authorized"),
        (5, b"\x20\x03\0\x87\0", "connack refused: 0x87 not authorized"),
    ] {
        let broker = canned(answer);
        let run = mqload(&format!("conn -H {} -c 5 -R 0 -V {version}", broker.address));
        assert_eq!((run.number("/failed"), run.number("/ready"), run.code), (5, 0, 1));
        assert_eq!(run.at("/reasons"), &json!({ reason: 5 }));
    }
}

#[test]
fn disconnects_and_protocol_errors_are_distinguished() {
    for (answer, reason) in [
        (b"\x20\x03\0\0\0\xe0\x02\x8b\0" as &[u8], "broker's DISCONNECT: 0x8b server shutting down"),
        (b"\x20\x03\0\0\0\x36\x05\0\x01a\0\x01", "protocol error: PUBLISH with QoS 3"),
    ] {
        let broker = canned(answer);
        let run = mqload(&format!("conn -H {} -c 1 -V 5 --hold 0.5", broker.address));
        assert_eq!(run.at("/reasons"), &json!({ reason: 1 }));
        assert_eq!((run.number("/hold/disconnects"), run.code), (1, 1));
    }
}

#[test]
fn a_silent_broker_causes_a_time_out() {
    let broker = canned(b"");
    let run = mqload(&format!("conn -H {} -c 1 --connect-timeout 0.5", broker.address));
    assert_eq!(run.at("/reasons"), &json!({ "timeout: no CONNACK": 1 }));
    assert_eq!((run.number("/failed"), run.code), (1, 1));
}

#[test]
fn a_broker_that_stops_answering_pings_is_disconnected() {
    let broker = canned(b"\x20\x02\0\0");
    let run = mqload(&format!("conn -H {} -c 1 --keepalive 1 --ping-timeout 0.3 --hold 3", broker.address));
    assert_eq!(run.at("/reasons"), &json!({ "timeout: no PINGRESP": 1 }));
}

#[test]
fn a_refused_connection_is_reported() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let run = mqload(&format!("conn -H {address} -c 5"));
    assert_eq!((run.number("/failed"), run.code), (5, 1));
    assert_eq!(run.at("/reasons"), &json!({ "tcp connect: ECONNREFUSED": 5 }));
    let run = mqload(&format!("pubsub -H {address} -m 5"));
    assert_eq!((run.at("/error"), run.code), (&json!("setup incomplete"), 2));
}

#[test]
fn impossible_runs_are_refused_before_the_first_connection() {
    for arguments in ["conn -H 192.0.2.1:1883", "pubsub -q 3", "pubsub -p 2 -s 3"] {
        let run = mqload(arguments);
        assert_eq!(run.code, 2, "{arguments}");
        assert!(run.at("/error").is_string());
    }
}

#[test]
fn subscribers_subscribe_to_all_their_filters() {
    let broker = Broker::start(Behaviour::default());
    let run =
        mqload(&format!("sub -H {} -c 20 -R 0 --topic a/%i/%n,b/%c --per-conn 300 --qos 1", broker.address));
    assert_eq!((run.number("/ready"), run.number("/failed"), run.code), (20, 0, 0));
    assert_eq!(run.number("/filters_per_client"), 600);
    assert_eq!(run.number("/suback_us/count"), 20);
}

#[test]
fn cut_connections_are_reopened_and_lose_nothing() {
    for version in [4, 5] {
        for qos in [1, 2] {
            let broker = Broker::start(Behaviour { cut_after: Some(37), ..Behaviour::default() });
            let run = mqload(&format!(
                "ha -H {} -V {version} -q {qos} -p 3 -s 3 -R 1000 -d 1 --warmup 0 --drain 20 -l 100 --backoff-ms 5",
                broker.address
            ));
            let text = run.json.to_string();
            // A busy machine may not be able to send all 1,000.
            let sent = run.number("/totals/sent");
            assert!(sent > 0 && run.number("/ha/acknowledged") == sent, "{text}");
            assert_eq!((run.number("/ha/LOST"), run.number("/ha/never_acked")), (0, 0), "{text}");
            assert!(run.number("/ha/reconnects") > 0 && run.number("/ha/resent_publishes") > 0, "{text}");
            assert_eq!(run.number("/ha/publisher_sessions_lost"), 0, "{text}");
            assert_eq!(run.number("/ha/subscriber_sessions_lost"), 0, "{text}");
            if qos == 2 {
                assert_eq!(run.number("/duplicated"), 0, "{text}");
            }
            assert_eq!(run.at("/violations"), &json!([]), "{text}");
        }
    }
}

#[test]
fn lost_sessions_are_noticed_and_subscribed_again() {
    let broker = Broker::start(Behaviour { cut_after: Some(40), forgetful: true, ..Behaviour::default() });
    let run = mqload(&format!(
        "ha -H {} -V 5 -q 1 -p 2 -s 2 -R 500 -d 1 --warmup 0 --drain 1 --backoff-ms 5",
        broker.address
    ));
    assert!(run.number("/ha/subscriber_sessions_lost") > 0, "{}", run.json);
    assert!(run.number("/ha/publisher_sessions_lost") > 0, "{}", run.json);
    // One may have been cut off a moment before.
    assert!(run.number("/ha/clients_up_at_end") > 0, "{}", run.json);
}
