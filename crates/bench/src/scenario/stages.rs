//! Results of each group in each stage, collected second by second.

use super::plan::Scenario;
use crate::counters::Counts;
use crate::latency::{hist, pour};
use crate::live::Tick;
use crate::report::{lat, round};
use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Results of one group in one stage.
struct Cell {
    sent: u64,
    acked: u64,
    received: u64,
    errors: u64,
    /// Connections at its last second.
    up: i64,
    e2e: Histogram<u64>,
    ack: Histogram<u64>,
}

/// Results of all groups in all stages.
pub struct Stages {
    cells: Vec<Vec<Cell>>,
    /// Current number of connections of each group.
    up: Vec<i64>,
}

impl Stages {
    pub fn new(scenario: &Scenario) -> Stages {
        let cell = || Cell { sent: 0, acked: 0, received: 0, errors: 0, up: 0, e2e: hist(), ack: hist() };
        let cells =
            scenario.groups.iter().map(|_| scenario.stages.iter().map(|_| cell()).collect()).collect();
        Stages { cells, up: vec![0; scenario.groups.len()] }
    }

    /// Adds a second of a group, with the counts of that process before it. The time before the first stage is setup
    /// and belongs to none.
    pub fn add(&mut self, scenario: &Scenario, group: usize, tick: &Tick, before: &Counts) {
        let (Some(cells), Some(up)) = (self.cells.get_mut(group), self.up.get_mut(group)) else { return };
        let now = &tick.counts;
        *up += now.up as i64 - before.up as i64;
        if tick.at <= 0.0 {
            return;
        }
        // The seconds of all groups end with those of the stages, give or take a moment.
        let Some(cell) = cells.get_mut(scenario.stage_at((tick.at - 0.5).max(0.0))) else { return };
        let errors = |c: &Counts| c.attempts_failed + c.disconnects + c.rejected;
        cell.sent += now.sent.saturating_sub(before.sent);
        cell.acked += now.acked.saturating_sub(before.acked);
        cell.received += now.recv.saturating_sub(before.recv);
        cell.errors += errors(now).saturating_sub(errors(before));
        cell.up = *up;
        pour(&tick.pulse.e2e, &mut cell.e2e);
        pour(&tick.pulse.ack, &mut cell.ack);
    }

    /// The stages of a group in the form of the report.
    pub fn report(&self, scenario: &Scenario, group: usize) -> Value {
        let rows =
            scenario.stages.iter().zip(&self.cells[group]).enumerate().map(|(number, (stage, cell))| {
                let per_s = |count: u64| round(count as f64 / stage.seconds as f64, 1);
                json!({
                    "stage": stage.name, "seconds": stage.seconds, "connected": cell.up.max(0),
                    "asked_per_s": scenario.groups[group].target_rates[number].map(|rate| round(rate, 3)),
                    "sent": cell.sent, "sent_per_s": per_s(cell.sent), "acked": cell.acked,
                    "received": cell.received, "received_per_s": per_s(cell.received),
                    "latency_us": lat(&cell.e2e), "ack_us": lat(&cell.ack), "errors": cell.errors,
                })
            });
        Value::Array(rows.collect())
    }
}
