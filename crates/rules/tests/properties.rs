//! Properties that hold for all rules, messages and payloads.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use rules::{
    Context, EvalError, Event, JSON_DEPTH_MAX, Limits, NESTING_MAX, Rule, Sample, Template, VALUE_DEPTH_MAX,
    Value,
};

const FUNCTIONS: &[&str] = &[
    "upper($)",
    "length($)",
    "first($)",
    "concat($, $)",
    "substr($, $)",
    "split($, $)",
    "json_encode($)",
    "json_decode($)",
    "map_get($, $)",
    "map_put($, $, $)",
    "map_keys($)",
    "mget($, $, $)",
    "nth($, $)",
    "sublist($, $)",
    "contains($, $)",
    "replace($, $, $)",
    "tokens($, $)",
    "pad($, $)",
    "sprintf('%s', $)",
    "regex_match($, 'a+')",
    "regex_replace($, '(.)', $)",
    "regex_extract($, $)",
    "int($)",
    "float($)",
    "str($)",
    "bool($)",
    "abs($)",
    "round($)",
    "mod($, $)",
    "is_null($)",
    "coalesce($, $, $)",
    "format_date('second', 'Z', '%Y', $)",
    "unix_ts_to_rfc3339($)",
    "base64_encode($)",
    "base64_decode($)",
    "hexstr2bin($)",
    "subbits($, $)",
    "subbits($, $, $)",
    "sha256($)",
    "uuid_v4()",
    "topic($)",
    "payload($)",
];

const SHAPES: &[&str] = &[
    "$ + $",
    "$ - $",
    "$ * $",
    "$ / $",
    "$ div $",
    "$ MOD $",
    "$ = $",
    "$ <> $",
    "$ < $",
    "$ >= $",
    "$ =~ $",
    "$ and $",
    "$ OR $",
    "not $",
    "- $",
    "($)",
    "($).x[1]",
    "$ in ($, $)",
    "$ not in ($)",
    "$ is null",
    "$ is not null",
    "CASE WHEN $ THEN $ ELSE $ END",
    "case $ when $ then $ when $ then $ end",
    "(case when $ then $ end).a",
];

fn leaf() -> impl Strategy<Value = String> {
    prop_oneof![
        select(vec![
            "clientid",
            "topic",
            "payload",
            "payload.a",
            "payload.b[1].c",
            "payload.s",
            "payload[-1]",
            "payload.'x y'",
            "flags.retain",
            "pub_props.'User-Property'",
            "null",
            "true",
            "'#'",
            "'a'",
            "0",
            "1",
            "-1",
            "9223372036854775807",
            "-9223372036854775808",
            "2.5",
            "1e300",
        ])
        .prop_map(str::to_owned),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_filter("finite", |float| float.is_finite()).prop_map(|float| format!("{float:?}")),
        "\\PC{0,6}".prop_map(|text| format!("'{}'", text.replace('\'', "''"))),
    ]
}

/// Generates an expression. `aliases` may occur in it.
fn expression(aliases: &'static [&'static str]) -> impl Strategy<Value = String> {
    let leaf = prop_oneof![4 => leaf(), 1 => select(aliases).prop_map(str::to_owned)];
    leaf.prop_recursive(5, 40, 4, |inner| {
        let shape = prop_oneof![2 => select(SHAPES), 1 => select(FUNCTIONS)];
        (shape, proptest::collection::vec(inner, 5)).prop_map(|(shape, operands)| {
            let mut operands = operands.into_iter();
            let parts: Vec<&str> = shape.split('$').collect();
            let mut text = parts[0].to_owned();
            for part in &parts[1..] {
                text.push_str(&operands.next().expect("at most five operands"));
                text.push_str(part);
            }
            text
        })
    })
}

