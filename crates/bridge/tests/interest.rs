//! Subscriptions at the remote broker that change while a relay runs.

#[allow(dead_code, reason = "this test needs some of it")]
mod bench;

use std::time::Duration;

use bench::Bench;
use bridge::{
    Direction, Dropped, Input, InterestError, InterestSettings, ORIGIN, Password, Settings, SettingsError,
    Side, Start, State, Topic, VIA,
};
use mqtt::{
    Disconnect, Packet, PacketId, Properties, PropertiesBuf, Property, Publish, QoS, ReasonCode, SubAck,
    Version,
};

const LOCAL: Side = Side::Local;
const REMOTE: Side = Side::Remote;

/// Settings of the cluster `own` that takes messages of `far`.
fn settings() -> Settings {
    let mut settings = Settings::new("far", "one");
    settings.local_client_id = Some("$linked/far".into());
    settings.client_id = "$link/own".into();
    settings.topics = vec![Topic::prefixed("#", Direction::In, QoS::ExactlyOnce, "far/", "")];
    settings.interest = Some(InterestSettings::new("own", "far", None));
    settings
}

fn want(bench: &mut Bench, number: u64, add: &[&str], remove: &[&str]) {
    let boxed = |names: &[&str]| names.iter().map(|name| Box::from(*name)).collect();
    bench.handle(Input::Want { number, add: boxed(add), remove: boxed(remove) });
}

/// A relay that is connected, whose remote session is new and has these filters.
fn with_filters(settings: Settings, filters: &[&str]) -> Bench {
    let mut bench = Bench::new(settings);
    want(&mut bench, 1, filters, &[]);
    start_new(&mut bench);
    bench.sent(LOCAL);
    bench.answer_requests(REMOTE);
    assert_eq!(bench.relay.subscribed(), filters.len());
    bench
}

/// Connects with new sessions, which leave no Packet Identifiers to be released. The next ones are present.
fn start_new(bench: &mut Bench) {
    (bench.answers.local.session_present, bench.answers.remote.session_present) = (false, false);
    bench.handle(Input::Start);
    bench.run();
    (bench.answers.local.session_present, bench.answers.remote.session_present) = (true, true);
}

/// Connects again, and returns what the remote broker gets after CONNECT.
fn again(bench: &mut Bench) -> Vec<String> {
    bench.cut(REMOTE);
    bench.wait();
    bench.run();
    let mut sent = bench.sent(REMOTE);
    assert!(sent.remove(0).starts_with("CONNECT"));
    sent
}

/// Delivers an answer to a question for the list.
fn list(bench: &mut Bench, text: &str) {
    let publish = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "$link/own/filters",
        packet_id: None,
        properties: Properties::EMPTY,
        payload: text.as_bytes(),
    };
    bench.packet(REMOTE, Packet::Publish(publish));
}

/// A relay of a new process that has asked for the first page of the list.
fn listing(filters: &[&str]) -> Bench {
    let mut bench = Bench::new(settings());
    want(&mut bench, 1, filters, &[]);
    bench.handle(Input::Start);
    bench.run();
    let sent = bench.answer_requests(REMOTE);
    assert_eq!(sent[1..], ["SUBSCRIBE $link/own/filters"]);
    assert_eq!(bench.sent(REMOTE), ["PUBLISH q0 $link/own/list 0"]);
    bench
}

fn suback(bench: &mut Bench, id: u16, reasons: &[u8]) {
    let packet_id = PacketId::new(id).expect("not 0");
    bench.packet(REMOTE, Packet::SubAck(SubAck { packet_id, properties: Properties::EMPTY, reasons }));
}

fn unsuback(bench: &mut Bench, id: u16, reasons: &[u8]) {
    let packet_id = PacketId::new(id).expect("not 0");
    bench.packet(REMOTE, Packet::UnsubAck(SubAck { packet_id, properties: Properties::EMPTY, reasons }));
}

#[test]
fn a_new_session_gets_all_filters_in_packets_of_bounded_size_and_number() {
    let names: Vec<String> = (0..2_000).map(|number| format!("{number}/{}", "x".repeat(200))).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut bench = Bench::new(settings());
    want(&mut bench, 1, &names, &[]);
    start_new(&mut bench);
    assert_eq!((bench.relay.wanted(), bench.relay.subscribed()), (2_000, 0));
    let mut packets = 0;
    while !bench.relay.is_settled() {
        assert_eq!(bench.relay.settled_number(), 0);
        let sent = bench.answer_requests(REMOTE);
        let subscribes = sent.iter().filter(|sent| sent.starts_with("SUBSCRIBE"));
        let sizes: Vec<usize> = subscribes.map(String::len).collect();
        assert!(
            !sizes.is_empty() && sizes.len() <= 8 && sizes.iter().all(|size| *size < 16 << 10),
            "{sizes:?}"
        );
        packets += sizes.len();
    }
    assert!((26..40).contains(&packets), "{packets} packets for 400 kB");
    assert_eq!((bench.relay.subscribed(), bench.relay.settled_number()), (2_000, 1));
    assert_eq!(bench.relay.counters().subscriptions_made, 2_000);
    assert_eq!(bench.relay.counters().lists_asked, 0);
}

