//! The loop: connects, publishes due messages, monitors answers, and ends when nothing is missing or the time is
//! over.

mod finish;
mod sockets;

use super::checker::{Checker, Tally};
use super::connection::{Connection, OUT_MAX, Role, Stage};
use super::message::Payloads;
use super::plan::Plan;
use super::publisher::{Publisher, Topic};
use super::run_result::{Counts, Event, RunResult};
use super::silence::Silence;
use crate::net::{self, Epoll};
use crate::progress::print_status;
use crate::random::Random;
use crate::{latency, process, run};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Setup,
    Publish,
    Drain,
}

/// All clients on one thread.
pub struct Engine<'a> {
    pub(super) plan: &'a Plan,
    epoll: Epoll,
    pub(super) connections: Vec<Connection>,
    pub(super) checker: Checker,
    pub(super) payloads: Payloads,
    /// Topics by publisher and lane.
    pub(super) topics: Vec<Vec<String>>,
    pub(super) scratch: Vec<u8>,
    pub(super) now: u64,
    phase: Phase,
    /// Times at which publishing begins and stops; publishing is over before `began` is set.
    began: u64,
    stop: u64,
    /// Number of messages issued by every publisher.
    issued: Vec<u64>,
    pub(super) counts: Counts,
    reasons: BTreeMap<String, u64>,
    events: Vec<Event>,
    pub(super) fatal: Option<String>,
    pub(super) expiry: Option<u32>,
    pub(super) silences: Vec<Silence>,
    pub(super) silence: Silence,
    pub(super) latency: Histogram<u64>,
    reconnect: Histogram<u64>,
    /// Time since which no client is connected.
    away_since: Option<u64>,
    ended_early: Option<&'static str>,
    /// Last time of progress during the drain, with the counts at that time. A disconnected client counts as
    /// progress.
    moved: (u64, Tally),
    random: Random,
}

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
/// Time to wait for duplicates after the last missing message.
const SETTLE: u64 = 300 * MS;
/// Maximum drain after an interrupt, shorter than `--drain`.
const INTERRUPTED_DRAIN: u64 = 3 * SECOND;
const EVENTS_MAX: usize = 500;

impl<'a> Engine<'a> {
    pub fn new(plan: &'a Plan) -> Engine<'a> {
        let shape = &plan.shape;
        let topics: Vec<Vec<String>> = (0..shape.publishers)
            .map(|publisher| shape.lanes.iter().map(|qos| plan.topic(publisher, *qos)).collect())
            .collect();
        let mut connections = vec![];
        for number in 0..shape.subscribers {
            connections.push(Connection::new(Role::Subscriber(Box::default()), number, plan.begin(number)));
        }
        for (number, topics) in topics.iter().enumerate() {
            let lanes = shape.lanes.iter().zip(topics);
            let lanes = lanes.map(|(qos, name)| Topic { qos: *qos, name: name.clone() }).collect();
            let publisher = Publisher::new(number, plan.version.is_5(), lanes, plan.window);
            let role = Role::Publisher(Box::new(publisher));
            connections.push(Connection::new(role, number, plan.begin(number)));
        }
        Engine {
            plan,
            epoll: Epoll::new(),
            connections,
            checker: Checker::new(shape.clone()),
            payloads: Payloads::new(plan.run, plan.size),
            topics,
            scratch: vec![0; 256 * 1024],
            now: net::now(),
            phase: Phase::Setup,
            began: 0,
            stop: u64::MAX,
            issued: vec![0; shape.publishers],
            counts: Counts::default(),
            reasons: BTreeMap::new(),
            events: vec![],
            fatal: None,
            expiry: None,
            silences: vec![],
            silence: Silence::default(),
            latency: latency::hist(),
            reconnect: latency::hist(),
            away_since: None,
            ended_early: None,
            moved: (0, Tally::default()),
            random: Random::new(net::now()),
        }
    }

    pub fn run(mut self) -> RunResult {
        process::set_timer_slack(50_000);
        let begin = self.now;
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; 512];
        let tick = (self.plan.shape.publishers as u64 * 10_000).clamp(MS, 100 * MS);
        let (mut next_tick, mut next_sweep, mut next_line) = (begin, begin, begin + SECOND);
        let mut settled = 0;
        let mut before = self.checker.tally();
        loop {
            self.now = net::now();
            if self.phase == Phase::Setup && self.setup_is_over(begin) {
                break;
            }
            if self.phase == Phase::Publish {
                self.maybe_stop();
            }
            if self.now >= next_tick {
                next_tick = self.now + tick;
                self.open_due();
                self.pump_all();
            }
            if self.now >= next_sweep {
                next_sweep = self.now + 50 * MS;
                self.sweep();
                if self.phase == Phase::Drain && self.drained(&mut settled) {
                    break;
                }
            }
            if self.now >= next_line {
                next_line += SECOND;
                self.progress(&mut before);
            }
            let until = next_tick.min(next_sweep).saturating_sub(self.now).max(1);
            let ready = self.epoll.wait(&mut events, until);
            self.now = net::now();
            for event in &events[..ready] {
                self.event(event.u64, event.events);
            }
        }
        self.finish(begin)
    }

