//! Command `links external`.

use super::*;

fn taking(origin: &str, connected: bool) -> Value {
    json!({"origin": origin, "node": "n2", "state": "connected to m:1883", "connected": connected, "failing": !connected,
        "connected_s": 70, "address": "m:1883", "session": "$linked/munich", "filters_wanted": 1200,
        "filters_subscribed": 1199, "filters_refused": 1, "filters_broader": 0, "broader": [], "stale_filters": 0, "messages": 5000,
        "bytes": 2048, "in_flight": 0, "refused": 0, "postponed": 4, "dropped": {"too_large": 3, "looped": 1, "no_room": 0},
        "reconnects": 2, "failed_attempts": 9, "remote_sessions_lost": 0, "restores": 1,
        "last_error": if connected { Value::Null } else { json!("connection refused") }})
}

fn link(name: &str, taking: Value, giving: Value) -> Value {
    json!({"name": name, "enabled": true, "source": "store", "own_name": "berlin", "address": "m:1883",
        "topics": ["plant/#", "alarms/#"], "export": ["#"], "author": "ops", "changed_at": "2026-01-31T12:00:00.000Z",
        "settings": {"address": "m:1883", "topics": "plant/#\nalarms/#", "secret_file": "/s"}, "fault": null,
        "taking": taking, "giving": giving, "refusal": null})
}

fn giving(connected: bool) -> Value {
    json!([{"origin": "berlin", "node": "n3", "session": "$link/munich", "connected": connected,
        "connection_node": if connected { json!("n1") } else { Value::Null }, "address": null, "filters": 7,
        "queued_messages": 42, "queued_bytes": 4096, "oldest_s": 61, "in_flight": 3, "dropped": 5}])
}

