//! Phases of a relay: connections, failures, settings and the end.

#[allow(dead_code, reason = "this test needs some of it")]
mod bench;

use std::time::Duration;

use bench::{Bench, settings};
use bridge::{AddressOrder, Direction, Existing, Input, Notifications, Side, Sides, Start, State, Topic};
use mqtt::{Property, QoS, ReasonCode, Version};

const LOCAL: Side = Side::Local;
const REMOTE: Side = Side::Remote;

#[test]
fn subscriptions_are_registered_before_the_remote_broker_is_asked() {
    let mut bench = Bench::new(settings());
    bench.handle(Input::Start);
    assert_eq!(bench.relay.state(), State::Preparing);
    bench.run_once();
    // The bench has answered CONNECT and SUBSCRIBE.
    while bench.last.local.is_empty() {
        assert!(bench.run_once());
    }
    assert_eq!(bench.last.local, ["DISCONNECT 0x00"]);
    assert_eq!(bench.relay.state(), State::Connecting { address: "one".into() });
}

#[test]
fn this_broker_may_send_no_more_than_the_remote_one_accepts() {
    let mut bench = Bench::new(settings());
    bench.answers.remote.properties.push(Property::ReceiveMaximum(7));
    bench.handle(Input::Start);
    bench.run();
    let sent = bench.sent(LOCAL);
    assert_eq!(sent, ["CONNECT $bridge/b bridge false clean false receive maximum Some(7) will None"]);
    assert_eq!(bench.sent(REMOTE)[1], "SUBSCRIBE in/#");
}

#[test]
fn subscriptions_of_earlier_settings_end() {
    let filters = Sides { local: vec!["old".into(), "out/#".into()], remote: vec!["gone/#".into()] };
    let mut bench = Bench::with(settings(), Existing { filters, address: Some("one".into()) });
    bench.handle(Input::Start);
    bench.run();
    let sent = bench.answer_requests(REMOTE);
    assert_eq!(sent[1..], ["UNSUBSCRIBE gone/#", "SUBSCRIBE in/#"]);

    let mut changed = settings();
    changed.topics = vec![Topic::new("new/#", Direction::Both, QoS::AtLeastOnce)];
    bench.handle(Input::Configure(Box::new(changed)));
    assert_eq!(bench.relay.state(), State::Preparing);
    bench.run();
    assert_eq!(bench.answer_requests(REMOTE)[1..], ["UNSUBSCRIBE in/#", "SUBSCRIBE new/#"]);

    let other = bridge::Settings::new("c", "one");
    let refused = bench.relay.handle(bench.now, Input::Configure(Box::new(other)));
    assert_eq!(refused, Err(bridge::SettingsError::NameChanged));
}

/// A bridge that stores the filters of the remote session, with these filters of the local session from earlier.
fn remembering(stored: &[&str]) -> Bench {
    let mut settings = settings();
    settings.memory = Some("$bridge/b/in/".into());
    let local = stored.iter().map(|filter| (*filter).to_owned()).collect();
    Bench::with(settings, Existing { filters: Sides { local, remote: Vec::new() }, address: None })
}

#[test]
fn filters_of_the_remote_session_are_stored_before_it_has_them() {
    let mut bench = remembering(&[]);
    bench.handle(Input::Start);
    while bench.last.local.is_empty() {
        assert!(bench.run_once());
    }
    assert_eq!(bench.prepared[1..], ["SUBSCRIBE out/# $bridge/b/in/in/#"]);
    assert_eq!(bench.relay.connection(REMOTE).map(|_| bench.sent(REMOTE)), Some(Vec::new()));
    bench.run();
    assert_eq!(bench.sent(REMOTE)[1..], ["SUBSCRIBE in/#"]);
}

#[test]
fn a_topic_that_was_removed_before_a_start_ends_at_the_remote_broker_and_is_forgotten_then() {
    let mut bench = remembering(&["out/#", "$bridge/b/in/in/#", "$bridge/b/in/gone/+", "$bridge/b/in/old"]);
    bench.handle(Input::Start);
    bench.run();
    assert_eq!(bench.sent(LOCAL)[1..], [""; 0], "nothing is forgotten yet");
    assert_eq!(bench.answer_requests(REMOTE)[1..], ["UNSUBSCRIBE gone/+ old", "SUBSCRIBE in/#"]);
    assert_eq!(bench.answer_requests(LOCAL), ["UNSUBSCRIBE $bridge/b/in/gone/+ $bridge/b/in/old"]);
    // The next connection has nothing left to end.
    bench.cut(REMOTE);
    bench.run();
    bench.wait();
    bench.run();
    assert_eq!(bench.answer_requests(REMOTE)[1..], ["SUBSCRIBE in/#"]);
    assert_eq!(bench.sent(LOCAL)[1..], [""; 0]);
}