fn rule() -> impl Strategy<Value = String> {
    let columns = (expression(&["qos"]), expression(&["al", "al.x"]), expression(&["al", "p.'q r'.s"]));
    let condition = proptest::option::of(expression(&["al", "p.'q r'", "last"]));
    let simple = (columns, condition).prop_map(|((a, b, c), condition)| {
        let condition = condition.map_or(String::new(), |condition| format!(" WHERE {condition}"));
        format!("SELECT *, {a} AS al, {b} AS p.'q r', {c} as last, {a} FROM \"a/#\"{condition}")
    });
    let each = (expression(&["qos"]), expression(&["e", "e.v"]), proptest::option::of(expression(&["e"])));
    let each =
        (each, proptest::option::of(expression(&["qos"]))).prop_map(|((over, column, incase), condition)| {
            let incase = incase.map_or(String::new(), |incase| format!(" INCASE {incase}"));
            let condition = condition.map_or(String::new(), |condition| format!(" WHERE {condition}"));
            format!("FOREACH {over} AS e DO {column} AS c, c{incase} FROM \"a/#\", \"b\"{condition}")
        });
    prop_oneof![simple, each]
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    let leaf = prop_oneof![
        select(vec!["null", "true", "1", "-7", "2.5", "\"x\"", "\"a b\"", "[]", "{}", "1e3", "\"\\u00e9\""])
            .prop_map(str::to_owned),
        any::<i64>().prop_map(|number| number.to_string()),
    ];
    let json = leaf.prop_recursive(4, 30, 5, |inner| {
        let name = select(vec!["a", "b", "c", "s", "x", "v", "x y"]);
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(|all| format!("[{}]", all.join(", "))),
            proptest::collection::vec((name, inner), 0..5).prop_map(|all| {
                let all: Vec<String> =
                    all.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
                format!("{{{}}}", all.join(","))
            }),
        ]
    });
    prop_oneof![
        4 => json.prop_map(String::into_bytes),
        1 => proptest::collection::vec(any::<u8>(), 0..20),
    ]
}

fn sample(payload: &[u8]) -> Sample {
    let fields = r##"{"clientid": "c1", "topic": "a/b", "qos": 1, "flags": {"retain": true},
        "pub_props": {"User-Property": {"k": "v"}}}"##;
    Sample::parse(Event::Publish, fields, &Limits::default()).expect("a sample").with_payload(payload)
}

fn context() -> Context {
    Context { now: Duration::from_millis(1_706_702_400_123), random: 7 }
}

