//! Access to the fields of an answer without trust in its shape: a node of another version may leave a field out or add
//! one.

use serde_json::Value;

use crate::{human, wall_clock};
use std::time::SystemTime;

/// Text of a cell without a value.
pub const NOTHING: &str = "-";

/// Removes and returns a field; null when there is none.
pub fn take(value: &mut Value, key: &str) -> Value {
    value.get_mut(key).map(Value::take).unwrap_or_default()
}

/// Access to fields by name. A path such as `session.inflight` descends into objects.
pub trait Fields {
    fn field(&self, path: &str) -> &Value;

    /// Returns a string, or any other scalar as it is written; empty when there is none.
    fn text(&self, path: &str) -> String;

    fn number(&self, path: &str) -> Option<f64>;

    fn whole(&self, path: &str) -> Option<u64>;

    fn truth(&self, path: &str) -> bool {
        self.field(path).as_bool().unwrap_or(false)
    }

    fn list(&self, path: &str) -> &[Value];

    /// Returns [`Fields::text`], with a dash for a missing value and quotes for an empty string.
    fn cell(&self, path: &str) -> String {
        match self.field(path) {
            Value::String(text) if text.is_empty() => "\"\"".to_owned(),
            _ => or_nothing(self.text(path)),
        }
    }

    fn bytes_cell(&self, path: &str) -> String {
        self.whole(path).map_or_else(|| NOTHING.to_owned(), human::bytes)
    }

    fn count_cell(&self, path: &str) -> String {
        self.whole(path).map_or_else(|| NOTHING.to_owned(), human::count)
    }

    fn rate_cell(&self, path: &str) -> String {
        self.number(path).map_or_else(|| NOTHING.to_owned(), human::short)
    }

    fn seconds_cell(&self, path: &str) -> String {
        self.number(path).map_or_else(|| NOTHING.to_owned(), human::seconds)
    }

    fn ms_cell(&self, path: &str) -> String {
        self.number(path).map_or_else(|| NOTHING.to_owned(), |ms| human::seconds(ms / 1000.0))
    }

    /// Returns the age of a time.
    fn age_cell(&self, path: &str, now: SystemTime) -> String {
        wall_clock::age(&self.text(path), now).map_or_else(|| NOTHING.to_owned(), human::duration)
    }

    /// Returns a time without its fractions: `2026-01-31 12:00:00Z`.
    fn time_cell(&self, path: &str) -> String {
        let text = self.text(path);
        match wall_clock::parse(&text) {
            Some(_) => {
                let zone = text[19..].trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
                format!("{} {}{zone}", &text[..10], &text[11..19])
            }
            None => or_nothing(text),
        }
    }
}

fn or_nothing(text: String) -> String {
    if text.is_empty() { NOTHING.to_owned() } else { text }
}

impl Fields for Value {
    fn field(&self, path: &str) -> &Value {
        path.split('.').fold(self, |value, key| &value[key])
    }

    fn text(&self, path: &str) -> String {
        match self.field(path) {
            Value::Null | Value::Array(_) | Value::Object(_) => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }

    fn number(&self, path: &str) -> Option<f64> {
        self.field(path).as_f64()
    }

    fn whole(&self, path: &str) -> Option<u64> {
        let value = self.field(path);
        // A float without a fraction is a whole number too.
        value.as_u64().or_else(|| value.as_f64().filter(|f| *f >= 0.0 && f.is_finite()).map(|f| f as u64))
    }

    fn list(&self, path: &str) -> &[Value] {
        self.field(path).as_array().map_or(&[], |list| list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_value_can_be_shown() {
        let value = json!({"a": {"b": 1536}, "s": "", "t": "2026-01-31T12:00:00.5Z", "l": [1], "n": null});
        assert_eq!(value.bytes_cell("a.b"), "1.5 KiB");
        assert_eq!(value.cell("s"), "\"\"");
        assert_eq!(value.cell("n"), "-");
        assert_eq!(value.cell("a.x.y"), "-");
        assert_eq!(value.time_cell("t"), "2026-01-31 12:00:00Z");
        assert_eq!(value.list("l").len(), 1);
        assert_eq!(value.list("s").len(), 0);
        assert_eq!(value.age_cell("s", SystemTime::now()), "-");
        assert_eq!(json!([1]).cell("a"), "-");
    }
}
