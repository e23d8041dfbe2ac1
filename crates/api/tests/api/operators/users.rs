//! The user database: its users, their visible fields, and the effect of a change on connected clients.

use mqtt::ReasonCode;
use serde_json::{Value, json};

use super::client::{Got, With};
use super::fixture::Fixture;

const HASH: &str = "$argon2id$v=19$m=64,t=1,p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZg";

fn alice() -> With {
    With { username: Some("alice"), password: Some("secret"), ..With::default() }
}

#[test]
fn a_user_is_made_shown_changed_and_removed_and_the_password_is_never_seen() {
    let fixture = Fixture::start();
    let body = json!({
        "name": "alice", "password": "hunter2", "scram_iterations": 4096, "tenant": "acme",
        "attributes": {"class": "gold"}, "rates": {"messages_per_second": 5},
        "rules": ["allow everyone publish a/#"], "description": "the first"
    });
    let made = fixture.post("/api/v1/users", body.clone()).expect(201);
    assert_eq!(
        (&made["has_password"], &made["has_scram"], &made["enabled"]),
        (&json!(true), &json!(true), &json!(true))
    );
    assert_eq!((&made["tenant"], &made["attributes"]["class"]), (&json!("acme"), &json!("gold")));
    assert_eq!(
        made["rates"],
        json!({"messages_per_second": 5, "messages_burst": 0, "bytes_per_second": 0, "bytes_burst": 0})
    );
    fixture.post("/api/v1/users", body).problem(409);
    let shown = fixture.get("/api/v1/users/alice").expect(200);
    assert_eq!(shown, made);
    let journal = std::fs::read_to_string(fixture.data_dir().join("registry.log")).unwrap();
    for text in [shown.to_string(), journal] {
        assert!(!text.contains("hunter2"), "{text}");
    }
    assert!(!shown.to_string().contains("argon2"), "{shown}");

    let replaced = json!({"superuser": true, "description": "still"});
    let put = fixture.http().request("PUT", "/api/v1/users/alice", Some(replaced)).expect(200);
    assert_eq!(
        (&put["superuser"], &put["tenant"], &put["attributes"]),
        (&json!(true), &Value::Null, &json!({}))
    );
    assert_eq!(
        (&put["has_password"], &put["created_at"]),
        (&json!(true), &made["created_at"]),
        "what is not sent stays"
    );
    let patched = fixture
        .http()
        .request("PATCH", "/api/v1/users/alice", Some(json!({"password": "other"})))
        .expect(200);
    assert_eq!(
        (&patched["superuser"], &patched["has_scram"]),
        (&json!(true), &json!(false)),
        "its keys were the old one's"
    );
    assert_eq!(fixture.delete("/api/v1/users/alice").status, 204);
    fixture.get("/api/v1/users/alice").problem(404);
    fixture.delete("/api/v1/users/alice").problem(404);
    let audit = fixture.get("/api/v1/audit").expect(200).to_string();
    assert!(audit.contains("alice") && !audit.contains("hunter2"), "{audit}");
}

#[test]
fn a_change_disconnects_its_user() {
    let changes = [
        ("PATCH", "", json!({"password": "new"}), true),
        ("PATCH", "", json!({"enabled": false}), true),
        ("PATCH", "", json!({}), false),
        ("PUT", "", json!({"description": "words alone"}), false),
        ("PUT", "", json!({"tenant": "acme"}), true),
        ("PATCH", "?keep_connected=true", json!({"password": "new"}), false),
        ("DELETE", "?keep_connected=true", Value::Null, false),
        ("DELETE", "", Value::Null, true),
    ];
    for (method, query, body, goes) in changes {
        let fixture = Fixture::start();
        for name in ["alice", "bob"] {
            fixture.post("/api/v1/users", json!({"name": name, "password": "secret"})).expect(201);
        }
        let (mut hers, mut other) = (fixture.client_with("a", alice()), fixture.client("b"));
        let mut bobs = fixture.client_with("c", With { username: Some("bob"), ..alice() });
        let body = (!body.is_null()).then_some(body);
        let status = if method == "DELETE" { 204 } else { 200 };
        let answer = fixture.http().request(method, &format!("/api/v1/users/alice{query}"), body);
        assert_eq!(answer.status, status, "{method}{query}");
        if goes {
            assert_eq!(hers.next(), Got::Disconnect(ReasonCode::AdministrativeAction), "{method}{query}");
        }
        // When bob is disconnected, all clients have been checked.
        assert_eq!(fixture.delete("/api/v1/users/bob").status, 204);
        assert_eq!(bobs.next(), Got::Disconnect(ReasonCode::AdministrativeAction));
        if !goes {
            hers.ping();
        }
        other.ping();
    }
}

