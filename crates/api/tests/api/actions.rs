//! Connectors and actions.

use api::Role;
use serde_json::{Value, json};

use crate::support::{Answer, Server};

const ACTIONS: &str = "/api/v1/actions";
const CONNECTORS: &str = "/api/v1/connectors";

#[test]
fn actions_are_added_replaced_and_removed() {
    let server = Server::start();
    let settings = json!({"rule": "SELECT * FROM \"a\"", "topic": "b"});
    let put = || server.write("PUT", &format!("{ACTIONS}/new"), Some(&settings));
    let added = put().is(201);
    assert_eq!(
        (&added["source"], &added["settings"], &added["status"]),
        (&json!("store"), &settings, &Value::Null)
    );
    put().is(200);
    let alarms = server.get(&format!("{ACTIONS}/alarms")).is(200);
    assert_eq!((&alarms["source"], &alarms["changed_at"]), (&json!("file"), &Value::Null));
    assert_eq!((&alarms["status"]["state"], &alarms["status"]["written"]), (&json!("running"), &json!(5)));

    let refused = server.write("PUT", &format!("{ACTIONS}/alarms"), Some(&settings));
    assert!(refused.problem(409, "conflict").contains("configuration file"));
    let refused = server.write("PUT", &format!("{ACTIONS}/x"), Some(&json!({"topic": "b"})));
    assert!(refused.problem(422, "invalid").starts_with("rule: "));
    assert_eq!(refused.json()["errors"][0]["name"], "rule");
    server.write("PUT", &format!("{ACTIONS}/x"), Some(&json!([1]))).problem(422, "invalid");

    let remove = |query: &str| server.write("DELETE", &format!("{ACTIONS}/new{query}"), None);
    remove("?messages=burn").problem(400, "bad-request");
    let add_session = || server.actions.entries.lock().unwrap().sessions.push("new".to_owned());
    add_session();
    remove("?messages=delete").is(204);
    remove("").problem(404, "not-found");
    remove("?messages=delete").problem(404, "not-found");
    // The session of an action that was removed before.
    add_session();
    remove("?messages=delete").is(204);
    put().is(201);
    remove("?messages=delete").is(204);
    put().is(201);
    remove("").is(204);
    assert_eq!(server.actions.entries.lock().unwrap().emptied, ["new", "new"]);
    server.get(&format!("{ACTIONS}/new")).problem(404, "not-found");
}

#[test]
fn connectors_are_added_replaced_and_removed() {
    let server = Server::start();
    let put = || server.write("PUT", &format!("{CONNECTORS}/db"), Some(&json!({"url": "http://h/"})));
    put().is(201);
    put().is(200);
    assert_eq!(server.get(&format!("{CONNECTORS}/db")).is(200)["settings"]["url"], "http://h/");
    server.write("PUT", &format!("{CONNECTORS}/archive"), Some(&json!({}))).problem(409, "conflict");
    server.write("DELETE", &format!("{CONNECTORS}/db"), None).is(204);
    server.write("DELETE", &format!("{CONNECTORS}/db"), None).problem(404, "not-found");
    server.get(&format!("{CONNECTORS}/db")).problem(404, "not-found");
}