#[test]
fn a_new_process_lists_the_session_and_sends_only_differences() {
    let mut bench = listing(&["kept", "new", "gone"]);
    want(&mut bench, 2, &[], &["gone"]);
    assert!(bench.relay.may_have_stale());
    list(&mut bench, "0 5\n$link/own/filters\ngone\n");
    assert_eq!(bench.sent(REMOTE), ["PUBLISH q0 $link/own/list 2"]);
    // Nothing ends while the list has positions.
    assert_eq!((bench.relay.subscribed(), bench.relay.settled_number()), (0, 0));
    list(&mut bench, "2 5\nkept\nold/#\n$share/g/old");
    let sent = bench.answer_requests(REMOTE);
    assert_eq!(sent, ["SUBSCRIBE new", "UNSUBSCRIBE gone old/# $share/g/old"]);
    assert_eq!((bench.relay.subscribed(), bench.relay.settled_number()), (2, 2));
    assert!(bench.relay.is_settled() && !bench.relay.may_have_stale());
    let counters = bench.relay.counters();
    assert_eq!((counters.lists_asked, counters.stale_filters, counters.subscriptions_ended), (2, 2, 3));
    assert!(bench.sent(LOCAL).iter().all(|sent| !sent.contains("PUBLISH")), "answers are not passed on");
}

#[test]
fn a_filter_that_is_new_does_not_wait_for_the_list() {
    let mut bench = listing(&["kept"]);
    want(&mut bench, 2, &["new"], &[]);
    assert_eq!(bench.answer_requests(REMOTE), ["SUBSCRIBE new"]);
    list(&mut bench, "0 3\n$link/own/filters\nkept\nnew");
    assert_eq!(bench.sent(REMOTE), [""; 0]);
    assert_eq!((bench.relay.subscribed(), bench.relay.settled_number()), (2, 2));
}

#[test]
fn nothing_is_listed_or_ended_before_the_owner_knows_its_filters() {
    let mut bench = Bench::new(settings());
    bench.handle(Input::Start);
    bench.run();
    assert_eq!(bench.sent(REMOTE).len(), 1, "CONNECT");
    assert!(!bench.relay.is_settled());
    bench.handle(Input::WantOnly { number: 1, filters: vec!["a".into()] });
    assert_eq!(bench.answer_requests(REMOTE), ["SUBSCRIBE $link/own/filters"]);
    assert_eq!(bench.sent(REMOTE), ["PUBLISH q0 $link/own/list 0"]);
}

#[test]
fn a_list_without_an_answer_is_asked_for_twice_and_given_up_until_the_next_connection() {
    let mut bench = listing(&["a", "b"]);
    assert_eq!(bench.wait(), Duration::from_secs(5));
    assert_eq!(bench.sent(REMOTE), ["PUBLISH q0 $link/own/list 0"]);
    assert_eq!(bench.wait(), Duration::from_secs(5));
    assert_eq!(bench.answer_requests(REMOTE), ["SUBSCRIBE a b"]);
    assert!(bench.relay.is_settled() && bench.relay.may_have_stale());
    assert_eq!(bench.relay.counters().lists_unanswered, 1);
    // An answer that is too late changes nothing.
    list(&mut bench, "0 1\nold");
    assert_eq!((bench.sent(REMOTE).len(), bench.relay.counters().pages_ignored), (0, 1));
    // Later changes need no list.
    want(&mut bench, 2, &["c"], &["a"]);
    assert_eq!(bench.answer_requests(REMOTE), ["UNSUBSCRIBE a", "SUBSCRIBE c"]);
    assert!(bench.relay.is_settled());
    assert_eq!(again(&mut bench), ["SUBSCRIBE $link/own/filters"]);
}

#[test]
fn a_broker_that_refuses_the_list_gets_all_filters() {
    let mut bench = Bench::new(settings());
    want(&mut bench, 1, &["a"], &[]);
    bench.handle(Input::Start);
    bench.run();
    bench.sent(REMOTE);
    suback(&mut bench, 65_535, &[0x87]);
    assert_eq!(bench.answer_requests(REMOTE), ["SUBSCRIBE a"]);
    assert_eq!(bench.relay.last_error(), Some("the list of subscriptions was refused: Not authorized"));
    assert_eq!(bench.relay.counters().lists_unanswered, 1);
}

#[test]
fn a_list_that_is_not_valid_is_not_used() {
    let long = "x".repeat(200_000);
    for text in [
        "",
        "0",
        "x 1\na",
        "0 1 2\na",
        "0 2\na/#/b\nb",
        "0 2\n",
        "0 2\n\na",
        "0 999999999\na",
        "0 1\n$share/a",
        &long,
    ] {
        let mut bench = listing(&["a"]);
        list(&mut bench, text);
        assert_eq!(bench.relay.counters().lists_invalid, 1, "{text:.20}");
        assert_eq!(bench.answer_requests(REMOTE), ["SUBSCRIBE a"]);
        assert!(bench.relay.may_have_stale());
    }
    // The answer to an earlier question.
    let mut bench = listing(&["a"]);
    list(&mut bench, "7 9\nb");
    assert_eq!((bench.relay.counters().lists_invalid, bench.relay.is_settled()), (0, false));
    assert_eq!(bench.sent(REMOTE), [""; 0]);
}