fn small() -> Limits {
    Limits { steps: 2_000, bytes: 5_000, outputs: 3, rendered_bytes: 300, ..Limits::default() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn a_printed_rule_is_parsed_as_the_same(text in rule()) {
        if let Ok(rule) = Rule::parse(&text, &Limits::default()) {
            let printed = rule.to_string();
            let again = Rule::parse(&printed, &Limits::default());
            prop_assert_eq!(again.as_ref(), Ok(&rule), "{} became {}", text, printed);
            prop_assert_eq!(rule.to_string(), again.expect("a rule").to_string());
        }
    }

    #[test]
    fn equal_inputs_have_equal_results_within_the_limits(text in rule(), payload in payload()) {
        let limits = small();
        if let Ok(rule) = Rule::parse(&text, &limits) {
            let message = sample(&payload);
            let result = rule.evaluate(&message, &context(), &limits);
            prop_assert_eq!(&result, &rule.evaluate(&message, &context(), &limits));
            // A limit that is not reached changes nothing.
            if result.is_ok() {
                prop_assert_eq!(&result, &rule.evaluate(&message, &context(), &Limits::default()));
            }
            for output in result.iter().flatten() {
                prop_assert!(usize::from(output.extent().depth) <= VALUE_DEPTH_MAX);
                prop_assert!(u64::from(output.extent().size) <= limits.steps);
                let whole = Template::parse("${.}", &limits).expect("a template");
                if let Ok(json) = whole.render(output, &limits) {
                    prop_assert!(json.len() <= limits.rendered_bytes);
                    prop_assert!(serde_json::from_slice::<serde_json::Value>(&json).is_ok());
                }
            }
            prop_assert!(result.map_or(0, |outputs| outputs.len()) <= limits.outputs);
        }
    }

    /// The printed rule is not only equal, but also does the same.
    #[test]
    fn a_printed_rule_has_the_same_results(text in rule(), payload in payload()) {
        let limits = small();
        if let Ok(rule) = Rule::parse(&text, &limits) {
            let again = Rule::parse(&rule.to_string(), &Limits::default()).expect("a rule");
            let message = sample(&payload);
            prop_assert_eq!(
                rule.evaluate(&message, &context(), &limits),
                again.evaluate(&message, &context(), &limits)
            );
        }
    }

    /// Members that are left out change no result.
    #[test]
    fn a_payload_that_is_decoded_in_part_has_the_same_values(payload in payload()) {
        let limits = Limits::default();
        let part = Rule::parse("SELECT payload.a, payload.'x y' AS b FROM \"a\"", &limits).expect("a rule");
        let whole = "SELECT payload.a, payload.'x y' AS b, payload(concat('a', '')) AS c FROM \"a\"";
        let whole = Rule::parse(whole, &limits).expect("a rule");
        let message = sample(&payload);
        let results = [part, whole].map(|rule| rule.evaluate(&message, &context(), &limits));
        match &results {
            [Ok(part), Ok(whole)] => {
                for name in ["a", "b"] {
                    prop_assert_eq!(part[0].member(name), whole[0].member(name));
                }
            }
            [part, whole] => prop_assert_eq!(part, whole),
        }
    }

    /// The decoder agrees with that of `serde_json`, except for the depth and for integers above 64 bits.
    #[test]
    fn json_is_decoded_as_serde_json_does(payload in payload(), at in any::<prop::sample::Index>(), with in any::<u8>()) {
        let mut changed = payload.clone();
        if !changed.is_empty() {
            let at = at.index(changed.len());
            changed[at] = with;
        }
        for text in [payload, changed] {
            check_json(&text)?;
        }
    }

    #[test]
    fn any_text_is_a_rule_or_an_error_with_its_place(text in "\\PC{0,60}", words in words()) {
        for text in [&text, &words] {
            if let Err(error) = Rule::parse(text, &Limits::default()) {
                let lines = text.split('\n').count() as u32;
                prop_assert!((1..=lines).contains(&error.line), "{} at {:?}", text, error);
                let line = text.split('\n').nth(error.line as usize - 1).unwrap_or_default();
                prop_assert!((1..=line.chars().count() as u32 + 1).contains(&error.column), "{} at {:?}", text, error);
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }

    #[test]
    fn any_text_is_a_template_or_an_error(text in "[$a.\\[\\]{}?'1 -]{0,24}", payload in payload()) {
        let limits = small();
        let template = Template::parse(&text, &limits);
        match template {
            Ok(template) => {
                let output = Value::object([("a", Value::of_bytes(&payload))]);
                let rendered = template.render(&output, &limits);
                prop_assert_eq!(&rendered, &template.render(&output, &limits));
                prop_assert!(rendered.is_ok_and(|text| text.len() <= 300) || !template.is_constant());
            }
            Err(error) => prop_assert!(error.offset <= text.len()),
        }
    }
}

/// Generates words of the language in any order.
fn words() -> impl Strategy<Value = String> {
    let word = select(vec![
        "SELECT",
        "FOREACH",
        "FROM",
        "WHERE",
        "AS",
        "DO",
        "INCASE",
        "CASE",
        "WHEN",
        "THEN",
        "ELSE",
        "END",
        "and",
        "or",
        "not",
        "in",
        "is",
        "null",
        "true",
        "div",
        "mod",
        "payload",
        "item",
        "clientid",
        ".",
        ",",
        "(",
        ")",
        "[",
        "]",
        "1",
        "-",
        "--",
        "\n",
        "+",
        "=",
        "=~",
        "*",
        "'a'",
        "\"a/#\"",
        "'",
        "\"",
        "\"$events/client/connected\"",
        "upper(",
        "é",
        "9e9",
        "x",
        "<>",
        "1.5",
    ]);
    let any = proptest::collection::vec(word.clone(), 0..14).prop_map(|words| words.join(" "));
    let framed = proptest::collection::vec(word, 0..8)
        .prop_map(|words| format!("SELECT {} FROM \"a\" WHERE {}", words.join(" "), words.concat()));
    prop_oneof![any, framed]
}

fn check_json(text: &[u8]) -> Result<(), TestCaseError> {
    let limits = Limits { json_depth: JSON_DEPTH_MAX, ..Limits::default() };
    let rule = Rule::parse("SELECT json_decode(payload) AS v FROM \"a\"", &limits).expect("a rule");
    let ours = rule.evaluate(&sample(text), &context(), &limits);
    let theirs = serde_json::from_slice::<serde_json::Value>(text);
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => {
            let json = Template::parse("${.}", &limits).expect("a template").render(&ours[0], &limits);
            let json: serde_json::Value = serde_json::from_slice(&json.expect("JSON")).expect("JSON");
            prop_assert!(is_near(&json["v"], &theirs), "{} is not {}", json["v"], theirs);
        }
        (Err(EvalError::NotJson { .. }), Err(_)) => {}
        (ours, theirs) => prop_assert!(false, "{ours:?} is not {theirs:?}"),
    }
    Ok(())
}

/// Compares numbers as floats: `serde_json` rounds some in another way.
fn is_near(a: &serde_json::Value, b: &serde_json::Value) -> bool {
    use serde_json::Value as Json;
    match (a, b) {
        (Json::Number(a), Json::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap_or(0.0), b.as_f64().unwrap_or(1.0));
            (a - b).abs() <= a.abs() * 1e-14
        }
        (Json::Array(a), Json::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_near(a, b)),
        (Json::Object(a), Json::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((k, a), (l, b))| k == l && is_near(a, b))
        }
        (a, b) => a == b,
    }
}

