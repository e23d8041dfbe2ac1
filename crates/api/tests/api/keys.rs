//! API keys while the server runs.

use std::os::unix::fs::PermissionsExt as _;

use api::{KeyError, KeyFile, NewKey, Outcome, Role};
use configstore::{Change, ConfigStore as _, Table};
use serde_json::json;

use crate::support::{Answer, Server};

fn as_token(server: &Server, token: &str, method: &str, path: &str, body: Option<&str>) -> Answer {
    let token = format!("Bearer {token}");
    server.request(method, path, &[("Authorization", &token), ("Content-Type", "application/json")], body)
}

#[test]
fn the_first_key_closes_the_server_and_the_last_one_opens_it() {
    let server = Server::start();
    let viewer = json!({ "name": "v", "role": "viewer" });
    server.write("POST", "/api/v1/keys", Some(&viewer)).problem(409, "conflict");
    let added =
        server.write("POST", "/api/v1/keys", Some(&json!({ "name": "ops", "role": "admin" }))).is(201);
    let token = added["token"].as_str().unwrap().to_owned();
    assert!(token.starts_with("mrd_") && token.len() > 40, "{token}");
    server.get("/api/v1/node").problem(401, "unauthorized");
    server.get("/health/live").is(200);

    let list = as_token(&server, &token, "GET", "/api/v1/keys", None).is(200);
    assert_eq!((&list["items"][0]["name"], &list["items"][0]["role"]), (&"ops".into(), &"admin".into()));
    assert!(list["items"][0]["last_used_at"].is_string() && list["items"][0].get("token").is_none());
    let file = std::fs::read_to_string(server.directory.join("registry.log")).unwrap();
    assert!(!file.contains(&token), "the token is in the file");

    as_token(&server, &token, "POST", "/api/v1/keys", Some(&viewer.to_string())).is(201);
    // Without an admin's key, nobody could manage the other one.
    as_token(&server, &token, "DELETE", "/api/v1/keys/ops", None).problem(409, "conflict");
    assert_eq!(as_token(&server, &token, "DELETE", "/api/v1/keys/v", None).status, 204);
    as_token(&server, &token, "DELETE", "/api/v1/keys/v", None).problem(404, "not-found");
    assert_eq!(as_token(&server, &token, "DELETE", "/api/v1/keys/ops", None).status, 204);
    server.get("/api/v1/node").is(200);
}

const KEYS: Table = Table::named("keys");

#[test]
fn a_bad_key_is_refused_with_what_to_do() {
    let server = Server::start();
    let add = |body| server.write("POST", "/api/v1/keys", Some(&body));
    for name in ["", "a b", "ä", &"x".repeat(65), "../x"] {
        add(json!({ "name": name, "role": "admin" })).problem(422, "invalid");
    }
    add(json!({ "name": "a", "role": "root" })).problem(422, "invalid");
    add(json!({ "name": "a", "role": "admin", "expires_in_s": 0 })).problem(422, "invalid");
    add(json!({ "name": "a", "role": "admin", "secret": 1 })).problem(422, "invalid");
    assert!(!server.directory.join("registry.log").exists());
    // The longest possible time is permanent.
    let far = add(json!({ "name": "a", "role": "admin", "expires_in_s": u64::MAX })).is(201);
    assert_eq!(far["expires_at"], "9999-12-31T23:59:59.000Z");
}