#[test]
fn the_same_relay_sends_only_what_had_no_answer() {
    let mut bench = with_filters(settings(), &["a", "b"]);
    want(&mut bench, 2, &["c"], &["b"]);
    assert_eq!(bench.sent(REMOTE), ["UNSUBSCRIBE b", "SUBSCRIBE c"]);
    assert_eq!(bench.relay.settled_number(), 1);
    want(&mut bench, 3, &["d"], &[]);
    assert_eq!(bench.sent(REMOTE), ["SUBSCRIBE d"]);
    bench.cut(REMOTE);
    want(&mut bench, 4, &["e"], &["d", "a"]);
    bench.wait();
    bench.run();
    assert_eq!(bench.answer_requests(REMOTE)[1..], ["UNSUBSCRIBE b d a", "SUBSCRIBE c e"]);
    assert_eq!((bench.relay.subscribed(), bench.relay.settled_number()), (2, 4));
}

#[test]
fn a_change_that_comes_before_an_answer_is_sent_after_it() {
    let mut bench = with_filters(settings(), &["a"]);
    want(&mut bench, 2, &["b"], &[]);
    assert_eq!(bench.sent(REMOTE), ["SUBSCRIBE b"]);
    want(&mut bench, 3, &[], &["b"]);
    assert_eq!(bench.sent(REMOTE), [""; 0]);
    suback(&mut bench, 65_534, &[2]);
    assert_eq!(bench.sent(REMOTE), ["UNSUBSCRIBE b"]);
    want(&mut bench, 4, &["b"], &[]);
    assert_eq!((bench.relay.wanted(), bench.relay.subscribed(), bench.relay.settled_number()), (2, 1, 1));
    unsuback(&mut bench, 65_533, &[0]);
    assert_eq!(bench.answer_requests(REMOTE), ["SUBSCRIBE b"]);
    assert_eq!((bench.relay.subscribed(), bench.relay.settled_number()), (2, 4));
    // Removed and added again with nothing between: nothing is to be done.
    want(&mut bench, 5, &["a"], &["a"]);
    assert_eq!(bench.sent(REMOTE), [""; 0]);
    assert_eq!(bench.relay.settled_number(), 5);
}

#[test]
fn a_filter_that_a_confirmed_one_includes_gets_no_retained_messages_again() {
    let mut bench = with_filters(settings(), &["a/+", "b"]);
    want(&mut bench, 2, &["a/1", "a/#", "b/1"], &[]);
    assert_eq!(bench.answer_requests(REMOTE), ["SUBSCRIBE a/1(no retained) a/# b/1"]);
    want(&mut bench, 3, &["a/1/x"], &["a/#"]);
    assert_eq!(bench.answer_requests(REMOTE), ["UNSUBSCRIBE a/#", "SUBSCRIBE a/1/x"], "it ends first");
    // A filter that is not confirmed yet has brought nothing.
    want(&mut bench, 4, &["c/#"], &[]);
    want(&mut bench, 5, &["c/1"], &[]);
    assert_eq!(bench.answer_requests(REMOTE), ["SUBSCRIBE c/#", "SUBSCRIBE c/1"]);
    // On a new connection, changes of QoS 0 may have been missed.
    assert_eq!(again(&mut bench), [""; 0]);
    want(&mut bench, 6, &["c/2/#"], &[]);
    want(&mut bench, 7, &["d"], &["a/1"]);
    assert_eq!(bench.answer_requests(REMOTE), ["SUBSCRIBE c/2/#", "UNSUBSCRIBE a/1", "SUBSCRIBE d"]);
    want(&mut bench, 8, &["c/2/x"], &[]);
    assert_eq!(bench.answer_requests(REMOTE), ["SUBSCRIBE c/2/x(no retained)"]);
}

#[test]
fn a_refused_filter_is_named_and_tried_again_at_the_next_connection() {
    let mut bench = with_filters(settings(), &["a"]);
    want(&mut bench, 2, &["b", "c"], &[]);
    bench.sent(REMOTE);
    suback(&mut bench, 65_534, &[2, 0x87]);
    assert_eq!(bench.relay.last_error(), Some("the subscription c was refused: Not authorized"));
    assert_eq!((bench.relay.wanted(), bench.relay.subscribed(), bench.relay.settled_number()), (3, 2, 2));
    assert_eq!(bench.relay.counters().subscriptions_refused, 1);
    want(&mut bench, 3, &["c"], &[]);
    assert_eq!(bench.sent(REMOTE), [""; 0]);
    assert_eq!(again(&mut bench), ["SUBSCRIBE c"]);
    // What the owner knows as settled stays so.
    assert_eq!((bench.relay.settled_number(), bench.relay.is_settled()), (3, false));
}

#[test]
fn the_end_of_a_subscription_that_is_refused_is_counted() {
    let mut bench = with_filters(settings(), &["a"]);
    want(&mut bench, 2, &[], &["a"]);
    bench.sent(REMOTE);
    unsuback(&mut bench, 65_534, &[0x87]);
    assert_eq!((bench.relay.counters().ends_refused, bench.relay.is_settled()), (1, true));
    assert_eq!(bench.relay.last_error(), Some("the end of the subscription a was refused: Not authorized"));
}

