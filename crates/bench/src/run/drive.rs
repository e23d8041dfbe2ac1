//! The clients of this process: from the first connection to their results.

use super::done::{Checked, Done};
use super::flow_report::violations;
use super::verdict::judge;
use super::*;
use crate::counters::{Counts, Phase};
use crate::live::Tick;
use crate::outcome::merge;
use crate::plan::{Kind, Plan};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

/// Observer of a run: the screen of this process, or another process that joins several.
pub trait Host {
    /// Receives the figures of a second.
    fn tick(&mut self, tick: Tick);
    /// Returns whether publishing may begin. Called repeatedly once every client is connected or has failed.
    fn may_publish(&mut self) -> bool;
    /// Returns whether to end now.
    fn stop(&mut self) -> bool;
}

const SECOND: u64 = 1_000_000_000;
/// Time at the end in which messages may still be acknowledged.
const DRAIN: u64 = 2 * SECOND;
/// Additional time in which messages may still arrive, when their arrival is checked.
const DRAIN_CHECKED: u64 = 5 * SECOND;
/// Silence after which the subscribers of a scenario leave.
const QUIET: u64 = SECOND / 2;
/// Time for duplicates after the last expected message.
const SETTLE: u64 = SECOND / 5;

/// Runs until the plan's duration, the limit of messages, a stop of the host, or the end of the last connection.
///
/// # Errors
/// The run could not start.
pub fn drive(plan: &Plan, host: &mut dyn Host) -> Result<Done, SetupError> {
    let cfg = match plan.kind {
        Kind::Pubsub => pairs::config(plan)?,
        Kind::Conn | Kind::Sub | Kind::Pub => plan.config()?,
    };
    check_limits(&cfg)?;
    let joined = match plan.schedule.span {
        Some(span) if !span.join.is_zero() => match wait_to_join(span.join, host) {
            Some(t0) => Some(t0),
            None => return Ok(Done { interrupted: true, ..Done::nothing() }),
        },
        _ => None,
    };
    let rss_before = process::stat(std::process::id(), false).rss_anon;
    let cfg = Arc::new(cfg);
    let shared = Arc::new(Shared::new(cfg.threads.count));
    shared.w0.store(0, Relaxed);
    shared.w1.store(u64::MAX - 1, Relaxed);
    let workers = spawn(&cfg, &shared);
    let mut watch = Watch::new(plan, &cfg, &shared, &workers, host);
    if let Some(t0) = joined {
        watch.publish_from(t0);
    }
    let observed = watch.until_the_end();
    watch.last_tick();
    let rss = process::stat(std::process::id(), false).rss_anon.saturating_sub(rss_before);
    if cfg.plain.is_none() {
        // Data in the kernel's buffers may still arrive.
        nap(15);
    }
    shared.set_phase(Phase::End);
    let mut m = merge(join(workers));
    let checked = (cfg.plain.is_none() && !observed.aborted).then(|| {
        let verdict = judge(&cfg, &mut m, observed.t0, observed.ended);
        Checked {
            lost: verdict.lost,
            lost_acked: verdict.lost_acked,
            duplicated: verdict.dup,
            out_of_order: verdict.late,
            violations: violations(&cfg, &m, &verdict),
        }
    });
    let seconds = |from: u64, to: u64| to.saturating_sub(from).max(1) as f64 / 1e9;
    let flow_s = seconds(observed.flow.0, observed.flow.1);
    // With a limit of messages, the last one ends the time of sending and of receiving.
    let until = |last: u64| match cfg.sending.messages {
        1.. if last > observed.flow.0 => seconds(observed.flow.0, last),
        _ => flow_s,
    };
    let counted = if cfg.sending.messages > 0 { &m.c } else { &observed.at_stop };
    Ok(Done {
        clients: cfg.traffic.clients() as u64,
        sent_per_s: counted.sent as f64 / until(shared.times.last_send.load(Relaxed)),
        received_per_s: counted.recv as f64 / until(shared.times.last_recv.load(Relaxed)),
        counts: m.c,
        last: observed.last,
        hists: m.h,
        reasons: m.reasons,
        seconds: seconds(observed.began, observed.ended),
        ready_s: ready_seconds(&shared),
        flow_s,
        interrupted: observed.interrupted,
        deserted: observed.deserted,
        aborted: observed.aborted,
        checked,
        // Groups of a scenario share a process: each counts the CPU of its own threads.
        cpu_s: if plan.schedule.span.is_some() { m.cpu_ns as f64 / 1e9 } else { observed.cpu_s },
        rss: if plan.schedule.span.is_some() { 0 } else { rss },
        threads: cfg.threads.count as u64,
        processes: 1,
        problems: vec![],
    })
}

