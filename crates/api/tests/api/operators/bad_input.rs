//! Invalid requests: the reported fault, and the absence of effects.

use serde_json::{Value, json};

use super::fixture::Fixture;

#[track_caller]
fn refused(fixture: &Fixture, path: &str, status: u16, says: &str) {
    let detail = fixture.get(&format!("/api/v1/{path}")).problem(status);
    assert!(detail.contains(says), "{path}: {detail}");
}

#[test]
fn invalid_queries_are_refused() {
    let fixture = Fixture::start();
    let refused = |path: &str, says: &str| refused(&fixture, path, 400, says);
    for listing in ["clients", "subscriptions", "retained", "bans", "routes", "clients/c/queue"] {
        for limit in ["0", "1001", "-1", "x", "1.5", "18446744073709551616"] {
            refused(&format!("{listing}?limit={limit}"), "");
        }
        refused(&format!("{listing}?limt=1"), "limit");
    }
    refused("top?limit=51", "expected 1 to 50");
    refused("slow-subscribers?limit=101", "expected 1 to 100");
    refused("clients?connected=maybe", "true");
    refused("clients?version=4", "expected 3.1, 3.1.1 or 5.0");
    refused("clients?address=10.0.0.1/8", "10.0.0.0/8");
    refused("clients?address=home", "192.0.2.7");
    refused("clients?min_queued=-1", "");
    refused("clients?search=a&search=b", "");
    refused("clients/c/queue?payload=yes", "");
    refused("retained/message", "topic");
    refused("routes/match", "topic");
    refused("clients/%FF", "");
}

#[test]
fn invalid_topics_and_filters_are_refused() {
    let fixture = Fixture::start();
    let refused = |path: &str| refused(&fixture, path, 422, "");
    refused("subscriptions?filter=a/%23/b");
    refused("subscriptions?match=a/%23");
    refused("retained?filter=%23/a");
    refused("retained?filter=");
    refused("routes/match?topic=%2B");
    fixture.delete("/api/v1/retained?filter=%23a").problem(422);
    fixture.delete("/api/v1/retained").problem(400);
    fixture.delete("/api/v1/retained?topic=a&filter=a").problem(400);
}

#[test]
fn invalid_traces_are_refused() {
    let fixture = Fixture::start();
    let refused =
        |query: &str, status, says: &str| refused(&fixture, &format!("trace?{query}"), status, says);
    refused("", 400, "one of");
    refused("client_id=a&topic=b", 400, "one of");
    refused("topic=a/%23/b", 422, "Topic Filter");
    refused("address=x", 400, "address");
    refused("topic=a&payload=4097", 400, "0 to 4096");
    refused("topic=a&seconds=0", 400, "1 to 3600");
    refused("topic=a&seconds=3601", 400, "1 to 3600");
    refused("topic=a&events=0", 400, "1 to 100000");
    refused("topic=a&events=100001", 400, "1 to 100000");
    refused("topic=a&kind=puback", 400, "publish_in");
    // None of these has kept a slot.
    for _ in 0..3 {
        fixture.stream("/api/v1/trace?topic=a");
    }
}

#[test]
fn invalid_messages_are_refused() {
    let fixture = Fixture::start();
    #[track_caller]
    fn refused(fixture: &Fixture, message: Value, status: u16, field: &str) {
        let answer = fixture.post("/api/v1/publish", message);
        assert!(answer.body.contains(field), "{}", answer.body);
        answer.problem(status);
    }
    let refused = |message, status, field: &str| refused(&fixture, message, status, field);
    refused(json!({"topic": ""}), 422, "topic");
    refused(json!({"topic": "a/+"}), 422, "topic");
    refused(json!({"topic": "$SYS/broker/uptime"}), 422, "topic");
    refused(json!({"topic": "a\u{0}b"}), 422, "topic");
    refused(json!({"topic": "a".repeat(65_536)}), 422, "topic");
    refused(json!({"topic": "a", "qos": 3}), 422, "qos");
    refused(json!({"topic": "a", "qos": -1}), 422, "qos");
    refused(json!({"topic": "a", "payload": "x", "payload_base64": "eA=="}), 422, "payload_base64");
    refused(json!({"topic": "a", "payload_base64": "eA"}), 422, "Base64");
    refused(json!({"topic": "a", "payload": 1}), 422, "payload");
    refused(json!({"topic": "a", "retained": true}), 422, "retained");
    refused(
        json!({"topic": "a", "properties": {"correlation_data_base64": "!"}}),
        422,
        "correlation_data_base64",
    );
    refused(
        json!({"topic": "a", "payload_base64": "/w==", "properties": {"payload_is_text": true}}),
        422,
        "payload_is_text",
    );
    refused(json!({"topic": "a", "properties": {"user_properties": [["k"]]}}), 422, "user_properties");
    refused(json!({"topic": "a", "properties": {"content_type": "a\u{0}"}}), 422, "properties");
    refused(json!({"topic": "a", "payload": "x".repeat(1_100_000)}), 413, "packet_size_max");
    refused(json!([]), 422, "");
    fixture.http().send("POST", "/api/v1/publish", "").problem(400);
    fixture.http().send("POST", "/api/v1/publish", "{").problem(400);
    fixture.http().send("POST", "/api/v1/publish", "{\"topic\":\"a\"} x").problem(400);
}

/// The body is refused because of its announced length; it need not be sent.
#[test]
fn a_body_that_is_too_large_is_refused_whole() {
    let fixture = Fixture::start();
    let detail = fixture.http().announce("POST", "/api/v1/publish/batch", 5 << 20).problem(413);
    assert!(detail.contains("http.body_max"), "{detail}");
}

#[test]
fn invalid_subscriptions_are_refused_with_all_faults() {
    let fixture = Fixture::start();
    let _client = fixture.client("c");
    let wanted = json!({"filter": "a/#/b", "qos": 3, "retain_handling": 3, "subscription_id": 0});
    let answer = fixture.post("/api/v1/clients/c/subscriptions", wanted).expect(422);
    let names: Vec<_> =
        answer["errors"].as_array().unwrap().iter().map(|error| error["name"].clone()).collect();
    assert_eq!(names, ["filter", "qos", "retain_handling", "subscription_id"]);
    for wanted in [
        json!({"filter": "$share/g/a", "no_local": true}),
        json!({"filter": "$share/g"}),
        json!({"filter": ""}),
        json!({"filter": "a", "subscription_id": 268_435_456}),
        json!({"filter": "a", "nl": true}),
        json!({}),
    ] {
        fixture.post("/api/v1/clients/c/subscriptions", wanted).problem(422);
    }
    fixture.delete("/api/v1/clients/c/subscriptions").problem(400);
    fixture.delete("/api/v1/clients/c/subscriptions?filter=a/%23/b").problem(422);
    assert_eq!(fixture.all("/api/v1/clients/c/subscriptions", 10).len(), 0);
}

/// A filter that matches everything has done the node no harm.
#[test]
fn filters_that_match_everything_are_answered_page_by_page() {
    let fixture = Fixture::start();
    let _clients: Vec<_> = (0..50).map(|number| fixture.client(&format!("c-{number}"))).collect();
    for path in ["clients?address=0.0.0.0/0", "clients?search=c", "clients?min_queued=0", "clients"] {
        assert_eq!(fixture.all(&format!("/api/v1/{path}"), 1).len(), 50, "{path}");
    }
}
