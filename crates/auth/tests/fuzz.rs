//! Whatever a rules file says, reading it ends in rules or in an error that points into the line; and a rule that is written is read as
//! the same.

use auth::RuleSet;
use broker::access::{Action, Identity};
use mqtt::QoS;
use proptest::prelude::*;
use proptest::sample::select;

const WORDS: &[&str] = &[
    "allow",
    "deny",
    "everyone",
    "anonymous",
    "user",
    "users",
    "client",
    "cert",
    "cn=a*",
    "fingerprint=00",
    "address",
    "10.0.0.0/8",
    "::1",
    "attribute",
    "role=x",
    "listener",
    "and",
    "not",
    "publish",
    "subscribe",
    "all",
    "eq",
    "qos",
    "0..1",
    "2",
    "retain",
    "yes",
    "no",
    "a/+/#",
    "#",
    "$SYS/#",
    "$share/g/#",
    "${clientid}",
    "${",
    "${attribute.a}",
    ",",
    "\"",
    "\"a b\"",
    "\\",
    "\\*",
    "*",
    "##",
    "\u{0}",
    "\u{1f99c}",
];

/// Something that may be a name: also words of the rules and characters that mean something.
fn name() -> impl Strategy<Value = String> {
    proptest::collection::vec(
        select(vec!["a", "b", " ", ",", "\"", "\\", "*", "\\*", "#", "+", "/", "=", "ü", "and", "qos", "##"]),
        1..6,
    )
    .prop_map(|parts| parts.concat())
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\"").replace("\\\\*", "\\*"))
}

fn condition() -> impl Strategy<Value = String> {
    let kind = select(vec!["user", "client", "listener", "cert cn=", "cert subject=", "attribute role="]);
    let named = (kind, proptest::collection::vec(name(), 1..3)).prop_map(|(kind, names)| {
        let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
        format!("{kind}{}{}", if kind.ends_with('=') { "" } else { " " }, names.join(", "))
    });
    let fixed =
        select(vec!["anonymous", "address 10.0.0.0/8, ::1", "cert fingerprint=00:11"]).prop_map(|text| {
            match text.strip_suffix("00:11") {
                Some(before) => format!("{before}{}", "aB:".repeat(32)),
                None => text.to_owned(),
            }
        });
    (any::<bool>(), prop_oneof![4 => named, 1 => fixed])
        .prop_map(|(not, condition)| format!("{}{condition}", if not { "not " } else { "" }))
}

fn rule() -> impl Strategy<Value = String> {
    let who = prop_oneof![
        1 => Just("everyone".to_owned()),
        4 => proptest::collection::vec(condition(), 1..3).prop_map(|all| all.join(" and ")),
    ];
    let topic = select(vec![
        "a/b",
        "a/+/#",
        "eq a",
        "\"a b\"",
        "\"and\"",
        "\"x,y\"",
        "${clientid}/x${attribute.a}",
        "\"##\"",
        "$SYS/x",
    ]);
    let topics = prop_oneof![
        1 => Just("#".to_owned()),
        5 => proptest::collection::vec(topic, 1..4).prop_map(|topics| topics.join(" ")),
    ];
    let tail = select(vec!["", " qos 0..1", " retain yes", " retain no qos 1,2", " ## said"]);
    (select(vec!["allow", "deny"]), who, select(vec!["publish", "subscribe", "all"]), topics, tail)
        .prop_map(|(effect, who, action, topics, tail)| format!("{effect} {who} {action} {topics}{tail}"))
}

fn read(line: &str) -> Result<(), TestCaseError> {
    match RuleSet::parse_line(line) {
        Ok(None) => {}
        Ok(Some(rule)) => {
            let written = rule.to_string();
            let again = RuleSet::parse_line(&written);
            prop_assert_eq!(again.as_ref(), Ok(&Some(rule)), "{} became {}", line, written);
        }
        Err(error) => {
            let columns = line.chars().count() as u32 + 1;
            prop_assert!((1..=columns).contains(&error.column), "{} at {}", line, error.column);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn words_in_any_order_are_a_rule_or_an_error(words in proptest::collection::vec(select(WORDS), 0..14)) {
        read(&words.join(" "))?;
        read(&words.concat())?;
    }

    #[test]
    fn any_text_is_rules_or_an_error(text in "\\PC{0,60}", file in "(allow |deny |user |[ -~\n]){0,40}") {
        read(&text)?;
        let lines = file.lines().count() as u32;
        if let Err((line, _)) = RuleSet::parse(&file) {
            prop_assert!((1..=lines).contains(&line));
        }
    }

    #[test]
    fn a_rule_that_is_written_is_read_as_the_same(line in rule()) {
        read(&line)?;
    }

    #[test]
    fn any_question_has_an_answer(
        lines in proptest::collection::vec(rule(), 0..8),
        client_id in ".{0,8}",
        username in proptest::option::of(".{0,8}"),
        topic in "[a+#/$ü]{0,12}",
    ) {
        let kept: Vec<&str> = lines.iter().map(|line| &**line).filter(|line| RuleSet::parse_line(line).is_ok()).collect();
        let rules = RuleSet::parse(&kept.join("\n")).expect("each of them is one");
        let who = Identity { client_id: &client_id, username: username.as_deref(), ..Default::default() };
        let qos = QoS::AtLeastOnce;
        for action in [Action::Publish { qos, retain: true }, Action::Subscribe { qos }, Action::Receive] {
            if let Some(ruling) = rules.ruling(who, action, &topic) {
                prop_assert!(kept.len() >= rules.len() && !ruling.rule.to_string().is_empty());
            }
        }
    }
}

/// The generator makes rules, not only mistakes.
#[test]
fn most_lines_of_the_generator_are_rules() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let good = (0..200).filter(|_| {
        let line = rule().new_tree(&mut runner).expect("a rule").current();
        RuleSet::parse_line(&line).is_ok()
    });
    assert!(good.count() > 120);
}
