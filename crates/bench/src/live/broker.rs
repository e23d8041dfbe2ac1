//! Resources of the measured broker: its processes on this machine, and its own figures.

use super::scrape::Scraper;
use crate::config::SetupError;
use crate::plan::Output;
use crate::process::{self, ProcStat};
use crate::report::{round, sum};
use serde_json::{Map, Value, json};
use std::time::Instant;

/// The broker's processes and figures.
pub struct Brokers {
    pids: Vec<u32>,
    names: Vec<String>,
    first: Vec<ProcStat>,
    /// CPU seconds at the last sample.
    cpu: f64,
    rss_peak: u64,
    /// Time of the run's last activity.
    moved: Instant,
    scraper: Option<Scraper>,
    /// The first and the last figures received.
    figures: Option<(Vec<f64>, Vec<f64>)>,
}

impl Brokers {
    /// Starts the sampling.
    ///
    /// # Errors
    /// A process that does not exist, a token file that cannot be read, an address without figures.
    pub fn new(output: &Output) -> Result<Brokers, SetupError> {
        let first = process::stats(&output.broker_pid, true);
        if let Some((pid, _)) = output.broker_pid.iter().zip(&first).find(|(_, stat)| !stat.alive) {
            return Err(SetupError::NoSuchProcess(*pid));
        }
        let scraper = match &output.broker_metrics {
            Some(url) => {
                Some(Scraper::new(url, output.broker_token_file.as_deref(), &output.broker_counter)?)
            }
            None => None,
        };
        let figures = scraper.as_ref().map(|scraper| (scraper.latest(), scraper.latest()));
        Ok(Brokers {
            pids: output.broker_pid.clone(),
            names: output.broker_counter.clone(),
            cpu: sum(&first, |stat| stat.cpu_s),
            rss_peak: 0,
            moved: Instant::now(),
            first,
            scraper,
            figures,
        })
    }

    /// Cores and bytes since the last sample, `seconds` ago, and the current figures. `moved`: the run was active
    /// since then.
    pub fn look(&mut self, seconds: f64, moved: bool) -> (Option<(f64, u64)>, Vec<f64>) {
        if moved {
            self.moved = Instant::now();
        }
        let used = (!self.pids.is_empty()).then(|| {
            let now = process::stats(&self.pids, false);
            let cpu = sum(&now, |stat| stat.cpu_s);
            // A process that has died has no CPU time any more.
            let cores = (cpu - self.cpu).max(0.0) / seconds;
            let rss = now.iter().map(|stat| stat.rss).sum();
            self.cpu = cpu;
            self.rss_peak = self.rss_peak.max(rss);
            (cores, rss)
        });
        let figures = match (&self.scraper, &mut self.figures) {
            (Some(scraper), Some((_, last))) => {
                *last = scraper.latest();
                last.clone()
            }
            _ => vec![],
        };
        (used, figures)
    }

    pub fn report(&mut self) -> Value {
        if self.pids.is_empty() && self.scraper.is_none() {
            return Value::Null;
        }
        let mut report = Map::new();
        if !self.pids.is_empty() {
            let now = process::stats(&self.pids, true);
            let died: Vec<u32> =
                self.pids.iter().zip(&now).filter(|(_, stat)| !stat.alive).map(|(pid, _)| *pid).collect();
            let rss = now.iter().map(|stat| stat.rss).sum::<u64>();
            report.insert("pids".into(), json!(self.pids));
            report.insert("died".into(), json!(died));
            let cpu = sum(&now, |stat| stat.cpu_s) - sum(&self.first, |stat| stat.cpu_s);
            report.insert("cpu_s".into(), json!(round(cpu.max(0.0), 2)));
            report.insert("rss_before".into(), json!(self.first.iter().map(|stat| stat.rss).sum::<u64>()));
            report.insert("rss_after".into(), json!(rss));
            report.insert("rss_peak".into(), json!(self.rss_peak.max(rss)));
        }
        if let (Some(scraper), Some((first, last))) = (&self.scraper, &mut self.figures) {
            *last = scraper.last(self.moved);
            let grown = self.names.iter().zip(first.iter().zip(last.iter()));
            let figures: Map<String, Value> = grown
                .map(|(name, (first, last))| {
                    (name.clone(), json!({ "first": first, "last": last, "grown": last - first }))
                })
                .collect();
            report.insert("figures".into(), Value::Object(figures));
            report.insert("figures_failed".into(), json!(scraper.failures()));
        }
        Value::Object(report)
    }
}