    /// Returns whether the run ends before it began. Starts publishing when all clients are ready.
    fn setup_is_over(&mut self, begin: u64) -> bool {
        if self.connections.iter().all(Connection::ready) {
            self.phase = Phase::Publish;
            self.began = self.now;
            self.stop = self.now + self.plan.duration.as_nanos() as u64;
            self.silence = Silence::from(self.now);
            self.silences = vec![Silence::from(self.now); self.plan.shape.subscribers];
            print_status(
                self.plan.quiet,
                format_args!(
                    "{} publishers and {} subscribers are connected: publishing",
                    self.plan.shape.publishers, self.plan.shape.subscribers
                ),
            );
            return false;
        }
        let late = self.now - begin > self.plan.setup.as_nanos() as u64;
        if self.fatal.is_none() && !late && !run::interrupted() {
            return false;
        }
        let up = self.connections.iter().filter(|connection| connection.ready()).count();
        let why = match (&self.fatal, late) {
            (Some(fatal), _) => fatal.clone(),
            (None, true) => {
                let worst = self.reasons.iter().max_by_key(|(_, count)| **count);
                let worst = worst.map_or(String::new(), |(reason, count)| format!("; {count} x {reason}"));
                format!("not all were ready within {} s{worst}", self.plan.setup.as_secs_f64())
            }
            (None, false) => "interrupted".to_owned(),
        };
        self.fatal = Some(format!("{up} of {} clients were ready: {why}", self.connections.len()));
        true
    }

    fn maybe_stop(&mut self) {
        let why = if run::interrupted() {
            Some("interrupted")
        } else if self.checker.full() {
            Some("so much is missing that the checker's memory is full")
        } else {
            None
        };
        if why.is_some() || self.now >= self.stop {
            self.ended_early = why;
            self.stop = self.stop.min(self.now);
            self.moved = (self.now, self.checker.tally());
            self.phase = Phase::Drain;
        }
    }

    /// Returns whether no messages are missing, or the time is over.
    fn drained(&mut self, settled: &mut u64) -> bool {
        let waited = self.now - self.stop;
        let longest = match self.ended_early {
            Some(_) => (self.plan.drain.as_nanos() as u64).min(INTERRUPTED_DRAIN),
            None => self.plan.drain.as_nanos() as u64,
        };
        let backlog = self.ended_early.is_none() && self.unsent() > 0;
        if backlog || self.unacknowledged() > 0 || self.checker.missing() > 0 {
            *settled = 0;
            let tally = self.checker.tally();
            if tally != self.moved.1 || !self.connections.iter().all(Connection::ready) {
                self.moved = (self.now, tally);
            }
            return waited >= longest || self.now - self.moved.0 >= self.plan.still.as_nanos() as u64;
        }
        if *settled == 0 {
            *settled = self.now;
        }
        // A client that is reconnecting is waited for like one with missing messages.
        let settle = match self.connections.iter().all(Connection::ready) {
            true => SETTLE,
            false => SETTLE.max(self.plan.still.as_nanos() as u64),
        };
        self.now - *settled >= settle || waited >= longest
    }

