//! Topic metrics, slow subscribers, and the busiest clients.

use std::time::{Duration, Instant};

use mqtt::QoS;
use serde_json::{Value, json};

use super::eventually;
use super::fixture::Fixture;

#[test]
fn messages_on_chosen_topics_are_counted() {
    let fixture = Fixture::start();
    let made = fixture.post("/api/v1/topic-metrics", json!({"filter": "a/#"})).expect(201);
    assert_eq!((&made["filter"], &made["received"]["messages"]), (&json!("a/#"), &json!(0)));
    let mut client = fixture.client("c");
    client.subscribe("a/b", QoS::AtMostOnce);
    let mut publisher = fixture.client("p");
    publisher.publish("a/b", b"four", QoS::AtMostOnce);
    publisher.publish("a/c", b"xx", QoS::AtLeastOnce);
    publisher.publish("b", b"x", QoS::AtMostOnce);
    publisher.ping();
    client.message();
    client.ping();
    let item = eventually("all are counted", || {
        let item = fixture.get("/api/v1/topic-metrics").expect(200)["items"][0].clone();
        (item["received"]["messages"] == 2 && item["sent"]["messages"] == 1).then_some(item)
    });
    assert_eq!(item["received"], json!({"messages": 2, "by_qos": [1, 1, 0], "bytes": 6}));
    assert_eq!(item["sent"], json!({"messages": 1, "by_qos": [1, 0, 0], "bytes": 4}));
    assert_eq!(item["dropped"], 0);
    assert!(item["since_at"].as_str().unwrap().ends_with('Z'));

    let detail = fixture.post("/api/v1/topic-metrics", json!({"filter": "a/#"})).problem(409);
    assert!(detail.contains("already"), "{detail}");
    assert_eq!(fixture.delete("/api/v1/topic-metrics?filter=a/%23").status, 204);
    fixture.delete("/api/v1/topic-metrics?filter=a/%23").problem(404);
    assert_eq!(fixture.get("/api/v1/topic-metrics").expect(200)["items"], json!([]));
}

#[test]
fn there_are_at_most_64_topic_metrics() {
    let fixture = Fixture::start();
    for number in 0..64 {
        fixture.post("/api/v1/topic-metrics", json!({"filter": format!("a/{number}")})).expect(201);
    }
    let detail = fixture.post("/api/v1/topic-metrics", json!({"filter": "a/64"})).problem(422);
    assert!(detail.contains("64"), "{detail}");
    fixture.post("/api/v1/topic-metrics", json!({"filter": "$share/g/a"})).problem(422);
    fixture.post("/api/v1/topic-metrics", json!({"filter": "a/#/b"})).problem(422);
}

#[test]
fn a_client_that_acknowledges_late_is_a_slow_subscriber() {
    let fixture = Fixture::with(|settings| settings.monitor.slow_threshold = Duration::from_millis(5));
    let mut client = fixture.client("sleepy");
    client.subscribe("a/b", QoS::AtLeastOnce);
    let mut quick = fixture.client("quick");
    quick.subscribe("a/+", QoS::AtMostOnce);
    fixture.post("/api/v1/publish", json!({"topic": "a/b", "qos": 1})).expect(200);
    let message = client.message();
    // As slow as necessary.
    let received = Instant::now();
    while received.elapsed() < Duration::from_millis(50) {
        std::thread::yield_now();
    }
    client.acknowledge(&message);
    client.ping();
    let slow = eventually("it is noticed", || {
        let slow = fixture.get("/api/v1/slow-subscribers").expect(200);
        (slow["items"][0]["acknowledged"] == true).then_some(slow)
    });
    let item = &slow["items"][0];
    assert_eq!((&item["client_id"], &item["topic"]), (&json!("sleepy"), &json!("a/b")));
    assert!(item["latency_ms"].as_u64().unwrap() >= 40, "{item}");
    assert!(slow["threshold_ms"].is_u64());
    assert_eq!(fixture.delete("/api/v1/slow-subscribers").status, 204);
    assert_eq!(fixture.get("/api/v1/slow-subscribers").expect(200)["items"], json!([]));
}

#[test]
fn the_busiest_are_known_after_a_window() {
    let fixture = Fixture::start();
    let first = fixture.get("/api/v1/top").expect(200);
    assert_eq!(first["publishers"], json!([]));
    let mut subscriber = fixture.client("listener");
    subscriber.subscribe("loud/#", QoS::AtMostOnce);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let publisher = std::sync::Mutex::new(fixture.client("speaker"));
    let top = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut publisher = publisher.lock().unwrap();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for _ in 0..100 {
                    publisher.publish("loud/topic", b"0123456789", QoS::AtMostOnce);
                }
                publisher.ping();
                for _ in 0..100 {
                    subscriber.message();
                }
            }
        });
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("a window is whole", || {
                let top = fixture.get("/api/v1/top?limit=1").expect(200);
                let found = |what: &str| !top[what].as_array().unwrap().is_empty();
                // Each worker counts in its own windows.
                (found("publishers") && found("subscribers") && found("topics")).then_some(top)
            })
        }));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        found.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    assert_eq!(top["publishers"][0]["client_id"], "speaker");
    assert_eq!(top["subscribers"][0]["client_id"], "listener");
    assert_eq!(top["topics"][0]["topic"], "loud/topic");
    assert!(top["window_s"].as_f64().unwrap() > 0.0 && top["sample"].as_u64().unwrap() > 1);
    let rate = |item: &Value, field: &str| item[field].as_f64().unwrap();
    let busy = &top["publishers"][0];
    assert!(rate(busy, "messages_per_s") > 0.0);
    assert!(rate(busy, "bytes_per_s") > rate(busy, "messages_per_s"), "{busy}");
}
