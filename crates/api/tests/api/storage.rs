//! The disk and backups, as operators see them.

use api::Role;
use serde_json::json;

use crate::support::Server;

#[test]
fn the_disk_is_shown_and_its_trouble_is_health() {
    let server = Server::start();
    assert_eq!(server.get("/health/storage").status, 200);
    std::fs::write(server.directory.join("full"), "").unwrap();
    let shown = server.get("/api/v1/storage").json();
    assert_eq!(shown["durability"], "local-disk");
    assert_eq!((&shown["log"]["state"], &shown["log"]["sync"]["p99_us"]), (&json!("full"), &json!(1024)));
    assert_eq!(shown["log"]["recovery"]["truncated_bytes"], 48);
    assert_eq!(server.get("/api/v1/node").json()["storage"], "full");
    let health = server.get("/health/storage");
    assert_eq!((health.status, health.json()["status"].as_str()), (503, Some("full")));
    let ready = server.get("/health/ready");
    assert_eq!((ready.status, ready.json()["status"].as_str()), (200, Some("ready")));
    assert!(ready.json()["detail"].as_str().is_some_and(|detail| detail.contains("QoS 0")));
}

#[test]
fn a_backup_has_a_name_and_goes_nowhere_else() {
    let server = Server::start();
    let begin = |name: &str| server.write("POST", "/api/v1/storage/backups", Some(&json!({"name": name})));
    let begun = begin("2026-01-31");
    assert_eq!((begun.status, begun.json()["path"].as_str()), (202, Some("/backups/2026-01-31")));
    for bad in ["../etc", "/etc", "..", "", "a/b", "taken"] {
        let refused = begin(bad);
        assert_eq!(
            (refused.status, refused.json()["errors"][0]["name"].as_str()),
            (422, Some("name")),
            "{bad}"
        );
    }
}

#[test]
fn a_backup_is_read_in_parts_and_removed() {
    let server = Server::start();
    let files = server.get("/api/v1/storage/backups/one").json();
    assert_eq!(files["items"], json!([{ "name": "1.seg", "bytes": 10 }]));
    let part = server.get("/api/v1/storage/backups/one/part?file=1.seg&offset=7").json();
    assert_eq!(part, json!({ "bytes_base64": "Nzg5", "zeros": 0, "file_bytes": 10 }));
    let end = server.get("/api/v1/storage/backups/one/part?file=1.seg&offset=10").json();
    assert_eq!(end["bytes_base64"], "");
    for (target, status) in [
        ("/api/v1/storage/backups/two", 404),
        ("/api/v1/storage/backups/two/part?file=1.seg", 404),
        ("/api/v1/storage/backups/one/part?file=2.seg", 404),
        ("/api/v1/storage/backups/..%2Fetc", 422),
        ("/api/v1/storage/backups/one/part?file=1.seg&offset=-1", 400),
        ("/api/v1/storage/backups/one/part", 400),
    ] {
        assert_eq!(server.get(target).status, status, "{target}");
    }
    assert_eq!(server.write("DELETE", "/api/v1/storage/backups/one", None).status, 204);
    assert_eq!(server.write("DELETE", "/api/v1/storage/backups/two", None).status, 404);
}

#[test]
fn only_admins_read_and_remove_backups() {
    let server = Server::with_keys(|_| ());
    for (role, status) in [(Role::Viewer, 403), (Role::Operator, 403), (Role::Admin, 200)] {
        let token = format!("Bearer {}", server.token(role));
        let headers = [("Authorization", token.as_str()), ("Content-Type", "application/json")];
        for target in ["/api/v1/storage/backups/one", "/api/v1/storage/backups/one/part?file=1.seg"] {
            assert_eq!(server.request("GET", target, &headers, None).status, status, "{role:?} {target}");
        }
        let removed = server.request("DELETE", "/api/v1/storage/backups/one", &headers, None).status;
        assert_eq!(removed, if status == 200 { 204 } else { 403 }, "{role:?}");
    }
}

#[test]
fn only_admins_make_backups() {
    let server = Server::with_keys(|_| ());
    let body = json!({"name": "x"}).to_string();
    for (role, status) in [(Role::Viewer, 403), (Role::Operator, 403), (Role::Admin, 202)] {
        let token = format!("Bearer {}", server.token(role));
        let headers = [("Authorization", token.as_str()), ("Content-Type", "application/json")];
        let answer = server.request("POST", "/api/v1/storage/backups", &headers, Some(&body));
        assert_eq!(answer.status, status, "{role:?}");
    }
}
