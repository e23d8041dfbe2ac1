//! `meridian ctl metrics`: the metrics that Prometheus scrapes.

use clap::Args;
use serde_json::{Map, Value, json};

use super::Command;
use crate::console::Console;
use crate::failure::Failure;

/// Print the metrics in Prometheus' format
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl metrics
  meridian ctl metrics meridian_messages
  meridian ctl metrics --json | jq '.items[] | select(.name == \"meridian_clients\").value'

With --json: {\"items\":[{\"name\",\"type\",\"labels\",\"value\"}]}; a value that is no JSON number is a string.")]
pub struct MetricsArgs {
    /// Show metrics whose names begin with this
    #[arg(default_value = "")]
    prefix: String,
}

impl Command for MetricsArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let text = console.client.text("/metrics")?;
        let lines: Vec<&str> = text.lines().filter(|line| name(line).starts_with(&self.prefix)).collect();
        if lines.is_empty() {
            return Err(Failure::Failed(format!("no metric begins with {}", self.prefix)));
        }
        if console.json {
            return console.document(&json!({"items": samples(&lines)}));
        }
        let mut chosen = lines.join("\n");
        chosen.push('\n');
        console.text(&chosen)
    }
}

/// Returns the metric of a line; a comment has it as its third word.
fn name(line: &str) -> &str {
    match line.strip_prefix('#') {
        Some(comment) => comment.split_whitespace().nth(1).unwrap_or_default(),
        None => line.split(['{', ' ']).next().unwrap_or_default(),
    }
}

fn samples(lines: &[&str]) -> Vec<Value> {
    let mut kinds = Map::new();
    let mut samples = Vec::new();
    for line in lines {
        if let Some(comment) = line.strip_prefix("# TYPE ") {
            if let Some((name, kind)) = comment.split_once(' ') {
                kinds.insert(name.to_owned(), kind.into());
            }
        } else if !line.starts_with('#')
            && let Some(sample) = sample(line, &kinds)
        {
            samples.push(sample);
        }
    }
    samples
}

fn sample(line: &str, kinds: &Map<String, Value>) -> Option<Value> {
    let name = name(line);
    let rest = line.get(name.len()..)?;
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Map::new(), rest),
    };
    let written = rest.split_whitespace().next()?;
    let value: f64 = written.parse().ok()?;
    let value = match written.parse::<u64>() {
        Ok(whole) => whole.into(),
        Err(_) if value.is_finite() => value.into(),
        Err(_) => Value::from(written),
    };
    let family = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
    let kind = kinds.get(name).or_else(|| kinds.get(family?));
    Some(json!({"name": name, "type": kind, "labels": labels, "value": value}))
}

/// Parses labels up to and including the closing brace, and returns the rest.
fn labels(mut rest: &str) -> Option<(Map<String, Value>, &str)> {
    let mut labels = Map::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, after) = rest.split_once("=\"")?;
        let (mut value, mut escaped, mut end) = (String::new(), false, None);
        for (at, c) in after.char_indices() {
            match (escaped, c) {
                (false, '\\') => escaped = true,
                (false, '"') => {
                    end = Some(at + 1);
                    break;
                }
                (true, 'n') => (value.push('\n'), escaped = false).1,
                _ => (value.push(c), escaped = false).1,
            }
        }
        labels.insert(name.to_owned(), value.into());
        rest = &after[end?..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn samples_become_json() {
        let text = "# HELP m_total What.\n# TYPE m_total counter\nm_total{a=\"x\\\"\\\\\\n\",b=\"}\"} 3\nm_total 1.5\n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 2\nh_sum NaN\n";
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            samples(&lines),
            [
                json!({"name": "m_total", "type": "counter", "labels": {"a": "x\"\\\n", "b": "}"}, "value": 3}),
                json!({"name": "m_total", "type": "counter", "labels": {}, "value": 1.5}),
                json!({"name": "h_bucket", "type": "histogram", "labels": {"le": "+Inf"}, "value": 2}),
                json!({"name": "h_sum", "type": "histogram", "labels": {}, "value": "NaN"}),
            ]
        );
        assert_eq!(name("# HELP m_total What."), "m_total");
    }

    proptest! {
        #[test]
        fn no_text_panics(line in any::<String>(), near in "[a-z]{0,3}[{]?([a-z]=\"[^x]{0,3}\",?){0,2}[}]? ?[0-9.]{0,3}") {
            samples(&[&line, &near]);
        }
    }
}
