//! Publishers to durable sessions: rates, acknowledgements, CPU, bytes written, syncs.

use super::Profile;
use super::contender::Contender;
use super::disk::{Disk, Record};
use super::syncs;
use crate::bench::broker::{Broker, Directory};
use crate::bench::child;
use crate::bench::measure::{generate, summary};
use crate::bench::table::{Against, Better, Grid, Row};
use crate::bench::workload::split;
use anyhow::{Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

/// A number of publishers, each with a durable session that subscribes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Load {
    qos: u8,
    publishers: u32,
    /// Maximum number of messages in flight of a publisher.
    window: u32,
}

/// Results of one run.
#[derive(Clone, Debug, Default, PartialEq)]
struct FlowFigures {
    per_s: Option<f64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    cpu_us: Option<f64>,
    bytes: Option<f64>,
    /// Syncs of a run under strace, which measures nothing else.
    syncs: Option<f64>,
    messages_per_sync: Option<f64>,
}

/// Results of all runs.
#[derive(Default)]
pub struct Flows {
    runs: BTreeMap<(Load, String), Vec<FlowFigures>>,
    remarks: BTreeSet<String>,
}

/// Maximum seconds to make the sessions: some brokers need long.
fn setup_max_s(profile: &Profile) -> u32 {
    if profile.quick { 10 } else { 120 }
}

const DRAIN_S: u32 = 10;

impl Load {
    fn all(profile: &Profile) -> Vec<Load> {
        let load = |qos, publishers, window| Load { qos, publishers, window };
        // The largest loads come last: other brokers slow down after them.
        let mut loads =
            vec![load(1, 1, 1), load(1, 10, 1), load(1, 100, 1), load(1, 100, 100), load(2, 1, 1)];
        if !profile.quick {
            loads.extend([load(2, 10, 1), load(2, 100, 100)]);
        }
        loads.extend([load(2, 100, 1), load(1, 1000, 1)]);
        if !profile.quick {
            loads.push(load(2, 1000, 1));
        }
        loads
    }

    fn title(self) -> String {
        let Load { qos, publishers, window } = self;
        let publishers = crate::bench::table::number(f64::from(publishers), 0);
        let plural = if self.publishers == 1 { "" } else { "s" };
        let messages = if window == 1 { "one message".to_owned() } else { format!("{window} messages") };
        format!("QoS {qos}, {publishers} publisher{plural}, {messages} at a time")
    }

    fn command_line(self, profile: &Profile) -> String {
        let Load { qos, publishers, window } = self;
        let (seconds, setup_s) = (profile.seconds, setup_max_s(profile));
        // With many messages in flight the generator can poll rarely; it shares the CPUs.
        let coalesce = if window > 1 { " --coalesce-us 500" } else { "" };
        format!(
            "pubsub -p {publishers} -s {publishers} -q {qos} --clean false --inflight {window} -l 256 --warmup 0.3 -d {seconds} \
             --connect-rate 0 --setup-timeout {setup_s} --drain {DRAIN_S} -k 600{coalesce}"
        )
    }

    /// Returns whether syncs are counted: few rows are enough to know how a broker syncs.
    fn counts_syncs(self) -> bool {
        self.qos == 1 && self.window == 1 && [1, 100].contains(&self.publishers)
    }
}

impl FlowFigures {
    fn of(report: &Value, disk: &Record) -> FlowFigures {
        let figure = |path: &str| report.pointer(path).and_then(Value::as_f64);
        let per_s = figure("/acked_per_s").filter(|per_s| *per_s > 0.0);
        let messages = per_s.zip(figure("/window_s")).map(|(per_s, seconds)| per_s * seconds);
        let window = figure("/window_unix_s/0").zip(figure("/window_unix_s/1"));
        let written = window.and_then(|(from, to)| disk.between(from, to));
        let each = |all: Option<f64>| all.zip(messages).map(|(all, messages)| all / messages);
        FlowFigures {
            per_s,
            p50_us: figure("/ack_us/p50"),
            p99_us: figure("/ack_us/p99"),
            cpu_us: each(figure("/cpu/broker_s")).map(|s| s * 1e6),
            bytes: each(written.map(|bytes| bytes as f64)),
            syncs: None,
            messages_per_sync: None,
        }
    }

    fn of_syncs(report: &Value, log: &Path) -> Result<FlowFigures> {
        let moment = |path: &str| report.pointer(path).and_then(Value::as_f64).unwrap_or_default();
        let (from, to) = (moment("/window_unix_s/0"), moment("/window_unix_s/1"));
        let count = syncs::between(log, from, to)? as f64;
        let messages = moment("/acked_per_s") * moment("/window_s");
        Ok(FlowFigures {
            syncs: Some(count / (to - from).max(0.001)),
            messages_per_sync: (count > 0.0).then(|| messages / count),
            ..FlowFigures::default()
        })
    }
}

