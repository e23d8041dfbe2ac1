//! Cases of `cases.txt`: expressions, rules and templates with their results.

use std::collections::HashSet;
use std::time::Duration;

use rules::{Context, Event, Kind, Limits, Rule, Sample, Template, Value};

/// Values of the last `message:` line and the lines like it.
struct Setting {
    event: Event,
    message: String,
    payload: Vec<u8>,
    limits: Limits,
}

impl Setting {
    fn sample(&self) -> Sample {
        let sample = Sample::parse(self.event, &self.message, &Limits::default()).expect("a sample");
        sample.with_payload(&self.payload)
    }

    fn set(&mut self, name: &str, text: &str) {
        match name {
            "message" => self.message = text.to_owned(),
            "payload" => self.payload = text.as_bytes().to_vec(),
            "hex" => self.payload = hex(text),
            "event" if text == "message" => self.event = Event::Publish,
            "event" => self.event = Event::of_name(text).expect(text),
            "limit" => self.limits = limits(text),
            _ => panic!("unknown line {name}"),
        }
    }
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).expect(text)).collect()
}

fn limits(text: &str) -> Limits {
    let mut limits = Limits::default();
    let Some((name, number)) = text.split_once('=') else { return limits };
    let number: usize = number.parse().expect(text);
    match name {
        "text_bytes" => limits.text_bytes = number,
        "nesting" => limits.nesting = number,
        "regexes" => limits.regexes = number,
        "columns" => limits.columns = number,
        "json_depth" => limits.json_depth = number,
        "steps" => limits.steps = number as u64,
        "bytes" => limits.bytes = number as u64,
        "outputs" => limits.outputs = number,
        "regex_bytes" => limits.regex_bytes = number,
        "rendered_bytes" => limits.rendered_bytes = number,
        _ => panic!("unknown limit {name}"),
    }
    limits
}

fn context() -> Context {
    Context { now: Duration::new(1_706_702_400, 123_456_789), random: 42 }
}

fn json(value: &Value) -> String {
    let limits = Limits::default();
    match value {
        Value::Bytes(bytes) => {
            format!("bytes {}", bytes.iter().map(|byte| format!("{byte:02X}")).collect::<String>())
        }
        value => {
            let output = Value::object([("v", value.clone())]);
            let whole = Template::parse("${.}", &limits).expect("a template").render(&output, &limits);
            let whole = String::from_utf8(whole.unwrap_or_else(|error| error.to_string().into_bytes()));
            let whole = whole.expect("UTF-8");
            whole.strip_prefix("{\"v\":").and_then(|rest| rest.strip_suffix('}')).unwrap_or(&whole).to_owned()
        }
    }
}

/// Evaluates a rule. A rule that is parsed is also printed and parsed again.
fn outputs(setting: &Setting, text: &str) -> Result<Vec<Value>, String> {
    let rule = Rule::parse(text, &setting.limits).map_err(|error| error.to_string())?;
    let printed = rule.to_string();
    let again = Rule::parse(&printed, &Limits::default()).map_err(|error| format!("{printed}: {error}"))?;
    assert_eq!(again, rule, "{text} became {printed}");
    assert_eq!(again.to_string(), printed);
    let results = [&rule, &again].map(|rule| rule.evaluate(&setting.sample(), &context(), &setting.limits));
    assert_eq!(results[0], results[1]);
    let [result, _] = results;
    result.map_err(|error| error.to_string())
}

fn expression(setting: &Setting, text: &str) -> Result<String, String> {
    let outputs = outputs(setting, &format!("SELECT {text}\n AS r FROM \"t/#\""))?;
    assert_eq!(outputs.len(), 1);
    Ok(json(outputs[0].member("r").expect("the column")))
}

fn template(setting: &Setting, text: &str) -> Result<String, String> {
    let (text, output) = text.rsplit_once(" with ").expect("a template with an output");
    let parsed = Template::parse(text, &setting.limits).map_err(|error| error.to_string())?;
    assert_eq!(parsed.to_string(), text);
    let output = Sample::parse(Event::Publish, &format!("{{\"tenant\": {output}}}"), &Limits::default());
    let output = rules::Message::field(&output.expect("an output"), rules::Field::Tenant);
    let rendered = parsed.render(&output, &setting.limits).map_err(|error| error.to_string())?;
    Ok(String::from_utf8(rendered).expect("UTF-8"))
}

