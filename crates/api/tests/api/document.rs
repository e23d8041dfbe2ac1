//! The OpenAPI document: it contains exactly the routes, and describes their answers.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use api::Role;
use serde_json::{Value, json};

use crate::schema::check;
use crate::support::{Answer, Server};

/// One method of one path.
#[derive(Clone, Debug)]
pub struct Operation {
    pub method: String,
    pub path: String,
    pub value: Value,
}

impl Operation {
    /// Required role; `None`: no token is needed.
    pub fn role(&self) -> Option<Role> {
        let security = self.value["security"].as_array().unwrap_or_else(|| panic!("{self:?} says no role"));
        let [requirement] = security.as_slice() else { panic!("{self:?}: one requirement") };
        let scopes = requirement.get("token")?;
        Some(Role::named(scopes[0].as_str().unwrap()).unwrap())
    }

    /// Returns the path with a value for each parameter.
    pub fn target(&self) -> String {
        self.path.replace("{client_id}", "nobody").replace("{name}", "nobody").replace("{id}", "999999")
    }

    fn is_stream(&self) -> bool {
        self.value["responses"]["200"]["content"]["text/event-stream"].is_object()
    }
}

pub fn document() -> Value {
    serde_json::to_value(api::document()).unwrap()
}

pub fn operations(document: &Value) -> Vec<Operation> {
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, value) in item.as_object().unwrap() {
            all.push(Operation { method: method.to_uppercase(), path: path.clone(), value: value.clone() });
        }
    }
    assert!(all.len() > 40, "{}", all.len());
    all
}

/// A change of the API is visible in this file. `MERIDIAN_WRITE=1 cargo test -p api` writes it again.
#[test]
fn the_document_matches_the_stored_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
    let now = api::document().to_pretty_json().unwrap() + "\n";
    if std::env::var_os("MERIDIAN_WRITE").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let agreed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(agreed == now, "openapi.json is stale: MERIDIAN_WRITE=1 cargo test -p api writes it again");
}

#[test]
fn the_server_gives_the_document_to_everybody() {
    let server = Server::with_keys(|_| ());
    let answer = server.get("/api/openapi.json");
    assert_eq!(answer.is(200), document());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let docs = server.get("/api/docs");
    assert_eq!((docs.status, docs.header("location")), (302, Some("/#/api")));
}

/// A handler that is not registered is no route, and a route without an annotation would be missing in the document.
#[test]
fn every_annotated_handler_is_a_route_and_every_route_is_annotated() {
    let routes = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/routes");
    let mut annotated = 0;
    let mut folders = vec![routes];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        annotated += text.matches("utoipa::path(").count();
        // The macro that declares the routes of all files, with their annotations.
        if path.ends_with("routes/mod.rs") {
            continue;
        }
        for unseen in [".route(", ".route_service(", ".nest_service("] {
            assert!(!text.contains(unseen), "{}: {unseen} makes a route without a document", path.display());
        }
    }
    assert_eq!(annotated, operations(&document()).len());
}

#[test]
fn every_operation_has_a_summary_a_name_and_a_role_and_its_bodies_are_strict() {
    let document = document();
    let mut names = BTreeSet::new();
    for operation in operations(&document) {
        let value = &operation.value;
        let name = value["operationId"].as_str().unwrap_or_else(|| panic!("{operation:?}: no name"));
        assert!(names.insert(name.to_owned()), "{name} twice");
        assert!(value["summary"].as_str().is_some_and(|text| text.len() > 5), "{name}: no summary");
        assert!(value["tags"][0].is_string(), "{name}: no tag");
        operation.role();
        let body = &value["requestBody"]["content"]["application/json"]["schema"];
        if let Some(reference) = body["$ref"].as_str() {
            let schema = &document["components"]["schemas"][reference.rsplit('/').next().unwrap()];
            assert_eq!(schema["additionalProperties"], false, "{name}: its body takes unknown fields");
        }
    }
}

