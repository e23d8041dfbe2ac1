//! One run of the load generator, and the figures kept of its report.

use super::broker::Broker;
use super::generator;
use super::idle_clients::IdleClients;
use super::table::number;
use super::workload::{Purpose, Workload};
use crate::repository::root;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fmt;
use std::process::Command;
use std::time::Duration;

/// Results of one run. Figures that a load does not measure are `None`.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Broker CPU in microseconds for each delivery, or for each client that connects and subscribes.
    pub cpu_us: Option<f64>,
    /// Deliveries, or clients, per second.
    pub per_s: Option<f64>,
    pub lost: Option<f64>,
    /// Lost messages that the publisher has an acknowledgement for.
    pub lost_acknowledged: Option<f64>,
    pub disconnects: Option<f64>,
    /// End-to-end latency in microseconds.
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    /// Anonymous proportional memory of the broker, in bytes for each connection.
    pub anonymous: Option<f64>,
    /// Resident memory, in bytes for each connection.
    pub resident: Option<f64>,
    /// Peak resident memory beyond that before the first connection, in MiB.
    pub peak_mib: Option<f64>,
    /// True when the generator used all of its CPU: the result may be its limit.
    pub generator_saturated: bool,
    /// Violations by the broker.
    pub violations: Vec<String>,
}

/// Runs the load on the broker, at `rate` where the load does not set one.
///
/// # Errors
/// The generator does not end in time, cannot connect, or was interrupted.
pub fn run(workload: &Workload, broker: &Broker, round: u32, rate: Option<f64>) -> Result<Figures> {
    let idle_clients = workload
        .idle_clients
        .as_ref()
        .map(|arguments| IdleClients::start(broker.address, arguments))
        .transpose()?;
    let mut arguments = workload.arguments.clone();
    if let Some(rate) = rate {
        arguments.extend(["-R".to_owned(), format!("{rate:.0}")]);
    }
    let report = generate(&arguments, broker, Duration::from_secs(workload.longest_s.into()))?;
    drop(idle_clients);
    keep(workload, round, &report);
    if let Some(error) = report["error"].as_str() {
        bail!("{error}: {}", report["reasons"]);
    }
    Ok(figures(workload.purpose, &report))
}

/// Runs mqload with these arguments on this broker and returns its report.
///
/// # Errors
/// It does not end in time, prints nothing, or was interrupted.
pub fn generate(arguments: &[String], broker: &Broker, longest: Duration) -> Result<Value> {
    let mut command = Command::new(root().join("target/release/mqload"));
    command.args(arguments);
    command.args(["-H", &broker.address.to_string(), "--broker-pid", &broker.pid().to_string(), "--quiet"]);
    let text = generator::report(&mut command, longest)?
        .with_context(|| format!("the generator did not end within {} s", longest.as_secs()))?;
    serde_json::from_str(&text).context("the generator's report is not JSON")
}

/// Writes the whole report to `target/bench`, to explain figures later.
fn keep(workload: &Workload, round: u32, report: &Value) {
    let directory = root().join("target/bench");
    let path = directory.join(format!("{}-{}-{round}.json", workload.name, report["brokers"][0]["pid"]));
    if let Err(error) =
        std::fs::create_dir_all(&directory).and_then(|()| std::fs::write(&path, report.to_string()))
    {
        eprintln!("{}: {error}", path.display());
    }
}

fn figures(purpose: Purpose, report: &Value) -> Figures {
    let figure = |path: &str| report.pointer(path).and_then(Value::as_f64);
    let mut violations: Vec<String> = report["violations"]
        .as_array()
        .map(|v| v.iter().filter_map(Value::as_str).map(str::to_string).collect())
        .unwrap_or_default();
    match purpose {
        Purpose::Connect | Purpose::Memory => {
            if report["complete"] != true {
                violations.push(format!("not all clients were served: {}", report["reasons"]));
                // The cost of the clients that were served is not representative.
                return Figures { violations, ..Figures::default() };
            }
            let cpu = figure("/broker_cpu_s_until_ready").zip(figure("/ready"));
            Figures {
                cpu_us: cpu.filter(|(_, n)| *n > 0.0).map(|(s, n)| s * 1e6 / n),
                per_s: figure("/subscribed_per_s"),
                anonymous: figure("/memory/pss_anon_per_conn"),
                resident: figure("/memory/rss_per_conn"),
                violations,
                ..Figures::default()
            }
        }
        Purpose::Throughput | Purpose::Latency | Purpose::WithIdleClients | Purpose::Overload => {
            let (asked, sent) = (figure("/rate_asked"), figure("/sent_per_s"));
            if let Some((asked, sent)) = asked.zip(sent).filter(|(asked, sent)| *sent < asked * 0.98) {
                violations.push(format!("{sent:.0} messages/s were sent, not {asked:.0}"));
            }
            let disconnects = figure("/disconnects");
            if let Some(count) = disconnects.filter(|count| *count > 0.0) {
                violations.push(format!("{count:.0} clients were disconnected: {}", report["reasons"]));
            }
            let before = figure("/broker_rss_before");
            let grown = |to: Option<f64>| to.zip(before).map(|(to, from)| to - from);
            let clients = figure("/pubs").zip(figure("/subs")).map(|(pubs, subs)| pubs + subs);
            let resident =
                grown(figure("/brokers/0/rss_after")).zip(clients).map(|(bytes, n)| bytes / n.max(1.0));
            Figures {
                cpu_us: figure("/cpu/broker_us_per_delivery"),
                per_s: figure("/received_per_s"),
                lost: figure("/lost"),
                lost_acknowledged: figure("/lost_acked"),
                disconnects,
                p50_us: figure("/latency_us/p50"),
                p99_us: figure("/latency_us/p99"),
                resident,
                peak_mib: grown(figure("/brokers/0/rss_peak_seen")).map(|bytes| bytes / f64::from(1 << 20)),
                generator_saturated: report["cpu"]["generator_saturated"] == true,
                violations,
                ..Figures::default()
            }
        }
    }
}

