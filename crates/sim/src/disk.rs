//! The machine under a node: its disk and its clocks, over all of the node's lives.

use std::time::Duration;

use shardlog::Moment;
use storage::fault::{FaultCounts, FaultDisk, FaultPlan};

use crate::context::Context;
use crate::schedule::Micros;

pub struct Machine {
    pub disk: FaultDisk,
    /// How often the machine was started.
    boots: u32,
    booted: Micros,
    /// What the wall clock is ahead, microseconds; it jumps.
    wall: i128,
    /// The node's time as it was written down: the latest first. Not synced, so a power cut may leave an earlier one or none.
    noted: Vec<Moment>,
    counted: FaultCounts,
}

const YEAR: i128 = 365 * 24 * 3600 * 1_000_000;
/// 2025, about.
const BEGAN: i128 = 55 * YEAR;

impl Machine {
    pub fn new(seed: u64) -> Self {
        Self {
            disk: FaultDisk::new(seed),
            boots: 1,
            booted: 0,
            wall: BEGAN,
            noted: Vec::new(),
            counted: FaultCounts::default(),
        }
    }

    /// What the clocks say, for this point of the node's time.
    pub fn moment(&self, now: Micros, node: Duration) -> Moment {
        let wall = (i128::from(now) + self.wall).max(0) as u64;
        Moment {
            node,
            wall: Duration::from_micros(wall),
            boot: Duration::from_micros(now - self.booted),
            boot_id: format!("boot-{}", self.boots),
        }
    }

    pub fn note(&mut self, moment: Moment) {
        self.noted.insert(0, moment);
        self.noted.truncate(3);
    }

    pub fn noted(&self) -> Option<&Moment> {
        self.noted.first()
    }

    /// The process is gone; what the system holds in memory stays.
    pub fn kill(&mut self) {
        self.disk = self.disk.kill();
    }

    /// The power goes: what was not synced may be lost, and the machine starts anew.
    pub fn cut(&mut self, cx: &mut Context) {
        self.disk = self.disk.crash();
        let kept = cx.random.below(self.noted.len() + 1);
        self.noted.drain(..kept);
        self.boots += 1;
        self.booted = cx.now();
        cx.report.reboots += 1;
    }

    /// Somebody sets the wall clock: a year ahead or back, or nearly right.
    pub fn jump(&mut self, cx: &mut Context) {
        self.wall += match cx.random.below(3) {
            0 => YEAR,
            1 => -YEAR,
            _ => i128::from(cx.between(0, 20_000_000)) - 10_000_000,
        };
        cx.report.clock_jumps += 1;
    }

    /// Nothing is wrong with its disk any more.
    pub fn mend(&self) {
        self.disk.set_plan(FaultPlan::default());
    }

    /// Adds what has happened since the last time.
    pub fn count(&mut self, cx: &mut Context) {
        let now = self.disk.counts();
        let before = std::mem::replace(&mut self.counted, now);
        cx.report.sectors_lost += now.sectors_lost - before.sectors_lost;
        cx.report.writes_torn += now.writes_torn - before.writes_torn;
        cx.report.names_lost += now.names_lost - before.names_lost;
        cx.report.syncs_failed += now.syncs_failed - before.syncs_failed;
        cx.report.disks_full += now.full - before.full;
    }
}
