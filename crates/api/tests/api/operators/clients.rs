//! Lists of clients, details of one, and the end of connections.

use mqtt::{QoS, ReasonCode, Version};
use serde_json::{Value, json};

use super::client::{Got, With};
use super::eventually;
use super::fixture::Fixture;

fn names(items: &[Value]) -> Vec<&str> {
    let mut names: Vec<_> = items.iter().map(|item| item["client_id"].as_str().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_connected_client_is_listed_with_its_details() {
    let fixture = Fixture::start();
    let mut client = fixture
        .client_with("sensor-1", With { username: Some("ops"), receive_maximum: 20, ..With::default() });
    client.subscribe("a/#", QoS::AtLeastOnce);
    client.publish("b", b"x", QoS::AtMostOnce);
    client.ping();
    let page = fixture.get("/api/v1/clients").expect(200);
    assert_eq!(page["next"], Value::Null);
    let item = &page["items"][0];
    assert_eq!(item["client_id"], "sensor-1");
    assert_eq!(item["connected"], true);
    assert!(item["address"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert_eq!(item["username"], "ops");
    assert_eq!(item["version"], "5.0");
    assert!(item["connected_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(item["keep_alive_s"], 60);
    assert_eq!(item["durable"], false);
    assert_eq!(item["subscriptions"], 1);
    assert_eq!(
        (&item["inflight"], &item["queued_messages"], &item["queued_bytes"]),
        (&json!(0), &json!(0), &json!(0))
    );
    assert_eq!((&item["messages_received"], &item["messages_sent"]), (&json!(1), &json!(0)));
    assert_eq!(item["node"], "node-1");

    let detail = fixture.get("/api/v1/clients/sensor-1").expect(200);
    assert_eq!(detail["client_id"], "sensor-1");
    assert_eq!(detail["session"], Value::Null);
    let connection = &detail["connection"];
    assert_eq!(connection["receive_maximum"], 20);
    assert_eq!(connection["packet_size_max"], Value::Null);
    assert_eq!(connection["has_will"], false);
    assert_eq!(connection["client_attrs"], json!({}));
    assert_eq!(connection["publisher_blocked"], false);
    assert!(connection["last_packet_ms"].is_u64() && connection["worker"].is_u64());
}

#[test]
fn a_session_without_a_client_is_listed_with_its_queue() {
    let fixture = Fixture::start();
    fixture.absent("away", &["a/#"]);
    for number in 0..3 {
        fixture
            .post("/api/v1/publish", json!({"topic": "a/b", "payload": "four", "qos": number}))
            .expect(200);
    }
    let page = fixture.get("/api/v1/clients?connected=false").expect(200);
    let item = &page["items"][0];
    assert_eq!(
        (&item["client_id"], &item["connected"], &item["durable"]),
        (&json!("away"), &json!(false), &json!(true))
    );
    for unknown in ["address", "username", "version", "connected_at"] {
        assert_eq!(item[unknown], Value::Null, "{unknown}");
    }
    assert_eq!(item["queued_messages"], 2, "QoS 0 does not wait");
    assert!(item["queued_bytes"].as_u64().unwrap() >= 8);

    let detail = fixture.get("/api/v1/clients/away").expect(200);
    assert_eq!(detail["connection"], Value::Null);
    let session = &detail["session"];
    assert_eq!(session["expiry_s"], 3600);
    assert!(session["expires_at"].as_str().unwrap().starts_with("20"));
    assert_eq!((&session["queued_messages"], &session["inflight"]), (&json!(2), &json!(0)));
    assert!(session["oldest_queued_age_s"].is_u64());
    assert_eq!(session["will_due_at"], Value::Null);

    let queue = fixture.get("/api/v1/clients/away/queue?payload=true").expect(200);
    let items = queue["items"].as_array().unwrap();
    assert_eq!(items.len(), 2);
    assert_eq!((&items[0]["state"], &items[0]["topic"]), (&json!("waiting"), &json!("a/b")));
    assert_eq!((&items[0]["qos"], &items[1]["qos"]), (&json!(1), &json!(2)));
    assert_eq!((&items[0]["payload_bytes"], &items[0]["payload"]), (&json!(4), &json!("Zm91cg==")));
    assert_eq!(queue["truncated"], false);
    let queue = fixture.get("/api/v1/clients/away/queue?limit=1").expect(200);
    assert_eq!((queue["items"].as_array().unwrap().len(), &queue["truncated"]), (1, &json!(true)));
    assert_eq!(queue["items"][0].get("payload"), None, "only when asked for");
}

#[test]
fn deliveries_in_flight_of_a_session_are_shown_as_such() {
    let fixture = Fixture::start();
    let mut client = fixture.client_with("slow", With { expiry: 60, receive_maximum: 1, ..With::default() });
    client.subscribe("a", QoS::AtLeastOnce);
    // The first is sent and acknowledged late; the second waits for that.
    for payload in ["first", "second"] {
        fixture.post("/api/v1/publish", json!({"topic": "a", "payload": payload, "qos": 1})).expect(200);
    }
    let first = client.message();
    let item = fixture.get("/api/v1/clients").expect(200)["items"][0].clone();
    assert_eq!((&item["inflight"], &item["queued_messages"]), (&json!(1), &json!(1)));
    let queue = fixture.get("/api/v1/clients/slow/queue").expect(200);
    let states: Vec<_> =
        queue["items"].as_array().unwrap().iter().map(|item| item["state"].clone()).collect();
    assert_eq!(states, ["inflight", "waiting"]);
    assert_eq!(fixture.all("/api/v1/clients?min_queued=1&min_inflight=1", 10).len(), 1);
    assert_eq!(fixture.all("/api/v1/clients?min_queued=2", 10).len(), 0);
    assert_eq!(fixture.all("/api/v1/clients?min_inflight=2", 10).len(), 0);
    client.acknowledge(&first);
    let second = client.message();
    assert_eq!(second.payload, b"second");
    client.acknowledge(&second);
    client.ping();
    assert_eq!(fixture.get("/api/v1/clients/slow").expect(200)["session"]["inflight"], 0);
}

#[test]
fn filters_choose_clients() {
    let fixture = Fixture::start();
    let _five = fixture.client_with("thing-five", With { username: Some("alice"), ..With::default() });
    let _three = fixture.client_with("thing-three", With { version: Version::V3_1_1, ..With::default() });
    fixture.absent("thing-away", &[]);
    #[track_caller]
    fn chosen(fixture: &Fixture, query: &str, expected: &[&str]) {
        let items = fixture.all(&format!("/api/v1/clients?{query}"), 2);
        assert_eq!(names(&items), expected, "{query}");
    }
    let chosen = |query: &str, expected: &[&str]| chosen(&fixture, query, expected);
    chosen("search=thing", &["thing-away", "thing-five", "thing-three"]);
    chosen("search=five", &["thing-five"]);
    chosen("search=FIVE", &[]);
    chosen("search=", &["thing-away", "thing-five", "thing-three"]);
    chosen("username=alice", &["thing-five"]);
    chosen("username=bob", &[]);
    chosen("connected=false", &["thing-away"]);
    chosen("connected=true", &["thing-five", "thing-three"]);
    chosen("version=5.0", &["thing-five"]);
    chosen("version=3.1.1", &["thing-three"]);
    chosen("version=3.1", &[]);
    chosen("address=127.0.0.1", &["thing-five", "thing-three"]);
    chosen("address=127.0.0.0/8", &["thing-five", "thing-three"]);
    chosen("address=%3A%3Affff%3A127.0.0.1", &["thing-five", "thing-three"]);
    chosen("address=10.0.0.0/8", &[]);
    chosen("search=thing&version=5.0&username=alice&connected=true", &["thing-five"]);
}

/// All forms of Client Identifiers that MQTT allows.
#[test]
fn client_identifiers_of_all_kinds_stand_in_paths() {
    let fixture = Fixture::start();
    for name in [
        "a/b",
        "/",
        "a//b/",
        "ünïcödé-日本語-🦀",
        " ",
        "a b",
        "?q=1&x#y",
        "%2F",
        "100%",
        "+",
        "\"\\'",
        "a;b=c",
        "..x",
        "~",
    ] {
        let mut client = fixture.client(name);
        client.subscribe("x", QoS::AtMostOnce);
        let path = format!("/api/v1/clients/{}", percent_encoded(name));
        assert_eq!(fixture.get(&path).expect(200)["client_id"], name);
        assert_eq!(fixture.get(&format!("{path}/subscriptions")).expect(200)["items"][0]["filter"], "x");
        assert_eq!(fixture.get(&format!("{path}/queue")).expect(200)["items"], json!([]));
        let search = format!("/api/v1/clients?search={}", percent_encoded(name));
        assert_eq!(names(&fixture.all(&search, 10)), [name]);
        assert_eq!(fixture.delete(&path).expect(200)["connection_closed"], true, "{name}");
        assert_eq!(client.next(), Got::Disconnect(ReasonCode::AdministrativeAction));
        eventually("it is gone", || (fixture.get(&path).status == 404).then_some(()));
    }
}

pub fn percent_encoded(text: &str) -> String {
    text.bytes()
        .map(
            |byte| {
                if byte.is_ascii_alphanumeric() { char::from(byte).into() } else { format!("%{byte:02X}") }
            },
        )
        .collect()
}

#[test]
fn an_unknown_client_is_not_found() {
    let fixture = Fixture::start();
    let found = |answer: super::http::Answer| {
        let detail = answer.problem(404);
        assert!(detail.contains("`nobody`"), "{detail}");
    };
    found(fixture.get("/api/v1/clients/nobody"));
    found(fixture.get("/api/v1/clients/nobody/queue"));
    found(fixture.get("/api/v1/clients/nobody/subscriptions"));
    found(fixture.delete("/api/v1/clients/nobody"));
    found(fixture.delete("/api/v1/clients/nobody?session=true"));
    found(fixture.delete("/api/v1/clients/nobody/subscriptions?filter=a"));
    found(fixture.post("/api/v1/clients/nobody/subscriptions", json!({"filter": "a"})));
}

#[test]
fn a_kick_closes_the_connection_and_leaves_the_session() {
    let fixture = Fixture::start();
    let mut client = fixture.client_with("c", With { expiry: 600, ..With::default() });
    client.subscribe("a", QoS::AtLeastOnce);
    let kicked = fixture.delete("/api/v1/clients/c").expect(200);
    assert_eq!(kicked, json!({"connection_closed": true, "session_ended": false, "nodes": ["node-1"]}));
    assert_eq!(client.next(), Got::Disconnect(ReasonCode::AdministrativeAction));
    assert_eq!(client.next(), Got::End);
    eventually("it is away", || {
        (fixture.get("/api/v1/clients/c").expect(200)["connected"] == false).then_some(())
    });
    assert_eq!(fixture.all("/api/v1/clients/c/subscriptions", 10).len(), 1);

    let again = fixture.delete("/api/v1/clients/c").expect(200);
    assert_eq!(
        again,
        json!({"connection_closed": false, "session_ended": false, "nodes": ["node-1"]}),
        "there is nothing to close"
    );
    let ended = fixture.delete("/api/v1/clients/c?session=true").expect(200);
    assert_eq!(ended, json!({"connection_closed": false, "session_ended": true, "nodes": ["node-1"]}));
    fixture.get("/api/v1/clients/c").problem(404);
}

#[test]
fn a_kick_ends_the_session_of_a_connected_client_when_asked_to() {
    let fixture = Fixture::start();
    let mut client = fixture.client_with("c", With { expiry: 600, ..With::default() });
    let kicked = fixture.delete("/api/v1/clients/c?session=true").expect(200);
    assert_eq!(kicked, json!({"connection_closed": true, "session_ended": true, "nodes": ["node-1"]}));
    assert_eq!(client.next(), Got::Disconnect(ReasonCode::AdministrativeAction));
    eventually("it is gone", || (fixture.get("/api/v1/clients/c").status == 404).then_some(()));
}