#[test]
fn an_answer_with_another_number_of_reason_codes_ends_the_connection() {
    let mut bench = with_filters(settings(), &["a"]);
    want(&mut bench, 2, &["b"], &[]);
    bench.sent(REMOTE);
    suback(&mut bench, 65_534, &[2, 2, 2]);
    assert!(matches!(bench.relay.state(), State::Waiting { .. }));
    bench.wait();
    bench.run();
    assert_eq!(bench.sent(REMOTE)[1..], ["SUBSCRIBE b"]);
}

#[test]
fn a_session_that_was_lost_gets_all_filters_again() {
    let mut bench = with_filters(settings(), &["a", "b"]);
    bench.answers.remote.session_present = false;
    assert_eq!(again(&mut bench), ["SUBSCRIBE a b"]);
    assert_eq!(bench.relay.counters().remote_sessions_lost, 1);
    assert_eq!((bench.relay.subscribed(), bench.relay.settled_number()), (0, 1));
}

#[test]
fn a_new_session_whose_relay_never_ran_is_not_taken_for_the_old_one() {
    let mut bench = with_filters(settings(), &["a"]);
    bench.answers.remote.session_present = false;
    bench.cut(REMOTE);
    bench.wait();
    // The CONNACK arrives, and this broker is not reached.
    while bench.relay.connection(LOCAL).is_none() {
        assert!(bench.run_once());
    }
    assert!(bench.fail_next().is_none());
    bench.answers.remote.session_present = true;
    bench.wait();
    bench.run();
    assert_eq!(bench.sent(REMOTE)[1..], ["SUBSCRIBE a"]);
}

#[test]
fn the_session_is_listed_again_when_another_may_have_changed_it() {
    // Another client took one of the two sessions.
    for side in Side::ALL {
        let mut bench = with_filters(settings(), &["a"]);
        let (reason, properties) = (ReasonCode::SessionTakenOver, Properties::EMPTY);
        bench.packet(side, Packet::Disconnect(Disconnect { reason, properties }));
        bench.wait();
        bench.run();
        assert_eq!(bench.answer_requests(REMOTE)[1..], ["SUBSCRIBE $link/own/filters"]);
        bench.sent(REMOTE);
        list(&mut bench, "0 1\n$link/own/filters");
        assert_eq!(bench.sent(REMOTE), ["SUBSCRIBE a"]);
    }
    // A CONNECT without an answer may have created a new session.
    let mut bench = with_filters(settings(), &["a"]);
    bench.cut(REMOTE);
    bench.wait();
    bench.open_silently(REMOTE);
    bench.cut(REMOTE);
    bench.wait();
    bench.run();
    assert_eq!(bench.sent(REMOTE)[1..], ["SUBSCRIBE $link/own/filters"]);
    assert_eq!(bench.relay.settled_number(), 1);
}

#[test]
fn a_remote_cluster_that_was_restored_is_noticed_and_its_session_is_listed_again() {
    let answer_with = |bench: &mut Bench, history: Option<&'static str>| {
        let property = history.map(|history| Property::UserProperty("meridian-history", history));
        bench.answers.remote.properties = property.into_iter().collect();
    };
    let mut bench = Bench::new(settings());
    want(&mut bench, 1, &["a", "b"], &[]);
    answer_with(&mut bench, Some("n:1"));
    start_new(&mut bench);
    bench.answer_requests(REMOTE);
    let listed = ["SUBSCRIBE $link/own/filters"];
    for (history, is_restored) in [
        (Some("n:1"), false),
        // Not known yet.
        (None, false),
        // The node has become a cluster.
        (Some("c:1"), false),
        (Some("c:2"), true),
        (Some("n:2"), true),
        (Some("n:1"), true),
    ] {
        answer_with(&mut bench, history);
        let before = bench.relay.counters().remote_restores;
        bench.cut(REMOTE);
        bench.now = bench.now.after(Duration::from_secs(600));
        bench.wait();
        bench.run();
        let sent = bench.answer_requests(REMOTE).split_off(1);
        let expected: &[&str] = if is_restored { &listed } else { &[] };
        assert_eq!(sent, expected, "{history:?}");
        assert_eq!(bench.relay.counters().remote_restores - before, u64::from(is_restored), "{history:?}");
        if is_restored {
            assert_eq!(bench.relay.subscribed(), 0, "nothing is known");
            assert_eq!(bench.sent(REMOTE), ["PUBLISH q0 $link/own/list 0"]);
            list(&mut bench, "0 2\na\n$link/own/filters");
            assert_eq!(bench.answer_requests(REMOTE), ["SUBSCRIBE b"]);
        }
        assert_eq!(bench.relay.subscribed(), 2);
    }
    assert_eq!(bench.relay.history(), Some("n:1"));
    assert_eq!(bench.relay.counters().remote_sessions_lost, 0);
    // The owner of a new relay may know it.
    let mut settings = settings();
    settings.interest.as_mut().expect("interest").history = Some("n:7".into());
    let mut bench = Bench::new(settings);
    want(&mut bench, 1, &["a"], &[]);
    answer_with(&mut bench, Some("n:8"));
    start_new(&mut bench);
    assert_eq!(bench.relay.counters().remote_restores, 1);
}

