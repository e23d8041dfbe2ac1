//! Rates between two snapshots.

use serde_json::{Value, json};

use super::snapshot::Snapshot;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// Seconds between the two snapshots.
    pub seconds: f64,
    pub messages_in: f64,
    pub messages_out: f64,
    pub bytes_in: f64,
    pub bytes_out: f64,
    pub dropped: f64,
    /// Rate of each reason of the later snapshot.
    pub drops: Vec<f64>,
    /// Busy share of each reactor of the later snapshot, 0 to 1.
    pub busy: Vec<f64>,
    /// CPU time per time: 1 is one CPU.
    pub cpu: f64,
}

impl Rates {
    /// Computes the rates; `None` when the node restarted between the snapshots, or when its clock did not advance.
    pub fn between(before: &Snapshot, after: &Snapshot) -> Option<Self> {
        if before.started_at != after.started_at || after.uptime_s < before.uptime_s {
            return None;
        }
        let by_clock = match (before.at, after.at) {
            (Some(before), Some(after)) => after.duration_since(before).ok()?.as_secs_f64(),
            _ => after.uptime_s - before.uptime_s,
        };
        if by_clock < 0.05 {
            return None;
        }
        // A counter that decreased belongs to another node.
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / by_clock;
        let drops = after.drops.iter().map(|(reason, count)| {
            let earlier = before.drops.iter().find(|(name, _)| name == reason).map_or(0, |(_, count)| *count);
            rate(earlier, *count)
        });
        let busy = after.workers.iter().map(|worker| {
            let earlier =
                before.workers.iter().find(|w| w.name == worker.name).map_or(worker.busy_us, |w| w.busy_us);
            (rate(earlier, worker.busy_us) / 1e6).min(1.0)
        });
        Some(Self {
            seconds: by_clock,
            messages_in: rate(before.received.messages, after.received.messages),
            messages_out: rate(before.sent.messages, after.sent.messages),
            bytes_in: rate(before.received.bytes, after.received.bytes),
            bytes_out: rate(before.sent.bytes, after.sent.bytes),
            dropped: rate(before.dropped, after.dropped),
            drops: drops.collect(),
            busy: busy.collect(),
            cpu: ((after.cpu_s - before.cpu_s) / by_clock).max(0.0),
        })
    }

    pub fn json(&self, after: &Snapshot) -> Value {
        let drops: serde_json::Map<_, _> = after
            .drops
            .iter()
            .zip(&self.drops)
            .map(|((reason, _), rate)| (reason.clone(), json!(rate)))
            .collect();
        let busy: Vec<_> = after
            .workers
            .iter()
            .zip(&self.busy)
            .map(|(worker, busy)| json!({"worker": worker.name, "busy": busy}))
            .collect();
        json!({
            "seconds": self.seconds,
            "messages_in_per_s": self.messages_in,
            "messages_out_per_s": self.messages_out,
            "bytes_in_per_s": self.bytes_in,
            "bytes_out_per_s": self.bytes_out,
            "dropped_per_s": self.dropped,
            "dropped_per_s_by_reason": drops,
            "workers": busy,
            "cpu": self.cpu,
        })
    }
}