/// The generators must produce rules that are parsed and evaluated, not only errors.
#[test]
fn many_generated_rules_are_evaluated() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut parsed, mut evaluated) = (0, 0);
    for _ in 0..500 {
        let text = rule().new_tree(&mut runner).expect("a rule").current();
        let payload = payload().new_tree(&mut runner).expect("a payload").current();
        if let Ok(rule) = Rule::parse(&text, &Limits::default()) {
            parsed += 1;
            let result = rule.evaluate(&sample(&payload), &context(), &Limits::default());
            evaluated += usize::from(result.is_ok());
        }
    }
    assert!(parsed > 150, "{parsed} of 500 are parsed");
    assert!(evaluated > 20, "{evaluated} of {parsed} are evaluated");
}

/// The greatest nesting of all limits at once fits a small stack.
#[test]
fn the_deepest_rules_and_payloads_need_little_stack() {
    let run = || {
        let limits = Limits { nesting: usize::MAX, json_depth: usize::MAX, ..Limits::default() };
        let payload =
            format!("{}1{}", "[{\"a\":".repeat(JSON_DEPTH_MAX / 2), "}]".repeat(JSON_DEPTH_MAX / 2));
        let deep = NESTING_MAX - 4;
        for text in [
            format!("{}payload[1]{}", "coalesce(".repeat(deep), ")".repeat(deep)),
            format!("{}payload[1]{}", "(".repeat(deep), ")".repeat(deep)),
            format!("{}payload[1]{}", "case when true then ".repeat(deep), " end".repeat(deep)),
            format!("{}payload[1] is null", "not ".repeat(deep)),
            format!("1{}", " + 1".repeat(deep)),
            format!("{}1{}", "1 - (".repeat(deep / 2), ")".repeat(deep / 2)),
            format!("json_encode({}payload[1]{})", "coalesce(".repeat(deep - 1), ")".repeat(deep - 1)),
            "payload = json_decode(payload)".to_owned(),
        ] {
            let rule = Rule::parse(&format!("SELECT {text} AS r FROM \"a\""), &limits).expect(&text);
            assert_eq!(Rule::parse(&rule.to_string(), &limits).as_ref(), Ok(&rule));
            let outputs = rule.evaluate(&sample(payload.as_bytes()), &context(), &limits).expect(&text);
            let whole = Template::parse("${.}", &limits).expect("a template");
            assert!(whole.render(&outputs[0], &limits).is_ok());
        }
    };
    let thread = std::thread::Builder::new().stack_size(512 * 1024).spawn(run).expect("a thread");
    assert!(thread.join().is_ok());
}

