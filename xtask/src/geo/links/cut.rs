//! A cut of the line under load, in which the node that runs the link may die too.

use anyhow::{Result, ensure};
use std::collections::VecDeque;
use std::time::Duration;

use super::judge::{Judge, Load, drive};
use super::pair::{Pair, Watch, addresses};
use super::steady::Account;
use super::{EAST, Setup, WEST, count, figure};
use crate::bench::child::interrupted;

/// Seconds of load before the cut, and after it.
const BEFORE: u32 = 10;
const AFTER: u32 = 10;
/// Seconds after the end of the cut until the node is killed again, and until a killed node restarts.
const KILLED_AGAIN: u32 = 5;
const RESTARTED: u32 = 3;
/// Load in multiples of what the line carries.
const OFFERED: f64 = 0.5;
/// Messages per second of the local clients.
const LOCAL_RATE: u32 = 100;
/// Maximum seconds of their measurement.
const LOCAL_MAX: u32 = 30;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    /// Local clients of `west` are measured, for this number of seconds.
    Local(u32),
    Cut,
    Kill,
    Restart,
    Heal,
}

pub fn run(setup: &Setup) -> Result<()> {
    let seconds = setup.args.cut;
    println!(
        "Cut: {OFFERED}x for {BEFORE} s, then {seconds} s without the line, then {AFTER} s more and the rest. `caught up` is from the end of the"
    );
    println!(
        "cut, or from the last restart of a killed node, until nothing waits. Local: p99 of clients of the giving cluster."
    );
    println!("`disk` is the growth of the files of its three nodes.\n");
    println!(
        "| QoS | killed | messages/s | sent | missing | dropped by the queue | by the link | twice | out of order | caught up, s | queue, messages | queue, MB | disk, MB | local before, ms | during, ms |"
    );
    println!(
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    );
    let mut problems = Vec::new();
    for qos in &setup.args.qos {
        let said = one(setup, *qos).unwrap_or_else(|error| Some(format!("{error:#}")));
        problems.extend(said.map(|said| format!("QoS {qos}: {said}")));
        ensure!(!interrupted(), "interrupted; {}", problems.join("; "));
    }
    ensure!(problems.is_empty(), "{}", problems.join("; "));
    Ok(())
}

/// Seconds of publishing, and the maximum until the rest has arrived.
pub fn length(cut: u32) -> (u32, u32) {
    (BEFORE + cut + AFTER, 3 * cut + 300)
}

/// Events of a run, with the second of each.
fn events(cut: u32, kill: bool) -> VecDeque<(f64, Event)> {
    let (begin, end) = (f64::from(BEFORE), f64::from(BEFORE + cut));
    let during = cut.saturating_sub(4).clamp(2, LOCAL_MAX);
    let mut all = vec![(1.0, Event::Local(6)), (begin, Event::Cut), (begin + 0.5, Event::Local(during))];
    all.push((end, Event::Heal));
    if kill {
        for at in [begin + f64::from(cut) / 2.0, end + f64::from(KILLED_AGAIN)] {
            all.extend([(at, Event::Kill), (at + f64::from(RESTARTED), Event::Restart)]);
        }
    }
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    all.into()
}

/// Cuts the line, both ways.
pub fn cut_line(lab: &lab::Lab) -> Result<()> {
    lab.cut(EAST, WEST)?;
    Ok(lab.cut(WEST, EAST)?)
}

/// Prints a row. Returns what is wrong with it.
fn one(setup: &Setup, qos: u8) -> Result<Option<String>> {
    let lab = setup.lab()?;
    let means = setup.links(setup.args.queue_messages);
    let mut pair = Pair::start(&lab, setup, means)?;
    let load = pair.load(setup, qos, OFFERED * setup.fits(&lab)?, length(setup.args.cut))?;
    let mut course = Course::new(setup);
    let report = drive(&lab, setup.mqload, &load, |elapsed| course.tick(setup, &mut pair, elapsed))?;
    course.watch.look(&pair);
    let kill = if setup.args.kill { "-killed" } else { "" };
    setup.keep(&format!("cut-{qos}-{}s{kill}", setup.args.cut), &report)?;
    course.row(setup, qos, &load, &report)
}

/// Course of a run.
struct Course {
    events: VecDeque<(f64, Event)>,
    watch: Watch,
    killed: Vec<String>,
    local: Vec<Judge>,
    /// Time of the last event, and of the last look at both clusters.
    last: Duration,
    seen: Duration,
    caught_up: Option<Duration>,
}

