//! Results of the clients of one process or several.

use crate::counters::Counts;
use crate::latency::Hists;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All data of the report. Results are merged exactly, histograms included.
#[derive(Serialize, Deserialize)]
pub struct Done {
    pub clients: u64,
    pub counts: Counts,
    /// Counts at the end of the run, before the connections were closed.
    pub last: Counts,
    pub hists: Hists,
    pub reasons: BTreeMap<String, u64>,
    /// Seconds of the run, and from the first attempt until the last client was ready.
    pub seconds: f64,
    pub ready_s: f64,
    /// Seconds of the time for messages.
    pub flow_s: f64,
    pub sent_per_s: f64,
    pub received_per_s: f64,
    pub interrupted: bool,
    /// True when no connection was left.
    pub deserted: bool,
    /// True, with pubsub only, when not all clients could connect and subscribe, so nothing was published.
    pub aborted: bool,
    pub checked: Option<Checked>,
    /// Resources of this tool: CPU seconds during the time for messages, bytes for the clients, threads, processes.
    pub cpu_s: f64,
    pub rss: u64,
    pub threads: u64,
    pub processes: u64,
    /// Problems that are not counts.
    pub problems: Vec<String>,
}

/// Comparison of received and sent messages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Checked {
    pub lost: u64,
    pub lost_acked: u64,
    pub duplicated: u64,
    pub out_of_order: u64,
    pub violations: Vec<String>,
}

impl Done {
    /// A result without any activity.
    pub fn nothing() -> Done {
        Done {
            clients: 0,
            counts: Counts::default(),
            last: Counts::default(),
            hists: Hists::new(),
            reasons: BTreeMap::new(),
            seconds: 0.0,
            ready_s: 0.0,
            flow_s: 0.0,
            sent_per_s: 0.0,
            received_per_s: 0.0,
            interrupted: false,
            deserted: true,
            aborted: false,
            checked: None,
            cpu_s: 0.0,
            rss: 0,
            threads: 0,
            processes: 0,
            problems: vec![],
        }
    }

    pub fn add(&mut self, other: Done) {
        self.clients += other.clients;
        self.counts.add(&other.counts);
        self.last.add(&other.last);
        self.hists.add(&other.hists);
        for (reason, count) in other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
        self.seconds = self.seconds.max(other.seconds);
        self.ready_s = self.ready_s.max(other.ready_s);
        self.flow_s = self.flow_s.max(other.flow_s);
        self.sent_per_s += other.sent_per_s;
        self.received_per_s += other.received_per_s;
        self.interrupted |= other.interrupted;
        self.deserted &= other.deserted;
        self.aborted |= other.aborted;
        if let Some(theirs) = other.checked {
            let ours = self.checked.get_or_insert_default();
            ours.lost += theirs.lost;
            ours.lost_acked += theirs.lost_acked;
            ours.duplicated += theirs.duplicated;
            ours.out_of_order += theirs.out_of_order;
            ours.violations.extend(theirs.violations);
        }
        self.cpu_s += other.cpu_s;
        self.rss += other.rss;
        self.threads += other.threads;
        self.processes += other.processes;
        self.problems.extend(other.problems);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_merged() {
        let part = |sent, ns, lost| Done {
            counts: Counts { sent, ..Counts::default() },
            reasons: [("r".to_owned(), sent)].into(),
            deserted: false,
            seconds: sent as f64,
            checked: Some(Checked { lost, ..Checked::default() }),
            hists: {
                let mut hists = Hists::new();
                crate::latency::record(&mut hists.e2e, ns);
                hists
            },
            ..Done::nothing()
        };
        let mut all = Done::nothing();
        for done in [part(3, 1000, 0), part(4, 9000, 2)] {
            let wire = serde_json::to_string(&done).unwrap();
            all.add(serde_json::from_str(&wire).unwrap());
        }
        assert_eq!((all.counts.sent, all.reasons["r"], all.seconds, all.deserted), (7, 7, 4.0, false));
        assert_eq!(all.checked.unwrap().lost, 2);
        assert_eq!(all.hists.e2e.len(), 2);
        assert!((9000..9050).contains(&all.hists.e2e.max()));
    }
}
