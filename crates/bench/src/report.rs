//! Pieces of the JSON report.

use crate::process;
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

pub fn round(x: f64, d: i32) -> f64 {
    let m = 10f64.powi(d);
    (x * m).round() / m
}

pub fn lat(h: &Histogram<u64>) -> Value {
    let us = |v: u64| round(v as f64 / 1000.0, 1);
    if h.is_empty() {
        return json!({ "count": 0 });
    }
    json!({
        "count": h.len(),
        "min": us(h.min()),
        "mean": round(h.mean() / 1000.0, 1),
        "p50": us(h.value_at_quantile(0.5)),
        "p90": us(h.value_at_quantile(0.9)),
        "p99": us(h.value_at_quantile(0.99)),
        "p999": us(h.value_at_quantile(0.999)),
        "max": us(h.max()),
    })
}

pub fn brokers_json(
    pids: &[u32],
    a: &[process::ProcStat],
    b: &[process::ProcStat],
    peak: &[u64],
) -> Vec<Value> {
    pids.iter()
        .enumerate()
        .map(|(i, p)| {
            json!({
                "pid": p,
                "alive": b[i].alive,
                "cpu_s": round(b[i].cpu_s - a[i].cpu_s, 2),
                "user_s": round(b[i].user_s - a[i].user_s, 2),
                "sys_s": round(b[i].sys_s - a[i].sys_s, 2),
                "rss_before": a[i].rss,
                "rss_after": b[i].rss,
                "rss_peak_seen": peak.get(i).copied().unwrap_or(0).max(b[i].rss),
                "pss_before": a[i].pss,
                "pss_after": b[i].pss,
                "pss_anon_before": a[i].pss_anon,
                "pss_anon_after": b[i].pss_anon,
                "threads": b[i].threads,
            })
        })
        .collect()
}

pub fn sum(v: &[process::ProcStat], f: fn(&process::ProcStat) -> f64) -> f64 {
    v.iter().map(f).sum()
}

pub fn reasons_json(r: &BTreeMap<String, u64>) -> Value {
    Value::Object(r.iter().map(|(k, v)| (k.clone(), json!(v))).collect::<Map<_, _>>())
}

pub fn load() -> f64 {
    std::fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(|s| s.split(' ').next().and_then(|x| x.parse().ok()))
        .unwrap_or(0.0)
}