#[test]
fn an_expired_key_gets_its_own_error_and_does_not_open_the_server() {
    let server = Server::with_keys(|_| ());
    let config_store = configstore::LocalStore::open(&server.directory).unwrap();
    for role in Role::ALL {
        let stored = config_store.read(KEYS, role.name()).unwrap();
        let mut key: serde_json::Value = serde_json::from_str(&stored.value).unwrap();
        key["expires_at"] = "2020-01-01T00:00:00Z".into();
        config_store.propose(vec![Change::put(KEYS, role.name(), &key).unwrap()]).unwrap();
    }
    // The change is visible within about a second.
    let detail = loop {
        let answer = as_token(&server, &server.token(Role::Admin), "GET", "/api/v1/node", None);
        if answer.status == 401 {
            break answer.problem(401, "unauthorized");
        }
        assert_eq!(answer.status, 200);
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    assert!(detail.contains("expired"), "{detail}");
}

#[test]
fn a_broken_file_leaves_the_keys_that_there_are() {
    let server = Server::with_keys(|_| ());
    let path = server.directory.join("registry.log");
    let whole = std::fs::read_to_string(&path).unwrap();
    for broken in
        ["[]\n".to_owned(), whole.replacen("viewer", "operator!", 1), whole.clone() + "00000000 {}\n"]
    {
        std::fs::write(&path, &broken).unwrap();
        assert!(KeyFile::in_directory(&server.directory).read().is_err(), "{broken}");
        // Every use of the file reports its fault, and does not overwrite it.
        let new = json!({ "name": "new", "role": "viewer" }).to_string();
        let token = server.token(Role::Admin);
        let detail = as_token(&server, &token, "POST", "/api/v1/keys", Some(&new)).problem(500, "internal");
        assert!(detail.contains("registry.log"), "{detail}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), broken);
        as_token(&server, &token, "GET", "/api/v1/node", None).is(200);
    }
}

#[test]
fn a_key_made_by_another_process_is_accepted() {
    let server = Server::start();
    server.get("/api/v1/node").is(200);
    let new = NewKey { name: "second".into(), role: Role::Admin, expires_in: None };
    let (_, token, outcome) = KeyFile::in_directory(&server.directory).add(&new).unwrap();
    assert_eq!(outcome, Outcome::Done);
    server.get("/api/v1/node").problem(401, "unauthorized");
    as_token(&server, &token, "GET", "/api/v1/node", None).is(200);
}

#[test]
fn a_key_may_have_a_token_that_its_user_knows_already() {
    let server = Server::start();
    let file = KeyFile::in_directory(&server.directory);
    let new = NewKey { name: "deployment".into(), role: Role::Admin, expires_in: None };
    for bad in ["", "too short", &"x".repeat(31), &"x".repeat(257), &format!("{} y", "x".repeat(40))] {
        assert!(matches!(file.add_with_token(&new, bad), Err(KeyError::BadToken)), "{bad:?}");
    }
    assert!(!file.has("deployment").unwrap());
    let token = "0123456789abcdef0123456789abcdef";
    let (key, outcome) = file.add_with_token(&new, token).unwrap();
    assert_eq!((&*key.name, outcome), ("deployment", Outcome::Done));
    assert!(file.has("deployment").unwrap());
    as_token(&server, token, "GET", "/api/v1/node", None).is(200);
}

/// No key of an admin remains, but a user has access to the machine.
#[test]
fn a_lost_key_is_replaced_by_the_command_line_and_audited() {
    let server = Server::with_keys(|_| ());
    let file = KeyFile::in_directory(&server.directory);
    let new = |name: &str| NewKey { name: name.into(), role: Role::Admin, expires_in: None };
    let (_, token, outcome) = file.add(&new("rescue")).unwrap();
    assert_eq!(outcome, Outcome::Done);
    let entries = || as_token(&server, &token, "GET", "/api/v1/audit", None).is(200)["items"].clone();
    let entry = &entries()[0];
    assert_eq!(
        (&entry["by"], &entry["method"], &entry["status"]),
        (&json!("meridian key"), &json!("POST"), &json!(201))
    );
    assert_eq!(
        (&entry["path"], &entry["detail"]),
        (&json!("/api/v1/keys"), &json!("key rescue for a admin"))
    );
    assert!(entry["address"].as_str().unwrap().ends_with("key-wanted.json"), "{entry}");
    assert!(!entry.to_string().contains(&token));

    assert!(matches!(file.add(&new("rescue")), Err(KeyError::Exists(_))));
    assert!(matches!(file.add(&new("no name")), Err(KeyError::BadName)));
    assert!(matches!(file.remove("nobody"), Err(KeyError::Unknown(_))));
    assert_eq!(file.remove("admin").unwrap(), Outcome::Done);
    let lost = server.token(Role::Admin);
    as_token(&server, &lost, "GET", "/api/v1/node", None).problem(401, "unauthorized");
    let entry = &entries()[0];
    assert_eq!((&entry["path"], &entry["status"]), (&json!("/api/v1/keys/admin"), &json!(204)));
    assert!(!server.directory.join("key-wanted.json").exists());
}

/// Other users can write into the data directory because of wrong permissions.
#[test]
fn key_requests_of_other_users_are_removed_and_not_executed() {
    let server = Server::with_keys(|_| ());
    let path = server.directory.join("key-wanted.json");
    let next = server.directory.join("next");
    std::fs::write(&next, json!({ "remove": "viewer" }).to_string()).unwrap();
    std::fs::set_permissions(&next, std::fs::Permissions::from_mode(0o666)).unwrap();
    std::fs::rename(&next, &path).unwrap();
    while path.exists() {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    as_token(&server, &server.token(Role::Viewer), "GET", "/api/v1/node", None).is(200);
}

#[test]
fn the_file_of_earlier_versions_is_imported_once() {
    let directory = std::env::temp_dir().join(format!("meridian-keys-{}", std::process::id()));
    let file = KeyFile::in_directory(&directory);
    let new = |name: &str| NewKey { name: name.into(), role: Role::Admin, expires_in: None };
    file.add(&new("old")).unwrap();
    // The written form has times in milliseconds.
    let old = file.read().unwrap().remove(0);
    std::fs::remove_file(file.path()).unwrap();
    let legacy = directory.join("api-keys.json");
    let text = json!({ "version": 1, "keys": [old] }).to_string();
    std::fs::write(&legacy, &text).unwrap();
    assert_eq!(file.read().unwrap(), std::slice::from_ref(&old), "reading it changes nothing");
    assert!(legacy.exists() && !file.path().exists());
    file.add(&new("new")).unwrap();
    assert!(!legacy.exists());
    assert_eq!(std::fs::read_to_string(directory.join("api-keys.json.imported")).unwrap(), text);
    let names: Vec<_> = file.read().unwrap().iter().map(|key| key.name.to_string()).collect();
    assert_eq!(names, ["old", "new"]);
    for broken in ["", "[]", "{\"version\":2,\"keys\":[]}", "{\"version\":1,\"keys\":[{\"name\":\"a\"}]}"] {
        std::fs::write(&legacy, broken).unwrap();
        for error in [file.read().err(), file.add(&new("more")).err()] {
            assert!(error.unwrap().to_string().contains("api-keys.json"), "{broken}");
        }
        assert_eq!(std::fs::read_to_string(&legacy).unwrap(), broken);
    }
    std::fs::remove_dir_all(directory).unwrap();
}
