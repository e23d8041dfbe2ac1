//! The checked-in figures, and their comparison with measured ones.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fmt;

/// Maximum relative growth of a figure.
const TOLERANCE: f64 = 0.03;
/// Maximum absolute growth. A figure of 0 has no relative growth, and one-time work of a run is not part of a
/// message.
const SLACK: f64 = 0.01;

/// Measurements of one run: figures per message by name, such as `qos1.instructions`.
#[derive(Debug, Default, PartialEq)]
pub struct Record {
    pub rustc: String,
    pub figures: BTreeMap<String, f64>,
}

#[derive(Debug, PartialEq)]
pub enum Verdict {
    Same {
        now: f64,
    },
    Better {
        was: f64,
        now: f64,
    },
    Worse {
        was: f64,
        now: f64,
    },
    /// A figure that is measured and missing in the file.
    New {
        now: f64,
    },
    /// A figure in the file that is not measured any more.
    Gone {
        was: f64,
    },
}

impl Verdict {
    fn of(was: f64, now: f64) -> Verdict {
        let margin = was * TOLERANCE + SLACK;
        if now > was + margin {
            Verdict::Worse { was, now }
        } else if now < was - margin {
            Verdict::Better { was, now }
        } else {
            Verdict::Same { now }
        }
    }

    pub fn is_failure(&self) -> bool {
        matches!(self, Verdict::Worse { .. } | Verdict::New { .. } | Verdict::Gone { .. })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let change = |was: f64, now: f64| {
            if was > 0.0 { format!("{:+.1} %", (now / was - 1.0) * 100.0) } else { "from nothing".to_owned() }
        };
        match *self {
            Verdict::Same { now } => write!(f, "{now:>12.2}"),
            Verdict::Better { was, now } => {
                write!(f, "{now:>12.2}  better: was {was:.2} ({})", change(was, now))
            }
            Verdict::Worse { was, now } => {
                write!(f, "{now:>12.2}  WORSE: was {was:.2} ({})", change(was, now))
            }
            Verdict::New { now } => write!(f, "{now:>12.2}  NOT IN THE FILE"),
            Verdict::Gone { was } => write!(f, "{:>12}  NO LONGER MEASURED: was {was:.2}", "-"),
        }
    }
}

impl Record {
    /// Parses figures.
    ///
    /// # Errors
    /// Invalid TOML, a value that is not a finite number.
    pub fn parse(text: &str) -> Result<Record> {
        let document: toml::Table = text.parse()?;
        let mut record = Record::default();
        for (key, value) in &document {
            if key == "rustc" {
                record.rustc = value.as_str().context("rustc is a text")?.to_owned();
                continue;
            }
            for (name, value) in value.as_table().with_context(|| format!("{key} is a table"))? {
                let number = value.as_float().or_else(|| value.as_integer().map(|n| n as f64));
                let number = number.with_context(|| format!("{key}.{name} is a number"))?;
                ensure!(number.is_finite() && number >= 0.0, "{key}.{name} is {number}");
                record.figures.insert(format!("{key}.{name}"), number);
            }
        }
        Ok(record)
    }

    /// Compares every figure of either side. A figure that was not measured counts only when the run was `complete`.
    pub fn compare(&self, found: &Record, complete: bool) -> Vec<(String, Verdict)> {
        let measured = found.figures.iter().map(|(name, &now)| {
            let verdict = self.figures.get(name).map_or(Verdict::New { now }, |&was| Verdict::of(was, now));
            (name.clone(), verdict)
        });
        let gone = self.figures.iter().filter(|(name, _)| complete && !found.figures.contains_key(*name));
        measured.chain(gone.map(|(name, &was)| (name.clone(), Verdict::Gone { was }))).collect()
    }
}

/// Formats the figures for the file.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        writeln!(
            f,
            "# What a message costs, in figures that repeat exactly: `cargo xtask ratchet` fails when one grows by more"
        )?;
        writeln!(f, "# than 3 %. Written by `cargo xtask ratchet --write`.")?;
        writeln!(f, "rustc = \"{}\"", self.rustc)?;
        let mut before = "";
        for (name, figure) in &self.figures {
            let (table, name) = name.split_once('.').unwrap_or(("", name));
            if table != before {
                writeln!(f, "\n[{table}]")?;
                before = table;
            }
            writeln!(f, "{name} = {figure:.2}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(figures: &[(&str, f64)]) -> Record {
        let figures = figures.iter().map(|(name, figure)| (name.to_string(), *figure)).collect();
        Record { rustc: "rustc 1.95.0".into(), figures }
    }

    #[test]
    fn a_written_record_reads_back() {
        let record =
            record(&[("qos0.instructions", 4454.25), ("qos0.allocations", 0.0), ("tcp.calls-qos1", 6.0)]);
        assert_eq!(Record::parse(&record.to_string()).unwrap(), record);
    }

    #[test]
    fn three_percent_more_is_worse_and_three_percent_less_is_better() {
        let worse = |was, now| Verdict::of(was, now).is_failure();
        assert!(!worse(1000.0, 1000.0) && !worse(1000.0, 1029.0) && worse(1000.0, 1031.0));
        assert!(worse(0.0, 1.0) && worse(0.0, 0.02) && !worse(0.0, 0.0));
        assert!(worse(5.0, 6.0) && !worse(5.0, 5.01));
        assert_eq!(Verdict::of(1000.0, 960.0), Verdict::Better { was: 1000.0, now: 960.0 });
        assert!(!worse(1000.0, 960.0));
        assert_eq!(Verdict::of(1000.0, 980.0), Verdict::Same { now: 980.0 });
    }

    #[test]
    fn a_new_or_removed_figure_fails_but_an_unmeasured_one_does_not() {
        let (old, new) = (record(&[("a.x", 1.0), ("b.x", 1.0)]), record(&[("a.x", 1.0), ("c.x", 2.0)]));
        let failures = |complete| {
            let verdicts = old.compare(&new, complete);
            verdicts.into_iter().filter(|(_, v)| v.is_failure()).map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(failures(true), ["c.x", "b.x"]);
        assert_eq!(failures(false), ["c.x"]);
    }

    #[test]
    fn an_invalid_file_is_refused() {
        for text in ["x = 1", "[a]\nb = \"much\"", "[a]\nb = nan", "[a]\nb = -1.0", "rustc = 1", "[a"] {
            assert!(Record::parse(text).is_err(), "{text}");
        }
    }
}
