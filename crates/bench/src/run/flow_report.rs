//! The report of `pubsub`, `probe` and `ha`.

use super::flow::{Flow, Watched};
use super::verdict::Verdict;
use crate::config::{Config, LatencyFrom, Reconnect};
use crate::counters::Times;
use crate::net;
use crate::outcome::Merged;
use crate::process::ProcStat;
use crate::report::{brokers_json, lat, load, reasons_json, round, sum};
use crate::topology::Topology;
use serde_json::{Value, json};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

/// The report and the exit code: 1 for any violation.
pub fn flow_report(
    flow: &Flow,
    cfg: &Config,
    times: &Times,
    w: &Watched,
    m: &Merged,
    v: &Verdict,
    brokers_end: &[ProcStat],
) -> (Value, i32) {
    let pids = &flow.common.broker_pid;
    let ha = cfg.connecting.reconnect == Reconnect::Unlimited;
    let counted = cfg.sending.messages > 0;
    let (from, to) = &w.window;
    let (c0, c1) = (&from.counts, &to.counts);
    let span = |last: u64| -> f64 {
        if counted { (last.max(w.t0 + 1) - w.t0) as f64 / 1e9 } else { (to.at - from.at).max(1) as f64 / 1e9 }
    };
    // In --messages mode everything that arrives counts, also in the drain.
    let cr = if counted { &m.c } else { c1 };
    let per_s = |x: u64, y: u64, last: u64| round(x.wrapping_sub(y) as f64 / span(last), 1);
    let window = (to.at - from.at).max(1) as f64 / 1e9;
    let (user, sys) = (to.own_cpu.0 - from.own_cpu.0, to.own_cpu.1 - from.own_cpu.1);
    let own_cpu = user + sys;
    let broker_cpu = sum(&to.brokers, |p| p.cpu_s) - sum(&from.brokers, |p| p.cpu_s);
    let received = c1.recv.wrapping_sub(c0.recv);
    let us_per_delivery =
        |s: f64| if received > 0 { json!(round(s * 1e6 / received as f64, 3)) } else { Value::Null };
    let of_broker = |v: Value| if pids.is_empty() { Value::Null } else { v };
    let violations = violations(cfg, m, v);
    let last_recv = times.last_recv.load(Relaxed);
    let mut out = json!({
        "tool": "mqload", "command": flow.name, "label": flow.common.label, "version": flow.common.version, "threads": cfg.threads.count,
        "topology": format!("{:?}", flow.args.topology), "pubs": cfg.traffic.n_pub, "subs": cfg.traffic.n_sub, "groups": cfg.traffic.groups,
        "pub_qos": cfg.traffic.pub_qos, "sub_qos": cfg.traffic.sub_qos, "payload": cfg.traffic.payload, "rate_asked": cfg.sending.rate,
        "coalesce_us": cfg.sending.coalesce_ns / 1000, "inflight": cfg.sending.window, "max_outstanding": cfg.sending.max_outstanding,
        "window_s": round(window, 3), "window_unix_s": [unix_s(from.at), unix_s(to.at)], "interrupted": w.interrupted,
        "sent_per_s": per_s(c1.sent, c0.sent, times.last_send.load(Relaxed)),
        "acked_per_s": per_s(c1.acked, c0.acked, times.last_ack.load(Relaxed)),
        "received_per_s": per_s(cr.recv, c0.recv, last_recv),
        "received_mbytes_per_s": round(cr.recv_bytes.wrapping_sub(c0.recv_bytes) as f64 / 1e6 / span(last_recv), 3),
        "latency_us": lat(&m.h.e2e),
        "latency_from": if cfg.checks.latency_from == LatencyFrom::Due && cfg.sending.rate > 0.0 { "due" } else { "send" },
        "ack_us": lat(&m.h.ack),
        "send_lag_us": lat(&m.h.lag),
        "totals": {
            "sent": v.sent, "acked": m.c.acked, "rejected": m.c.rejected, "unacked_at_end": v.unacked,
            "expected_deliveries": v.expected, "received": m.c.recv, "unique": m.c.uniq - m.cross_dup,
            "unsent_backlog": v.due.saturating_sub(v.sent),
            "tx_bytes": m.c.tx_bytes, "rx_bytes": m.c.rx_bytes, "writes": m.c.writes, "reads": m.c.reads,
            "blocked_writes": m.c.blocked_writes, "pings": m.c.pings,
        },
        "lost": v.lost, "lost_acked": v.lost_acked, "duplicated": v.dup, "out_of_order": v.late,
        "streams": v.streams, "streams_with_loss": v.streams_with_loss, "loss_samples": v.samples,
        "foreign": m.c.foreign, "unexpected": m.c.unexpected, "corrupt": m.c.corrupt, "phantom": v.phantom,
        "handshake": {
            "dup_flag": m.c.dup_flag, "q2_retransmissions_hidden": m.c.q2_suppressed, "pubrel_unknown": m.c.pubrel_unknown,
            "bad_acks": m.c.bad_acks, "acks_out_of_order": m.c.acks_out_of_order, "qos_downgraded": m.c.qos_downgraded,
            "qos_wrong": m.c.qos_wrong, "receive_max_exceeded": m.c.recv_max_exceeded, "no_subscribers": m.c.no_subscribers,
            "retain_flag": m.c.retain_flag,
        },
        "disconnects": m.c.disconnects, "reasons": reasons_json(&m.reasons),
        "cpu": {
            "broker_s": of_broker(json!(round(broker_cpu, 2))),
            "broker_cores": of_broker(json!(round(broker_cpu / window, 3))),
            "broker_us_per_delivery": of_broker(us_per_delivery(broker_cpu)),
            "generator_s": round(own_cpu, 3), "generator_user_s": round(user, 3), "generator_sys_s": round(sys, 3),
            "generator_cores": round(own_cpu / window, 3), "generator_us_per_delivery": us_per_delivery(own_cpu),
            "generator_saturated": own_cpu / window > 0.95 * cfg.threads.count as f64,
        },
        "broker_rss_before": sum(&w.brokers_before, |p| p.rss as f64) as u64,
        "brokers": brokers_json(pids, &from.brokers, &to.brokers, &w.rss_peak),
        "broker_rss_end": sum(brokers_end, |p| p.rss as f64) as u64,
        "drain_s": round((w.ended_at - w.stopped_at) as f64 / 1e9, 2),
        "machine_load1": load(),
        "timeline_columns": ["s", "sent/s", "acked/s", "received/s", "connections up"],
        "timeline": w.timeline,
    });
    let o = out.as_object_mut().expect("an object");
    if ha {
        o.insert("ha".into(), ha_json(cfg, w, m, v));
        o.insert("events".into(), events_json(w, m));
    } else {
        o.insert("longest_gap_ms".into(), json!(round(v.max_gap.0 as f64 / 1e6, 1)));
    }
    let code = if violations.is_empty() { 0 } else { 1 };
    o.insert("violations".into(), json!(violations));
    (out, code)
}