/// Runs every load on every broker, round after round, and once more under strace.
pub fn measure(profile: &Profile, contenders: &[Contender]) -> Flows {
    let mut found = Flows::default();
    let loads = Load::all(profile);
    for round in 0..profile.rounds {
        // The order of the brokers alternates from round to round.
        let mut order: Vec<&Contender> = contenders.iter().collect();
        order.rotate_left(round as usize % contenders.len());
        for contender in order {
            found.session(
                profile,
                contender,
                &loads,
                &format!("round {}/{}", round + 1, profile.rounds),
                None,
            );
        }
    }
    match syncs::impossible() {
        Some(why) => {
            eprintln!("{why}");
            found.remarks.insert(format!("{why}."));
        }
        None => {
            let loads: Vec<Load> = loads.into_iter().filter(|load| load.counts_syncs()).collect();
            for contender in contenders {
                match Directory::new() {
                    Ok(directory) => {
                        let log = directory.join("syncs");
                        found.session(profile, contender, &loads, "counting syncs", Some(&log));
                    }
                    Err(error) => {
                        found.remarks.insert(format!("{error:#}."));
                    }
                }
            }
        }
    }
    found
}

impl Flows {
    /// Runs all loads on one new broker. A load that fails leaves its cell empty, adds a line, and causes another new
    /// broker.
    fn session(
        &mut self,
        profile: &Profile,
        who: &Contender,
        loads: &[Load],
        what: &str,
        log: Option<&Path>,
    ) {
        let mut running: Option<Broker> = None;
        for load in loads {
            if child::interrupted() {
                return;
            }
            if !who.speaks(load.qos) {
                continue;
            }
            eprintln!("[{} s] {what}: {} on {}", profile.spent_s(), load.title(), who.name);
            match self.one(profile, who, *load, &mut running, log) {
                Ok(found) => self.runs.entry((*load, who.name.clone())).or_default().push(found),
                Err(error) => {
                    let text = format!("{error:#}");
                    eprintln!("  not done: {text}");
                    let first = text.lines().next().unwrap_or_default().to_owned();
                    self.remarks.insert(format!("not done: {}, {}: {first}.", who.name, load.title()));
                    running = None;
                }
            }
        }
    }

    fn one(
        &mut self,
        profile: &Profile,
        who: &Contender,
        load: Load,
        running: &mut Option<Broker>,
        log: Option<&Path>,
    ) -> Result<FlowFigures> {
        let broker = match running {
            Some(broker) => broker,
            None => running.insert(who.start(&profile.directory, log)?),
        };
        let longest = Duration::from_secs(u64::from(setup_max_s(profile) + DRAIN_S + profile.seconds) + 10);
        let arguments = split(&load.command_line(profile));
        let (report, disk) =
            Disk::during(Disk::of(&profile.directory), || generate(&arguments, broker, longest));
        let report = report?;
        if let Some(error) = report["error"].as_str() {
            bail!("{error}: {}", report["reasons"]);
        }
        if !broker.alive() {
            bail!("the broker ended by itself; its log ends with\n{}", broker.log_tail());
        }
        let violations = report["violations"].as_array().into_iter().flatten();
        for violation in violations.filter_map(Value::as_str) {
            // `bench ha` reports losses, because it waits for late messages.
            let late = violation.strip_suffix(" acknowledged messages lost");
            let said = late.map(|n| format!("{n} acknowledged messages had not arrived after {DRAIN_S} s"));
            let said = said.unwrap_or_else(|| violation.to_owned());
            self.remarks.insert(format!("{}, {}: {said}.", who.name, load.title()));
        }
        if report["cpu"]["generator_saturated"] == true && log.is_none() {
            self.remarks.insert(format!(
                "{}, {}: the load generator had no CPU left; the rate may be its limit.",
                who.name,
                load.title()
            ));
        }
        match log {
            None => Ok(FlowFigures::of(&report, &disk)),
            Some(log) => FlowFigures::of_syncs(&report, log),
        }
    }

