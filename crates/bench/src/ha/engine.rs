//! The loop: connects, publishes what is due, watches over answers, and ends when nothing is missing or time is up.

use super::checker::{Checker, Loss, Tally};
use super::connection::{Connection, OUT_MAX, Role, Stage};
use super::message::Payloads;
use super::plan::Plan;
use super::publisher::{Publisher, Topic};
use super::silence::Silence;
use crate::net::{self, Epoll};
use crate::progress::say;
use crate::{codec, latency, process, run};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// What is counted besides messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub disconnects: u64,
    pub failed_attempts: u64,
    pub reconnects: u64,
    pub resumed: u64,
    /// Sessions that the broker no longer had, of publishers and of subscribers.
    pub lost_publishers: u64,
    pub lost_subscribers: u64,
    pub foreign: u64,
    pub corrupt: u64,
    /// Deliveries with another QoS, another topic, or RETAIN, than they were sent with.
    pub changed: u64,
    /// Deliveries to clients that did not subscribe.
    pub unexpected: u64,
    pub protocol_errors: u64,
    pub pings: u64,
}

/// What happened to one client, for the report.
pub struct Event {
    /// Nanoseconds since publishing began; 0 before.
    pub at: u64,
    pub client: String,
    pub what: String,
}

/// What a run found.
pub struct Found {
    /// Why nothing could begin.
    pub never_began: Option<String>,
    /// Why publishing ended before its time.
    pub ended_early: Option<&'static str>,
    pub checker: Checker,
    pub losses: Vec<Loss>,
    pub lost: u64,
    pub counts: Counts,
    pub reasons: BTreeMap<String, u64>,
    pub events: Vec<Event>,
    /// Messages that were not acknowledged, and those that were due and never sent.
    pub unacknowledged: u64,
    pub unsent: u64,
    pub resent: u64,
    pub releases_resent: u64,
    pub strays: u64,
    pub hidden: u64,
    pub up: usize,
    pub clients: usize,
    /// The shortest Session Expiry Interval that the broker gave, if it was not the one asked for.
    pub expiry: Option<u32>,
    /// Length and begin, from the begin of publishing, in nanoseconds: when nobody got anything, and the worst subscriber's.
    pub silence: (u64, u64),
    pub silence_of_one: (u64, u64, usize),
    pub latency: Histogram<u64>,
    pub reconnect: Histogram<u64>,
    /// Nanoseconds of publishing and of waiting for the rest.
    pub published_for: u64,
    pub drained_for: u64,
    /// Nobody was connected for the last part of the run.
    pub away_since: Option<u64>,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Setup,
    Publish,
    Drain,
}

/// One thread, all clients.
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
    /// When publishing began and when it stops; it is over before `began` is set.
    began: u64,
    stop: u64,
    /// Messages that every publisher has asked for.
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
    /// Since when nobody is connected.
    away_since: Option<u64>,
    ended_early: Option<&'static str>,
    /// When something moved last, or somebody was away, while the rest was waited for; and the counts then.
    moved: (u64, Tally),
    random: u64,
}

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
/// Silence after which a client asks whether the broker lives.
const ASK_AFTER: u64 = SECOND;
/// After the last missing message, duplicates may still come for so long.
const SETTLE: u64 = 300 * MS;
/// Who interrupts a run does not want to wait for all of `--drain`.
const INTERRUPTED_DRAIN: u64 = 3 * SECOND;
const EVENTS_MAX: usize = 500;
/// TCP connections in the making at one time.
const OPENING_MAX: usize = 500;
/// Unsent bytes of one client at which it gives up: the broker does not read.
const BACKLOG_MAX: usize = 64 << 20;