#[test]
fn a_filter_whose_end_is_refused_or_not_answered_stays_stored() {
    let mut bench = remembering(&["out/#", "$bridge/b/in/in/#", "$bridge/b/in/gone"]);
    bench.handle(Input::Start);
    bench.run();
    bench.sent(LOCAL);
    let packet_id = mqtt::PacketId::new(65_535).expect("not 0");
    let (properties, reasons) = (mqtt::Properties::EMPTY, &[0x87][..]);
    bench.packet(REMOTE, mqtt::Packet::UnsubAck(mqtt::SubAck { packet_id, properties, reasons }));
    assert_eq!(bench.sent(LOCAL), [""; 0]);
}

#[test]
fn a_refused_subscription_is_counted() {
    let mut bench = Bench::connected(settings());
    let packet_id = mqtt::PacketId::new(65_535).expect("not 0");
    let (properties, reasons) = (mqtt::Properties::EMPTY, &[0x87][..]);
    bench.packet(REMOTE, mqtt::Packet::SubAck(mqtt::SubAck { packet_id, properties, reasons }));
    assert_eq!(bench.relay.counters().subscriptions_refused, 1);
    assert_eq!(bench.relay.last_error(), Some("the subscription in/# was refused: Not authorized"));
}

#[test]
fn the_end_of_one_connection_ends_the_other() {
    for side in Side::ALL {
        let mut settings = settings();
        settings.notifications = Notifications { local: Some("l".into()), remote: Some("r".into()) };
        let mut bench = Bench::connected(settings);
        bench.cut(side);
        bench.run();
        let (other, topic) = if side == LOCAL { (&bench.last.remote, "r") } else { (&bench.last.local, "l") };
        assert_eq!(other[other.len() - 2..], [format!("PUBLISH q0 {topic} 0"), "DISCONNECT 0x00".into()]);
        assert!(matches!(bench.relay.state(), State::Waiting { .. }));
        bench.wait();
        bench.run();
        assert!(matches!(bench.relay.state(), State::Connected { .. }));
        assert_eq!(bench.relay.counters().reconnects, 1);
    }
}