/// Waits until the initial clients are ready, and then for `join`. Returns the time at which they were ready, `None`
/// when the run ends before.
fn wait_to_join(join: Duration, host: &mut dyn Host) -> Option<u64> {
    let mut begun = None;
    loop {
        if host.stop() {
            return None;
        }
        if begun.is_none() && host.may_publish() {
            begun = Some(net::now());
        }
        if let Some(t0) = begun.filter(|t0| net::now() >= t0 + join.as_nanos() as u64) {
            return Some(t0);
        }
        nap(5);
    }
}

/// Observations of the main thread.
struct Observed {
    began: u64,
    ended: u64,
    /// Start of publishing, if it started.
    t0: u64,
    /// Start and end of the time for messages.
    flow: (u64, u64),
    at_stop: Counts,
    last: Counts,
    cpu_s: f64,
    interrupted: bool,
    deserted: bool,
    aborted: bool,
}

/// The main thread's view of a run.
struct Watch<'a> {
    plan: &'a Plan,
    cfg: &'a Config,
    shared: &'a Shared,
    workers: &'a Workers,
    host: &'a mut dyn Host,
    total: u64,
    began: u64,
    /// Start of publishing, and the CPU used until then.
    t0: Option<u64>,
    cpu_before: f64,
    /// Time at which this second's pulses were requested.
    pulse_requested_at: Option<u64>,
    next_tick: u64,
}

