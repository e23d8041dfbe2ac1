//! The audit log, as the API shows it.

use serde_json::json;

use crate::support::Server;

#[test]
fn requests_for_changes_are_audited_done_or_not() {
    let server = Server::with_keys(|_| ());
    let token = format!("Bearer {}", server.token(api::Role::Admin));
    let viewer = format!("Bearer {}", server.token(api::Role::Viewer));
    let json = ("Content-Type", "application/json");
    let put = |token: &str| {
        let body = json!({ "level": "debug" }).to_string();
        server.request("PUT", "/api/v1/log/level", &[("Authorization", token), json], Some(&body))
    };
    put(&token).is(200);
    put(&viewer).problem(403, "forbidden");
    put("Bearer nothing").problem(401, "unauthorized");
    let strange = [("Authorization", token.as_str()), json, ("Origin", "http://evil.example")];
    server.request("DELETE", "/api/v1/clients/a%2Fb?session=true", &strange, None).problem(403, "forbidden");
    server.request("GET", "/api/v1/node", &[("Authorization", &token)], None).is(200);

    let audit = server.request("GET", "/api/v1/audit?limit=10", &[("Authorization", &token)], None).is(200);
    let rows: Vec<_> = audit["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            (
                row["status"].as_u64().unwrap(),
                row["by"].as_str(),
                row["method"].as_str().unwrap(),
                row["path"].as_str().unwrap(),
            )
        })
        .collect();
    let expected = [
        (403, None, "DELETE", "/api/v1/clients/a%2Fb?session=true"),
        (401, None, "PUT", "/api/v1/log/level"),
        (403, Some("viewer"), "PUT", "/api/v1/log/level"),
        (200, Some("admin"), "PUT", "/api/v1/log/level"),
    ];
    assert_eq!(rows, expected);
    assert!(audit["items"][3]["detail"].as_str().unwrap().contains("debug"));
    assert!(audit["items"][2]["detail"].as_str().unwrap().contains("operator"));
    assert!(audit["items"][0]["address"].as_str().unwrap().starts_with("127.0.0.1:"));
}

#[test]
fn the_file_has_it_when_the_server_has_stopped() {
    let mut server = Server::with_keys(|_| ());
    let token = format!("Bearer {}", server.token(api::Role::Admin));
    let headers = [("Authorization", token.as_str()), ("Content-Type", "application/json")];
    let body = json!({ "level": "loud" }).to_string();
    server.request("PUT", "/api/v1/log/level", &headers, Some(&body)).problem(422, "invalid");
    server.stop_http();
    let text = std::fs::read_to_string(server.directory.join("audit.log")).unwrap();
    let line: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
    assert_eq!((&line["status"], &line["role"]), (&422.into(), &"admin".into()));
    assert!(!text.contains("mrd_"));
}
