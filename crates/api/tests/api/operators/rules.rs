//! The rule database: the order of rules, and the effect of a change on clients.

use mqtt::QoS;
use serde_json::{Value, json};

use super::client::With;
use super::eventually;
use super::fixture::Fixture;

fn rules(fixture: &Fixture) -> Vec<String> {
    fixture.all("/api/v1/rules", 2).iter().map(|rule| rule["rule"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn rules_are_added_moved_changed_and_removed_by_position_and_id() {
    let fixture = Fixture::start();
    let add = |topic: &str, position: Value| {
        fixture.post(
            "/api/v1/rules",
            json!({"rule": format!("deny everyone publish {topic}"), "position": position}),
        )
    };
    let first = add("a", Value::Null).expect(201);
    assert_eq!(
        (&first["position"], &first["enabled"], &first["author"]),
        (&json!(1), &json!(true), &json!(""))
    );
    add("c", Value::Null).expect(201);
    let third = add("b", json!(2)).expect(201);
    assert_eq!(third["position"], 2);
    let id = third["id"].as_str().unwrap();
    let put = |path: &str, body| fixture.http().request("PUT", path, Some(body));
    assert_eq!(
        put(&format!("/api/v1/rules/{id}/position"), json!({"position": 9})).expect(200)["position"],
        3
    );
    assert_eq!(
        rules(&fixture),
        ["deny everyone publish a", "deny everyone publish c", "deny everyone publish b"]
    );
    let changed =
        put(&format!("/api/v1/rules/{id}"), json!({"rule": "allow everyone publish z", "enabled": false}));
    assert_eq!(changed.expect(200)["position"], 3);
    assert_eq!(fixture.get(&format!("/api/v1/rules/{id}")).expect(200)["enabled"], false);
    assert_eq!(fixture.delete(&format!("/api/v1/rules/{id}")).status, 204);
    fixture.delete(&format!("/api/v1/rules/{id}")).problem(404);
    let all = json!({"rules": [{"rule": "allow everyone subscribe x"}, {"rule": "deny everyone all #"}]});
    assert_eq!(put("/api/v1/rules", all).expect(200), json!({"rules": 2}));
    assert_eq!(rules(&fixture), ["allow everyone subscribe x", "deny everyone all #"]);
}

#[test]
fn an_invalid_rule_is_refused_with_the_remedy() {
    let fixture = Fixture::start();
    let refused = |body| fixture.post("/api/v1/rules", body).problem(422);
    assert!(refused(json!({"rule": "permit everyone publish a"})).contains("allow"));
    assert!(refused(json!({"rule": "# nothing"})).contains("is empty"));
    assert!(
        refused(json!({"rule": "allow everyone publish a\nallow everyone publish b"})).contains("one line")
    );
    assert!(refused(json!({"rule": "allow everyone publish a", "position": 0})).contains("from 1"));
    let all = json!({"rules": [{"rule": "allow everyone publish a"}, {"rule": "x"}]});
    assert!(fixture.http().request("PUT", "/api/v1/rules", Some(all)).problem(422).contains("rule 2: "));
    fixture.get("/api/v1/rules/nonsense").problem(404);
    assert_eq!(rules(&fixture), [""; 0]);
}

/// The first rule applies to connected clients: without any rule, everything is allowed here.
#[test]
fn a_rule_applies_to_connected_clients() {
    let fixture = Fixture::start();
    let (mut subscriber, mut publisher) =
        (fixture.client("subscriber"), fixture.client_with("publisher", With::default()));
    subscriber.subscribe("secret/a", QoS::AtMostOnce);
    publisher.publish("secret/a", b"1", QoS::AtMostOnce);
    assert_eq!(subscriber.message().payload, b"1");
    let all =
        json!({"rules": [{"rule": "deny everyone subscribe secret/#"}, {"rule": "allow everyone all #"}]});
    fixture.http().request("PUT", "/api/v1/rules", Some(all)).expect(200);
    eventually("the subscription is gone", || {
        let answer = fixture.get("/api/v1/clients/subscriber/subscriptions").expect(200);
        answer["items"].as_array().unwrap().is_empty().then_some(())
    });
    fixture.http().request("PUT", "/api/v1/rules", Some(json!({"rules": []}))).expect(200);
    subscriber.subscribe("secret/a", QoS::AtMostOnce);
}
