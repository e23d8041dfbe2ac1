//! Commands `actions` and `connectors`.

use super::*;

fn file(name: &str, text: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("meridian-ctl-{name}-{}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

fn action(status: &Value) -> Value {
    json!({"name": "rows", "enabled": true, "source": "store", "kind": "postgresql", "rule": "SELECT *", "connector": "db",
        "description": "", "settings": {"rule": "SELECT *", "headers": "a: 1\nb: 2"}, "author": "ops",
        "changed_at": "2026-01-31T12:00:00.000Z", "fault": null, "status": status})
}

#[test]
fn actions_are_listed_and_shown_with_their_status() {
    let status = json!({"node": "n2", "state": "retrying", "failing": true, "since_s": 70, "last_error": "refused",
        "session": "$action/rows", "queued_messages": 1234, "queued_bytes": 4096, "oldest_s": 7200, "written": 5,
        "dropped": 2, "dropped_queue": 1});
    let mock = Mock::serve(move |request| {
        Reply::json(&match request.path() {
            "/api/v1/actions" => json!({"items": [action(&status), action(&Value::Null)], "next": null}),
            _ => action(&status),
        })
    });
    let table = ctl(&mock, "actions").out();
    assert!(
        table.contains("retrying, failing") && table.contains("1,234") && table.contains("refused"),
        "{table}"
    );
    let shown = ctl(&mock, "actions rows").out();
    for line in [
        "kind        postgresql",
        "  headers = a: 1",
        "    b: 2",
        "state       retrying, failing for 1m 10s",
        "waiting     1,234 (4.0 KiB), the oldest for 2h",
        "by the queue     1",
    ] {
        assert!(shown.lines().any(|found| found.trim_end() == line), "{line}: {shown}");
    }
    assert_eq!(ctl(&mock, "actions show rows").out(), shown);
}

#[test]
fn settings_of_a_file_are_put() {
    let path = file("put", "[[action]]\nrule = \"SELECT 1\"\n");
    let mock = Mock::always(Reply::json(&json!({"rule": "SELECT 1", "kind": "http"})));
    let out = ctl(&mock, &format!("actions put rows --file {}", path.display())).out();
    assert_eq!(out, "action rows: SELECT 1\n");
    let request = mock.request();
    assert_eq!((&*request.method, &*request.target), ("PUT", "/api/v1/actions/rows"));
    assert_eq!(request.json(), json!({"rule": "SELECT 1"}));
    std::fs::write(&path, "{\"url\": \"http://h/\"}").unwrap();
    let out = ctl(&mock, &format!("connectors put web --file {}", path.display())).out();
    assert_eq!(out, "connector web: http\n");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(ctl(&mock, "actions put rows --file /nonexistent").code(), 1);
}

#[test]
fn an_action_is_removed_with_or_without_its_messages() {
    let mock = Mock::always(Reply::json(&Value::Null));
    ctl(&mock, "--yes actions remove rows").out();
    assert_eq!(mock.request().target, "/api/v1/actions/rows?messages=keep");
    ctl(&mock, "--yes actions remove rows --delete-messages").out();
    assert_eq!(mock.requests().pop().unwrap().target, "/api/v1/actions/rows?messages=delete");
    ctl(&mock, "--yes connectors remove db").out();
    assert_eq!(mock.requests().pop().unwrap().target, "/api/v1/connectors/db");
}

#[test]
fn a_test_shows_outputs_and_records_and_fails_with_the_error() {
    let mock = Mock::serve(|request| {
        Reply::json(&match (&*request.method, request.path()) {
            ("GET", _) => action(&Value::Null),
            (_, "/api/v1/connectors/test") => json!({"ok": false, "message": "no answer", "took_ms": 1500}),
            _ if request.json()["message"]["topic"] == "none" => {
                json!({"matched": false, "outputs": [], "error": null})
            }
            _ if request.json()["live"] == true => {
                json!({"matched": false, "outputs": [], "error": null, "message": null})
            }
            _ => json!({"matched": true, "outputs": [{"t": 81}], "message": {},
                "records": [{"fields": [{"name": "temp", "value": "81"}, {"name": "unit", "value": null}]}],
                "error": {"where": "template", "message": "the output has no `x`"}}),
        })
    });
    let outcome = ctl(&mock, "actions test rows --topic a --payload 81");
    assert_eq!(outcome.error(), "template: the output has no `x`");
    assert_eq!(outcome.out, "output: {\"t\":81}\nrecord:\n  temp: 81\n  unit: -\n");
    let sent = mock.requests().pop().unwrap().json();
    assert_eq!(sent["settings"]["rule"], "SELECT *");
    assert_eq!(sent["message"], json!({"topic": "a", "payload": "81", "qos": 0}));

    let out = ctl(&mock, "actions test rows --message {\"topic\":\"none\"}").out();
    assert_eq!(out, "the rule does not select this message\n");
    assert_eq!(ctl(&mock, "actions test rows --live").out(), "no message came within 10 s\n");
    let outcome = ctl(&mock, "connectors test db");
    assert_eq!((outcome.error(), outcome.code()), ("no answer (1.5s)".to_owned(), 1));
    for wrong in [
        "actions test rows",
        "actions test --topic a",
        "connectors test",
        "actions test rows --live --topic a",
    ] {
        let line = ["ctl"].into_iter().chain(wrong.split(' '));
        assert!(Line::try_parse_from(line).is_err(), "{wrong}");
    }
}

#[test]
fn connectors_are_listed_and_shown() {
    let connector = json!({"name": "db", "kind": "postgresql", "source": "file", "used_by": ["a", "b"], "author": "",
        "changed_at": null, "fault": null, "settings": {"kind": "postgresql", "address": "h:5432", "tls": true}});
    let of_one = connector.clone();
    let mock = Mock::serve(move |request| {
        Reply::json(&match request.path() {
            "/api/v1/connectors" => json!({"items": [connector], "next": null}),
            _ => of_one.clone(),
        })
    });
    let table = ctl(&mock, "connectors").out();
    assert!(table.contains("h:5432") && table.contains("a, b"), "{table}");
    let shown = ctl(&mock, "connectors db").out();
    assert!(shown.contains("used by     a, b") && shown.contains("  tls = true"), "{shown}");
}