impl<'a> Engine<'a> {
    pub fn new(plan: &'a Plan) -> Engine<'a> {
        let shape = &plan.shape;
        let topics: Vec<Vec<String>> = (0..shape.publishers)
            .map(|publisher| shape.lanes.iter().map(|qos| plan.topic(publisher, *qos)).collect())
            .collect();
        let mut connections = vec![];
        for number in 0..shape.subscribers {
            connections.push(Connection::new(Role::Subscriber(Box::default()), number, number));
        }
        for (number, topics) in topics.iter().enumerate() {
            let lanes = shape.lanes.iter().zip(topics);
            let lanes = lanes.map(|(qos, name)| Topic { qos: *qos, name: name.clone() }).collect();
            let publisher = Publisher::new(number, plan.v5, lanes, plan.window);
            connections.push(Connection::new(Role::Publisher(Box::new(publisher)), number, number));
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
            random: net::now() | 1,
        }
    }

    pub fn run(mut self) -> Found {
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

    /// Whether the run ends before it began. Begins publishing when everybody is there.
    fn setup_is_over(&mut self, begin: u64) -> bool {
        if self.connections.iter().all(Connection::ready) {
            self.phase = Phase::Publish;
            self.began = self.now;
            self.stop = self.now + self.plan.duration.as_nanos() as u64;
            self.silence = Silence::from(self.now);
            self.silences = vec![Silence::from(self.now); self.plan.shape.subscribers];
            say(
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

    /// Whether there is nothing left to wait for, or no time.
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
        self.now - *settled >= SETTLE || waited >= longest
    }

    fn unacknowledged(&self) -> u64 {
        let of = |connection: &Connection| match &connection.role {
            Role::Publisher(publisher) => publisher.unfinished() as u64,
            Role::Subscriber(_) => 0,
        };
        self.connections.iter().map(of).sum()
    }

    /// Messages that were due before the end of publishing and did not go out.
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
            Phase::Drain => ((self.now - self.began) as f64 / 1e9, "waiting for the rest"),
        };
        say(
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

    /// Starts the attempts whose time has come.
    fn open_due(&mut self) {
        let mut opening =
            self.connections.iter().filter(|c| matches!(c.stage, Stage::Tcp | Stage::Connack)).count();
        for at in 0..self.connections.len() {
            if matches!(self.connections[at].stage, Stage::Away(when) if when <= self.now)
                && opening < OPENING_MAX
            {
                opening += 1;
                self.open(at);
            }
        }
    }

    fn open(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        let to = self.plan.hosts[connection.host % self.plan.hosts.len()];
        connection.generation = connection.generation.wrapping_add(1);
        connection.began = self.now;
        connection.stage = Stage::Tcp;
        match net::connect(to, None, 0, 0) {
            Ok((fd, _)) => {
                connection.fd = fd;
                connection.wants_out = true;
                let data = u64::from(connection.generation) << 32 | at as u64;
                self.epoll.ctl(true, fd, net::IN | net::RDHUP | net::OUT, data);
            }
            Err(error) => self.close(at, &format!("tcp connect: {}", net::errname(error))),
        }
    }

    fn event(&mut self, data: u64, what: u32) {
        let at = (data & 0xffff_ffff) as usize;
        let connection = &self.connections[at];
        if u64::from(connection.generation) != data >> 32 || connection.fd < 0 {
            return;
        }
        if connection.stage == Stage::Tcp {
            return match net::so_error(connection.fd) {
                0 if what & net::OUT != 0 => self.greet(at),
                0 => {}
                error => self.close(at, &format!("tcp connect: {}", net::errname(error))),
            };
        }
        if what & net::OUT != 0 {
            self.connections[at].blocked = false;
        }
        if what & (net::IN | net::RDHUP | net::ERRHUP) != 0 {
            self.read(at);
        }
        self.pump(at);
        self.flush(at);
    }

    /// The TCP connection is there: CONNECT.
    fn greet(&mut self, at: usize) {
        let plan = self.plan;
        let connection = &mut self.connections[at];
        let to = plan.hosts[connection.host % plan.hosts.len()];
        if net::self_connected(connection.fd, to) {
            return self.close(at, "tcp connect: connected to itself");
        }
        let role = if matches!(connection.role, Role::Publisher(_)) { 'p' } else { 's' };
        connection.stage = Stage::Connack;
        connection.last_in = self.now;
        connection.last_out = self.now;
        codec::connect(
            &mut connection.out,
            &codec::ConnectOpts {
                v5: plan.v5,
                v31: false,
                clean: false,
                keepalive: plan.keepalive,
                client_id: &plan.client_id(role, connection.number),
                user: plan.username.as_deref(),
                pass: plan.password.as_deref(),
                expiry: if plan.v5 { plan.expiry } else { 0 },
                recv_max: 0,
            },
        );
        self.flush(at);
    }

    /// The client takes part from now on.
    pub(super) fn ready(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        connection.stage = Stage::Ready;
        connection.attempt = 0;
        if std::mem::replace(&mut connection.ready_once, true) {
            let away = self.now.saturating_sub(connection.down_since);
            self.counts.reconnects += 1;
            latency::record(&mut self.reconnect, away);
            self.note(at, "connected again".into());
        }
        self.away_since = None;
    }

    pub(super) fn close(&mut self, at: usize, why: &str) {
        let ready = self.connections[at].ready();
        if ready {
            self.counts.disconnects += 1;
            self.note(at, why.to_owned());
        } else {
            self.counts.failed_attempts += 1;
        }
        if why.starts_with("protocol error") {
            self.counts.protocol_errors += 1;
        }
        *self.reasons.entry(why.to_owned()).or_insert(0) += 1;
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let longest = self.plan.backoff_max.as_nanos() as u64;
        self.connections[at].down(self.now, longest, self.random);
        if ready && self.connections.iter().all(|connection| !connection.ready()) {
            self.away_since = Some(self.now);
        }
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

    /// A publisher that is connected writes what is due.
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
        // What was due in time still goes out while the rest is waited for: a broker that was away has to catch up.
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

    fn flush(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        if connection.fd < 0 || connection.stage == Stage::Tcp {
            return;
        }
        if let Err(error) = connection.flush(self.now) {
            // What the broker said before it closed may still be there to read.
            self.read(at);
            if self.connections[at].fd >= 0 {
                self.close(at, &format!("write: {}", net::errname(error)));
            }
            return;
        }
        if connection.waiting() > BACKLOG_MAX {
            return self.close(at, "the broker does not read");
        }
        if connection.wants_out != connection.blocked {
            connection.wants_out = connection.blocked;
            let interest = net::IN | net::RDHUP | if connection.blocked { net::OUT } else { 0 };
            let data = u64::from(connection.generation) << 32 | at as u64;
            self.epoll.ctl(false, connection.fd, interest, data);
        }
    }

    /// Time-outs and PINGREQ.
    fn sweep(&mut self) {
        let answer = self.plan.answer.as_nanos() as u64;
        for at in 0..self.connections.len() {
            let connection = &mut self.connections[at];
            let since = |when: u64| self.now.saturating_sub(when);
            match connection.stage {
                Stage::Away(_) => {}
                Stage::Tcp | Stage::Connack | Stage::Suback => {
                    if since(connection.began) > answer {
                        let what = match connection.stage {
                            Stage::Tcp => "a TCP connection",
                            Stage::Connack => "CONNACK",
                            _ => "SUBACK",
                        };
                        self.close(at, &format!("no {what} in {} s", self.plan.answer.as_secs_f64()));
                    }
                }
                Stage::Ready if connection.ping > 0 => {
                    if since(connection.ping.max(connection.last_in)) > answer {
                        self.close(at, &format!("no PINGRESP in {} s", self.plan.answer.as_secs_f64()));
                    }
                }
                Stage::Ready => {
                    let keepalive = u64::from(connection.keepalive) * SECOND;
                    let quiet = keepalive > 0 && since(connection.last_out) >= keepalive / 2;
                    if quiet || since(connection.last_in) >= ASK_AFTER {
                        connection.ping = self.now;
                        self.counts.pings += 1;
                        codec::pingreq(&mut connection.out);
                        self.flush(at);
                    }
                }
            }
        }
    }

    fn finish(mut self, begin: u64) -> Found {
        let up = self.connections.iter().filter(|connection| connection.ready()).count();
        let clients = self.connections.len();
        let (unacknowledged, unsent) = (self.unacknowledged(), self.unsent());
        let (mut resent, mut releases_resent, mut strays, mut hidden) = (0, 0, 0, 0);
        for connection in &mut self.connections {
            if connection.fd >= 0 {
                if connection.ready() {
                    codec::disconnect(&mut connection.out);
                    // Whether it gets there changes nothing: the sessions are removed by their names.
                    let _ = connection.flush(self.now);
                }
                net::close(connection.fd);
            }
            match &connection.role {
                Role::Publisher(publisher) => {
                    resent += publisher.resent;
                    releases_resent += publisher.releases_resent;
                    strays += publisher.strays;
                }
                Role::Subscriber(subscriber) => hidden += subscriber.hidden,
            }
        }
        let mut losses = vec![];
        let lost = self.checker.losses(|loss| {
            if losses.len() < 20 {
                losses.push(loss);
            }
        });
        let began = if self.began == 0 { begin } else { self.began };
        let stop = self.stop.min(self.now);
        let since = |(length, at): (u64, u64)| (length, at.saturating_sub(began));
        let worst = self.silences.iter().enumerate();
        let worst = worst.map(|(number, silence)| (silence.longest(stop), number)).max();
        let worst = worst.map_or((0, 0, 0), |(silence, number)| {
            let (length, at) = since(silence);
            (length, at, number)
        });
        Found {
            silence: if self.began > 0 { since(self.silence.longest(stop)) } else { (0, 0) },
            silence_of_one: worst,
            never_began: if self.began == 0 { self.fatal } else { None },
            ended_early: self.ended_early,
            unsent,
            losses,
            lost,
            checker: self.checker,
            counts: self.counts,
            reasons: self.reasons,
            events: self.events,
            unacknowledged,
            resent,
            releases_resent,
            strays,
            hidden,
            up,
            clients,
            expiry: self.expiry,
            latency: self.latency,
            reconnect: self.reconnect,
            published_for: if self.began > 0 { stop - began } else { 0 },
            drained_for: self.now - stop,
            away_since: self.away_since.map(|since| self.now - since),
        }
    }
}

/// When the message of a place in the common schedule is due.
fn due(began: u64, place: u64, rate: u64) -> u64 {
    began + (u128::from(place) * u128::from(SECOND) / u128::from(rate)) as u64
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
