//! Fuzzing of the parser, the evaluator, templates and JSON with mutations of `cases.txt`, for two seconds or for
//! `MERIDIAN_FUZZ_SECONDS`. `MERIDIAN_FUZZ_SEED` selects another run than the usual one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use random::Random;
use rules::{Context, Event, Limits, Rule, Sample, Template, Value};

/// Maximum number of rounds of a run without a requested duration.
const ROUNDS_MAX: u64 = 200_000;
const SECONDS: u64 = 2;

/// Texts of the cases, by what they are.
struct Corpus {
    rules: Vec<String>,
    templates: Vec<String>,
    payloads: Vec<String>,
}

impl Corpus {
    fn load() -> Self {
        let mut corpus = Self { rules: vec![], templates: vec![], payloads: vec![] };
        for line in include_str!("cases.txt").lines() {
            if let Some(payload) = line.strip_prefix("payload:") {
                corpus.payloads.push(payload.trim().to_owned());
            } else if let Some((template, _)) =
                line.strip_prefix("template:").and_then(|line| line.split_once(" with "))
            {
                corpus.templates.push(template.trim().to_owned());
            } else if let Some((case, _)) = line.rsplit_once("=> ").filter(|_| !line.starts_with('#')) {
                let rule = match case.strip_prefix("rule:") {
                    Some(rule) => rule.trim().to_owned(),
                    None => format!("SELECT {case} AS r FROM \"t/#\""),
                };
                corpus.rules.push(rule);
            }
        }
        assert!(corpus.rules.len() > 200 && corpus.templates.len() > 10 && corpus.payloads.len() > 5);
        corpus
    }
}

#[test]
fn mutations_of_the_cases_find_no_contradiction() {
    let seed = variable("MERIDIAN_FUZZ_SEED").unwrap_or(0);
    let asked = variable("MERIDIAN_FUZZ_SECONDS");
    let rounds_max = if asked.is_some() { u64::MAX } else { ROUNDS_MAX };
    let end = Instant::now() + Duration::from_secs(asked.unwrap_or(SECONDS));
    let corpus = Corpus::load();
    let mut round = 0;
    let mut evaluated = 0_u64;
    while round < rounds_max && (round % 256 != 0 || Instant::now() < end) {
        // Each round has its own generator, so that a failure can be run alone.
        let mut random = Random::new(seed.wrapping_mul(1 << 32).wrapping_add(round));
        let rule = mutated(&mut random, &corpus.rules);
        let template = mutated(&mut random, &corpus.templates);
        let payload = mutated(&mut random, &corpus.payloads);
        let run = || check(&rule, &template, payload.as_bytes());
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(is_evaluated) => evaluated += u64::from(is_evaluated),
            Err(panic) => {
                eprintln!(
                    "seed {seed} round {round}: rule {rule:?}, template {template:?}, payload {payload:?}"
                );
                std::panic::resume_unwind(panic);
            }
        }
        round += 1;
    }
    assert!(evaluated > round / 50, "{evaluated} of {round} rounds evaluated a rule");
}

/// One text of the corpus with a few changes. Some texts stay as they are.
fn mutated(random: &mut Random, corpus: &[String]) -> String {
    let mut bytes = random.pick(corpus).clone().into_bytes();
    let other = random.pick(corpus).as_bytes();
    for _ in 0..random.below(4) {
        let at = random.below(bytes.len() + 1);
        match random.below(6) {
            0 if at < bytes.len() => bytes[at] = random.byte(),
            1 => bytes.insert(at, *random.pick(b"'\"()[].,*+-/=<>~${}?:0129eaZ \n_\\#\0\xFF")),
            2 => {
                let end = (at + random.below(6)).min(bytes.len());
                bytes.drain(at..end);
            }
            3 => {
                let from = random.below(other.len() + 1);
                let to = (from + random.below(16)).min(other.len());
                bytes.splice(at..at, other[from..to].iter().copied());
            }
            4 => {
                let end = (at + random.below(10)).min(bytes.len());
                let copy = bytes[at..end].repeat(1 + random.below(4));
                bytes.splice(at..at, copy);
            }
            _ => {
                let number =
                    *random.pick(&["0", "-1", "9223372036854775807", "1e308", "65", "null", "''", "payload"]);
                bytes.splice(at..at, number.bytes());
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs everything with the three texts. Returns whether the rule was evaluated.
fn check(rule: &str, template: &str, payload: &[u8]) -> bool {
    let parse_limits = Limits { regex_bytes: 20_000, ..Limits::default() };
    let limits = Limits { steps: 3_000, bytes: 20_000, outputs: 10, rendered_bytes: 500, ..parse_limits };
    let fields =
        r#"{"clientid": "c1", "topic": "t/room 1/temp", "qos": 1, "client_attrs": {"site": "north"}}"#;
    let message = Sample::parse(Event::Publish, fields, &Limits::default()).expect("a sample");
    let message = message.with_payload(payload);
    let context = Context { now: Duration::from_nanos(1_706_702_400_123_456_789), random: 99 };

    let template = Template::parse(template, &limits);
    let render = |output: &Value| {
        if let Ok(template) = &template {
            let rendered = template.render(output, &limits);
            assert_eq!(rendered, template.render(output, &limits));
            assert!(
                rendered.is_ok_and(|text| text.len() <= limits.rendered_bytes) || !template.is_constant()
            );
        }
    };
    render(&Value::object([("a", Value::of_bytes(payload))]));

    let Ok(rule) = Rule::parse(rule, &parse_limits) else { return false };
    let printed = rule.to_string();
    match Rule::parse(&printed, &parse_limits) {
        Ok(again) => assert_eq!(again, rule, "{printed}"),
        Err(error) => panic!("{printed}: {error}"),
    }
    let result = rule.evaluate(&message, &context, &limits);
    assert_eq!(result, rule.evaluate(&message, &context, &limits));
    match &result {
        Ok(outputs) => {
            assert!(outputs.len() <= limits.outputs);
            outputs.iter().for_each(render);
        }
        Err(error) => assert!(!error.to_string().is_empty() && !error.reason().is_empty()),
    }
    result.is_ok()
}

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}
