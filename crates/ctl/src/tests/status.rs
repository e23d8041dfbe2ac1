//! Commands `status`, `storage` and `health`.

use super::*;

#[test]
fn status_is_one_screen() {
    let mock = Mock::serve(|request| {
        Reply::json(&match request.path() {
            "/api/v1/node" => {
                json!({"name": "n1", "state": "ready", "version": "0.1.0", "commit": "abc", "uptime_s": 3725,
                "started_at": "2026-01-31T12:00:00Z", "connections_max": 100,
                "listeners": [{"name": "tcp", "address": "127.0.0.1:1883", "connections": 99}]})
            }
            "/api/v1/stats" => {
                json!({"connections": 99, "uptime_s": 100, "dropped": {"total": 3, "by_reason": {"expired": 3, "queue_full": 0}},
                "workers": [{"worker": 0, "busy_us": 50_000_000, "turn_us_p99": 1234}]})
            }
            "/api/v1/cluster" => cluster("n1", 4),
            "/api/v1/nodes" => json!({
                "items": [{"name": "n1", "state": "ready", "connections": 1234, "cluster": {"role": "core", "acknowledging": true}},
                    {"name": "n2", "state": "ready", "cluster": {"role": "core", "acknowledging": false}}],
                "next": null, "missing": ["n3"]}),
            "/api/v1/alarms" => alarms(),
            _ => json!({"name": null, "role": "admin", "open": true}),
        })
    });
    let outcome = ctl(&mock, "status");
    for part in [
        "1,234",
        "not acknowledging",
        "no answer",
        "n1 (ready)",
        "1h 2m",
        "99 of 100",
        "3 (expired 3)",
        "127.0.0.1:1883",
        "50 %",
        "1ms",
    ] {
        assert!(outcome.out.contains(part), "{part}: {}", outcome.out);
    }
    assert_eq!(outcome.notes.lines().next(), Some("! n3 is dead: start it again"), "{}", outcome.notes);
    assert!(
        outcome.notes.contains("! there is no API key") && !outcome.notes.contains("BBR"),
        "{}",
        outcome.notes
    );
    assert!(
        outcome.out.contains("replicant; nodes: 3: 2 up, 1 suspect (n3); NOT acknowledging"),
        "{}",
        outcome.out
    );
    assert!(outcome.notes.contains("no answer of n3"), "{}", outcome.notes);
    let document = ctl(&mock, "status --json").json();
    assert_eq!(
        (&document["stats"]["connections"], &document["alarms"][0]["code"]),
        (&json!(99), &json!("dead"))
    );
}

#[test]
fn storage_is_shown_with_its_rate_and_its_trouble() {
    let asked = std::sync::atomic::AtomicU64::new(0);
    let mock = Mock::serve(move |_| {
        let commits = 100 * asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Reply::json(&json!({"durability": "local-disk", "log": {
            "state": "full", "commits": commits, "segments": 5, "bytes": 5 << 20, "sync": {"p99_us": 1500},
            "recovery": {"read_s": 0.25, "truncated_bytes": 48}, "backup_dir": "/b", "backup": null}}))
    });
    let outcome = ctl(&mock, "storage");
    for part in ["full", "5, 5.0 MiB", "p99 1ms", "48 B", "directory /b"] {
        assert!(outcome.out.contains(part), "{part}: {}", outcome.out);
    }
    assert!(outcome.notes.contains("the disk is full"), "{}", outcome.notes);
    let memory = Mock::always(Reply::json(&json!({"durability": "memory", "log": null})));
    assert!(ctl(&memory, "storage").out.contains("nothing is kept on disk"));
}

#[test]
fn health_distinguishes_states() {
    let ready = Mock::always(Reply::json(&json!({"status": "ready"})));
    assert_eq!(ctl(&ready, "health").out(), "ready\n");
    let starting = Mock::always(Reply::with(503, "application/json", br#"{"status":"starting"}"#));
    let outcome = ctl(&starting, "health");
    assert_eq!((outcome.code(), outcome.error()), (1, "the node is starting".to_owned()));
}

#[test]
fn health_waits_for_a_node_that_becomes_ready() {
    let asked = std::sync::atomic::AtomicU32::new(0);
    let mock = Mock::serve(move |_| match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
        0 | 1 => Reply::with(503, "application/json", br#"{"status":"starting"}"#),
        _ => Reply::json(&json!({"status": "ready"})),
    });
    assert_eq!(ctl(&mock, "health --wait 60s").out(), "ready\n");
    assert_eq!(mock.requests().len(), 3);
}
