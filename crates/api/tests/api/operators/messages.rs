//! Publishing, and retained messages.

use mqtt::QoS;
use serde_json::{Value, json};

use super::fixture::Fixture;

#[test]
fn a_message_reaches_its_subscriber_at_each_qos() {
    let fixture = Fixture::start();
    let mut client = fixture.client("c");
    client.subscribe("a/#", QoS::ExactlyOnce);
    for qos in 0..3 {
        let sent =
            fixture.post("/api/v1/publish", json!({"topic": "a/b", "payload": "x", "qos": qos})).expect(200);
        assert_eq!(sent, json!({"reason_code": 0, "reason": "success"}));
        let message = client.message();
        assert_eq!((message.qos, &*message.payload, message.retain), (qos, &b"x"[..], false));
        client.acknowledge(&message);
    }
}

#[test]
fn a_message_without_subscribers_is_accepted_and_reported() {
    let fixture = Fixture::start();
    for qos in 0..3 {
        let sent = fixture.post("/api/v1/publish", json!({"topic": "a", "qos": qos})).expect(200);
        assert_eq!(sent, json!({"reason_code": 16, "reason": "no matching subscribers"}));
    }
}

#[test]
fn bytes_and_properties_arrive_as_they_were_given() {
    let fixture = Fixture::start();
    let mut client = fixture.client("c");
    client.subscribe("a", QoS::AtMostOnce);
    let message = json!({"topic": "a", "payload_base64": "AP/+", "properties": {
        "message_expiry_s": 60, "content_type": "application/octet-stream", "response_topic": "r",
        "correlation_data_base64": "AQI=", "payload_is_text": false, "user_properties": [["k", "1"], ["k", "2"]]}});
    fixture.post("/api/v1/publish", message).expect(200);
    let message = client.message();
    assert_eq!(message.payload, [0, 255, 254]);
    assert_eq!(message.content_type.as_deref(), Some("application/octet-stream"));
    assert_eq!(message.user_properties, [("k".into(), "1".into()), ("k".into(), "2".into())]);
}

#[test]
fn a_batch_arrives_in_its_order_and_reports_each_result() {
    let fixture = Fixture::start();
    let mut client = fixture.client("c");
    client.subscribe("a", QoS::AtLeastOnce);
    let message = |number: usize| match number {
        3 => json!({"topic": "not/a/#"}),
        4 => json!({"topic": "a", "payload": "x", "payload_base64": "eA=="}),
        5 => json!({"topic": "b"}),
        _ => json!({"topic": "a", "payload": number.to_string(), "qos": 1}),
    };
    let messages: Vec<_> = (0..300).map(message).collect();
    // A second thread reads: a queue that nobody reads would stop the publisher.
    let reader = std::thread::spawn(move || {
        let mut payloads = Vec::new();
        while payloads.len() < 297 {
            let message = client.message();
            client.acknowledge(&message);
            payloads.push(String::from_utf8(message.payload).unwrap().parse::<usize>().unwrap());
        }
        payloads
    });
    let results = fixture.post("/api/v1/publish/batch", json!({ "messages": messages })).expect(200);
    let results = results["results"].as_array().unwrap();
    assert_eq!(results.len(), 300);
    assert_eq!(results[0], json!({"reason_code": 0, "reason": "success"}));
    assert_eq!(
        (&results[3]["problem"]["status"], &results[3]["problem"]["errors"][0]["name"]),
        (&json!(422), &json!("topic"))
    );
    assert_eq!(results[4]["problem"]["errors"][0]["name"], "payload_base64");
    assert_eq!(results[5]["reason_code"], 16);
    let expected: Vec<_> = (0..300).filter(|number| !(3..6).contains(number)).collect();
    assert_eq!(reader.join().unwrap(), expected);
}

#[test]
fn a_batch_has_at_least_one_message_and_at_most_a_thousand() {
    let fixture = Fixture::start();
    for count in [0, 1001] {
        let messages = vec![json!({"topic": "a"}); count];
        let detail = fixture.post("/api/v1/publish/batch", json!({ "messages": messages })).problem(422);
        assert!(detail.contains("expected 1 to 1000"), "{detail}");
    }
    let messages = vec![json!({"topic": "a"}); 1000];
    let results = fixture.post("/api/v1/publish/batch", json!({ "messages": messages })).expect(200);
    assert_eq!(results["results"].as_array().unwrap().len(), 1000);
}

#[test]
fn a_retained_message_is_seen_and_deleted() {
    let fixture = Fixture::start();
    let message = json!({"topic": "a/b", "payload": "21 °C", "qos": 1, "retain": true,
        "properties": {"content_type": "text/plain", "message_expiry_s": 3600, "user_properties": [["k", "v"]]}});
    fixture.post("/api/v1/publish", message).expect(200);
    fixture
        .post("/api/v1/publish", json!({"topic": "c", "payload_base64": "/w==", "retain": true}))
        .expect(200);

    let items = fixture.all("/api/v1/retained", 1);
    assert_eq!(items.len(), 2);
    let item = fixture.get("/api/v1/retained?filter=a/%2B").expect(200)["items"][0].clone();
    assert_eq!((&item["topic"], &item["qos"], &item["payload_bytes"]), (&json!("a/b"), &json!(1), &json!(6)));
    assert!(item["age_s"].is_u64() && item["expires_in_s"].as_u64().unwrap() > 3000);

    let whole = fixture.get("/api/v1/retained/message?topic=a/b").expect(200);
    assert_eq!((&whole["payload"], &whole["payload_base64"]), (&json!("21 °C"), &json!("MjEgwrBD")));
    assert_eq!(
        (&whole["content_type"], &whole["user_properties"]),
        (&json!("text/plain"), &json!([["k", "v"]]))
    );
    let bytes = fixture.get("/api/v1/retained/message?topic=c").expect(200);
    assert_eq!((&bytes["payload"], &bytes["payload_base64"]), (&Value::Null, &json!("/w==")));
    assert_eq!(bytes["expires_in_s"], Value::Null);

    assert_eq!(fixture.delete("/api/v1/retained?topic=a/b").expect(200)["deleted"], 1);
    assert_eq!(fixture.delete("/api/v1/retained?topic=a/b").expect(200)["deleted"], 0);
    fixture.get("/api/v1/retained/message?topic=a/b").problem(404);
    // An empty payload deletes too, as a client's would.
    fixture.post("/api/v1/publish", json!({"topic": "c", "retain": true})).expect(200);
    assert_eq!(fixture.all("/api/v1/retained", 10), Vec::<Value>::new());
}

#[test]
fn a_retained_message_that_an_operator_published_comes_to_later_subscribers() {
    let fixture = Fixture::start();
    fixture.post("/api/v1/publish", json!({"topic": "a", "payload": "x", "retain": true})).expect(200);
    let mut client = fixture.client("c");
    client.subscribe("a", QoS::AtMostOnce);
    let message = client.message();
    assert_eq!((&*message.payload, message.retain), (&b"x"[..], true));
}
