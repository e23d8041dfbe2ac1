//! Command `bridges`.

use super::*;

fn bridge(name: &str) -> Value {
    json!({"name": name, "enabled": true, "source": "store", "author": "ops", "changed_at": "2026-01-31T12:00:00.000Z",
        "settings": {"address": "h:1883", "topics": "a/# out 1\nb/# in 1"}, "fault": null})
}

fn listed() -> Value {
    json!({"items": [{"name": "plant", "node": "n2", "configured": true, "source": "store", "enabled": true,
        "state": "connected to h:1883", "connected": true, "connected_s": 70, "queued_messages": 3, "last_error": "timed out"}],
        "next": null})
}

#[test]
fn a_bridge_is_shown_with_its_settings_and_its_state() {
    let mock = Mock::serve(|request| match request.path() {
        "/api/v1/bridges" => Reply::json(&listed()),
        _ => Reply::json(&bridge("plant")),
    });
    let shown = ctl(&mock, "bridges plant").out();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in [
        "bridge plant",
        "state connected to h:1883",
        "node n2",
        "last error timed out",
        "source store",
        "topics = a/# out 1",
        "b/# in 1",
    ] {
        assert!(shown.lines().any(|found| words(found) == line), "{line}: {shown}");
    }
    assert_eq!(ctl(&mock, "bridges show plant").out(), shown);
    assert_eq!(ctl(&mock, "bridges show plant --json").json(), bridge("plant"));
    assert!(ctl(&mock, "bridges list").out().contains("1m 10s"), "the list");
}

#[test]
fn set_keeps_other_settings_and_a_file_replaces_them() {
    let mock = Mock::serve(|request| match (&*request.method, request.path()) {
        ("GET", "/api/v1/bridges/new") => Reply::problem(404, "not-found", "there is no bridge `new`"),
        _ => Reply::json(&bridge("plant")),
    });
    let put = |line: &str| {
        ctl(&mock, line).out();
        mock.requests().pop().unwrap().json()
    };
    let sent =
        put("bridges set plant enabled=false topics=c/# client_id=7 keep_alive=10s closes_max=3 address=");
    assert_eq!(
        sent,
        json!({"address": null, "topics": "c/#", "enabled": false, "client_id": "7", "keep_alive": "10s", "closes_max": 3})
    );
    assert_eq!(put("bridges set new address=h:1883"), json!({"address": "h:1883"}));
    let path = std::env::temp_dir().join(format!("meridian-ctl-bridge-{}", std::process::id()));
    std::fs::write(&path, "[[bridge]]\naddress = \"i:1883\"\ntls = true\n").unwrap();
    let sent = put(&format!("bridges set plant --file {}", path.display()));
    assert_eq!(sent, json!({"address": "i:1883", "tls": true}));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(ctl(&mock, "bridges set plant enabled=true").out(), "bridge plant to h:1883\n");

    let denied = Mock::always(Reply::problem(403, "forbidden", "it needs the role admin"));
    assert_eq!(ctl(&denied, "bridges set plant tls=true").code(), 5);
    for wrong in ["set plant", "set plant tls", "set plant tls=true --file x", "set", "show", "remove"] {
        let line = ["ctl", "bridges"].into_iter().chain(wrong.split(' '));
        assert!(Line::try_parse_from(line).is_err(), "{wrong}");
    }
}

#[test]
fn a_bridge_is_removed_with_or_without_its_messages() {
    let mock = Mock::always(Reply::empty());
    ctl(&mock, "--yes bridges remove plant").out();
    assert_eq!(mock.request().target, "/api/v1/bridges/plant?messages=keep");
    ctl(&mock, "--yes bridges remove plant --delete-messages").out();
    assert_eq!(mock.requests().pop().unwrap().target, "/api/v1/bridges/plant?messages=delete");
}
