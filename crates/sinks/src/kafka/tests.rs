mod peer;

use super::*;
use crate::WriteError;
use peer::{Answer, Peer};
use rules::{Context, Event, Rule, Sample};
use settings::HostPorts;

const OPEN: Guard = Guard { allow_loopback: true, allow_private: true };

fn connector(address: &str) -> ConnectorSettings {
    let addresses = address.split(',').map(|address| address.parse().unwrap()).collect();
    ConnectorSettings {
        kind: crate::ConnectorKind::Kafka,
        address: Some(HostPorts(addresses)),
        ..Default::default()
    }
}

fn action() -> ActionSettings {
    ActionSettings { name: "a".to_owned(), topic: "t".to_owned(), ..Default::default() }
}

fn sink(peer: &Peer) -> Box<dyn Sink> {
    KafkaTarget::new(&connector(&format!("127.0.0.1:{}", peer.port)), &action(), OPEN).unwrap().open()
}

fn record(topic: &str, key: Option<&str>, content: &str, id: u128) -> Record {
    let field = |text: &str| Some(text.as_bytes().into());
    Record { fields: vec![field(topic), key.and_then(field), field(content)], id }
}

/// Records with ids from 1, with their id as content.
fn numbered(ids: std::ops::RangeInclusive<u128>) -> Vec<Record> {
    ids.map(|id| record("t", Some(&format!("key {id}")), &format!("{id:03}"), id)).collect()
}

fn contents(ids: std::ops::RangeInclusive<u128>) -> Vec<String> {
    ids.map(|id| format!("{id:03}")).collect()
}

#[track_caller]
fn unavailable<T: std::fmt::Debug>(result: Result<T, WriteError>, part: &str) {
    match result {
        Err(WriteError::Unavailable(why)) if why.contains(part) => {}
        other => panic!("{other:?}, expected Unavailable with `{part}`"),
    }
}

#[track_caller]
fn refused(result: Result<(), WriteError>, part: &str) {
    match result {
        Err(WriteError::Refused(why)) if why.contains(part) => {}
        other => panic!("{other:?}, expected Refused with `{part}`"),
    }
}

/// Output of a rule that selects a JSON payload.
fn output(payload: &str) -> Value {
    let rule = Rule::parse("SELECT payload.k AS k, payload.v AS v FROM \"#\"", &Limits::default()).unwrap();
    let sample =
        Sample::parse(Event::Publish, &format!("{{\"payload\": {payload}}}"), &Limits::default()).unwrap();
    rule.evaluate(&sample, &Context::default(), &Limits::default()).unwrap().remove(0)
}

