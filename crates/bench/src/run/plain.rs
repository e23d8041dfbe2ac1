//! `conn`, `sub` and `pub` of the familiar command lines: they go on until nothing is left to do.

use super::*;
use crate::counters::{Counts, P_END, P_RUN, P_STOP};
use crate::outcome::{Merged, merge};
use crate::plan::{Kind, Plan};
use crate::report::{lat, reasons_json, round};
use crate::run::summary;
use serde_json::json;
use std::sync::atomic::Ordering::{Relaxed, Release};

const SECOND: u64 = 1_000_000_000;
/// What is under way at the end may still be acknowledged for this long.
const DRAIN: u64 = 2 * SECOND;

/// What the main thread saw.
struct Watched {
    began: u64,
    ended: u64,
    /// The counters at the end of the run, before the connections were closed.
    last: Counts,
    interrupted: bool,
    /// Not all were connected and nothing is left of those that were.
    deserted: bool,
}

/// Runs until `plan.output.duration`, the limit of messages, a signal, or the end of the last connection. Prints the
/// result and returns the exit code.
///
/// # Errors
/// When nothing could begin.
pub fn run(plan: &Plan) -> Result<i32, SetupError> {
    let cfg = plan.config()?;
    check_limits(&cfg)?;
    let rss_before = process::stat(std::process::id(), false).rss;
    let cpu_before = process::self_cpu();
    let cfg = Arc::new(cfg);
    let shared = Arc::new(Shared::new(cfg.threads));
    shared.w0.store(0, Relaxed);
    shared.w1.store(u64::MAX - 1, Relaxed);
    let workers = spawn(&cfg, &shared);
    let watched = watch(plan, &cfg, &shared, &workers);
    let rss = process::stat(std::process::id(), false).rss.saturating_sub(rss_before);
    let cpu_after = process::self_cpu();
    shared.phase.store(P_END, Release);
    let merged = merge(join(workers));
    let cpu = cpu_after.0 + cpu_after.1 - cpu_before.0 - cpu_before.1;
    let (report, code) = report(plan, &cfg, &shared, &watched, &merged, cpu, rss);
    summary::print(&report, plan.output.json);
    Ok(code)
}

fn watch(plan: &Plan, cfg: &Config, shared: &Shared, workers: &Workers) -> Watched {
    let total = (cfg.n_sub + cfg.n_pub) as u64;
    let began = net::now();
    let publish = || {
        shared.t0.store(net::now(), Relaxed);
        shared.phase.store(P_RUN, Release);
    };
    if !plan.together {
        publish();
    }
    let mut published = !plan.together;
    let mut ticker = Ticker { began, at: began, before: Counts::default(), said_connected: false };
    loop {
        let now = net::now();
        let c = shared.sum();
        let settled = c.ready_subs + c.ready_pubs + c.failed >= total;
        if settled && !published {
            published = true;
            publish();
        }
        ticker.tick(plan, shared, now, &c, settled);
        let deserted = c.gone >= total;
        let done = cfg.messages > 0 && cfg.n_pub > 0 && c.done_pubs >= cfg.n_pub as u64;
        let over = plan.output.duration.is_some_and(|most| now - began >= most.as_nanos() as u64);
        let interrupted = interrupted() || workers.iter().any(|worker| worker.is_finished());
        if deserted || done || over || interrupted {
            shared.phase.store(P_STOP, Release);
            let until = net::now() + DRAIN;
            while shared.sum().unacked > 0 && shared.sum().up > 0 && net::now() < until {
                nap(5);
            }
            let last = shared.sum();
            return Watched { began, ended: now, last, interrupted, deserted };
        }
        nap(5);
    }
}

/// A line a second.
struct Ticker {
    began: u64,
    at: u64,
    before: Counts,
    said_connected: bool,
}

impl Ticker {
    fn tick(&mut self, plan: &Plan, shared: &Shared, now: u64, c: &Counts, settled: bool) {
        if settled && !self.said_connected {
            self.said_connected = true;
            let what = if plan.kind == Kind::Sub { "connected and subscribed" } else { "connected" };
            let seconds = ready_seconds(shared);
            let count = c.ready_subs + c.ready_pubs;
            say(
                plan.output.quiet,
                format_args!("{count} clients {what} in {seconds:.3} s, {} failed", c.failed),
            );
        }
        if now - self.at < SECOND {
            return;
        }
        let seconds = (now - self.at) as f64 / 1e9;
        let part = |name: &str, total: u64, before: u64| {
            let rate = total.saturating_sub(before) as f64 / seconds;
            format!("  {name} total={total} rate={rate:.0}/s")
        };
        let p = &self.before;
        let mut line = format!("{}s", (now - self.began) / SECOND);
        line += &part("connected", c.connacked, p.connacked);
        if plan.kind == Kind::Pub {
            line += &part("pub", c.sent, p.sent);
            if plan.qos > 0 {
                line += &part("acked", c.acked, p.acked);
            }
            if c.backlog > 0 {
                line += &format!("  overdue={}", c.backlog);
            }
        }
        if plan.kind == Kind::Sub {
            line += &part("recv", c.recv, p.recv);
        }
        for (name, count) in [
            ("failed", c.failed),
            ("retried", c.attempts_failed - c.failed.min(c.attempts_failed)),
            ("disconnected", c.disconnects),
        ] {
            if count > 0 {
                line += &format!("  {name}={count}");
            }
        }
        say(plan.output.quiet, format_args!("{line}"));
        self.before = c.clone();
        self.at = now;
    }
}