/// The remote cluster removes what it does not export any more. A broker of an earlier version does not say that.
#[test]
fn a_remote_cluster_that_exports_something_else_lists_its_subscriptions_again() {
    let answer_with = |bench: &mut Bench, export: Option<&'static str>| {
        let property = export.map(|export| Property::UserProperty("meridian-export", export));
        bench.answers.remote.properties = property.into_iter().collect();
    };
    let mut bench = with_filters(settings(), &["a", "b"]);
    let listed = ["SUBSCRIBE $link/own/filters"];
    for (export, is_other) in [
        (None, false),
        (Some("1"), true),
        (Some("1"), false),
        (Some("2"), true),
        (None, false),
        (Some("2"), false),
    ] {
        answer_with(&mut bench, export);
        bench.cut(REMOTE);
        bench.wait();
        bench.run();
        let sent = bench.answer_requests(REMOTE).split_off(1);
        assert_eq!(sent, if is_other { &listed[..] } else { &[] }, "{export:?}");
        if is_other {
            assert_eq!(bench.relay.subscribed(), 0, "nothing is known");
            assert_eq!(bench.sent(REMOTE), ["PUBLISH q0 $link/own/list 0"]);
            list(&mut bench, "0 2\na\n$link/own/filters");
            assert_eq!(bench.answer_requests(REMOTE), ["SUBSCRIBE b"]);
        }
        assert_eq!(bench.relay.subscribed(), 2);
    }
    let counters = bench.relay.counters();
    assert_eq!((counters.remote_restores, counters.remote_sessions_lost), (0, 0));
}

#[test]
fn filters_that_cannot_be_sent_are_refused() {
    let mut bench = Bench::new(settings());
    bench.answers.remote.properties.push(Property::MaximumPacketSize(300));
    let long = "x".repeat(400);
    let refused = ["two\nlines", "a/#/b", "$SYS/#", "$share/g/$SYS/#", "$link/own/filters"];
    want(&mut bench, 1, &refused, &[]);
    assert_eq!(bench.relay.counters().subscriptions_refused, 5);
    want(&mut bench, 2, &["a", &long], &[]);
    assert_eq!(bench.relay.wanted(), 2);
    start_new(&mut bench);
    assert_eq!(bench.answer_requests(REMOTE)[1..], ["SUBSCRIBE a"]);
    assert_eq!(bench.relay.counters().subscriptions_refused, 6);
    assert!(bench.relay.is_settled());
    assert_eq!(
        bench.relay.last_error(),
        Some("a filter of 400 bytes exceeds the packet size of the remote broker")
    );
}

/// Delivers a message with these User Properties, and returns how it leaves for this broker.
fn through(
    bench: &mut Bench,
    topic: &str,
    properties: &[(&str, &str)],
) -> Option<(String, Vec<(String, String)>)> {
    let properties: PropertiesBuf =
        properties.iter().map(|(name, value)| Property::UserProperty(name, value)).collect();
    let publish = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic,
        packet_id: None,
        properties: properties.as_properties(),
        payload: b"x",
    };
    bench.packet(REMOTE, Packet::Publish(publish));
    let bytes = bench.relay.outgoing(LOCAL).to_vec();
    bench.sent(LOCAL);
    let Ok(Packet::Publish(publish)) = mqtt::decode(Version::V5, &bytes) else { return None };
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    Some((publish.topic.to_owned(), publish.properties.user_properties().map(owned).collect()))
}

#[test]
fn messages_get_their_origin_and_only_the_expected_one_passes() {
    let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut bench = with_filters(settings(), &["#"]);
    let via = text(VIA, "own/far");
    let passed = through(&mut bench, "a", &[("k", "v")]).expect("it passes");
    assert_eq!(passed, ("far/a".into(), vec![text("k", "v"), via.clone(), text(ORIGIN, "far")]));
    let passed = through(&mut bench, "a", &[(ORIGIN, "far")]).expect("it passes");
    assert_eq!(passed.1, [text(ORIGIN, "far"), via.clone()]);
    assert_eq!(through(&mut bench, "a", &[(ORIGIN, "own")]), None);
    assert_eq!(through(&mut bench, "a", &[(ORIGIN, "third")]), None);
    assert_eq!(through(&mut bench, "a", &[(ORIGIN, "far"), (ORIGIN, "own")]), None);
    assert_eq!(through(&mut bench, "$SYS/a", &[]), None);
    let dropped = |bench: &Bench, cause| bench.relay.counters().dropped(REMOTE, cause);
    assert_eq!(dropped(&bench, Dropped::OwnOrigin), 2);
    assert_eq!(dropped(&bench, Dropped::OtherOrigin), 1);
    assert_eq!(dropped(&bench, Dropped::NotMapped), 1);

    // Messages of a third cluster come by a session of their own.
    let mut settings = settings();
    settings.interest = Some(InterestSettings::new("own", "far", Some("third")));
    settings.pass.user_properties = false;
    let mut bench = with_filters(settings, &["#"]);
    let passed = through(&mut bench, "a", &[("k", "v"), (ORIGIN, "third")]).expect("it passes");
    assert_eq!(passed.1, [text(ORIGIN, "third"), via]);
    assert_eq!(through(&mut bench, "a", &[]), None);
    assert_eq!(through(&mut bench, "a", &[(ORIGIN, "far")]), None);
    assert_eq!(dropped(&bench, Dropped::OtherOrigin), 2);
}

