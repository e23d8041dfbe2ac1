//! Trials: groups at work on a [`FaultDisk`](crate::fault::FaultDisk) that crashes again and again, and an oracle
//! that knows the events that they received. The same seed gives the same trial. Used by the crash tests and, with
//! more seeds, by `examples/crash.rs`.

mod model;
mod runner;
mod scenarios;

pub use scenarios::Scenario;

use crate::Mutation;
use crate::fault::FaultCounts;
use runner::Runner;

/// One trial.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    pub seed: u64,
    /// Fault that is built into the log.
    pub mutation: Option<Mutation>,
    /// Operation of the disk at which the power fails in the first incarnation; `None`: the seed decides the
    /// faults.
    pub cut_at: Option<u64>,
    /// Number of incarnations of the process.
    pub incarnations: u32,
    /// Number of steps of an incarnation, unless a fault ends it earlier.
    pub steps: u32,
}

/// Counts of actions and checks of trials. A count that stays 0 means that this case was not tested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub trials: u64,
    pub starts: u64,
    pub commits: u64,
    /// Entries that were compared after a start.
    pub entries: u64,
    /// Parts of checkpoints that were compared after a start.
    pub parts: u64,
    /// Bodies that were read by their index.
    pub bodies: u64,
    /// Number of them that were kept after the segment of their entry was freed.
    pub kept: u64,
    /// Number of starts that cut a torn commit.
    pub cut: u64,
    /// Number of groups whose drop was reported.
    pub drops: u64,
    /// Number of segments that were freed.
    pub freed: u64,
    /// Number of times that the log reported a full disk and then room again.
    pub full: u64,
    pub room: u64,
    /// Number of commits that failed.
    pub failed: u64,
    /// Flipped bits by effect: refused when opening, noticed when reading, cut with the last commit, without
    /// effect.
    pub flips_refused: u64,
    pub flips_read: u64,
    pub flips_cut: u64,
    pub flips_harmless: u64,
    /// Number of logs that were repaired after a flip.
    pub repairs: u64,
    /// Operations of the disk in the first incarnation.
    pub operations: u64,
    pub faults: FaultCounts,
}

impl Tally {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.trials += other.trials;
        self.starts += other.starts;
        self.commits += other.commits;
        self.entries += other.entries;
        self.parts += other.parts;
        self.bodies += other.bodies;
        self.kept += other.kept;
        self.cut += other.cut;
        self.drops += other.drops;
        self.freed += other.freed;
        self.full += other.full;
        self.room += other.room;
        self.failed += other.failed;
        self.flips_refused += other.flips_refused;
        self.flips_read += other.flips_read;
        self.flips_cut += other.flips_cut;
        self.flips_harmless += other.flips_harmless;
        self.repairs += other.repairs;
        self.operations += other.operations;
        self.faults.add(other.faults);
    }

    /// Returns the names of the counts that are 0.
    #[must_use]
    pub fn idle(&self) -> Vec<&'static str> {
        let figures = [
            ("starts", self.starts),
            ("commits", self.commits),
            ("entries", self.entries),
            ("parts", self.parts),
            ("bodies", self.bodies),
            ("kept bodies", self.kept),
            ("cut", self.cut),
            ("drops", self.drops),
            ("freed", self.freed),
            ("full", self.full),
            ("room", self.room),
            ("failed", self.failed),
            ("flips_refused", self.flips_refused),
            ("flips_read", self.flips_read),
            ("flips_cut", self.flips_cut),
            ("flips_harmless", self.flips_harmless),
            ("repairs", self.repairs),
            ("cuts", self.faults.cuts),
            ("sectors_lost", self.faults.sectors_lost),
            ("writes_torn", self.faults.writes_torn),
            ("names_lost", self.faults.names_lost),
            ("syncs_failed", self.faults.syncs_failed),
            ("disk full", self.faults.full),
        ];
        figures.iter().filter(|(_, count)| *count == 0).map(|(name, _)| *name).collect()
    }
}

impl Trial {
    /// Creates a trial in which the seed decides everything.
    #[must_use]
    pub fn random(seed: u64) -> Self {
        Self { seed, mutation: None, cut_at: None, incarnations: 6, steps: 120 }
    }

    /// Runs the trial.
    ///
    /// # Errors
    /// A sentence that describes the error, when the log broke a guarantee.
    pub fn run(&self) -> Result<Tally, String> {
        Runner::new(*self).run().map_err(|why| format!("seed {}: {why}", self.seed))
    }
}
