//! Traces: their events, their losses, and their ends.

use mqtt::QoS;
use serde_json::{Value, json};

use super::client::With;
use super::eventually;
use super::fixture::Fixture;

#[test]
fn a_client_is_followed_from_connect_to_the_end_of_its_connection() {
    let fixture = Fixture::start();
    let mut events = fixture.stream("/api/v1/trace?client_id=c&payload=3&seconds=20");
    let mut client = fixture.client("c");
    let _other = fixture.client("other");
    client.subscribe("a", QoS::AtLeastOnce);
    client.publish("a", b"12345", QoS::AtMostOnce);
    client.message();
    client.ping();
    fixture.delete("/api/v1/clients/c").expect(200);
    let mut kinds = Vec::new();
    let mut publish = Value::Null;
    while kinds.last().is_none_or(|last| last != "disconnect") {
        let (name, event) = events.next().expect("an event");
        assert_eq!(name, "trace", "after {kinds:?}");
        assert_eq!(event["client_id"], "c");
        assert!(event["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{event}");
        assert!(event["detail"].is_string() && event["worker"].is_u64() && event["at"].is_string());
        if event["kind"] == "publish_in" {
            publish = event.clone();
        }
        kinds.push(event["kind"].as_str().unwrap().to_owned());
    }
    let order: Vec<_> = kinds.iter().map(String::as_str).filter(|kind| !kind.starts_with("packet")).collect();
    assert_eq!(order, ["connect", "connack", "subscribe", "publish_in", "publish_out", "disconnect"]);
    assert_eq!(
        (&publish["topic"], &publish["qos"], &publish["retain"]),
        (&json!("a"), &json!(0), &json!(false))
    );
    assert_eq!(
        (&publish["payload_bytes"], &publish["payload"]),
        (&json!(5), &json!("MTIz")),
        "the first three bytes"
    );
}

#[test]
fn a_topic_is_followed_in_and_out_and_payloads_stay_hidden() {
    let fixture = Fixture::start();
    let mut client = fixture.client("c");
    client.subscribe("a/#", QoS::AtMostOnce);
    let mut events = fixture.stream("/api/v1/trace?topic=a/%2B&events=2");
    fixture.post("/api/v1/publish", json!({"topic": "b", "payload": "x"})).expect(200);
    fixture.post("/api/v1/publish", json!({"topic": "a/b", "payload": "x"})).expect(200);
    let (first, second) = (events.traced(), events.traced());
    assert_eq!(
        (&first["kind"], &first["client_id"]),
        (&json!("publish_in"), &json!("")),
        "an operator has no identifier"
    );
    assert_eq!((&second["kind"], &second["client_id"]), (&json!("publish_out"), &json!("c")));
    assert_eq!((&first["topic"], first.get("payload")), (&json!("a/b"), None));
    assert_eq!(events.next(), Some(("end".into(), json!({"reason": "events"}))));
    assert_eq!(events.next(), None);
}

#[test]
fn only_the_requested_kinds_are_sent() {
    let fixture = Fixture::start();
    let mut client = fixture.client("c");
    client.subscribe("a", QoS::AtMostOnce);
    let mut events = fixture.stream("/api/v1/trace?topic=%23&kind=publish_out&kind=dropped&events=3");
    for _ in 0..3 {
        fixture.post("/api/v1/publish", json!({"topic": "a"})).expect(200);
        assert_eq!(events.traced()["kind"], "publish_out");
    }
    assert_eq!(events.next().unwrap().0, "end");
}

#[test]
fn a_network_is_followed() {
    let fixture = Fixture::start();
    let mut elsewhere = fixture.stream("/api/v1/trace?address=10.0.0.0/8&seconds=1");
    let mut here = fixture.stream("/api/v1/trace?address=127.0.0.0/8&events=1");
    fixture.client("c");
    assert_eq!(here.traced()["client_id"], "c");
    assert_eq!(elsewhere.next(), Some(("end".into(), json!({"reason": "time"}))), "nobody comes from there");
}

/// Nobody reads while far more events arrive than can wait. Publishers are not delayed, and each event is either shown
/// or counted as lost.
#[test]
fn a_trace_under_load_counts_its_losses_and_delays_nobody() {
    const MESSAGES: u64 = 50_000;
    let fixture = Fixture::start();
    let mut events =
        fixture.stream("/api/v1/trace?topic=%23&events=100000&seconds=3600&payload=4096&kind=publish_in");
    let mut publisher = fixture.client("p");
    let payload = vec![b'x'; 4096];
    for _ in 0..MESSAGES {
        publisher.publish("a", &payload, QoS::AtMostOnce);
    }
    publisher.ping();
    // Marks are sent until one is shown; with it comes the number of lost events.
    let reader = std::thread::spawn(move || {
        let (mut shown, mut lost) = (0, 0);
        loop {
            let (event, data) = events.next().expect("the trace goes on");
            match &*event {
                "trace" if data["topic"] == "mark" => break,
                "trace" => shown += 1,
                "lost" => lost += data["count"].as_u64().unwrap(),
                other => panic!("{other}: {data}"),
            }
        }
        (shown, lost, events)
    });
    let mut marks = 0;
    while !reader.is_finished() {
        fixture.post("/api/v1/publish", json!({"topic": "mark"})).expect(200);
        marks += 1;
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let (shown, mut lost, mut events) = reader.join().unwrap();
    while shown + lost < MESSAGES {
        match events.next().expect("the trace goes on") {
            (event, data) if event == "lost" => lost += data["count"].as_u64().unwrap(),
            (event, data) => assert_eq!((&*event, &data["topic"]), ("trace", &json!("mark"))),
        }
    }
    assert!(lost > 0 && shown > 0, "{shown} shown, {lost} lost");
    // Marks may be among the lost events.
    assert!(shown + lost <= MESSAGES + marks, "{shown} shown, {lost} lost");
}

#[test]
fn at_most_eight_traces_run_and_an_abandoned_one_frees_its_slot() {
    let fixture = Fixture::start();
    let mut streams: Vec<_> = (0..8).map(|_| fixture.stream("/api/v1/trace?topic=a")).collect();
    let answer = fixture.get("/api/v1/trace?topic=a");
    assert!(answer.head.contains("retry-after"), "{}", answer.head);
    answer.problem(429);
    streams.pop();
    let mut again = eventually("its place is free", || {
        let answer = fixture.get("/api/v1/trace?topic=a&seconds=1");
        (answer.status == 200).then_some(answer)
    });
    assert!(again.body.split_off(again.body.len() / 2).contains("time"), "it ran to its end");
}

#[test]
fn a_trace_ends_with_the_server() {
    let mut fixture = Fixture::start();
    let mut events = fixture.stream("/api/v1/trace?client_id=c");
    let _client = fixture.client_with("c", With::default());
    assert_eq!(events.traced()["kind"], "connect");
    fixture.stop_http();
    loop {
        match events.next() {
            Some((event, data)) if event == "end" => break assert_eq!(data, json!({"reason": "stopping"})),
            Some((event, _)) => assert_eq!(event, "trace"),
            None => panic!("it ended without a word"),
        }
    }
}