/// Converts a moment of this run's clock to seconds since 1970, which other processes on this machine can compare.
fn unix_s(at: u64) -> f64 {
    let ago = Duration::from_nanos(net::now().saturating_sub(at));
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    round(since_1970.saturating_sub(ago).as_secs_f64(), 6)
}

/// Violations by the broker. Loss at QoS 0 and duplicates at QoS 1 are none.
pub(super) fn violations(cfg: &Config, m: &Merged, v: &Verdict) -> Vec<String> {
    let ha = cfg.connecting.reconnect == Reconnect::Unlimited;
    let mut found: Vec<String> = vec![];
    let bad = m.c.foreign + m.c.unexpected + m.c.corrupt + v.phantom;
    if bad > 0 {
        found.push(format!("{bad} deliveries to wrong subscribers (foreign, unexpected, corrupt, phantom)"));
    }
    if v.lost_acked > 0 && cfg.traffic.sub_qos > 0 {
        found.push(format!("{} acknowledged messages lost", v.lost_acked));
    }
    let qos = cfg.traffic.qos();
    if v.dup > 0 && (qos == 2 || (!ha && qos == 0)) {
        found.push(format!("{} duplicates at QoS {qos}", v.dup));
    }
    if v.late > 0 && cfg.traffic.topology != Topology::Shared {
        found.push(format!("{} messages out of order", v.late));
    }
    for (what, n) in [
        ("unexpected acknowledgements", if ha { 0 } else { m.c.bad_acks }),
        ("deliveries at the wrong QoS", m.c.qos_wrong),
        ("deliveries beyond the receive maximum", m.c.recv_max_exceeded),
        ("messages with a retain flag", m.c.retain_flag),
    ] {
        if n > 0 {
            found.push(format!("{n} {what}"));
        }
    }
    found.extend(m.reasons.keys().filter(|k| k.starts_with("protocol error")).cloned());
    found
}

/// QoS at which a subscriber receives the messages.
fn ha_json(cfg: &Config, w: &Watched, m: &Merged, v: &Verdict) -> Value {
    json!({
        "acknowledged": m.c.acked, "LOST": v.lost_acked, "lost_after_pubrec_only": v.lost_pubrec_only,
        "never_acked": v.unacked, "duplicates": v.dup,
        "duplicates_allowed": cfg.traffic.qos() == 1, "reordered": v.late,
        "longest_gap_ms": round(v.max_gap.0 as f64 / 1e6, 1), "longest_gap_began_s": round(v.max_gap.1 as f64 / 1e9, 3),
        "longest_gap_stream": v.max_gap_stream,
        "longest_silence_ms": round(m.any_gap.0 as f64 / 1e6, 1),
        "longest_silence_began_s": round(m.any_gap.1.saturating_sub(w.t0) as f64 / 1e9, 3),
        "stream_gap_ms_p50": round(v.gaps.value_at_quantile(0.5) as f64 / 1e6, 1),
        "reconnects": m.c.reconnects, "failed_attempts": m.c.attempts_failed, "reconnect_us": lat(&m.h.reconnect),
        "sessions_resumed": m.c.sessions_resumed,
        "publisher_sessions_lost": m.c.sessions_lost_pub, "subscriber_sessions_lost": m.c.sessions_lost_sub,
        "resent_publishes": m.c.resent, "resent_pubrels": m.c.pubrel_resent,
        "clients_up_at_end": m.c.up, "clients": cfg.traffic.clients(),
    })
}

/// The first 200 disconnects and reconnects: seconds, client, host, kind.
fn events_json(w: &Watched, m: &Merged) -> Value {
    let row = |e: &crate::outcome::Event| {
        json!([round((e.at as f64 - w.t0 as f64) / 1e9, 3), e.client, e.host, e.what])
    };
    Value::Array(m.events.iter().take(200).map(row).collect())
}