    /// The tables, one for each figure.
    pub fn markdown(&self, profile: &Profile, contenders: &[Contender]) -> String {
        type Figure = fn(&FlowFigures) -> Option<f64>;
        let columns: [(&str, Figure, usize, Option<Better>); 7] = [
            ("messages acknowledged a second", |f| f.per_s, 0, Some(Better::More)),
            ("acknowledgement, p50 us", |f| f.p50_us, 0, Some(Better::Less)),
            ("acknowledgement, p99 us", |f| f.p99_us, 0, Some(Better::Less)),
            ("broker CPU, us a message", |f| f.cpu_us, 2, Some(Better::Less)),
            ("bytes that the disk wrote a message", |f| f.bytes, 0, None),
            ("syncs a second", |f| f.syncs, 0, None),
            ("messages a sync", |f| f.messages_per_sync, 1, None),
        ];
        let brokers: Vec<String> = contenders.iter().map(|contender| contender.name.clone()).collect();
        let others: Vec<usize> = (1..contenders.len()).filter(|at| contenders[*at].syncs_first).collect();
        let is_first = contenders.first().is_some_and(|first| first.is_ours() && first.syncs_first);
        // The order for readers, independent of the order of the runs.
        let mut loads = Load::all(profile);
        loads.sort_by_key(|load| (load.qos, load.window, load.publishers));
        let mut out = String::new();
        for (title, figure, digits, better) in columns {
            let rows: Vec<Row> = loads
                .iter()
                .map(|load| Row {
                    name: load.title(),
                    found: brokers.iter().map(|name| summary(self.of(*load, name), figure)).collect(),
                    compared: true,
                })
                .filter(|row| row.found.iter().any(Option::is_some))
                .collect();
            if rows.is_empty() {
                continue;
            }
            let against = better.filter(|_| is_first).map(|better| Against {
                title: "meridian against the best other that syncs first",
                better,
                others: &others,
            });
            out += &Grid { title, digits, brokers: &brokers, against }.markdown(&rows);
            out.push('\n');
        }
        for remark in &self.remarks {
            out += &format!("* {remark}\n");
        }
        let lines: Vec<String> =
            loads.iter().map(|load| format!("mqload {}", load.command_line(profile))).collect();
        out + &format!("\nThe load of each row:\n\n```text\n{}\n```\n", lines.join("\n"))
    }

    fn of(&self, load: Load, name: &str) -> &[FlowFigures] {
        self.runs.get(&(load, name.to_owned())).map_or(&[], |runs| runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_message_costs_its_share_of_the_window() {
        let report = json!({ "acked_per_s": 1000.0, "window_s": 2.0, "ack_us": { "p50": 90.0, "p99": 400.0 },
            "cpu": { "broker_s": 0.1 } });
        let found = FlowFigures::of(&report, &Record::default());
        assert_eq!((found.per_s, found.p50_us, found.p99_us), (Some(1000.0), Some(90.0), Some(400.0)));
        assert_eq!((found.cpu_us, found.bytes), (Some(50.0), None), "no sample of the disk");
        let nothing = FlowFigures::of(
            &json!({ "acked_per_s": 0.0, "window_s": 2.0, "cpu": { "broker_s": 0.1 } }),
            &Record::default(),
        );
        assert_eq!((nothing.per_s, nothing.cpu_us), (None, None));
    }

    #[test]
    fn syncs_are_those_of_the_window() {
        let directory = Directory::new().unwrap();
        let log = directory.join("syncs");
        std::fs::write(&log, "1 9.9 fsync(3) = 0\n1 10.5 fsync(3) = 0\n1 11.5 fdatasync(3) = 0\n").unwrap();
        let report = json!({ "acked_per_s": 100.0, "window_s": 2.0, "window_unix_s": [10.0, 12.0] });
        let found = FlowFigures::of_syncs(&report, &log).unwrap();
        assert_eq!((found.syncs, found.messages_per_sync), (Some(1.0), Some(100.0)));
    }

    #[test]
    fn a_table_compares_ours_with_those_that_sync_first() {
        let profile = Profile::new(true, 1, 1, ".".into());
        let contenders = Contender::all();
        let mut found = Flows::default();
        let load = Load { qos: 1, publishers: 1, window: 1 };
        for (name, per_s) in [("meridian", 900.0), ("mosquitto-autosave", 9000.0), ("nats-always", 300.0)] {
            let run = FlowFigures { per_s: Some(per_s), ..FlowFigures::default() };
            found.runs.insert((load, name.to_owned()), vec![run]);
        }
        found.remarks.insert("nats-always: something".to_owned());
        let text = found.markdown(&profile, &contenders);
        assert!(text.contains("| 900 | - | 9,000 | - | 300 | - | - | 3.00x (nats-always) |"), "{text}");
        assert_eq!(text.matches("| QoS 1, 1 publisher, one message at a time |").count(), 1, "{text}");
        assert!(text.contains("* nats-always: something\n"));
    }

    #[test]
    fn the_quick_loads_are_a_subset_of_all() {
        let loads = |quick| Load::all(&Profile::new(quick, 1, 1, ".".into()));
        let (some, all) = (loads(true), loads(false));
        assert!(some.len() < all.len() && some.iter().all(|load| all.contains(load)));
        assert_eq!(all.last().unwrap().publishers, 1000);
    }
}