#[test]
fn a_dropped_message_is_acknowledged() {
    let mut settings = settings();
    settings.topics = vec![Topic::prefixed("in/#", Direction::In, QoS::ExactlyOnce, "far/", "")];
    let mut bench = with_filters(settings, &["in/#"]);
    bench.publish(REMOTE, 5, QoS::AtLeastOnce, "other", 3);
    bench.publish(REMOTE, 6, QoS::AtLeastOnce, "$link/own/filters", 3);
    assert_eq!(bench.sent(REMOTE), ["PUBACK 5 0x90", "PUBACK 6 0x90"]);
    assert_eq!(bench.sent(LOCAL), [""; 0]);
}

#[test]
fn names_and_passwords_of_the_two_sessions_are_those_of_the_settings() {
    let mut settings = settings();
    settings.username = Some("$link".into());
    let mut bench = Bench::new(settings);
    bench.handle(Input::Password(Some(Password::new("first"))));
    bench.handle(Input::Start);
    bench.run();
    let has =
        |bench: &Bench, text: &[u8]| bench.relay.outgoing(REMOTE).windows(text.len()).any(|it| it == text);
    assert!(has(&bench, b"first") && has(&bench, b"$link"));
    assert!(bench.sent(LOCAL)[0].starts_with("CONNECT $linked/far "));
    bench.cut(REMOTE);
    bench.handle(Input::Password(Some(Password::new("second"))));
    bench.wait();
    bench.run();
    assert!(has(&bench, b"second") && !has(&bench, b"first"));
}

#[test]
fn wanted_filters_survive_new_settings_and_a_new_relay() {
    let mut bench = with_filters(settings(), &["a"]);
    let mut changed = settings();
    changed.in_flight = 7;
    bench.handle(Input::Configure(Box::new(changed.clone())));
    bench.run();
    assert_eq!(bench.answer_requests(REMOTE).len(), 1, "what is there is known");
    if let Some(interest) = &mut changed.interest {
        interest.qos = QoS::AtLeastOnce;
    }
    bench.handle(Input::Configure(Box::new(changed.clone())));
    bench.run();
    assert_eq!(bench.sent(REMOTE)[1..], ["SUBSCRIBE $link/own/filters"]);
    let relay = bridge::Relay::new(changed, "own", bridge::Existing::default(), 1).expect("valid settings");
    let relay = relay.with_interest_of(&bench.relay);
    assert_eq!((relay.wanted(), relay.subscribed(), relay.settled_number()), (1, 0, 1));
}

#[test]
fn settings_that_do_not_allow_changes_are_refused() {
    let check = |change: fn(&mut Settings)| {
        let mut settings = settings();
        change(&mut settings);
        match settings.check() {
            Err(SettingsError::Interest(error)) => Some(error),
            Err(other) => panic!("{other}"),
            Ok(_) => None,
        }
    };
    assert_eq!(check(|_| ()), None);
    assert_eq!(check(|s| s.version = Version::V3_1_1), Some(InterestError::Version));
    let lazy = Start::Lazy { idle: Duration::from_secs(1), queued_min: 1 };
    let mut settings = settings();
    settings.start = lazy;
    assert_eq!(settings.check().err(), Some(SettingsError::Interest(InterestError::Start)));
    let both = |s: &mut Settings| s.topics.push(Topic::new("b", Direction::Both, QoS::AtMostOnce));
    assert_eq!(check(both), Some(InterestError::Direction { entry: 1 }));
    let filter = "$SYS/#".to_owned();
    let reserved = |s: &mut Settings| s.topics = vec![Topic::new("$SYS/#", Direction::In, QoS::AtMostOnce)];
    assert_eq!(check(reserved), Some(InterestError::Reserved { entry: 0, filter }));
    let prefix = |s: &mut Settings| {
        s.topics = vec![Topic::prefixed("a", Direction::In, QoS::AtMostOnce, "$SYS/", "")];
    };
    let filter = "$SYS/a".to_owned();
    assert_eq!(check(prefix), Some(InterestError::Reserved { entry: 0, filter }));
    let same = |s: &mut Settings| s.interest = Some(InterestSettings::new("far", "far", None));
    assert_eq!(check(same), Some(InterestError::Name { name: "far".into() }));
    let own = |s: &mut Settings| s.interest = Some(InterestSettings::new("own", "far", Some("own")));
    assert_eq!(check(own), Some(InterestError::Name { name: "own".into() }));
    let topic = |s: &mut Settings| s.interest = Some(InterestSettings::new("a+", "far", None));
    assert!(matches!(check(topic), Some(InterestError::ListTopic { .. })));
}