    fn unacknowledged(&self) -> u64 {
        let of = |connection: &Connection| match &connection.role {
            Role::Publisher(publisher) => publisher.unfinished() as u64,
            Role::Subscriber(_) => 0,
        };
        self.connections.iter().map(of).sum()
    }

    /// Number of messages that were due before the end of publishing and were not sent.
    fn unsent(&self) -> u64 {
        if self.plan.rate == 0 || self.began == 0 {
            return 0;
        }
        let span = u128::from(self.stop.min(self.now) - self.began) * u128::from(self.plan.rate);
        (span.div_ceil(u128::from(SECOND)) as u64).saturating_sub(self.checker.tally().sent)
    }

    fn progress(&self, before: &mut Tally) {
        let now = self.checker.tally();
        let up = self.connections.iter().filter(|connection| connection.ready()).count();
        let (seconds, phase) = match self.phase {
            Phase::Setup => (0.0, "connecting"),
            Phase::Publish => ((self.now - self.began) as f64 / 1e9, "publishing"),
            Phase::Drain => ((self.now - self.began) as f64 / 1e9, "waiting for missing messages"),
        };
        print_status(
            self.plan.quiet,
            format_args!(
                "[{seconds:6.1}s {phase}] sent/s {} acknowledged/s {} delivered/s {} unacknowledged {} missing {} up {}/{} \
                 reconnects {} sessions lost {} out of order {}",
                now.sent - before.sent,
                now.acknowledged - before.acknowledged,
                now.delivered - before.delivered,
                self.unacknowledged(),
                self.checker.missing(),
                up,
                self.connections.len(),
                self.counts.reconnects,
                self.counts.lost_publishers + self.counts.lost_subscribers,
                now.out_of_order,
            ),
        );
        *before = now;
    }

    pub(super) fn note(&mut self, at: usize, what: String) {
        if self.events.len() < EVENTS_MAX {
            let connection = &self.connections[at];
            let role = if matches!(connection.role, Role::Publisher(_)) { "publisher" } else { "subscriber" };
            let at = if self.began > 0 { self.now.saturating_sub(self.began) } else { 0 };
            self.events.push(Event { at, client: format!("{role} {}", connection.number), what });
        }
    }

    fn pump_all(&mut self) {
        for at in self.plan.shape.subscribers..self.connections.len() {
            if self.connections[at].ready() {
                self.pump(at);
                self.flush(at);
            }
        }
    }

    /// Writes the due messages of a connected publisher.
    fn pump(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        let Role::Publisher(publisher) = &mut connection.role else { return };
        if connection.stage != Stage::Ready
            || connection.blocked
            || connection.out.len() - connection.out_at >= OUT_MAX
        {
            return;
        }
        let (now, began, stop, number) = (self.now, self.began, self.stop, connection.number as u64);
        let (count, rate) = (self.plan.shape.publishers as u64, u64::from(self.plan.rate));
        let issued = &mut self.issued[connection.number];
        // Messages that were due in time are still sent during the drain: a broker that was away has to catch up.
        let publishing = self.phase != Phase::Setup && self.ended_early.is_none();
        let next_due = || {
            let due = match rate {
                0 => now,
                _ => due(began, *issued * count + number, rate),
            };
            if !publishing || due > now || due >= stop {
                return None;
            }
            *issued += 1;
            Some(due)
        };
        publisher.pump(&mut self.checker, &self.payloads, next_due, OUT_MAX, &mut connection.out);
    }
}

/// Time at which the message at a position of the common schedule is due.
fn due(began: u64, position: u64, rate: u64) -> u64 {
    began + (u128::from(position) * u128::from(SECOND) / u128::from(rate)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schedule_neither_drifts_nor_overflows() {
        assert_eq!(due(7, 0, 3), 7);
        assert_eq!(due(7, 3, 3), 7 + SECOND);
        assert_eq!(due(0, 1 << 50, 1_000_000), (1 << 50) * 1000);
    }
}
