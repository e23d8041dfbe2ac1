//! Comparison of received and sent messages.

use crate::config::Config;
use crate::latency::hist;
use crate::outcome::{Merged, PubResult};
use crate::topology::Topology;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Result of the comparison of received and sent messages.
pub struct Verdict {
    pub expected: u64,
    pub lost: u64,
    pub lost_acked: u64,
    pub lost_pubrec_only: u64,
    pub dup: u64,
    pub late: u64,
    pub phantom: u64,
    pub streams: u64,
    pub streams_with_loss: u64,
    pub max_gap: (u64, u64),
    pub max_gap_stream: String,
    pub gaps: Histogram<u64>,
    pub samples: Vec<Value>,
    pub unacked: u64,
    pub due: u64,
    pub sent: u64,
}

impl Verdict {
    fn new(dup: u64, late: u64) -> Verdict {
        Verdict {
            expected: 0,
            lost: 0,
            lost_acked: 0,
            lost_pubrec_only: 0,
            dup,
            late,
            phantom: 0,
            streams: 0,
            streams_with_loss: 0,
            max_gap: (0, 0),
            max_gap_stream: String::new(),
            gaps: hist(),
            samples: vec![],
            unacked: 0,
            due: 0,
            sent: 0,
        }
    }
}

/// Compares every stream. `t0` is the start of publishing, `t_stop` the time at which it was stopped.
pub fn judge(cfg: &Config, m: &mut Merged, t0: u64, t_stop: u64) -> Verdict {
    let mut v = Verdict::new(m.c.dup + m.cross_dup, m.c.late);
    for p in &mut m.pubs {
        p.unacked.sort_unstable();
        p.rejected.sort_unstable();
        p.rec_only.sort_unstable();
        v.unacked += p.unacked.len() as u64;
        v.sent += p.sent;
        v.due += if p.due == u64::MAX { p.sent } else { p.due };
    }
    let count = |v: &Vec<u64>, miss: &Vec<(u64, u64)>| -> u64 {
        miss.iter()
            .map(|&(a, b)| (v.partition_point(|x| *x < b) - v.partition_point(|x| *x < a)) as u64)
            .sum()
    };
    let one = |v: &mut Verdict, p: &PubResult, to: String, miss: Vec<(u64, u64)>, max_seen: u64| {
        v.streams += 1;
        v.expected += p.sent;
        v.phantom += max_seen.saturating_sub(p.sent);
        if miss.is_empty() {
            return;
        }
        let n: u64 = miss.iter().map(|(a, b)| b - a).sum();
        let rej = if p.rejected.is_empty() { 0 } else { count(&p.rejected, &miss) };
        let un = if p.unacked.is_empty() { 0 } else { count(&p.unacked, &miss) };
        let ro = if p.rec_only.is_empty() { 0 } else { count(&p.rec_only, &miss) };
        v.lost += n;
        v.lost_pubrec_only += ro;
        let acked = if cfg.traffic.pub_qos > 0 { n - rej - un - ro } else { 0 };
        v.lost_acked += acked;
        v.streams_with_loss += 1;
        if v.samples.len() < 20 {
            v.samples.push(json!({
                "pub": p.id, "to": to, "missing": n, "missing_acked": acked,
                "ranges": miss.iter().take(5).map(|(a, b)| json!([a, b - 1])).collect::<Vec<_>>(), "sent": p.sent,
            }));
        }
    };
    if cfg.traffic.topology == Topology::Shared {
        let groups = m.groups_seen.len();
        for g in 0..groups {
            for p in &m.pubs {
                let mut bits = m.groups_seen[g][p.id].clone();
                let miss = bits.missing(p.sent);
                let mut seen_over = 0;
                for s in 0..p.sent {
                    bits.clear(s);
                }
                seen_over += bits.count();
                one(&mut v, p, format!("group {g}"), miss, p.sent + seen_over);
            }
        }
        v.max_gap = m.group_gap;
    } else {
        for s in &m.subs {
            if !s.ok {
                continue;
            }
            for (k, st) in s.streams.iter().enumerate() {
                let p = &m.pubs[s.base + k * s.stride];
                let miss = st.missing(p.sent);
                let (mut gap, mut at) = (st.max_gap, st.max_gap_at);
                // The last gap of a stream without further messages lasts until the publishers stopped.
                if !miss.is_empty() && t_stop > st.last_rx && t_stop - st.last_rx > gap {
                    gap = t_stop - st.last_rx;
                    at = st.last_rx;
                }
                crate::latency::record(&mut v.gaps, gap);
                if gap > v.max_gap.0 {
                    v.max_gap = (gap, at);
                    v.max_gap_stream = format!("publisher {} -> subscriber {}", p.id, s.id);
                }
                one(&mut v, p, format!("subscriber {}", s.id), miss, st.next);
            }
        }
    }
    v.max_gap.1 = v.max_gap.1.saturating_sub(t0);
    v
}