/// Work that a small text or payload could cause without limits.
#[test]
fn hostile_inputs_reach_a_limit() {
    let limits = Limits::default();
    let many = |text: &str, count: usize| text.repeat(count);
    let wide = format!("[{}1]", many("1,", 400_000));
    let keys: Vec<String> = (0..200_000).map(|number| format!("\"k{number}\":1")).collect();
    let deep = format!("{{\"a\":{}1{}}}", many("[", 30), many("]", 30));
    let rules = [
        ("payload.a", format!("{{\"a\":{wide}}}")),
        ("payload.a", format!("{{{}}}", keys.join(","))),
        ("json_decode(payload)", format!("{{{}}}", keys.join(","))),
        ("regex_replace(payload, '.*[^A-Z]|[A-Z]', 'x')", many("A", 100_000)),
        ("regex_replace(payload, '.*[^A-Z]|[A-Z]', 'x')", many("A", 10_000)),
        ("regex_extract(payload, '^(([A-Z]|[A-M]|[N-Z]){1,400} ?)+$')", many("A", 50_000)),
        ("regex_replace(payload, '', payload)", many("A", 100_000)),
        ("replace(payload, 'A', payload)", many("A", 100_000)),
        ("pad('a', 9223372036854775807)", String::new()),
        ("split(payload, 'A', 'notrim')", many("A", 200_000)),
    ];
    for (expression, payload) in rules {
        let rule = Rule::parse(&format!("SELECT {expression} AS r FROM \"a\""), &limits).expect(expression);
        let error = rule.evaluate(&sample(payload.as_bytes()), &context(), &limits).expect_err(expression);
        assert!(
            matches!(error, EvalError::StepLimit { .. } | EvalError::ByteLimit { .. }),
            "{expression}: {error}"
        );
    }
    // Usual expressions search usual texts.
    for expression in ["regex_replace(payload, '\\w+', 'x')", "regex_match(payload, '(\\w+ )+\\d$')"] {
        let rule = Rule::parse(&format!("SELECT {expression} AS r FROM \"a\""), &limits).expect(expression);
        let outputs = rule.evaluate(&sample(many("some words ", 180).as_bytes()), &context(), &limits);
        assert!(outputs.is_ok(), "{expression}");
    }
    // Each column has the one before it twice, which takes little memory.
    let mut columns = vec!["payload AS c0".to_owned()];
    for number in 1..60 {
        let before = number - 1;
        columns.push(format!("map_put('a', c{before}, map_put('b', c{before}, null)) AS c{number}"));
    }
    let text = format!("SELECT {} FROM \"a\"", columns.join(", "));
    let rule = Rule::parse(&text, &limits).expect("a rule");
    let error = rule.evaluate(&sample(b"x"), &context(), &limits).expect_err("too many parts");
    assert!(matches!(error, EvalError::StepLimit { .. }), "{error}");
    // Each column wraps the one before it.
    let mut columns = vec!["payload.a AS c0".to_owned()];
    for number in 1..800 {
        columns.push(format!("map_put('{}', c{}, null) AS c{number}", "a.".repeat(20) + "a", number - 1));
    }
    let text = format!("SELECT {} FROM \"a\"", columns.join(", "));
    let rule = Rule::parse(&text, &limits).expect("a rule");
    let error = rule.evaluate(&sample(deep.as_bytes()), &context(), &limits).expect_err("too deep");
    assert!(matches!(error, EvalError::DepthLimit { .. }), "{error}");
}

/// Texts whose parser, printer or destructor would overflow the stack without a limit.
#[test]
fn nested_texts_are_refused() {
    let limits = Limits { nesting: usize::MAX, json_depth: usize::MAX, ..Limits::default() };
    let count = 8_000;
    let texts = [
        format!("{}1{}", "(".repeat(count), ")".repeat(count)),
        format!("{}1", "- ".repeat(count)),
        format!("{}true", "not ".repeat(count)),
        format!("1{}", " + 1".repeat(count)),
        format!("1{}", " = 1".repeat(count)),
        format!("1{}", " is null".repeat(count)),
        format!("{}1", "upper(".repeat(count)),
        format!("{}1", "case when ".repeat(count / 2)),
        format!("true{}", " in (true".repeat(count / 2)),
    ];
    for text in texts {
        let error = Rule::parse(&format!("SELECT {text} AS r FROM \"a\""), &limits).expect_err(&text[..20]);
        assert!(error.to_string().contains("nested deeper"), "{error}");
    }
    let payload = "[".repeat(100_000);
    let rule = Rule::parse("SELECT json_decode(payload) AS r FROM \"a\"", &limits).expect("a rule");
    let error = rule.evaluate(&sample(payload.as_bytes()), &context(), &limits).expect_err("too deep");
    assert!(error.to_string().contains("nested deeper"), "{error}");
    // Long chains of conditions and long paths are flat.
    for flat in [format!("true{}", " and true".repeat(5_000)), format!("payload{}", ".a".repeat(20_000))] {
        let rule = Rule::parse(&format!("SELECT {flat} AS r FROM \"a\""), &limits).expect("a rule");
        assert!(rule.evaluate(&sample(b"{}"), &context(), &limits).is_ok());
    }
}