impl<'a> Watch<'a> {
    fn new(
        plan: &'a Plan,
        cfg: &'a Config,
        shared: &'a Shared,
        workers: &'a Workers,
        host: &'a mut dyn Host,
    ) -> Watch<'a> {
        let began = net::now();
        let total = cfg.traffic.clients() as u64;
        let next_tick = began + SECOND;
        let cpu_before = own_cpu();
        Watch {
            plan,
            cfg,
            shared,
            workers,
            host,
            total,
            began,
            t0: None,
            cpu_before,
            pulse_requested_at: None,
            next_tick,
        }
    }

    fn until_the_end(&mut self) -> Observed {
        let checked = self.cfg.plain.is_none();
        let together = self.plan.schedule.together || checked || self.plan.schedule.span.is_some();
        if !together {
            self.publish();
        }
        loop {
            let now = net::now();
            let c = self.shared.sum();
            let settled = self.is_settled(&c);
            self.beat(now);
            let aborted = checked && settled && c.failed > 0;
            if settled && !aborted && self.t0.is_none() && self.host.may_publish() {
                self.publish();
            }
            let deserted = c.gone >= self.total;
            let done = self.is_done(now, &c);
            let interrupted = self.host.stop() || self.workers.iter().any(|worker| worker.is_finished());
            if aborted || deserted || done || interrupted {
                self.shared.set_phase(Phase::Stop);
                let cpu_s = own_cpu() - self.cpu_before;
                self.drain();
                let began = match self.plan.schedule.span {
                    Some(span) => self.t0.map_or(now, |t0| t0 + span.join.as_nanos() as u64),
                    None if checked => self.t0.unwrap_or(self.began),
                    None => self.began,
                };
                return Observed {
                    began: self.began,
                    ended: now,
                    t0: self.t0.unwrap_or(now),
                    flow: (began.min(now), now),
                    at_stop: c,
                    last: self.shared.sum(),
                    cpu_s,
                    interrupted: interrupted && !done,
                    deserted,
                    aborted,
                };
            }
            nap(5);
        }
    }

    fn is_settled(&self, c: &Counts) -> bool {
        c.ready_subs + c.ready_pubs + c.failed >= self.total
    }

    /// Starts publishing. With checked messages, it starts a moment later, so that no worker is late. The CPU use is
    /// counted from here.
    fn publish(&mut self) {
        self.publish_from(net::now() + if self.cfg.plain.is_none() { SECOND / 50 } else { 0 });
    }

    fn publish_from(&mut self, t0: u64) {
        let checked = self.cfg.plain.is_none();
        self.t0 = Some(t0);
        if self.plan.schedule.span.is_some() {
            // Seconds are those of the scenario, so that each belongs to one stage.
            let past = net::now().saturating_sub(t0) / SECOND;
            self.next_tick = t0 + (past + 1) * SECOND;
        }
        self.shared.t0.store(t0, Relaxed);
        if checked {
            self.cpu_before = own_cpu();
            self.shared.w0.store(t0, Relaxed);
            if self.cfg.sending.messages == 0 {
                let most = self.plan.output.duration.unwrap_or(pairs::DURATION);
                self.shared.w1.store(t0 + most.as_nanos() as u64, Relaxed);
            }
        }
        self.shared.set_phase(Phase::Run);
    }

    fn is_done(&self, now: u64, c: &Counts) -> bool {
        let most = self.plan.output.duration.map(|most| most.as_nanos() as u64);
        if self.cfg.plain.is_none() {
            let Some(t0) = self.t0 else { return false };
            // In rate mode messages due just before the end may still be sent.
            let over = match (self.cfg.sending.messages, most) {
                (0, _) => now >= self.shared.w1.load(Relaxed) + SECOND / 200,
                (_, Some(most)) => now >= t0 + most,
                (_, None) => false,
            };
            let sent = self.cfg.sending.messages > 0 && c.sent >= self.cfg.sending.messages;
            return over || sent && (self.cfg.traffic.pub_qos == 0 || c.unacked == 0);
        }
        if let Some(span) = self.plan.schedule.span {
            return self.t0.is_some_and(|t0| now >= t0 + span.leave.as_nanos() as u64);
        }
        let sent = self.cfg.sending.messages > 0
            && self.cfg.traffic.n_pub > 0
            && c.done_pubs >= self.cfg.traffic.n_pub as u64;
        // The share of a limit that is smaller than the number of processes may be 0.
        let nothing = self.plan.schedule.limit == 0 && self.cfg.sending.messages > 0;
        sent && !self.plan.schedule.keep || nothing || most.is_some_and(|most| now - self.began >= most)
    }

    /// Waits for messages in flight.
    fn drain(&mut self) {
        let checked = self.cfg.plain.is_none();
        let until = net::now() + if checked { DRAIN_CHECKED } else { DRAIN };
        let mut complete_since = None;
        // The last messages of other groups' publishers arrive a moment later.
        let waits = self.plan.schedule.span.is_some()
            && (self.cfg.traffic.n_sub > 0 || !self.plan.also.topics.is_empty());
        loop {
            let (now, c) = (net::now(), self.shared.sum());
            let due = c.expected.saturating_sub(c.rejected);
            let still = !waits || now.saturating_sub(self.shared.times.last_recv.load(Relaxed)) >= QUIET;
            let complete = c.unacked == 0 && still && (!checked || c.uniq >= due && c.recv >= due);
            let since = complete.then(|| complete_since.unwrap_or(now));
            complete_since = since;
            let settle = if checked { SETTLE } else { 0 };
            if since.is_some_and(|since| now - since >= settle) || c.up == 0 || now >= until {
                return;
            }
            self.beat(now);
            nap(5);
        }
    }

    /// Requests the workers' measurements once a second, and passes them on a moment later.
    fn beat(&mut self, now: u64) {
        if self.pulse_requested_at.is_none() && now >= self.next_tick {
            self.pulse_requested_at = Some(now);
            self.shared.beat.fetch_add(1, Relaxed);
        } else if self.pulse_requested_at.is_some() {
            self.tick(now, false);
        }
    }

    /// Passes on the incomplete last second, unless it is empty.
    fn last_tick(&mut self) {
        self.shared.beat.fetch_add(1, Relaxed);
        let until = net::now() + SECOND / 20;
        while !self.answered() && net::now() < until {
            nap(2);
        }
        self.tick(net::now(), true);
    }

    fn answered(&self) -> bool {
        let beat = self.shared.beat.load(Relaxed);
        let has_pulse = |slot: &std::sync::Mutex<crate::pulse::Pulse>| {
            slot.lock().unwrap_or_else(PoisonError::into_inner).beat == beat
        };
        self.shared.pulses.iter().all(has_pulse)
    }

    /// Passes on the second's figures when all workers have answered, when they are too slow, or when it is the
    /// `last` call.
    fn tick(&mut self, now: u64, last: bool) {
        let late =
            self.pulse_requested_at.is_some_and(|pulse_requested_at| now > pulse_requested_at + SECOND / 10);
        if !self.answered() && !late && !last {
            return;
        }
        let counts = self.shared.sum();
        // Messages that arrive at the end belong to the last stage.
        let leave = self.plan.schedule.span.map_or(f64::MAX, |span| span.leave.as_secs_f64());
        let mut tick = Tick {
            settled: self.is_settled(&counts),
            ready_s: ready_seconds(self.shared),
            at: self.t0.map_or(0.0, |t0| (now.saturating_sub(t0) as f64 / 1e9).min(leave)),
            counts,
            ..Tick::new()
        };
        for slot in &self.shared.pulses {
            let mut pulse = slot.lock().unwrap_or_else(PoisonError::into_inner);
            tick.pulse.add(&pulse);
            pulse.clear();
        }
        self.pulse_requested_at = None;
        self.next_tick = (self.next_tick + SECOND).max(now + SECOND / 2);
        self.host.tick(tick);
    }
}

fn own_cpu() -> f64 {
    let (user, sys) = process::self_cpu();
    user + sys
}

/// Seconds from the first connect until the last client was ready.
fn ready_seconds(shared: &Shared) -> f64 {
    let first = shared.times.first_connect.load(Relaxed);
    shared.times.last_ready.load(Relaxed).saturating_sub(first) as f64 / 1e9
}
