//! Results of the workers at the end of a run, and their sum.

use crate::counters::Counts;
use crate::latency::Hists;
use crate::track::{Bits, Stream};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub struct Event {
    pub at: u64,
    pub client: String,
    pub host: String,
    pub what: String,
}

#[derive(Default)]
pub struct PubResult {
    pub id: usize,
    pub sent: u64,
    pub due: u64,
    /// Messages sent, but not acknowledged when the run ended.
    pub unacked: Vec<u64>,
    /// Messages refused by the broker with an error reason.
    pub rejected: Vec<u64>,
    /// Messages with PUBREC whose session the broker then lost.
    pub rec_only: Vec<u64>,
}

pub struct SubResult {
    pub id: usize,
    pub ok: bool,
    pub base: usize,
    pub stride: usize,
    pub streams: Vec<Stream>,
}

pub struct WorkerResult {
    pub counts: Counts,
    pub hists: Hists,
    pub pubs: Vec<PubResult>,
    pub subs: Vec<SubResult>,
    pub groups_seen: Vec<Vec<Bits>>,
    pub reasons: BTreeMap<String, u64>,
    pub events: Vec<Event>,
    pub max_group_gap: (u64, u64),
    /// Longest time in which this worker's subscribers received nothing at all.
    pub any_gap: (u64, u64),
    /// CPU time of the thread since publishing began, in nanoseconds.
    pub cpu_ns: u64,
}

/// The merged results of the workers.
pub struct Merged {
    pub c: Counts,
    pub h: Hists,
    pub pubs: Vec<PubResult>,
    pub subs: Vec<SubResult>,
    pub groups_seen: Vec<Vec<Bits>>,
    pub cross_dup: u64,
    pub reasons: BTreeMap<String, u64>,
    pub events: Vec<Event>,
    pub group_gap: (u64, u64),
    pub any_gap: (u64, u64),
    pub cpu_ns: u64,
}

pub fn merge(rs: Vec<WorkerResult>) -> Merged {
    let mut m = Merged {
        c: Counts::default(),
        h: Hists::new(),
        pubs: vec![],
        subs: vec![],
        groups_seen: vec![],
        cross_dup: 0,
        reasons: BTreeMap::new(),
        events: vec![],
        group_gap: (0, 0),
        any_gap: (0, 0),
        cpu_ns: 0,
    };
    for r in rs {
        m.c.add(&r.counts);
        m.h.add(&r.hists);
        m.cpu_ns += r.cpu_ns;
        m.pubs.extend(r.pubs);
        m.subs.extend(r.subs);
        m.events.extend(r.events);
        if r.max_group_gap.0 > m.group_gap.0 {
            m.group_gap = r.max_group_gap;
        }
        if r.any_gap.0 > m.any_gap.0 {
            m.any_gap = r.any_gap;
        }
        for (k, v) in r.reasons {
            *m.reasons.entry(k).or_insert(0) += v;
        }
        if m.groups_seen.is_empty() {
            m.groups_seen = r.groups_seen;
        } else {
            for (a, b) in m.groups_seen.iter_mut().zip(&r.groups_seen) {
                for (x, y) in a.iter_mut().zip(b) {
                    m.cross_dup += x.merge(y);
                }
            }
        }
    }
    m.pubs.sort_by_key(|p| p.id);
    m.subs.sort_by_key(|s| s.id);
    m.events.sort_by_key(|e| e.at);
    m
}