#[test]
fn users_are_listed_in_pages_and_found_by_a_part() {
    let fixture = Fixture::start();
    for n in 0..7 {
        let body = json!({"name": format!("sensor-{n}"), "description": if n == 3 { "Cellar" } else { "" }});
        fixture.post("/api/v1/users", body).expect(201);
    }
    fixture.post("/api/v1/users", json!({"name": "adam", "tenant": "cellars"})).expect(201);
    let names = |path: &str, limit| -> Vec<String> {
        fixture.all(path, limit).iter().map(|user| user["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("/api/v1/users", 3).len(), 8);
    assert_eq!(names("/api/v1/users", 1)[..2], ["adam", "sensor-0"]);
    assert_eq!(names("/api/v1/users?search=cellar", 1), ["adam", "sensor-3"]);
    assert_eq!(names("/api/v1/users?search=SOR-5", 9), ["sensor-5"]);
    fixture.get("/api/v1/users?cursor=x").problem(400);
}

#[test]
fn many_users_are_imported_as_json_or_csv() {
    let fixture = Fixture::start();
    let import = |body| fixture.post("/api/v1/users/import", body);
    let users =
        json!([{"name": "a", "password": "secret"}, {"name": "b", "password": "x", "superuser": true}]);
    let done = import(json!({"users": users})).expect(200);
    assert_eq!(done, json!({"added": 2, "replaced": 0, "kept": 0}));
    import(json!({"users": users})).problem(409);
    let csv =
        format!("name,password_hash,tenant,description\r\na,{HASH},acme,\"one, two\"\nc,\"{HASH}\",,\n");
    let csv = csv.replace(&format!("a,{HASH}"), &format!("a,\"{HASH}\""));
    let done = import(json!({"csv": csv, "existing": "keep"})).expect(200);
    assert_eq!((&done["added"], &done["kept"]), (&json!(1), &json!(1)));
    let mut b =
        fixture.client_with("x", With { username: Some("b"), password: Some("x"), ..With::default() });
    let mut a =
        fixture.client_with("y", With { username: Some("a"), password: Some("secret"), ..With::default() });
    let done = import(json!({"csv": csv, "existing": "replace"})).expect(200);
    assert_eq!(done, json!({"added": 0, "replaced": 2, "kept": 0}));
    assert_eq!(a.next(), Got::Disconnect(ReasonCode::AdministrativeAction));
    b.ping();
    assert_eq!(fixture.get("/api/v1/users/a").expect(200)["description"], "one, two");
    let says = |body, expected: &str| {
        let detail = import(body).problem(422);
        assert!(detail.contains(expected), "{detail}");
    };
    says(json!({"csv": "name\nz\n", "users": users}), "either");
    says(json!({"csv": "name,secret\nz,hunter2"}), "unknown column `secret`");
    says(json!({"users": [{"name": "z"}, {"name": "z"}]}), "twice");
    says(json!({"users": [{"name": "z", "tenant": "#"}]}), "user `z`: tenant");
    let many: Vec<Value> = (0..201).map(|n| json!({"name": format!("m{n}"), "password": "x"})).collect();
    says(json!({"users": many}), "200 passwords");
    fixture.get("/api/v1/users/z").problem(404);
}

#[test]
fn an_invalid_user_is_refused_and_its_password_is_not_repeated() {
    let fixture = Fixture::start();
    #[track_caller]
    fn refused(fixture: &Fixture, body: Value, says: &str) {
        let detail = fixture.post("/api/v1/users", body).problem(422);
        assert!(detail.contains(says) && !detail.contains("hunter2"), "{detail}");
    }
    let refused = |body, says: &str| refused(&fixture, body, says);
    refused(json!({"password": "hunter2"}), "name: it is missing");
    refused(json!({"name": ""}), "name: it is empty");
    refused(json!({"name": "a", "password": ["hunter2"]}), "expected a text");
    refused(json!({"name": "a", "password": ""}), "password: it may have 1 to");
    refused(json!({"name": "a", "password_hash": "hunter2"}), "password_hash: expected a hash");
    refused(
        json!({"name": "a", "password": "hunter2", "password_hash": HASH}),
        "either a password or its hash",
    );
    refused(json!({"name": "a", "password": "hunter2", "scram_iterations": 1}), "scram: ");
    refused(json!({"name": "a", "scram_iterations": 4096}), "scram_iterations: ");
    refused(json!({"name": "a", "tenant": "a/#"}), "tenant: ");
    refused(json!({"name": "a", "rules": ["nonsense"]}), "rules: rule 1: ");
    refused(json!({"name": "a", "admin": true}), "unknown field");
    refused(json!({"name": "a", "rates": {"messages": 1}}), "unknown field");
    for n in 0..50 {
        fixture.post("/api/v1/users", json!({"name": format!("u{n}")})).expect(201);
    }
    let detail = fixture.post("/api/v1/users", json!({"name": "one more"})).problem(409);
    assert!(detail.contains("auth.users_max"), "{detail}");
    let renamed = fixture.http().request("PUT", "/api/v1/users/u1", Some(json!({"name": "u2"})));
    assert!(renamed.problem(422).contains("renamed"));
    fixture.http().request("PATCH", "/api/v1/users/nobody", Some(json!({"password": "x"}))).problem(404);
}
