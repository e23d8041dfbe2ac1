//! `pubsub`, `probe` and `ha`: messages pass the broker while the main thread keeps time and counts.

use super::flow_report::flow_report;
use super::verdict::judge;
use super::*;
use crate::args::{CommonArgs, FlowArgs};
use crate::counters::{Counts, Phase};
use crate::outcome::merge;
use crate::process::ProcStat;
use crate::report::{reasons_json, round};
use serde_json::json;
use std::sync::atomic::Ordering::Relaxed;

pub struct Flow<'a> {
    pub name: &'a str,
    pub common: &'a CommonArgs,
    pub args: &'a FlowArgs,
    /// True to remove the persistent sessions at the end.
    pub cleanup: bool,
    /// Maximum time of a run that ends after a number of messages, in seconds.
    pub max_time: f64,
}

/// Counters at one moment.
pub struct Snapshot {
    pub at: u64,
    pub counts: Counts,
    pub brokers: Vec<ProcStat>,
    /// User and system CPU seconds of this process.
    pub own_cpu: (f64, f64),
}

/// Observations of the main thread during a run.
pub struct Watched {
    /// Start of publishing.
    pub t0: u64,
    pub brokers_before: Vec<ProcStat>,
    /// Start and end of the measured window.
    pub window: (Snapshot, Snapshot),
    pub rss_peak: Vec<u64>,
    pub interrupted: bool,
    /// Time at which the publishers were stopped, and at which the run was over.
    pub stopped_at: u64,
    pub ended_at: u64,
    pub timeline: Vec<Value>,
}

const SECOND: u64 = 1_000_000_000;

pub fn run(flow: Flow, cfg: Config) -> Result<Report, SetupError> {
    check_limits(&cfg)?;
    let pids = flow.common.broker_pid.clone();
    let cfg = Arc::new(cfg);
    let shared = Arc::new(Shared::new(cfg.threads.count));
    let brokers_before = process::stats(&pids, true);
    let workers = spawn(&cfg, &shared);
    let complete = wait_setup(&cfg, &shared, flow.common.setup_timeout, flow.common.quiet, &workers);
    if !complete || shared.sum().failed > 0 {
        shared.set_phase(Phase::End);
        let m = merge(join(workers));
        let json = json!({
            "tool": "mqload", "command": flow.name, "label": flow.common.label, "error": "setup incomplete",
            "ready_subs": m.c.ready_subs, "ready_pubs": m.c.ready_pubs, "failed": m.c.failed,
            "reasons": reasons_json(&m.reasons),
        });
        return Ok(Report { json, exit_code: 2 });
    }
    let watched = watch(&flow, &cfg, &shared, &workers, brokers_before);
    // Data in the kernel's buffers may still arrive.
    nap(15);
    shared.set_phase(Phase::End);
    let mut merged = merge(join(workers));
    let brokers_end = process::stats(&pids, true);
    let verdict = judge(&cfg, &mut merged, watched.t0, watched.stopped_at);
    let (json, exit_code) =
        flow_report(&flow, &cfg, &shared.times, &watched, &merged, &verdict, &brokers_end);
    if flow.cleanup {
        cleanup::cleanup(&cfg);
    }
    Ok(Report { json, exit_code })
}

