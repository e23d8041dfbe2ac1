//! `bench ha` against correct and faulty brokers.

use crate::broker::{Behaviour, Broker, Fault, canned};
use crate::{Outcome, mqload};
use serde_json::json;

/// Runs two publishers, one subscriber and 400 messages, unless `more` overrides it.
fn ha(address: &str, more: &str) -> Outcome {
    let mut line = format!("bench ha -h {address} --json {more}");
    for (option, value) in [
        ("--publishers", "2"),
        ("--subscribers", "1"),
        ("--duration", "0.4"),
        ("--drain", "20"),
        ("--size", "100"),
    ] {
        if !more.contains(option) {
            line += &format!(" {option} {value}");
        }
    }
    mqload(&line)
}

fn violations(run: &Outcome) -> String {
    run.at("/violations").to_string()
}

#[test]
fn a_correct_broker_is_reported_as_correct_at_every_version_and_qos() {
    let broker = Broker::start(Behaviour::default());
    for version in [4, 5] {
        for qos in ["1", "2", "mixed"] {
            let run = ha(&broker.address, &format!("-V {version} -q {qos}"));
            assert_eq!((run.at("/violations"), run.code), (&json!([]), 0), "{}", run.json);
            assert_eq!((run.number("/sent"), run.number("/acknowledged")), (400, 400));
            assert_eq!((run.number("/delivered"), run.number("/lost")), (400, 0));
        }
    }
}

#[test]
fn every_subscriber_receives_every_publisher_unless_they_are_dealt() {
    let broker = Broker::start(Behaviour::default());
    for (topology, delivered) in [("all", 1200), ("dealt", 400)] {
        let run =
            ha(&broker.address, &format!("--publishers 4 --subscribers 3 --topology {topology} -q mixed"));
        assert_eq!((run.number("/delivered"), run.code), (delivered, 0), "{}", run.json);
    }
}

#[test]
fn a_broker_that_acknowledges_and_drops_is_detected() {
    for qos in ["1", "2", "mixed"] {
        let broker = Broker::start(Behaviour { fault: Fault::Drop, ..Behaviour::default() });
        let run = ha(&broker.address, &format!("-q {qos} --drain 1"));
        assert_eq!((run.number("/lost"), run.number("/acknowledged"), run.code), (8, 400, 1), "{}", run.json);
        assert!(violations(&run).contains("8 acknowledged messages LOST"), "{}", run.json);
        assert_eq!(run.number("/out_of_order"), 0, "a gap is no reordering");
    }
}

#[test]
fn swapped_and_changed_messages_are_detected() {
    for (fault, said) in [(Fault::Swap, "out of order"), (Fault::Flip, "corrupt")] {
        let broker = Broker::start(Behaviour { fault, ..Behaviour::default() });
        let run = ha(&broker.address, "--publishers 1 --drain 1");
        assert!(violations(&run).contains(said), "{}", run.json);
        assert_eq!(run.code, 1);
    }
}

#[test]
fn a_second_copy_is_allowed_at_qos_1_only() {
    let broker = Broker::start(Behaviour { fault: Fault::Duplicate, ..Behaviour::default() });
    let run = ha(&broker.address, "-q 1");
    assert_eq!((run.number("/duplicated_qos1"), run.code), (8, 0), "{}", run.json);
    // Within the handshake of QoS 2 the client hides it, which is the purpose of the handshake.
    let broker = Broker::start(Behaviour { fault: Fault::Duplicate, ..Behaviour::default() });
    let run = ha(&broker.address, "-q 2");
    assert_eq!(
        (run.number("/duplicated_qos2"), run.number("/qos2_repetitions_hidden")),
        (0, 8),
        "{}",
        run.json
    );
    // With another identifier it is not hidden.
    let broker = Broker::start(Behaviour { fault: Fault::Twice, ..Behaviour::default() });
    let run = ha(&broker.address, "-q 2");
    assert_eq!((run.number("/duplicated_qos2"), run.code), (8, 1), "{}", run.json);
}

#[test]
fn cut_connections_are_reopened_and_lose_nothing() {
    for version in [4, 5] {
        for qos in ["1", "2", "mixed"] {
            let broker = Broker::start(Behaviour { cut_after: Some(37), ..Behaviour::default() });
            let run = ha(&broker.address, &format!("-V {version} -q {qos} --backoff-max 10"));
            assert_eq!(
                (run.number("/lost"), run.at("/violations"), run.code),
                (0, &json!([]), 0),
                "{}",
                run.json
            );
            assert_eq!(run.number("/acknowledged"), run.number("/sent"), "{}", run.json);
            assert!(run.number("/reconnects") > 0 && run.number("/resent") > 0, "{}", run.json);
            assert_eq!(run.number("/sessions_resumed"), run.number("/reconnects"), "{}", run.json);
        }
    }
}

#[test]
fn lost_sessions_are_violations() {
    for qos in ["1", "2"] {
        let broker =
            Broker::start(Behaviour { cut_after: Some(40), forgetful: true, ..Behaviour::default() });
        let run = ha(&broker.address, &format!("-q {qos} --drain 1 --backoff-max 10"));
        assert!(run.number("/sessions_lost/publishers") > 0, "{}", run.json);
        assert!(run.number("/sessions_lost/subscribers") > 0, "{}", run.json);
        assert_eq!((run.number("/duplicated_qos2"), run.code), (0, 1), "{}", run.json);
        assert!(violations(&run).contains("sessions lost"), "{}", run.json);
    }
}

#[test]
fn a_small_receive_maximum_is_respected() {
    let broker =
        Broker::start(Behaviour { receive_maximum: Some(3), cut_after: Some(50), ..Behaviour::default() });
    let run = ha(&broker.address, "-q 2 -R 300 --window 100 --backoff-max 10");
    assert_eq!((run.number("/lost"), run.at("/violations"), run.code), (0, &json!([]), 0), "{}", run.json);
}

#[test]
fn clients_go_to_the_next_host() {
    let nobody = crate::nobody();
    let broker = Broker::start(Behaviour { cut_after: Some(100), ..Behaviour::default() });
    let run = ha(&format!("{nobody},{}", broker.address), "--backoff-max 10");
    assert_eq!((run.number("/lost"), run.code), (0, 0), "{}", run.json);
    assert!(run.number("/reasons/tcp connect: ECONNREFUSED") > 0, "{}", run.json);
}

#[test]
fn nothing_starts_without_a_broker() {
    let nobody = crate::nobody();
    let run = ha(&nobody.to_string(), "--setup 0.3");
    assert!(run.at("/error").as_str().unwrap().contains("ECONNREFUSED"), "{}", run.json);
    assert_eq!((run.number("/sent"), run.code), (0, 2));
    // A permanent failure is not retried.
    let refusing = canned(b"\x20\x03\0\x87\0");
    let run = ha(&refusing.address, "--setup 100000");
    assert!(run.at("/error").as_str().unwrap().contains("not authorized"), "{}", run.json);
    assert_eq!(run.code, 2);
}
