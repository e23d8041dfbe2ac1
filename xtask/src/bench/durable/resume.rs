//! Time to resume a session, by the length of its queue.

use super::Profile;
use super::client::Client;
use super::contender::Contender;
use crate::bench::broker::Broker;
use crate::bench::child;
use crate::bench::measure::{generate, summary};
use crate::bench::table::{Grid, Row, number};
use crate::bench::workload::split;
use anyhow::{Result, bail, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

#[derive(Clone, Debug, Default, PartialEq)]
struct Resumed {
    connack_us: Option<f64>,
    first_us: Option<f64>,
    /// Messages per second, acknowledged as they arrive.
    drained_per_s: Option<f64>,
}

#[derive(Default)]
pub struct Resumes {
    runs: BTreeMap<(u32, String), Vec<Resumed>>,
    remarks: BTreeSet<String>,
}

/// Time after which a broker is not measured with longer queues.
const LONGEST_QUICK: Duration = Duration::from_secs(20);
const LONGEST: Duration = Duration::from_secs(900);
/// Silence after which the remaining messages count as missing.
const QUIET: Duration = Duration::from_secs(10);
/// Maximum seconds to fill a queue; a slower one is skipped.
fn fill_max_s(profile: &Profile, who: &Contender) -> u32 {
    if profile.quick && !who.is_ours() { 10 } else { 120 }
}

const FROM: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// Number of sessions with a queue of this length: a longer queue needs fewer.
fn sessions(profile: &Profile, length: u32) -> u32 {
    match length {
        0..=9_999 => 5,
        10_000..=999_999 if !profile.quick => 3,
        _ => 1,
    }
}

/// Lengths of queues; in a quick run only Meridian gets the longest.
fn lengths(profile: &Profile, who: &Contender) -> &'static [u32] {
    match (profile.quick, who.is_ours()) {
        (true, false) => &[0, 1_000, 100_000],
        _ => &[0, 1_000, 100_000, 1_000_000],
    }
}

pub fn measure(profile: &Profile, contenders: &[Contender]) -> Resumes {
    let mut found = Resumes::default();
    for who in contenders {
        if let Err(error) = found.one(profile, who) {
            eprintln!("  not done: {error:#}");
            let text = format!("{error:#}");
            let first = text.lines().next().unwrap_or_default();
            found.remarks.insert(format!("not done: {}, resume: {first}.", who.name));
        }
    }
    found
}

impl Resumes {
    fn one(&mut self, profile: &Profile, who: &Contender) -> Result<()> {
        let mut broker = who.start(&profile.directory, None)?;
        let (began, longest) = (Instant::now(), if profile.quick { LONGEST_QUICK } else { LONGEST });
        for length in lengths(profile, who) {
            for number in 0..sessions(profile, *length) {
                if child::interrupted() {
                    bail!("interrupted");
                }
                ensure!(
                    began.elapsed() < longest,
                    "it took longer than {} s up to queues of {length}",
                    longest.as_secs()
                );
                eprintln!("[{} s] resume: {length} queued on {}", profile.spent_s(), who.name);
                let found =
                    self.come_back(profile, &broker, who, *length, &format!("resume-{length}-{number}"))?;
                self.runs.entry((*length, who.name.clone())).or_default().push(found);
                ensure!(
                    broker.alive(),
                    "the broker ended by itself; its log ends with\n{}",
                    broker.log_tail()
                );
            }
        }
        Ok(())
    }

