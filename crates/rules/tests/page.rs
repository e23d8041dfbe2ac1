//! Examples of `docs/rules-language.md`: rules with their outputs, and expressions in tables with their results.

use std::time::Duration;

use rules::{Context, Event, Limits, Rule, Sample, Template, Value};
use serde_json::Value as Json;

const PAGE: &str = include_str!("../../../docs/rules-language.md");

/// Blocks of the page between fences: language and content.
fn blocks() -> Vec<(&'static str, String)> {
    let mut blocks: Vec<(&str, String)> = Vec::new();
    let mut is_open = false;
    for line in PAGE.lines() {
        match line.strip_prefix("```") {
            Some(language) if !is_open => {
                blocks.push((language, String::new()));
                is_open = true;
            }
            Some(_) => is_open = false,
            None if is_open => {
                let (_, content) = blocks.last_mut().expect("a block");
                content.push_str(line);
                content.push('\n');
            }
            None => {}
        }
    }
    blocks
}

fn evaluate(rule: &str) -> Json {
    let limits = Limits::default();
    let (_, message) = blocks().into_iter().find(|(language, _)| *language == "json").expect("the message");
    let message = Sample::parse(Event::Publish, &message, &limits).expect("a sample");
    let context = Context { now: Duration::from_millis(1_706_702_400_123), random: 1 };
    let rule = Rule::parse(rule, &limits).unwrap_or_else(|error| panic!("{rule}: {error}"));
    let outputs =
        rule.evaluate(&message, &context, &limits).unwrap_or_else(|error| panic!("{rule}: {error}"));
    let all = Value::object([("all", Value::array(outputs))]);
    let text = Template::parse("${all}", &limits).expect("a template").render(&all, &limits).expect("JSON");
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn rules_of_the_page_have_their_outputs() {
    let blocks = blocks();
    let message = blocks.iter().position(|(language, _)| *language == "json").expect("the message");
    let mut count = 0;
    for (at, (language, rule)) in blocks.iter().enumerate() {
        if *language != "sql" {
            continue;
        }
        let outputs = blocks[at + 1..]
            .iter()
            .enumerate()
            .find(|(after, (language, _))| *language == "json" && at + 1 + after != message)
            .map(|(_, (_, json))| json)
            .expect("outputs follow a rule");
        let expected: Json = serde_json::from_str(outputs).expect(outputs);
        assert_eq!(evaluate(rule), expected, "{rule}");
        count += 1;
    }
    assert!(count >= 5);
}

/// The content of a cell that is one piece of code; `None` for other cells.
fn code(cell: &str) -> Option<&str> {
    cell.trim().strip_prefix('`')?.strip_suffix('`').filter(|code| !code.contains('`'))
}

/// Examples of tables whose last two columns are an expression and its result.
fn examples() -> Vec<(&'static str, &'static str)> {
    let mut examples = Vec::new();
    let mut has_examples = false;
    for line in PAGE.lines() {
        let Some(row) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) else {
            has_examples &= line.starts_with('|');
            continue;
        };
        let cells: Vec<&str> = row.split(" | ").collect();
        let [.., expression, result] = cells[..] else { continue };
        if matches!(expression, "example" | "expression") {
            has_examples = true;
        } else if has_examples {
            examples.push((code(expression).expect(line), code(result).expect(line)));
        }
    }
    examples
}

#[test]
fn expressions_of_the_page_have_their_results() {
    let examples = examples();
    for (expression, result) in &examples {
        let outputs = evaluate(&format!("SELECT {expression} AS r FROM \"#\""));
        let expected: Json = serde_json::from_str(result).expect(result);
        assert_eq!(outputs[0]["r"], expected, "{expression}");
    }
    assert!(examples.len() > 80, "only {} examples", examples.len());
}

#[test]
fn the_page_has_an_example_of_each_function() {
    let examples = examples();
    for name in rules::function_names().filter(|name| *name != "jq") {
        let call = format!("{name}(");
        assert!(examples.iter().any(|(expression, _)| expression.contains(&call)), "{name}");
    }
}

/// The page lists the fields of each source, and the defaults of the limits.
#[test]
fn the_page_has_all_fields_and_limits() {
    let set = |name: &str| {
        let begin = PAGE.find(&format!("- *{name}*:")).expect(name);
        let rest = &PAGE[begin + 2..];
        rest[..rest.find("\n-").or(rest.find("\n\n")).expect("an end")].to_owned()
    };
    for event in Event::ALL {
        let name = if event.name().is_empty() { "a Topic Filter" } else { event.name() };
        let row = PAGE
            .lines()
            .find(|line| line.trim_start_matches("| ").trim_start_matches('`').starts_with(name))
            .expect(name);
        let mut listed = row.to_owned() + "`event` `timestamp` `node`";
        for name in ["message", "client", "connection"] {
            if row.contains(&format!("*{name}*")) {
                listed += &set(name);
            }
        }
        for field in event.fields() {
            assert!(listed.contains(&format!("`{field}`")), "{event:?} {field}");
        }
    }
    let limits = Limits::default();
    for (limit, shown) in [
        (limits.text_bytes, "64 KiB"),
        (limits.nesting, "| 64 |"),
        (limits.json_depth, "| 32 |"),
        (limits.steps as usize, "| 100,000 |"),
        (limits.bytes as usize, "4 MiB"),
        (limits.outputs, "| 1,000 |"),
        (limits.columns, "| 1,000 |"),
        (limits.regex_bytes, "256 KiB"),
        (limits.regexes, "rule | 64 |"),
        (limits.rendered_bytes, "1 MiB"),
    ] {
        let digits: String = shown.chars().filter(char::is_ascii_digit).collect();
        let unit = if shown.ends_with("KiB") {
            1024
        } else if shown.ends_with("MiB") {
            1024 * 1024
        } else {
            1
        };
        assert_eq!(digits.parse::<usize>().expect(shown) * unit, limit);
        assert!(PAGE.contains(shown), "{shown}");
    }
}
