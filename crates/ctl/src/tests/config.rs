//! Command `config`, and backups.

use super::*;

#[test]
fn a_backup_is_waited_for_and_its_failure_reported() {
    for (state, code) in [("done", 0), ("failed", 1)] {
        let mock = Mock::serve(move |request| {
            let backup = |state: &str| json!({"name": "b", "path": "/b/b", "state": state, "segments": 3, "bytes": 2048, "error": "no room"});
            Reply::json(&match &request.method[..] {
                "POST" => {
                    assert_eq!(
                        (request.path(), request.json()),
                        ("/api/v1/storage/backups", json!({"name": "b"}))
                    );
                    backup("running")
                }
                _ => json!({"log": {"backup": backup(state)}}),
            })
        });
        let outcome = ctl(&mock, "storage backup b");
        assert_eq!(outcome.code(), code);
        let (text, part) = match code {
            0 => (outcome.out(), "/b/b: 3 segments, 2.0 KiB"),
            _ => (outcome.error(), "no room"),
        };
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn configuration_is_shown_changed_and_checked() {
    let mock = Mock::serve(|request| {
        Reply::json(&match (&request.method[..], request.path()) {
            ("GET", "/api/v1/config") => {
                json!({"version": 3, "file": null, "refused": [{"name": "a.b", "detail": "no such setting"}], "settings": [
                    {"name": "mqtt.qos_max", "value": "1", "default": "2", "source": "runtime", "doc": "Highest QoS.", "reloadable": true, "choices": null, "range": "0..=2",
                     "cluster": {"value": "0", "by": "ops", "comment": "", "at": "2026-11-22T12:00:00.000Z"}},
                    {"name": "mqtt.retain", "value": "true", "default": "true", "source": "default"},
                ]})
            }
            ("PATCH", _) => {
                json!({"version": 4, "changed": [{"name": "mqtt.qos_max", "before": "1", "after": "2"}], "overridden": [{"name": "a.b", "detail": "overridden"}]})
            }
            (_, "/api/v1/config/validate") => {
                json!({"valid": false, "problems": [{"name": "x", "detail": "no such setting"}]})
            }
            _ => json!({"changed": [], "pending": ["edge.workers"], "files": ["m.toml", "server.crt"]}),
        })
    });
    let changed = ctl(&mock, "config").out();
    assert!(changed.contains("mqtt.qos_max") && !changed.contains("mqtt.retain"), "{changed}");
    assert!(ctl(&mock, "config show mqtt").out().contains("mqtt.retain"));
    assert!(ctl(&mock, "config show mqtt.qos_max").out().contains("Highest QoS."));
    let outcome = ctl(&mock, "config show mqtt.qos_mac");
    assert!(outcome.error().contains("is mqtt.qos_max meant?"), "{}", outcome.error());
    let text = ctl(&mock, "config set mqtt.qos_max=2 a.b=c=d --comment why").out();
    assert_eq!(text, "mqtt.qos_max: 1 -> 2\na.b: overridden\nthis is version 4\n");
    let change = mock.requests().pop().unwrap();
    let sent = json!({"changes": {"mqtt.qos_max": "2", "a.b": "c=d"}, "scope": "node", "comment": "why"});
    assert_eq!(change.json(), sent);
    ctl(&mock, "config unset mqtt.qos_max --cluster").out();
    let sent = mock.requests().pop().unwrap().json();
    assert_eq!((&sent["changes"], &sent["scope"]), (&json!({"mqtt.qos_max": null}), &json!("cluster")));
    let replicated = ctl(&mock, "config get --cluster");
    assert!(replicated.notes.contains("agrees on a.b, and this node cannot apply it: no such setting"));
    let replicated = replicated.out();
    let line = replicated.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(line[..5], ["mqtt.qos_max", "0", "1", "runtime", "ops"]);
    assert!(!replicated.contains("mqtt.retain"));
    let outcome = ctl(&mock, "config validate x=1");
    assert_eq!(outcome.code(), 1);
    assert!(outcome.error().contains("x: no such setting"));
    let text = ctl(&mock, "config reload").out();
    assert_eq!(
        text,
        "no setting changed\nread again: m.toml, server.crt\nafter the next start: edge.workers\n"
    );
}

#[test]
fn a_cluster_change_without_effect_here_gives_the_reason() {
    let held = json!([{"name": "a.b", "detail": "this node goes by --set, which goes over what the cluster agrees on"}]);
    let mock = Mock::always(Reply::json(&json!({"version": 4, "changed": [], "overridden": held})));
    let text = ctl(&mock, "config set --cluster a.b=1").out();
    assert_eq!(
        text,
        "nothing changes on this node\na.b: this node goes by --set, which goes over what the cluster agrees on\nthis is version 4\n"
    );
    let mock = Mock::always(Reply::json(&json!({"version": 4, "changed": [], "overridden": []})));
    assert_eq!(ctl(&mock, "config set a.b=1").out(), "nothing changed\nthis is version 4\n");
}
