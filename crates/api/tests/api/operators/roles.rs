//! Required roles of requests.

use api::Role;
use serde_json::json;

use super::fixture::Fixture;

#[test]
fn a_viewer_sees_and_an_operator_acts() {
    let (fixture, tokens) = Fixture::with_keys(&[Role::Viewer, Role::Operator]);
    let (viewer, operator) = (fixture.as_key(&tokens[0]), fixture.as_key(&tokens[1]));
    fixture.absent("c", &["a"]);
    let see = [
        "clients",
        "clients/c",
        "clients/c/subscriptions",
        "clients/c/queue",
        "subscriptions",
        "routes",
        "routes/match?topic=a",
        "retained",
        "topic-metrics",
        "slow-subscribers",
        "top",
        "bans",
        "users",
        "rules",
    ];
    for path in see {
        let path = format!("/api/v1/{path}");
        fixture.http().request("GET", &path, None).problem(401);
        viewer.request("GET", &path, None).expect(200);
        operator.request("GET", &path, None).expect(200);
    }
    let act = [
        ("POST", "publish", json!({"topic": "a", "qos": 1}), 200),
        ("POST", "publish/batch", json!({"messages": [{"topic": "a"}]}), 200),
        ("POST", "clients/c/subscriptions", json!({"filter": "a"}), 409),
        ("DELETE", "clients/c/subscriptions?filter=a", json!(null), 409),
        ("DELETE", "retained?topic=a", json!(null), 200),
        ("POST", "topic-metrics", json!({"filter": "a"}), 201),
        ("DELETE", "topic-metrics?filter=a", json!(null), 204),
        ("DELETE", "slow-subscribers", json!(null), 204),
        ("POST", "rules/test", json!({"client_id": "c", "action": "publish", "topic": "a"}), 200),
        ("POST", "bans", json!({"kind": "client_id", "value": "x"}), 201),
        ("DELETE", "bans/1", json!(null), 204),
        ("GET", "clients/c/queue?payload=true", json!(null), 200),
        // A viewer sees everything but payloads.
        ("GET", "retained/message?topic=none", json!(null), 404),
        ("DELETE", "clients/c?session=true", json!(null), 200),
    ];
    for (method, path, body, status) in act {
        let path = format!("/api/v1/{path}");
        let body = (!body.is_null()).then_some(body);
        viewer.request(method, &path, body.clone()).problem(403);
        assert_eq!(operator.request(method, &path, body).status, status, "{method} {path}");
    }
    viewer.request("GET", "/api/v1/trace?topic=a", None).problem(403);
    operator.stream("/api/v1/trace?topic=a");
}

#[test]
fn only_an_admin_changes_users_and_rules() {
    let (fixture, tokens) = Fixture::with_keys(&[Role::Operator, Role::Admin]);
    let (operator, admin) = (fixture.as_key(&tokens[0]), fixture.as_key(&tokens[1]));
    let act = [
        ("POST", "users", json!({"name": "a"}), 201),
        ("PUT", "users/a", json!({}), 200),
        ("PATCH", "users/a", json!({"enabled": true}), 200),
        ("DELETE", "users/a", json!(null), 204),
        ("POST", "users/import", json!({"users": []}), 200),
        ("POST", "rules", json!({"rule": "allow everyone all #"}), 201),
        ("PUT", "rules/1", json!({"rule": "allow everyone all #"}), 200),
        ("PUT", "rules/1/position", json!({"position": 1}), 200),
        ("PUT", "rules", json!({"rules": [{"rule": "allow everyone all #"}]}), 200),
        ("DELETE", "rules/2", json!(null), 204),
    ];
    for (method, path, body, status) in act {
        let path = format!("/api/v1/{path}");
        let body = (!body.is_null()).then_some(body);
        operator.request(method, &path, body.clone()).problem(403);
        assert_eq!(admin.request(method, &path, body).status, status, "{method} {path}");
    }
}

#[test]
fn a_ban_names_who_made_it() {
    let (fixture, tokens) = Fixture::with_keys(&[Role::Operator]);
    let operator = fixture.as_key(&tokens[0]);
    let body = json!({"kind": "client_id", "value": "x"});
    assert_eq!(operator.request("POST", "/api/v1/bans", Some(body)).expect(201)["by"], "operator");
}