#[test]
fn a_filter_is_pending_until_it_is_answered_and_while_an_answer_may_come() {
    let mut bench = Bench::new(settings());
    want(&mut bench, 1, &["a", "refused"], &[]);
    assert!(bench.relay.is_pending("a"), "it may connect");
    assert!(!bench.relay.is_pending("other"));
    start_new(&mut bench);
    assert!(bench.relay.is_pending("a") && bench.relay.is_pending("refused"));
    let before = bench.relay.settles();
    suback(&mut bench, 65_535, &[2, 0x87]);
    assert!(!bench.relay.is_pending("a") && !bench.relay.is_pending("refused"), "a refusal is an answer");
    assert!(bench.relay.settles() > before);
    want(&mut bench, 2, &["b"], &["a"]);
    assert!(bench.relay.is_pending("b") && !bench.relay.is_pending("a"), "nobody wants it any more");
    bench.cut(REMOTE);
    assert!(!bench.relay.is_pending("b"), "the connection is lost");
    bench.wait();
    assert!(!bench.relay.is_pending("b"), "it tries to connect again");
    bench.run();
    assert!(bench.relay.is_pending("b"), "it is connected");
    bench.answer_requests(REMOTE);
    assert!(!bench.relay.is_pending("b"));
    // A session that was lost has no subscriptions.
    bench.cut(REMOTE);
    bench.answers.remote.session_present = false;
    bench.wait();
    bench.run();
    assert!(bench.relay.is_pending("b"));
}

#[test]
fn a_new_relay_that_does_not_connect_waits_for_nothing() {
    let mut bench = Bench::new(settings());
    want(&mut bench, 1, &["a"], &[]);
    bench.handle(Input::Start);
    while !matches!(bench.relay.state(), State::Connecting { .. }) {
        assert!(bench.run_once());
    }
    assert!(bench.relay.is_pending("a"));
    bench.fail_next();
    assert!(!bench.relay.is_pending("a"));
}

#[test]
fn a_request_that_is_never_answered_ends_the_connection_and_is_made_again() {
    let mut bench = with_filters(settings(), &["a"]);
    want(&mut bench, 2, &["b"], &[]);
    assert_eq!(bench.sent(REMOTE), ["SUBSCRIBE b"]);
    for _ in 0..100 {
        if !matches!(bench.relay.state(), State::Connected { .. }) {
            break;
        }
        bench.now = bench.relay.poll_timeout().expect("a timeout");
        bench.handle(Input::Timeout);
        if bench.sent(REMOTE).contains(&"PINGREQ".to_owned()) {
            bench.packet(REMOTE, Packet::PingResp);
        }
    }
    let error = bench.relay.last_error().expect("an error");
    assert_eq!(error, "one: the server did not answer a SUBSCRIBE or UNSUBSCRIBE");
    bench.run();
    bench.wait();
    bench.run();
    assert!(bench.answer_requests(REMOTE).contains(&"SUBSCRIBE b".to_owned()));
    assert_eq!(bench.relay.subscribed(), 2);
}

/// Answers a PINGREQ, if there is one. Returns the other packets for the remote broker.
fn sent_without_pings(bench: &mut Bench) -> Vec<String> {
    let mut sent = bench.sent(REMOTE);
    let before = sent.len();
    sent.retain(|packet| packet != "PINGREQ");
    if sent.len() < before {
        bench.packet(REMOTE, Packet::PingResp);
    }
    sent
}

#[test]
fn a_list_that_the_remote_broker_draws_out_is_given_up() {
    let mut bench = listing(&["a", "gone"]);
    want(&mut bench, 2, &[], &["gone"]);
    let began = bench.now;
    let mut pages = 0;
    while bench.relay.counters().lists_unanswered == 0 {
        list(&mut bench, &format!("{pages} 400000\nold/{pages}"));
        pages += 1;
        let sent = sent_without_pings(&mut bench);
        assert_eq!(sent, [format!("PUBLISH q0 $link/own/list {pages}")], "nothing ends meanwhile");
        bench.now = bench.now.after(Duration::from_secs(4));
        bench.handle(Input::Timeout);
        assert!(pages < 100, "it is not given up");
    }
    assert!(bench.now.since(began) >= Duration::from_secs(300), "a slow broker has some time");
    let error = "the remote broker takes too long to list the subscriptions";
    assert_eq!(bench.relay.last_error(), Some(error));
    let sent = sent_without_pings(&mut bench);
    assert!(sent.iter().any(|packet| packet == "SUBSCRIBE a"), "{sent:?}");
    let ends = sent.iter().find(|packet| packet.starts_with("UNSUBSCRIBE")).expect("an UNSUBSCRIBE");
    assert_eq!(ends.split(' ').count(), 1 + 1 + pages, "what was listed, and what is not wanted");
}

#[test]
fn a_list_with_large_answers_has_more_time() {
    let mut bench = listing(&["a"]);
    let page: String = (0..512).map(|number| format!("\n{number:03}/{}", "x".repeat(60))).collect();
    for number in 0..200 {
        list(&mut bench, &format!("{} 200000{page}", number * 512));
        assert_eq!(sent_without_pings(&mut bench).len(), 1);
        bench.now = bench.now.after(Duration::from_secs(2));
        bench.handle(Input::Timeout);
    }
    assert_eq!(bench.relay.counters().lists_unanswered, 0);
}