    /// Makes a session that disconnects, fills its queue, resumes it and drains the queue.
    fn come_back(
        &mut self,
        profile: &Profile,
        broker: &Broker,
        who: &Contender,
        length: u32,
        id: &str,
    ) -> Result<Resumed> {
        let mut client = Client::connect(broker.address, FROM, id)?;
        client.subscribe(id)?;
        client.leave()?;
        fill(broker, id, length, fill_max_s(profile, who))?;
        let mut client = Client::connect(broker.address, FROM, id)?;
        ensure!(client.session_present, "the session is gone");
        let mut found =
            Resumed { connack_us: Some(client.connack.as_secs_f64() * 1e6), ..Resumed::default() };
        if length > 0 {
            found.first_us = Some(client.first_message()?.as_secs_f64() * 1e6);
            let (received, took) = client.drain(u64::from(length), QUIET)?;
            found.drained_per_s = Some(received as f64 / took.as_secs_f64().max(1e-6));
            if received < u64::from(length) {
                let (length, received) = (number(f64::from(length), 0), number(received as f64, 0));
                self.remarks.insert(format!("{}, {length} queued: {received} arrived.", who.name));
            }
        }
        client.leave()?;
        Ok(found)
    }

    pub fn markdown(&self, contenders: &[Contender]) -> String {
        type Figure = fn(&Resumed) -> Option<f64>;
        let columns: [(&str, Figure, usize); 3] = [
            ("queued: CONNECT to CONNACK, us", |r| r.connack_us, 0),
            ("queued: CONNECT to the first message, us", |r| r.first_us, 0),
            ("queued: messages drained a second", |r| r.drained_per_s, 0),
        ];
        let brokers: Vec<String> = contenders.iter().map(|contender| contender.name.clone()).collect();
        let lengths: BTreeSet<u32> = self.runs.keys().map(|(length, _)| *length).collect();
        let mut out = String::new();
        for (title, figure, digits) in columns {
            let of = |length: u32, name: &String| {
                self.runs.get(&(length, name.clone())).and_then(|runs| summary(runs, figure))
            };
            let rows: Vec<Row> = lengths
                .iter()
                .map(|length| Row {
                    name: number(f64::from(*length), 0),
                    found: brokers.iter().map(|name| of(*length, name)).collect(),
                    compared: false,
                })
                .filter(|row| row.found.iter().any(Option::is_some))
                .collect();
            if !rows.is_empty() {
                out += &Grid { title, digits, brokers: &brokers, against: None }.markdown(&rows);
                out.push('\n');
            }
        }
        for remark in &self.remarks {
            out += &format!("* {remark}\n");
        }
        out
    }
}

/// Queues messages of 256 bytes for one disconnected session.
fn fill(broker: &Broker, topic: &str, length: u32, longest_s: u32) -> Result<()> {
    if length == 0 {
        return Ok(());
    }
    let arguments = format!(
        "pubsub -p 10 -s 0 -q 1 --inflight 500 -l 256 --coalesce-us 500 --pub-topic {topic} -m {length} --max-time {longest_s}"
    );
    let report = generate(&split(&arguments), broker, Duration::from_secs(u64::from(longest_s) + 20))?;
    let acknowledged = report.pointer("/totals/acked").and_then(Value::as_u64).unwrap_or_default();
    ensure!(
        acknowledged == u64::from(length),
        "{acknowledged} of {length} messages were acknowledged in {longest_s} s"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_without_measurements_has_no_row() {
        let mut found = Resumes::default();
        let run = |us| Resumed { connack_us: Some(us), ..Resumed::default() };
        found.runs.insert((0, "meridian".into()), vec![run(90.0), run(100.0), run(200.0)]);
        found.runs.insert((1000, "rabbitmq".into()), vec![Resumed { first_us: Some(700.0), ..run(300.0) }]);
        let text = found.markdown(&Contender::all());
        assert!(text.contains("| 0 | 100 (90-200) | - |"), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("| 1,000 ")).count(), 2, "{text}");
        assert!(!text.contains("drained"), "{text}");
    }

    #[test]
    fn a_quick_run_measures_the_longest_queue_of_meridian_only() {
        let all = Contender::all();
        let longest = |quick, who| *lengths(&Profile::new(quick, 1, 1, ".".into()), who).last().unwrap();
        assert_eq!((longest(true, &all[0]), longest(true, &all[3])), (1_000_000, 100_000));
        assert_eq!(longest(false, &all[3]), 1_000_000);
    }
}