/// From the first connect until the last client was ready.
fn ready_seconds(shared: &Shared) -> f64 {
    let first = shared.times.first_connect.load(Relaxed);
    shared.times.last_ready.load(Relaxed).saturating_sub(first) as f64 / 1e9
}

fn report(
    plan: &Plan,
    cfg: &Config,
    shared: &Shared,
    w: &Watched,
    m: &Merged,
    cpu: f64,
    rss: u64,
) -> (Value, i32) {
    let total = (cfg.n_sub + cfg.n_pub) as u64;
    let seconds = (w.ended - w.began).max(1) as f64 / 1e9;
    let ready = m.c.ready_subs + m.c.ready_pubs;
    let messages = m.c.sent + m.c.recv;
    let mut problems = vec![];
    let mut problem = |count: u64, what: &str| {
        if count > 0 {
            problems.push(format!("{count} {what}"));
        }
    };
    problem(m.c.failed, "clients could not connect or subscribe");
    problem(m.c.disconnects, "connections ended before their time");
    problem(m.c.rejected, "messages refused by the broker");
    problem(w.last.unacked, "messages not acknowledged");
    problem(m.c.gaps, "messages missing, by their counters");
    problem(m.c.not_increasing, "messages twice or out of order, by their counters");
    problem(m.c.no_header, "messages too short for the headers of --payload-hdrs");
    problem(m.c.bad_acks, "acknowledgements nobody waited for");
    problem(m.c.qos_downgraded, "subscriptions granted at a lower QoS");
    if cfg.messages > 0 && cfg.n_pub > 0 && !w.interrupted {
        problem(cfg.messages.saturating_sub(m.c.sent), "messages of --limit not sent");
    }
    if w.deserted && ready > 0 {
        problems.push("the broker is gone: no connection is left".to_owned());
    }
    let code = match (ready, problems.is_empty()) {
        (0, _) if !(w.interrupted && m.c.failed == 0) => 2,
        (_, true) => 0,
        _ => 1,
    };
    let cores = cpu / seconds;
    let per_s = |count: u64| round(count as f64 / seconds, 1);
    let has_time = plan.headers.has_time() && plan.kind == Kind::Sub;
    let json = json!({
        "command": plan.kind.name(), "hosts": plan.hosts, "version": if plan.v5 { 5 } else { 4 },
        "seconds": round(seconds, 3), "interrupted": w.interrupted,
        "clients": total, "connected": ready, "failed": m.c.failed, "up_at_end": w.last.up,
        "attempts_failed": m.c.attempts_failed, "disconnects": m.c.disconnects, "reconnects": m.c.reconnects,
        "reasons": reasons_json(&m.reasons),
        "ready_s": round(ready_seconds(shared), 4),
        "connack_us": lat(&m.h.connack), "suback_us": lat(&m.h.suback), "ready_us": lat(&m.h.ready),
        "qos": plan.qos, "payload": cfg.payload,
        "sent": m.c.sent, "sent_per_s": per_s(m.c.sent), "acked": m.c.acked, "rejected": m.c.rejected,
        "unacked": w.last.unacked, "overdue": w.last.backlog, "no_subscribers": m.c.no_subscribers,
        "ack_us": lat(&m.h.ack), "send_lag_us": lat(&m.h.lag),
        "received": m.c.recv, "received_per_s": per_s(m.c.recv), "received_bytes": m.c.recv_bytes,
        "latency_us": if has_time { lat(&m.h.e2e) } else { Value::Null },
        "missing": m.c.gaps, "not_increasing": m.c.not_increasing, "untracked": m.c.untracked,
        "no_header": m.c.no_header,
        "generator": {
            "cpu_s": round(cpu, 3), "cores": round(cores, 3), "threads": cfg.threads,
            "us_per_message": if messages > 0 { json!(round(cpu * 1e6 / messages as f64, 3)) } else { Value::Null },
            "bytes_per_connection": rss / total.max(1),
            "saturated": cores > 0.9 * cfg.threads as f64,
        },
        "problems": problems,
    });
    (json, code)
}
