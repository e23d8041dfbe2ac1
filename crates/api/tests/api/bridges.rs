//! Bridges to other brokers.

use api::Role;
use serde_json::{Value, json};

use crate::support::{Answer, Server};

const BRIDGES: &str = "/api/v1/bridges";

#[test]
fn bridges_are_added_replaced_and_removed() {
    let server = Server::start();
    let settings = json!({"address": "h:1883", "topics": "a/# out 1"});
    let put = || server.write("PUT", &format!("{BRIDGES}/south"), Some(&settings));
    let added = put().is(201);
    assert_eq!(
        (&added["source"], &added["settings"], &added["fault"]),
        (&json!("store"), &settings, &Value::Null)
    );
    put().is(200);
    assert_eq!(server.get(&format!("{BRIDGES}/south")).is(200)["settings"], settings);
    let plant = server.get(&format!("{BRIDGES}/plant")).is(200);
    assert_eq!((&plant["source"], &plant["changed_at"]), (&json!("file"), &Value::Null));
    assert_eq!(server.get(BRIDGES).is(200)["items"][0]["source"], "file");

    let refused = server.write("PUT", &format!("{BRIDGES}/plant"), Some(&settings));
    assert!(refused.problem(409, "conflict").contains("configuration file"));
    let refused = server.write("PUT", &format!("{BRIDGES}/x"), Some(&json!({"topics": "b"})));
    assert!(refused.problem(422, "invalid").starts_with("address: "));

    let remove = |query: &str| server.write("DELETE", &format!("{BRIDGES}/south{query}"), None);
    remove("?messages=burn").problem(400, "bad-request");
    remove("").is(204);
    assert!(server.bridges.ended.lock().unwrap().is_empty());
    remove("").problem(404, "not-found");
    // An earlier request has removed the bridge, and its session is still there.
    remove("?messages=delete").is(204);
    assert_eq!(*server.bridges.ended.lock().unwrap(), ["south"]);
    let detail = server.get(&format!("{BRIDGES}/south")).problem(404, "not-found");
    assert!(detail.contains("no bridge `south`"), "{detail}");
}

#[test]
fn only_an_admin_changes_bridges_and_the_audit_log_has_the_settings() {
    let server = Server::with_keys(|_| ());
    let as_role = |role: Role, method: &str, body: Option<&str>| -> Answer {
        let token = format!("Bearer {}", server.token(role));
        let headers = [("Authorization", token.as_str()), ("Content-Type", "application/json")];
        server.request(method, &format!("{BRIDGES}/south"), &headers, body)
    };
    let body = json!({"address": "h:1883", "topics": "a/# out 1"}).to_string();
    for role in [Role::Viewer, Role::Operator] {
        as_role(role, "PUT", Some(&body)).problem(403, "forbidden");
        as_role(role, "DELETE", None).problem(403, "forbidden");
    }
    as_role(Role::Admin, "PUT", Some(&body)).is(201);
    as_role(Role::Viewer, "GET", None).is(200);
    let token = format!("Bearer {}", server.token(Role::Admin));
    let audit = server.request("GET", "/api/v1/audit", &[("Authorization", &token)], None).is(200);
    let detail = audit["items"][0]["detail"].as_str().unwrap();
    assert!(detail.contains("\"topics\":\"a/# out 1\""), "{detail}");
}
