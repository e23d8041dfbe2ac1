//! Prometheus' text format (version 0.0.4): families with HELP and TYPE, samples with labels.

use std::fmt::Write as _;

/// Type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Text of one scrape.
#[derive(Debug, Default)]
pub struct Text(String);

impl Text {
    /// Begins a family. `name` includes its suffix: `_total` for counters, none for gauges and histograms.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) -> Family<'_> {
        debug_assert!(is_name(name) && (kind == Kind::Counter) == name.ends_with("_total"), "{name}");
        self.0.push_str("# HELP ");
        self.0.push_str(name);
        self.0.push(' ');
        escape(&mut self.0, help.trim(), false);
        self.push(format_args!("\n# TYPE {name} {}\n", kind.name()));
        Family { name: name.to_owned(), text: self }
    }

    /// Writes a family with one sample.
    pub fn one(&mut self, name: &str, kind: Kind, help: &str, value: f64) {
        self.family(name, kind, help).sample(&[], value);
    }

    pub fn into_string(self) -> String {
        self.0
    }

    fn push(&mut self, arguments: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.0.write_fmt(arguments);
    }
}

/// A family that accepts further samples.
#[derive(Debug)]
pub struct Family<'a> {
    name: String,
    text: &'a mut Text,
}

impl Family<'_> {
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        self.line("", labels, None, value);
    }

    /// Writes a histogram from the count of each single bucket. `bounds` are their upper ends; `counts` has one more
    /// for all values beyond.
    pub fn histogram(&mut self, labels: &[(&str, &str)], bounds: &[f64], counts: &[u64], sum: f64) {
        let mut below = 0;
        for (bound, count) in bounds.iter().zip(counts) {
            below += count;
            self.line("_bucket", labels, Some(&bound.to_string()), below as f64);
        }
        below += counts.iter().skip(bounds.len()).sum::<u64>();
        self.line("_bucket", labels, Some("+Inf"), below as f64);
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, below as f64);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], le: Option<&str>, value: f64) {
        let out = &mut self.text.0;
        out.push_str(&self.name);
        out.push_str(suffix);
        let labels = labels.iter().copied().chain(le.map(|le| ("le", le)));
        let mut open = false;
        for (name, value) in labels {
            debug_assert!(is_name(name) && !name.contains(':'), "{name}");
            out.push(if open { ',' } else { '{' });
            open = true;
            out.push_str(name);
            out.push_str("=\"");
            escape(out, value, true);
            out.push('"');
        }
        if open {
            out.push('}');
        }
        // Rust's texts of infinities and NaN are valid for Prometheus, and whole numbers have no fraction.
        self.text.push(format_args!(" {value}\n"));
    }
}

fn is_name(name: &str) -> bool {
    let first = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_' || byte == b':';
    name.bytes().next().is_some_and(first) && name.bytes().all(|byte| first(byte) || byte.is_ascii_digit())
}

fn escape(out: &mut String, text: &str, quotes: bool) {
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_has_its_help_its_type_and_its_samples() {
        let mut text = Text::default();
        let mut family = text.family("a_total", Kind::Counter, " How many\nand \\ \"why\".");
        family.sample(&[("reason", "a\"b\\c\nd"), ("n", "1")], 3.0);
        family.sample(&[], u64::from(u32::MAX) as f64);
        text.one("b", Kind::Gauge, "Half.", 0.5);
        let expected = "# HELP a_total How many\\nand \\\\ \"why\".\n# TYPE a_total counter\n\
                        a_total{reason=\"a\\\"b\\\\c\\nd\",n=\"1\"} 3\na_total 4294967295\n\
                        # HELP b Half.\n# TYPE b gauge\nb 0.5\n";
        assert_eq!(text.into_string(), expected);
    }

    #[test]
    fn buckets_add_up() {
        let mut text = Text::default();
        text.family("h", Kind::Histogram, "H.").histogram(&[("r", "0")], &[0.5, 1.0], &[1, 2, 4], 9.5);
        let text = text.into_string();
        let samples: Vec<_> = text.lines().skip(2).collect();
        let expected = [
            "h_bucket{r=\"0\",le=\"0.5\"} 1",
            "h_bucket{r=\"0\",le=\"1\"} 3",
            "h_bucket{r=\"0\",le=\"+Inf\"} 7",
            "h_sum{r=\"0\"} 9.5",
            "h_count{r=\"0\"} 7",
        ];
        assert_eq!(samples, expected);
    }
}