#[test]
fn a_list_is_given_up_when_too_many_subscriptions_end_meanwhile() {
    let mut settings = settings();
    settings.interest.as_mut().expect("interest").filters_max = 10;
    let mut bench = Bench::new(settings);
    want(&mut bench, 1, &["a"], &[]);
    bench.handle(Input::Start);
    bench.run();
    bench.answer_requests(REMOTE);
    bench.sent(REMOTE);
    for number in 1..=1_001 {
        assert_eq!(bench.relay.counters().lists_unanswered, 0, "{number}");
        let reply = format!("reply/{number}");
        want(&mut bench, 2 * number, &[&reply], &[]);
        assert_eq!(bench.answer_requests(REMOTE), [format!("SUBSCRIBE {reply}")]);
        want(&mut bench, 2 * number + 1, &[], &[&reply]);
    }
    assert_eq!(bench.relay.counters().lists_unanswered, 1);
    let error = "too many subscriptions end before the remote broker has listed all";
    assert_eq!(bench.relay.last_error(), Some(error));
    while !bench.relay.is_settled() {
        assert!(!bench.answer_requests(REMOTE).is_empty());
    }
    assert_eq!((bench.relay.known_filters(), bench.relay.subscribed()), (1, 1));
}

/// Response topics of requests would fill the memory otherwise.
#[test]
fn filters_that_come_and_go_before_the_list_begins_are_not_stored() {
    let come_and_go = |bench: &mut Bench, numbers: std::ops::Range<u64>| {
        for number in numbers {
            let reply = format!("reply/{number}");
            want(bench, 2 * number, &[&reply], &[]);
            want(bench, 2 * number + 1, &[], &[&reply]);
        }
    };
    let mut bench = Bench::new(settings());
    want(&mut bench, 1, &["a"], &[]);
    bench.handle(Input::Start);
    come_and_go(&mut bench, 1..1_000);
    assert_eq!(bench.relay.known_filters(), 1);
    bench.run();
    bench.answer_requests(REMOTE);
    bench.sent(REMOTE);
    list(&mut bench, "0 3\n$link/own/filters\na\nreply/7");
    assert_eq!(bench.answer_requests(REMOTE), ["UNSUBSCRIBE reply/7"], "it is stale");
    assert!(bench.relay.is_settled());
    assert_eq!(bench.relay.settled_number(), 1_999);
    // The list of the next connection begins again. Until then, it is the same.
    let mut bench = listing(&["a", "b"]);
    want(&mut bench, 2, &[], &["b"]);
    assert_eq!(bench.relay.known_filters(), 2, "the list has begun");
    bench.cut(REMOTE);
    assert_eq!(bench.relay.known_filters(), 1);
    come_and_go(&mut bench, 2..1_000);
    assert_eq!(bench.relay.known_filters(), 1);
    // Another client may have changed the session while an UNSUBSCRIBE had no answer.
    let mut bench = with_filters(settings(), &["a", "b"]);
    want(&mut bench, 2, &[], &["b"]);
    let (reason, properties) = (ReasonCode::SessionTakenOver, Properties::EMPTY);
    bench.packet(REMOTE, Packet::Disconnect(Disconnect { reason, properties }));
    assert_eq!((bench.relay.known_filters(), bench.relay.settled_number()), (1, 2));
}

#[test]
fn a_session_with_too_many_unanswered_ends_is_listed_again() {
    let mut settings = settings();
    settings.interest.as_mut().expect("interest").filters_max = 10;
    let names: Vec<String> = (0..1_001).map(|number| format!("old/{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut bench = with_filters(settings.clone(), &names[1..]);
    want(&mut bench, 2, &["a"], &names);
    bench.cut(REMOTE);
    assert_eq!(bench.relay.known_filters(), 1_001, "few enough");
    let mut bench = with_filters(settings, &names);
    want(&mut bench, 2, &["a"], &names);
    bench.cut(REMOTE);
    assert_eq!(bench.relay.known_filters(), 1);
    bench.wait();
    bench.run();
    assert_eq!(bench.answer_requests(REMOTE)[1..], ["SUBSCRIBE $link/own/filters"]);
}

/// A hostile cluster must not make this one write, or log a line, on each connection.
#[test]
fn restores_in_quick_succession_are_handled_and_one_is_counted() {
    let mut bench = Bench::new(settings());
    want(&mut bench, 1, &["a"], &[]);
    let histories = ["n:1", "n:2", "n:1", "n:00ff-7.a", "n:1", "", "n:", "x:1", "n:a b", "c:\u{e4}"];
    start_new(&mut bench);
    for history in histories {
        let name = Property::UserProperty("meridian-history", history);
        bench.answers.remote.properties = vec![name];
        again(&mut bench);
    }
    let long: &str = Box::leak(format!("c:{}", "0".repeat(65)).into());
    bench.answers.remote.properties = vec![Property::UserProperty("meridian-history", long)];
    again(&mut bench);
    assert_eq!((bench.relay.counters().remote_restores, bench.relay.history()), (1, Some("n:1")));
    bench.answers.remote.properties = vec![Property::UserProperty("meridian-history", &long[..66])];
    bench.cut(REMOTE);
    bench.now = bench.now.after(Duration::from_secs(600));
    bench.wait();
    bench.run();
    assert_eq!((bench.relay.counters().remote_restores, bench.relay.history()), (1, Some(&long[..66])));
    bench.answers.remote.properties = vec![Property::UserProperty("meridian-history", "c:2")];
    again(&mut bench);
    assert_eq!(bench.relay.counters().remote_restores, 2);
}