/// Lines of the file, with those that go on joined to the one before.
fn lines() -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    for (index, line) in include_str!("cases.txt").lines().enumerate() {
        let goes_on = lines.last().is_some_and(|(_, before)| is_open(before)) && !line.is_empty();
        match lines.last_mut() {
            Some((_, before)) if goes_on => {
                before.push('\n');
                before.push_str(line);
            }
            _ => lines.push((index + 1, line.to_owned())),
        }
    }
    lines
}

/// Returns whether a case goes on in the next line.
fn is_open(line: &str) -> bool {
    const SETTINGS: [&str; 6] = ["#", "message:", "payload:", "hex:", "event:", "limit:"];
    !line.is_empty() && !SETTINGS.iter().any(|name| line.starts_with(name)) && !line.contains("=> ")
}

#[test]
fn cases_have_their_results() {
    let mut setting = Setting {
        event: Event::Publish,
        message: "{}".to_owned(),
        payload: Vec::new(),
        limits: Limits::default(),
    };
    let (mut count, mut wrong) = (0, Vec::new());
    for (number, line) in lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((case, expected)) = line.rsplit_once("=> ") else {
            let (name, text) = line.split_once(':').expect(&line);
            setting.set(name, text.trim());
            continue;
        };
        if cfg!(feature = "jq") && case.starts_with("jq(") {
            continue;
        }
        count += 1;
        let result = if let Some(rule) = case.strip_prefix("rule:") {
            outputs(&setting, rule.trim()).map(|outputs| json(&Value::array(outputs)))
        } else if let Some(text) = case.strip_prefix("template:") {
            template(&setting, text.trim())
        } else {
            expression(&setting, case.trim())
        };
        let is_right = match (&result, expected.strip_prefix("error: ")) {
            (Ok(result), None) => result == expected,
            (Err(error), Some(part)) => error.contains(part),
            _ => false,
        };
        if !is_right {
            wrong.push(format!("{number}: {case}=> {result:?}, expected {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {count} cases:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count >= 200, "only {count} cases");
}

/// The cases call every function.
#[test]
fn every_function_has_a_case() {
    let text = include_str!("cases.txt");
    let missing: Vec<&str> =
        rules::function_names().filter(|name| !text.contains(&format!("{name}("))).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn functions_have_different_names() {
    let mut names = HashSet::new();
    assert!(rules::function_names().all(|name| names.insert(name)));
}

#[test]
fn a_rule_tells_its_sources() {
    let text = "SELECT clientid FROM \"a/#\", \"$events/client/connected\", \"b\"";
    let rule = Rule::parse(text, &Limits::default()).expect("a rule");
    assert_eq!(rule.filters().collect::<Vec<_>>(), ["a/#", "b"]);
    assert_eq!(rule.events().collect::<Vec<_>>(), [Event::Connected]);
    assert_eq!(rule.sources().len(), 3);
}

/// A column that WHERE uses has the value that WHERE saw.
#[test]
fn a_column_is_evaluated_once() {
    let limits = Limits::default();
    let sample = Sample::parse(Event::Publish, "{}", &limits).expect("a sample");
    let outputs = ["SELECT uuid_v4() AS u FROM \"a\"", "SELECT uuid_v4() AS u FROM \"a\" WHERE u != ''"]
        .map(|text| Rule::parse(text, &limits).expect(text).evaluate(&sample, &context(), &limits));
    assert_eq!(outputs[0], outputs[1]);
}

#[test]
fn a_constant_template_is_known() {
    let limits = Limits::default();
    for (text, is_constant) in [("", true), ("a $${x}", true), ("${x}", false), ("a${.}", false)] {
        assert_eq!(Template::parse(text, &limits).expect(text).is_constant(), is_constant, "{text}");
    }
}

/// Bytes are rendered as they are, and are no JSON.
#[test]
fn a_template_may_render_bytes() {
    let limits = Limits::default();
    let output = Value::object([("b", Value::of_bytes(&[0xFF, 0]))]);
    assert_eq!(output.member("b").map(Value::kind), Some(Kind::Bytes));
    let render = |text: &str| Template::parse(text, &limits).expect(text).render(&output, &limits);
    assert_eq!(render("<${b}>"), Ok(b"<\xFF\0>".to_vec()));
    assert_eq!(render("${.}"), Err(rules::RenderError::BytesInJson));
}
