//! Commands `trace` and `log`, which follow a stream.

use super::*;

#[test]
fn a_trace_is_followed_to_its_end() {
    let mock = Mock::always(Reply::events(&[
        ": keep-alive\n\nevent: tr",
        "ace\ndata: {\"at\":\"2026-01-31T12:00:00.5Z\",\"kind\":\"publish_in\",\"client_id\":\"c\\u001b\",\"detail\":\"a/b\"}\n\n",
        "event: lost\ndata: {\"count\":3}\n\nevent: end\ndata: {\"reason\":\"time\"}\n\n",
    ]));
    let outcome = ctl(&mock, "trace --client c --payload 8 --for 5s --kind publish-in --kind connect");
    assert_eq!(outcome.out, "12:00:00.5    publish-in   c\\u{1b}  a/b\n");
    assert!(outcome.notes.contains("3 events were lost"), "{}", outcome.notes);
    assert_eq!(
        mock.request().target,
        "/api/v1/trace?client_id=c&payload=8&seconds=5&events=10000&kind=publish_in&kind=connect"
    );
    let lines = ctl(&mock, "trace --client c --json").lines();
    assert_eq!(lines.len(), 3);
    assert_eq!((&lines[0]["event"], &lines[2]["reason"]), (&json!("trace"), &json!("time")));
}

#[test]
fn invalid_streams_are_failures() {
    for reply in [
        Reply::json(&json!({})),
        Reply::events(&["event: trace\ndata: {no json\n\n"]),
        Reply::problem(429, "too-many-requests", "8 traces are running"),
    ] {
        let outcome = ctl(&Mock::always(reply), "trace --client c");
        assert_ne!(outcome.code(), 0);
    }
}

#[test]
fn a_followed_log_shows_each_event_once() {
    let event = |n: u32| json!({"at": format!("2026-01-31T12:00:0{n}Z"), "level": "INFO", "target": "t", "message": format!("m{n}"), "fields": {}});
    let mock = Mock::serve(move |request| match request.path() {
        "/api/v1/log" => Reply::json(&json!({"items": [event(1), event(2)], "next": null})),
        _ => {
            Reply::events(&[&format!("event: log\ndata: {}\n\nevent: log\ndata: {}\n\n", event(2), event(3))])
        }
    });
    let text = ctl(&mock, "log --follow --level info").out();
    let messages: Vec<&str> = text.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!(messages, ["m1", "m2", "m3"]);
}
