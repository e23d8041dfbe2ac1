//! Records of any output: a renderer makes a record or an error of it, and never panics. A panic would come again with
//! its message.

#![cfg(all(feature = "http", feature = "kafka", feature = "line_protocol", feature = "postgresql"))]

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use rules::Value;
use settings::{HostPorts, Raw, Value as _};
use sinks::{ActionSettings, Body, ConnectorKind, ConnectorSettings, Guard, SinkProblem, Target};

const KINDS: [ConnectorKind; 4] =
    [ConnectorKind::Http, ConnectorKind::Kafka, ConnectorKind::LineProtocol, ConnectorKind::PostgreSql];

/// Creates a target of a kind whose templates are made of these parts.
fn target(kind: ConnectorKind, text: &str) -> Result<Arc<dyn Target>, SinkProblem> {
    let is_http = matches!(kind, ConnectorKind::Http | ConnectorKind::LineProtocol);
    let connector = ConnectorSettings {
        kind,
        url: is_http.then(|| "http://127.0.0.1:1/a".to_owned()),
        address: (!is_http).then(|| HostPorts::from_raw(&Raw::Text("127.0.0.1:1".into())).expect("valid")),
        database: "d".to_owned(),
        ..ConnectorSettings::default()
    };
    let mut action = ActionSettings { body: Body::Each, ..ActionSettings::default() };
    match kind {
        ConnectorKind::Http => {
            action.path = format!("/p/{text}");
            action.headers = format!("X-A: {text}");
            action.content = text.to_owned();
        }
        ConnectorKind::Kafka => {
            action.topic = "t-${a?}".to_owned();
            action.key = text.to_owned();
            action.headers = format!("a: {text}");
            action.content = text.to_owned();
        }
        ConnectorKind::LineProtocol => action.content = format!("m,{text}"),
        ConnectorKind::PostgreSql => action.statement = format!("INSERT INTO t (a) VALUES ({text})"),
        ConnectorKind::File => action.content = text.to_owned(),
    }
    let guard = Guard { allow_loopback: true, allow_private: true };
    sinks::target(&connector, &action, guard)
}

/// Parts of templates, with the signs that have a meaning in a path, in a line and in a statement.
fn template() -> impl Strategy<Value = String> {
    let part = select(vec![
        "${a}",
        "${a?}",
        "${b}",
        "${a.b}",
        "${a[1]}",
        "${.}",
        "${meridian_id}",
        "$",
        "{",
        "}",
        "$$",
        ",",
        "=",
        " ",
        "i",
        "u",
        "\"",
        "'",
        "\\",
        "/",
        "?",
        "&",
        "#",
        "%",
        ".",
        "..",
        "x",
        "v=${a}",
        "v=${a}i",
        "s=\"${b}\"",
        "t=${b?} v=1",
        "::text",
        ") ON CONFLICT DO NOTHING",
        "--",
        "/*",
        "\n",
        "é",
        "\u{1f600}",
    ]);
    vec(part, 1..8).prop_map(|parts| parts.concat())
}

fn output() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        any::<String>(),
        select(vec![
            "",
            ".",
            "..",
            "a/../b",
            "a b,c=d\\",
            "\n\r",
            "\0",
            "%2e",
            "1e999",
            "-0",
            "\u{feff}",
            "x\\"
        ])
        .prop_map(str::to_owned),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        select(vec![i64::MIN, i64::MAX, 0, -1]).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.prop_map(Value::from),
        vec(any::<u8>(), 0..20).prop_map(|bytes| Value::of_bytes(&bytes)),
    ];
    let value = leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::array),
            (inner.clone(), inner).prop_map(|(a, b)| Value::object([("b", a), ("c", b)])),
        ]
    });
    (value.clone(), value).prop_map(|(a, b)| Value::object([("a", a), ("b", b)]))
}

/// Counts the slashes of a template before its query. A `?` within a placeholder begins no query.
fn slashes(template: &str) -> usize {
    let mut rest = template;
    let mut count = 0;
    while let Some(first) = rest.chars().next() {
        rest = match first {
            '$' if rest.starts_with("$${") => &rest["$${".len()..],
            '$' if rest.starts_with("${") => rest.split_once('}').map_or("", |(_, rest)| rest),
            '?' => break,
            _ => {
                count += usize::from(first == '/');
                &rest[first.len_utf8()..]
            }
        };
    }
    count
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_value_never_leaves_its_position(text in template(), output in output()) {
        for kind in KINDS {
            let Ok(target) = target(kind, &text) else { continue };
            let names = target.field_names();
            let Ok(record) = target.render(&output) else { continue };
            match kind {
                ConnectorKind::LineProtocol => {
                    let line = record.fields[0].as_deref().expect("a line");
                    prop_assert!(!line.contains(&b'\n') && !line.contains(&b'\r'), "{line:?}");
                }
                ConnectorKind::Http => {
                    let at = names.iter().position(|name| name == "path").expect("a path");
                    // A path without placeholders is not a part of the record.
                    let Some(path) = record.fields[at].clone() else { continue };
                    let path = String::from_utf8(path.into_vec()).expect("UTF-8");
                    prop_assert!(!path.contains(|c: char| c.is_control() || c == ' '), "{path}");
                    let parts = path.split('?').next().unwrap_or_default().matches('/').count();
                    // Only the template has slashes, and a placeholder has none.
                    prop_assert_eq!(parts, slashes(&format!("/p/{text}")), "{}", path);
                }
                ConnectorKind::PostgreSql | ConnectorKind::Kafka | ConnectorKind::File => {
                    prop_assert_eq!(record.fields.len(), names.len());
                }
            }
        }
    }
}
