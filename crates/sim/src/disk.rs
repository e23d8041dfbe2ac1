//! Machine of a node over all its incarnations: its disk and its clocks.

use std::time::Duration;

use shardlog::Moment;
use storage::fault::{FaultCounts, FaultDisk, FaultPlan};

use crate::context::Context;
use crate::schedule::Micros;

pub struct Machine {
    pub disk: FaultDisk,
    /// Number of boots of the machine.
    boots: u32,
    booted: Micros,
    /// Time by which the wall clock is ahead, microseconds. It may jump.
    wall: i128,
    /// Recorded times of the node, the latest first. They are not synced, so a power cut may leave an earlier one or
    /// none.
    noted: Vec<Moment>,
    counted: FaultCounts,
}

const YEAR: i128 = 365 * 24 * 3600 * 1_000_000;
/// Start of simulated time, in 2025, as Unix time in microseconds.
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

    /// Values of the clocks at a time of the node.
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

    /// Kills the process. Data in the operating system's memory stays.
    pub fn kill(&mut self) {
        self.disk = self.disk.kill();
    }

    /// Cuts the power. Data that was not synced may be lost, and the machine boots again.
    pub fn cut(&mut self, cx: &mut Context) {
        self.disk = self.disk.crash();
        let kept = cx.random.below(self.noted.len() + 1);
        self.noted.drain(..kept);
        self.boots += 1;
        self.booted = cx.now();
        cx.report.reboots += 1;
    }

    /// Sets the wall clock a year ahead or back, or nearly right.
    pub fn jump(&mut self, cx: &mut Context) {
        self.wall += match cx.random.below(3) {
            0 => YEAR,
            1 => -YEAR,
            _ => i128::from(cx.between(0, 20_000_000)) - 10_000_000,
        };
        cx.report.clock_jumps += 1;
    }

    /// Ends all faults of the disk.
    pub fn mend(&self) {
        self.disk.set_plan(FaultPlan::default());
    }

    /// Adds the disk's counters since the last call to the report.
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