#[test]
fn outputs_become_records_with_key_and_headers() {
    let peer = Peer::new();
    let action = ActionSettings {
        key: "${k?}".to_owned(),
        content: "<${v}>".to_owned(),
        headers: "source: x-${v}\n\n  b :  \n".to_owned(),
        ..action()
    };
    let target = KafkaTarget::new(&connector(&format!("127.0.0.1:{}", peer.port)), &action, OPEN).unwrap();
    let records =
        [r#"{"k":"foo","v":1}"#, r#"{"v":2}"#].map(|payload| target.render(&output(payload)).unwrap());
    target.open().write(&records).unwrap();
    let headers =
        |value: &str| vec![("source".to_owned(), value.to_owned()), ("b".to_owned(), String::new())];
    let state = peer.state.lock().unwrap();
    let mut stored: Vec<_> = state.log.values().flatten().cloned().collect();
    stored.sort();
    let expected = [
        (None, "<2>".to_owned(), headers("x-2")),
        (Some("foo".to_owned()), "<1>".to_owned(), headers("x-1")),
    ];
    assert_eq!(stored, expected);
    let partition = batch::partition_of(b"foo", 3) as i32;
    assert!(state.log[&("t".to_owned(), partition)].iter().any(|(key, ..)| key.as_deref() == Some("foo")));
}

#[test]
fn a_batch_for_several_topics_is_one_request() {
    let peer = Peer::new();
    let mut records = numbered(1..=20);
    records.extend((21..=30).map(|id| record("other", None, &format!("{id:03}"), id)));
    records.extend(numbered(31..=40));
    sink(&peer).write(&records).unwrap();
    assert_eq!(peer.state.lock().unwrap().produce_requests, 1);
    assert_eq!(peer.values("other", 0), contents(21..=30));
    assert_eq!(peer.all_values("t"), [contents(1..=20), contents(31..=40)].concat());
}

#[test]
fn an_answer_may_be_as_large_as_its_batch_needs() {
    let peer = Peer::new();
    let names: Vec<_> = (0..60).map(|number| format!("topic-{number}")).collect();
    peer.state.lock().unwrap().topics.extend(names.iter().map(|name| (name.clone(), 1)));
    let settings = ConnectorSettings {
        response_max: settings::ByteSize(2048),
        ..connector(&format!("127.0.0.1:{}", peer.port))
    };
    let records: Vec<_> = (1..).zip(&names).map(|(id, name)| record(name, None, "v", id)).collect();
    KafkaTarget::new(&settings, &action(), OPEN).unwrap().open().write(&records).unwrap();
    assert_eq!(peer.values("topic-59", 0), ["v"]);
}

#[test]
fn settings_are_checked() {
    let check = |connector: &ConnectorSettings, action: &ActionSettings| {
        KafkaTarget::new(connector, action, OPEN).map(|_| ()).map_err(|problem| problem.setting)
    };
    let good = connector("a:1,b:2");
    assert_eq!(check(&good, &action()), Ok(()));
    assert_eq!(check(&ConnectorSettings { address: None, ..good.clone() }, &action()), Err("address"));
    let user = ConnectorSettings { username: Some("u".to_owned()), ..good.clone() };
    assert_eq!(check(&user, &action()), Err("password_file"));
    let file = ConnectorSettings { password_file: Some("/p".into()), ..good.clone() };
    assert_eq!(check(&file, &action()), Err("username"));
    let key = ConnectorSettings { tls: true, tls_key: Some("/k".into()), ..good.clone() };
    assert_eq!(check(&key, &action()), Err("tls_certificate"));
    let ca = ConnectorSettings { tls: true, tls_ca: Some("/missing".into()), ..good.clone() };
    assert_eq!(check(&ca, &action()), Err("tls_ca"));
    for topic in ["", "a/b", ".", "..", "ä", &"x".repeat(250), "${"] {
        let action = ActionSettings { topic: topic.to_owned(), ..action() };
        assert_eq!(check(&good, &action), Err("topic"), "{topic}");
    }
    for headers in ["no colon", ": x", "${a}: x", "a: ${"] {
        let action = ActionSettings { headers: headers.to_owned(), ..action() };
        assert_eq!(check(&good, &action), Err("headers"), "{headers}");
    }
}

#[test]
fn a_key_has_one_partition_and_batches_without_keys_take_turns() {
    let peer = Peer::new();
    let mut sink = sink(&peer);
    for number in 0..6 {
        let content = format!("{number}");
        let records = [record("t", None, &content, 0), record("t", None, &content, 0)];
        sink.write(&records).unwrap();
    }
    for partition in 0..3 {
        let values = peer.values("t", partition);
        assert_eq!(values.len(), 4, "{values:?}");
        assert_eq!(values[0], values[1], "a batch is in one partition");
    }
    let order: Vec<_> = (0..50).map(|n| record("other", Some("k"), &format!("{n}"), 0)).collect();
    sink.write(&order).unwrap();
    assert_eq!(peer.values("other", 0), (0..50).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(peer.state.lock().unwrap().connections, 2, "one for the cluster, one for the node");
}

#[test]
fn faults_that_may_pass_lose_and_repeat_nothing() {
    let nonsense: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\r\n";
    for (answer, part) in [
        (Answer::Error { partition: 0, code: 6 }, "no longer the leader"),
        (Answer::Error { partition: 1, code: 19 }, "min.insync.replicas (scripted)"),
        (Answer::Error { partition: 2, code: 7 }, "did not answer in time"),
        (Answer::Error { partition: 0, code: 29 }, "may not write"),
        (Answer::Error { partition: 0, code: 3 }, "does not exist"),
        (Answer::Error { partition: 0, code: 45 }, "gap"),
        (Answer::Close, "closed the connection"),
        (Answer::StoreAndClose, "closed the connection"),
        (Answer::Nothing, "did not answer about all partitions"),
        (Answer::Bytes(nonsense), "larger than response_max"),
        (Answer::Bytes(&[0, 0, 0, 0]), "not one of Kafka"),
        (Answer::Bytes(&[0, 0, 0, 8, 1, 2, 3, 4, 0, 0, 0, 0]), "not one of Kafka"),
        (Answer::Bytes(&[0, 0, 1, 0, 1]), "closed the connection"),
        (Answer::Bytes(&[0x15, 3, 1, 0, 2, 2]), "set tls = true"),
    ] {
        let peer = Peer::new();
        let mut sink = sink(&peer);
        sink.write(&numbered(1..=20)).unwrap();
        peer.follow(&[answer]);
        unavailable(sink.write(&numbered(21..=40)), part);
        sink.write(&numbered(21..=40)).unwrap();
        sink.write(&numbered(41..=60)).unwrap();
        assert_eq!(peer.all_values("t"), contents(1..=60), "{answer:?}");
    }
}

#[track_caller]
fn failed(result: Result<(), WriteError>, part: &str) {
    match result {
        Err(WriteError::Failed(why)) if why.contains(part) => {}
        other => panic!("{other:?}, expected Failed with `{part}`"),
    }
}

/// Ids from 1 to 20 whose records are in this partition of `t`.
fn ids_in(partition: usize) -> Vec<u128> {
    (1..=20).filter(|id| batch::partition_of(format!("key {id}").as_bytes(), 3) == partition).collect()
}

#[test]
fn only_the_records_of_a_partition_with_an_error_are_sent_again() {
    for (code, part) in [(-1, "unexpected error"), (2, "damaged"), (44, "policy"), (999, "error 999")] {
        let peer = Peer::new();
        let mut sink = sink(&peer);
        peer.follow(&[Answer::Error { partition: 1, code }]);
        failed(sink.write(&numbered(1..=20)), part);
        assert_eq!(peer.values("t", 1), [""; 0]);
        let others = peer.values("t", 0).len() + peer.values("t", 2).len();
        assert_eq!(others + ids_in(1).len(), 20);
        sink.write(&numbered(1..=20)).unwrap();
        sink.write(&numbered(21..=30)).unwrap();
        assert_eq!(peer.all_values("t"), contents(1..=30), "{code}");
    }
}

/// The caller writes the records one by one after some attempts, and gives up the one that always fails.
#[test]
fn one_record_that_the_server_always_fails_at_holds_up_no_other() {
    for code in [-1, 42] {
        let peer = Peer::new();
        let mut sink = sink(&peer);
        let poison = ids_in(2)[0];
        peer.follow(&[Answer::Error { partition: 2, code }; 3]);
        for _ in 0..3 {
            failed(sink.write(&numbered(1..=20)), "partition 2");
        }
        for id in 1..=20 {
            if id == poison {
                peer.follow(&[Answer::Error { partition: 2, code }]);
                failed(sink.write(&numbered(id..=id)), "partition 2");
            } else {
                sink.write(&numbered(id..=id)).unwrap();
            }
        }
        let mut expected = contents(1..=20);
        expected.retain(|content| *content != format!("{poison:03}"));
        assert_eq!(peer.all_values("t"), expected, "{code}");
    }
}

#[test]
fn a_batch_that_was_stored_in_spite_of_an_error_is_not_repeated() {
    let peer = Peer::new();
    let mut sink = sink(&peer);
    peer.follow(&[Answer::StoreAndFail(-1)]);
    failed(sink.write(&numbered(1..=20)), "unexpected error");
    sink.write(&numbered(1..=20)).unwrap();
    assert_eq!(peer.all_values("t"), contents(1..=20));
}

/// A record must not be given up while the cause of an error may be in no record.
#[test]
fn of_different_errors_the_one_that_gives_up_least_counts() {
    let peer = Peer::new();
    let mut sink = sink(&peer);
    type Case = (&'static [(i32, i16)], fn(&WriteError) -> bool);
    let script: [Case; 4] = [
        (&[(0, 10), (1, -1), (2, 6)], |it| matches!(it, WriteError::Unavailable(_))),
        (&[(0, 10), (1, -1), (2, -1)], |it| matches!(it, WriteError::Failed(_))),
        (&[(0, 10), (1, 2)], |it| matches!(it, WriteError::Failed(_))),
        (&[(0, 10)], |it| matches!(it, WriteError::Refused(_))),
    ];
    for (errors, is_expected) in script {
        peer.follow(&[Answer::Errors(errors)]);
        let error = sink.write(&numbered(1..=20)).unwrap_err();
        assert!(is_expected(&error), "{errors:?}: {error:?}");
    }
    sink.write(&numbered(1..=20)).unwrap();
    assert_eq!(peer.all_values("t"), contents(1..=20));
}

#[test]
fn a_silent_server_ends_the_call_at_the_time_limit() {
    let peer = Peer::new();
    let connector = ConnectorSettings {
        timeout: Duration::from_millis(200),
        ..connector(&format!("127.0.0.1:{}", peer.port))
    };
    let mut sink = KafkaTarget::new(&connector, &action(), OPEN).unwrap().open();
    sink.write(&numbered(1..=3)).unwrap();
    peer.follow(&[Answer::Silence]);
    unavailable(sink.write(&numbered(4..=6)), "no answer in time");
    sink.write(&numbered(4..=6)).unwrap();
    assert_eq!(peer.all_values("t"), contents(1..=6));
}

#[test]
fn records_without_a_key_stay_in_their_partition_when_they_are_sent_again() {
    let peer = Peer::new();
    let mut sink = sink(&peer);
    let records: Vec<_> = (1..=5).map(|id| record("t", None, &format!("{id}"), id)).collect();
    peer.follow(&[Answer::StoreAndClose, Answer::StoreAndClose]);
    unavailable(sink.write(&records), "closed");
    unavailable(sink.write(&records), "closed");
    sink.write(&records).unwrap();
    assert_eq!(peer.all_values("t"), ["1", "2", "3", "4", "5"]);
}

#[test]
fn other_records_after_an_uncertain_batch_are_not_taken_for_it() {
    let peer = Peer::new();
    let mut sink = sink(&peer);
    peer.follow(&[Answer::StoreAndClose]);
    unavailable(sink.write(&[record("other", None, "1", 1), record("other", None, "2", 2)]), "closed");
    // The same number of records would have the same place.
    sink.write(&[record("other", None, "3", 3), record("other", None, "4", 4)]).unwrap();
    assert_eq!(peer.values("other", 0), ["1", "2", "3", "4"]);
    // Records without ids cannot be recognized: they occur twice, and none is lost.
    peer.follow(&[Answer::StoreAndClose]);
    unavailable(sink.write(&[record("other", None, "5", 0)]), "closed");
    sink.write(&[record("other", None, "6", 0)]).unwrap();
    assert_eq!(peer.values("other", 0), ["1", "2", "3", "4", "5", "6"]);
}

#[test]
fn a_divided_batch_does_not_repeat_what_was_stored() {
    let peer = Peer::new();
    let mut sink = sink(&peer);
    let records = numbered(1..=20);
    let bad = batch::partition_of(b"key 1", 3) as i32;
    peer.follow(&[Answer::Error { partition: bad, code: 10 }]);
    refused(sink.write(&records), "max.message.bytes");
    let stored = peer.all_values("t").len();
    assert!(stored > 0 && stored < 20, "{stored}");
    sink.write(&records[..10]).unwrap();
    sink.write(&records[10..]).unwrap();
    assert_eq!(peer.all_values("t"), contents(1..=20));
}

#[test]
fn records_that_kafka_never_accepts_are_refused() {
    for code in [10, 18, 32, 87] {
        let peer = Peer::new();
        let mut sink = sink(&peer);
        peer.follow(&[Answer::Error { partition: 0, code }]);
        refused(sink.write(&[record("other", None, "1", 1)]), "partition 0");
    }
    let mut sink = sink(&Peer::new());
    refused(sink.write(&[record("a/b", None, "1", 1)]), "is no topic of Kafka");
    let not_text = Record { fields: vec![Some([0xff][..].into()), None, None], id: 1 };
    refused(sink.write(&[not_text]), "not UTF-8");
}

#[test]
fn older_servers_and_users_without_idempotent_writes_are_served() {
    let peer = Peer::new();
    {
        let mut state = peer.state.lock().unwrap();
        (state.produce_max, state.producer_code) = (7, 31);
    }
    let mut sink = sink(&peer);
    sink.write(&numbered(1..=20)).unwrap();
    assert_eq!(peer.all_values("t"), contents(1..=20));
    assert!(sink.test().unwrap().contains("can occur twice"));
    peer.follow(&[Answer::StoreAndClose]);
    unavailable(sink.write(&numbered(21..=21)), "closed");
    sink.write(&numbered(21..=21)).unwrap();
    assert_eq!(peer.all_values("t").len(), 22, "at least once");

    peer.state.lock().unwrap().produce_max = 6;
    let mut new =
        KafkaTarget::new(&connector(&format!("127.0.0.1:{}", peer.port)), &action(), OPEN).unwrap().open();
    unavailable(new.write(&numbered(22..=22)), "does not support version 7 of Produce");
}

#[test]
fn addresses_that_the_cluster_announces_are_checked_too() {
    let peer = Peer::new();
    let connector = connector(&format!("127.0.0.1:{}", peer.port));
    let strict = Guard { allow_loopback: false, allow_private: true };
    let mut guarded = KafkaTarget::new(&connector, &action(), strict).unwrap().open();
    unavailable(guarded.write(&numbered(1..=1)), "an address of this machine");
    assert_eq!(peer.state.lock().unwrap().connections, 0);

    peer.state.lock().unwrap().announced = Some(("169.254.169.254".to_owned(), 80));
    unavailable(sink(&peer).write(&numbered(1..=1)), "link-local");
    unavailable(sink(&peer).test(), "link-local");
    peer.state.lock().unwrap().announced = Some(("127.0.0.1".to_owned(), -5));
    unavailable(sink(&peer).write(&numbered(1..=1)), "not its address");
}

#[test]
fn the_first_address_that_answers_is_used() {
    let peer = Peer::new();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let connector = connector(&format!("127.0.0.1:{closed},127.0.0.1:{}", peer.port));
    KafkaTarget::new(&connector, &action(), OPEN).unwrap().open().write(&numbered(1..=3)).unwrap();
    assert_eq!(peer.all_values("t"), contents(1..=3));
}

#[test]
fn a_test_names_the_cluster_and_the_topic() {
    let peer = Peer::new();
    let found = sink(&peer).test().unwrap();
    assert_eq!(found, "cluster the-cluster with 1 nodes; topic t has 3 partitions");
    peer.state.lock().unwrap().topics.clear();
    unavailable(sink(&peer).test(), "topic `t`: the topic or partition does not exist");
    assert_eq!(peer.state.lock().unwrap().produce_requests, 0);
}

#[test]
fn logins_succeed_or_say_what_is_wrong() {
    let peer = Peer::new();
    peer.state.lock().unwrap().password = Some("secret");
    let file = std::env::temp_dir().join(format!("meridian-sink-kafka-{}", std::process::id()));
    for (content, sasl, expected) in [
        ("secret\n", Sasl::Plain, None),
        ("wrong", Sasl::Plain, Some("user name or password is wrong (Authentication failed)")),
        ("secret", Sasl::ScramSha512, Some("it supports PLAIN")),
    ] {
        std::fs::write(&file, content).unwrap();
        let connector = ConnectorSettings {
            username: Some("user".to_owned()),
            password_file: Some(file.clone()),
            sasl,
            ..connector(&format!("127.0.0.1:{}", peer.port))
        };
        let tested = KafkaTarget::new(&connector, &action(), OPEN).unwrap().open().test();
        match expected {
            None => assert!(tested.is_ok(), "{tested:?}"),
            Some(part) => unavailable(tested, part),
        }
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn servers_with_tls_need_a_certificate_of_a_trusted_authority() {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key.into())
        .unwrap();
    let peer = Peer::with_tls(config);
    let port = i32::from(peer.port);
    peer.state.lock().unwrap().announced = Some(("localhost".to_owned(), port));
    let file = std::env::temp_dir().join(format!("meridian-sink-kafka-ca-{}", std::process::id()));
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    for (authority, host, problem) in [
        (&own, "localhost", None),
        (&other, "localhost", Some("set tls_ca to the file")),
        (&own, "127.0.0.1", Some("127.0.0.1")),
    ] {
        std::fs::write(&file, authority.cert.pem()).unwrap();
        let connector = ConnectorSettings {
            tls: true,
            tls_ca: Some(file.clone()),
            ..connector(&format!("{host}:{port}"))
        };
        let mut sink = KafkaTarget::new(&connector, &action(), OPEN).unwrap().open();
        match problem {
            None => (1..=3).for_each(|id| sink.write(&numbered(id..=id)).unwrap()),
            Some(part) => unavailable(sink.write(&numbered(4..=4)), part),
        }
    }
    assert_eq!(peer.all_values("t"), contents(1..=3));
    // The test and two more batches use the same connections.
    assert_eq!(peer.state.lock().unwrap().connections, 4);
    std::fs::remove_file(&file).unwrap();
}