/// Median, lowest and highest of several runs. Shown as "2.0 (1.0-3.0)", with as many digits as the format's
/// precision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    pub median: f64,
    pub lowest: f64,
    pub highest: f64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let digits = f.precision().unwrap_or(0);
        let n = |x| number(x, digits);
        write!(f, "{}", n(self.median))?;
        if self.lowest != self.highest {
            write!(f, " ({}-{})", n(self.lowest), n(self.highest))?;
        }
        Ok(())
    }
}

/// Summary of a figure; `None` when no run has it.
pub fn summary<R>(runs: &[R], figure: impl Fn(&R) -> Option<f64>) -> Option<Summary> {
    let mut values: Vec<f64> = runs.iter().filter_map(figure).collect();
    values.sort_by(f64::total_cmp);
    let (lowest, highest) = (*values.first()?, *values.last()?);
    let middle = values.len() / 2;
    let median =
        if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
    Some(Summary { median, lowest, highest })
}

/// The summary as a cell of a table; "-" when no run has the figure.
pub fn cell<R>(runs: &[R], digits: usize, figure: impl Fn(&R) -> Option<f64>) -> String {
    summary(runs, figure).map_or("-".to_owned(), |found| format!("{found:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_median_is_in_the_middle() {
        let of = |values: &[f64]| summary(values, |v| Some(*v));
        assert_eq!(of(&[3.0, 1.0, 9.0]), Some(Summary { median: 3.0, lowest: 1.0, highest: 9.0 }));
        assert_eq!(of(&[4.0, 2.0]).map(|s| s.median), Some(3.0));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn a_cell_shows_the_spread_where_there_is_one() {
        let of = |values: &[f64], digits| cell(values, digits, |v| Some(*v));
        assert_eq!(of(&[1000.0, 2000.5, 3000.0], 1), "2,000.5 (1,000.0-3,000.0)");
        assert_eq!(of(&[7.0, 7.0], 0), "7");
        assert_eq!(of(&[], 0), "-");
    }

    #[test]
    fn figures_are_taken_from_the_report() {
        let report = json!({ "cpu": { "broker_us_per_delivery": 1.5, "generator_saturated": true }, "pubs": 10, "subs": 10,
            "received_per_s": 1000.0, "lost": 3, "lost_acked": 2, "latency_us": { "p50": 40.0, "p99": 60.0 },
            "violations": ["x"], "broker_rss_before": 1_048_576,
            "brokers": [{ "rss_peak_seen": 3_145_728, "rss_after": 1_048_776 }], "disconnects": 0, "rate_asked": 0.0, "sent_per_s": 1000.0 });
        let f = figures(Purpose::Throughput, &report);
        assert_eq!((f.cpu_us, f.per_s, f.lost), (Some(1.5), Some(1000.0), Some(3.0)));
        assert_eq!((f.p50_us, f.p99_us, f.generator_saturated), (Some(40.0), Some(60.0), true));
        assert_eq!((f.lost_acknowledged, f.resident, f.peak_mib), (Some(2.0), Some(10.0), Some(2.0)));
        assert_eq!(f.violations, ["x"]);
        let mut report = json!({ "complete": true, "reasons": {}, "broker_cpu_s_until_ready": 0.5, "ready": 10_000,
            "subscribed_per_s": 5.0, "memory": { "pss_anon_per_conn": 400.0, "rss_per_conn": 500.0 } });
        let f = figures(Purpose::Memory, &report);
        assert_eq!((f.cpu_us, f.anonymous, f.resident), (Some(50.0), Some(400.0), Some(500.0)));
        assert!(f.violations.is_empty());
        report["complete"] = json!(false);
        let f = figures(Purpose::Memory, &report);
        assert_eq!((f.cpu_us, f.anonymous, f.violations.len()), (None, None, 1));
    }

    #[test]
    fn disconnected_and_slow_clients_are_reported() {
        let report = json!({ "disconnects": 2, "reasons": { "closed": 2 }, "rate_asked": 1000.0, "sent_per_s": 900.0 });
        let said = figures(Purpose::Latency, &report).violations;
        assert_eq!(said.len(), 2);
        assert!(said[0].contains("900") && said[1].contains("2 clients"), "{said:?}");
    }
}
