//! Answers of any kind: no command panics, and none writes them to the terminal unescaped.

use super::*;

/// Commands that print texts of a server, each once.
const PRINTING: [&str; 29] = [
    "status",
    "whoami",
    "clients",
    "clients --all --json",
    "client c",
    "client subscriptions c",
    "client queue c --payload",
    "sessions",
    "subscriptions",
    "routes",
    "routes --match a",
    "retained",
    "retained get a",
    "ban",
    "config show",
    "config show s",
    "log",
    "slow",
    "top-talkers",
    "audit --json",
    "topic-metrics",
    "users",
    "users show a",
    "rules",
    "keys",
    "accounts",
    "cluster",
    "links",
    "routes --nodes",
];

/// Returns whether a terminal would obey a character.
fn obeyed(c: char) -> bool {
    (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c)
}

/// Generates JSON where any position of any answer may hold any string.
fn hostile() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        Just("\x1b]0;owned\x07\u{9b}2J\r\u{202e}".to_owned()),
        "[\\x00-\\x1f\\x7f-\\x9f\u{202e}a-z]{0,6}",
        Just("aGkbWzJK".to_owned()),
        Just("2026-01-31T12:00:00\x1bZ".to_owned()),
    ];
    let leaf = prop_oneof![
        text.prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
    ];
    let keys = prop::sample::select(vec![
        "client_id",
        "connection",
        "session",
        "topic",
        "filter",
        "filters",
        "receivers",
        "name",
        "value",
        "default",
        "doc",
        "message",
        "fields",
        "level",
        "at",
        "expires_at",
        "payload",
        "payload_base64",
        "destinations",
        "kind",
        "dropped",
        "by_reason",
        "workers",
        "listeners",
        "publishers",
        "address",
        "reason",
        "until",
        "choices",
        "user_properties",
        "links",
        "lanes",
        "routes",
        "node",
        "state",
        "last_error",
        "attached_to",
    ]);
    let tree = leaf.prop_recursive(3, 40, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((keys.clone(), inner), 0..8).prop_map(|fields| Value::Object(
                fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
            )),
        ]
    });
    (prop::collection::vec(tree.clone(), 0..3), tree).prop_map(|(items, other)| {
        let mut answer = json!({"items": items, "settings": items, "next": null});
        if let (Value::Object(answer), Value::Object(other)) = (&mut answer, other) {
            answer.extend(other);
        }
        answer
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_answer_panics_a_command_or_reaches_the_terminal_raw(answer in hostile()) {
        let mock = Mock::always(Reply::json(&answer));
        for command in PRINTING {
            let outcome = ctl(&mock, command);
            let mut said = Vec::new();
            if let Err(failure) = &outcome.result {
                failure.report("ctl", false, &mut said);
            }
            let said = String::from_utf8(said).unwrap();
            for text in [&outcome.out, &outcome.notes, &said] {
                prop_assert!(!text.chars().any(obeyed), "{command}: {text:?}");
            }
        }
    }

    #[test]
    fn no_problem_document_reaches_the_terminal_raw(detail in any::<String>(), name in any::<String>()) {
        let body = json!({"type": "urn:meridian:problem:x", "detail": detail, "errors": [{"name": name, "detail": detail}]});
        let mock = Mock::always(Reply::with(422, "application/problem+json", body.to_string().as_bytes()));
        let outcome = ctl(&mock, "whoami");
        for json in [false, true] {
            let mut said = Vec::new();
            outcome.result.as_ref().unwrap_err().report("ctl", json, &mut said);
            let said = String::from_utf8(said).unwrap();
            prop_assert!(!said.chars().any(obeyed), "{said:?}");
        }
    }

    #[test]
    fn no_bytes_panic_the_client(bytes in prop::collection::vec(any::<u8>(), 0..200), body in prop::collection::vec(any::<u8>(), 0..60)) {
        for reply in [Reply::bytes(&bytes), Reply::with(200, "application/json", &body)] {
            let outcome = ctl(&Mock::always(reply), "clients");
            prop_assert!(!outcome.out.chars().any(obeyed));
        }
        let events = [&b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\n\r\n"[..], &bytes].concat();
        let outcome = ctl(&Mock::always(Reply::bytes(&events)), "trace --client c");
        prop_assert!(!outcome.out.chars().any(obeyed));
    }
}