#[test]
fn lists_come_in_pages_in_the_order_of_names() {
    let server = Server::start();
    for name in ["b", "z", "c"] {
        server.write("PUT", &format!("{ACTIONS}/{name}"), Some(&json!({"rule": "r"}))).is(201);
    }
    let (mut names, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("{ACTIONS}?limit=3{cursor}")).is(200);
        names.extend(
            page["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().to_owned()),
        );
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(names, ["alarms", "b", "c", "z"]);
    server.get(&format!("{ACTIONS}?limit=0")).problem(400, "bad-request");
    server.get(&format!("{ACTIONS}?cursor=x")).problem(400, "bad-request");
    assert_eq!(server.get(CONNECTORS).is(200)["items"][0]["name"], "archive");
}

#[test]
fn a_test_answers_with_outputs_and_records() {
    let server = Server::start();
    let test = |body: Value| server.write("POST", &format!("{ACTIONS}/test"), Some(&body));
    let answer = test(json!({"settings": {"rule": "r"}, "message": {"topic": "a"}})).is(200);
    let expected = json!({
        "matched": true, "outputs": [{"a": 1}], "records": [{"fields": [{"name": "topic", "value": "b"}]}],
        "error": {"where": "template", "message": "the output has no `x`"}, "message": {"topic": "a"},
    });
    assert_eq!(answer, expected);
    assert!(test(json!({"settings": {}})).problem(422, "invalid").starts_with("message: "));
    let both = json!({"settings": {}, "message": {}, "live": true});
    assert!(test(both).problem(422, "invalid").starts_with("live: "));

    let test = |body: Value| server.write("POST", &format!("{CONNECTORS}/test"), Some(&body));
    let expected = json!({"ok": false, "message": "it does not answer", "took_ms": 3});
    assert_eq!(test(json!({"name": "archive"})).is(200), expected);
    assert!(test(json!({})).problem(422, "invalid").starts_with("settings: "));
}

#[test]
fn a_few_tests_run_at_a_time() {
    let server = Server::start();
    let body = json!({"settings": {}, "live": true}).to_string();
    let target = format!("{ACTIONS}/test");
    let ask = || server.ask("POST", &target, &[("Content-Type", "application/json")], Some(&body));
    let mut running: Vec<_> = std::iter::repeat_with(ask).take(4).collect();
    server.actions.await_tests(4);
    let detail = ask().answer("POST").problem(429, "too-many-requests");
    assert_eq!(detail, "4 tests are running already; try again when one has ended");
    server.actions.release_tests();
    for client in &mut running {
        client.answer("POST").is(200);
    }
}

#[test]
fn secrets_of_a_url_are_for_admins_only_and_not_in_the_audit_log() {
    let server = Server::with_keys(|_| ());
    let tokens = Role::ALL.map(|role| (role, format!("Bearer {}", server.token(role))));
    let as_role = |role: Role, method: &str, path: &str, body: Option<&str>| -> Answer {
        let (_, token) = tokens.iter().find(|(known, _)| *known == role).unwrap();
        let headers = [("Authorization", token.as_str()), ("Content-Type", "application/json")];
        server.request(method, path, &headers, body)
    };
    let url = |role| {
        as_role(role, "GET", &format!("{CONNECTORS}/archive"), None).is(200)["settings"]["url"].clone()
    };
    assert_eq!(url(Role::Admin), "http://user:pass@h/?key=1");
    let listed =
        as_role(Role::Operator, "GET", CONNECTORS, None).is(200)["items"][0]["settings"]["url"].clone();
    for hidden in [url(Role::Viewer), listed] {
        let hidden = hidden.as_str().unwrap();
        assert!(hidden.contains("@h/") && !hidden.contains("pass") && !hidden.contains("key"), "{hidden}");
    }
    let body = json!({"rule": "r", "headers": "X-Key: pass\nunit: C"}).to_string();
    as_role(Role::Admin, "PUT", &format!("{ACTIONS}/hook"), Some(&body)).is(201);
    let headers = |role| {
        let listed = as_role(role, "GET", ACTIONS, None).is(200)["items"][1]["settings"]["headers"].clone();
        let one = as_role(role, "GET", &format!("{ACTIONS}/hook"), None).is(200);
        assert_eq!(one["settings"]["headers"], listed);
        listed
    };
    assert_eq!(headers(Role::Admin), "X-Key: pass\nunit: C");
    for role in [Role::Viewer, Role::Operator] {
        assert_eq!(headers(role), "X-Key: ***\nunit: ***");
    }
    for (body, note) in [
        (json!({"name": "archive"}), "archive http://***@h/?***"),
        (json!({"name": "archive", "settings": {"url": "http://other/"}}), "archive http://other/"),
        (json!({"settings": {"address": "db:5432"}}), "db:5432"),
    ] {
        as_role(Role::Admin, "POST", &format!("{CONNECTORS}/test"), Some(&body.to_string())).is(200);
        let audit = as_role(Role::Admin, "GET", "/api/v1/audit", None).is(200);
        assert_eq!(audit["items"][0]["detail"], note);
    }
    let body = json!({"url": "http://user:pass@h/", "kind": "http"}).to_string();
    as_role(Role::Admin, "PUT", &format!("{CONNECTORS}/db"), Some(&body)).is(201);
    let audit = as_role(Role::Admin, "GET", "/api/v1/audit", None).is(200);
    let detail = audit["items"][0]["detail"].as_str().unwrap();
    assert!(detail.contains("@h/\",\"kind\":\"http\"") && !detail.contains("pass"), "{detail}");
}

#[test]
fn metrics_have_the_actions_of_this_node() {
    let server = Server::start();
    let text = server.get("/metrics").text().to_owned();
    for line in [
        "meridian_action_written_total{action=\"alarms\"} 5",
        "meridian_action_failures_total{action=\"alarms\",reason=\"expired\"} 2",
        "meridian_action_failing{action=\"alarms\"} 0",
        "meridian_action_queued_bytes{action=\"alarms\"} 300",
        "meridian_action_oldest_age_seconds{action=\"alarms\"} 60",
        "meridian_action_dropped_total{action=\"alarms\",reason=\"given_up\"} 2",
        "meridian_action_dropped_total{action=\"alarms\",reason=\"queue\"} 4",
        "meridian_action_dropped_total{action=\"alarms\",reason=\"qos0\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}");
    }
}