impl Course {
    fn new(setup: &Setup) -> Self {
        Self {
            events: events(setup.args.cut, setup.args.kill),
            watch: Watch::default(),
            killed: Vec::new(),
            local: Vec::new(),
            last: Duration::ZERO,
            seen: Duration::ZERO,
            caught_up: None,
        }
    }

    fn tick(&mut self, setup: &Setup, pair: &mut Pair, elapsed: Duration) -> Result<bool> {
        while self.events.front().is_some_and(|(at, _)| *at <= elapsed.as_secs_f64()) {
            let Some((_, event)) = self.events.pop_front() else { break };
            self.happen(setup, pair, event)?;
            self.last = elapsed;
        }
        self.watch.look(pair);
        self.seen = elapsed;
        let is_empty = self.watch.now.is_some_and(|now| now.connected && now.queued == 0);
        if self.events.is_empty() && is_empty {
            self.caught_up.get_or_insert(elapsed.saturating_sub(self.last));
        }
        Ok(self.events.is_empty() && self.watch.is_idle())
    }

    fn happen(&mut self, setup: &Setup, pair: &mut Pair, event: Event) -> Result<()> {
        match event {
            Event::Local(seconds) => {
                let west = addresses(pair.lab(), WEST)?;
                let words = format!(
                    "probe --allow-remote -V 5 -q 1 -R {LOCAL_RATE} -d {seconds} --pub-host {} --sub-host {}",
                    west[0], west[1]
                );
                let words: Vec<&str> = words.split(' ').collect();
                self.local.push(Judge::start(pair.lab(), setup.mqload, &words)?);
            }
            Event::Cut => cut_line(pair.lab())?,
            Event::Heal => pair.lab().heal()?,
            Event::Kill => {
                let node = pair.runner()?;
                pair.east.kill(&node)?;
                self.killed.push(node);
            }
            Event::Restart => {
                if let Some(node) = self.killed.last() {
                    pair.east.start_again(setup.program, node)?;
                }
            }
        }
        Ok(())
    }

    fn row(self, setup: &Setup, qos: u8, load: &Load, report: &serde_json::Value) -> Result<Option<String>> {
        let Self { watch, killed, local, caught_up, last, seen, .. } = self;
        let local: Vec<f64> = local
            .into_iter()
            .map(|judge| {
                judge.report(Duration::from_secs(60)).map(|report| figure(&report, "/latency_us/p99"))
            })
            .collect::<Result<_>>()?;
        let local = |at: usize| local.get(at).copied().unwrap_or(f64::NAN) / 1e3;
        let [sent, arrived] = [count(report, "/totals/sent")?, count(report, "/totals/unique")?];
        let [missing, twice, late] =
            [count(report, "/lost")?, count(report, "/duplicated")?, count(report, "/out_of_order")?];
        // The load ends with the last message, which may be before anyone asks the clusters again.
        let all = (missing == 0).then_some(seen.saturating_sub(last));
        let caught_up = caught_up.or(all);
        println!(
            "| {qos} | {} | {:.0} | {sent} | {missing} | {} | {} | {twice} | {late} | {} | {} | {:.1} | {:.1} | {:.1} | {:.1} |",
            if killed.is_empty() { "no".to_owned() } else { killed.join(", ") },
            load.rate,
            watch.dropped(),
            watch.not_taken(),
            caught_up.map_or("never".to_owned(), |time| format!("{:.1}", time.as_secs_f64())),
            watch.queued_max,
            watch.bytes_max as f64 / 1e6,
            watch.disk_max as f64 / 1e6,
            local(0),
            local(1)
        );
        let account =
            Account { qos, arrived, missing, dropped: watch.dropped() + watch.not_taken(), twice, late };
        let fits = setup.args.queue_messages.is_none();
        let stuck = caught_up.is_none().then(|| "it never caught up".to_owned());
        Ok(account.problem(fits).or(stuck))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_killed_in_the_cut_and_after_it() {
        let all = events(60, true);
        let at = |wanted: Event| -> Vec<f64> {
            all.iter().filter(|(_, event)| *event == wanted).map(|(at, _)| *at).collect()
        };
        assert_eq!(at(Event::Cut), [10.0]);
        assert_eq!(at(Event::Kill), [40.0, 75.0]);
        assert_eq!(at(Event::Heal), [70.0]);
        assert_eq!(at(Event::Restart), [43.0, 78.0]);
        assert!(all.iter().is_sorted_by(|one, other| one.0 <= other.0));
        assert!(!events(5, false).iter().any(|(_, event)| *event == Event::Kill));
    }
}