#[test]
fn the_state_is_published_and_the_will_takes_it_back() {
    let mut settings = settings();
    settings.notifications = Notifications { local: Some("l".into()), remote: Some("r".into()) };
    let mut bench = Bench::new(settings);
    bench.handle(Input::Start);
    bench.run();
    let remote = bench.sent(REMOTE);
    assert!(remote[0].ends_with(r#"will Some(("r", 1, true))"#), "{remote:?}");
    assert_eq!(remote.last().map(String::as_str), Some("PUBLISH q0 r 1"));
    let local = bench.sent(LOCAL);
    assert!(local[0].ends_with(r#"will Some(("l", 1, true))"#), "{local:?}");
    assert_eq!(local.last().map(String::as_str), Some("PUBLISH q0 l 1"));
}

#[test]
fn a_broker_without_retained_messages_gets_another_will() {
    let mut settings = settings();
    settings.notifications.remote = Some("r".into());
    let mut bench = Bench::new(settings);
    bench.answers.remote.reason = ReasonCode::RetainNotSupported;
    bench.answers.remote.session_present = false;
    bench.handle(Input::Start);
    bench.run();
    bench.answers.remote.reason = ReasonCode::Success;
    bench.wait();
    bench.run();
    let sent = bench.sent(REMOTE);
    assert!(sent[0].ends_with(r#"will Some(("r", 1, false))"#), "{sent:?}");
}

#[test]
fn a_lost_session_of_the_remote_broker_is_counted_and_its_identifiers_are_released() {
    let mut bench = Bench::new(settings());
    bench.answers.local.session_present = false;
    bench.answers.remote.session_present = false;
    bench.connect();
    bench.answers.local.session_present = true;
    bench.publish(REMOTE, 8, QoS::ExactlyOnce, "in/a", 3);
    bench.sent(LOCAL);
    bench.ok(LOCAL, "PUBREC", 8);
    bench.cut(REMOTE);
    bench.run();
    bench.wait();
    bench.run();
    assert_eq!(bench.relay.counters().remote_sessions_lost, 1);
    assert!(!bench.relay.wants_read(REMOTE), "a new message could have the identifier of the old one");
    assert_eq!(bench.sent(LOCAL)[1..], ["PUBREL 8"]);
    bench.ack(LOCAL, "PUBCOMP", 8, ReasonCode::PacketIdentifierNotFound);
    assert!(bench.relay.wants_read(REMOTE));
    assert!(bench.sent(REMOTE).iter().all(|sent| !sent.starts_with("PUBCOMP")));
}

#[test]
fn a_process_that_does_not_know_the_identifiers_releases_all() {
    let mut bench = Bench::new(settings());
    bench.answers.remote.session_present = false;
    bench.handle(Input::Start);
    bench.run();
    let mut released = 0;
    while !bench.relay.wants_read(REMOTE) {
        let sent = bench.sent(LOCAL);
        for id in sent.iter().filter_map(|sent| sent.strip_prefix("PUBREL ")) {
            released += 1;
            let id = id.parse().expect("an identifier");
            bench.ack(LOCAL, "PUBCOMP", id, ReasonCode::PacketIdentifierNotFound);
        }
    }
    assert_eq!(released, 65_535);
    assert_eq!(bench.relay.counters().remote_sessions_lost, 0, "it was never connected before");
}

#[test]
fn a_broker_that_does_not_answer_releases_is_used_all_the_same() {
    let mut settings = settings();
    settings.keep_alive = 0;
    let mut bench = Bench::new(settings);
    // This broker has lost the session, and the remote one has not.
    bench.answers.local.session_present = false;
    bench.handle(Input::Start);
    bench.run();
    assert!(!bench.relay.wants_read(LOCAL));
    assert!(bench.sent(REMOTE).len() > 10_000);
    assert_eq!(bench.wait(), Duration::from_secs(30));
    assert!(bench.relay.wants_read(LOCAL));
    assert_eq!(bench.relay.counters().sweeps_abandoned, 1);
}

#[test]
fn a_broker_that_refuses_the_bridge_bit_gets_a_connect_without_it() {
    let mut settings = settings();
    settings.version = Version::V3_1_1;
    let mut bench = Bench::new(settings.clone());
    bench.answers.remote.reason = ReasonCode::UnsupportedProtocolVersion;
    bench.answers.remote.session_present = false;
    bench.handle(Input::Start);
    while bench.opened.len() < 2 {
        if bench.opened.len() == 1 {
            bench.answers.remote.reason = ReasonCode::Success;
        }
        assert!(bench.run_once());
    }
    bench.run();
    assert!(bench.sent(REMOTE)[0].contains("bridge false"));

    // Messages of both directions would come back.
    settings.topics = vec![Topic::new("a", Direction::Both, QoS::AtMostOnce)];
    let mut bench = Bench::new(settings);
    bench.answers.remote.reason = ReasonCode::UnsupportedProtocolVersion;
    bench.answers.remote.session_present = false;
    bench.handle(Input::Start);
    bench.run();
    assert!(matches!(bench.relay.state(), State::Stopped { .. }), "{}", bench.relay.state());
}

#[test]
fn the_waiting_time_grows_and_addresses_take_turns() {
    for order in [AddressOrder::Ordered, AddressOrder::RoundRobin] {
        let mut settings = settings();
        settings.addresses = vec!["one".into(), "two".into()];
        settings.address_order = order;
        settings.backoff.max = Duration::from_secs(8);
        let mut bench = Bench::new(settings);
        bench.handle(Input::Start);
        while bench.relay.state() == State::Preparing {
            bench.run_once();
        }
        let mut addresses = Vec::new();
        for seconds in [1, 2, 4, 8, 8] {
            addresses.extend(bench.fail_next());
            let waited = bench.wait();
            let most = Duration::from_secs(seconds);
            assert!(waited <= most && waited >= most / 2, "{waited:?} of {most:?}");
        }
        assert_eq!(addresses, ["one", "two", "one", "two", "one"]);
        assert_eq!(bench.relay.counters().failed_attempts, 5);
        bench.run();
        assert_eq!(bench.opened, ["two"]);
        // The connection is stable, so the waiting time is short again.
        bench.now = bench.now.after(Duration::from_secs(40));
        bench.cut(REMOTE);
        assert!(bench.wait() <= Duration::from_secs(1));
        bench.run();
        assert_eq!(bench.opened, ["two", "one"]);
    }
}

#[test]
fn a_broker_that_does_not_answer_in_time_is_left() {
    let mut bench = Bench::new(settings());
    bench.handle(Input::Start);
    while bench.relay.state() == State::Preparing {
        bench.run_once();
    }
    assert_eq!(bench.wait(), Duration::from_secs(30));
    assert!(matches!(bench.relay.state(), State::Waiting { .. }));
    assert_eq!(bench.relay.last_error(), Some("one: no answer in time"));
}

#[test]
fn a_lazy_bridge_connects_for_messages_and_leaves_when_idle() {
    let mut settings = settings();
    settings.keep_alive = 0;
    settings.start = Start::Lazy { idle: Duration::from_secs(10), queued_min: 3 };
    let mut bench = Bench::new(settings);
    bench.handle(Input::Start);
    bench.run();
    assert_eq!(bench.relay.state(), State::Idle);
    bench.handle(Input::Queued(2));
    assert_eq!(bench.relay.state(), State::Idle);
    bench.handle(Input::Queued(3));
    bench.run();
    assert!(matches!(bench.relay.state(), State::Connected { .. }));
    bench.now = bench.now.after(Duration::from_secs(6));
    bench.publish(LOCAL, 0, QoS::AtMostOnce, "out/a", 3);
    assert_eq!(bench.wait(), Duration::from_secs(10));
    assert_eq!(bench.relay.state(), State::Idle);
}

#[test]
fn a_bridge_that_connects_once_stops_afterwards() {
    let mut settings = settings();
    settings.start = Start::Once;
    let mut bench = Bench::connected(settings);
    bench.cut(REMOTE);
    assert!(matches!(bench.relay.state(), State::Stopped { .. }));
    assert_eq!(bench.relay.poll_timeout(), None);
    bench.connect();
}

#[test]
fn a_gentle_stop_completes_what_is_in_flight() {
    let mut bench = Bench::connected(settings());
    bench.publish(LOCAL, 1, QoS::AtLeastOnce, "out/a", 3);
    bench.handle(Input::Stop { within: Duration::from_secs(5) });
    assert_eq!(bench.relay.state(), State::Stopping);
    // A new message stays in the session of its broker.
    bench.publish(LOCAL, 2, QoS::AtLeastOnce, "out/a", 3);
    assert_eq!(bench.sent(REMOTE), ["PUBLISH 1 q1 site/out/a"]);
    bench.ok(REMOTE, "PUBACK", 1);
    assert_eq!(bench.sent(LOCAL), ["PUBACK 1"]);
    bench.run();
    assert_eq!(
        (bench.last.local[0].as_str(), bench.last.remote[0].as_str()),
        ("DISCONNECT 0x00", "DISCONNECT 0x00")
    );
    assert_eq!(bench.relay.state(), State::Stopped { reason: "by request".into() });

    let mut bench = Bench::connected(settings());
    bench.publish(LOCAL, 1, QoS::AtLeastOnce, "out/a", 3);
    bench.handle(Input::Stop { within: Duration::from_secs(5) });
    assert_eq!(bench.wait(), Duration::from_secs(5));
    assert!(matches!(bench.relay.state(), State::Stopped { .. }));
}

#[test]
fn a_silent_remote_broker_is_left() {
    let mut bench = Bench::new(settings());
    bench.handle(Input::Start);
    bench.run();
    bench.answer_requests(LOCAL);
    bench.answer_requests(REMOTE);
    assert_eq!(bench.wait(), Duration::from_secs(60));
    assert_eq!(bench.sent(REMOTE), ["PINGREQ"]);
    assert_eq!(bench.wait(), Duration::from_secs(60));
    assert_eq!(bench.relay.last_error(), Some("one: the server did not answer a PINGREQ"));
}

#[test]
fn inputs_about_an_earlier_connection_are_ignored() {
    let mut bench = Bench::connected(settings());
    let before = bench.relay.connection(REMOTE).expect("a connection");
    bench.cut(REMOTE);
    bench.wait();
    bench.run();
    bench.handle(Input::Closed(before, "late".into()));
    bench.handle(Input::Received(before, &[0xFF; 20]));
    assert!(matches!(bench.relay.state(), State::Connected { .. }));
}
