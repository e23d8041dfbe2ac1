//! Bans: the clients that they refuse and disconnect, and their duration.

use mqtt::{ReasonCode, Version};
use serde_json::{Value, json};

use super::client::{Got, With};
use super::eventually;
use super::fixture::Fixture;

fn username(username: &'static str) -> With {
    With { username: Some(username), ..With::default() }
}

#[test]
fn a_ban_disconnects_and_refuses_its_clients() {
    for (kind, value) in [
        ("client_id", "eve-1"),
        ("client_id", "eve*"),
        ("username", "eve"),
        ("username", "e*"),
        ("address", "127.0.0.1"),
        ("address", "127.0.0.0/8"),
        ("address", "::ffff:127.0.0.1"),
    ] {
        let fixture = Fixture::start();
        let mut eve = fixture.client_with("eve-1", username("eve"));
        let made =
            fixture.post("/api/v1/bans", json!({"kind": kind, "value": value, "reason": "loud"})).expect(201);
        assert_eq!(made["kind"], kind, "{value}");
        assert_eq!(
            (&made["reason"], &made["by"], &made["until"]),
            (&json!("loud"), &json!(""), &Value::Null)
        );
        assert_eq!(eve.next(), Got::Disconnect(ReasonCode::AdministrativeAction), "{value}");
        assert_eq!(eve.next(), Got::End);
        assert_eq!(fixture.try_client("eve-1", username("eve")).err(), Some(ReasonCode::Banned));
        let old = With { version: Version::V3_1_1, ..username("eve") };
        assert_eq!(
            fixture.try_client("eve-1", old).err(),
            Some(ReasonCode::NotAuthorized),
            "3.1.1 has no 0x8A"
        );

        let id = made["id"].as_str().unwrap();
        assert_eq!(fixture.get("/api/v1/bans").expect(200)["items"][0]["id"], id);
        assert_eq!(fixture.delete(&format!("/api/v1/bans/{id}")).status, 204);
        fixture.client_with("eve-1", username("eve"));
        fixture.delete(&format!("/api/v1/bans/{id}")).problem(404);
    }
}

#[test]
fn clients_that_do_not_match_a_ban_stay() {
    let fixture = Fixture::start();
    let mut adam = fixture.client_with("adam", username("adam"));
    for (kind, value) in [
        ("client_id", "ada"),
        ("client_id", "adamant*"),
        ("client_id", "eve*"),
        ("username", "ad"),
        ("address", "10.0.0.0/8"),
        ("address", "::/0"),
    ] {
        fixture.post("/api/v1/bans", json!({"kind": kind, "value": value})).expect(201);
    }
    // Clients are checked in order, so all have been checked when the last one is disconnected.
    let mut eve = fixture.client_with("probe", username("eve"));
    fixture.post("/api/v1/bans", json!({"kind": "username", "value": "eve"})).expect(201);
    assert_eq!(eve.next(), Got::Disconnect(ReasonCode::AdministrativeAction));
    adam.ping();
    fixture.client_with("other", username("other"));
    assert_eq!(fixture.all("/api/v1/bans", 2).len(), 7);
}

#[test]
fn a_ban_disconnects_many_clients() {
    let fixture = Fixture::start();
    let mut clients: Vec<_> = (0..200).map(|number| fixture.client(&format!("bot-{number}"))).collect();
    let mut bystander = fixture.client("human");
    fixture.post("/api/v1/bans", json!({"kind": "client_id", "value": "bot-*"})).expect(201);
    for client in &mut clients {
        assert_eq!(client.next(), Got::Disconnect(ReasonCode::AdministrativeAction));
    }
    bystander.ping();
}

#[test]
fn a_ban_ends_at_its_time() {
    let fixture = Fixture::start();
    let made =
        fixture.post("/api/v1/bans", json!({"kind": "client_id", "value": "c", "for_s": 1})).expect(201);
    assert!(made["until"].as_str().unwrap() > made["created_at"].as_str().unwrap());
    assert_eq!(fixture.try_client("c", With::default()).err(), Some(ReasonCode::Banned));
    eventually("the ban is over", || fixture.try_client("c", With::default()).ok());
    assert_eq!(fixture.get("/api/v1/bans").expect(200)["items"], json!([]));
}

#[test]
fn a_ban_is_written_down_before_it_is_answered() {
    let fixture = Fixture::start();
    fixture.post("/api/v1/bans", json!({"kind": "client_id", "value": "c"})).expect(201);
    let config_store = configstore::LocalStore::read_only(fixture.data_dir()).unwrap();
    let again = auth::Bans::open(std::sync::Arc::new(config_store), 10).unwrap();
    assert_eq!(again.len(), 1);
}

#[test]
fn an_invalid_ban_is_refused_with_the_remedy() {
    let fixture = Fixture::start();
    #[track_caller]
    fn refused(fixture: &Fixture, body: Value, status: u16, says: &str) {
        let detail = fixture.post("/api/v1/bans", body).problem(status);
        assert!(detail.contains(says), "{detail}");
    }
    let refused = |body, status, says: &str| refused(&fixture, body, status, says);
    refused(json!({"kind": "nick", "value": "x"}), 422, "expected client_id, username or address");
    refused(json!({"kind": "client_id", "value": ""}), 422, "empty");
    refused(json!({"kind": "username", "value": "*"}), 422, "every client");
    refused(json!({"kind": "address", "value": "10.0.0.1/8"}), 422, "10.0.0.0/8");
    refused(json!({"kind": "address", "value": "example.org"}), 422, "192.0.2.0/24");
    refused(json!({"kind": "client_id", "value": "c", "for_s": 0}), 422, "for_s: expected 1 to");
    refused(json!({"kind": "client_id", "value": "c", "for_s": -1}), 422, "for_s");
    refused(json!({"kind": "client_id", "value": "c", "reason": "x".repeat(1025)}), 422, "1024");
    refused(json!({"kind": "client_id", "value": "c", "ids": 1}), 422, "unknown field");
    refused(json!({"kind": "client_id"}), 422, "value");
    fixture.post("/api/v1/bans", json!({"kind": "client_id", "value": "c"})).expect(201);
    refused(json!({"kind": "client_id", "value": "c"}), 409, "has the same target");
    for number in 1..100 {
        fixture.post("/api/v1/bans", json!({"kind": "client_id", "value": format!("c{number}")})).expect(201);
    }
    refused(json!({"kind": "client_id", "value": "d"}), 422, "auth.bans_max");
    fixture.delete("/api/v1/bans/nonsense").problem(404);
    fixture.delete("/api/v1/bans/-1").problem(404);
    assert_eq!(fixture.all("/api/v1/bans", 7).len(), 100);
}
