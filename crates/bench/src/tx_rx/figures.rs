//! Figures of one measurement, and medians of several.

use super::options::Ends;
use crate::report::round;
use serde_json::{Value, json};

/// Figures of the receiver.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    pub received: f64,
    pub lost: f64,
    pub per_s: f64,
    /// Payload bits per second, in millions.
    pub mbit_per_s: f64,
    /// Latency in microseconds since a message was sent, or was due with a rate.
    pub min_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    /// True when the generator used all of its CPU.
    pub saturated: bool,
    /// Violations by the broker.
    pub violations: Vec<String>,
}

impl Figures {
    /// Reads the report of the checker's flow.
    pub fn of(report: &Value, size: usize) -> Figures {
        let number = |path: &str| report.pointer(path).and_then(Value::as_f64).unwrap_or(0.0);
        let mut violations: Vec<String> = report["violations"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|violation| violation.as_str().map(str::to_owned))
            .collect();
        if report["interrupted"] == true {
            violations.push("it did not end in time".to_owned());
        }
        let per_s = number("/received_per_s");
        Figures {
            received: number("/totals/received"),
            lost: number("/lost"),
            per_s,
            mbit_per_s: per_s * size as f64 * 8.0 / 1e6,
            min_us: number("/latency_us/min"),
            p50_us: number("/latency_us/p50"),
            p99_us: number("/latency_us/p99"),
            max_us: number("/latency_us/max"),
            saturated: report.pointer("/cpu/generator_saturated") == Some(&Value::Bool(true)),
            violations,
        }
    }

    /// Median of each figure, and the extremes of the lowest and highest latencies. `runs` is not empty.
    pub fn median(runs: &[Figures]) -> Figures {
        let of = |figure: fn(&Figures) -> f64| {
            let mut all: Vec<f64> = runs.iter().map(figure).collect();
            all.sort_by(f64::total_cmp);
            all[(all.len() - 1) / 2]
        };
        Figures {
            received: of(|f| f.received),
            lost: runs.iter().map(|f| f.lost).sum(),
            per_s: of(|f| f.per_s),
            mbit_per_s: of(|f| f.mbit_per_s),
            min_us: runs.iter().map(|f| f.min_us).fold(f64::INFINITY, f64::min),
            p50_us: of(|f| f.p50_us),
            p99_us: of(|f| f.p99_us),
            max_us: runs.iter().map(|f| f.max_us).fold(0.0, f64::max),
            saturated: runs.iter().any(|f| f.saturated),
            violations: vec![],
        }
    }

    pub fn problems(&self, ends: &Ends, size: usize, qos: u8) -> Vec<String> {
        let mut problems = self.violations.clone();
        if self.received == 0.0 {
            problems.push("nothing arrived: are the two hosts nodes of one cluster?".to_owned());
        }
        problems.into_iter().map(|problem| format!("{size} B, QoS {qos}, {ends}: {problem}")).collect()
    }

    pub fn json(&self) -> Value {
        json!({
            "received": self.received, "lost": self.lost, "msgs_per_s": round(self.per_s, 1),
            "mbit_per_s": round(self.mbit_per_s, 2),
            "latency_us": { "min": self.min_us, "p50": self.p50_us, "p99": self.p99_us, "max": self.max_us },
            "generator_saturated": self.saturated,
        })
    }

    /// Difference in percent of the other's figures; null where those are 0.
    pub fn difference(&self, other: &Figures) -> Value {
        let percent = |here: f64, there: f64| percent(here, there).map(|percent| round(percent, 1));
        json!({
            "msgs_per_s": percent(self.per_s, other.per_s), "p50": percent(self.p50_us, other.p50_us),
            "p99": percent(self.p99_us, other.p99_us),
        })
    }
}

/// Difference of `here` from `there` in percent.
pub fn percent(here: f64, there: f64) -> Option<f64> {
    if there > 0.0 { Some((here / there - 1.0) * 100.0) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(per_s: f64, p50_us: f64, min_us: f64, max_us: f64) -> Figures {
        Figures { per_s, p50_us, min_us, max_us, received: 1.0, ..Figures::default() }
    }

    #[test]
    fn medians_and_extremes_are_computed() {
        let runs = [run(10.0, 5.0, 3.0, 9.0), run(30.0, 1.0, 1.0, 7.0), run(20.0, 9.0, 2.0, 50.0)];
        assert_eq!(Figures::median(&runs), run(20.0, 5.0, 1.0, 50.0));
    }

    #[test]
    fn differences_are_in_percent_of_the_other() {
        let difference = run(2424.0, 2.0, 0.0, 0.0).difference(&run(3400.0, 0.0, 0.0, 0.0));
        assert_eq!(difference, json!({ "msgs_per_s": -28.7, "p50": null, "p99": null }));
    }

    #[test]
    fn megabits_count_the_payload() {
        let figures = Figures::of(&json!({ "received_per_s": 21_800.0, "totals": { "received": 5 } }), 100);
        assert_eq!(figures.json()["mbit_per_s"], 17.44);
        assert!(figures.problems(&ends(), 100, 0).is_empty());
    }

    #[test]
    fn silence_and_violations_are_problems() {
        let figures =
            Figures::of(&json!({ "violations": ["3 acknowledged messages lost"], "interrupted": true }), 100);
        let problems = figures.problems(&ends(), 100, 1).join("\n");
        for expected in ["3 acknowledged messages lost", "did not end in time", "nothing arrived"] {
            assert!(problems.contains(expected), "{problems}");
        }
    }

    fn ends() -> Ends {
        let address = "127.0.0.1:1883".parse().unwrap();
        Ends { publisher: address, subscriber: address }
    }
}