#[test]
fn every_reference_leads_somewhere() {
    fn walk(document: &Value, value: &Value) {
        match value {
            Value::Object(map) => {
                if let Some(path) = map.get("$ref").and_then(Value::as_str) {
                    assert!(document.pointer(path.trim_start_matches('#')).is_some(), "{path}");
                }
                map.values().for_each(|value| walk(document, value));
            }
            Value::Array(items) => items.iter().for_each(|value| walk(document, value)),
            _ => {}
        }
    }
    let document = document();
    walk(&document, &document);
}

/// A client that stays connected. It has a session, a subscription, and messages that it does not acknowledge.
fn client(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.mqtt).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    // CONNECT 3.1.1 without Clean Session as `c`; SUBSCRIBE `a/#` at QoS 1.
    stream.write_all(b"\x10\x0d\x00\x04MQTT\x04\x00\x00\x00\x00\x01c").unwrap();
    stream.write_all(b"\x82\x08\x00\x01\x00\x03a/#\x01").unwrap();
    let mut answers = [0; 9];
    stream.read_exact(&mut answers).unwrap();
    assert_eq!(answers, *b"\x20\x02\x00\x00\x90\x03\x00\x01\x01");
    stream
}

/// The answer of each operation matches the document, on a node that has data for all of them.
#[test]
fn answers_match_the_document() {
    let document = document();
    let server = Server::in_cluster(Some(crate::cluster::cut_off()));
    let mut left: BTreeSet<(String, String)> =
        operations(&document).into_iter().map(|operation| (operation.method, operation.path)).collect();
    let mut ask = |method: &str, template: &str, target: &str, body: Option<Value>| -> Value {
        left.remove(&(method.to_owned(), template.to_owned()));
        let operation = &document["paths"][template][method.to_lowercase()];
        let answer =
            if method == "GET" { server.get(target) } else { server.write(method, target, body.as_ref()) };
        fits(&document, operation, &answer, &format!("{method} {target}"));
        assert!(
            answer.status < 400 || target.contains("nobody") || target == "/health/quorum",
            "{method} {target}: {}",
            answer.text()
        );
        if answer.body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&answer.body).unwrap_or_default()
        }
    };

    let _client = client(&server);
    let publish = json!({ "topic": "a/b", "payload": "x", "qos": 1, "retain": true });
    ask("POST", "/api/v1/topic-metrics", "/api/v1/topic-metrics", Some(json!({ "filter": "a/#" })));
    ask(
        "POST",
        "/api/v1/publish/batch",
        "/api/v1/publish/batch",
        Some(json!({ "messages": [
        { "topic": "a/b", "payload": "x", "qos": 1, "retain": true }, { "topic": "a/#", "payload": "x" }
    ] })),
    );
    // The client does not acknowledge, which does not matter at QoS 0.
    let quiet = json!({ "topic": "b", "payload_base64": "AAE=" });
    let backup = json!({ "name": "one" });
    ask("POST", "/api/v1/storage/backups", "/api/v1/storage/backups", Some(backup));
    let backup = "/api/v1/storage/backups/{name}";
    ask("GET", backup, "/api/v1/storage/backups/one", None);
    let part = "/api/v1/storage/backups/one/part?file=1.seg&offset=4";
    ask("GET", "/api/v1/storage/backups/{name}/part", part, None);
    ask("DELETE", backup, "/api/v1/storage/backups/one", None);
    ask("POST", "/api/v1/publish", "/api/v1/publish", Some(quiet));
    drop(publish);
    let key = json!({ "name": "one", "role": "admin" });
    for target in [
        "/health/live",
        "/health/ready",
        "/health/storage",
        "/health/quorum",
        "/metrics",
        "/api/openapi.json",
        "/api/v1/whoami",
        "/api/v1/node",
        "/api/v1/node/load",
        "/api/v1/nodes",
        "/api/v1/drains",
        "/api/v1/bridges",
        "/api/v1/actions",
        "/api/v1/links/external",
        "/api/v1/connectors",
        "/api/v1/alarms",
        "/api/v1/stats",
        "/api/v1/stats/history",
        "/api/v1/storage",
        "/api/v1/cluster",
        "/api/v1/top",
        "/api/v1/clients",
        "/api/v1/subscriptions",
        "/api/v1/routes",
        "/api/v1/topic-metrics",
        "/api/v1/slow-subscribers",
        "/api/v1/retained",
        "/api/v1/log",
        "/api/v1/log/level",
        "/api/v1/config",
        "/api/v1/config/history",
    ] {
        ask("GET", target, target, None);
    }
    ask("GET", "/api/docs", "/api/docs", None);
    ask("DELETE", "/api/v1/cluster/nodes/{name}", "/api/v1/cluster/nodes/b", None);
    let drains = "/api/v1/drains/{name}";
    ask(
        "PUT",
        drains,
        "/api/v1/drains/c",
        Some(json!({ "rate": 20, "within_s": 60, "wait_s": 0, "to": ["a"] })),
    );
    ask("DELETE", drains, "/api/v1/drains/c", None);
    ask("DELETE", drains, "/api/v1/drains/nobody", None);
    let keep = json!({ "keep": { "c": 5 }, "pace": { "rate": 0.5 } });
    ask("POST", "/api/v1/rebalance", "/api/v1/rebalance", Some(keep));
    ask("PUT", "/api/v1/cluster/leader", "/api/v1/cluster/leader", Some(json!({ "node": "c" })));
    ask("POST", "/api/v1/cluster/balance", "/api/v1/cluster/balance", None);
    ask("POST", "/api/v1/cluster/join", "/api/v1/cluster/join", Some(json!({ "addresses": ["h:1"] })));
    // The node has the session of the client.
    let leave = json!({ "discard_sessions": true });
    ask("POST", "/api/v1/cluster/leave", "/api/v1/cluster/leave", Some(leave));
    ask("GET", "/api/v1/clients/{client_id}", "/api/v1/clients/c", None);
    ask("GET", "/api/v1/clients/{client_id}", "/api/v1/clients/nobody", None);
    let subscriptions = "/api/v1/clients/{client_id}/subscriptions";
    ask("GET", subscriptions, "/api/v1/clients/c/subscriptions", None);
    ask("POST", subscriptions, "/api/v1/clients/c/subscriptions", Some(json!({ "filter": "z", "qos": 0 })));
    ask("DELETE", subscriptions, "/api/v1/clients/c/subscriptions?filter=z", None);
    ask("GET", "/api/v1/clients/{client_id}/queue", "/api/v1/clients/c/queue?payload=true", None);
    ask("GET", "/api/v1/routes/match", "/api/v1/routes/match?topic=a/b", None);
    ask("GET", "/api/v1/retained/message", "/api/v1/retained/message?topic=a/b", None);
    ask("DELETE", "/api/v1/retained", "/api/v1/retained?filter=%23", None);
    ask("DELETE", "/api/v1/topic-metrics", "/api/v1/topic-metrics?filter=a/%23", None);
    ask("DELETE", "/api/v1/slow-subscribers", "/api/v1/slow-subscribers", None);
    ask("DELETE", "/api/v1/clients/{client_id}", "/api/v1/clients/c?session=true", None);
    let ban = json!({ "kind": "client_id", "value": "x*", "for_s": 60 });
    let question = json!({ "client_id": "c", "action": "publish", "topic": "a" });
    ask("POST", "/api/v1/rules/test", "/api/v1/rules/test", Some(question));
    let ban = ask("POST", "/api/v1/bans", "/api/v1/bans", Some(ban));
    ask("GET", "/api/v1/bans", "/api/v1/bans", None);
    let id = ban["id"].as_str().map_or_else(|| ban["id"].to_string(), str::to_owned);
    ask("DELETE", "/api/v1/bans/{id}", &format!("/api/v1/bans/{id}"), None);
    let user = json!({ "name": "u", "rates": { "bytes_per_second": 1 } });
    ask("POST", "/api/v1/users", "/api/v1/users", Some(user));
    ask("GET", "/api/v1/users", "/api/v1/users", None);
    ask("GET", "/api/v1/users/{name}", "/api/v1/users/u", None);
    ask("PUT", "/api/v1/users/{name}", "/api/v1/users/u", Some(json!({ "tenant": "t" })));
    ask("PATCH", "/api/v1/users/{name}", "/api/v1/users/u", Some(json!({ "enabled": false })));
    ask("DELETE", "/api/v1/users/{name}", "/api/v1/users/u", None);
    let users = json!({ "users": [{ "name": "u" }], "existing": "keep" });
    ask("POST", "/api/v1/users/import", "/api/v1/users/import", Some(users));
    let rule = json!({ "rule": "allow everyone all #" });
    ask("POST", "/api/v1/rules", "/api/v1/rules", Some(rule.clone()));
    ask("GET", "/api/v1/rules", "/api/v1/rules", None);
    ask("GET", "/api/v1/rules/{id}", "/api/v1/rules/1", None);
    ask("PUT", "/api/v1/rules/{id}", "/api/v1/rules/1", Some(rule.clone()));
    let position = json!({ "position": 1 });
    ask("PUT", "/api/v1/rules/{id}/position", "/api/v1/rules/1/position", Some(position));
    ask("DELETE", "/api/v1/rules/{id}", "/api/v1/rules/1", None);
    ask("PUT", "/api/v1/rules", "/api/v1/rules", Some(json!({ "rules": [rule] })));
    let (connectors, actions) = ("/api/v1/connectors/{name}", "/api/v1/actions/{name}");
    ask("PUT", connectors, "/api/v1/connectors/db", Some(json!({ "kind": "file" })));
    ask("GET", connectors, "/api/v1/connectors/db", None);
    let connector = json!({ "name": "db", "settings": { "timeout": "1s" } });
    ask("POST", "/api/v1/connectors/test", "/api/v1/connectors/test", Some(connector));
    let action = json!({ "rule": "SELECT * FROM \"a\"", "topic": "b" });
    ask("PUT", actions, "/api/v1/actions/new", Some(action.clone()));
    ask("GET", actions, "/api/v1/actions/alarms", None);
    let test = json!({ "settings": action, "message": { "topic": "a" } });
    ask("POST", "/api/v1/actions/test", "/api/v1/actions/test", Some(test));
    ask("DELETE", actions, "/api/v1/actions/new?messages=delete", None);
    ask("DELETE", connectors, "/api/v1/connectors/db", None);
    let bridges = "/api/v1/bridges/{name}";
    let bridge = json!({ "address": "h:1883", "topics": "a/# out 1" });
    ask("PUT", bridges, "/api/v1/bridges/south", Some(bridge));
    ask("GET", bridges, "/api/v1/bridges/plant", None);
    ask("DELETE", bridges, "/api/v1/bridges/south?messages=delete", None);
    let links = "/api/v1/links/external/{name}";
    let link = json!({ "secret_file": "/s", "topics": "a/#" });
    ask("PUT", links, "/api/v1/links/external/rome", Some(link));
    ask("GET", links, "/api/v1/links/external/munich", None);
    ask("DELETE", links, "/api/v1/links/external/rome", None);
    ask("PUT", "/api/v1/log/level", "/api/v1/log/level", Some(json!({ "level": "debug", "for_s": 60 })));
    let changes = json!({ "changes": { "no.such": "1" } });
    ask("POST", "/api/v1/config/validate", "/api/v1/config/validate", Some(changes));
    ask("PATCH", "/api/v1/config", "/api/v1/config?nobody", Some(json!({ "changes": { "no.such": "1" } })));
    ask("POST", "/api/v1/config/rollback", "/api/v1/config/rollback", Some(json!({ "version": 1 })));
    ask("POST", "/api/v1/config/reload", "/api/v1/config/reload", None);
    ask("GET", "/api/v1/audit", "/api/v1/audit", None);
    // The first key ends the open mode of the server, so this comes last.
    let added = server.write("POST", "/api/v1/keys", Some(&key));
    fits(&document, &document["paths"]["/api/v1/keys"]["post"], &added, "POST /api/v1/keys");
    let token = format!("Bearer {}", added.json()["token"].as_str().unwrap());
    let headers = [("Authorization", token.as_str()), ("Content-Type", "application/json")];
    for (method, template, target) in
        [("GET", "/api/v1/keys", "/api/v1/keys"), ("DELETE", "/api/v1/keys/{name}", "/api/v1/keys/one")]
    {
        let answer = server.request(method, target, &headers, None);
        fits(&document, &document["paths"][template][method.to_lowercase()], &answer, target);
        assert!(answer.status < 300);
        left.remove(&(method.to_owned(), template.to_owned()));
    }
    left.remove(&("POST".to_owned(), "/api/v1/keys".to_owned()));
    // The last key is gone, and the first account ends the open mode again.
    let ann = json!({ "name": "ann", "role": "admin", "password": "correct horse" });
    let bob = json!({ "name": "bob", "role": "viewer", "password": "correct horse" });
    let login = json!({ "name": "ann", "password": "correct horse" });
    let password = json!({ "current": "correct horse", "new": "another horse" });
    let (origin, mut cookie) = (format!("http://{}", server.address), String::from("none"));
    for (method, template, target, body) in [
        ("POST", "/api/v1/accounts", "/api/v1/accounts", Some(ann)),
        ("POST", "/api/v1/login", "/api/v1/login", Some(login)),
        ("POST", "/api/v1/accounts", "/api/v1/accounts", Some(bob)),
        ("GET", "/api/v1/accounts", "/api/v1/accounts", None),
        ("PATCH", "/api/v1/accounts/{name}", "/api/v1/accounts/bob", Some(json!({ "role": "operator" }))),
        ("DELETE", "/api/v1/accounts/{name}", "/api/v1/accounts/bob", None),
        ("POST", "/api/v1/password", "/api/v1/password", Some(password)),
        ("POST", "/api/v1/logout", "/api/v1/logout", None),
    ] {
        let headers =
            [("Cookie", cookie.as_str()), ("Origin", &origin), ("Content-Type", "application/json")];
        let body = body.map(|body| body.to_string());
        let answer = server.request(method, target, &headers, body.as_deref());
        fits(&document, &document["paths"][template][method.to_lowercase()], &answer, target);
        assert!(answer.status < 300, "{answer:?}");
        left.remove(&(method.to_owned(), template.to_owned()));
        if let Some(set) = answer.header("set-cookie") {
            cookie = set.split(';').next().unwrap().to_owned();
        }
    }
    let streams = operations(&document).into_iter().filter(Operation::is_stream);
    for stream in streams {
        left.remove(&(stream.method, stream.path));
    }
    assert_eq!(left, BTreeSet::new(), "these were not asked");
}

fn fits(document: &Value, operation: &Value, answer: &Answer, at: &str) {
    assert!(operation.is_object(), "{at}: not in the document");
    let responses = &operation["responses"];
    let status = answer.status.to_string();
    let response = if responses[&status].is_object() { &responses[&status] } else { &responses["default"] };
    let type_ = answer.header("content-type");
    let Some(content) = response["content"].as_object().filter(|content| !content.is_empty()) else {
        assert!(answer.body.is_empty(), "{at}: {} has a body: {}", answer.status, answer.text());
        return;
    };
    let known =
        content.iter().find(|(known, _)| type_.is_some_and(|found| found.starts_with(known.as_str())));
    let (_, content) =
        known.unwrap_or_else(|| panic!("{at}: {} as {type_:?}: {}", answer.status, answer.text()));
    if type_.is_some_and(|found| found.contains("json")) && content["schema"]["type"] != "object" {
        check(document, &content["schema"], &answer.json(), "")
            .unwrap_or_else(|error| panic!("{at}: {error}"));
    }
}
