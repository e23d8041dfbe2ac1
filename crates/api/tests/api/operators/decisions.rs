//! Decisions about the actions of a client.

use auth::RuleSet;
use serde_json::{Value, json};

use super::client::With;
use super::fixture::Fixture;

fn ask(fixture: &Fixture, question: Value) -> Value {
    fixture.post("/api/v1/rules/test", question).expect(200)
}

#[test]
fn the_deciding_rule_is_named() {
    let fixture = Fixture::start();
    let question = json!({"client_id": "c", "action": "subscribe", "topic": "$share/g/news/#"});
    let answer = ask(&fixture, question.clone());
    assert_eq!((&answer["allowed"], &answer["decided_by"]), (&json!(true), &json!("no_match")));
    let lines = [
        ("1", "deny attribute role=guest all #"),
        ("2", "allow user alice and address 127.0.0.0/8 all news/#"),
        ("3", "allow cert cn=gw publish gw/${cert_cn} qos 1 retain yes"),
    ];
    fixture.guard().set_database_rules(RuleSet::parse_lines(lines).expect("these are rules"));
    let answer = ask(&fixture, question.clone());
    assert_eq!((&answer["allowed"], &answer["decided_by"]), (&json!(false), &json!("no_match")));
    assert_eq!(answer["steps"][0]["by"], "database");
    assert_eq!(answer["steps"][0]["opinion"], "none");
    // The attributes of a connected client are used.
    let _alice = fixture.client_with("c", With { username: Some("alice"), ..With::default() });
    let answer = ask(&fixture, question);
    assert_eq!((&answer["allowed"], &answer["decided_by"]), (&json!(true), &json!("database")));
    let reason = answer["reason"].as_str().expect("text");
    assert!(reason.starts_with("rule 2: allow user alice and"), "{reason}");
    let guest =
        json!({"client_id": "c", "action": "publish", "topic": "news/x", "attributes": {"role": "guest"}});
    assert_eq!(ask(&fixture, guest)["allowed"], false);
    let mut gateway =
        json!({"client_id": "g", "cert_cn": "gw", "action": "publish", "topic": "gw/gw", "qos": 1});
    assert_eq!(ask(&fixture, gateway.clone())["allowed"], false);
    gateway["retain"] = json!(true);
    assert_eq!(ask(&fixture, gateway)["allowed"], true);
    let sys = json!({"client_id": "c", "action": "publish", "topic": "$SYS/x"});
    assert_eq!(ask(&fixture, sys)["decided_by"], "broker");
}

#[test]
fn an_invalid_question_is_refused_with_the_fault() {
    let fixture = Fixture::start();
    for (field, value) in
        [("action", json!("read")), ("topic", json!("a/#")), ("qos", json!(3)), ("address", json!("host"))]
    {
        let mut question = json!({"client_id": "c", "action": "publish", "topic": "a"});
        question[field] = value;
        fixture.post("/api/v1/rules/test", question).problem(422);
    }
}