/// Starts the publishers, stops them at the end of their time or number, and waits for messages in flight.
fn watch(
    flow: &Flow,
    cfg: &Config,
    shared: &Shared,
    workers: &Workers,
    brokers_before: Vec<ProcStat>,
) -> Watched {
    let pids = &flow.common.broker_pid;
    let counted = cfg.sending.messages > 0;
    let warmup = if counted { 0 } else { (flow.args.warmup * 1e9) as u64 };
    let t0 = net::now() + 20_000_000 + (flow.args.pause * 1e9) as u64;
    let w0 = t0 + warmup;
    let w1 = if counted { u64::MAX - 1 } else { w0 + (flow.args.duration * 1e9) as u64 };
    shared.t0.store(t0, Relaxed);
    shared.w0.store(w0, Relaxed);
    shared.w1.store(w1, Relaxed);
    shared.set_phase(Phase::Run);

    let snap = |memory: bool| {
        let brokers = process::stats(pids, memory);
        Snapshot { at: net::now(), counts: shared.sum(), brokers, own_cpu: process::self_cpu() }
    };
    let at_t0 = Snapshot {
        at: t0,
        counts: shared.sum(),
        brokers: brokers_before.clone(),
        own_cpu: process::self_cpu(),
    };
    let mut ticker = Ticker::new(t0, at_t0.counts.clone(), pids.len());
    let (mut at_w0, mut at_w1) = (None, None);
    let mut interrupted = false;
    let mut stopped_at = 0u64;
    let mut idle_since = 0u64;
    loop {
        let now = net::now();
        // A counted run has no warm-up, and includes messages that arrived before this check.
        if at_w0.is_none() && now >= w0 && !counted {
            at_w0 = Some(snap(false));
        }
        if stopped_at == 0 {
            let done = if counted {
                let c = shared.sum();
                c.sent >= cfg.sending.messages && (cfg.traffic.pub_qos == 0 || c.unacked == 0)
            } else {
                // In rate mode messages due just before the end may still be sent.
                now >= w1 + if cfg.sending.rate > 0.0 { 5_000_000 } else { 0 }
            };
            let late = counted && now > t0 + (flow.max_time * 1e9) as u64;
            if late || super::interrupted() || workers.iter().any(|w| w.is_finished()) {
                interrupted = true;
            }
            if at_w1.is_none() && (done || interrupted || now >= w1) {
                at_w1 = Some(snap(true));
            }
            if done || interrupted {
                shared.set_phase(Phase::Stop);
                stopped_at = net::now();
            }
        } else {
            let c = shared.sum();
            let due = c.expected.wrapping_sub(c.rejected);
            if c.uniq >= due && c.unacked == 0 && c.recv >= c.expected.saturating_sub(c.rejected) {
                if idle_since == 0 {
                    idle_since = now;
                }
                if now - idle_since > flow.args.settle_ms * 1_000_000 {
                    break;
                }
            } else {
                idle_since = 0;
            }
            // An interruption ends the wait too, unless it has ended the publishing.
            let is_cut_short = super::interrupted() && !interrupted;
            interrupted |= is_cut_short;
            let is_over = is_cut_short || now - stopped_at > (flow.args.drain * 1e9) as u64;
            if is_over || workers.iter().any(|w| w.is_finished()) {
                break;
            }
        }
        if now >= ticker.next {
            let phase = match () {
                _ if stopped_at > 0 => "drain",
                _ if now < w0 => "warm-up",
                _ => "run",
            };
            ticker.tick(now, shared.sum(), pids, phase, flow.common.quiet);
        }
        nap(if counted { 2 } else { 5 });
    }
    Watched {
        t0,
        brokers_before,
        // A counted run, and one that was interrupted during its warm-up, is measured from its start.
        window: (at_w0.unwrap_or(at_t0), at_w1.expect("the publishers were stopped")),
        rss_peak: ticker.rss_peak,
        interrupted,
        stopped_at,
        ended_at: net::now(),
        timeline: ticker.timeline,
    }
}

/// Writes a row of the timeline and a line of progress once a second.
struct Ticker {
    t0: u64,
    next: u64,
    previous_at: u64,
    previous: Counts,
    rss_peak: Vec<u64>,
    timeline: Vec<Value>,
}

impl Ticker {
    fn new(t0: u64, counts: Counts, brokers: usize) -> Ticker {
        Ticker {
            t0,
            next: t0 + SECOND,
            previous_at: t0,
            previous: counts,
            rss_peak: vec![0; brokers],
            timeline: vec![],
        }
    }

    fn tick(&mut self, now: u64, c: Counts, pids: &[u32], phase: &str, quiet: bool) {
        let dt = (now - self.previous_at) as f64 / 1e9;
        let rate = |x: u64, y: u64| ((x.wrapping_sub(y)) as f64 / dt).round();
        for (peak, pid) in self.rss_peak.iter_mut().zip(pids) {
            *peak = (*peak).max(process::stat(*pid, false).rss);
        }
        let at = (now - self.t0) as f64 / 1e9;
        let p = &self.previous;
        let (sent, acked, recv) = (rate(c.sent, p.sent), rate(c.acked, p.acked), rate(c.recv, p.recv));
        self.timeline.push(json!([round(at, 2), sent, acked, recv, c.up]));
        let open = c.expected as i64 - c.uniq as i64;
        print_status(
            quiet,
            format_args!(
                "[{at:6.1}s {phase}] sent/s {sent} acked/s {acked} recv/s {recv} outstanding {open} up {} disconnects {}",
                c.up, c.disconnects
            ),
        );
        self.previous = c;
        self.previous_at = now;
        self.next += SECOND;
        if self.next < now {
            self.next = now + SECOND;
        }
    }
}
