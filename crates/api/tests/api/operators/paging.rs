//! Long listings, page by page.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::client::{Client, With};
use super::fixture::Fixture;

fn counts(items: &[Value], field: &str) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for item in items {
        *counts.entry(item[field].as_str().unwrap().to_owned()).or_default() += 1;
    }
    counts
}

/// 300 connected clients and 2,700 that are not: both ends of a connection are descriptors of this process.
#[test]
fn each_of_3000_clients_is_on_one_page_when_nothing_changes() {
    let fixture = Fixture::start();
    let _connected: Vec<Client> = (0..300).map(|number| fixture.client(&format!("here-{number}"))).collect();
    for number in 0..2700 {
        fixture.absent(&format!("away-{number}"), &[]);
    }
    for limit in [1000, 137] {
        let items = fixture.all("/api/v1/clients", limit);
        let counts = counts(&items, "client_id");
        assert_eq!((items.len(), counts.len()), (3000, 3000), "limit {limit}");
    }
    // A search finds a client deep in the pages.
    let found = fixture.all("/api/v1/clients?search=away-2345", 1);
    assert_eq!(found.len(), 1);
}

#[test]
fn clients_that_stay_are_listed_once_while_others_come_and_go() {
    let fixture = Fixture::start();
    let _stay: Vec<Client> = (0..100).map(|number| fixture.client(&format!("stay-{number}"))).collect();
    for number in 0..100 {
        fixture.absent(&format!("stay-away-{number}"), &[]);
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !done.load(Ordering::Relaxed) {
                let expiry = if number % 2 == 0 { 3600 } else { 0 };
                let client =
                    fixture.client_with(&format!("other-{number}"), With { expiry, ..With::default() });
                client.disconnect();
                number += 1;
            }
        });
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for limit in [7, 50, 1000] {
                let items = fixture.all("/api/v1/clients?search=stay", limit);
                let counts = counts(&items, "client_id");
                assert_eq!(counts.len(), 200, "limit {limit}");
                let twice: Vec<_> = counts.iter().filter(|(_, count)| **count != 1).collect();
                assert!(twice.is_empty(), "{twice:?}");
            }
        }));
        done.store(true, Ordering::Relaxed);
        checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn a_cursor_belongs_to_one_listing_of_one_run() {
    let fixture = Fixture::start();
    for name in ["a", "b", "c"] {
        fixture.absent(name, &["x", "y"]);
    }
    let page = fixture.get("/api/v1/clients?limit=1").expect(200);
    let next = page["next"].as_str().unwrap();
    let detail = fixture.get(&format!("/api/v1/subscriptions?cursor={next}")).problem(400);
    assert!(detail.contains("another listing"), "{detail}");
    let detail = Fixture::start().get(&format!("/api/v1/clients?cursor={next}")).problem(400);
    assert!(detail.contains("restarted"), "{detail}");
    for bad in ["x", "e30", "%00", "AAAA", ""] {
        for path in ["clients", "subscriptions", "clients/a/subscriptions", "retained", "bans"] {
            fixture.get(&format!("/api/v1/{path}?cursor={bad}")).problem(400);
        }
    }
}

#[test]
fn a_listing_of_a_hundred_subscriptions_each_is_whole() {
    let fixture = Fixture::start();
    let filters: Vec<String> = (0..100).map(|number| format!("a/{number}/#")).collect();
    let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
    for client in 0..5 {
        fixture.absent(&format!("away-{client}"), &filters);
    }
    let mut here = fixture.client("here");
    for filter in &filters {
        here.subscribe(filter, mqtt::QoS::AtMostOnce);
    }
    for limit in [1000, 33] {
        let items = fixture.all("/api/v1/subscriptions", limit);
        let mut pairs: Vec<_> =
            items.iter().map(|item| (item["client_id"].to_string(), item["filter"].to_string())).collect();
        pairs.sort();
        pairs.dedup();
        assert_eq!((items.len(), pairs.len()), (600, 600), "limit {limit}");
        for client in ["here", "away-3"] {
            let items = fixture.all(&format!("/api/v1/clients/{client}/subscriptions"), limit);
            assert_eq!((items.len(), counts(&items, "filter").len()), (100, 100), "limit {limit}");
        }
        assert_eq!(fixture.all("/api/v1/subscriptions?client_id=here&match=a/7/x", limit).len(), 1);
        assert_eq!(fixture.all("/api/v1/subscriptions?match=a/7/x", limit).len(), 6);
    }
}

#[test]
fn retained_messages_are_listed_and_deleted_over_many_pages() {
    let fixture = Fixture::start();
    let message = |number| json!({"topic": format!("a/{number}"), "payload": "x", "retain": true});
    for hundred in 0..15 {
        let messages: Vec<_> = (hundred * 100..hundred * 100 + 100).map(message).collect();
        fixture.post("/api/v1/publish/batch", json!({ "messages": messages })).expect(200);
    }
    fixture.post("/api/v1/publish", json!({"topic": "b", "payload": "x", "retain": true})).expect(200);
    for limit in [1000, 77] {
        let items = fixture.all("/api/v1/retained?filter=a/%2B", limit);
        assert_eq!((items.len(), counts(&items, "topic").len()), (1500, 1500), "limit {limit}");
    }
    assert_eq!(fixture.delete("/api/v1/retained?filter=a/%23").expect(200)["deleted"], 1500);
    let left = fixture.all("/api/v1/retained", 10);
    assert_eq!((left.len(), &left[0]["topic"]), (1, &json!("b")));
}