#[test]
fn links_are_listed_with_both_directions() {
    let mut refused = link("rome", json!([]), json!([]));
    (refused["topics"], refused["address"]) = (json!([]), json!(""));
    refused["refusal"] =
        json!({"why": "the clock differs by 900 s", "count": 2, "at": "2026-01-31T12:00:00.000Z"});
    let mut off = link("oslo", json!([]), json!([]));
    off["enabled"] = false.into();
    let links = json!({"items": [
        link("munich", json!([taking("munich", true), taking("vienna", true)]), giving(false)),
        link("paris", json!([taking("paris", false)]), json!([])), refused, off], "next": null});
    let mock = Mock::always(Reply::json(&links));
    let table = ctl(&mock, "links external").out();
    let cells = |line: usize| -> Vec<String> {
        table
            .lines()
            .nth(line)
            .unwrap()
            .split("  ")
            .map(str::trim)
            .filter(|it| !it.is_empty())
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(
        cells(0),
        ["LINK", "STATE", "TAKES", "IN", "GIVES", "QUEUED", "DROPPED", "SOURCE", "LAST ERROR"]
    );
    let munich = ["munich", "connected, other side away", "2,398/2,400", "10,000", "7", "42", "13", "store"];
    assert_eq!(cells(1), munich);
    assert_eq!(cells(2)[..2], ["paris", "failing"]);
    assert_eq!(cells(2).last().unwrap(), "connection refused");
    assert_eq!(cells(3)[..3], ["rome", "other side not seen", "-"]);
    assert_eq!(cells(3).last().unwrap(), "refused the other side: the clock differs by 900 s");
    assert_eq!(cells(4)[1], "disabled");
    assert_eq!(ctl(&mock, "links external list --json").json()["items"], links["items"]);
    let none = ctl(&Mock::always(Reply::json(&json!({"items": [], "next": null}))), "links external");
    assert!(none.notes.contains("no links to other clusters"), "{}", none.notes);
}

#[test]
fn a_link_is_shown_with_all_its_parts() {
    let mut of_munich = link("munich", json!([taking("munich", true)]), giving(true));
    of_munich["refusal"] = json!({"node": "n2", "at": "2026-01-31T12:00:00.000Z", "address": "10.0.0.9:5", "why": "wrong secret",
        "count": 4});
    let mock = Mock::always(Reply::json(&of_munich));
    let shown = ctl(&mock, "links external munich").out();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in [
        "state connected",
        "topics = plant/#",
        "alarms/#",
        "taking messages of munich",
        "state connected to m:1883 for 1m 10s",
        "filters 1,199 of 1,200 wanted",
        "refused for now 4",
        "dropped 3 too_large, 1 looped",
        "restored from a backup 1",
        "giving messages of berlin",
        "other cluster connected at n1",
        "session $link/munich on n3",
        "last refused 2026-01-31 12:00:00Z from 10.0.0.9:5 at n2",
        "because wrong secret",
    ] {
        assert!(shown.lines().any(|found| words(found) == line), "{line}: {shown}");
    }
    assert!(!shown.contains("lists not received") && !shown.contains("broader"), "{shown}");
    of_munich["taking"][0]["filters_broader"] = 6.into();
    of_munich["taking"][0]["broader"] = json!(["a/+", "b/+", "c/+", "d/+", "e/+", "f/+"]);
    let wide = ctl(&Mock::always(Reply::json(&of_munich)), "links external munich").out();
    let line = "broader filters 6, for more than filters_max: a/+, b/+, c/+, d/+, e/+, ...";
    assert!(wide.lines().any(|found| words(found) == line), "{wide}");
    assert_eq!(ctl(&mock, "links external show munich").out(), shown);
}

#[test]
fn set_keeps_other_settings_and_a_file_replaces_them() {
    let mock = Mock::serve(|request| match (&*request.method, request.path()) {
        ("GET", "/api/v1/links/external/new") => Reply::problem(404, "not-found", "there is no link `new`"),
        _ => Reply::json(&link("munich", json!([]), json!([]))),
    });
    let put = |line: &str| {
        let out = ctl(&mock, line).out();
        assert_eq!(out, "link to munich: takes plant/#, alarms/#; gives #\n");
        mock.requests().pop().unwrap().json()
    };
    let sent = put(
        "links external set munich enabled=false topics=a/# topics=b/+ in_flight=5 own_name=7 secret_file=",
    );
    assert_eq!(
        sent,
        json!({"address": "m:1883", "topics": "a/#\nb/+", "secret_file": null, "enabled": false, "in_flight": 5, "own_name": "7"})
    );
    assert_eq!(put("links external set new secret_file=/s"), json!({"secret_file": "/s"}));
    let path = std::env::temp_dir().join(format!("meridian-ctl-link-{}", std::process::id()));
    std::fs::write(&path, "[[cluster_link]]\nsecret_file = \"/s\"\ntls = true\n").unwrap();
    let sent = put(&format!("links external set munich --file {}", path.display()));
    assert_eq!(sent, json!({"secret_file": "/s", "tls": true}));
    std::fs::remove_file(&path).unwrap();

    let denied = Mock::always(Reply::problem(403, "forbidden", "it needs the role admin"));
    assert_eq!(ctl(&denied, "links external set munich tls=true").code(), 5);
    for wrong in ["set munich", "set munich tls", "set munich tls=true --file x", "set", "show", "remove"] {
        let line = ["ctl", "links", "external"].into_iter().chain(wrong.split(' '));
        assert!(Line::try_parse_from(line).is_err(), "{wrong}");
    }
}

#[test]
fn a_link_is_removed_with_or_without_its_messages() {
    let mock = Mock::always(Reply::empty());
    ctl(&mock, "--yes links external remove munich").out();
    assert_eq!(mock.request().target, "/api/v1/links/external/munich?messages=keep");
    ctl(&mock, "--yes links external remove munich --delete-messages").out();
    assert_eq!(mock.requests().pop().unwrap().target, "/api/v1/links/external/munich?messages=delete");
    assert_eq!(ctl(&mock, "links external remove munich").code(), 2);
}
