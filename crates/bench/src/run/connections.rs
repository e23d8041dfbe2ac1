//! `conn` and `sub`: the speed of connecting, and the cost of a connection.

use super::*;
use crate::args::ConnectionsArgs;
use crate::counters::Phase;
use crate::outcome::merge;
use crate::process::ProcStat;
use crate::report::{brokers_json, lat, load, reasons_json, round, sum};
use serde_json::json;
use std::sync::atomic::Ordering::Relaxed;

pub fn run(name: &str, a: &ConnectionsArgs, cfg: Config) -> Result<Report, SetupError> {
    let filters = cfg.traffic.sub_topics.len() * cfg.traffic.per_conn;
    check_limits(&cfg)?;
    let pids = a.common.broker_pid.clone();
    let before = process::stats(&pids, true);
    let tcp_before = process::tcp_mem();
    let self0 = process::self_cpu();
    let cfg = Arc::new(cfg);
    let shared = Arc::new(Shared::new(cfg.threads.count));
    let ws = spawn(&cfg, &shared);
    let complete = wait_setup(&cfg, &shared, a.common.setup_timeout, a.common.quiet, &ws);
    let at_ready = process::stats(&pids, false);
    let c1 = shared.sum();
    print_status(a.common.quiet, format_args!("ready {} failed {}", c1.ready_subs, c1.failed));
    // Let the broker settle, then read its memory while everything is connected.
    if !pids.is_empty() {
        nap(500);
    }
    let after = process::stats(&pids, true);
    let tcp_after = process::tcp_mem();
    let hold_from = net::now();
    let cpu_h0 = process::stats(&pids, false);
    let mut last_report = hold_from;
    while net::now() - hold_from < (a.hold * 1e9) as u64 && !interrupted() {
        nap(20);
        if net::now() - last_report > 5_000_000_000 {
            last_report = net::now();
            let c = shared.sum();
            print_status(
                a.common.quiet,
                format_args!("hold: up {} disconnects {} pings {}", c.up, c.disconnects, c.pings),
            );
        }
    }
    let held = (net::now() - hold_from) as f64 / 1e9;
    let cpu_h1 = process::stats(&pids, true);
    nap(15);
    let c2 = shared.sum();
    shared.set_phase(Phase::End);
    let m = merge(join(ws));
    let self1 = process::self_cpu();
    let t = &shared.times;
    let (f, la, lr) =
        (t.first_connect.load(Relaxed), t.last_connack.load(Relaxed), t.last_ready.load(Relaxed));
    let to_s = |x: u64| if x > f { round((x - f) as f64 / 1e9, 4) } else { 0.0 };
    let n = c1.ready_subs.max(1) as f64;
    let per = |g: fn(&ProcStat) -> f64| -> Value {
        if pids.is_empty() { Value::Null } else { json!(round((sum(&after, g) - sum(&before, g)) / n, 1)) }
    };
    let mut v = json!({
        "tool": "mqload", "command": name, "label": a.common.label, "version": a.common.version, "threads": cfg.threads.count,
        "count": a.count, "rate_asked": a.rate, "concurrency": cfg.connecting.concurrency, "clean": a.clean, "keepalive": cfg.session.keepalive,
        "complete": complete && c1.ready_subs == a.count as u64,
        "ready": c1.ready_subs, "connacked": c1.connacked, "failed": c1.failed,
        "not_done": a.count as u64 - (c1.ready_subs + c1.failed).min(a.count as u64),
        "reasons": reasons_json(&m.reasons),
        "time_to_last_connack_s": to_s(la),
        "tcp_connect_us": lat(&m.h.tcp),
        "connack_us": lat(&m.h.connack),
        "hold": {
            "seconds": round(held, 2), "still_up": c2.up, "disconnects": c2.disconnects, "pings": c2.pings,
            "broker_cpu_s": round(sum(&cpu_h1, |p| p.cpu_s) - sum(&cpu_h0, |p| p.cpu_s), 2),
            "broker_rss_end": sum(&cpu_h1, |p| p.rss as f64) as u64,
        },
        "memory": {
            "rss_per_conn": per(|p| p.rss as f64), "pss_per_conn": per(|p| p.pss as f64),
            "pss_anon_per_conn": per(|p| p.pss_anon as f64),
            "kernel_tcp_mem_delta": tcp_after as i64 - tcp_before as i64,
        },
        "brokers": brokers_json(&pids, &before, &after, &[]),
        "broker_cpu_s_until_ready": round(sum(&at_ready, |p| p.cpu_s) - sum(&before, |p| p.cpu_s), 2),
        "generator_cpu_s": round(self1.0 + self1.1 - self0.0 - self0.1, 3),
        "machine_load1": load(),
    });
    let o = v.as_object_mut().unwrap();
    if name == "sub" {
        let total = to_s(lr);
        o.insert("filters_per_client".into(), json!(filters));
        o.insert("qos".into(), json!(cfg.traffic.sub_qos));
        o.insert("qos_downgraded".into(), json!(m.c.qos_downgraded));
        o.insert("time_to_last_suback_s".into(), json!(total));
        o.insert(
            "subscribed_per_s".into(),
            json!(if total > 0.0 { round(c1.ready_subs as f64 / total, 1) } else { 0.0 }),
        );
        o.insert("suback_us".into(), lat(&m.h.suback));
        o.insert("connect_to_suback_us".into(), lat(&m.h.ready));
    } else {
        let total = to_s(la);
        o.insert(
            "connected_per_s".into(),
            json!(if total > 0.0 { round(c1.ready_subs as f64 / total, 1) } else { 0.0 }),
        );
    }
    let ok = complete && c1.failed == 0 && c2.disconnects == 0;
    Ok(Report { json: v, exit_code: if ok { 0 } else { 1 } })
}
